# %%
"""1.4.4 线程调度与优化策略 — Scheduling and optimization strategies

本节用六组“优化前/优化后”的核函数展示调度上的策略：消除发散、指令级并行、循环展开、访存并行、消除尾部、动态分配任务。
Six strategies, each as kernels before and after with the same result, and beside each gain the one worked out by hand.

要点
  线程束走两条分支，就要走两趟：让同束的通道走同一条（重排、块内按类型归组），或把分支变成数据（选择系数）。
  依赖上一条结果的算术指令要等约 4 个周期（Volta 起），访存要几百个：驻留线程束少时，用互相独立的指令链（ILP）填满等待。
  块数略多于一波，就多等一整波；任务长短不一，静态分配就等最慢的块：把任务切小，或让持久化的块从原子队列取任务。
Key idea
  A warp takes both ways of a branch unless its lanes agree: bring those together that agree, or make the branch data.
  What waits needs something independent to do: other warps, or other chains in the same thread. And what is dealt out
  in few large portions ends late: cut the work small, and let whoever is free take the next piece.

Run:      ./run 1.4.4     or     python ch01_cuda_basics/s1_4_4_scheduling_optimization.py [--size N] [--quick]
Look at:  the gain by hand beside the measured one (vs peer: the kernel before); where they differ, something counts
          that was left out by hand. Without a GPU: the active lanes, by hand, and what was recorded on a GPU.
"""

import heapq
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from common import gpu, results, timing
from common.cli import check_fits, header, not_run, parser, run_main

# in your own code: from cuda.core import Device, LaunchConfig, launch
from common.gpu import Device, LaunchConfig, launch
from common.profile import show_counts
from common.report import table
from common.results import Row
from common.verify import check, checks_table

NEEDS = ()

# %% The kernels
KERNEL = r"""
// ---- Divergence ----
// `rounds` steps that mix the bits of a number: work that takes as long as one asks for. (Without the shift, a compiler
// makes one step of several.)
__device__ __forceinline__ unsigned advance(unsigned s, unsigned a, unsigned c, int rounds)
{
    #pragma unroll 4
    for (int r = 0; r < rounds; ++r) s = (s ^ s >> 15) * a + c;
    return s;
}

// Before: numbers at even places go one way, those at odd places another. Every warp takes both ways, one after the
// other, each with half of its lanes.
extern "C" __global__ void by_lane(const unsigned* __restrict__ state, unsigned* __restrict__ out,
                                   long long n, int rounds)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    if (i % 2 == 0) out[i] = advance(state[i], 1664525u, 1013904223u, rounds);
    else            out[i] = advance(state[i], 22695477u, 1u, rounds);
}

// After: of each 64 numbers one warp takes those at even places, the next warp the others. No warp takes both ways.
extern "C" __global__ void by_warp(const unsigned* __restrict__ state, unsigned* __restrict__ out,
                                   long long n, int rounds)
{
    const long long t = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long i = t / 64 * 64 + t % 32 * 2 + t / 32 % 2;
    if (i >= n) return;
    if (i % 2 == 0) out[i] = advance(state[i], 1664525u, 1013904223u, rounds);
    else            out[i] = advance(state[i], 22695477u, 1u, rounds);
}

// After, where the ways differ in their data only: choose the data, and there is one way.
extern "C" __global__ void by_select(const unsigned* __restrict__ state, unsigned* __restrict__ out,
                                     long long n, int rounds)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = advance(state[i], i % 2 ? 22695477u : 1664525u, i % 2 ? 1u : 1013904223u, rounds);
}

// Four kinds of work, which the data choose.
__device__ __forceinline__ unsigned work(int kind, unsigned s, int rounds)
{
    switch (kind) {
    case 0:
        for (int r = 0; r < rounds; ++r) s = (s ^ s >> 15) * 1664525u + 1013904223u;
        break;
    case 1:
        for (int r = 0; r < rounds; ++r) s = ((s << 7 | s >> 25) ^ 1013904223u) * 1664525u;
        break;
    case 2:
        for (int r = 0; r < rounds; ++r) s = (s ^ (s >> 9 | 4097u)) * 22695477u + s;
        break;
    default:
        for (int r = 0; r < rounds; ++r) s = ((s << 19 | s >> 13) ^ s) * 2654435769u + 12345u;
    }
    return s;
}

// Before: a warp takes as many ways as there are kinds among its 32 numbers.
extern "C" __global__ void by_kind(const unsigned* __restrict__ state, const int* __restrict__ kind,
                                   unsigned* __restrict__ out, long long n, int rounds)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = work(kind[i], state[i], rounds);
}

// After: the block sorts its numbers by kind (a counting sort of their places, in shared memory), and thread t takes
// the one at place t. Only warps in which one kind ends and the next begins take more than one way.
extern "C" __global__ void grouped(const unsigned* __restrict__ state, const int* __restrict__ kind,
                                   unsigned* __restrict__ out, long long n, int rounds)
{
    __shared__ int count[4], order[1024];
    const int t = threadIdx.x;
    const long long begin = (long long)blockIdx.x * blockDim.x;
    if (t < 4) count[t] = 0;
    __syncthreads();
    const bool mine = begin + t < n;
    const int k = mine ? kind[begin + t] : 0;
    const int place = mine ? atomicAdd(&count[k], 1) : 0;  // among those of its kind, whose order does not matter
    __syncthreads();
    int first = 0;
    for (int smaller = 0; smaller < k; ++smaller) first += count[smaller];
    if (mine) order[first + place] = t;
    __syncthreads();
    if (begin + t < n) {  // as many places are taken as the block has numbers
        const long long i = begin + order[t];
        out[i] = work(kind[i], state[i], rounds);
    }
}

// ---- Instruction-level parallelism ----
// y = c0 + c1 x + ... + c7 x^7 + c0 x^8 + ..., `terms` of them, a multiple of 8. By Horner's scheme each step needs the
// one before it. Of K chains, chain k takes every K-th term and steps by x^K: K steps do not need each other.
template <int CHAINS>
__global__ void series(const float* __restrict__ x, float* __restrict__ y, long long n, int terms)
{
    constexpr float c[8] = {1.0f, 0.5f, 0.75f, 0.25f, 0.875f, 0.625f, 0.375f, 0.125f};
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float step = x[i], sum[CHAINS] = {};
    #pragma unroll
    for (int k = 1; k < CHAINS; k *= 2) step *= step;
    #pragma unroll 16  // so that the loop itself hardly counts
    for (int left = terms; left > 0; left -= 8)
        #pragma unroll
        for (int j = 7; j >= 0; --j) sum[j % CHAINS] = sum[j % CHAINS] * step + c[j];
    #pragma unroll
    for (int k = CHAINS - 2; k >= 0; --k) sum[CHAINS - 1] = sum[CHAINS - 1] * x[i] + sum[k];
    y[i] = sum[CHAINS - 1];
}

// ---- Unrolling ----
// y = 1 + x + x^2 + ...: a multiply-add for each term, and with UNROLL 1 as much again and more for the loop itself.
template <int UNROLL>
__global__ void geometric(const float* __restrict__ x, float* __restrict__ y, long long n, int terms)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float v = x[i];
    float sum = 0.0f;
    #pragma unroll UNROLL
    for (int j = 0; j < terms; ++j) sum = sum * v + 1.0f;
    y[i] = sum;
}

// ---- Loads in flight ----
// y = a x by float4. A thread issues LOADS loads before it waits for the first. Any grid covers any n: a block for each
// tile, or persistent blocks, as many as the GPU holds at a time. y may be x; and without __restrict__ the compiler has
// to leave the loads in front of the stores.
template <int LOADS>
__global__ void scale(const float* x, float* y, float a, long long n)
{
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long stride = (long long)gridDim.x * blockDim.x;
    const bool aligned = ((unsigned long long)x | (unsigned long long)y) % 16 == 0;
    const long long quads = aligned ? n / 4 : 0;
    const float4* const x4 = reinterpret_cast<const float4*>(x);
    float4* const y4 = reinterpret_cast<float4*>(y);
    long long q = first;
    for (; q + (LOADS - 1) * stride < quads; q += LOADS * stride) {
        float4 v[LOADS];
        #pragma unroll
        for (int k = 0; k < LOADS; ++k) v[k] = x4[q + k * stride];
        #pragma unroll
        for (int k = 0; k < LOADS; ++k)
            y4[q + k * stride] = make_float4(a * v[k].x, a * v[k].y, a * v[k].z, a * v[k].w);
    }
    for (; q < quads; q += stride) y4[q] = make_float4(a * x4[q].x, a * x4[q].y, a * x4[q].z, a * x4[q].w);
    for (long long i = 4 * quads + first; i < n; i += stride) y[i] = a * x[i];
}

// ---- Who takes which tile ----
// A tile: `pieces` numbers for each thread of a block, and for each number `rounds` steps. There are only whole tiles:
// state and out have tiles x pieces x blockDim.x numbers.
__device__ void do_tile(const unsigned* __restrict__ state, unsigned* __restrict__ out, long long tile, int pieces,
                        int rounds)
{
    for (int p = 0; p < pieces; ++p) {
        const long long i = (tile * pieces + p) * blockDim.x + threadIdx.x;
        out[i] = advance(state[i], 1664525u, 1013904223u, rounds);
    }
}

// Block b takes tiles b, b + blocks, b + 2 blocks, ...: one tile, where there is a block for each.
extern "C" __global__ void tiles_static(const unsigned* __restrict__ state, unsigned* __restrict__ out,
                                        const int* __restrict__ rounds, int tiles, int pieces)
{
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) do_tile(state, out, tile, pieces, rounds[tile]);
}

// A block that is free takes the next tile: *next counts them, from 0.
extern "C" __global__ void tiles_queue(const unsigned* __restrict__ state, unsigned* __restrict__ out,
                                       const int* __restrict__ rounds, int tiles, int pieces, int* next)
{
    __shared__ int shared_tile;
    while (true) {
        if (threadIdx.x == 0) shared_tile = atomicAdd(next, 1);
        __syncthreads();  // it is there for all
        const int tile = shared_tile;
        __syncthreads();  // all have read it, before thread 0 takes another
        if (tile >= tiles) return;
        do_tile(state, out, tile, pieces, rounds[tile]);
    }
}
"""
# The kernels of the templates, and the gain of each by hand, against the first:
CHAINS = {f"series<{k}>": min(k, 4) for k in (1, 2, 4, 8)}  # from Volta to Hopper a multiply-add takes 4 cycles
UNROLLS = {f"geometric<{k}>": (1 + 3) / (1 + 3 / k) for k in (1, 8)}  # a loop counts, compares and jumps
LOADS = {f"scale<{k}>": k for k in (1, 8)}  # as many loads in flight
BLOCK, GROUPED, TILE = 256, 1024, 128  # threads of a block: in general, of `grouped`, of the tiles
COEFFICIENTS = 1, 0.5, 0.75, 0.25, 0.875, 0.625, 0.375, 0.125
PARITY = (  # the steps of by_lane, by_warp and by_select
    lambda s: (s ^ s >> 15) * 1664525 + 1013904223,
    lambda s: (s ^ s >> 15) * 22695477 + 1,
)
KINDS = (  # those of by_kind and grouped
    PARITY[0],
    lambda s: ((s << 7 | s >> 25) ^ 1013904223) * 1664525,
    lambda s: (s ^ (s >> 9 | 4097)) * 22695477 + s,
    lambda s: ((s << 19 | s >> 13) ^ s) * 2654435769 + 12345,
)


# %% The references
def reference(state, steps, way, rounds):
    """`rounds` steps of each number, uint32, by the step that `way` says: each a number, or an array like state."""
    rounds = np.broadcast_to(rounds, state.shape)
    for r in range(rounds.max()):
        state = np.where(r < rounds, np.choose(way, [step(state) for step in steps]), state)
    return state


def reference_series(x, terms, coefficients):
    """The sum of coefficients[j % len] x^j over `terms` terms, float64."""
    return sum(coefficients[j % len(coefficients)] * x.astype(np.float64) ** j for j in range(terms))


# %% Worked out by hand
def ways(n, kind):
    """{kernel: the way that each thread of the launch takes, in the order of the warps}."""
    t = np.arange(n)
    grouped = np.concatenate([np.sort(kind[i : i + GROUPED]) for i in range(0, n, GROUPED)])
    return {"by_lane": t % 2, "by_warp": t // 32 % 2, "by_select": t * 0, "by_kind": kind, "grouped": grouped}


def passes(way):
    """How many passes all warps make: a warp takes every way that one of its 32 threads takes."""
    warps = np.pad(way, (0, -way.size % 32), mode="edge").reshape(-1, 32)
    return sum(int((warps == k).any(axis=1).sum()) for k in range(way.max() + 1))


def longest(costs, blocks, queue):
    """The costs of the block that ends last: the tiles dealt out in turn, or each to the block that is free first."""
    busy = [0] * blocks
    for tile, cost in enumerate(costs.tolist()):
        if queue:
            heapq.heapreplace(busy, busy[0] + cost)
        else:
            busy[tile % blocks] += cost
    return max(busy)


# %% The launches
class Group(NamedTuple):
    """Functions that enqueue the same work on the stream they are given, the first one as it is `before`."""

    row: dict  # what a Row has to know: size, dtype, bytes or flops
    calls: dict
    gains: dict  # how many times as fast as the first, by hand
    out: gpu.DeviceArray
    reference: Callable
    rtol: float = 0


compiled = cache(lambda: gpu.compile_module(KERNEL, (*CHAINS, *UNROLLS, *LOADS)))
get_kernel = cache(lambda name: compiled().get_kernel(name))


def launcher(name, grid, block, *arguments, shared=0):
    """A function that enqueues this launch."""
    config = LaunchConfig(grid=grid, block=block, shmem_size=shared)
    return lambda stream: launch(stream, config, get_kernel(name), *arguments)


def random_integers(n, end=2**32, dtype=np.uint32):
    return np.random.default_rng(144).integers(0, end, n, dtype=dtype)


def branches(stream, names, steps, n, rounds):
    """A branch, and ways around it."""
    state, kind = random_integers(n), random_integers(n, 4, np.int32)
    d_state, d_kind, out = gpu.to_device(state, stream), gpu.to_device(kind, stream), gpu.empty(n, np.uint32, stream)
    way, calls, count = ways(n, kind), {}, {}
    for name in names:
        block = GROUPED if name == "grouped" else BLOCK
        inputs = [d_state.buffer] + [d_kind.buffer] * (steps is KINDS)
        calls[name] = launcher(name, -(-n // block), block, *inputs, out.buffer, np.int64(n), np.int32(rounds))
        count[name] = passes(way[name])
    gains = {name: count[names[0]] / count[name] for name in names}  # as if no block waited for its slowest warp
    expected = partial(reference, state, steps, way[names[0]], rounds)
    return Group({"size": f"{n}, {rounds} rounds", "dtype": "u32"}, calls, gains, out, expected)


def polynomials(stream, gains, coefficients, n, terms):
    """A kernel for each of `gains`, with a thread for each of n numbers."""
    x = (1 + np.random.default_rng(8).uniform(-1, 1, n) / terms).astype(np.float32)  # near 1, where every term counts
    d_x, out = gpu.to_device(x, stream), gpu.empty(n, np.float32, stream)
    arguments = d_x.buffer, out.buffer, np.int64(n), np.int32(terms)
    calls = {name: launcher(name, -(-n // TILE), TILE, *arguments) for name in gains}
    rtol = 3 * terms * 2**-24  # each step rounds once, and x^K brings K roundings into each of terms / K steps
    row = {"size": f"{n}, {terms} terms", "dtype": "f32", "flops": 2 * n * terms}
    return Group(row, calls, gains, out, partial(reference_series, x, terms, coefficients), rtol)


def streaming(stream, n):
    """8 warps an SM with one load in flight each; and three ways to have more: in a thread, or by more warps."""
    x, sms = np.random.default_rng(5).standard_normal(n, dtype=np.float32), Device().properties.multiprocessor_count
    d_x, out = gpu.to_device(x, stream), gpu.empty(n, np.float32, stream)
    arguments = d_x.buffer, out.buffer, np.float32(1.5), np.int64(n)
    one, many = LOADS
    full = get_kernel(one).occupancy.max_active_blocks_per_multiprocessor(BLOCK, 0)  # blocks an SM
    grids = {f"{one}, 8 warps an SM": sms, f"{many}, 8 warps an SM": sms, f"{one}, persistent": full * sms}
    grids[f"{one}, a block for each tile"] = -(-n // (4 * BLOCK))
    calls = {name: launcher(name.partition(",")[0], grid, BLOCK, *arguments) for name, grid in grids.items()}
    gains = dict(zip(calls, (1, LOADS[many], full, full), strict=True))  # by as many more loads in flight
    row = {"size": f"{n}", "dtype": "f32", "bytes": 8 * n}
    return Group(row, calls, gains, out, lambda: x * np.float32(1.5))


def tiles(stream, costs, shapes):
    """Tiles of `costs` rounds: {name: (kernel, blocks, tiles, pieces of a tile)}.

    One block is on an SM at a time, with a warp for each of its four schedulers: a round takes as long everywhere.
    """
    properties, state, calls, last = Device().properties, random_integers(TILE * costs.size), {}, {}
    d_state, d_costs, taken = (gpu.to_device(a, stream) for a in (state, costs, np.zeros(1, np.int32)))
    out, shared = gpu.empty(state.size, np.uint32, stream), properties.max_shared_memory_per_multiprocessor // 2 + 1
    for name, (kernel, blocks, count, pieces) in shapes.items():
        queue = [taken.buffer] * (kernel == "tiles_queue")
        arguments = d_state.buffer, out.buffer, d_costs.buffer, np.int32(count), np.int32(pieces), *queue
        gpu.allow_shared_memory(get_kernel(kernel), shared)  # nobody uses it, but no second block fits beside it
        start = launcher(kernel, blocks, TILE, *arguments, shared=shared)

        def call(s, start=start, queue=queue):
            for counter in queue:
                counter.fill(0, stream=s)
            start(s)

        calls[name] = call
        # where each tile has a block, the hardware has a queue of them
        last[name] = longest(costs[:count] * pieces, properties.multiprocessor_count, queue or blocks == count)
    gains = {name: next(iter(last.values())) / end for name, end in last.items()}
    expected = partial(reference, state, PARITY, 0, np.repeat(costs, TILE))
    return Group({"size": f"{costs.size} × {TILE}", "dtype": "u32"}, calls, gains, out, expected)


def groups(stream, n=None):
    """All groups, one after the other: with n numbers, or (None) as large as the benchmark wants them."""
    sms = Device().properties.multiprocessor_count
    size = (n, 20) if n else (1 << 22, 256)
    yield branches(stream, ("by_lane", "by_warp", "by_select"), PARITY, *size)
    yield branches(stream, ("by_kind", "grouped"), KINDS, *size)

    few = TILE * sms  # threads: 4 warps an SM
    yield polynomials(stream, CHAINS, COEFFICIENTS, min(n or few, few), 64 if n else 1 << 17)
    yield polynomials(stream, UNROLLS, [1], n or 16 * few, 64 if n else 1 << 14)
    yield streaming(stream, n or 1 << min(28, (gpu.free_memory() // 32).bit_length() - 1))

    pieces, rounds = (4, 3) if n else (16, 2048)
    even, many = np.full((sms + 1) * pieces, rounds, np.int32), 8 * sms
    shapes = {"a wave and a block": ("tiles_static", sms + 1, sms + 1, pieces)}
    yield tiles(stream, even, shapes | {"small tiles": ("tiles_static", sms, even.size, 1)})
    uneven = rounds * np.where(np.random.default_rng(6).random(many) < 1 / 8, 16, 1).astype(np.int32)
    shapes = {"dealt out": ("tiles_static", sms, many, 1), "queue": ("tiles_queue", sms, many, 1)}
    yield tiles(stream, uneven, shapes | {"a block for each tile": ("tiles_static", many, many, 1)})


# %% Verify and measure
def verify(found, stream):
    """The checks of all kernels of the groups. Raises Mismatch if one is wrong."""
    checks = []
    for group in found:
        expected = group.reference()
        for name, call in group.calls.items():
            group.out.buffer.fill(0xFF, stream=stream)
            call(stream)
            checks.append(check(name, group.out.to_host(stream), expected, rtol=group.rtol))
    return checks


def benchmark() -> list[Row]:
    """All groups, each kernel against the first of its group, and beside that the gain by hand."""
    device, stream = gpu.open_device()
    yardsticks, rows = timing.yardsticks(device, stream), []
    verify(groups(stream, 100_003), stream)
    for group in groups(stream):
        times = timing.benchmark(group.calls, stream)
        first, before = next(iter(times.items()))
        most = before.seconds * yardsticks.copy_gbps * 1e9 / group.row.get("bytes", 1)  # as fast as a device copy
        what = {"section": "1.4.4", "yardsticks": yardsticks, "peer": (first, before), **group.row}
        for name, taken in times.items():
            figures, kernel = {"手算 by hand": min(group.gains[name], most)}, name.partition(",")[0]
            if "<" in kernel:
                figures["寄存器 registers"] = get_kernel(kernel).attributes.num_regs
            rows.append(Row.from_timing(name=name, timing=taken, figures=figures, **what))
    return rows


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=20_003, quick_size=5_003).parse_args(argv)
    n, (device, stream) = options.size, gpu.open_device()
    header(__doc__, device)
    check_fits(64 * n)
    found = list(groups(stream, n))
    checks_table(verify(found, stream))
    every = {name: passes(way) for name, way in ways(n, random_integers(n, 4, np.int32)).items()}
    lines = [(name, -(-n // 32), number, f"{n / (32 * number):.1%}") for name, number in every.items()]
    table("By hand, at this size: branches", ("kernel", "warps", "passes", "active lanes"), lines)
    lines = [  # what moves bytes gains until the bandwidth is full, and only a GPU has one
        (next(iter(g.calls)), name, "≤ " * ("bytes" in g.row) + f"{gain:.2f}×")
        for g in found
        for name, gain in list(g.gains.items())[1:]
    ]
    table("By hand, at this size: gains (≤: until the device's bandwidth is full)", ("before", "after", "gain"), lines)
    if options.bench:
        results.show(benchmark(), "Measured: 'vs peer' is the gain, to be held against 'by hand'")
    elif gpu.SIMULATED:
        calls = {name: partial(call, stream) for group in found[:2] for name, call in group.calls.items()}
        show_counts("Counted by the simulator: active threads for each instruction of a warp", calls)
        not_run("times: the simulator has no time")
        results.show_recorded("1.4.4")
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
