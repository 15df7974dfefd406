"""Faults in the kernels of sections 1.2.1 to 1.2.4, and the test that has to see each."""

from tests.mutants import Mutant, faults

MUTANTS: list[Mutant] = [
    # --- 1.2.1
    *faults(
        "ch01_cuda_basics/s1_2_1_toolkit_setup.py",
        "tests/test_ch01_2_setup.py",
        # lengths
        ("if (i >= n) return;", "if (i > n) return;", "121_smoke_test"),
        ("x * x + y * y + z * z", "x * x + y * y + y * z", "121_smoke_test"),
        ("fabsf(y) > fabsf(x)", "y > x", "121_smoke_test"),
        ("fabsf(y) > fabsf(x)", "fabsf(y) >= fabsf(x)", "121_smoke_test_of_equal_components"),
        ("fabsf(z) > fmaxf", "fabsf(z) >= fmaxf", "121_smoke_test_of_equal_components"),
        ("? 2 : of_xy", "? 2 : 0", "121_smoke_test"),
        # what goes together
        ("if driver[0] < toolkit[0]:", "if driver < toolkit:", "121_what_goes_together"),
        ("if target <= capability]", "if target < 1000]", "121_what_goes_together"),
        (
            "    if driver < toolkit:\n        return None",
            "    if False:\n        return None",
            "121_what_goes_together",
        ),
        ("max(older) // 10 == capability // 10", "max(older) == capability", "121_what_goes_together"),
        ("divmod(supported.value // 10, 100)", "divmod(supported.value // 100, 10)", "121_the_driver_is_asked"),
    ),
    # --- 1.2.2
    *faults(
        "ch01_cuda_basics/s1_2_2_pycuda_and_cuda_python.py",
        "tests/test_ch01_2_setup.py",
        # clipped_update, and the kernel that PyCUDA makes of the operation
        ("if (i >= n) return;", "if (i > n) return;", "122_same_bits"),
        ("const float v = fmaf(a, x[i], y[i]);", "const float v = a * x[i] + a * y[i];", "122_same_bits"),
        (
            "y[i] = v < low ? low : v > high ? high : v;\n}",
            "y[i] = fmaxf(fminf(v, high), low);\n}",
            "122_bounds_and_nan",
        ),
        ("v > high ? high : v;\n}", "v;\n}", "122_same_bits"),
        ('v > high ? high : v"', 'v"', "122_same_bits"),
        ("float v = fmaf(a, x[i], y[i]); y[i] =", "float v = fmaf(a, y[i], x[i]); y[i] =", "122_same_bits"),
        # the launches
        ("theirs.launcher(2, d_x, d_y, -5, 5, x.size)()", "", "122_two_libraries_one_memory"),
        ("self.free(d_x, d_y)", "pass", "122_memory_is_freed_though_the_launch_fails"),
    ),
    # --- 1.2.3
    *faults(
        "ch01_cuda_basics/s1_2_3_nsight.py",
        "tests/test_ch01_2_nsight.py",
        # smooth
        ("x[min(i, n - 1)]", "x[min(i, n)]", "123_smooth"),
        ("x[max(i - 1, 0LL)]", "x[max(i, 0LL)]", "123_smooth"),
        ("x[min(i + 1, n - 1)]", "x[min(i, n - 1)]", "123_smooth"),
        ("if (threadIdx.x == 255)", "if (threadIdx.x == 254)", "123_smooth"),
        ("if (i < n)\n        y", "if (i <= n)\n        y", "123_smooth"),
        ("    __syncthreads();  // the tile is whole\n    if", "    if", "123_both_faults_are_found"),
        ("+ tile[t + 1]) / 3.0f", "+ tile[t]) / 3.0f", "123_smooth"),
        # what the tools say
        ("(Error|Warning): Race", "Error: Race", "123_what_the_sanitizer_says"),
        ("lines[number : number + 3]", "lines[number : number + 2]", "123_what_the_sanitizer_says"),
        (
            'raise Mismatch(f"{name}: {kind} found nothing")',
            "continue",
            "123_a_fault_that_is_not_found_is_noticed",
        ),
        ("if clean := examine(n, KERNEL, kind):", "if clean := []:", "123_a_report_of_the_whole_kernel_is_noticed"),
        (" or (done.returncode and not found)", "", "123_a_sanitizer_that_fails"),
        ("api.reset()", "pass", "123_after_a_fault_the_simulator_works_again"),
    ),
    # --- 1.2.4
    *faults(
        "ch01_cuda_basics/s1_2_4_nvcc.py",
        "tests/test_ch01_2.py",
        # inverse_cube
        ("return 1.0f / (d2 * sqrtf(d2));", "return 1.0f / (d2 * d2);", "124_every_kernel"),
        ("return r * r * r;", "return r * r;", "124_every_kernel"),
        # integrate
        ("if (i >= n) return;", "if (i > n) return;", "124_every_kernel"),
        ("b = a + 1; b < BODIES", "b = a + 2; b < BODIES", "124_every_kernel"),
        ("velocity[b][2] -= w * z", "velocity[b][2] -= w * y", "124_every_kernel"),
        ("s < steps", "s <= steps", "124_every_kernel"),
        ("+ 0.01f", "+ 0.02f", "124_every_kernel"),
        ("+= dt * velocity[b][c]", "+= velocity[b][c] / 100", "124_without_fma_bits_are_numpys"),
        ("state[(6 * b + 3 + c) * n + i] = velocity", "state[(6 * b + 2 + c) * n + i] = velocity", "124_every_kernel"),
        # cluster, cluster_rsqrt
        (
            "integrate<Divide>(state, n, steps, dt)",
            "integrate<Rsqrt>(state, n, steps, dt)",
            "124_without_fma_bits_are_numpys",
        ),
        ("integrate<Rsqrt>(state, n, steps, dt)", "integrate<Rsqrt>(state, n, steps, -dt)", "124_every_kernel"),
        # what the tools say
        ("int(stores) + int(loads)", "int(loads) - int(stores)", "124_figures_by_hand"),
        ("(?:@!?U?P\\w+ +)?", "", "124_figures_by_hand"),
        ('del opcodes["NOP"]', "pass", "124_figures_by_hand"),
    ),
]
