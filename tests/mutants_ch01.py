"""Faults in chapter 1's kernels, and the test that has to see each."""

from tests.mutants import Mutant

_PROGRAMMING_MODEL = "ch01_cuda_basics/s1_1_1_programming_model.py"
_TEST = "tests/test_ch01.py::test_"

MUTANTS = [
    # 1.1.1 vector_add
    Mutant(_PROGRAMMING_MODEL, "if (i < n) out[i]", "if (i < n - 1) out[i]", f"{_TEST}111_vector_add"),
    Mutant(_PROGRAMMING_MODEL, "if (i < n) out[i]", "if (i <= n) out[i]", f"{_TEST}111_vector_add"),
    Mutant(
        _PROGRAMMING_MODEL, "x[i] + y[i];\n}\n\n// y = a x", "x[i] - y[i];\n}\n\n// y = a x", f"{_TEST}111_vector_add"
    ),
    # saxpy
    Mutant(_PROGRAMMING_MODEL, "if (i < n) y[i] = a * x[i]", "if (i < n) y[i] = a + x[i]", f"{_TEST}111_saxpy"),
    Mutant(_PROGRAMMING_MODEL, "if (i < n) y[i] = a", "y[i] = a", f"{_TEST}111_saxpy"),
    # saxpy_grid_stride
    Mutant(
        _PROGRAMMING_MODEL,
        "i < n; i += stride)\n        y[i]",
        "i < n; i += 2 * stride)\n        y[i]",
        f"{_TEST}111_any_alignment_and_grid",
    ),
    # the cut for float4
    Mutant(_PROGRAMMING_MODEL, "if (x_past != y_past) return {0, 0};", "", f"{_TEST}111_any_alignment_and_grid"),
    Mutant(_PROGRAMMING_MODEL, "(4 - y_past) % 4", "(3 - y_past) % 4", f"{_TEST}111_any_alignment_and_grid"),
    # saxpy_float4
    Mutant(_PROGRAMMING_MODEL, "v.z = a * u.z + v.z", "v.z = a * u.z + v.y", f"{_TEST}111_saxpy"),
    Mutant(
        _PROGRAMMING_MODEL,
        "r + 4 * cut.quads;\n        y[i] = a",
        "r + 3 * cut.quads;\n        y[i] = a",
        f"{_TEST}111_saxpy",
    ),
    # copy_float4
    Mutant(_PROGRAMMING_MODEL, "y4[q] = x4[q];", "y4[q] = x4[0];", f"{_TEST}111_copy"),
    Mutant(
        _PROGRAMMING_MODEL,
        "r < cut.head ? r : r + 4 * cut.quads;\n        y[i] = x[i];",
        "r + 4 * cut.quads;\n        y[i] = x[i];",
        f"{_TEST}111_any_alignment_and_grid",
    ),
]
