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
