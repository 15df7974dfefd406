"""Every kernel of the corpus on the simulator, at several sizes, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import common.simt.api as simulator
from tests.simt_cases import CASES
from tests.simt_cases.harness import EXACT, Case, Size, compare, ulp_distance


def size_id(size: Size) -> str:
    return "x".join(map(str, size)) if isinstance(size, tuple) else str(size)


EVERY = [pytest.param(case, size, id=f"{case.name}-{size_id(size)}") for case in CASES for size in case.sizes]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("case", "size"), EVERY)
def test_kernel(case: Case, size: Size) -> None:
    actual, expected = case.run(simulator, size), case.expected(size)
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        compare(f"{case.name}: {name}", actual[name], values, case.tolerance.get(name, EXACT))


def test_case_names_and_outputs() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    for case in CASES:
        outputs = set(case.expected(case.sizes[0]))
        assert set(case.tolerance) | set(case.gpu) <= outputs, f"{case.name}: a tolerance for no output"


def test_another_seed_gives_other_inputs() -> None:
    case = next(case for case in CASES if case.name == "saxpy")
    assert not np.array_equal(case.make_inputs(100, 0)["x"], case.make_inputs(100, 1)["x"])
    actual, expected = case.run(simulator, 100, 1), case.expected(100, 1)
    compare("y", actual["y"], expected["y"])


def test_compare_refuses_nan_and_wrong_shapes() -> None:
    nan, one = np.array([np.nan], np.float32), np.ones(1, np.float32)
    for actual, expected in ((nan, one), (one, nan), (nan, nan)):
        with pytest.raises(AssertionError):
            compare("x", actual, expected)
    with pytest.raises(AssertionError, match="shape"):
        compare("x", np.ones((2, 1), np.float32), np.ones(2, np.float32))
    with pytest.raises(AssertionError, match="dtype"):
        compare("x", np.ones(2, np.float64), np.ones(2, np.float32))


def test_ulp_distance() -> None:
    one = np.array([1, 1, -0.0, 0, np.nan, np.nan, np.inf], np.float32)
    other = np.array([1, np.nextafter(np.float32(1), np.float32(2)), 0, -1e-45, np.nan, 1, -np.inf], np.float32)
    assert ulp_distance(one, other).tolist()[:6] == [0, 1, 0, 1, 0, 2**62]
    assert ulp_distance(one, other)[6] > 2**31


def test_references_by_hand() -> None:
    """What the references say on cases with a known answer."""
    from tests.simt_cases import barriers, control, elementwise, integers, linear, small_types, stencils

    zero = [np.zeros(1, np.uint64)] * 4  # the known-answer test of Random123
    words = [int(v[0]) for v in elementwise.philox_numpy(zero, (0, 0))]
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert control.collatz(27) == 111 and control.collatz(1) == 0
    assert small_types.to_bf16(np.array([1.0, -2.0, 1 + 2**-8, 1 + 3 * 2**-8])).tolist() == [
        0x3F80, 0xC000, 0x3F80, 0x3F82,
    ]  # fmt: skip
    flat = np.full((7, 9), 100, np.uint8)
    assert (stencils.reference_blur((9, 7), flat)["out"] == 100).all()
    spot = np.zeros((1, 5, 5), np.float32)
    spot[0, 2, 2] = 1
    taps = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    assert stencils.reference_conv((1, 1, 5, 5), spot, taps)["out"][0, 1:4, 1:4].ravel().tolist() == [*range(8, -1, -1)]
    rest = (stencils.W[:, None, None] * np.ones((9, 4, 6))).astype(np.float32)
    assert np.allclose(stencils.reference_lbm((6, 4), rest)["f"], rest, atol=1e-7)
    start, column = np.array([0, 2, 2, 3], np.int32), np.array([0, 2, 1], np.int32)
    value, x = np.array([1, 2, 3], np.float32), np.array([10, 20, 30], np.float32)
    assert linear.reference_spmv(3, start, column, value, x)["y"].tolist() == [70, 0, 60]
    rows = integers.directed([0.1, -0.1, 16777217], np.float32).astype(np.float64)
    assert rows[0].tolist() == [float(np.float32(0.1)), float(np.float32(-0.1)), 16777216]
    assert rows[1].tolist() == [rows[3, 0], rows[2, 1], 16777216] and rows[2, 2] == 16777218
    assert barriers.reference_barriers(1, np.array([3], np.int32))["early"].tolist() == [2]
