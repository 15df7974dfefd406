"""Faults in sections 8.3.1 and 8.3.2, and the test that has to see each."""

from tests.mutants import Mutant, faults

MUTANTS: list[Mutant] = [
    # --- 8.3.1
    *faults(
        "ch08_memory/s8_3_1_host_device_interaction.py",
        "tests/test_ch08_3.py",
        # sum_lines
        ("lines = (n + 31) / 32, groups", "lines = n / 32, groups", "831_every_way_of_reading"),
        ("groups = (lines + every - 1) / every", "groups = lines / every", "831_every_way_of_reading"),
        ("left < every ? left : every", "every", "831_every_way_of_reading"),
        ("mix(g + blockIdx.y * 0x9e3779b9u)", "mix(g)", "831_uses_read_other_lines"),
        ("threadIdx.x % 8 * 4", "threadIdx.x % 8 * 2", "831_every_way_of_reading"),
        ("if (w + 4 <= n)", "if (w <= n)", "831_every_way_of_reading"),
        ("i < n; ++i) mine += words[i];", "i < n - 1; ++i) mine += words[i];", "831_every_way_of_reading"),
        ("(unsigned long long)v.x + v.y + v.z + v.w", "v.x + v.y + v.z + v.w", "831_every_way_of_reading"),
        ("g < groups; g += stride", "g < groups; g += 2 * stride", "831_a_grid_smaller_than_the_data"),
        ("    __syncthreads();\n", "", "831_no_races"),
        ("k < blockDim.x / 32; ++k", "k < blockDim.x / 64; ++k", "831_every_way_of_reading"),
        ("offset = 16; offset > 0", "offset = 8; offset > 0", "831_every_way_of_reading"),
        # write_results
        ("q < n / 4; q += stride", "q < n / 4 - 1; q += stride", "831_every_way_of_results"),
        ("mix(i + 2), mix(i + 3)", "mix(i + 3), mix(i + 2)", "831_every_way_of_results"),
        ("n / 4 * 4 + first;", "n / 4 * 4 + first + 1;", "831_every_way_of_results"),
        ("q += stride) {", "q += n) {", "831_a_grid_smaller_than_the_data"),
        # the host
        ("d_words.copy_from(source, stream=s)", "None", "831_every_way_of_reading"),
        ("    way.back(stream)\n", "", "831_every_way_of_results"),
        ("d_sum.buffer.fill(0, stream=stream)", "pass", "831_every_way_of_reading"),
        (
            "            way.host[:] = words\n",
            "",
            "831_the_host_writes_before_each_call_and_only_the_call_is_timed",
        ),
        ("(copy - start) / (there - here)", "copy / there", "831_recorded_figures"),
        ("* (ways[way] == min(", "* (ways[way] == max(", "831_recorded_figures"),
    ),
    # --- 8.3.2
    *faults(
        "ch08_memory/s8_3_2_pcie_and_nvlink.py",
        "tests/test_ch08_3.py",
        # copy_words
        ("q < n / 4; q += stride", "q < n / 4 - 1; q += stride", "832_every_path_on_one_gpu"),
        ("q += stride)\n", "q += n)\n", "832_a_grid_smaller_than_the_data"),
        ("n / 4 * 4 + first;", "n / 4 * 4 + first + 1;", "832_every_path_on_one_gpu"),
        ("if (i < n) to[i]", "if (i <= n) to[i]", "832_a_grid_smaller_than_the_data"),
        # follow
        ("k < steps; ++k", "k <= steps; ++k", "832_rings"),
        ("ring[32ll * cell]", "ring[31ll * cell]", "832_rings"),
        # the host
        ("copy_words(a, b.out, a.into)", "copy_words(a, a.out, b.into)", "832_every_path_on_one_gpu"),
        ("    a.into.copy_from(b.out, stream=b.stream)\n", "", "832_every_path_on_one_gpu"),
        ("    b.stream.wait(a.stream.record())\n    b.into", "    b.into", "832_both_directions_are_ordered_by_events"),
        (
            "        b.stream.wait(a.stream.record())  # this chunk has arrived\n",
            "",
            "832_a_chunk_goes_up_when_it_has_come_down",
        ),
        (
            "size = min(step, host.size - first)",
            "size = host.size - first",
            "832_a_chunk_goes_up_when_it_has_come_down",
        ),
        ("(np.arange(cells) + JUMP) % cells", "np.arange(cells)", "832_rings"),
        ("return gigabits * 1e9 * share / 8 * lanes", "return gigabits * 1e9 / 8 * lanes", "832_rates_by_hand"),
        ("for b in range(count) if a != b]", "for b in range(a)]", "832_matrices_of_any_number_of_gpus"),
    ),
]
