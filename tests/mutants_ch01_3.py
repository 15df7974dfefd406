"""Faults in the kernels of sections 1.3.1 to 1.3.4, and the test that has to see each."""

from tests.mutants import Mutant, faults

MUTANTS: list[Mutant] = [
    # --- 1.3.1
    *faults(
        "ch01_cuda_basics/s1_3_1_host_and_device_memory.py",
        "tests/test_ch01_3_memory.py",
        ("q < n / 4; q += stride", "q <= n / 4; q += stride", "131_every_kind"),
        ("3 * v.z + 1,", "3 * v.y + 1,", "131_every_kind"),
        ("n / 4 * 4 + first;", "n / 4 * 4 + first + 1;", "131_every_kind"),
        ("if (i < n) y[i] = 3 * x[i] + 1;", "if (i < n) y[i] = 3 * x[i];", "131_every_kind"),
        # the host
        ("1024, owner=buffer)", "1024)", "131_who_frees_it"),
    ),
    # --- 1.3.2
    *faults(
        "ch01_cuda_basics/s1_3_2_transfers.py",
        "tests/test_ch01_3_memory.py",
        ("q < n / 4; q += stride", "q < n / 4 - 1; q += stride", "132_there_and_back"),
        ("(unsigned long long)(i + 1)", "(unsigned long long)i", "132_there_and_back"),
        ("word * (unsigned long long)(i + 1)", "word * (unsigned)(i + 1)", "132_there_and_back"),
        ("add(v.z, 4 * q + 2);", "add(v.z, 4 * q + 1);", "132_there_and_back"),
        ("if (first < n % 4) add", "if (first + 1 < n % 4) add", "132_there_and_back"),
        ("offset = 16; offset > 0", "offset = 8; offset > 0", "132_there_and_back"),
        ("if (threadIdx.x < 2) of_block[", "if (threadIdx.x < 1) of_block[", "132_there_and_back"),
        ("if (threadIdx.x % 32 == 0) {", "if (threadIdx.x == 0) {", "132_there_and_back"),
        ("if (threadIdx.x < 2) atomicAdd", "if (threadIdx.x < 1) atomicAdd", "132_there_and_back"),
        ("= 0;\n    __syncthreads();\n", "= 0;\n", "132_the_sums_of_a_block_do_not_race"),
        ("    }\n    __syncthreads();\n", "    }\n", "132_the_sums_of_a_block_do_not_race"),
        # the host
        ("+ y * pitch, width", "+ y * pitch // 8 * 4, width", "132_rectangles"),
        ("how(on_host(cut(out, top, left, shape))", "how(on_host(cut(out, 0, left, shape))", "132_rectangles"),
    ),
    # --- 1.3.3
    *faults(
        "ch01_cuda_basics/s1_3_3_shared_and_constant_memory.py",
        "tests/test_ch01_3.py",
        # pixel
        ("return x >= 0 && x < width", "return x > 0 && x < width", "133_every_rung"),
        ("y >= 0 && y < height ? in", "y >= 0 && y <= height ? in", "133_every_rung"),
        # conv_global
        ("sum += filter[(R + dy) * TAPS + R + dx]", "sum += filter[(R - dy) * TAPS + R - dx]", "133_every_rung"),
        (
            "const float* __restrict__ filter)\n{\n    const int x = blockIdx.x * blockDim.x + threadIdx.x,",
            "const float* __restrict__ filter)\n{\n    const int x = blockIdx.x * 32 + threadIdx.x / 2,",
            "133_every_rung",
        ),
        # conv_constant
        ("sum += taps[(R + dy) * TAPS + R + dx]", "sum += taps[(R + dx) * TAPS + R + dy]", "133_every_rung"),
        (
            "int width, int height)\n{\n    const int x",
            "int width, int height)\n{\n    --width; const int x",
            "133_every_rung",
        ),
        # conv_shared, conv_tile
        ("tile_x, tile_y, filter);", "tile_y, tile_x, filter);", "133_every_rung"),
        ("tile_x, tile_y, taps);", "tile_x, tile_y, taps + 1);", "133_every_rung"),
        ("sum += filter[dy * TAPS + dx]", "sum += filter[dx * TAPS + dy]", "133_every_rung"),
        ("across = tile_x + 2 * R, down", "across = tile_x + R, down", "133_every_rung"),
        (
            "j < down; j += blockDim.y",
            "j < down; j += blockDim.y + 1",
            "133_a_tile_of_any_size_by_a_block_of_any_shape",
        ),
        ("left + i - R, top + j - R", "left + i - R, top + j", "133_every_rung"),
        ("    __syncthreads();  // the tile", "    // the tile", "133_the_tile_is_not_read_before_it_is_whole"),
        ("j < tile_y && top + j < height", "j < tile_y", "133_every_rung"),
        ("i < tile_x && left + i < width", "left + i < width", "133_every_rung"),
        # conv_registers
        ("q = blockIdx.x * 30 + lane - 1;", "q = blockIdx.x * 30 + lane;", "133_every_rung"),
        ("if (there > 0 && y >= 0", "if (y >= 0", "133_every_rung"),
        ("y >= 0 && y < height) row[k]", "y < height) row[k]", "133_every_rung"),
        ("y >= 0 && y < height) row[k]", "y >= 0) row[k]", "133_every_rung"),
        ("if (there < 2)", "if (there < 1)", "133_what_lies_between_the_rows_does_not_count"),
        ("if (there < 3)", "if (there < 2)", "133_what_lies_between_the_rows_does_not_count"),
        ("if (there < 4)", "if (there < 3)", "133_what_lies_between_the_rows_does_not_count"),
        ("__shfl_up_sync(0xffffffff, v.z, 1)", "__shfl_up_sync(0xffffffff, v.w, 1)", "133_every_rung"),
        ("__shfl_down_sync(0xffffffff, v.y, 1)", "__shfl_down_sync(0xffffffff, v.y, 2)", "133_every_rung"),
        ("y = first + k - R;", "y = first + k;", "133_every_rung"),
        ("r = k - dy; r >= 0", "r = k - dy; r > 0", "133_every_rung"),
        ("first + done < height && lane > 0", "lane > 0", "133_every_rung"),
        ("lane > 0 && lane < 31 && q < quads", "lane < 31 && q < quads", "133_every_rung"),
        ("lane < 31 && q < quads", "q < quads", "133_a_block_writes_no_columns_but_its_own"),
        ("lane < 31 && q < quads", "lane < 31", "133_every_rung"),
        # table_sums
        ("spread * (threadIdx.x % 32)) % 1024", "spread * (threadIdx.x % 16)) % 1024", "133_table_sums"),
        ("k < reads; ++k", "k <= reads; ++k", "133_table_sums"),
        # the host
        ('set_constant("taps", filter_, stream)\n    d_in', "d_in", "133_constants_count_for_the_launches_that_follow"),
    ),
    # --- 1.3.4
    *faults(
        "ch01_cuda_basics/s1_3_4_streams_and_events.py",
        "tests/test_ch01_3.py",
        # advance
        ("r < rounds; ++r", "r <= rounds; ++r", "134_pipelines"),
        ("s = 1664525u * s", "s = 1664527u * s", "134_pipelines"),
        ("if (i >= n) return;", "if (i > n) return;", "134_pipelines"),
        # the order of the stages: what the simulator, which does all work at once, cannot miss
        ("            own.wait(done)  # the", "            # the", "134_events_order_what_has_to_be_ordered"),
        (
            "            done = own.record()\n",
            "            own.record()\n",
            "134_events_order_what_has_to_be_ordered",
        ),
        ("        free[slot] = done\n", "", "134_events_order_what_has_to_be_ordered"),
        ("        stream.wait(event)\n", "        pass\n", "134_events_order_what_has_to_be_ordered"),
        ("slot if by_chunk else k", "slot if by_chunk else 0", "134_events_order_what_has_to_be_ordered"),
        ("max(all_three / buffers", "min(all_three / buffers", "134_what_the_stages_promise"),
        ("        inward.wait_for_event(free[slot])\n", "", "134_pycudas_events_too"),
        ("        work.wait_for_event(cuda.Event().record(inward))\n", "", "134_pycudas_events_too"),
        (
            "outward.wait_for_event(cuda.Event().record(work))",
            "outward.wait_for_event(free[slot])",
            "134_pycudas_events_too",
        ),
        (
            "free[slot] = cuda.Event().record(outward)",
            "free[slot] = cuda.Event().record(work)",
            "134_pycudas_events_too",
        ),
    ),
]
