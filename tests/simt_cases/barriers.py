"""Barriers of every kind, early exits, odd block sizes."""

from __future__ import annotations

import numpy as np

from .control import inputs_ints
from .harness import Arrays, Case, Runner, blocks_for

# ----------------------------------------------------------------------------------------------- barriers
BARRIERS = r"""
// Some threads leave before the barrier: it waits for those that remain.
__global__ void exit_before_barrier(const int* __restrict__ x, int* __restrict__ out, int keep, int n)
{
    __shared__ int s[128];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    s[t] = i < n ? x[i] : 0;
    __syncthreads();
    if (t >= keep || i >= n) return;
    int left = s[(t + 1) % 128];
    __syncthreads();
    s[t] = left + 1;
    __syncthreads();
    out[i] = s[t] + s[t ^ 0];
}

// One whole warp goes at once, others in the middle of a loop with a barrier in each turn.
__global__ void exit_in_loop(int* __restrict__ out)
{
    __shared__ int turns;
    int t = threadIdx.x, warp = t / 32;
    if (t == 0) turns = 0;
    __syncthreads();
    if (warp == 1) return;
    for (int turn = 0; turn < 6; ++turn) {
        if (warp == 3 && turn == 2) return;
        if (t == 0) ++turns;
        __syncthreads();
        out[blockIdx.x * blockDim.x + t] = turns * 10 + turn;
        __syncthreads();
    }
}

__global__ void counting_barriers(const int* __restrict__ x, int* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int v = i < n ? x[i] : 0;
    int odd = __syncthreads_count(v & 1);
    int all = __syncthreads_and(v < 9990);
    int any = __syncthreads_or(v == 4242 || v > 9995);
    if (i < n) out[i] = odd * 4 + (all != 0) * 2 + (any != 0);
}

// Named barriers: warps 0 and 1 produce, warps 2 and 3 consume; the producers never wait.
__global__ void producer_consumer(const int* __restrict__ x, int* __restrict__ out, int n)
{
    __shared__ int box[64];
    int t = threadIdx.x, i = blockIdx.x * 64 + t % 64;
    if (t < 64) {
        box[t] = i < n ? x[i] * 2 : 0;
        __threadfence_block();
        asm volatile("bar.arrive 1, 128;" ::: "memory");
    } else {
        asm volatile("bar.sync 1, 128;" ::: "memory");
        int v = box[63 - t % 64];
        asm volatile("bar.sync 2, 64;" ::: "memory");  // the consumers among themselves
        box[t % 64] = v + 1;
        asm volatile("bar.sync 2, 64;" ::: "memory");
        if (i < n) out[i] = box[t % 64 ^ 1];
    }
}

// The same barrier reached from both sides of a branch (by whole warps).
__global__ void two_sites(int* __restrict__ out)
{
    __shared__ int s[96];
    int t = threadIdx.x;
    s[t] = 0;
    if (t < 32) {
        s[t] = 1;
        __syncthreads();
        out[blockIdx.x * 96 + t] = s[t + 32] + s[t + 64];
    } else {
        s[t] = t;
        __syncthreads();
        out[blockIdx.x * 96 + t] = s[t - 32];
    }
}
"""


def launch_barriers(gpu: Runner, size: int, x: np.ndarray) -> Arrays:
    dx, n = gpu.to_device(x), np.int32(size)
    early, counted, boxes = (gpu.full(size, -1, np.int32) for _ in range(3))
    gpu.launch("exit_before_barrier", blocks_for(size, 128), 128, dx, early, np.int32(77), n)
    loops, sites = gpu.full((3, 140), -1, np.int32), gpu.full((2, 96), -1, np.int32)
    gpu.launch("exit_in_loop", 3, 140, loops)
    gpu.launch("counting_barriers", blocks_for(size, 100), 100, dx, counted, n)
    gpu.launch("producer_consumer", blocks_for(size, 64), 128, dx, boxes, n)
    gpu.launch("two_sites", 2, 96, sites)
    arrays = {"early": early, "loops": loops, "counted": counted, "boxes": boxes, "sites": sites}
    return {key: gpu.to_host(array) for key, array in arrays.items()}


def reference_barriers(size: int, x: np.ndarray) -> Arrays:
    def rows(block: int) -> np.ndarray:
        padded = np.zeros(blocks_for(size, block) * block, np.int32)
        padded[:size] = x
        return padded.reshape(-1, block)

    early = 2 * (np.roll(rows(128), -1, axis=1) + 1)
    early[:, 77:] = -1
    last_turn = np.full(140, 5)
    last_turn[96:128] = 1
    loops = (last_turn + 1) * 10 + last_turn
    loops[32:64] = -1
    v = rows(100)
    odd, all_, any_ = (v & 1).sum(axis=1), (v < 9990).all(axis=1), ((v == 4242) | (v > 9995)).any(axis=1)
    counted = np.repeat(odd * 4 + all_ * 2 + any_, 100)
    boxes = (rows(64) * 2)[:, ::-1] + 1
    site = np.concatenate([np.arange(32) + 32 + np.arange(32) + 64, np.ones(32), np.arange(32, 64)])
    return {
        "early": early.ravel()[:size].astype(np.int32),
        "loops": np.tile(loops, (3, 1)).astype(np.int32),
        "counted": counted[:size].astype(np.int32),
        "boxes": boxes[:, np.arange(64) ^ 1].ravel()[:size].astype(np.int32),
        "sites": np.tile(site, (2, 1)).astype(np.int32),
    }


# ------------------------------------------------------------------------------------- odd blocks, bounds
BLOCKS = r"""
__global__ void __launch_bounds__(256, 2) bounded(const int* __restrict__ x, int* __restrict__ out, int n)
{
    __shared__ int total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&total, x[i]);
    __syncthreads();
    if (i < n) out[i] = total;
}

// Scan by shared memory with any number of threads, not only powers of two.
__global__ void ragged_scan(const int* __restrict__ x, int* __restrict__ out, int n)
{
    __shared__ int s[1024];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    s[t] = i < n ? x[i] : 0;
    __syncthreads();
    for (unsigned d = 1; d < blockDim.x; d *= 2) {
        int add = t >= d ? s[t - d] : 0;
        __syncthreads();
        s[t] += add;
        __syncthreads();
    }
    if (i < n) out[i] = s[t];
}
"""
BLOCK_SIZES = (1, 7, 31, 33, 100, 250)


def launch_blocks(gpu: Runner, size: int, x: np.ndarray) -> Arrays:
    out, dx = {}, gpu.to_device(x)
    for block in BLOCK_SIZES:
        sums, scanned = gpu.empty(size, np.int32), gpu.empty(size, np.int32)
        gpu.launch("bounded", blocks_for(size, block), block, dx, sums, np.int32(size))
        gpu.launch("ragged_scan", blocks_for(size, block), block, dx, scanned, np.int32(size))
        out |= {f"sum{block}": gpu.to_host(sums), f"scan{block}": gpu.to_host(scanned)}
    return out


def reference_blocks(size: int, x: np.ndarray) -> Arrays:
    out = {}
    for block in BLOCK_SIZES:
        padded = np.zeros(blocks_for(size, block) * block, np.int32)
        padded[:size] = x
        rows = padded.reshape(-1, block)
        out[f"sum{block}"] = np.repeat(rows.sum(axis=1, dtype=np.int32), block)[:size].copy()
        out[f"scan{block}"] = rows.cumsum(axis=1, dtype=np.int32).ravel()[:size].copy()
    return out


CASES = [
    Case(
        "barriers",
        BARRIERS,
        ("exit_before_barrier", "exit_in_loop", "counting_barriers", "producer_consumer", "two_sites"),
        inputs_ints,
        launch_barriers,
        reference_barriers,
        (1, 33, 1000),
    ),
    Case("block_sizes", BLOCKS, ("bounded", "ragged_scan"), inputs_ints, launch_blocks, reference_blocks, (1, 33, 500)),
]
