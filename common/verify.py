"""Compare a kernel's result with its reference: a NaN never passes, nor does a wrong shape or dtype."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from common.cli import ReaderError


class Mismatch(ReaderError, AssertionError):
    """The result is not what the reference says; the message shows where and by how much."""


@dataclass(frozen=True)
class Check:
    """A comparison that passed: its largest errors, its tolerance, and the number of elements compared."""

    name: str
    max_abs: float
    max_rel: float
    tolerance: str
    count: int


def _differences(actual: NDArray[Any], expected: NDArray[Any]) -> NDArray[Any]:
    """|actual - expected| for each element: exact for integers and bools, in float64 for the rest."""
    if actual.dtype.kind in "iub":  # modulo 2**64, the difference of the two is right even across the sign
        high, low = np.maximum(actual, expected), np.minimum(actual, expected)
        return high.astype(np.uint64) - low.astype(np.uint64)
    wide = np.complex128 if actual.dtype.kind == "c" else np.float64
    return np.abs(actual.astype(wide) - expected.astype(wide))


def check(name: str, actual: ArrayLike, expected: ArrayLike, *, rtol: float = 0, atol: float = 0) -> Check:
    """Pass if |actual - expected| <= atol + rtol * |expected| for every element; else raise `Mismatch`.

    Shapes must be equal, and dtypes too, except that a float or complex reference may be wider than the
    result. An infinity passes only where the reference holds the same one; NaN passes nowhere, not even
    against NaN. Comparing nothing (0 elements) is a mismatch. bfloat16 bits go through `bf16_to_float32`.
    """
    if not (0 <= rtol < np.inf and 0 <= atol < np.inf):
        raise ValueError(f"{name}: rtol and atol must be finite and not negative, got {rtol} and {atol}")
    got, want = np.asarray(actual), np.asarray(expected)
    if got.shape != want.shape:
        raise Mismatch(f"{name}: shape {got.shape}, expected {want.shape}")
    wider = got.dtype.kind in "fc" and got.dtype.kind == want.dtype.kind and got.itemsize <= want.itemsize
    if got.dtype.kind not in "iubfc" or not (got.dtype == want.dtype or wider):
        raise Mismatch(f"{name}: dtype {got.dtype}, expected {want.dtype}")
    if got.size == 0:
        raise Mismatch(f"{name}: 0 elements: nothing was compared")
    tolerance = " + ".join([f"{atol:g}"] * (atol > 0) + [f"{rtol:g}·|x|"] * (rtol > 0)) or "exact"

    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        same = got == want  # infinities too; no NaN is
        error = np.where(same, 0, _differences(got, want))
        size = np.abs(want.astype(np.complex128 if want.dtype.kind == "c" else np.float64))
        good = same | np.isfinite(got) & np.isfinite(want) & np.isfinite(error) & (error <= atol + rtol * size)
        relative = np.where(same, 0, error / size)
    if not good.all():
        bad = np.argwhere(~good)
        worst = np.where(good, -1.0, np.where(np.isnan(error), np.inf, error))
        where = np.unravel_index(int(worst.argmax()), worst.shape)
        lines = [
            f"{name}: {len(bad)} of {got.size} elements differ (tolerance {tolerance})",
            f"  largest error {error[where]:.6g} (relative {relative[where]:.3g}) at {_index(where)}",
        ]
        if nans := int(np.isnan(got).sum()):
            lines.append(f"  {nans} of the results are NaN")
        for at in map(tuple, bad[:5]):
            lines.append(f"  at {_index(at)}: got {got[at]}, expected {want[at]}")
        raise Mismatch("\n".join(lines))
    return Check(name, float(error.max()), float(relative.max()), tolerance, got.size)


def _index(position: Iterable[Any]) -> str:
    return f"[{', '.join(str(int(i)) for i in position)}]"


def checks_table(checks: Iterable[Check]) -> None:
    """Print the comparisons that passed."""
    from common.report import table

    rows = [(c.name, c.count, f"{c.max_abs:.3g}", f"{c.max_rel:.3g}", c.tolerance) for c in checks]
    table("", ("verified", "elements", "largest error", "relative", "tolerance"), rows)


def ulp_distance(a: ArrayLike, b: ArrayLike) -> NDArray[np.uint64]:
    """How many representable numbers lie between `a` and `b`, element by element (uint64, same shape).

    Both are float16, float32 or float64 and of the same dtype and shape (TypeError, ValueError otherwise).
    -0.0 and 0.0 are 0 apart, as are two NaNs; a NaN against a number is 2**64 - 1.
    """
    left, right = np.asarray(a), np.asarray(b)
    if left.dtype != right.dtype or left.dtype not in (np.float16, np.float32, np.float64):
        raise TypeError(f"ulp_distance needs two arrays of one float dtype, got {left.dtype} and {right.dtype}")
    if left.shape != right.shape:
        raise ValueError(f"ulp_distance needs equal shapes, got {left.shape} and {right.shape}")

    def ordered(x: NDArray[Any]) -> NDArray[np.int64]:  # the bits, so that they count upwards through zero
        bits = np.ascontiguousarray(x).reshape(x.shape).view(f"i{x.itemsize}")
        return np.where(bits < 0, np.int64(np.iinfo(bits.dtype).min) - bits.astype(np.int64), bits)

    result = _differences(ordered(left), ordered(right))
    nan = np.isnan(left), np.isnan(right)
    return np.where(nan[0] & nan[1], 0, np.where(nan[0] | nan[1], np.iinfo(np.uint64).max, result))


def bf16_to_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The values of raw bfloat16 bits (uint16, any shape), exactly, as float32."""
    raw = np.asarray(bits)
    if raw.dtype != np.uint16:
        raise TypeError(f"bfloat16 bits are uint16, got {raw.dtype}")
    return np.left_shift(raw.astype(np.uint32), 16, dtype=np.uint32).view(np.float32)


def float32_to_bf16(values: ArrayLike) -> NDArray[np.uint16]:
    """`values` (any shape; first made float32) as raw bfloat16 bits: round to nearest even, NaN stays NaN."""
    single = np.asarray(values, dtype=np.float32)
    bits = np.ascontiguousarray(single).reshape(single.shape).view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(single), (bits >> 16) | 0x0040, rounded).astype(np.uint16)
