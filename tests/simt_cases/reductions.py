"""Reductions and scans in a block, over the grid, in one pass; softmax and layer norm; cooperative groups."""

from __future__ import annotations

import numpy as np

from .harness import Arrays, Case, Runner, Tol, blocks_for

SIZES = (1, 31, 33, 1000, 100_000)

REDUCE = r"""
// Halve the active threads each step; they stay side by side, so whole warps go idle.
__global__ void reduce_tree(const float* __restrict__ x, float* __restrict__ partial, int n)
{
    __shared__ float s[256];
    int tid = threadIdx.x, i = blockIdx.x * (2 * blockDim.x) + tid;
    float v = i < n ? x[i] : 0.0f;
    if (i + blockDim.x < n) v += x[i + blockDim.x];
    s[tid] = v;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (tid < half) s[tid] += s[tid + half];
        __syncthreads();
    }
    if (tid == 0) partial[blockIdx.x] = s[0];
}

__inline__ __device__ float warp_sum(float v)
{
    for (int offset = 16; offset > 0; offset /= 2) v += __shfl_down_sync(0xffffffffu, v, offset);
    return v;
}

__global__ void reduce_shuffle(const float* __restrict__ x, float* __restrict__ total, int n)
{
    __shared__ float s[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float v = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
    v = warp_sum(v);
    if (lane == 0) s[warp] = v;
    __syncthreads();
    if (warp == 0) {
        v = warp_sum(lane < blockDim.x / 32 ? s[lane] : 0.0f);
        if (lane == 0) atomicAdd(total, v);
    }
}
"""


def inputs_floats(size: int, rng: np.random.Generator) -> Arrays:
    return {"x": rng.uniform(0, 1, size).astype(np.float32)}


def launch_reduce(gpu: Runner, size: int, x: np.ndarray) -> Arrays:
    dx, blocks = gpu.to_device(x), blocks_for(size, 512)
    partial, total = gpu.empty(blocks, np.float32), gpu.zeros(1, np.float32)
    gpu.launch("reduce_tree", blocks, 256, dx, partial, np.int32(size))
    gpu.launch("reduce_shuffle", min(blocks_for(size, 256), 6), 256, dx, total, np.int32(size))
    return {"partial": gpu.to_host(partial), "total": gpu.to_host(total)}


def reference_reduce(size: int, x: np.ndarray) -> Arrays:
    padded = np.zeros(blocks_for(size, 512) * 512)
    padded[:size] = x
    partial = padded.reshape(-1, 512).sum(axis=1)
    return {"partial": partial.astype(np.float32), "total": padded.sum(keepdims=True).astype(np.float32)}


# --------------------------------------------------------------------------------------------- block scan
SCAN = r"""
// Inclusive scan of one block (Hillis and Steele within a warp, then over the warps' sums).
__device__ int block_scan(int v)
{
    __shared__ int warp_sums[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int offset = 1; offset < 32; offset *= 2) {
        int left = __shfl_up_sync(0xffffffffu, v, offset);
        if (lane >= offset) v += left;
    }
    if (lane == 31) warp_sums[warp] = v;
    __syncthreads();
    if (warp == 0) {
        int w = lane < blockDim.x / 32 ? warp_sums[lane] : 0;
        for (int offset = 1; offset < 32; offset *= 2) {
            int left = __shfl_up_sync(0xffffffffu, w, offset);
            if (lane >= offset) w += left;
        }
        warp_sums[lane] = w;
    }
    __syncthreads();
    return warp > 0 ? v + warp_sums[warp - 1] : v;
}

__global__ void scan_blocks(const int* __restrict__ in, int* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int v = block_scan(i < n ? in[i] : 0);     // every thread of the block takes part in the barriers
    if (i < n) out[i] = v;
}

// Single pass with decoupled look-back (Merrill and Garland, 2016). state[tile] packs a flag and a value in
// 64 bits, so that both become visible together: 1 = sum of the tile, 2 = sum of everything up to its end.
__global__ void scan_lookback(const int* __restrict__ in, int* __restrict__ out,
                              unsigned long long* __restrict__ state, unsigned* __restrict__ ticket, int n)
{
    __shared__ unsigned shared_tile;
    __shared__ int shared_before;
    if (threadIdx.x == 0) shared_tile = atomicAdd(ticket, 1u);   // in order of start, so waiting cannot hang
    __syncthreads();
    unsigned tile = shared_tile;
    long long i = (long long)tile * blockDim.x + threadIdx.x;
    int v = block_scan(i < n ? in[i] : 0);
    if (threadIdx.x == blockDim.x - 1) {
        unsigned long long flag = tile == 0 ? 2ull : 1ull;
        atomicExch(&state[tile], flag << 32 | (unsigned)v);
        int before = 0;
        for (int t = (int)tile - 1; t >= 0;) {
            unsigned long long s = *(volatile unsigned long long*)&state[t];
            if (s >> 32 == 0) continue;        // not there yet: look again
            before += (int)(unsigned)s;
            if (s >> 32 == 2) break;
            --t;
        }
        if (tile > 0) atomicExch(&state[tile], 2ull << 32 | (unsigned)(before + v));
        shared_before = before;
    }
    __syncthreads();
    if (i < n) out[i] = v + shared_before;
}
"""


def inputs_ints(size: int, rng: np.random.Generator) -> Arrays:
    return {"x": rng.integers(-100, 100, size).astype(np.int32)}


def launch_block_scan(gpu: Runner, size: int, x: np.ndarray) -> Arrays:
    dx, out, wide = gpu.to_device(x), gpu.empty(size, np.int32), gpu.empty(size, np.int32)
    gpu.launch("scan_blocks", blocks_for(size, 128), 128, dx, out, np.int32(size))
    gpu.launch("scan_blocks", blocks_for(size, 1024), 1024, dx, wide, np.int32(size))
    return {"out": gpu.to_host(out), "wide": gpu.to_host(wide)}


def reference_block_scan(size: int, x: np.ndarray) -> Arrays:
    def scan(block: int) -> np.ndarray:
        padded = np.zeros(blocks_for(size, block) * block, np.int32)
        padded[:size] = x
        return padded.reshape(-1, block).cumsum(axis=1, dtype=np.int32).ravel()[:size].copy()

    return {"out": scan(128), "wide": scan(1024)}


def launch_lookback(gpu: Runner, size: int, x: np.ndarray) -> Arrays:
    tiles = blocks_for(size, 128)
    out, state, ticket = gpu.empty(size, np.int32), gpu.zeros(tiles, np.uint64), gpu.zeros(1, np.uint32)
    gpu.launch("scan_lookback", tiles, 128, gpu.to_device(x), out, state, ticket, np.int32(size))
    return {"out": gpu.to_host(out)}


def reference_lookback(size: int, x: np.ndarray) -> Arrays:
    return {"out": np.cumsum(x, dtype=np.int32)}


# --------------------------------------------------------------------------------- softmax and layer norm
ROWWISE = r"""
#include <math_constants.h>

// One block, one row; a warp-shuffle reduction, then one over the warps. OP: 0 maximum, 1 sum.
template <int OP>
__device__ float block_reduce(float v)
{
    __shared__ float s[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int offset = 16; offset > 0; offset /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, v, offset);
        v = OP == 0 ? fmaxf(v, other) : v + other;
    }
    __syncthreads();                           // s may still be read from the previous call
    if (lane == 0) s[warp] = v;
    __syncthreads();
    v = s[0];
    for (int w = 1; w < warps; ++w) v = OP == 0 ? fmaxf(v, s[w]) : v + s[w];
    return v;
}

__global__ void softmax(const float* __restrict__ x, float* __restrict__ y, int cols)
{
    const float* row = x + (long long)blockIdx.x * cols;
    float* out = y + (long long)blockIdx.x * cols;
    float biggest = -CUDART_INF_F, sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) biggest = fmaxf(biggest, row[c]);
    biggest = block_reduce<0>(biggest);
    for (int c = threadIdx.x; c < cols; c += blockDim.x) sum += expf(row[c] - biggest);
    sum = block_reduce<1>(sum);
    for (int c = threadIdx.x; c < cols; c += blockDim.x) out[c] = expf(row[c] - biggest) / sum;
}

__global__ void layer_norm(const float* __restrict__ x, const float* __restrict__ gain,
                           const float* __restrict__ bias, float* __restrict__ y, int cols, float epsilon)
{
    const float* row = x + (long long)blockIdx.x * cols;
    float* out = y + (long long)blockIdx.x * cols;
    float sum = 0.0f, squares = 0.0f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) sum += row[c];
    float mean = block_reduce<1>(sum) / cols;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        float d = row[c] - mean;
        squares += d * d;
    }
    float scale = rsqrtf(block_reduce<1>(squares) / cols + epsilon);
    for (int c = threadIdx.x; c < cols; c += blockDim.x) out[c] = (row[c] - mean) * scale * gain[c] + bias[c];
}
"""


def inputs_rows(size: tuple[int, int], rng: np.random.Generator) -> Arrays:
    return {"x": (rng.standard_normal(size) * 4 + 2).astype(np.float32)}


def launch_softmax(gpu: Runner, size: tuple[int, int], x: np.ndarray) -> Arrays:
    y = gpu.empty(size, np.float32)
    gpu.launch("softmax", size[0], 128, gpu.to_device(x), y, np.int32(size[1]))
    return {"y": gpu.to_host(y)}


def reference_softmax(size: tuple[int, int], x: np.ndarray) -> Arrays:
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    return {"y": (e / e.sum(axis=1, keepdims=True)).astype(np.float32)}


def inputs_layer_norm(size: tuple[int, int], rng: np.random.Generator) -> Arrays:
    gain, bias = rng.uniform(0.5, 2, (2, size[1])).astype(np.float32)
    return inputs_rows(size, rng) | {"gain": gain, "bias": bias}


def launch_layer_norm(gpu: Runner, size: tuple[int, int], x, gain, bias) -> Arrays:
    y = gpu.empty(size, np.float32)
    device = [gpu.to_device(a) for a in (x, gain, bias)]
    gpu.launch("layer_norm", size[0], 96, *device, y, np.int32(size[1]), np.float32(1e-5))
    return {"y": gpu.to_host(y)}


def reference_layer_norm(size: tuple[int, int], x, gain, bias) -> Arrays:
    d = x.astype(np.float64) - x.mean(axis=1, keepdims=True, dtype=np.float64)
    y = d / np.sqrt((d**2).mean(axis=1, keepdims=True) + np.float32(1e-5)) * gain + bias
    return {"y": y.astype(np.float32)}


# --------------------------------------------------------------------------------------- cooperative groups
GROUPS = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

template <int TILE>
__global__ void tile_reduce(const int* __restrict__ x, int* __restrict__ sums, int* __restrict__ extremes, int n)
{
    auto block = cg::this_thread_block();
    auto tile = cg::tiled_partition<TILE>(block);
    int i = block.group_index().x * block.size() + block.thread_rank();
    int v = i < n ? x[i] : 0;
    int sum = cg::reduce(tile, v, cg::plus<int>());
    int top = v;
    for (int offset = tile.size() / 2; offset > 0; offset /= 2) top = max(top, tile.shfl_xor(top, offset));
    int group = i / TILE;
    if (tile.thread_rank() == 0 && group * TILE < n) {
        sums[group] = sum;
        extremes[group] = top;
    }
}

// Two grid-wide phases in one launch: every block adds its part, then all use the total.
__global__ void normalise(const int* __restrict__ x, int* __restrict__ y, int* __restrict__ total, int n)
{
    auto grid = cg::this_grid();
    for (int i = grid.thread_rank(); i < n; i += grid.size()) atomicAdd(total, x[i]);
    grid.sync();
    int sum = *(volatile int*)total;
    for (int i = grid.thread_rank(); i < n; i += grid.size()) y[i] = x[i] * 2 - sum;
    grid.sync();
    if (grid.thread_rank() == 0) total[1] = total[0] + (int)grid.num_blocks();
}

// Warp-aggregated atomics: the lanes that want a slot elect one to reserve them all.
__global__ void filter_positive(const int* __restrict__ x, int* __restrict__ out, int* __restrict__ count, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && x[i] > 0) {
        auto active = cg::coalesced_threads();
        int base = 0;
        if (active.thread_rank() == 0) base = atomicAdd(count, (int)active.size());
        base = active.shfl(base, 0);
        out[base + active.thread_rank()] = x[i];
    }
}
"""
GROUP_NAMES = ("tile_reduce<32>", "tile_reduce<8>", "normalise", "filter_positive")


def launch_tile_reduce(gpu: Runner, size: int, x: np.ndarray) -> Arrays:
    out, dx = {}, gpu.to_device(x)
    for tile in (32, 8):
        groups = blocks_for(size, tile)
        sums, tops = gpu.empty(groups, np.int32), gpu.empty(groups, np.int32)
        gpu.launch(f"tile_reduce<{tile}>", blocks_for(size, 128), 128, dx, sums, tops, np.int32(size))
        out |= {f"sum{tile}": gpu.to_host(sums), f"max{tile}": gpu.to_host(tops)}
    return out


def reference_tile_reduce(size: int, x: np.ndarray) -> Arrays:
    out = {}
    for tile in (32, 8):
        padded = np.zeros(blocks_for(size, tile) * tile, np.int32)
        padded[:size] = x
        rows = padded.reshape(-1, tile)
        out |= {f"sum{tile}": rows.sum(axis=1, dtype=np.int32), f"max{tile}": rows.max(axis=1)}
    return out


def launch_grid_sync(gpu: Runner, size: int, x: np.ndarray) -> Arrays:
    y, total = gpu.empty(size, np.int32), gpu.zeros(2, np.int32)
    gpu.launch("normalise", 6, 64, gpu.to_device(x), y, total, np.int32(size), cooperative=True)
    return {"y": gpu.to_host(y), "total": gpu.to_host(total)}


def reference_grid_sync(size: int, x: np.ndarray) -> Arrays:
    total = x.sum(dtype=np.int32)
    return {"y": x * np.int32(2) - total, "total": np.array([total, total + 6], np.int32)}


def launch_filter(gpu: Runner, size: int, x: np.ndarray) -> Arrays:
    out, count = gpu.zeros(size, np.int32), gpu.zeros(1, np.int32)
    gpu.launch("filter_positive", blocks_for(size, 128), 128, gpu.to_device(x), out, count, np.int32(size))
    found = int(gpu.to_host(count)[0])
    return {"sorted": np.sort(gpu.to_host(out)[:found]), "count": gpu.to_host(count)}


def reference_filter(size: int, x: np.ndarray) -> Arrays:
    positive = np.sort(x[x > 0])
    return {"sorted": positive, "count": np.array([positive.size], np.int32)}


SUM = Tol(1e-5, 1e-6, "a float32 sum against a float64 one")
EXP = Tol(
    1e-6, 1e-9, "expf uses ex2.approx, whose last bits differ between simulator and GPU; a sum over a row of them"
)

CASES = [
    Case(
        "reduce",
        REDUCE,
        ("reduce_tree", "reduce_shuffle"),
        inputs_floats,
        launch_reduce,
        reference_reduce,
        SIZES,
        {"partial": SUM, "total": SUM},
        gpu={"total": Tol(1e-6, 0, "blocks add their sums by a float atomic, in any order")},
    ),
    Case("block_scan", SCAN, ("scan_blocks",), inputs_ints, launch_block_scan, reference_block_scan, SIZES),
    Case("scan_lookback", SCAN, ("scan_lookback",), inputs_ints, launch_lookback, reference_lookback, SIZES),
    Case(
        "softmax",
        ROWWISE,
        ("softmax",),
        inputs_rows,
        launch_softmax,
        reference_softmax,
        ((1, 1), (3, 31), (5, 33), (40, 300), (300, 200)),
        {"y": Tol(5e-6, 1e-9)},
        gpu={"y": EXP},
    ),
    Case(
        "layer_norm",
        ROWWISE,
        ("layer_norm",),
        inputs_layer_norm,
        launch_layer_norm,
        reference_layer_norm,
        ((1, 1), (3, 31), (5, 33), (40, 300)),
        {"y": Tol(1e-5, 2e-5)},
        gpu={"y": Tol(1e-6, 1e-6, "rsqrt.approx differs in the last bit, then cancels against the bias")},
    ),
    Case("tile_reduce", GROUPS, GROUP_NAMES, inputs_ints, launch_tile_reduce, reference_tile_reduce, (1, 31, 33, 3000)),
    Case("grid_sync", GROUPS, GROUP_NAMES, inputs_ints, launch_grid_sync, reference_grid_sync, (1, 33, 3000)),
    Case(
        "warp_aggregated_atomics",
        GROUPS,
        GROUP_NAMES,
        inputs_ints,
        launch_filter,
        reference_filter,
        (1, 31, 33, 3000, 50_000),
    ),
]
