# %%
"""1.4.3 线程同步与互斥 — Synchronization and mutual exclusion

本节先让一个直方图在数据竞争中出错，再用原子操作、私有副本、锁三种方法改正；还有栅栏、协作组与全网格同步。
A histogram that a data race makes wrong, and three cures: atomics, private copies, a lock. Barriers, from warp to grid.

要点
  栅栏让一组线程互相等待：__syncwarp 管线程束，__syncthreads 管线程块，grid.sync() 管整个网格（须协作启动）。
  “读、加一、写”不是一步：两个线程同时做，会丢掉一个。原子操作使它成为一步，私有副本使它无人可争，锁使它一次一人。
  锁的获取与释放要有内存序（acquire/release），取得锁的通道要在同一轮循环中干完并释放，同束的其他通道才有机会。
Key idea
  Threads that share data need an order. A barrier makes all wait for all; an atomic makes read, add and write one step;
  a private copy needs neither until the end; a lock lets one at a time do what no atomic can. Cheapest is not to share.

Run:      ./run 1.4.3     or     python ch01_cuda_basics/s1_4_3_synchronization.py [--size N] [--quick]
Look at:  the updates that the race lost in this very run. On a GPU: what skewed data costs each histogram; a lock
          against one atomic, and against looking before locking; many launches against one with barriers of the grid.
"""

from functools import cache, partial
from itertools import product

import numpy as np

from common import gpu, timing
from common.cli import check_fits, header, parser, run_main

# in your own code: from cuda.core import Device, LaunchConfig, launch
from common.gpu import Device, LaunchConfig, launch
from common.report import table
from common.results import Row, measure
from common.verify import check, checks_table

NEEDS = ()

# %% The kernels
KERNEL = r"""
#include <cooperative_groups.h>
#include <cuda/atomic>
namespace cg = cooperative_groups;
constexpr int BLOCK = 256, BINS = 256;  // threads of a block, and bins of a histogram

// ---- Barriers ----
// The running sum within each block, by Hillis and Steele: after the step of `offset`, sums[t] holds the last 2 offset
// elements up to t. Threads past the end take part: a barrier waits for every thread of the block.
extern "C" __global__ void block_scan(const int* __restrict__ x, int* __restrict__ out, long long n)
{
    __shared__ int sums[BLOCK];
    const long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
    const int t = threadIdx.x;
    sums[t] = i < n ? x[i] : 0;
    __syncthreads();  // all have written, before anybody reads
    for (int offset = 1; offset < BLOCK; offset *= 2) {
        const int before = t >= offset ? sums[t - offset] : 0;
        __syncthreads();  // all have read, before anybody writes
        sums[t] += before;
        __syncthreads();
    }
    if (i < n) out[i] = sums[t];
}

// The same within each warp. __syncwarp() lets its 32 lanes wait for each other, and orders what they did to memory:
// lanes do not run in step by themselves.
extern "C" __global__ void warp_scan(const int* __restrict__ x, int* __restrict__ out, long long n)
{
    __shared__ int of_block[BLOCK];
    const long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
    const int lane = threadIdx.x % 32;
    int* const sums = of_block + threadIdx.x - lane;
    sums[lane] = i < n ? x[i] : 0;
    __syncwarp();
    for (int offset = 1; offset < 32; offset *= 2) {
        const int before = lane >= offset ? sums[lane - offset] : 0;
        __syncwarp();
        sums[lane] += before;
        __syncwarp();
    }
    if (i < n) out[i] = sums[lane];
}

// A barrier that counts: how many of a block's elements are positive.
extern "C" __global__ void block_count(const int* __restrict__ x, int* __restrict__ out, long long n)
{
    const long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
    const int positive = __syncthreads_count(i < n && x[i] > 0);
    if (threadIdx.x == 0) out[blockIdx.x] = positive;
}

// ---- A histogram: how often each value from 0 to BINS - 1 occurs; others are not counted ----
// WRONG: reads, adds, writes. Who reads before another has written what it made of the same count loses an update.
extern "C" __global__ void histogram_race(const int* __restrict__ x, unsigned* counts, long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && (unsigned)x[i] < BINS) counts[x[i]] += 1;
}

// Cure 1: read, add and write in one step, which the L2 cache does.
extern "C" __global__ void histogram_global(const int* __restrict__ x, unsigned* counts, long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && (unsigned)x[i] < BINS) atomicAdd(&counts[x[i]], 1u);
}

// The lanes of a warp that hold the same value form a group, and its first lane adds for all of them.
extern "C" __global__ void histogram_aggregated(const int* __restrict__ x, unsigned* counts, long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && (unsigned)x[i] < BINS) {
        const auto same = cg::labeled_partition(cg::coalesced_threads(), x[i]);
        if (same.thread_rank() == 0) atomicAdd(&counts[x[i]], same.num_threads());
    }
}

// A copy for each block, in shared memory; each is added to the result once.
extern "C" __global__ void histogram_shared(const int* __restrict__ x, unsigned* counts, long long n)
{
    __shared__ unsigned mine[BINS];
    for (int b = threadIdx.x; b < BINS; b += blockDim.x) mine[b] = 0;
    __syncthreads();
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        if ((unsigned)x[i] < BINS) atomicAdd(&mine[x[i]], 1u);
    __syncthreads();
    for (int b = threadIdx.x; b < BINS; b += blockDim.x) atomicAdd(&counts[b], mine[b]);
}

// The version to ship: the same, but one load brings four elements.
extern "C" __global__ void histogram_vectorized(const int* __restrict__ x, unsigned* counts, long long n)
{
    __shared__ unsigned mine[BINS];
    for (int b = threadIdx.x; b < BINS; b += blockDim.x) mine[b] = 0;
    __syncthreads();
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long stride = (long long)gridDim.x * blockDim.x;
    const long long quads = (unsigned long long)x % 16 == 0 ? n / 4 : 0;
    const auto count = [](int v) { if ((unsigned)v < BINS) atomicAdd(&mine[v], 1u); };
    for (long long q = first; q < quads; q += stride) {
        const int4 v = reinterpret_cast<const int4*>(x)[q];
        count(v.x), count(v.y), count(v.z), count(v.w);
    }
    for (long long i = 4 * quads + first; i < n; i += stride) count(x[i]);
    __syncthreads();
    for (int b = threadIdx.x; b < BINS; b += blockDim.x) atomicAdd(&counts[b], mine[b]);
}

// Cure 2, without any atomic: a copy for each thread. Blocks of 32; a thread's counters lie in a bank of their own.
// partial has a row for each bin and a column for each block: sum_rows makes the histogram of it.
extern "C" __global__ void histogram_private(const int* __restrict__ x, unsigned* __restrict__ partial, long long n)
{
    __shared__ unsigned mine[BINS][32];
    const int t = threadIdx.x;
    for (int b = 0; b < BINS; ++b) mine[b][t] = 0;
    const long long stride = (long long)gridDim.x * 32;
    #pragma unroll 8  // so that 8 loads are on their way
    for (long long i = (long long)blockIdx.x * 32 + t; i < n; i += stride)
        if ((unsigned)x[i] < BINS) mine[x[i]][t] += 1;
    __syncwarp();
    for (int b = t; b < BINS; b += 32) {
        unsigned sum = 0;
        for (int k = 0; k < 32; ++k) sum += mine[b][(t + k) % 32];  // each lane begins at another bank
        partial[(long long)b * gridDim.x + blockIdx.x] = sum;
    }
}

// Cooperative groups: a tile of 32 threads for each row adds up its columns.
extern "C" __global__ void sum_rows(const unsigned* __restrict__ x, unsigned* __restrict__ sums, int rows, int columns)
{
    const auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    const int row = blockIdx.x * tile.meta_group_size() + tile.meta_group_rank();
    if (row >= rows) return;  // a whole tile at a time: nobody waits for it
    unsigned sum = 0;
    for (int c = tile.thread_rank(); c < columns; c += 32) sum += x[(long long)row * columns + c];
    for (int offset = 16; offset > 0; offset /= 2) sum += tile.shfl_down(sum, offset);
    if (tile.thread_rank() == 0) sums[row] = sum;
}

// ---- A lock ----
// One attempt: if the lock is free, takes it, runs `update` and gives it back. Called in a loop that does nothing else.
// The trap is a loop that waits for the lock, with the work behind it: where the lanes of a warp run in step (before
// Volta) the one that got the lock waits at the end of the loop for those that wait for the lock.
template <class Update>
__device__ bool try_with_lock(int* lock, Update update)
{
    cuda::atomic_ref<int, cuda::thread_scope_device> taken(*lock);
    int expected = 0;
    if (!taken.compare_exchange_strong(expected, 1, cuda::memory_order_acquire)) return false;
    update();  // sees all that holders before it wrote: they released what was acquired here
    taken.store(0, cuda::memory_order_release);
    return true;
}

// Cure 3: one at a time.
extern "C" __global__ void histogram_locked(const int* __restrict__ x, unsigned* counts, int* locks, long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && (unsigned)x[i] < BINS)
        while (!try_with_lock(&locks[x[i]], [&] { counts[x[i]] += 1; })) {}
}

// In each bucket the largest value and where it stands, of equals the first. The two words are one thing, and too large
// for an atomic of 64 bits; so each bucket has a lock.
struct Best { long long place; unsigned value; int lock; };  // place: 1 + the index; 0 before there is a value
using Value = cuda::atomic_ref<unsigned, cuda::thread_scope_device>;

__device__ bool try_improve(Best* best, unsigned value, long long place)
{
    return try_with_lock(&best->lock, [=] {
        if (best->place == 0 || value > best->value || (value == best->value && place < best->place)) {
            Value(best->value).store(value, cuda::memory_order_relaxed);  // others may look at it meanwhile
            best->place = place;
        }
    });
}

extern "C" __global__ void best_lock(const unsigned* __restrict__ value, const int* __restrict__ bucket, Best* best,
                                     long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && (unsigned)bucket[i] < BINS)
        while (!try_improve(&best[bucket[i]], value[i], i + 1)) {}
}

// Looks before each attempt: the best value only grows, so one that is too small even for an old one can go.
extern "C" __global__ void best_look_first(const unsigned* __restrict__ value, const int* __restrict__ bucket,
                                           Best* best, long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || (unsigned)bucket[i] >= BINS) return;
    Best* const mine = &best[bucket[i]];
    while (value[i] >= Value(mine->value).load(cuda::memory_order_relaxed) && !try_improve(mine, value[i], i + 1)) {}
}

// Where an index has 32 bits, both fit into 64, and an atomic does it: the larger value wins, then the smaller index.
extern "C" __global__ void best_atomic(const unsigned* __restrict__ value, const int* __restrict__ bucket,
                                       unsigned long long* best, unsigned n)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && (unsigned)bucket[i] < BINS) atomicMax(&best[bucket[i]], (unsigned long long)value[i] << 32 | ~i);
}

// ---- A barrier for the grid ----
// One step of smoothing a row of numbers below 2^29, whose ends stay.
__device__ void smooth(const int* in, int* out, long long n, long long first, long long stride)
{
    for (long long i = first; i < n; i += stride)
        out[i] = i == 0 || i == n - 1 ? in[i] : (in[i - 1] + 2 * in[i] + in[i + 1]) / 4;
}

// A launch for each step: the next one begins when all blocks of this one have ended.
extern "C" __global__ void smooth_step(const int* in, int* out, long long n)
{
    smooth(in, out, n, (long long)blockIdx.x * blockDim.x + threadIdx.x, (long long)gridDim.x * blockDim.x);
}

// All steps in one launch. Every block has to be there while all wait for all: hence the cooperative launch, which
// refuses a grid of more blocks than the GPU holds at a time. An even number of steps ends in a, an odd one in b.
extern "C" __global__ void smooth_cooperative(int* a, int* b, long long n, int steps)
{
    const cg::grid_group grid = cg::this_grid();
    for (int s = 0; s < steps; ++s) {
        smooth(s % 2 ? b : a, s % 2 ? a : b, n, grid.thread_rank(), grid.num_threads());
        grid.sync();
    }
}
"""
BLOCK, BINS = 256, 256
LOOPS = "histogram_shared", "histogram_vectorized", "histogram_private", "smooth_cooperative"  # which take any grid
CURES = "global", "aggregated", "shared", "vectorized", "private", "locked"  # the histograms that are right
DATA = "uniform", "skewed"
BESTS = "best_lock", "best_look_first", "best_atomic"
WIDTHS = {"block": BLOCK, "warp": 32}  # of the two scans
BEST = np.dtype([("place", "i8"), ("value", "u4"), ("lock", "i4")])
SMOOTHS = {"a launch for each step": False, "one cooperative launch": True}


# %% The references
def reference_scan(x, width):
    """The running sums within each `width` elements, int32."""
    return np.concatenate([x[i : i + width].cumsum(dtype=np.int32) for i in range(0, x.size, width)])


def reference_histogram(x):
    """How often each value from 0 to BINS - 1 occurs, uint32."""
    return np.bincount(x[(x >= 0) & (x < BINS)], minlength=BINS).astype(np.uint32)


def reference_best(value, bucket, buckets):
    """(index of the first largest value, int64; that value, uint32) of each bucket; (-1, 0) where there is none."""
    members = [np.flatnonzero(bucket == b) for b in range(buckets)]
    index = np.array([m[value[m].argmax()] if m.size else -1 for m in members])
    return index, np.where(index < 0, 0, value[index]).astype(np.uint32)


def reference_smooth(x, steps):
    """int32, of numbers from 0 to 2^29 - 1."""
    for _ in range(steps):
        x = np.concatenate([x[:1], (x[:-2] + 2 * x[1:-1] + x[2:]) // 4, x[1:][-1:]])
    return x


# %% The launches: each function gives (a function that enqueues the work on a stream, where the result will be)
compiled = cache(lambda: gpu.compile_module(KERNEL))
get_kernel = cache(lambda name: compiled().get_kernel(name))


def on_device(stream, x, dtype=np.int32):
    """x, unless it is there already. ValueError unless it is of that dtype, of shape (n,), and not empty."""
    if x.dtype != dtype or len(x.shape) != 1 or x.size == 0:
        raise ValueError(f"expected {np.dtype(dtype)} of shape (n,), not empty, got {x.dtype} of shape {x.shape}")
    return x if isinstance(x, gpu.DeviceArray) else gpu.to_device(x, stream)


def blocks_for(name, n, threads=BLOCK):
    """A thread for each element; where a kernel loops, no more blocks than the GPU holds at a time."""
    if name not in LOOPS:
        return -(-n // threads)
    on_sm = get_kernel(name).occupancy.max_active_blocks_per_multiprocessor(threads, 0)
    return min(-(-n // threads), Device().properties.multiprocessor_count * on_sm)


def by_block(stream, x, name):
    """int32 (n,) to int32: `block_scan` and `warp_scan` give (n,), `block_count` a number for each block."""
    d_x, blocks = on_device(stream, x), blocks_for(name, x.size)
    config, out = LaunchConfig(grid=blocks, block=BLOCK), gpu.empty(blocks if "count" in name else x.size, "i4", stream)
    return lambda s: launch(s, config, get_kernel(name), d_x.buffer, out.buffer, np.int64(x.size)), out


def histogram(stream, x, kind="vectorized"):
    """How often each value from 0 to BINS - 1 occurs in x, int32 (n,): uint32 (BINS,), by one of CURES, or "race"."""
    name, n, threads = f"histogram_{kind}", np.int64(x.size), 32 if kind == "private" else BLOCK
    d_x, blocks = on_device(stream, x), blocks_for(name, x.size, threads)
    config, rows = LaunchConfig(grid=blocks, block=threads), LaunchConfig(grid=BINS * 32 // BLOCK, block=BLOCK)
    counts, locks = gpu.empty(BINS, np.uint32, stream), gpu.zeros(BINS, np.int32, stream)
    parts = gpu.empty((BINS, blocks), np.uint32, stream)

    def add_up(s):
        counts.buffer.fill(0, stream=s)
        launch(s, config, get_kernel(name), d_x.buffer, counts.buffer, *[locks.buffer] * (kind == "locked"), n)

    def add_up_private(s):
        launch(s, config, get_kernel(name), d_x.buffer, parts.buffer, n)
        launch(s, rows, get_kernel("sum_rows"), parts.buffer, counts.buffer, np.int32(BINS), np.int32(blocks))

    return add_up_private if kind == "private" else add_up, counts


def best(stream, value, bucket, name):
    """The largest value, uint32 (n,), in each bucket, int32 (n,) from 0 to BINS - 1, and its place: see `unpacked`."""
    if not value.size == bucket.size < 2**32:
        raise ValueError(f"expected a bucket for each value, got {bucket.shape} and {value.shape}")
    inputs, packed = (on_device(stream, value, np.uint32), on_device(stream, bucket)), name == "best_atomic"
    out, n = gpu.empty(BINS, np.uint64 if packed else BEST, stream), (np.uint32 if packed else np.int64)(value.size)
    config = LaunchConfig(grid=blocks_for(name, value.size), block=BLOCK)

    def find(s):
        out.buffer.fill(0, stream=s)
        launch(s, config, get_kernel(name), *(d.buffer for d in inputs), out.buffer, n)

    return find, out


def unpacked(found):
    """(index, int64; value, uint32) of each bucket, from what one of BESTS found; (-1, 0) where there is none."""
    if found.dtype == BEST:
        return found["place"] - 1, found["value"]
    index = (~found & 0xFFFFFFFF).astype(np.int64)
    return np.where(found == 0, -1, index), (found >> 32).astype(np.uint32)


def smooth(stream, x, steps, cooperative=True):
    """x, int32 (n,) of numbers from 0 to 2^29 - 1, smoothed; what is on the device already is overwritten. ValueError
    for steps below 0."""
    if steps < 0:
        raise ValueError(f"smoothing takes 0 steps or more, got {steps}")
    name, ends = "smooth_cooperative" if cooperative else "smooth_step", [on_device(stream, x)]
    ends.append(gpu.empty(x.size, np.int32, stream))
    config = LaunchConfig(grid=blocks_for(name, x.size), block=BLOCK, is_cooperative=cooperative)
    last = np.int64(x.size), *[np.int32(steps)] * cooperative

    def work(s):
        for step in range(1 if cooperative else steps):
            launch(s, config, get_kernel(name), ends[step % 2].buffer, ends[1 - step % 2].buffer, *last)

    return work, ends[steps % 2]


def run(function, *arguments):
    """What one of the functions above computes, as a NumPy array."""
    _, stream = gpu.open_device()
    work, result = function(stream, *arguments)
    work(stream)
    return result.to_host(stream)


# %% Verify and measure
def random_bins(n, data="uniform"):
    """int32 from 0 to BINS - 1; of skewed data nine of ten are 7."""
    rng = np.random.default_rng(143)
    x = rng.integers(0, BINS, n, dtype=np.uint8).astype(np.int32)
    return np.where(rng.integers(0, 10, n, dtype=np.uint8) > 0, np.int32(7), x) if data == "skewed" else x


def verify(n):
    """The checks of all variants on n elements. Raises Mismatch if one is wrong."""
    x, few = random_bins(n), min(n, 1000)  # a lock lets them through one by one
    signed, value = x - np.int32(128), np.random.default_rng(3).integers(0, 1000, few, dtype=np.uint32)
    pairs = {f"{k}_scan": (run(by_block, signed, f"{k}_scan"), reference_scan(signed, w)) for k, w in WIDTHS.items()}
    counts = np.add.reduceat(signed > 0, np.arange(0, n, BLOCK), dtype=np.int32)
    pairs["block_count"] = run(by_block, signed, "block_count"), counts
    for kind, data in product(CURES, DATA):
        some = random_bins(few if kind == "locked" else n, data)
        pairs[f"histogram_{kind}, {data}"] = run(histogram, some, kind), reference_histogram(some)
    for name in BESTS:
        found, expected = unpacked(run(best, value, x[:few], name)), reference_best(value, x[:few], BINS)
        pairs |= {f"{name}, index": (found[0], expected[0]), f"{name}, value": (found[1], expected[1])}
    for name, cooperative in SMOOTHS.items():
        pairs[f"smooth, {name}"] = run(smooth, x * 1000, 7, cooperative), reference_smooth(x * 1000, 7)
    return [check(name, *pair) for name, pair in pairs.items()]


def benchmark() -> list[Row]:
    """Histograms of uniform and of skewed data, against torch; a lock against an atomic; many launches against one."""
    import torch

    (device, own), rows, log = gpu.open_device(), [], min(28, (gpu.free_memory() // 16).bit_length() - 1)
    row = partial(Row.from_timing, section="1.4.3", yardsticks=timing.yardsticks(device, own))
    verify(100_003)
    groups = (min(24, log), ("race", "global", "aggregated")), (log, ("private", "shared", "vectorized"))
    for (some, kinds), data in product(groups, DATA):
        with timing.torch_stream() as stream:
            d_x = gpu.to_device(np.resize(random_bins(1 << min(24, some), data), 1 << some), stream)
            t_x = torch.as_tensor(d_x, device="cuda")
            made = {f"histogram_{kind}": histogram(stream, d_x, kind) for kind in kinds}
            calls = {name: call for name, (call, _) in made.items()}
            calls["torch.histc"] = lambda s, t_x=t_x: torch.histc(t_x, BINS, 0, BINS - 1)
            times = timing.benchmark(calls, stream)
            kept = {name: counts.to_host(stream).sum() / d_x.size for name, (_, counts) in made.items()}
        what = {
            "size": f"2^{some} {data}",
            "dtype": "i32",
            "bytes": 4 << some,
            "peer": ("torch.histc", times["torch.histc"]),
        }
        for name, taken in times.items():
            figures = {"丢失 lost": 1 - kept[name]} if name == "histogram_race" else None
            rows.append(row(name=name, timing=taken, figures=figures, **what))

    value = np.random.default_rng(3).integers(0, 2**32, 1 << 16, dtype=np.uint32)
    d_value, d_bucket = gpu.to_device(value, own), gpu.to_device(random_bins(1 << 16), own)
    finds = timing.benchmark({name: best(own, d_value, d_bucket, name)[0] for name in BESTS}, own)
    calls = {k: smooth(own, gpu.to_device(random_bins(1 << 20), own), 100, v)[0] for k, v in SMOOTHS.items()}
    for size, dtype, times in (("2^16", "u32", finds), ("2^20, 100 steps", "i32", timing.benchmark(calls, own))):
        what = {"size": size, "dtype": dtype, "peer": next(iter(times.items()))}
        rows += [row(name=name, timing=taken, **what) for name, taken in times.items()]
    return rows


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=200_003, quick_size=20_003).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    check_fits(24 * options.size)
    checks_table(verify(options.size))
    lines = []
    for data in DATA:
        x = random_bins(options.size, data)
        made = [int(run(histogram, x, kind).sum(dtype=np.int64)) for kind in ("race", "global", "private")]
        lines.append((data, f"{x.size:,}", *(f"{x.size - found:,}" for found in made)))
    table("Updates lost in this run", ("data", "updates", "by the race", "by atomics", "by private copies"), lines)
    if gpu.SIMULATED:
        print("(The simulator runs its threads in step: nearly all read before one writes. A GPU loses other numbers.)")
    measure(benchmark, options.bench)
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
