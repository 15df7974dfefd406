"""Floating point: float64, rounding modes, NaN, the math library, fast math."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from .harness import Arrays, Case, Runner, Tol, blocks_for
from .integers import bits_of, directed

# ------------------------------------------------------------------------------------------- float64, exact
DOUBLE = r"""
// Operations that IEEE 754 rounds once: every bit is known.
__global__ void double_exact(const double* __restrict__ a, const double* __restrict__ b, const double* __restrict__ c,
                             double* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double x = a[i], y = b[i], z = c[i];
    double r[12] = {fma(x, y, z), fma(x, y, -(x * y)), __dadd_rn(__dmul_rn(x, y), z), x / y, sqrt(fabs(x)), 1.0 / y,
                    floor(x), rint(x), fmin(x, y), fmax(x, y), copysign(x, y), __fma_rz(x, y, z)};
    for (int k = 0; k < 12; ++k) out[k * n + i] = r[k];
}

__global__ void double_library(const double* __restrict__ a, double* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double x = a[i], p = fabs(x) + 1e-3;
    double r[15] = {exp(fmod(x, 700.0)), log(p), sin(x), cos(x), tan(x), pow(p, 1.37), pow(p, -0.5), atan2(x, 2.0),
                    cbrt(x), tanh(x), log2(p), exp2(fmod(x, 1000.0)), rsqrt(p), erf(x * 1e-3), fmod(x, 0.7)};
    for (int k = 0; k < 15; ++k) out[k * n + i] = r[k];
}
"""
DOUBLE_OPS = ("fma", "error", "unfused", "div", "sqrt", "rcp", "floor", "rint", "min", "max", "copysign", "fma_rz")
DOUBLE_LIBRARY = (
    "exp", "log", "sin", "cos", "tan", "pow", "pow_neg", "atan2", "cbrt", "tanh", "log2", "exp2", "rsqrt", "erf",
    "fmod",
)  # fmt: skip


def inputs_double(size: int, rng: np.random.Generator) -> Arrays:
    scale = 10.0 ** rng.integers(-3, 4, (3, size))
    a, b, c = rng.standard_normal((3, size)) * scale
    c[::2] = -(a * b)[::2]  # cancels all but the rounding error of the product
    a[1::5] = rng.choice([1e5, -1e9, 1e15, 1e22, -3e18, 123456.789], a[1::5].size)  # far beyond 2 pi
    return {"a": a, "b": b, "c": c}


def launch_double(gpu: Runner, size: int, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Arrays:
    da, exact = gpu.to_device(a), gpu.empty((12, size), np.float64)
    n = np.int32(size)
    gpu.launch("double_exact", blocks_for(size, 64), 64, da, gpu.to_device(b), gpu.to_device(c), exact, n)
    library = gpu.empty((15, size), np.float64)
    gpu.launch("double_library", blocks_for(size, 64), 64, da, library, n)
    rows = zip(DOUBLE_OPS + DOUBLE_LIBRARY, [*gpu.to_host(exact), *gpu.to_host(library)], strict=True)
    return {key: value.copy() for key, value in rows}


def exact_fma(x: float, y: float, z: float) -> Fraction:
    return Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))


def toward_zero(exact: Fraction) -> float:
    near = float(exact)  # correctly rounded to nearest
    return float(np.nextafter(near, 0.0)) if abs(Fraction(near)) > abs(exact) else near


def reference_double(size: int, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Arrays:
    from math import erf

    p = np.abs(a) + 1e-3
    fused = [exact_fma(*row) for row in zip(a, b, c, strict=True)]
    errors = [exact_fma(x, y, -(x * y)) for x, y in zip(a, b, strict=True)]
    exact = [
        np.array([float(f) for f in fused]), np.array([float(f) for f in errors]), a * b + c, a / b,
        np.sqrt(np.abs(a)), 1 / b, np.floor(a), np.rint(a), np.minimum(a, b), np.maximum(a, b), np.copysign(a, b),
        np.array([toward_zero(f) for f in fused]),
    ]  # fmt: skip
    library = [
        np.exp(np.fmod(a, 700)), np.log(p), np.sin(a), np.cos(a), np.tan(a), p**1.37, p**-0.5, np.arctan2(a, 2.0),
        np.cbrt(a), np.tanh(a), np.log2(p), np.exp2(np.fmod(a, 1000)), 1 / np.sqrt(p),
        np.array([erf(v) for v in a * 1e-3]), np.fmod(a, 0.7),
    ]  # fmt: skip
    return dict(zip(DOUBLE_OPS + DOUBLE_LIBRARY, exact + library, strict=True))


# ---------------------------------------------------------------------------------- float32, every rounding
ROUNDING = r"""
#define ALL_MODES(f, ...) f##_rn(__VA_ARGS__), f##_rz(__VA_ARGS__), f##_ru(__VA_ARGS__), f##_rd(__VA_ARGS__)

__global__ void rounding(const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ c,
                         float* __restrict__ out, double* __restrict__ wide, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], y = b[i], z = c[i];
    float r[28] = {ALL_MODES(__fadd, x, y), ALL_MODES(__fsub, x, y), ALL_MODES(__fmul, x, y),
                   ALL_MODES(__fmaf, x, y, z), ALL_MODES(__fdiv, x, y), ALL_MODES(__fsqrt, fabsf(x)),
                   ALL_MODES(__frcp, y)};
    for (int k = 0; k < 28; ++k) out[k * n + i] = r[k];
    double d[8] = {ALL_MODES(__dadd, (double)x, (double)y * 1e-9), ALL_MODES(__dmul, (double)x / 3, (double)y / 7)};
    for (int k = 0; k < 8; ++k) wide[k * n + i] = d[k];
}
"""


def inputs_rounding(size: int, rng: np.random.Generator) -> Arrays:
    a, b, c = rng.standard_normal((3, size)) * 10.0 ** rng.integers(-4, 5, (3, size))
    a[::7] = 10.0 ** -rng.uniform(37, 42, a[::7].size)  # near and below the smallest normal float32
    return {"a": a.astype(np.float32), "b": b.astype(np.float32), "c": c.astype(np.float32)}


def launch_rounding(gpu: Runner, size: int, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Arrays:
    out, wide = gpu.empty((28, size), np.float32), gpu.empty((8, size), np.float64)
    inputs = [gpu.to_device(v) for v in (a, b, c)]
    gpu.launch("rounding", blocks_for(size, 64), 64, *inputs, out, wide, np.int32(size))
    return {"out": gpu.to_host(out), "wide": gpu.to_host(wide)}


def root(x: float) -> Fraction:
    """The square root to 100 bits, with a sticky bit, so that it rounds as the exact one would."""
    from math import isqrt

    value = Fraction(x)
    scaled = value * 4**200
    whole = isqrt(scaled.numerator // scaled.denominator)
    sticky = 0 if Fraction(whole) ** 2 == scaled else Fraction(1, 2)
    return (whole + sticky) / Fraction(2**200)


def reference_rounding(size: int, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Arrays:
    fa, fb, fc = ([Fraction(float(v)) for v in array] for array in (a, b, c))
    exact = [
        [x + y for x, y in zip(fa, fb, strict=True)],
        [x - y for x, y in zip(fa, fb, strict=True)],
        [x * y for x, y in zip(fa, fb, strict=True)],
        [x * y + z for x, y, z in zip(fa, fb, fc, strict=True)],
        [x / y for x, y in zip(fa, fb, strict=True)],
        [root(abs(float(x))) for x in a],
        [1 / y for y in fb],
    ]
    x, y = a.astype(np.float64), b.astype(np.float64)
    small, third, seventh = y * 1e-9, x / 3, y / 7
    wide = [
        [Fraction(float(p)) + Fraction(float(q)) for p, q in zip(x, small, strict=True)],
        [Fraction(float(p)) * Fraction(float(q)) for p, q in zip(third, seventh, strict=True)],
    ]
    return {
        "out": np.concatenate([directed(values, np.float32) for values in exact]),
        "wide": np.concatenate([directed(values, np.float64) for values in wide]),
    }


# --------------------------------------------------------------------------------------------------- NaN
NANS = r"""
__global__ void with_nan(const float* __restrict__ a, const float* __restrict__ b, unsigned* __restrict__ bits,
                         unsigned char* __restrict__ flags, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], y = b[i];
    double p = x, q = y;
    bits[i] = __float_as_uint(fminf(x, y));
    bits[n + i] = __float_as_uint(fmaxf(x, y));
    bits[2 * n + i] = __float_as_uint(-x);
    bits[3 * n + i] = __float_as_uint(fabsf(y));
    bits[4 * n + i] = __float_as_uint(copysignf(x, y));
    bits[5 * n + i] = __float_as_uint(x < y ? x : y);
    flags[i] = (x < y) | (x <= y) << 1 | (x > y) << 2 | (x >= y) << 3 | (x == y) << 4 | (x != y) << 5;
    flags[n + i] = isnan(x) | isinf(x) << 1 | signbit(x) << 2 | isfinite(y) << 3 | !(x < y) << 4;
    flags[2 * n + i] = isnan(fmin(p, q)) | (fmin(p, q) == p) << 1 | (fmax(p, q) == q) << 2 | (p < q) << 3 |
                       (p != q) << 4 | isnan(p + q) << 5 | isnan(p * q) << 6;
}
"""
NAN_VALUES = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, 3.0], np.float32)


def inputs_nan(size: int, rng: np.random.Generator) -> Arrays:
    return {"a": rng.choice(NAN_VALUES, size), "b": rng.choice(NAN_VALUES, size)}


def launch_nan(gpu: Runner, size: int, a: np.ndarray, b: np.ndarray) -> Arrays:
    bits, flags = gpu.empty((6, size), np.uint32), gpu.empty((3, size), np.uint8)
    gpu.launch("with_nan", blocks_for(size, 64), 64, gpu.to_device(a), gpu.to_device(b), bits, flags, np.int32(size))
    raw = gpu.to_host(bits)
    minmax = raw[:2].copy()
    rest = bits_of(raw[2:].view(np.float32))
    return {"minmax": minmax, "rest": rest, "flags": gpu.to_host(flags)}


@np.errstate(invalid="ignore")
def reference_nan(size: int, a: np.ndarray, b: np.ndarray) -> Arrays:
    # PTX: a NaN loses against a number, -0 is below +0, two NaNs give the canonical one.
    low = np.where(a == b, np.where(np.signbit(a), a, b), np.fmin(a, b))
    high = np.where(a == b, np.where(np.signbit(a), b, a), np.fmax(a, b))
    canonical = np.uint32(0x7FFFFFFF)
    minmax = [np.where(np.isnan(a) & np.isnan(b), canonical, v.astype(np.float32).view(np.uint32)) for v in (low, high)]
    rest = np.stack([-a, np.abs(b), np.copysign(a, b), np.where(a < b, a, b)])
    first = (a < b) | (a <= b) << 1 | (a > b) << 2 | (a >= b) << 3 | (a == b) << 4 | (a != b) << 5
    second = np.isnan(a) | np.isinf(a) << 1 | (np.signbit(a) & ~np.isnan(a)) << 2 | np.isfinite(b) << 3 | ~(a < b) << 4
    third = (
        (np.isnan(a) & np.isnan(b))
        | (np.fmin(a, b) == a) << 1
        | (np.fmax(a, b) == b) << 2
        | (a < b) << 3
        | (a != b) << 4
        | np.isnan(a + b) << 5
        | np.isnan(a * b) << 6
    )
    flags = np.stack([first, second, third]).astype(np.uint8)
    return {"minmax": np.stack(minmax), "rest": bits_of(rest), "flags": flags}


# ------------------------------------------------------------------------- the float32 library and fast math
LIBRARY = r"""
__global__ void library(const float* __restrict__ a, float* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], p = fabsf(x) + 1e-3f, s = fmodf(x, 4.0f);
    float r[20] = {expf(s), logf(p), sinf(x), cosf(x), tanf(s), powf(p, 1.37f), atan2f(x, 2.0f), cbrtf(x), tanhf(s),
                   log2f(p), exp2f(s), log1pf(p), expm1f(s), sqrtf(p), erff(s), asinf(s * 0.25f), sinhf(s),
                   hypotf(s, 3.0f), fmodf(x, 0.7f), ldexpf(s, 5)};
    for (int k = 0; k < 20; ++k) out[k * n + i] = r[k];
}

__global__ void fast(const float* __restrict__ a, float* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = fmodf(a[i], 3.0f), p = fabsf(x) + 1e-3f;
    float r[11] = {__expf(x), __logf(p), __sinf(x), __cosf(x), __tanf(x * 0.4f), __powf(p, 1.5f), __fdividef(x, p),
                   rsqrtf(p), tanhf(x), __exp10f(x), __log2f(p)};
    for (int k = 0; k < 11; ++k) out[k * n + i] = r[k];
}
"""
LIBRARY_OPS = (
    "exp", "log", "sin", "cos", "tan", "pow", "atan2", "cbrt", "tanh", "log2", "exp2", "log1p", "expm1", "sqrt",
    "erf", "asin", "sinh", "hypot", "fmod", "ldexp",
)  # fmt: skip
FAST_OPS = ("exp", "log", "sin", "cos", "tan", "pow", "div", "rsqrt", "tanh", "exp10", "log2")


def inputs_library(size: int, rng: np.random.Generator) -> Arrays:
    a = (rng.standard_normal(size) * 10.0 ** rng.integers(-2, 3, size)).astype(np.float32)
    a[1::6] = rng.choice(np.array([1e6, -1e9, 2e5, 1e20, -123456.0], np.float32), a[1::6].size)
    return {"a": a}


def library_launcher(kernel: str, names: tuple[str, ...]):
    def launch(gpu: Runner, size: int, a: np.ndarray) -> Arrays:
        out = gpu.empty((len(names), size), np.float32)
        gpu.launch(kernel, blocks_for(size, 64), 64, gpu.to_device(a), out, np.int32(size))
        return {key: row.copy() for key, row in zip(names, gpu.to_host(out), strict=True)}

    return launch


def reference_library(size: int, a: np.ndarray) -> Arrays:
    from math import erf

    x = a.astype(np.float64)
    s = np.fmod(x, 4.0)
    p = (np.abs(a) + np.float32(1e-3)).astype(np.float64)
    values = [
        np.exp(s), np.log(p), np.sin(x), np.cos(x), np.tan(s), p ** np.float32(1.37), np.arctan2(x, 2.0), np.cbrt(x),
        np.tanh(s), np.log2(p), np.exp2(s), np.log1p(p), np.expm1(s), np.sqrt(p), np.array([erf(v) for v in s]),
        np.arcsin(s * 0.25), np.sinh(s), np.hypot(s, 3.0), np.fmod(x, np.float64(np.float32(0.7))), s * 32,
    ]  # fmt: skip
    return {key: value.astype(np.float32) for key, value in zip(LIBRARY_OPS, values, strict=True)}


def reference_fast(size: int, a: np.ndarray) -> Arrays:
    x32 = np.fmod(a, np.float32(3))
    x, p = x32.astype(np.float64), (np.abs(x32) + np.float32(1e-3)).astype(np.float64)
    fourth = (x32 * np.float32(0.4)).astype(np.float64)
    values = [
        np.exp(x), np.log(p), np.sin(x), np.cos(x), np.tan(fourth), p**1.5, x / p, 1 / np.sqrt(p), np.tanh(x),
        10.0**x, np.log2(p),
    ]  # fmt: skip
    return {key: value.astype(np.float32) for key, value in zip(FAST_OPS, values, strict=True)}


def tolerances(names: tuple[str, ...], default: Tol, **special: Tol) -> dict[str, Tol]:
    return {name: special.get(name, default) for name in names}


APPROX = "ex2, lg2, sin, cos, rcp, rsqrt and sqrt .approx differ from hardware in the last bits"
FAST = Tol(1e-5, 2e-6, APPROX)
EXACT32 = ("sqrt", "fmod", "ldexp")

CASES = [
    Case(
        "float64",
        DOUBLE,
        ("double_exact", "double_library"),
        inputs_double,
        launch_double,
        reference_double,
        (1, 33, 600),
        tolerances(DOUBLE_LIBRARY, Tol(8e-16, 0), tan=Tol(1e-15), fmod=Tol(), pow=Tol(1e-15), pow_neg=Tol(1e-15)),
        # rsqrt and rcp seeds (rcp.approx.ftz.f64, rsqrt.approx.ftz.f64) differ; the refined result may, by an ulp
        gpu={name: 2 for name in DOUBLE_LIBRARY if name != "fmod"},
    ),
    Case(
        "float32_rounding", ROUNDING, ("rounding",), inputs_rounding, launch_rounding, reference_rounding, (1, 33, 200)
    ),
    Case("nan_min_max", NANS, ("with_nan",), inputs_nan, launch_nan, reference_nan, (1, 33, 400)),
    Case(
        "float32_library",
        LIBRARY,
        ("library",),
        inputs_library,
        library_launcher("library", LIBRARY_OPS),
        reference_library,
        (1, 33, 600),
        tolerances(LIBRARY_OPS, Tol(5e-7, 1e-12), pow=Tol(1e-6), tan=Tol(6e-7), sqrt=Tol(), fmod=Tol(), ldexp=Tol()),
        gpu={name: Tol(5e-7, 1e-12, APPROX) for name in LIBRARY_OPS if name not in EXACT32},
    ),
    Case(
        "fast_math",
        LIBRARY,
        ("fast",),
        inputs_library,
        library_launcher("fast", FAST_OPS),
        reference_fast,
        (1, 33, 600),
        tolerances(FAST_OPS, FAST),
        gpu=tolerances(FAST_OPS, FAST),
    ),
]
