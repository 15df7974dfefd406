"""Atomics of all kinds, locks, flags between blocks, fences, cuda::atomic_ref."""

from __future__ import annotations

import numpy as np

from .elementwise import nothing
from .harness import Arrays, Case, Runner, blocks_for

# ------------------------------------------------------------------------------------------- every operation
ATOMICS = r"""
#include <cuda_fp16.h>

struct Slots {
    unsigned long long wide[9];                // add min max and or xor exch cas(multiply) signed-max
    double d;
    unsigned u[11];                            // add sub min max and or xor inc dec exch cas(multiply)
    int s[4];                                  // add min max cas(max of floats, as bits)
    float f[2];                                // add, exch
    __half2 h;
    __half h1;
};

__device__ void start(Slots& t)
{
    for (int k = 0; k < 9; ++k) t.wide[k] = k == 1 || k == 3 ? ~0ull : (k == 7 ? 1 : 0);
    for (int k = 0; k < 11; ++k) t.u[k] = k == 2 || k == 4 ? ~0u : (k == 10 ? 1 : 0);
    t.wide[8] = 1ull << 63;
    t.d = 0;
    for (int k = 0; k < 4; ++k) t.s[k] = 0;
    t.s[3] = 0xff800000;                       // minus infinity
    t.f[0] = t.f[1] = 0;
    t.h = __half2half2(__float2half(0.0f));
    t.h1 = __float2half(0.0f);
}

// Every operation once. Float sums are of small integers: exact in any order.
__device__ void update(Slots& t, int x, unsigned id, unsigned* tickets, unsigned* olds, unsigned long long* wide_olds)
{
    unsigned u = (unsigned)x * 2654435761u;
    unsigned long long w = (unsigned long long)u * 0x9E3779B97F4A7C15ull;
    *tickets = atomicAdd(&t.u[0], 1u);
    atomicSub(&t.u[1], u);
    atomicMin(&t.u[2], u);
    atomicMax(&t.u[3], u);
    atomicAnd(&t.u[4], u | 0xFF00FF00u);
    atomicOr(&t.u[5], u & 0x11223344u);
    atomicXor(&t.u[6], u);
    atomicInc(&t.u[7], 36u);
    atomicDec(&t.u[8], 40u);
    *olds = atomicExch(&t.u[9], id + 1);
    unsigned seen = t.u[10], assumed;
    do {
        assumed = seen;
        seen = atomicCAS(&t.u[10], assumed, assumed * (2 * u + 1));
    } while (seen != assumed);

    atomicAdd(&t.s[0], x);
    atomicMin(&t.s[1], x);
    atomicMax(&t.s[2], x);
    float value = x * 0.5f;
    int bits = t.s[3], expected;
    do {                                       // float maximum from a compare-and-swap
        expected = bits;
        if (__int_as_float(expected) >= value) break;
        bits = atomicCAS(&t.s[3], expected, __float_as_int(value));
    } while (bits != expected);

    atomicAdd(&t.wide[0], w);
    atomicMin(&t.wide[1], w);
    atomicMax(&t.wide[2], w);
    atomicAnd(&t.wide[3], w | 0xFF00FF00FF00FF00ull);
    atomicOr(&t.wide[4], w & 0x1122334411223344ull);
    atomicXor(&t.wide[5], w);
    *wide_olds = atomicExch(&t.wide[6], (unsigned long long)id + (1ull << 40));
    unsigned long long now = t.wide[7], before;
    do {
        before = now;
        now = atomicCAS(&t.wide[7], before, before * (2 * w + 1));
    } while (now != before);
    atomicMax((long long*)&t.wide[8], (long long)w);

    atomicAdd(&t.f[0], (float)x);
    atomicExch(&t.f[1], -7.5f);
    atomicAdd(&t.d, (double)x * 0.25);
    atomicAdd(&t.h, __floats2half2_rn((float)(x % 2), 1.0f - 2.0f * (id % 2)));
    atomicAdd(&t.h1, __float2half((float)(x % 3)));
}

__global__ void init(Slots* t) { start(*t); }

__global__ void atomics_global(Slots* t, const int* x, unsigned* tickets, unsigned* olds, unsigned long long* wide,
                               int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) update(*t, x[i], i, &tickets[i], &olds[i], &wide[i]);
}

__global__ void atomics_shared(Slots* out, const int* x, unsigned* tickets, unsigned* olds, unsigned long long* wide,
                               int n)
{
    __shared__ Slots t;
    if (threadIdx.x == 0) start(t);
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) update(t, x[i], i, &tickets[i], &olds[i], &wide[i]);
    __syncthreads();
    if (threadIdx.x == 0) *out = t;
}
"""
SLOTS = np.dtype(
    [("wide", np.uint64, 9), ("d", np.float64), ("u", np.uint32, 11), ("s", np.int32, 4), ("f", np.float32, 2),
     ("h", np.float16, 2), ("h1", np.float16), ("_", np.uint8, 6)]
)  # fmt: skip


def inputs_atomics(size: int, rng: np.random.Generator) -> Arrays:
    return {"x": rng.integers(-90, 90, size).astype(np.int32)}


def launch_atomics(gpu: Runner, size: int, x: np.ndarray) -> Arrays:
    out = {}
    for place, grid in (("global", blocks_for(size, 64)), ("shared", 1)):
        slots, dx = gpu.empty(1, SLOTS), gpu.to_device(x)
        tickets, olds, wide = gpu.empty(size, np.uint32), gpu.empty(size, np.uint32), gpu.empty(size, np.uint64)
        gpu.launch("init", 1, 1, slots)
        gpu.launch(f"atomics_{place}", grid, 64, slots, dx, tickets, olds, wide, np.int32(size))
        got = gpu.to_host(slots)[0]
        u, w = got["u"].copy(), got["wide"].copy()
        # exchanged values come out once each: the old ones and the last one
        out[f"{place}_tickets"] = np.sort(gpu.to_host(tickets))
        out[f"{place}_exchanged"] = np.sort(np.append(gpu.to_host(olds), u[9]))
        out[f"{place}_exchanged64"] = np.sort(np.append(gpu.to_host(wide), w[6]))
        u[9], w[6] = 0, 0
        out |= {f"{place}_u": u, f"{place}_wide": w}
        out |= {f"{place}_{key}": np.atleast_1d(got[key]).copy() for key in ("d", "s", "f", "h", "h1")}
    return out


def reference_atomics(size: int, x: np.ndarray) -> Arrays:
    u = [(int(v) * 2654435761) % 2**32 for v in x]
    w = [v * 0x9E3779B97F4A7C15 % 2**64 for v in u]

    def fold(values: list[int], bits: int) -> tuple[int, ...]:
        all_and, all_or, all_xor, product = 2**bits - 1, 0, 0, 1
        for v in values:
            all_and &= v | int("FF00" * (bits // 16), 16)
            all_or |= v & int("11223344" * (bits // 32), 16)
            all_xor ^= v
            product = product * (2 * v + 1) % 2**bits
        return all_and, all_or, all_xor, product

    a32, o32, x32, p32 = fold(u, 32)
    a64, o64, x64, p64 = fold(w, 64)
    signed = [v - 2**64 if v >= 2**63 else v for v in w]
    slots_u = [size, -sum(u) % 2**32, min(u), max(u), a32, o32, x32, size % 37, -size % 41, 0, p32]
    slots_w = [sum(w) % 2**64, min(w), max(w), a64, o64, x64, 0, p64, max(signed) % 2**64]
    top = np.float32(x.max() * 0.5).view(np.int32)
    ids = np.arange(size)
    remainder2, remainder3 = np.fmod(x, 2), np.fmod(x, 3)
    out = {}
    for place in ("global", "shared"):
        out |= {
            f"{place}_tickets": ids.astype(np.uint32),
            f"{place}_exchanged": np.arange(size + 1, dtype=np.uint32),
            f"{place}_exchanged64": np.append(np.uint64(0), ids.astype(np.uint64) + np.uint64(2**40)),
            f"{place}_u": np.array(slots_u, np.uint32),
            f"{place}_wide": np.array(slots_w, np.uint64),
            f"{place}_d": np.array([x.sum() * 0.25]),
            f"{place}_s": np.array([x.sum(), min(0, x.min()), max(0, x.max()), top], np.int32),
            f"{place}_f": np.array([x.sum(), -7.5], np.float32),
            f"{place}_h": np.array([remainder2.sum(), (1 - 2 * (ids % 2)).sum()], np.float16),
            f"{place}_h1": np.array([remainder3.sum()], np.float16),
        }
    return out


# ------------------------------------------------------------------------------------------------- spin lock
LOCK = r"""
__device__ void lock(int* mutex)
{
    while (atomicCAS(mutex, 0, 1) != 0) { }
    __threadfence();                           // see what the last holder wrote
}

__device__ void unlock(int* mutex)
{
    __threadfence();                           // others see what we wrote before the lock is free
    atomicExch(mutex, 0);
}

// Every thread takes the lock once; `total` is changed by plain loads and stores.
__global__ void count_locked(int* mutex, volatile long long* total, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    // The critical section stands inside the loop, so that this also works where a warp runs in lock step.
    bool done = false;
    while (!done) {
        if (atomicCAS(mutex, 0, 1) == 0) {
            __threadfence();
            total[0] = total[0] + i;
            total[1] = total[1] + 1;
            unlock(mutex);
            done = true;
        }
    }
}

// One thread per block, with the textbook lock.
__global__ void append_locked(int* mutex, volatile int* list, int n)
{
    if (threadIdx.x == 0) {
        lock(mutex);
        int end = list[0];
        list[1 + end] = blockIdx.x;
        list[0] = end + 1;
        unlock(mutex);
    }
}
"""


def launch_lock(gpu: Runner, size: int) -> Arrays:
    mutex, total = gpu.zeros(1, np.int32), gpu.zeros(2, np.int64)
    gpu.launch("count_locked", blocks_for(size, 48), 48, mutex, total, np.int32(size))
    listed = gpu.zeros(size + 1, np.int32)
    gpu.launch("append_locked", size, 32, mutex, listed, np.int32(size))
    got = gpu.to_host(listed)
    return {"total": gpu.to_host(total), "length": got[:1].copy(), "sorted": np.sort(got[1:])}


def reference_lock(size: int) -> Arrays:
    return {
        "total": np.array([size * (size - 1) // 2, size], np.int64),
        "length": np.array([size], np.int32),
        "sorted": np.arange(size, dtype=np.int32),
    }


# ---------------------------------------------------------------------------------- flags between the blocks
FLAGS = r"""
// Block b waits for its neighbour's flag, then adds its own part. STEP = -1: for the block before;
// STEP = +1: for the block after it, which may start later.
template <int STEP>
__global__ void chain(volatile int* flag, volatile long long* value, const int* __restrict__ x, int n)
{
    __shared__ long long before;
    int b = blockIdx.x, from = b + STEP;
    bool first = from < 0 || from >= (int)gridDim.x;
    if (threadIdx.x == 0) {
        if (!first)
            while (flag[from] == 0) { }
        __threadfence();
        before = first ? 0 : value[from];
    }
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) {
        value[b] = before * 3 + x[b];
        __threadfence();                       // the value first, the flag after it
        flag[b] = 1;
    }
}

// The last block to finish adds up what all blocks left: one launch instead of two.
__global__ void sum_last_block(const int* __restrict__ x, volatile int* partial, int* total, unsigned* finished, int n)
{
    __shared__ int s;
    __shared__ bool last;
    if (threadIdx.x == 0) s = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&s, x[i]);
    __syncthreads();
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = s;
        __threadfence();
        last = atomicInc(finished, gridDim.x - 1) == gridDim.x - 1;    // wraps to 0: ready for the next launch
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        int sum = 0;
        for (int b = 0; b < (int)gridDim.x; ++b) sum += partial[b];
        total[0] = sum;
    }
}
"""


def inputs_flags(size: int, rng: np.random.Generator) -> Arrays:
    return {"x": rng.integers(-1000, 1000, size).astype(np.int32)}


def launch_flags(gpu: Runner, size: int, x: np.ndarray) -> Arrays:
    out, dx = {}, gpu.to_device(x)
    for name, step in (("forward", -1), ("backward", 1)):
        flag, value = gpu.zeros(size, np.int32), gpu.zeros(size, np.int64)
        gpu.launch(f"chain<{step}>", size, 64, flag, value, dx, np.int32(size))
        out[name] = gpu.to_host(value)
    blocks = blocks_for(size, 32)
    partial, total, finished = gpu.zeros(blocks, np.int32), gpu.zeros(1, np.int32), gpu.zeros(1, np.uint32)
    for _ in range(2):
        gpu.launch("sum_last_block", blocks, 32, dx, partial, total, finished, np.int32(size))
    return out | {"total": gpu.to_host(total), "finished": gpu.to_host(finished)}


def reference_flags(size: int, x: np.ndarray) -> Arrays:
    def chain(values: list[int]) -> np.ndarray:
        out, before = [], 0
        for v in values:
            before = (before * 3 + v + 2**63) % 2**64 - 2**63
            out.append(before)
        return np.array(out, np.int64)

    values = [int(v) for v in x]
    return {
        "forward": chain(values),
        "backward": chain(values[::-1])[::-1].copy(),
        "total": x.sum(keepdims=True, dtype=np.int32),
        "finished": np.zeros(1, np.uint32),
    }


# --------------------------------------------------------------------------------------------- atomic_ref
ATOMIC_REF = r"""
#include <cuda/atomic>

__global__ void with_atomic_ref(int* counters, unsigned long long* wide, float* sum, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    cuda::atomic_ref<int, cuda::thread_scope_device> count(counters[0]), biggest(counters[1]), bits(counters[2]);
    count.fetch_add(2, cuda::memory_order_relaxed);
    biggest.fetch_max((i * 37) % 1001, cuda::memory_order_relaxed);
    bits.fetch_xor(i, cuda::memory_order_acq_rel);
    cuda::atomic_ref<unsigned long long, cuda::thread_scope_device> product(wide[0]);
    unsigned long long old = product.load(cuda::memory_order_relaxed);
    while (!product.compare_exchange_weak(old, old * 3 + 0, cuda::memory_order_acq_rel)) { }
    cuda::atomic_ref<float, cuda::thread_scope_device>(*sum).fetch_add(0.5f, cuda::memory_order_relaxed);
    cuda::atomic_ref<int, cuda::thread_scope_block>(counters[4 + blockIdx.x]).fetch_add(1);
}

// Block 0 waits (acquire) for what every other block announces (release).
__global__ void publish(int* data, int* ready, int* out)
{
    cuda::atomic_ref<int, cuda::thread_scope_device> arrived(*ready);
    int others = gridDim.x - 1;
    if (blockIdx.x > 0) {
        data[blockIdx.x] = blockIdx.x * blockIdx.x;
        arrived.fetch_add(1, cuda::memory_order_release);
        return;
    }
    while (arrived.load(cuda::memory_order_acquire) != others) { }
    int sum = 0;
    for (int b = 1; b <= others; ++b) sum += data[b];
    *out = sum;
    arrived.store(-1, cuda::memory_order_seq_cst);
}
"""


def launch_atomic_ref(gpu: Runner, size: int) -> Arrays:
    blocks = blocks_for(size, 64)
    counters, wide, total = gpu.zeros(4 + blocks, np.int32), gpu.full(1, 1, np.uint64), gpu.zeros(1, np.float32)
    gpu.launch("with_atomic_ref", blocks, 64, counters, wide, total, np.int32(size))
    data, ready, out = gpu.zeros(blocks + 1, np.int32), gpu.zeros(1, np.int32), gpu.zeros(1, np.int32)
    gpu.launch("publish", blocks + 1, 1, data, ready, out)
    arrays = {"counters": counters, "wide": wide, "total": total, "ready": ready, "published": out}
    return {key: gpu.to_host(array) for key, array in arrays.items()}


def reference_atomic_ref(size: int) -> Arrays:
    i = np.arange(size)
    per_block = np.bincount(i // 64)
    head = [2 * size, (i * 37 % 1001).max(), np.bitwise_xor.reduce(i), 0]
    blocks = per_block.size
    return {
        "counters": np.concatenate([head, per_block]).astype(np.int32),
        "wide": np.array([pow(3, size, 2**64)], np.uint64),
        "total": np.array([size * 0.5], np.float32),
        "ready": np.array([-1], np.int32),
        "published": np.array([sum(b * b for b in range(1, blocks + 1))], np.int32),
    }


CASES = [
    Case(
        "atomics_all",
        ATOMICS,
        ("init", "atomics_global", "atomics_shared"),
        inputs_atomics,
        launch_atomics,
        reference_atomics,
        (1, 31, 33, 500),
    ),
    Case("spin_lock", LOCK, ("count_locked", "append_locked"), nothing, launch_lock, reference_lock, (1, 33, 150)),
    Case(
        "block_flags",
        FLAGS,
        ("chain<-1>", "chain<1>", "sum_last_block"),
        inputs_flags,
        launch_flags,
        reference_flags,
        (1, 31, 100),
    ),
    Case(
        "atomic_ref",
        ATOMIC_REF,
        ("with_atomic_ref", "publish"),
        nothing,
        launch_atomic_ref,
        reference_atomic_ref,
        (1, 33, 500),
    ),
]
