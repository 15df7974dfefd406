"""Integer arithmetic of every width, bit tricks, and conversions with all rounding modes."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from .harness import Arrays, Case, Runner, blocks_for

# ------------------------------------------------------------------------------------------ 32-bit and bits
INT32 = r"""
__global__ void int32_ops(const int* __restrict__ a, const int* __restrict__ b, int* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i], y = b[i];
    unsigned u = x, v = y, shift = v & 31;
    int r[38] = {
        x + y, x - y, x * y, y ? x / (y == -1 ? 3 : y) : 0, y ? x % (y == -1 ? 3 : y) : 0,
        (int)(v ? u / v : 0), (int)(v ? u % v : 0), x / 7, x % 10, (int)(u / 10u), (int)(u % 1000u),
        (int)(u << shift), x >> shift, (int)(u >> shift), x & y, x | y, x ^ y, ~x, -x,
        __mulhi(x, y), (int)__umulhi(u, v), __mul24(x, y), min(x, y), max(x, y), (int)min(u, v), (int)max(u, v),
        abs(x >> 1), __clz(x), __ffs(x), __popc(u), (int)__brev(u), (int)__byte_perm(u, v, u & 0x7777),
        (int)__funnelshift_l(u, v, shift), (int)__funnelshift_r(u, v, shift), (int)__funnelshift_lc(u, v, v & 63),
        (int)__funnelshift_rc(u, v, v & 63), (int)__sad(x >> 4, y >> 4, u & 0xFFFF), __hadd(x, y)};
    for (int k = 0; k < 38; ++k) out[k * n + i] = r[k];
}

// char, signed char, unsigned char and short: promoted to int, cut again at the store.
__global__ void small_ops(const signed char* __restrict__ a, const unsigned char* __restrict__ b,
                          const short* __restrict__ c, signed char* __restrict__ r8, unsigned char* __restrict__ u8,
                          short* __restrict__ r16, unsigned short* __restrict__ u16, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    r8[i] = (signed char)(a[i] * b[i] + 1);
    u8[i] = (unsigned char)(b[i] - a[i]) >> 1;
    r16[i] = (short)(c[i] >> 3) - (short)(a[i] << 6);
    u16[i] = (unsigned short)((unsigned short)c[i] / (unsigned short)(b[i] + 1u));
    signed char wrapped = (signed char)(a[i] + (signed char)100);
    if (wrapped < 0) r8[i] = -1;
}
"""
EDGES32 = np.array([0, 1, -1, 2, 31, 32, 33, 2**31 - 1, -(2**31), -(2**31) + 1, 0x7FFF, -0x8000, 255, 65536], np.int64)
Word = tuple[int, int]


def edge_pairs(size: int, edges: np.ndarray, bits: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Random words of random length, every fourth of them an edge case."""
    dtype = {32: np.int32, 64: np.int64}[bits]
    pair = []
    for _ in range(2):
        raw = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), size, dtype=np.int64) >> rng.integers(0, bits, size)
        raw[::4] = rng.choice(edges, raw[::4].size)
        pair.append(raw.astype(dtype))
    return pair[0], pair[1]


def inputs_int32(size: int, rng: np.random.Generator) -> Arrays:
    a, b = edge_pairs(size, EDGES32, 32, rng)
    small = rng.integers(-128, 128, size), rng.integers(0, 256, size), rng.integers(-32768, 32768, size)
    return {
        "a": a,
        "b": b,
        "c8": small[0].astype(np.int8),
        "d8": small[1].astype(np.uint8),
        "e16": small[2].astype(np.int16),
    }


def launch_int32(gpu: Runner, size: int, a, b, c8, d8, e16) -> Arrays:
    out = gpu.empty((38, size), np.int32)
    gpu.launch("int32_ops", blocks_for(size, 64), 64, gpu.to_device(a), gpu.to_device(b), out, np.int32(size))
    small = [gpu.empty(size, t) for t in (np.int8, np.uint8, np.int16, np.uint16)]
    inputs = [gpu.to_device(v) for v in (c8, d8, e16)]
    gpu.launch("small_ops", blocks_for(size, 64), 64, *inputs, *small, np.int32(size))
    results = zip(("r8", "u8", "r16", "u16"), small, strict=True)
    return {"out": gpu.to_host(out)} | {key: gpu.to_host(value) for key, value in results}


def trunc_div(x: int, y: int) -> int:
    q = abs(x) // abs(y)
    return q if (x < 0) == (y < 0) else -q


def int32_row(x: int, y: int) -> list[int]:
    mask = 2**32 - 1
    u, v = x & mask, y & mask
    shift, wide = v & 31, (v << 32) | u  # the funnel: v above u
    divisor = 3 if y == -1 else y
    quotient = trunc_div(x, divisor) if y else 0
    low24 = [((z & 0xFFFFFF) ^ 0x800000) - 0x800000 for z in (x, y)]
    source = u | v << 32
    selected = [(source >> 8 * ((u >> 4 * k) & 7)) & 0xFF for k in range(4)]
    clamp = min(v & 63, 32)
    return [
        x + y, x - y, x * y, quotient, x - quotient * divisor if y else 0, u // v if v else 0, u % v if v else 0,
        trunc_div(x, 7), x - trunc_div(x, 10) * 10, u // 10, u % 1000, u << shift, x >> shift, u >> shift,
        x & y, x | y, x ^ y, ~x, -x, (x * y) >> 32, (u * v) >> 32, low24[0] * low24[1], min(x, y), max(x, y),
        min(u, v), max(u, v), abs(x >> 1), 32 - u.bit_length(), (u & -u).bit_length(), u.bit_count(),
        int(f"{u:032b}"[::-1], 2), sum(s << 8 * k for k, s in enumerate(selected)),
        (wide << shift) >> 32, wide >> shift, (wide << clamp) >> 32, wide >> clamp,
        abs((x >> 4) - (y >> 4)) + (u & 0xFFFF), (x + y) >> 1,
    ]  # fmt: skip


def reference_int32(size: int, a, b, c8, d8, e16) -> Arrays:
    rows = [[v & 0xFFFFFFFF for v in int32_row(int(x), int(y))] for x, y in zip(a, b, strict=True)]
    i8, u8, i16 = c8.astype(np.int64), d8.astype(np.int64), e16.astype(np.int64)
    wrapped = (i8 + 100).astype(np.int8)
    return {
        "out": np.ascontiguousarray(np.array(rows, np.uint32).view(np.int32).T),
        "r8": np.where(wrapped < 0, -1, i8 * u8 + 1).astype(np.int8),
        "u8": (u8 - i8).astype(np.uint8) >> np.uint8(1),
        "r16": ((i16 >> 3) - (i8 << 6)).astype(np.int16),
        "u16": (e16.view(np.uint16) // (u8 + 1)).astype(np.uint16),
    }


# ----------------------------------------------------------------------------------------------- 64-bit
INT64 = r"""
__global__ void int64_ops(const long long* __restrict__ a, const long long* __restrict__ b,
                          long long* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    long long x = a[i], y = b[i];
    unsigned long long u = x, v = y;
    int shift = (int)(v & 63);
    long long r[29] = {
        x + y, x - y, x * y, y ? x / (y == -1 ? 3 : y) : 0, y ? x % (y == -1 ? 3 : y) : 0,
        (long long)(v ? u / v : 0), (long long)(v ? u % v : 0), x / 1000, (long long)(u % 1000003ull),
        (long long)(u << shift), x >> shift, (long long)(u >> shift), x & y, x | y, x ^ y, ~x,
        __mul64hi(x, y), (long long)__umul64hi(u, v), min(x, y), max(x, y), (long long)min(u, v),
        __clzll(x), __ffsll(x), __popcll(u), (long long)__brevll(u), llabs(x >> 1),
        (long long)(int)x * (int)y, (long long)((unsigned long long)(unsigned)u * (unsigned)v),
        (x < y) + 2 * (u < v) + 4 * (x == y)};
    for (int k = 0; k < 29; ++k) out[k * n + i] = r[k];
}
"""
EDGES64 = np.array([0, 1, -1, 2**31, -(2**31), 2**32, 2**63 - 1, -(2**63), 64, 63, 10**12], np.int64)


def inputs_int64(size: int, rng: np.random.Generator) -> Arrays:
    a, b = edge_pairs(size, EDGES64, 64, rng)
    return {"a": a, "b": b}


def launch_int64(gpu: Runner, size: int, a: np.ndarray, b: np.ndarray) -> Arrays:
    out = gpu.empty((29, size), np.int64)
    gpu.launch("int64_ops", blocks_for(size, 64), 64, gpu.to_device(a), gpu.to_device(b), out, np.int32(size))
    return {"out": gpu.to_host(out)}


def int64_row(x: int, y: int) -> list[int]:
    mask, low = 2**64 - 1, 2**32 - 1
    u, v = x & mask, y & mask
    shift, divisor = v & 63, 3 if y == -1 else y
    quotient = trunc_div(x, divisor) if y else 0
    xi, yi = (((z & low) ^ 2**31) - 2**31 for z in (x, y))
    return [
        x + y, x - y, x * y, quotient, x - quotient * divisor if y else 0, u // v if v else 0, u % v if v else 0,
        trunc_div(x, 1000), u % 1000003, u << shift, x >> shift, u >> shift, x & y, x | y, x ^ y, ~x,
        (x * y) >> 64, (u * v) >> 64, min(x, y), max(x, y), min(u, v), 64 - u.bit_length(),
        (u & -u).bit_length(), u.bit_count(), int(f"{u:064b}"[::-1], 2), abs(x >> 1), xi * yi,
        (u & low) * (v & low), (x < y) + 2 * (u < v) + 4 * (x == y),
    ]  # fmt: skip


def reference_int64(size: int, a: np.ndarray, b: np.ndarray) -> Arrays:
    rows = [[v & (2**64 - 1) for v in int64_row(int(x), int(y))] for x, y in zip(a, b, strict=True)]
    return {"out": np.ascontiguousarray(np.array(rows, np.uint64).view(np.int64).T)}


# -------------------------------------------------------------------------------------------- conversions
CONVERT = r"""
#include <cuda_fp16.h>
#define ALL_MODES(f, x) f##_rn(x), f##_rz(x), f##_ru(x), f##_rd(x)

__global__ void float_to_int(const float* __restrict__ x, const double* __restrict__ d, int* __restrict__ i32,
                             unsigned* __restrict__ u32, long long* __restrict__ i64,
                             unsigned long long* __restrict__ u64, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float f = x[i];
    double g = d[i];
    int a[8] = {ALL_MODES(__float2int, f), ALL_MODES(__double2int, g)};
    unsigned b[8] = {ALL_MODES(__float2uint, f), ALL_MODES(__double2uint, g)};
    long long c[8] = {ALL_MODES(__float2ll, f), ALL_MODES(__double2ll, g)};
    unsigned long long e[8] = {ALL_MODES(__float2ull, f), ALL_MODES(__double2ull, g)};
    for (int k = 0; k < 8; ++k) {
        i32[k * n + i] = a[k];
        u32[k * n + i] = b[k];
        i64[k * n + i] = c[k];
        u64[k * n + i] = e[k];
    }
}

__global__ void int_to_float(const int* __restrict__ s, const long long* __restrict__ w, float* __restrict__ f,
                             double* __restrict__ d, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = s[i];
    long long y = w[i];
    float a[16] = {ALL_MODES(__int2float, x), ALL_MODES(__uint2float, (unsigned)x), ALL_MODES(__ll2float, y),
                   ALL_MODES(__ull2float, (unsigned long long)y)};
    double b[10] = {ALL_MODES(__ll2double, y), ALL_MODES(__ull2double, (unsigned long long)y), (double)x,
                    (double)(unsigned)x};
    for (int k = 0; k < 16; ++k) f[k * n + i] = a[k];
    for (int k = 0; k < 10; ++k) d[k * n + i] = b[k];
}

__global__ void float_to_float(const double* __restrict__ d, const float* __restrict__ x, float* __restrict__ f,
                               __half* __restrict__ h, float* __restrict__ whole, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    float a[4] = {ALL_MODES(__double2float, d[i])};
    __half b[5] = {ALL_MODES(__float2half, v), __double2half(d[i])};
    float c[6] = {rintf(v), truncf(v), ceilf(v), floorf(v), roundf(v), __saturatef(v)};
    for (int k = 0; k < 4; ++k) f[k * n + i] = a[k];
    for (int k = 0; k < 5; ++k) h[k * n + i] = b[k];
    for (int k = 0; k < 6; ++k) whole[k * n + i] = c[k];
}
"""
SPECIAL = np.array(
    [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.499999, 1e-40, -1e-40, 2147483520.0, 2147483648.0, -2147483648.0, 3e9,
     4294967040.0, 4294967296.0, 1e19, -1e19, 9.3e18, 1.8446744e19, 3e38, np.inf, -np.inf, np.nan, 65504.0, 65520.0,
     65519.9, 6e-8, 2.9e-8, 3e-8]
)  # fmt: skip


def inputs_convert(size: int, rng: np.random.Generator) -> Arrays:
    values = rng.standard_normal(size) * 10.0 ** rng.integers(-8, 20, size)
    values[::2] = rng.choice(SPECIAL, values[::2].size)
    s, _ = edge_pairs(size, EDGES32, 32, rng)
    w, _ = edge_pairs(size, EDGES64, 64, rng)
    return {"d": values, "s": s, "w": w}


def launch_convert(gpu: Runner, size: int, d: np.ndarray, s: np.ndarray, w: np.ndarray) -> Arrays:
    grid, n = blocks_for(size, 64), np.int32(size)
    with np.errstate(over="ignore"):
        x = d.astype(np.float32)
    dx, dd = gpu.to_device(x), gpu.to_device(d)
    kinds = {"i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64}
    whole = {key: gpu.empty((8, size), t) for key, t in kinds.items()}
    gpu.launch("float_to_int", grid, 64, dx, dd, *whole.values(), n)
    floats = {"f": gpu.empty((16, size), np.float32), "g": gpu.empty((10, size), np.float64)}
    gpu.launch("int_to_float", grid, 64, gpu.to_device(s), gpu.to_device(w), *floats.values(), n)
    narrow = {
        "narrow": gpu.empty((4, size), np.float32),
        "half": gpu.empty((5, size), np.float16),
        "whole": gpu.empty((6, size), np.float32),
    }
    gpu.launch("float_to_float", grid, 64, dd, dx, *narrow.values(), n)
    out = {key: gpu.to_host(array) for key, array in (whole | floats | narrow).items()}
    return {key: bits_of(value) for key, value in out.items()}


def bits_of(array: np.ndarray) -> np.ndarray:
    """Floats as their bits, so that signed zeros count; every NaN becomes one and the same."""
    if array.dtype.kind != "f":
        return array
    clean = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return clean.view({2: np.uint16, 4: np.uint32, 8: np.uint64}[array.dtype.itemsize])


ROUND: tuple[Callable[[np.ndarray], np.ndarray], ...] = (np.rint, np.trunc, np.ceil, np.floor)


def to_integer(values: np.ndarray, rounding: Callable, low: int, high: int, nan: int) -> list[int]:
    """Round, then saturate; NaN becomes `nan`, as PTX's cvt says."""
    out = []
    for v in rounding(values.astype(np.float64)):
        out.append(nan if np.isnan(v) else (high if v >= high else low if v <= low else int(v)))
    return out


@np.errstate(over="ignore")
def directed(exact: list, dtype: type) -> np.ndarray:
    """Each exact value (int, float, Fraction) rounded to nearest even, to zero, up and down: shape (4, n)."""
    rows = np.empty((4, len(exact)), dtype)
    infinity = dtype(np.inf)
    for i, value in enumerate(exact):
        near = dtype(float(value))  # may be rounded twice: a neighbour of the exact value all the same
        if isinstance(value, float) and not np.isfinite(value):
            rows[:, i] = near
            continue
        rest = (1 if near > 0 else -1) if np.isinf(near) else Fraction(float(near)) - Fraction(value)
        down = np.nextafter(near, -infinity) if rest > 0 else near
        up = np.nextafter(near, infinity) if rest < 0 else near
        if rest != 0 and np.isfinite(down) and np.isfinite(up):
            below, above = Fraction(value) - Fraction(float(down)), Fraction(float(up)) - Fraction(value)
            even = up if int(bits_of(down)) & 1 else down
            near = down if below < above else up if above < below else even
        if value < 0:
            near, up = (dtype(-0.0) if v == 0 else v for v in (near, up))
        rows[:, i] = near, down if value > 0 else up, up, down
    return rows


def reference_convert(size: int, d: np.ndarray, s: np.ndarray, w: np.ndarray) -> Arrays:
    with np.errstate(over="ignore"):
        x = d.astype(np.float32)
    out: Arrays = {}
    for key, dtype in (("i32", np.int32), ("u32", np.uint32), ("i64", np.int64), ("u64", np.uint64)):
        info, rows = np.iinfo(dtype), []
        for source, wide in ((x, False), (d, True)):
            special = wide or info.bits == 64
            nan = (1 << (info.bits - 1)) if special else 0
            nan = nan - (1 << info.bits) if special and info.min < 0 else nan
            rows += [to_integer(source, rounding, info.min, info.max, nan) for rounding in ROUND]
        out[key] = np.array(rows, dtype)
    si, wi = [int(v) for v in s], [int(v) for v in w]
    unsigned32, unsigned64 = [v % 2**32 for v in si], [v % 2**64 for v in wi]
    out["f"] = np.concatenate([directed(v, np.float32) for v in (si, unsigned32, wi, unsigned64)])
    doubles = [directed(v, np.float64) for v in (wi, unsigned64)]
    out["g"] = np.concatenate([*doubles, [np.array(si, np.float64)], [np.array(unsigned32, np.float64)]])
    out["narrow"] = directed([float(v) for v in d], np.float32)
    with np.errstate(over="ignore"):
        out["half"] = np.concatenate([directed([float(v) for v in x], np.float16), [d.astype(np.float16)]])
    away = np.trunc(x.astype(np.float64) + np.copysign(0.5, x)).astype(np.float32)
    away = np.where(np.abs(x) < 0.5, np.copysign(np.float32(0), x), away)
    saturated = np.where(np.isnan(x) | (x <= 0), np.float32(0), np.minimum(x, np.float32(1)))
    out["whole"] = np.stack([np.rint(x), np.trunc(x), np.ceil(x), np.floor(x), away, saturated])
    return {key: bits_of(value) for key, value in out.items()}


CASES = [
    Case("int32_ops", INT32, ("int32_ops", "small_ops"), inputs_int32, launch_int32, reference_int32, (1, 33, 700)),
    Case("int64_ops", INT64, ("int64_ops",), inputs_int64, launch_int64, reference_int64, (1, 33, 500)),
    Case(
        "conversions",
        CONVERT,
        ("float_to_int", "int_to_float", "float_to_float"),
        inputs_convert,
        launch_convert,
        reference_convert,
        (1, 33, 400),
    ),
]
