"""Faults in the kernels of sections 1.2.1 to 1.2.4, and the test that has to see each."""

from tests.mutants import Mutant, faults

MUTANTS: list[Mutant] = [
    # --- 1.2.1
    # --- 1.2.2
    # --- 1.2.3
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
