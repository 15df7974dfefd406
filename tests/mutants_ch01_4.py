"""Faults in the kernels of sections 1.4.1 to 1.4.4, and the test that has to see each."""

from tests.mutants import Mutant, faults

MUTANTS: list[Mutant] = [
    # --- 1.4.1
    *faults(
        "ch01_cuda_basics/s1_4_1_scheduling_model.py",
        "tests/test_ch01_4.py",
        # work
        ("s[k] = first + k;", "s[k] = first;", "141_every_block_runs_once"),
        ("first = i < n ? state[i] : 0;", "first = state[i];", "141_a_last_block_that_is_not_full"),
        ("if (i < n) state[i] = sum;", "state[i] = sum;", "141_a_last_block_that_is_not_full"),
        ("r < rounds", "r <= rounds", "141_any_number_of_rounds"),
        ("1664525u * s[k]", "1664527u * s[k]", "141_every_block_runs_once"),
        ("k < CHAINS; ++k) sum", "k < CHAINS - 1; ++k) sum", "141_every_block_runs_once"),
        ("if (threadIdx.x == 0)", "if (threadIdx.x == 0 && blockIdx.x > 0)", "141_every_block_runs_once"),
        ("records[blockIdx.x] = mine;", "records[blockIdx.x + 1] = mine;", "141_every_block_runs_once"),
        ("%%smid", "%%nsmid", "141_every_block_runs_once"),
        ("%%warpid", "%%nwarpid", "141_every_block_runs_once"),
        # one_chain, many_chains
        ("work<1>(state, n, records, rounds)", "work<2>(state, n, records, rounds)", "141_every_block_runs_once"),
        ("work<64>(state, n, records, rounds)", "work<64>(state, n, records, 0)", "141_every_block_runs_once"),
        # the arithmetic by hand
        ("// 256) * 256", "// 512) * 512", "141_limits_by_hand"),
        ("// 4 // of_warp * 4 // warps", "// of_warp // warps", "141_limits_by_hand"),
        ("// 128) * 128", "// 256) * 256", "141_limits_by_hand"),
        ("(change, times, np.tile", "(-change, times, np.tile", "141_most_at_once_by_hand"),
    ),
    # --- 1.4.2
    *faults(
        "ch01_cuda_basics/s1_4_2_block_and_grid_layout.py",
        "tests/test_ch01_4_layout.py",
        # jacobi_2d
        (
            "    if (x >= width || y >= height) return;\n    const long long i = (long long)y * width + x;\n",
            "    if (y >= height) return;\n    const long long i = (long long)y * width + x;\n",
            "142_two_dimensions",
        ),
        (
            "x == width - 1 || y == 0 || y == height - 1;\n    out[i] = border ?",
            "x == width - 2 || y == 0 || y == height - 1;\n    out[i] = border ?",
            "142_two_dimensions",
        ),
        (
            "const int y = blockIdx.y * blockDim.y + threadIdx.y;\n    if (x",
            "const int y = blockIdx.y * blockDim.x + threadIdx.y;\n    if (x",
            "142_two_dimensions",
        ),
        # jacobi_2d_stride
        ("y += gridDim.y * blockDim.y", "y += 3 * gridDim.y * blockDim.y", "142_two_dimensions"),
        ("if (x >= width) return;", "", "142_two_dimensions"),
        (
            "y == height - 1;\n        out[i] = border",
            "y >= height - 2;\n        out[i] = border",
            "142_two_dimensions",
        ),
        # jacobi_2d_float4
        ("max(q, 0), quads - 1);\n    float4 row[", "max(q, 0), 1 << 30);\n    float4 row[", "142_two_dimensions"),
        ("max(q, 0), quads - 1);\n    float4 row[", "q, quads - 1);\n    float4 row[", "142_two_dimensions"),
        ("(long long)min(max(first + k - 1, 0), height - 1)", "(long long)max(first + k - 1, 0)", "142_two_dimensions"),
        (
            "mean.y = 0.25f * ((above.y + below.y) + (here.x + here.z))",
            "mean.y = 0.25f * ((above.y + below.y) + (here.x + here.w))",
            "142_two_dimensions",
        ),
        (
            "mean.w = 0.25f * ((above.w + below.w) + (here.z + right))",
            "mean.w = 0.25f * ((above.w + below.w) + (here.z + left))",
            "142_two_dimensions",
        ),
        (
            "const int y = first + k - 1, last = width - 1 - 4 * q;",
            "const int y = first + k - 1, last = width - 4 * q;",
            "142_two_dimensions",
        ),
        (
            "        if (y == 0 || y == height - 1) mean = here;\n",
            "        if (y == 0) mean = here;\n",
            "142_two_dimensions",
        ),
        (
            "lane > 0 && lane < 31 && q < quads && y < height)",
            "lane < 31 && q < quads && y < height)",
            "142_two_dimensions",
        ),
        (
            "lane > 0 && lane < 31 && q < quads && y < height)",
            "lane > 0 && q < quads && y < height)",
            "142_a_block_writes_no_columns_but_its_own",
        ),
        (
            "lane > 0 && lane < 31 && q < quads && y < height)",
            "lane > 0 && lane < 31 && y < height)",
            "142_two_dimensions",
        ),
        (
            "lane > 0 && lane < 31 && q < quads && y < height)",
            "lane > 0 && lane < 31 && q < quads)",
            "142_two_dimensions",
        ),
        # jacobi_3d
        ("in[i - plane] + in[i + plane]", "in[i - plane] + in[i - plane]", "142_three_dimensions"),
        ("|| z == 0 || z == depth - 1;", "|| z == 0;", "142_three_dimensions"),
        (
            "if (x >= width || y >= height || z >= depth) return;",
            "if (x >= width || y >= height) return;",
            "142_three_dimensions",
        ),
        # jacobi_3d_float4
        ("max(q, 0), quads - 1);\n    float4 box[", "max(q, 0), 1 << 30);\n    float4 box[", "142_three_dimensions"),
        ("max(q, 0), quads - 1);\n    float4 box[", "q, quads - 1);\n    float4 box[", "142_three_dimensions"),
        ("z0 = blockIdx.z * PLANES;", "z0 = blockIdx.z * (PLANES - 1) + 1;", "142_three_dimensions"),
        ("blockDim.y + threadIdx.y) * ROWS, z0", "blockDim.y + threadIdx.y) * (ROWS + 1), z0", "142_three_dimensions"),
        ("min(max(y0 + j - 1, 0), height - 1), z", "max(y0 + j - 1, 0), z", "142_three_dimensions"),
        ("min(max(z0 + k - 1, 0), depth - 1);", "max(z0 + k - 1, 0);", "142_three_dimensions"),
        ("(k == 0 || k == PLANES + 1) && (j", "(k == 0 || k == PLANES + 1) || (j", "142_three_dimensions"),
        ("north = box[k][j - 1]", "north = box[k][j + 1]", "142_three_dimensions"),
        ("z == 0 || z == depth - 1) mean = here;", "z == 0) mean = here;", "142_three_dimensions"),
        (
            "lane < 31 && q < quads && y < height && z < depth)",
            "q < quads && y < height && z < depth)",
            "142_a_block_writes_no_columns_but_its_own",
        ),
        (
            "lane < 31 && q < quads && y < height && z < depth)",
            "lane < 31 && y < height && z < depth)",
            "142_three_dimensions",
        ),
        ("q < quads && y < height && z < depth)", "q < quads && z < depth)", "142_three_dimensions"),
        ("q < quads && y < height && z < depth)", "q < quads && y < height)", "142_three_dimensions"),
        # the arithmetic by hand
        ("(y * width + x) * 4 // 32", "(y * width + x) // 32", "142_sectors_by_hand"),
        ("return 1 - math.prod(shape)", "return math.prod(shape)", "142_grids_by_hand"),
        ("return tuple(int(-(-n //", "return tuple(int((n //", "142_grids_by_hand"),
    ),
    # --- 1.4.3
    *faults(
        "ch01_cuda_basics/s1_4_3_synchronization.py",
        "tests/test_ch01_4.py",
        # the barriers
        ("    __syncthreads();  // all have written, before anybody reads\n", "", "143_every_barrier_is_there"),
        ("        __syncthreads();  // all have read, before anybody writes\n", "", "143_every_barrier_is_there"),
        ("sums[t] += before;\n        __syncthreads();", "sums[t] += before;", "143_every_barrier_is_there"),
        ("__syncwarp();\n        sums[lane]", "sums[lane]", "143_every_barrier_is_there"),
        ("sums[lane] += before;\n        __syncwarp();", "sums[lane] += before;", "143_every_barrier_is_there"),
        ("__syncthreads();\n    const long long stride", "const long long stride", "143_every_barrier_is_there"),
        ("__syncthreads();\n    const long long first", "const long long first", "143_every_barrier_is_there"),
        ("__syncwarp();\n    for (int b = t;", "for (int b = t;", "143_every_barrier_is_there"),
        # block_scan
        ("offset < BLOCK; offset *= 2", "offset < BLOCK / 2; offset *= 2", "143_barriers"),
        ("t >= offset ? sums[t - offset]", "t > offset ? sums[t - offset]", "143_barriers"),
        ("    if (i < n) out[i] = sums[t];", "    out[i] = sums[t];", "143_barriers"),
        # warp_scan
        ("of_block + threadIdx.x - lane", "of_block", "143_barriers"),
        ("lane >= offset ? sums[lane - offset]", "lane >= offset ? sums[lane - 1]", "143_barriers"),
        # block_count
        ("i < n && x[i] > 0", "i < n && x[i] >= 0", "143_barriers"),
        ("__syncthreads_count(i < n && x[i] > 0)", "__syncthreads_or(i < n && x[i] > 0)", "143_barriers"),
        # histogram_race
        ("counts[x[i]] += 1;\n}", "atomicAdd(&counts[x[i]], 1u);\n}", "143_the_race_loses_updates"),
        ("counts[x[i]] += 1;\n}", "counts[x[i]] = 2;\n}", "143_the_race_loses_updates"),
        # histogram_global
        ("atomicAdd(&counts[x[i]], 1u);", "counts[x[i]] += 1u;", "143_histogram"),
        # histogram_aggregated
        ("same.num_threads()", "1u", "143_histogram"),
        ("if (same.thread_rank() == 0)", "if (threadIdx.x % 32 == 0)", "143_histogram"),
        # histogram_shared
        ("atomicAdd(&mine[x[i]], 1u);", "mine[x[i]] += 1u;", "143_histogram"),
        (
            "i += stride)\n        if ((unsigned)x[i] < BINS) atomicAdd",
            "i = n)\n        if (1) atomicAdd",
            "143_any_alignment_and_grid",
        ),
        # histogram_vectorized
        ("count(v.z), count(v.w);", "count(v.z), count(v.z);", "143_histogram"),
        ("i = 4 * quads + first", "i = 4 * quads + first + 1", "143_histogram"),
        ("(unsigned long long)x % 16 == 0", "(unsigned long long)x % 4 == 0", "143_any_alignment_and_grid"),
        # histogram_private
        ("mine[x[i]][t] += 1;", "mine[x[i]][0] += 1;", "143_histogram"),
        ("mine[b][(t + k) % 32]", "mine[b][(t + k) % 31]", "143_histogram"),
        ("b * gridDim.x + blockIdx.x", "b + BINS * blockIdx.x", "143_histogram"),
        # sum_rows
        ("c < columns; c += 32", "c < columns - 1; c += 32", "143_sum_rows"),
        ("offset = 16; offset > 0", "offset = 8; offset > 0", "143_sum_rows"),
        ("if (row >= rows) return;", "", "143_sum_rows"),
        # histogram_locked and try_with_lock
        ("try_with_lock(&locks[x[i]], [&] { counts[x[i]] += 1; })", "((counts[x[i]] += 1), true)", "143_histogram"),
        ("memory_order_acquire)) return false;", "memory_order_acquire)) {}", "143_histogram"),
        ("taken.store(0,", "taken.store(2,", "143_locks_are_free_afterwards"),
        # try_improve
        ("best->place == 0 || ", "", "143_best"),
        ("value == best->value && place < best->place", "value == best->value", "143_best"),
        ("            best->place = place;", "            best->place = value;", "143_best"),
        # best_lock
        (
            "while (!try_improve(&best[bucket[i]], value[i], i + 1)) {}",
            "try_improve(&best[bucket[i]], value[i], i + 1);",
            "143_best",
        ),
        # best_look_first
        ("while (value[i] >= Value", "while (value[i] > Value", "143_best"),
        ("if (i >= n || (unsigned)bucket[i] >= BINS) return;", "if (i >= n) return;", "143_best"),
        # best_atomic
        ("value[i] << 32 | ~i", "value[i] << 32 | i", "143_best"),
        # smooth
        ("i == 0 || i == n - 1 ?", "i == 0 ?", "143_smooth"),
        ("in[i - 1] + 2 * in[i] + in[i + 1]", "in[i - 1] + 2 * in[i] + in[i - 1]", "143_smooth"),
        # smooth_step
        ("smooth(in, out, n, (long long)blockIdx.x", "smooth(out, out, n, (long long)blockIdx.x", "143_smooth"),
        # smooth_cooperative
        ("smooth(s % 2 ? b : a, s % 2 ? a : b", "smooth(a, b", "143_smooth"),
        ("        grid.sync();\n", "", "143_smooth"),
    ),
    # --- 1.4.4
    *faults(
        "ch01_cuda_basics/s1_4_4_scheduling_optimization.py",
        "tests/test_ch01_4.py",
        # advance
        ("s = (s ^ s >> 15) * a + c;", "s = (s ^ s >> 15) * a - c;", "144_every_kernel_of_every_group"),
        (
            "    #pragma unroll 4\n    for (int r = 0; r < rounds",
            "    for (int r = 1; r < rounds",
            "144_any_number_of_rounds",
        ),
        # by_lane, by_warp, by_select
        (
            "if (i >= n) return;\n    if (i % 2 == 0) out[i] = advance(state[i], 1664525u, 1013904223u, rounds);\n"
            "    else            out[i] = advance(state[i], 22695477u, 1u, rounds);\n}\n\n// After: of each 64",
            "if (i < n) out[i] = advance(state[i], 1664525u, 1013904223u, rounds);\n}\n\n// After: of each 64",
            "144_every_kernel_of_every_group",
        ),
        ("t / 64 * 64 + t % 32 * 2", "t / 32 * 32 + t % 32 * 2", "144_every_kernel_of_every_group"),
        ("t / 64 * 64 + t % 32 * 2 + t / 32 % 2", "t", "144_active_lanes_by_hand_are_those_counted"),
        ("+ t / 32 % 2;", "+ t % 2;", "144_every_kernel_of_every_group"),
        ("i % 2 ? 1u : 1013904223u", "i % 2 ? 1013904223u : 1u", "144_every_kernel_of_every_group"),
        # work
        ("s = (s ^ s >> 15) * 1664525u", "s = (s ^ s >> 14) * 1664525u", "144_blocks_of_one_kind"),
        ("(s << 7 | s >> 25) ^ 1013904223u", "(s << 7 | s >> 24) ^ 1013904223u", "144_blocks_of_one_kind"),
        ("(s >> 9 | 4097u)", "(s >> 9 ^ 4097u)", "144_any_number_of_rounds"),
        ("+ 12345u", "", "144_blocks_of_one_kind"),
        # by_kind
        (
            "work(kind[i], state[i], rounds);\n}\n\n// After",
            "work(0, state[i], rounds);\n}\n\n// After",
            "144_blocks_of_one_kind",
        ),
        # grouped
        ("smaller < k; ++smaller", "smaller < k - 1; ++smaller", "144_every_kernel_of_every_group"),
        ("mine ? atomicAdd(&count[k], 1) : 0;", "mine ? count[k]++ : 0;", "144_every_kernel_of_every_group"),
        (
            "const long long i = begin + order[t];",
            "const long long i = begin + t;",
            "144_active_lanes_by_hand_are_those_counted",
        ),
        # series
        ("k < CHAINS; k *= 2) step *= step;", "2 * k < CHAINS; k *= 2) step *= step;", "144_any_number_of_terms"),
        ("left > 0; left -= 8", "left > 8; left -= 8", "144_any_number_of_terms"),
        ("int k = CHAINS - 2; k >= 0", "int k = CHAINS - 2; k > 0", "144_any_number_of_terms"),
        # geometric
        ("j < terms; ++j) sum", "j < terms - 1; ++j) sum", "144_any_number_of_terms"),
        # scale
        ("a * v[k].z, a * v[k].w);", "a * v[k].w, a * v[k].z);", "144_any_alignment_and_grid"),
        ("i = 4 * quads + first", "i = 4 * quads + first + 1", "144_any_alignment_and_grid"),
        ("q + (LOADS - 1) * stride < quads;", "q < quads;", "144_any_alignment_and_grid"),
        (
            "((unsigned long long)x | (unsigned long long)y) % 16",
            "(unsigned long long)x % 16",
            "144_any_alignment_and_grid",
        ),
        # do_tile
        ("p < pieces; ++p", "p < 1; ++p", "144_tiles"),
        # tiles_static
        (
            "tile = blockIdx.x; tile < tiles; tile += gridDim.x",
            "tile = blockIdx.x; tile < tiles; tile = tiles",
            "144_tiles",
        ),
        # tiles_queue
        ("shared_tile = atomicAdd(next, 1);", "shared_tile = atomicAdd(next, 2);", "144_each_tile_is_taken_once"),
        ("if (tile >= tiles) return;", "if (tile >= tiles - 1) return;", "144_each_tile_is_taken_once"),
        # the barriers
        ("    __syncthreads();\n    const bool mine", "    const bool mine", "144_every_barrier_is_there"),
        ("    __syncthreads();\n    int first", "    int first", "144_every_barrier_is_there"),
        ("    __syncthreads();\n    if (begin + t < n)", "    if (begin + t < n)", "144_every_barrier_is_there"),
        ("        __syncthreads();  // it is there for all\n", "", "144_every_barrier_is_there"),
        (
            "        __syncthreads();  // all have read it, before",
            "        // all have read it, before",
            "144_every_barrier_is_there",
        ),
        # the arithmetic by hand
        ("busy[0] + cost)", "cost)", "144_the_last_block_by_hand"),
        ('mode="edge"', 'mode="constant"', "144_passes_and_active_lanes_by_hand"),
    ),
]
