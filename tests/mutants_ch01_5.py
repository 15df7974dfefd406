"""Faults in the kernels of sections 1.5.1 to 1.5.4, and the test that has to see each."""

from tests.mutants import Mutant, faults

MUTANTS: list[Mutant] = [
    # --- 1.5.1
    *faults(
        "ch01_cuda_basics/s1_5_1_bottlenecks.py",
        "tests/test_ch01_5.py",
        # geometric
        ("for (int k = 1; k < DEGREE; ++k)", "for (int k = 0; k < DEGREE; ++k)", "151_all_degrees_of_one"),
        ("sum[j] = sum[j] * x[j] + 1.0f", "sum[j] = sum[j] * x[0] + 1.0f", "151_every_job"),
        ("q < n / 4; q += stride", "q < n / 4; q += 2 * stride", "151_every_job"),
        ("T(sum[2]), T(sum[3])}", "T(sum[3]), T(sum[2])}", "151_every_job"),
        ("n / 4 * 4 + first;  //", "n / 4 * 4 + first + 1;  //", "151_all_degrees_of_one"),
        ("if (i < n) {", "if (i <= n) {", "151_all_degrees_of_one"),
        # field_of_records
        ("if (i < n) y[i] = records[i].value", "if (i < n - 1) y[i] = records[i].value", "151_every_job"),
        ("records[i].value + 1.0f", "records[i].others[0] + 1.0f", "151_every_job"),
        # sums_of_lists
        ("hop < HOPS; ++hop", "hop <= HOPS; ++hop", "151_lists_that_differ"),
        ("threadIdx.x * (n / 32)", "threadIdx.x * (n / 64)", "151_lists_that_differ"),
        ("if (threadIdx.x >= 32) return;", "", "151_every_job"),
        # sum_by_atomics
        ("if (i < n) atomicAdd(sum, x[i])", "if (i < n) *sum += x[i]", "151_every_job"),
        ("if (i < n) atomicAdd", "if (i < n - 1) atomicAdd", "151_every_job"),
    ),
    # --- 1.5.2
    *faults(
        "ch01_cuda_basics/s1_5_2_efficiency_metrics.py",
        "tests/test_ch01_5.py",
        # copy
        ("if (i < n) y[i] = x[i];", "if (i <= n) y[i] = x[i];", "152_copy_and_saxpy"),
        ("if (i < n) y[i] = x[i];", "if (i < n) y[i] = x[0];", "152_copy_and_saxpy"),
        # saxpy
        ("if (i >= n) return;", "if (i > n) return;", "152_copy_and_saxpy"),
        ("a * u.w + v.w}", "a * u.w + v.z}", "152_copy_and_saxpy"),
        # partial_sums
        ("q += LOADS * threads", "q += threads", "152_partial_sums"),
        ("q + k * threads < n ?", "q + k * threads <= n ?", "152_partial_sums"),
        ("? x[q + k * threads] :", "? x[q] :", "152_partial_sums"),
        ("v[k].z + v[k].w;", "v[k].z + v[k].z;", "152_partial_sums"),
        # matmul
        ("row < n && k + x < n ? a", "row < n ? a", "152_matmul"),
        ("tile_b[j][x]", "tile_b[x][j]", "152_matmul"),
        ("k < n; k += 32", "k < n; k += 64", "152_matmul"),
        ("if (row < n && column < n) c", "if (row < n) c", "152_matmul"),
        # chase
        ("at = next[at];\n    *last = at;", "at = next[hop];\n    *last = at;", "152_chase"),
        ("    *last = at;", "    *last = at + 1;", "152_chase"),
    ),
    # --- 1.5.3
    *faults(
        "ch01_cuda_basics/s1_5_3_visual_profiler.py",
        "tests/test_ch01_5.py",
        # what blur and gradient share
        ("max(x - 1, 0), min(x + 1, width - 1)}", "max(x - 1, 0), min(x + 1, width)}", "153_every_variant"),
        ("(long long)max(y - 1, 0) * width", "(long long)max(y - 1, 1) * width", "153_every_variant"),
        # blur
        ("(sum + 8) >> 4", "sum >> 4", "153_every_variant"),
        ("2 * (row[l] + 2 * row[x] + row[r])", "2 * (row[l] + 2 * row[x] + row[x])", "153_every_variant"),
        # gradient
        ("2 * row[l] - down[l];", "2 * row[l] - up[l];", "153_every_variant"),
        ("min(abs(along_x) + abs(along_y), 255)", "abs(along_x) + abs(along_y)", "153_every_variant"),
        # threshold
        (">= 128 ? 255 : 0", "> 128 ? 255 : 0", "153_every_variant"),
        (
            "|| y >= height) return;\n    out[(long long)y * width + x] = in",
            "|| y > height) return;\n    out[(long long)y * width + x] = in",
            "153_every_variant",
        ),
        # the recorder
        ("self.host = tick + 1 if waits else self.host", "pass", "153_logical_time"),
        ("max(self.ticks[lane], self.host)", "self.ticks[lane]", "153_logical_time"),
        # reading a timeline
        ("if result and begin <= result[-1][1]:", "if result and begin < result[-1][1]:", "153_busy_and_gaps_by_hand"),
        ("max(result[-1][1], end)", "end", "153_busy_and_gaps_by_hand"),
    ),
    # --- 1.5.4
    *faults(
        "ch01_cuda_basics/s1_5_4_hardware_counters.py",
        "tests/test_ch01_5_counters.py",
        # copy
        ("if (i < n) out[i] = in[i];", "if (i <= n) out[i] = in[i];", "154_ragged_vectors"),
        ("if (i < n) out[i] = in[i];", "if (i < n) out[i] = in[i / 2 * 2];", "154_every_pattern"),
        # copy_float4
        ("if (q < n / 4)", "if (q <= n / 4)", "154_ragged_vectors"),
        ("(out)[q] = ", "(out)[q ^ 1] = ", "154_every_pattern"),
        # copy_offset
        ("in[min(i + k, n - 1)]", "in[min(i + k, n)]", "154_ragged_vectors"),
        ("in[min(i + k, n - 1)]", "in[min(i + 2 * k, n - 1)]", "154_every_pattern"),
        # copy_strided
        ("(unsigned)i * k & (n - 1)", "(unsigned)i * k & (n - 2)", "154_strided_powers_of_two"),
        ("(unsigned)i * k & (n - 1)", "(unsigned)i & (n - 1)", "154_every_pattern"),
        # transpose_naive
        ("out[(long long)x * k + y]", "out[(long long)y * k + x]", "154_every_pattern"),
        ("if (x < k && y < k) out[", "if (x < k && y <= k) out[", "154_ragged_transposes"),
        # transpose_tiled
        ("tile[32][32 + PAD]", "tile[32][32]", "154_the_simulator_counts_what_is_worked_out"),
        ("__syncthreads();  // the tile is whole", "", "154_no_race"),
        ("out[(long long)(left + row) * k + top + lane]", "out[(top + row) * k + left + lane]", "154_every_pattern"),
        ("if (top + row < k && left", "if (top + row <= k && left", "154_ragged_transposes"),
        ("left + row < k && top + lane < k", "left + row < k && top + lane <= k", "154_ragged_transposes"),
        ("= tile[lane][row]", "= tile[row][lane]", "154_every_pattern"),
        ("= in[(long long)(top + row) * k + left + lane]", "= in[(left + row) * k + top + lane]", "154_every_pattern"),
        # shared_strided
        ("w < 1024; w += blockDim.x", "w < 512; w += blockDim.x", "154_every_pattern"),
        ("words[threadIdx.x * k % 1024]", "words[threadIdx.x * k % 512]", "154_every_pattern"),
        ("if (i < n) out[i] = words", "out[i] = words", "154_ragged_vectors"),
        ("__syncthreads();\n    if (i < n) out[i] = words", "if (i < n) out[i] = words", "154_no_race"),
        # by hand
        ("index * size // 32", "index * size // 64", "154_rules_by_hand"),
        ("prepend=-1))  # each", "prepend=0))  # each", "154_rules_by_hand"),
        ("i, 32 if pattern.kernel == TILED else 33", "i, 33", "154_by_hand"),
        ("loads, stores = stores, loads", "pass", "154_by_hand"),
        ("pattern.better, times[pattern.better]", "pattern.better, times[pattern.name]", "154_rows"),
        ("    if wrong:", "    if not rows:", "154_a_count_that_differs_is_noticed"),
    ),
]
