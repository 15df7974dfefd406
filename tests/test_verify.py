"""common.verify: nothing wrong may pass, and what fails says where and by how much."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.verify import Mismatch, bf16_to_float32, check, checks_table, float32_to_bf16, ulp_distance

nan, inf = np.nan, np.inf


def f32(*values):
    return np.array(values, np.float32)


def test_a_pass_reports_errors_tolerance_and_count():
    result = check("scale", f32(1.0, 2.001), f32(1.0, 2.0), atol=0.01)
    assert (result.name, result.count, result.tolerance) == ("scale", 2, "0.01")
    assert result.max_abs == pytest.approx(0.001, rel=1e-3) and result.max_rel == pytest.approx(5e-4, rel=1e-3)
    assert check("same", f32(1, inf, -inf), f32(1, inf, -inf)).max_abs == 0
    assert check("same", f32(1), f32(1), rtol=1e-6, atol=1e-9).tolerance == "1e-09 + 1e-06·|x|"
    assert check("same", np.int32([1]), np.int32([1])).tolerance == "exact"


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (f32(nan), f32(1)),
        (f32(1), f32(nan)),
        (f32(nan), f32(nan)),
        (f32(inf), f32(1)),
        (f32(1), f32(inf)),
        (f32(inf), f32(-inf)),
        (f32(1), f32(2)),
        (np.complex64([nan * 1j]), np.complex64([0])),
    ],
)
def test_nan_infinity_and_a_difference_never_pass(actual, expected):
    for tolerance in ({}, {"rtol": 0.1, "atol": 0.1}, {"rtol": 0.1}):
        with pytest.raises(Mismatch):
            check("x", actual, expected, **tolerance)


@pytest.mark.parametrize(
    ("actual", "expected", "reason"),
    [
        (f32(1, 2), f32(1), "shape"),
        (f32(1), f32(1).reshape(1, 1), "shape"),
        (np.int32([1]), np.int64([1]), "dtype"),
        (np.uint32([1]), np.int32([1]), "dtype"),
        (np.int32([1]), f32(1), "dtype"),
        (f32(1), np.complex64([1]), "dtype"),
        (np.float64([1]), f32(1), "dtype"),
        (np.array(["a"]), np.array(["a"]), "dtype"),
        (f32(), f32(), "0 elements"),
    ],
)
def test_shape_and_dtype_are_strict(actual, expected, reason):
    with pytest.raises(Mismatch, match=reason):
        check("x", actual, expected, atol=1)


def test_a_float_reference_may_be_wider():
    assert check("x", f32(0.1), np.float64([0.1]), rtol=1e-7).max_abs > 0
    assert check("x", np.complex64([1j]), np.complex128([1j])).count == 1
    assert check("x", np.float16(2), np.float32(2)).count == 1


@pytest.mark.parametrize("bad", [{"rtol": nan}, {"atol": inf}, {"atol": -1}])
def test_a_tolerance_that_lets_everything_pass_is_refused(bad):
    with pytest.raises(ValueError, match="finite"):
        check("x", f32(1), f32(1), **bad)


def test_tolerances_are_absolute_plus_relative_to_the_reference():
    check("x", f32(110), f32(100), atol=5, rtol=0.05)
    with pytest.raises(Mismatch):
        check("x", f32(110.1), f32(100), atol=5, rtol=0.05)


def test_integers_are_compared_exactly():
    big = 2**62
    with pytest.raises(Mismatch):  # float64 cannot tell these apart
        check("x", np.int64([big + 1]), np.int64([big]))
    assert check("x", np.int64([-(2**63)]), np.int64([-(2**63)])).max_abs == 0
    assert check("x", np.int8([-128]), np.int8([127]), atol=255).max_abs == 255
    assert check("x", np.uint8([0]), np.uint8([1]), atol=1).max_abs == 1
    assert check("x", np.array([True]), np.array([True])).count == 1
    with pytest.raises(Mismatch):
        check("x", np.array([True]), np.array([False]))


def test_the_report_says_where_and_by_how_much():
    want = np.zeros((4, 5), np.float32)
    got = want.copy()
    got[1, 2], got[3, 4], got[0, 1] = 0.5, -2.0, nan
    with pytest.raises(Mismatch) as failed:
        check("blur", got, want, atol=0.25)
    report = str(failed.value)
    assert report.startswith("blur: 3 of 20 elements differ (tolerance 0.25)")
    assert "largest error nan" in report and "1 of the results are NaN" in report
    assert "at [1, 2]: got 0.5, expected 0.0" in report and "at [3, 4]: got -2.0" in report
    with pytest.raises(Mismatch, match=r"largest error 2 \(relative inf\) at \[3, 4\]"):
        check("blur", np.nan_to_num(got), want, atol=0.25)


def test_checks_table_prints_every_check(capsys):
    checks_table([check("first", f32(1), f32(1)), check("第二", f32(2), f32(2), rtol=1e-6)])
    out = capsys.readouterr().out
    assert "first" in out and "第二" in out and "exact" in out and "1e-06" in out


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_ulp_distance(dtype):
    one = dtype(1)
    up = np.nextafter(one, dtype(2))
    tiny = np.nextafter(dtype(0), one)
    a = np.array([one, one, 0, tiny, nan, nan, -inf, one, np.finfo(dtype).max], dtype)
    b = np.array([one, up, -0.0, -tiny, nan, one, -inf, -one, inf], dtype)
    ones = int(np.abs(one).view(f"u{one.itemsize}"))  # 1.0 has that many numbers below it
    assert ulp_distance(a, b).tolist() == [0, 1, 0, 2, 0, 2**64 - 1, 0, 2 * ones, 1]
    assert ulp_distance(b, a).tolist() == ulp_distance(a, b).tolist()
    assert ulp_distance(a, b).dtype == np.uint64
    assert ulp_distance(one, up) == 1
    assert ulp_distance(a.reshape(3, 3).T, b.reshape(3, 3).T)[1, 0] == 1


def test_ulp_distance_refuses_other_input():
    with pytest.raises(TypeError, match="float dtype"):
        ulp_distance(f32(1), np.float64([1]))
    with pytest.raises(TypeError, match="float dtype"):
        ulp_distance(np.int32([1]), np.int32([1]))
    with pytest.raises(ValueError, match="shapes"):
        ulp_distance(f32(1), f32(1, 2))


def test_bf16_every_value_survives_the_round_trip():
    bits = np.arange(2**16, dtype=np.uint16)
    values = bf16_to_float32(bits)
    nans = np.isnan(values)
    assert np.array_equal(float32_to_bf16(values)[~nans], bits[~nans])
    assert np.isnan(bf16_to_float32(float32_to_bf16(values))[nans]).all()


def test_bf16_rounds_to_nearest_even():
    raw = np.uint32([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF, 0x7F800001, 0xFFFFFFFF, 0x80000000])
    expected = [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x7F80, 0x7FC0, 0xFFFF, 0x8000]
    assert float32_to_bf16(raw.view(np.float32)).tolist() == expected
    assert float32_to_bf16(1.0) == 0x3F80 and bf16_to_float32(np.uint16(0x3F80)) == 1.0
    assert float32_to_bf16(np.ones((2, 3))).shape == (2, 3)
    with pytest.raises(TypeError, match="uint16"):
        bf16_to_float32(np.int16([1]))


@settings(deadline=None, derandomize=True)
@given(st.floats(width=32, allow_nan=False, min_value=-(2.0**127), max_value=2.0**127))
def test_bf16_is_the_nearest(value):
    rounded = bf16_to_float32(float32_to_bf16(value)).astype(np.float64)
    bits = int(float32_to_bf16(value))
    neighbours = bf16_to_float32(np.array([max(bits - 1, 0), min(bits + 1, 0xFFFF)], np.uint16)).astype(np.float64)
    finite = neighbours[np.isfinite(neighbours)]
    assert (abs(rounded - value) <= abs(finite - value)).all()


def test_an_overflowing_difference_never_passes() -> None:
    with pytest.raises(Mismatch):
        check("x", np.array([1.7e308]), np.array([-1.7e308]), rtol=1e300)
