"""Pointers to global, shared and local memory; private arrays with run-time indices."""

from __future__ import annotations

import numpy as np

from .harness import Arrays, Case, Runner, blocks_for

# ------------------------------------------------------------------------------------------------- pointers
POINTERS = r"""
// An array of pointers, one per row (jagged), as a batched routine gets it.
__global__ void sum_rows(const float* const* __restrict__ rows, const int* __restrict__ length,
                         float* const* __restrict__ out, int count)
{
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= count) return;
    float sum = 0;
    for (int i = 0; i < length[r]; ++i) sum += rows[r][i];
    *out[r] = sum;
}

__device__ __noinline__ float third(const float* p) { return p[0] + p[1] * 2 + p[2] * 3; }
__device__ __noinline__ void store(int* where, int what) { *where = what; }

// One pointer that is global for some threads, shared for some and local for others.
__global__ void generic(const float* __restrict__ x, float* __restrict__ out, int* __restrict__ marks, int n)
{
    __shared__ float s[66];
    __shared__ int shared_mark[64];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    s[t] = 10.0f * t;
    if (t < 2) s[64 + t] = -1.0f;
    __syncthreads();
    float mine[3] = {(float)i, 0.5f, 0.25f};
    const float* p = t % 3 == 0 ? &s[t] : (t % 3 == 1 && i + 2 < n ? &x[i] : mine);
    float v = third(p);
    int in_local = -5;
    int* q = t % 2 ? &shared_mark[t] : (i < n ? &marks[2 * i] : &in_local);
    store(q, 7 * i);
    if (i < n) {
        out[i] = v;
        marks[2 * i + 1] = t % 2 ? shared_mark[t] : *q + 1;
    }
}

struct Node { int value; Node* next; };

// A list in a pool, walked through generic pointers.
__global__ void link(Node* pool, const int* __restrict__ order, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    pool[order[i]].value = i * i;
    pool[order[i]].next = i + 1 < n ? &pool[order[i + 1]] : nullptr;
}

__global__ void walk(Node* pool, const int* __restrict__ order, int* __restrict__ sums, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int sum = 0, steps = 0;
    for (Node* p = &pool[order[i]]; p != nullptr && steps < 10; p = p->next, ++steps) sum += p->value;
    sums[i] = sum;
}
"""


def inputs_pointers(size: int, rng: np.random.Generator) -> Arrays:
    return {
        "length": rng.integers(0, 9, min(size, 12)).astype(np.int32),
        "x": rng.integers(-50, 50, max(size, 9)).astype(np.float32),
        "order": rng.permutation(size).astype(np.int32),
    }


def launch_pointers(gpu: Runner, size: int, length, x, order) -> Arrays:
    rows = [gpu.to_device(x[: max(1, k)]) for k in length]
    results = [gpu.full(1, -1, np.float32) for _ in length]
    tables = [np.array([int(a.buffer.handle) for a in arrays], np.uint64) for arrays in (rows, results)]
    count = np.int32(len(length))
    gpu.launch("sum_rows", 1, 32, gpu.to_device(tables[0]), gpu.to_device(length), gpu.to_device(tables[1]), count)
    dx, out, marks = gpu.to_device(x[:size]), gpu.empty(size, np.float32), gpu.zeros((size, 2), np.int32)
    n, grid = np.int32(size), blocks_for(size, 64)
    gpu.launch("generic", grid, 64, dx, out, marks, n)
    pool, device_order, sums = gpu.zeros((size, 2), np.uint64), gpu.to_device(order), gpu.empty(size, np.int32)
    gpu.launch("link", grid, 64, pool, device_order, n)
    gpu.launch("walk", grid, 64, pool, device_order, sums, n)
    return {
        "rows": np.concatenate([gpu.to_host(r) for r in results]),
        "out": gpu.to_host(out),
        "marks": gpu.to_host(marks),
        "sums": gpu.to_host(sums),
    }


def reference_pointers(size: int, length, x, order) -> Arrays:
    i, t = np.arange(size), np.arange(size) % 64
    padded = np.concatenate([x[:size], np.zeros(3, np.float32)])
    tile = np.concatenate([np.arange(64) * 10.0, [-1.0, -1.0]])
    from_shared = tile[t] + 2 * tile[t + 1] + 3 * tile[t + 2]
    from_global = padded[i] + 2 * padded[i + 1] + 3 * padded[i + 2]
    use_global = (t % 3 == 1) & (i + 2 < size)
    out = np.where(t % 3 == 0, from_shared, np.where(use_global, from_global, i + 1.75)).astype(np.float32)
    marks = np.stack([np.where(t % 2, 0, 7 * i), np.where(t % 2, 7 * i, 7 * i + 1)], axis=1).astype(np.int32)
    squares = np.append(i.astype(np.int64) ** 2, np.zeros(10, np.int64))
    sums = np.array([squares[k : k + 10].sum() for k in range(size)], np.int32)
    return {
        "rows": np.array([x[:k].sum() for k in length], np.float32),
        "out": out,
        "marks": marks,
        "sums": sums,
    }


# ----------------------------------------------------------------------------------------------- local arrays
LOCAL = r"""
// Insertion sort in a private array with run-time indices: it lives in local memory.
__global__ void sort_windows(const int* __restrict__ x, int* __restrict__ median, int* __restrict__ histogram, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int window[9], count = 0;
    for (int j = max(0, i - 4); j <= min(n - 1, i + 4); ++j) {
        int v = x[j], k = count++;
        while (k > 0 && window[k - 1] > v) {
            window[k] = window[k - 1];
            --k;
        }
        window[k] = v;
    }
    median[i] = window[count / 2];
    unsigned char bins[8] = {};
    for (int j = 0; j < count; ++j) ++bins[window[j] & 7];
    int packed = 0;
    for (int b = 0; b < 8; ++b) packed |= bins[b] << 4 * b;
    histogram[i] = packed;
}

__device__ __noinline__ void split(int v, int* quotient, int* remainder, int by)
{
    *quotient = v / by;
    *remainder = v % by;
}

struct State { int stack[12]; int top; };
__device__ __noinline__ void push(State* s, int v) { s->stack[s->top++] = v; }
__device__ __noinline__ int pop(State* s) { return s->stack[--s->top]; }

// Digits by way of an explicit stack, whose address travels through two calls.
__global__ void reverse_digits(const int* __restrict__ x, int* __restrict__ out, int base, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    State s;
    s.top = 0;
    int v = x[i];
    while (v > 0) {
        int digit;
        split(v, &v, &digit, base);
        push(&s, digit);
    }
    int result = 0;
    for (int scale = 1; s.top > 0; scale *= base) result += pop(&s) * scale;
    out[i] = result;
}
"""


def inputs_local(size: int, rng: np.random.Generator) -> Arrays:
    return {"x": rng.integers(0, 100_000, size).astype(np.int32)}


def launch_local(gpu: Runner, size: int, x: np.ndarray) -> Arrays:
    dx, n, grid = gpu.to_device(x), np.int32(size), blocks_for(size, 64)
    median, packed, turned = (gpu.empty(size, np.int32) for _ in range(3))
    gpu.launch("sort_windows", grid, 64, dx, median, packed, n)
    gpu.launch("reverse_digits", grid, 64, dx, turned, np.int32(10), n)
    return {"median": gpu.to_host(median), "bins": gpu.to_host(packed), "reversed": gpu.to_host(turned)}


def reference_local(size: int, x: np.ndarray) -> Arrays:
    windows = [np.sort(x[max(0, i - 4) : i + 5]) for i in range(size)]
    bins = [sum(int(c) << 4 * b for b, c in enumerate(np.bincount(w & 7, minlength=8))) for w in windows]
    return {
        "median": np.array([w[len(w) // 2] for w in windows], np.int32),
        "bins": np.array(bins, np.uint32).view(np.int32),
        "reversed": np.array([int(str(v)[::-1]) for v in x], np.int32),
    }


CASES = [
    Case(
        "pointers",
        POINTERS,
        ("sum_rows", "generic", "link", "walk"),
        inputs_pointers,
        launch_pointers,
        reference_pointers,
        (1, 33, 300),
    ),
    Case(
        "local_arrays",
        LOCAL,
        ("sort_windows", "reverse_digits"),
        inputs_local,
        launch_local,
        reference_local,
        (1, 33, 500),
    ),
]
