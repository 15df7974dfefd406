"""Faults in the kernels of sections 1.1.1 to 1.1.4, and the test that has to see each."""

from tests.mutants import faults

MUTANTS = [
    *faults(
        "ch01_cuda_basics/s1_1_1_programming_model.py",
        "tests/test_ch01_1.py",
        # vector_add
        ("if (i < n) out[i]", "if (i < n - 1) out[i]", "111_vector_add"),
        ("if (i < n) out[i]", "if (i <= n) out[i]", "111_vector_add"),
        ("if (i < n) out[i] = x[i] + y[i]", "if (i < n) out[i] = x[i] - y[i]", "111_vector_add"),
        # saxpy
        ("if (i < n) y[i] = a * x[i]", "if (i < n) y[i] = a + x[i]", "111_saxpy"),
        ("if (i < n) y[i] = a", "y[i] = a", "111_saxpy"),
        # saxpy_grid_stride
        ("i += stride)\n        y[i]", "i += 2 * stride)\n        y[i]", "111_any_alignment_and_grid"),
        ("threadIdx.x; i < n; i += stride)\n", "threadIdx.x; i < n; i = n)\n", "111_any_alignment_and_grid"),
        # cut_for_float4
        ("if (x_past != y_past) return {0, 0};", "", "111_any_alignment_and_grid"),
        ("(4 - y_past) % 4", "(3 - y_past) % 4", "111_any_alignment_and_grid"),
        # saxpy_float4
        ("v.z = a * u.z + v.z", "v.z = a * u.z + v.y", "111_saxpy"),
        ("r + 4 * cut.quads;\n        y[i] = a", "r + 3 * cut.quads;\n        y[i] = a", "111_saxpy"),
        # copy_float4
        ("y4[q] = x4[q];", "y4[q] = x4[0];", "111_copy"),
        (
            "r < cut.head ? r : r + 4 * cut.quads;\n        y[i] = x[i];",
            "r + 4 * cut.quads;\n        y[i] = x[i];",
            "111_any_alignment_and_grid",
        ),
    ),
    *faults(
        "ch01_cuda_basics/s1_1_2_threads_blocks_grids.py",
        "tests/test_ch01_1.py",
        # who_am_i
        ("threadIdx.z * blockDim.y + threadIdx.y", "threadIdx.z + threadIdx.y", "112_who"),
        ("blockIdx.z * gridDim.y + blockIdx.y", "blockIdx.z * gridDim.x + blockIdx.y", "112_who"),
        ("me.thread / 32", "me.thread / 31", "112_who"),
        ("%%laneid", "%%warpid", "112_who"),
        # who_1d, who_2d, who_3d
        ("if (x < width) out", "if (x <= width) out", "112_who"),
        ("x < width && y < height) out", "y < height) out", "112_who"),
        ("out[(long long)y * width + x]", "out[(long long)x * height + y]", "112_who"),
        ("&& z < depth", "", "112_who"),
        # gray
        ("x >= width || y >= height", "x > width || y >= height", "112_gray"),
        ("if (x >= width || y >= height) return;", "if (x >= width) return;", "112_gray"),
        ("128) >> 8;\n}\n\n// Four", "127) >> 8;\n}\n\n// Four", "112_gray"),
        # gray_by_16
        ("a, b, 0x6543", "a, b, 0x7654", "112_gray"),
        ("b, c, 0x5432", "b, c, 0x4321", "112_gray"),
        ("gray_of_4(b.z, b.w, c.x)", "gray_of_4(b.z, b.w, c.y)", "112_gray"),
        ("aligned ? pixels / 16 : 0", "pixels / 16", "112_gray_by_16_of_any_alignment_and_grid"),
        ("16 * groups + first", "16 * groups + first + 1", "112_gray_by_16_of_any_alignment_and_grid"),
    ),
    *faults(
        "ch01_cuda_basics/s1_1_3_gpu_vs_cpu.py",
        "tests/test_ch01_1.py",
        ("1.0f / 720, 1.0f / 5040", "1.0f / 720, 1.0f / 504", "113_every_variant"),
        ("int k = 7; k >= 0", "int k = 7; k > 0", "113_every_variant"),
        ("gridDim.x * blockDim.x;", "gridDim.x * blockDim.x + 1;", "113_few_blocks_walk_through_all"),
    ),
    *faults(
        "ch01_cuda_basics/s1_1_4_host_and_device.py",
        "tests/test_ch01_1.py",
        ("if (i >= n) return;", "if (i > n) return;", "114_advance"),
        ("r < rounds", "r <= rounds", "114_advance"),
        ("1664525u * s", "1664527u * s", "114_advance"),
        ("np.int32(second))", "np.int32(first))", "114_streams_keep_the_order"),
    ),
]
