"""Warp operations: shuffles, votes, ballots, matches, reductions, partial masks, divergent use."""

from __future__ import annotations

import numpy as np

from .harness import Arrays, Case, Runner, blocks_for

BLOCK = 64


def inputs_warp(size: int, rng: np.random.Generator) -> Arrays:
    return {"x": rng.integers(0, 12, size).astype(np.int32)}


# ----------------------------------------------------------------------------------------------- shuffles
SHUFFLE = r"""
#define FULL 0xffffffffu

__global__ void shuffles(const int* __restrict__ x, int* __restrict__ out, double* __restrict__ wide, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    int v = i < n ? x[i] : 0;                  // nobody leaves: all lanes take part
    int r[12] = {__shfl_sync(FULL, v, 5),         __shfl_sync(FULL, v, lane * 7),      __shfl_sync(FULL, v, 3, 8),
                 __shfl_up_sync(FULL, v, 1),      __shfl_up_sync(FULL, v, 3, 16),      __shfl_down_sync(FULL, v, 2),
                 __shfl_down_sync(FULL, v, 5, 8), __shfl_xor_sync(FULL, v, 1),         __shfl_xor_sync(FULL, v, 17),
                 __shfl_xor_sync(FULL, v, 5, 8),  __shfl_sync(FULL, v, v),             __shfl_sync(FULL, v * 2, v, 4)};
    double d = __shfl_down_sync(FULL, v * 0.5, 1);
    long long w = __shfl_xor_sync(FULL, (long long)v << 35, 31);
    if (i >= n) return;
    for (int k = 0; k < 12; ++k) out[k * n + i] = r[k];
    wide[2 * i] = d;
    wide[2 * i + 1] = (double)w;
}

// Half the warp is elsewhere: only the lanes of the mask exchange.
__global__ void shuffle_in_branch(const int* __restrict__ x, int* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    int v = i < n ? x[i] : 0, r;
    if (lane < 16) {
        r = __shfl_xor_sync(0x0000ffffu, v, 3);
        r += __shfl_down_sync(0x0000ffffu, r, 1, 16);
    } else {
        r = __shfl_xor_sync(0xffff0000u, v * 100, 1);
        if (lane % 2) r += __shfl_sync(0xaaaa0000u, r, 16 + lane % 4);
    }
    __syncwarp();
    r += __shfl_xor_sync(FULL, r, 16);
    if (i < n) out[i] = r;
}
"""


def warps_of(size: int, x: np.ndarray) -> np.ndarray:
    padded = np.zeros(blocks_for(size, BLOCK) * BLOCK, np.int32)
    padded[:size] = x
    return padded.reshape(-1, 32)


def launch_shuffle(gpu: Runner, size: int, x: np.ndarray) -> Arrays:
    out, wide, branch = gpu.empty((12, size), np.int32), gpu.empty((size, 2), np.float64), gpu.empty(size, np.int32)
    dx, grid, n = gpu.to_device(x), blocks_for(size, BLOCK), np.int32(size)
    gpu.launch("shuffles", grid, BLOCK, dx, out, wide, n)
    gpu.launch("shuffle_in_branch", grid, BLOCK, dx, branch, n)
    return {"out": gpu.to_host(out), "wide": gpu.to_host(wide), "branch": gpu.to_host(branch)}


def reference_shuffle(size: int, x: np.ndarray) -> Arrays:
    v, lane = warps_of(size, x), np.arange(32)

    def read(source: np.ndarray, width: int = 32) -> np.ndarray:
        """Read lane `source` where it lies in the own segment (and in the warp), else keep the own value."""
        inside = (source >= 0) & (source < 32) & (source // width == lane // width)
        return np.where(inside, np.take_along_axis(v, np.broadcast_to(source % 32, v.shape), axis=1), v)

    def pick(index: np.ndarray, width: int, values: np.ndarray = v) -> np.ndarray:
        """`__shfl_sync`: the index counts within the segment and wraps."""
        return np.take_along_axis(values, np.broadcast_to(lane // width * width + index % width, v.shape), axis=1)

    rows = [
        pick(np.full(32, 5), 32), pick(lane * 7, 32), pick(np.full(32, 3), 8),
        read(lane - 1), read(lane - 3, 16), read(lane + 2), read(lane + 5, 8),
        read(lane ^ 1), read(lane ^ 17), read(lane ^ 5, 8), pick(v, 32), pick(v, 4, v * 2),
    ]  # fmt: skip
    out = np.stack([r.ravel()[:size] for r in rows]).astype(np.int32)
    wide = np.stack([read(lane + 1) * 0.5, (v[:, ::-1].astype(np.int64) << 35).astype(np.float64)], axis=2)

    low = v[:, :16][:, np.arange(16) ^ 3]
    low = low + np.concatenate([low[:, 1:], low[:, -1:]], axis=1)
    high = v[:, 16:][:, np.arange(16) ^ 1] * 100
    source = np.arange(16, 32) % 4
    high = np.where(np.arange(16) % 2 == 1, high + high[:, source], high)
    branch = np.concatenate([low, high], axis=1)
    branch = branch + np.concatenate([high, low], axis=1)
    return {"out": out, "wide": wide.reshape(-1, 2)[:size], "branch": branch.ravel()[:size].astype(np.int32)}


# ------------------------------------------------------------------------------- votes, matches, reductions
VOTES = r"""
#define FULL 0xffffffffu

__global__ void votes(const int* __restrict__ x, unsigned* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    int v = i < n ? x[i] : 0, same;
    unsigned r[13] = {
        __ballot_sync(FULL, v & 1), (unsigned)__any_sync(FULL, v == 11), (unsigned)__all_sync(FULL, v < 11),
        __match_any_sync(FULL, v), __match_all_sync(FULL, v / 12, &same), (unsigned)(same != 0),
        __reduce_add_sync(FULL, (unsigned)v), __reduce_min_sync(FULL, (unsigned)v + 3u),
        (unsigned)__reduce_max_sync(FULL, v - 20), __reduce_and_sync(FULL, v | 0xF0u), __reduce_or_sync(FULL, 1u << v),
        __reduce_xor_sync(FULL, 1u << v), __match_any_sync(FULL, (unsigned long long)v << 33)};
    // Only some lanes get here; they vote among themselves.
    unsigned busy = 0, partial = 0;
    if (v > 4) {
        busy = __activemask();
        partial = __ballot_sync(busy, lane % 3 == 0) | __reduce_add_sync(busy, 1) << 24;
    }
    if (i >= n) return;
    for (int k = 0; k < 13; ++k) out[k * n + i] = r[k];
    // What __activemask() says where lanes diverge is up to the device; that it holds the own lane is not.
    out[13 * n + i] = v > 4 ? (busy >> lane & 1) + ((partial & ~busy & 0x00ffffffu) == 0) * 2 : 0;
}

// Each lane takes a different path; the last lanes have left the kernel already.
__global__ void vote_after_exit(const int* __restrict__ x, unsigned* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned mask = __ballot_sync(FULL, i < n);
    if (i >= n) return;
    unsigned votes = __ballot_sync(mask, x[i] > 5);
    int leader = __ffs(mask) - 1, sum = __shfl_sync(mask, x[i], leader);
    out[i] = votes ^ (unsigned)sum << 8;
}
"""


def launch_votes(gpu: Runner, size: int, x: np.ndarray) -> Arrays:
    out, after = gpu.empty((14, size), np.uint32), gpu.empty(size, np.uint32)
    dx, grid, n = gpu.to_device(x), blocks_for(size, BLOCK), np.int32(size)
    gpu.launch("votes", grid, BLOCK, dx, out, n)
    gpu.launch("vote_after_exit", grid, BLOCK, dx, after, n)
    return {"out": gpu.to_host(out), "after": gpu.to_host(after)}


def reference_votes(size: int, x: np.ndarray) -> Arrays:
    v = warps_of(size, x).astype(np.int64)
    bits = 1 << np.arange(32, dtype=np.int64)

    def each(per_warp: np.ndarray) -> np.ndarray:
        return np.repeat(per_warp[:, None], 32, axis=1)

    match = ((v[:, :, None] == v[:, None, :]) * bits).sum(axis=2)
    everyone = np.full(v.shape[0], 0xFFFFFFFF)
    rows = [
        each(((v & 1) * bits).sum(axis=1)), each((v == 11).any(axis=1)), each((v < 11).all(axis=1)), match,
        each(everyone), each(everyone > 0), each(v.sum(axis=1)), each(v.min(axis=1) + 3), each(v.max(axis=1) - 20),
        each(np.bitwise_and.reduce(v | 0xF0, axis=1)), each(np.bitwise_or.reduce(1 << v, axis=1)),
        each(np.bitwise_xor.reduce(1 << v, axis=1)), match, np.where(v > 4, 3, 0),
    ]  # fmt: skip
    out = np.stack([(r.astype(np.int64) & 0xFFFFFFFF).ravel()[:size] for r in rows]).astype(np.uint32)
    valid = (np.arange(v.size) < size).reshape(v.shape)
    after = each(((valid & (v > 5)) * bits).sum(axis=1)) ^ each(v[:, 0]) << 8
    return {"out": out, "after": after.ravel()[:size].astype(np.uint32)}


CASES = [
    Case(
        "warp_shuffles",
        SHUFFLE,
        ("shuffles", "shuffle_in_branch"),
        inputs_warp,
        launch_shuffle,
        reference_shuffle,
        (1, 31, 33, 40_000),
    ),
    Case(
        "warp_votes",
        VOTES,
        ("votes", "vote_after_exit"),
        inputs_warp,
        launch_votes,
        reference_votes,
        (1, 31, 33, 40_000),
    ),
]
