"""Small number types: half2, bfloat16, int8 with dp4a."""

from __future__ import annotations

import numpy as np

from .harness import Arrays, Case, Runner, Tol, blocks_for

# ------------------------------------------------------------------------------------------ half2 and bf16
HALF2 = r"""
#include <cuda_fp16.h>

__global__ void half2_axpy(__half a, const __half2* __restrict__ x, __half2* __restrict__ y, int pairs)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < pairs) y[i] = __hfma2(__half2half2(a), x[i], y[i]);
}

__global__ void half_mixed(const __half* __restrict__ x, const __half* __restrict__ y, __half* __restrict__ out,
                           float* __restrict__ wide, unsigned char* __restrict__ order, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __half s = __hadd(x[i], y[i]), d = __hsub(x[i], y[i]), p = __hmul(x[i], y[i]);
    out[4 * i] = s;
    out[4 * i + 1] = d;
    out[4 * i + 2] = p;
    out[4 * i + 3] = __hmax(__hneg(x[i]), __habs(y[i]));
    wide[i] = __half2float(x[i]) * 0.5f + __half2float(y[i]);
    order[i] = (unsigned char)(__hlt(x[i], y[i]) + 2 * __heq(x[i], y[i]) + 4 * (x[i] >= __float2half(0.25f)));
}
"""


def inputs_half2(size: int, rng: np.random.Generator) -> Arrays:
    x = rng.standard_normal(2 * size).astype(np.float16)
    y = rng.standard_normal(2 * size).astype(np.float16)
    y[::5] = x[::5]
    return {"x": x, "y": y}


def launch_half2(gpu: Runner, size: int, x: np.ndarray, y: np.ndarray) -> Arrays:
    n = 2 * size
    dx, dy, fused = gpu.to_device(x), gpu.to_device(y), gpu.to_device(y)
    gpu.launch("half2_axpy", blocks_for(size, 128), 128, np.float16(1.5), dx, fused, np.int32(size))
    mixed, wide, order = gpu.empty(4 * n, np.float16), gpu.empty(n, np.float32), gpu.empty(n, np.uint8)
    gpu.launch("half_mixed", blocks_for(n, 128), 128, dx, dy, mixed, wide, order, np.int32(n))
    arrays = {"y": fused, "mixed": mixed, "wide": wide, "order": order}
    return {key: gpu.to_host(array) for key, array in arrays.items()}


def reference_half2(size: int, x: np.ndarray, y: np.ndarray) -> Arrays:
    a, b = x.astype(np.float64), y.astype(np.float64)
    mixed = np.stack([x + y, x - y, x * y, np.maximum(-x, np.abs(y))], axis=1).ravel()
    wide = (a * 0.5 + b).astype(np.float32)
    order = ((x < y) + 2 * (x == y) + 4 * (x >= np.float16(0.25))).astype(np.uint8)
    return {"y": (1.5 * a + b).astype(np.float16), "mixed": mixed, "wide": wide, "order": order}


BF16 = r"""
#include <cuda_bf16.h>

__global__ void bf16_axpy(float a, const __nv_bfloat16* __restrict__ x, __nv_bfloat16* __restrict__ y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = __float2bfloat16(a * __bfloat162float(x[i]) + __bfloat162float(y[i]));
}

__global__ void bf162_axpy(__nv_bfloat162 a, const __nv_bfloat162* __restrict__ x, __nv_bfloat162* __restrict__ y,
                           int pairs)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < pairs) y[i] = __hfma2(a, x[i], y[i]);
}
"""


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Round float to bfloat16 (nearest even); returned as the 16 bits. Finite values only."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def inputs_bf16(size: int, rng: np.random.Generator) -> Arrays:
    return {"x": to_bf16(rng.standard_normal(2 * size)), "y": to_bf16(rng.standard_normal(2 * size))}


def launch_bf16(gpu: Runner, size: int, x: np.ndarray, y: np.ndarray) -> Arrays:
    dx, scalar, pair = gpu.to_device(x), gpu.to_device(y), gpu.to_device(y)
    gpu.launch("bf16_axpy", blocks_for(2 * size, 128), 128, np.float32(1.5), dx, scalar, np.int32(2 * size))
    both = np.uint32(int(to_bf16(np.float32(1.5))) * 0x10001)
    gpu.launch("bf162_axpy", blocks_for(size, 128), 128, both, dx, pair, np.int32(size))
    return {"scalar": gpu.to_host(scalar), "pair": gpu.to_host(pair)}


def reference_bf16(size: int, x: np.ndarray, y: np.ndarray) -> Arrays:
    # A bf16 product has 16 significant bits and is exact in float32; the sum may round twice in `scalar`.
    exact = 1.5 * from_bf16(x).astype(np.float64) + from_bf16(y)
    bits = to_bf16(exact.astype(np.float32))
    return {"scalar": bits, "pair": bits}


# ---------------------------------------------------------------------------------------- int8 and dp4a
QUANTIZE = r"""
__global__ void quantize_int8(const float* __restrict__ x, signed char* __restrict__ q, float inv_scale, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = __float2int_rn(x[i] * inv_scale);
    q[i] = (signed char)max(-128, min(127, v));
}

// One thread, one row of the weights; four int8 products per instruction.
__global__ void dot_dp4a(const int* __restrict__ weights, const int* __restrict__ x, const float* __restrict__ bias,
                         int* __restrict__ sums, float* __restrict__ out, float scale, int rows, int words)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    int sum = 0;
    unsigned mixed = 0;
    for (int k = 0; k < words; ++k) {
        sum = __dp4a(weights[row * words + k], x[k], sum);
        mixed = __dp4a((unsigned)weights[row * words + k], (unsigned)x[k], mixed);
    }
    sums[2 * row] = sum;
    sums[2 * row + 1] = (int)mixed;
    out[row] = sum * scale + bias[row];
}
"""


def inputs_quantize(size: tuple[int, int], rng: np.random.Generator) -> Arrays:
    rows, depth = size
    return {
        "weights": (rng.standard_normal((rows, depth)) * 1.2).astype(np.float32),
        "x": (rng.standard_normal(depth) * 1.2).astype(np.float32),
        "bias": rng.standard_normal(rows).astype(np.float32),
    }


def launch_quantize(gpu: Runner, size: tuple[int, int], weights: np.ndarray, x: np.ndarray, bias: np.ndarray):
    rows, depth = size
    quantized = {}
    for key, values in (("qw", weights), ("qx", x)):
        quantized[key] = gpu.empty(values.shape, np.int8)
        grid = blocks_for(values.size, 128)
        arguments = gpu.to_device(values), quantized[key], np.float32(50.0), np.int32(values.size)
        gpu.launch("quantize_int8", grid, 128, *arguments)
    sums, out = gpu.empty((rows, 2), np.int32), gpu.empty(rows, np.float32)
    gpu.launch(
        "dot_dp4a", blocks_for(rows, 64), 64, quantized["qw"], quantized["qx"], gpu.to_device(bias), sums, out,
        np.float32(1 / 2500), np.int32(rows), np.int32(depth // 4),
    )  # fmt: skip
    return {key: gpu.to_host(value) for key, value in (quantized | {"sums": sums, "out": out}).items()}


def reference_quantize(size, weights: np.ndarray, x: np.ndarray, bias: np.ndarray) -> Arrays:
    qw, qx = (np.clip(np.rint(v * np.float32(50)), -128, 127).astype(np.int8) for v in (weights, x))
    signed = qw.astype(np.int64) @ qx.astype(np.int64)
    unsigned = qw.view(np.uint8).astype(np.int64) @ qx.view(np.uint8).astype(np.int64)
    sums = np.stack([signed, unsigned], axis=1).astype(np.int32)
    return {
        "qw": qw,
        "qx": qx,
        "sums": sums,
        "out": (signed * np.float64(np.float32(1 / 2500)) + bias).astype(np.float32),
    }


CASES = [
    Case(
        "half2_axpy",
        HALF2,
        ("half2_axpy", "half_mixed"),
        inputs_half2,
        launch_half2,
        reference_half2,
        (1, 31, 33, 3000),
    ),
    Case(
        "bf16_axpy",
        BF16,
        ("bf16_axpy", "bf162_axpy"),
        inputs_bf16,
        launch_bf16,
        reference_bf16,
        (1, 31, 33, 3000),
    ),
    Case(
        "quantize_dp4a",
        QUANTIZE,
        ("quantize_int8", "dot_dp4a"),
        inputs_quantize,
        launch_quantize,
        reference_quantize,
        ((1, 4), (33, 32), (300, 64)),
        tolerance={"out": Tol(1e-6, 1e-6)},
    ),
]
