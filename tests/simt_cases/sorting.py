"""Histogram with shared atomics, bitonic sort, one pass of a radix sort."""

from __future__ import annotations

import numpy as np

from .harness import Arrays, Case, Runner, blocks_for

HISTOGRAM = r"""
#define BINS 256

// Each block counts in its own shared bins, then adds them to the global ones.
__global__ void histogram(const unsigned char* __restrict__ data, unsigned* __restrict__ bins, int n)
{
    __shared__ unsigned local[BINS];
    for (int b = threadIdx.x; b < BINS; b += blockDim.x) local[b] = 0;
    __syncthreads();
    int stride = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) atomicAdd(&local[data[i]], 1u);
    __syncthreads();
    for (int b = threadIdx.x; b < BINS; b += blockDim.x)
        if (local[b]) atomicAdd(&bins[b], local[b]);
}
"""


def inputs_histogram(size: int, rng: np.random.Generator) -> Arrays:
    return {"data": np.clip(rng.normal(100, 30, size), 0, 255).astype(np.uint8)}


def launch_histogram(gpu: Runner, size: int, data: np.ndarray) -> Arrays:
    bins = gpu.zeros(256, np.uint32)
    gpu.launch("histogram", min(blocks_for(size, 128), 8), 128, gpu.to_device(data), bins, np.int32(size))
    return {"bins": gpu.to_host(bins)}


def reference_histogram(size: int, data: np.ndarray) -> Arrays:
    return {"bins": np.bincount(data, minlength=256).astype(np.uint32)}


BITONIC = r"""
#define BLOCK 256

// All steps whose partners lie within one block's 2 * BLOCK elements run in shared memory.
__global__ void bitonic_shared(float* __restrict__ keys, int size, int first_distance, bool sort_from_scratch)
{
    __shared__ float s[2 * BLOCK];
    int base = blockIdx.x * 2 * BLOCK, t = threadIdx.x;
    s[t] = keys[base + t];
    s[t + BLOCK] = keys[base + t + BLOCK];
    for (int k = sort_from_scratch ? 2 : size; k <= size; k *= 2)
        for (int distance = sort_from_scratch ? k / 2 : first_distance; distance > 0; distance /= 2) {
            __syncthreads();
            int low = 2 * t - (t & (distance - 1)), high = low + distance;
            bool up = ((base + low) & k) == 0;
            if ((s[low] > s[high]) == up) { float swap = s[low]; s[low] = s[high]; s[high] = swap; }
        }
    __syncthreads();
    keys[base + t] = s[t];
    keys[base + t + BLOCK] = s[t + BLOCK];
}

__global__ void bitonic_global(float* __restrict__ keys, int n, int size, int distance)
{
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    int low = 2 * t - (t & (distance - 1)), high = low + distance;
    if (high >= n) return;
    bool up = (low & size) == 0;
    float a = keys[low], b = keys[high];
    if ((a > b) == up) {
        keys[low] = b;
        keys[high] = a;
    }
}
"""


def inputs_bitonic(size: int, rng: np.random.Generator) -> Arrays:
    return {"keys": rng.permutation(size).astype(np.float32)}


def launch_bitonic(gpu: Runner, size: int, keys: np.ndarray) -> Arrays:
    padded = np.full(max(512, 1 << (size - 1).bit_length()), np.inf, np.float32)
    padded[:size] = keys
    n = padded.size
    device, blocks = gpu.to_device(padded), n // 512
    gpu.launch("bitonic_shared", blocks, 256, device, np.int32(512), np.int32(0), np.bool_(True))
    length = 1024
    while length <= n:
        distance = length // 2
        while distance > 256:
            gpu.launch("bitonic_global", blocks, 256, device, np.int32(n), np.int32(length), np.int32(distance))
            distance //= 2
        gpu.launch("bitonic_shared", blocks, 256, device, np.int32(length), np.int32(distance), np.bool_(False))
        length *= 2
    return {"keys": gpu.to_host(device)[:size].copy()}


def reference_bitonic(size: int, keys: np.ndarray) -> Arrays:
    return {"keys": np.sort(keys)}


RADIX = r"""
#define BITS 4
#define RADIX (1 << BITS)
#define BLOCK 128

// 1. How often does each digit occur in each block? counts[digit][block], so that a plain scan gives offsets.
__global__ void radix_count(const unsigned* __restrict__ keys, unsigned* __restrict__ counts, int n, int shift)
{
    __shared__ unsigned local[RADIX];
    if (threadIdx.x < RADIX) local[threadIdx.x] = 0;
    __syncthreads();
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) atomicAdd(&local[(keys[i] >> shift) & (RADIX - 1)], 1u);
    __syncthreads();
    if (threadIdx.x < RADIX) counts[threadIdx.x * gridDim.x + blockIdx.x] = local[threadIdx.x];
}

// 2. Exclusive scan of all counts, one block.
__global__ void radix_scan(unsigned* __restrict__ counts, int n)
{
    __shared__ unsigned s[2][BLOCK];
    unsigned carry = 0;
    for (int first = 0; first < n; first += BLOCK) {
        int i = first + threadIdx.x, from = 0;
        unsigned v = i < n ? counts[i] : 0;
        s[0][threadIdx.x] = v;
        __syncthreads();
        for (int offset = 1; offset < BLOCK; offset *= 2) {
            unsigned sum = s[from][threadIdx.x];
            if (threadIdx.x >= offset) sum += s[from][threadIdx.x - offset];
            s[1 - from][threadIdx.x] = sum;
            from = 1 - from;
            __syncthreads();
        }
        if (i < n) counts[i] = carry + s[from][threadIdx.x] - v;
        carry += s[from][BLOCK - 1];
        __syncthreads();
    }
}

// 3. Scatter, stable: the rank within the warp comes from match_any, the rank of the warp from earlier warps.
__global__ void radix_scatter(const unsigned* __restrict__ keys, const unsigned* __restrict__ values,
                              unsigned* __restrict__ keys_out, unsigned* __restrict__ values_out,
                              const unsigned* __restrict__ offsets, int n, int shift)
{
    __shared__ unsigned warp_counts[BLOCK / 32][RADIX];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = blockIdx.x * BLOCK + threadIdx.x;
    for (int k = threadIdx.x; k < BLOCK / 32 * RADIX; k += BLOCK) warp_counts[k / RADIX][k % RADIX] = 0;
    __syncthreads();
    bool valid = i < n;
    unsigned key = valid ? keys[i] : 0, digit = (key >> shift) & (RADIX - 1);
    unsigned peers = __match_any_sync(0xffffffffu, valid ? digit : RADIX);
    unsigned rank = __popc(peers & ((1u << lane) - 1));
    if (valid && rank == 0) warp_counts[warp][digit] = __popc(peers);
    __syncthreads();
    if (valid) {
        for (int w = 0; w < warp; ++w) rank += warp_counts[w][digit];
        unsigned to = offsets[digit * gridDim.x + blockIdx.x] + rank;
        keys_out[to] = key;
        values_out[to] = values[i];
    }
}
"""


def inputs_radix(size: int, rng: np.random.Generator) -> Arrays:
    return {"keys": rng.integers(0, 4096, size).astype(np.uint32)}


def launch_radix(gpu: Runner, size: int, keys: np.ndarray) -> Arrays:
    a = gpu.to_device(keys), gpu.to_device(np.arange(size, dtype=np.uint32))
    b = gpu.empty(size, np.uint32), gpu.empty(size, np.uint32)
    blocks = blocks_for(size, 128)
    counts = gpu.empty(16 * blocks, np.uint32)
    after_one = {}
    for shift in (0, 4, 8):
        n, s = np.int32(size), np.int32(shift)
        gpu.launch("radix_count", blocks, 128, a[0], counts, n, s)
        gpu.launch("radix_scan", 1, 128, counts, np.int32(16 * blocks))
        gpu.launch("radix_scatter", blocks, 128, *a, *b, counts, n, s)
        a, b = b, a
        if shift == 0:
            after_one = {"pass_keys": gpu.to_host(a[0]), "pass_values": gpu.to_host(a[1])}
    return after_one | {"keys": gpu.to_host(a[0]), "values": gpu.to_host(a[1])}


def reference_radix(size: int, keys: np.ndarray) -> Arrays:
    one, all_ = np.argsort(keys & 15, kind="stable"), np.argsort(keys, kind="stable")
    return {
        "pass_keys": keys[one],
        "pass_values": one.astype(np.uint32),
        "keys": keys[all_],
        "values": all_.astype(np.uint32),
    }


CASES = [
    Case(
        "histogram",
        HISTOGRAM,
        ("histogram",),
        inputs_histogram,
        launch_histogram,
        reference_histogram,
        (1, 31, 33, 20_000),
    ),
    Case(
        "bitonic_sort",
        BITONIC,
        ("bitonic_shared", "bitonic_global"),
        inputs_bitonic,
        launch_bitonic,
        reference_bitonic,
        (1, 33, 513, 3000),
    ),
    Case(
        "radix_pass",
        RADIX,
        ("radix_count", "radix_scan", "radix_scatter"),
        inputs_radix,
        launch_radix,
        reference_radix,
        (1, 31, 33, 5000),
    ),
]
