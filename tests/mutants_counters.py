"""Deliberate faults in the counters, the profiler and the comparison with the hardware."""

from __future__ import annotations

from tests.mutants import faults

IN_A_KERNEL = "tests/test_simt_access.py"

MUTANTS = [
    *faults(
        "common/simt/access.py",
        IN_A_KERNEL,
        (
            "(lanes >> 2) * 4 + (LANES >> 3)",
            "(lanes >> 2) * 4 + (LANES >> 4)",
            "local_memory_is_a_row_of_lanes_for_each_word",
        ),
        ("return _distinct(octets) * max(size // 4, 1)", "return _distinct(octets)", "local_requests_count_each_word"),
        ("for step in (1, 2):", "for step in (1,):", "merging_asks_for_all_lanes_and_for_one_distance"),
        (
            ").all(axis=1)\n    wavefronts",
            ").any(axis=1)\n    wavefronts",
            "merging_asks_for_all_lanes_and_for_one_distance",
        ),
        ('(2 if op == "cas" else 1)', "1", "atomics_by_the_lanes_of_a_bank"),
        ("np.maximum(turns - 1, 0)", "turns", "atomics_by_the_lanes_of_a_bank"),
        ("atomics + 2 * (wavefronts > 0)", "atomics + (wavefronts > 0)", "a_float_addition_takes_rounds"),
        ("return _in_groups(named, 16, 8)", "return _in_groups(named, 16, 32)", "matrices_in_a_kernel"),
        ("np.where(8 * count > LANES, lanes, INACTIVE)", "lanes", "matrices_in_a_kernel"),
    ),
    *faults(
        "common/simt/counters.py",
        IN_A_KERNEL,
        ("len(lanes) * max(1, size // 4)", "len(lanes)", "local_requests_count_each_word"),
        ("bool((value == 1).all())", "True", "atomics_in_a_kernel"),
        ("and not wanted and", "and", "atomics_in_a_kernel"),
        ('count, "matrix_load", where)', 'count, "load", where)', "matrices_in_a_kernel"),
        ("if len(reading) == g.n:", "if True:", "lanes_that_copy_nothing_ask_for_nothing"),
        (
            "return 32 * self.total(BYTES[name])",
            "return 16 * self.total(BYTES[name])",
            "an_asynchronous_copy_counts_as_a_load",
        ),
        (
            "_cost(_lanes(sub, part.raw + offset), size",
            "_cost(_lanes(sub, part.raw), size",
            "an_offset_in_the_instruction_counts",
        ),
    ),
    *faults(
        "common/simt/counters.py",
        "tests/test_simt_counters.py",
        ('if "global" in mods:', 'if "global" in mods and op != "cp":', "classes_of_instructions"),
        ('else "float")', 'else "integer")', "classes_of_instructions"),
        (
            "        if key not in part.costs:",
            "        if True:",
            "an_address_that_is_used_again_is_not_looked_at_again",
        ),
        (
            "counted.update({name: 32 *",
            "counted.update({name: 8 *",
            "lines_of_the_source_and_a_last_warp_that_is_not_full",
        ),
    ),
    *faults(
        "common/counters.py",
        "tests/test_counters.py",
        ("simulator <= hardware <= (1 + NEAR)", "hardware <= (1 + NEAR)", "what_counts_as_equal"),
        ("    return hardware == simulator\n", "    return hardware <= simulator\n", "what_counts_as_equal"),
        ("if known.get(name) != found.get(name)", "if name not in known", "differences_must_be_the_known_ones"),
        ("if kernels[0] != kernels[1]:", "if False:", "other_launches_on_the_gpu_are_an_error"),
        ("return FAILED if lines else OK", "return OK", "without_a_gpu_the_stored_figures_are_compared"),
        ("if write and new != old:", "if new != old:", "the_table_in_a_readme"),
        ('"kernels": hardware,', '"kernels": simulator,', "on_a_gpu_the_figures_are_stored"),
    ),
    *faults(
        "common/profile.py",
        "tests/test_profile.py",
        (
            "key=lambda line: (-cost[line], line)",
            "key=lambda line: (cost[line], line)",
            "a_line_of_shared_memory_shows_its_conflicts",
        ),
        ("line - found[-1].stop <= GAP", "line - found[-1].stop < GAP", "pieces_of_a_source"),
        ("while sum(width.values()) > WIDTH and dropped:", "while False:", "a_wide_table_drops_what_matters_least"),
        (
            "pairs.append((counts, there.pop(0)))",
            "pairs.append((counts, there[0]))",
            "launches_are_matched_by_grid_and_block",
        ),
        (
            "(launch.kernel, launch.grid, launch.block)",
            "(launch.kernel, launch.grid, launch.grid)",
            "launches_are_matched_by_grid_and_block",
        ),
        ("if code != OK:", "if False:", "a_section_that_fails_is_an_error_with_its_output"),
        (
            "except ReaderError as error:",
            "except ZeroDivisionError as error:",
            "without_the_hardware_the_rest_is_there",
        ),
    ),
    *faults(
        "common/ncu.py",
        "tests/test_ncu.py",
        ('for what in ("Grid", "Block")', 'for what in ("Block", "Grid")', "csv"),
        ('"true" if found[1] == "1" else "false"', '"true"', "the_name_of_a_kernel"),
        ("replace(same[0], metrics=", "Launch(same[0].kernel, ", "patched_metrics_have_a_run_of_their_own"),
    ),
]
