# %%
"""8.1.1 GPU内存结构与管理 — The GPU memory hierarchy

本节实测存储层次：寄存器、共享内存、L1、L2、设备内存的延迟（指针追逐）与带宽，随工作集大小画出，并与设备属性给出的容量对照。
The hierarchy measured: latency by pointer chasing and bandwidth, over the size of the working set, from registers to
device memory; where the curves step, against the capacities that the device's attributes give.

要点
  延迟用指针追逐测量：每次读到的值就是下一个地址，读取只能一个接一个；环是随机的，每个缓存行一个节点，预取帮不上忙。
  带宽则要有足够多的字节在途：每个线程几个互不依赖的 16 字节读取，占满每个 SM。
  ld.global.ca 经过 L1，ld.global.cg 绕过它。共享内存与 L1 同为一块存储；L1 每个 SM 一份；L2 全 GPU 共用。
Key idea
  Each level is larger, farther and slower than the one before. A dependent load shows how far it is; many independent
  ones show how much it delivers. Keep what is used again in the level whose capacity it fits.

Run:      ./run 8.1.1     or     python ch08_memory/s8_1_1_memory_hierarchy.py [--size N] [--quick] [--plot]
Look at:  cycles and bandwidth of each level; between which two working sets a curve steps, beside the attribute.
          Without a GPU: where the chains lead is verified, and what was recorded is shown.
"""

import functools
import math
import statistics

import numpy as np
from cuda.bindings import driver

from common import gpu, results, timing
from common.cli import UsageError, header, not_run, parser, run_main

# in your own code: from cuda.core import Buffer, Device, LaunchConfig, launch
from common.gpu import Buffer, Device, LaunchConfig, launch
from common.report import save_figure, si, table
from common.results import Row
from common.verify import check, checks_table

NEEDS = ()

# %% The kernels
KERNEL = r"""
enum Path { CA, CG, SHARED };  // through L1 and L2; past L1; from shared memory
constexpr int LINE = 128;      // bytes of a cache line: as far apart as the cells of a ring

// Cycles of this multiprocessor, and nanoseconds. A kernel with TIMED = false reads no clock.
struct Moment { long long cycles, nanoseconds; };

template <bool TIMED>
__device__ Moment now()
{
    Moment moment = {};
    if constexpr (TIMED) {
        moment.cycles = clock64();
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(moment.nanoseconds));
    }
    return moment;
}

__device__ void store_passed(Moment* passed, Moment start, Moment stop)
{
    *passed = {stop.cycles - start.cycles, stop.nanoseconds - start.nanoseconds};
}

// Cells in the order in which they are to be visited become a ring: each holds the address of the next one.
extern "C" __global__ void link_ring(char* __restrict__ ring, const int* __restrict__ order, int cells)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= cells) return;
    const long long here = order[i], next = order[i + 1 < cells ? i + 1 : 0];
    *reinterpret_cast<char**>(ring + here * LINE) = ring + next * LINE;
}

// One thread follows the ring from cell 0: `warm` hops bring it into the caches, `hops` more are timed. What a load
// brings is the next address; nothing is computed in between, so that latencies add up. *last: the cell it ends at.
template <int PATH, bool TIMED>
__global__ void chase(const char* ring, int warm, int hops, int* last, Moment* passed)
{
    const char* at = ring;
    const auto follow = [&](int steps) {
        #pragma unroll 8
        for (int hop = 0; hop < steps; ++hop) {
            const auto address = reinterpret_cast<const unsigned long long*>(at);
            at = reinterpret_cast<const char*>(PATH == CA ? __ldca(address) : __ldcg(address));
        }
    };
    follow(warm);
    if (at == nullptr) return;  // never; but to know it, the last load must be there when the clock is read
    const Moment start = now<TIMED>();
    follow(hops);
    if (at == nullptr) return;
    const Moment stop = now<TIMED>();
    *last = (at - ring) / LINE;
    store_passed(passed, start, stop);
}

// The same in shared memory, of cells * LINE bytes. A cell holds the next one's distance from the start in bytes.
template <bool TIMED>
__global__ void chase_shared(const int* __restrict__ order, int cells, int hops, int* last, Moment* passed)
{
    extern __shared__ __align__(16) char memory[];
    for (int i = 0; i < cells; ++i)
        *reinterpret_cast<int*>(memory + order[i] * LINE) = order[i + 1 < cells ? i + 1 : 0] * LINE;
    int at = 0;
    const Moment start = now<TIMED>();
    #pragma unroll 8
    for (int hop = 0; hop < hops; ++hop) at = *reinterpret_cast<const int*>(memory + at);
    if (at < 0) return;  // never
    const Moment stop = now<TIMED>();
    *last = at / LINE;
    store_passed(passed, start, stop);
}

// Each thread makes `loads` loads of 16 bytes, `step` elements apart and round and round in the `count` elements of a
// working set; they do not depend on each other. With step = blockDim.x a block walks through all of the set: each SM
// has its own copy in L1. With step = all threads the SMs share the set: L2 and device memory. sums: one a thread.
template <int PATH>
__global__ void __launch_bounds__(512) read_set(const uint4* __restrict__ set, unsigned count, unsigned step,
                                                int loads, unsigned* __restrict__ sums)
{
    extern __shared__ __align__(16) char memory[];
    if (PATH == SHARED) {
        for (unsigned i = threadIdx.x; i < count; i += blockDim.x) reinterpret_cast<uint4*>(memory)[i] = set[i];
        __syncthreads();  // all of the set is there, before anybody reads what others have brought
    }
    const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned at = thread % count, sum = 0;
    step %= count;
    #pragma unroll 8
    for (int i = 0; i < loads; ++i) {
        const uint4 v = PATH == SHARED ? reinterpret_cast<const uint4*>(memory)[at]
                      : PATH == CA     ? __ldca(set + at)
                                       : __ldcg(set + at);
        sum += v.x + v.y + v.z + v.w;
        at += step;
        if (at >= count) at -= count;
    }
    sums[thread] = sum;
}
"""
LINE, BLOCK = 128, 512
TIMED = str(not gpu.SIMULATED).lower()  # the simulator has no clock; all else is the same there
CHASES = {"ca": f"chase<CA, {TIMED}>", "cg": f"chase<CG, {TIMED}>", "shared": f"chase_shared<{TIMED}>"}
READS = {"ca": "read_set<CA>", "cg": "read_set<CG>", "shared": "read_set<SHARED>"}
compiled = functools.cache(lambda: gpu.compile_module(KERNEL, (*CHASES.values(), *READS.values())))


def kernel_for(name, shared=0):
    """A kernel that may use so much shared memory; one that uses none leaves all of the common memory to L1."""
    kernel, device = compiled().get_kernel(name), Device()
    if shared > (most := device.properties.max_shared_memory_per_block_optin):
        raise UsageError(f"--size is the cells of a ring, {LINE} bytes each: in shared memory {most} bytes at most")
    if shared > 48 << 10:
        gpu.allow_shared_memory(kernel, shared)
    if not (shared or gpu.SIMULATED):
        carveout = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        gpu.checked(driver.cuKernelSetAttribute(carveout, 0, kernel.handle, device.device_id))
    return kernel


# %% The references
def reference_chase(order, hops):
    """The cell after so many hops from cell 0, on the ring that visits the cells in this order."""
    return int(order[(int(np.flatnonzero(order == 0)[0]) + hops) % order.size])


def reference_read(words, threads, step, loads):
    """uint32 (threads,): the sums, modulo 2^32, of what each thread of `read_set` reads of uint32 (count, 4)."""
    at = (np.arange(threads)[:, None] + step * np.arange(loads)) % len(words)
    return words.astype(np.uint64).sum(axis=1)[at].sum(axis=1).astype(np.uint32)


# %% Latency: a ring is followed
def link(order, ring, stream):
    """Link the cells of `ring`, a Buffer, in this order: int32, each of 0 … cells - 1 once."""
    d_order, config = gpu.to_device(order, stream), LaunchConfig(grid=-(-order.size // BLOCK), block=BLOCK)
    launch(stream, config, compiled().get_kernel("link_ring"), ring, d_order.buffer, np.int32(order.size))


def follow(path, ring, cells, hops, stream, warm=0):
    """(the last cell, cycles a hop, ns a hop; these are 0 on the simulator) on a ring linked in a Buffer; "shared" gets
    the order there, int32, and links it itself."""
    shared = cells * LINE if path == "shared" else 0
    config, kernel = LaunchConfig(grid=1, block=1, shmem_size=shared), kernel_for(CHASES[path], shared)
    last, passed = gpu.zeros(1, np.int32, stream), gpu.zeros(2, np.int64, stream)
    first = np.int32(cells if shared else warm)
    launch(stream, config, kernel, ring, first, np.int32(hops), last.buffer, passed.buffer)
    return int(last.to_host(stream)[0]), *(float(t) / hops for t in passed.to_host(stream))


def last_cell(path, order, hops, warm=0):
    """Where `warm` and then `hops` hops lead by one of CHASES ("shared" has no warm ones). ValueError unless `order` is
    int32 and has each of 0 … cells - 1 once, and hops > 0."""
    order = np.asarray(order)
    permutation = order.ndim == 1 and order.size and np.array_equal(np.sort(order), np.arange(order.size))
    if order.dtype != np.int32 or not permutation or not 0 < hops < 1 << 31 or not 0 <= warm < 1 << 31:
        got = f"{order.dtype} {order.shape}, {hops} and {warm} hops"
        raise ValueError(f"expected int32, each cell once, hops > 0, got {got}")
    _, stream = gpu.open_device()
    ring = gpu.to_device(order, stream).buffer
    if path != "shared":
        ring = gpu.empty(order.size * LINE, np.uint8, stream).buffer
        link(order, ring, stream)
    return follow(path, ring, order.size, hops, stream, warm)[0]


# %% Bandwidth: many loads at once
def read_call(path, d_set, nbytes, loads, d_sums, grid):
    """A function that enqueues `read_set` over the first bytes of a Buffer. By "cg" the SMs share the set, by the other
    paths each block walks through all of it."""
    shared = nbytes if path == "shared" else 0
    step = np.uint32(BLOCK * (grid if path == "cg" else 1))
    config, kernel = LaunchConfig(grid=grid, block=BLOCK, shmem_size=shared), kernel_for(READS[path], shared)
    arguments = d_set, np.uint32(nbytes // 16), step, np.int32(loads), d_sums
    return lambda s: launch(s, config, kernel, *arguments)


def read(path, words, loads, grid=1):
    """uint32 (grid * BLOCK,): the sums of `read_set` over uint32 (count, 4). ValueError for other words."""
    words = np.asarray(words)
    counts_fit = 0 < loads < 1 << 31 and 0 < grid < 1 << 20
    if words.dtype != np.uint32 or words.shape[1:] != (4,) or not words.size or not counts_fit:
        got = f"{words.dtype} {words.shape}, {loads} loads, {grid} blocks"
        raise ValueError(f"expected uint32 (count, 4), loads and blocks, got {got}")
    _, stream = gpu.open_device()
    d_set, d_sums = gpu.to_device(words, stream), gpu.empty(grid * BLOCK, np.uint32, stream)
    read_call(path, d_set.buffer, words.nbytes, loads, d_sums.buffer, grid)(stream)
    return d_sums.to_host(stream)


# %% Verify and measure
def random_order(cells):
    return np.random.default_rng(811).permutation(cells).astype(np.int32)


def verify(n):
    """The checks of all paths, on rings of n cells and sets of n elements. Raises Mismatch if one is wrong."""
    order, checks, warm, hops = random_order(n), [], 7, n + 33
    words = np.random.default_rng(181).integers(0, 2**32, (n, 4), dtype=np.uint32)
    for path in ("shared", "ca", "cg"):  # the first one says so if n is too large
        expected = reference_chase(order, hops + (0 if path == "shared" else warm))
        checks.append(check(f"chase, {path}", [last_cell(path, order, hops, warm)], [expected]))
        expected = reference_read(words, 2 * BLOCK, BLOCK * (2 if path == "cg" else 1), 9)
        checks.append(check(f"read_set, {path}", read(path, words, 9, grid=2), expected))
    return checks


SET, SIZES = "working set", [base << log for log in range(11, 29) for base in (2, 3)]  # 4 KiB, 6 KiB, … 768 MiB
SMALL = 4 << 20  # "ca" is measured up to here
HOPS, SAMPLES, SECONDS = 16384, 3, 2e-3  # timed hops, how often; a read moves what a copy moves in so many seconds


def latency(path, ring, cells, stream, before=lambda stream: None):
    """(the Timing of a hop, its cycles) on a random ring, after `before` and one turn of the ring, or HOPS hops of it.
    `ring` is a Buffer for it; "shared" finds the order there."""
    taken = []
    if path != "shared":
        link(random_order(cells), ring, stream)
    for _ in range(SAMPLES):
        before(stream)
        taken.append(follow(path, ring, cells, HOPS, stream, min(cells, HOPS))[1:])
    cycles, nanoseconds = np.transpose(taken)
    return timing.Timing.of(nanoseconds * 1e-9), float(np.median(cycles))


def latencies(d_set, sizes, stream):
    """{bytes of the working set: (Timing of a hop past L1, cycles of a hop by path)}. Before a chase the set is read,
    so that in L2 is what fits there, and not what an earlier one has left."""
    found, grid = {}, 4 * stream.device.properties.multiprocessor_count
    sums = gpu.empty(grid * BLOCK, np.uint32, stream)
    for nbytes in sizes:
        once = read_call("cg", d_set, nbytes, -(-nbytes // (16 * BLOCK * grid)), sums.buffer, grid)
        paths = ("cg", "ca") if nbytes <= SMALL else ("cg",)
        hops = {path: latency(path, d_set, nbytes // LINE, stream, once) for path in paths}
        found[nbytes] = hops["cg"][0], {f"cycles, {path}": cycles for path, (_, cycles) in hops.items()}
    return found


def bandwidths(d_set, sizes, copy_gbps, stream):
    """{bytes of the working set: GB/s of all SMs together by path}, with warm caches; by "cg" for sets that are more
    than all threads read at a time, so that no two of them wait for the same bytes."""
    limits, calls, moved, found = stream.device.properties, {}, {}, {nbytes: {} for nbytes in sizes}
    grids = dict.fromkeys(READS, limits.multiprocessor_count)  # of two blocks on an SM one would fill L1 for the other
    grids["cg"] *= kernel_for(READS["cg"]).occupancy.max_active_blocks_per_multiprocessor(BLOCK, 0)
    sums = gpu.empty(grids["cg"] * BLOCK, np.uint32, stream)
    most = {"ca": SMALL, "cg": sizes[-1], "shared": limits.max_shared_memory_per_block_optin}
    for path, grid in grids.items():
        for nbytes in (n for n in sizes if n <= most[path] and (path != "cg" or n > 16 * sums.size)):
            loads = round(copy_gbps * 1e9 * SECONDS / (16 * BLOCK * grid))
            calls[path, nbytes] = read_call(path, d_set, nbytes, loads, sums.buffer, grid)
            moved[path, nbytes] = 16 * BLOCK * grid * loads
    for (path, nbytes), taken in timing.benchmark(calls, stream, flush_l2=False).items():
        found[nbytes][f"GB/s, {path}"] = moved[path, nbytes] / taken.seconds / 1e9
    return found


def benchmark() -> list[Row]:
    """Latency and bandwidth over working sets of 4 KiB to 768 MiB (a quarter of what is free at most). The first row
    has what the device says of itself, and the multiply-adds that it was seen to do."""
    device, stream = gpu.open_device()
    limits, yardsticks = device.properties, timing.yardsticks(device, stream)
    verify(300)
    row = functools.partial(Row.from_timing, section="8.1.1", dtype="", yardsticks=yardsticks)
    sizes = [nbytes for nbytes in SIZES if nbytes <= gpu.free_memory() // 4]
    taken, cycles = latency("shared", gpu.to_device(random_order(256), stream).buffer, 256, stream)
    facts = {
        "cycles": cycles,
        "SMs": limits.multiprocessor_count,
        "G FMA/s": 1e3 * yardsticks.fma_tflops / 2,
        "registers, bytes": 4 * limits.max_registers_per_multiprocessor,
        "shared, bytes": limits.max_shared_memory_per_multiprocessor,
        "L2, bytes": limits.l2_cache_size,
        "memory, bytes": gpu.checked(driver.cuMemGetInfo())[1],
    }
    rows = [row(name="shared memory", size="32 KiB", timing=taken, figures=facts)]
    d_set = gpu.empty(sizes[-1], np.uint8, stream).buffer
    rings = [Buffer.from_handle(int(d_set.handle) + line * LINE, LINE, owner=d_set) for line in range(64)]
    lines = sorted((latency("cg", ring, 1, stream) for ring in rings), key=lambda line: line[1])  # near ones first
    for which, (taken, cycles) in (("nearest", lines[0]), ("farthest", lines[-1])):
        rows.append(row(name=f"L2, {which} line", size=f"of {len(lines)}", timing=taken, figures={"cycles": cycles}))
    hops, rates = latencies(d_set, sizes, stream), bandwidths(d_set, sizes, yardsticks.copy_gbps, stream)
    for nbytes, (taken, figures) in hops.items():
        rows.append(row(name=SET, size=f"{nbytes >> 10} KiB", timing=taken, figures=figures | rates[nbytes]))
    return rows


# %% Read the figures
def size(nbytes):
    """Bytes as people say them: "228 KiB", "1.5 MiB"."""
    power = min(int(math.log2(nbytes) // 10), 3)
    return f"{nbytes / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def curve(rows, column):
    """{bytes of the working set: figure} of a column, from small to large."""
    sets = (row for row in rows if row.name == SET and column in row.figures)
    return dict(sorted((int(row.size.split()[0]) << 10, row.figures[column]) for row in sets))


def step(values, limit):
    """The two neighbouring sizes between which a curve rises above the limit. IndexError if it never does."""
    beyond = [nbytes for nbytes in values if values[nbytes] > limit]
    before = [nbytes for nbytes in values if nbytes < beyond[0]]
    return before[-1], beyond[0]


def levels(rows):
    """{level: (capacity by attribute, the two sizes between which it ends, cycles of a load, GB/s of all SMs)}. A cache
    ends where the latency is half way up to the next level's; of what is before, the median latency and the best
    bandwidth are its own. LookupError or ValueError where a figure is missing."""
    facts = {row.name: row for row in rows}["shared memory"].figures
    cycles, rate = ({path: curve(rows, f"{what}, {path}") for path in READS} for what in ("cycles", "GB/s"))
    near, middle, far = min(cycles["ca"].values()), min(cycles["cg"].values()), max(cycles["cg"].values())
    largest = max(cycles["cg"])

    def cache(path, limit):
        ends = step(cycles[path], limit)
        own = [[v for nbytes, v in values[path].items() if nbytes <= ends[0]] for values in (cycles, rate)]
        return ends, statistics.median(own[0]), max(own[1])

    return {
        "registers": (f"{size(facts['registers, bytes'])} an SM", None, None, 8 * facts["G FMA/s"]),
        "shared memory": (f"{size(facts['shared, bytes'])} an SM", None, facts["cycles"], max(rate["shared"].values())),
        "L1": ("none", *cache("ca", (near + middle) / 2)),
        "L2": (size(facts["L2, bytes"]), *cache("cg", (middle + far) / 2)),
        "device memory": (size(facts["memory, bytes"]), None, cycles["cg"][largest], rate["cg"][largest]),
    }


def report(rows):
    """Print the levels; False, and one line, if the rows are of another version."""
    single = {row.name: row for row in rows if row.name != SET}
    try:
        first, found = single["shared memory"], levels(rows)
        near, far = (single[f"L2, {which} line"].figures["cycles"] for which in ("nearest", "farthest"))
    except (LookupError, ValueError):
        not_run("the table of the levels: these figures are of another version", "./run bench 8")
        return False
    lines, gigahertz = [], first.figures["cycles"] / first.seconds / 1e9
    for level, (capacity, ends, cycles, rate) in found.items():
        between = " and ".join(map(size, ends)) if ends else "—"
        latency = (f"{cycles:.1f}", f"{cycles / gigahertz:.1f}") if cycles else ("—", "—")
        each = rate / first.figures["SMs"] / gigahertz
        lines.append((level, capacity, between, *latency, f"{each:.3g}", si(1e9 * rate, "B/s")))
    headings = "level", "attribute", "ends between", "cycles", "ns", "B/cycle/SM", "all SMs"
    table("A load that waits for the one before it; many of 16 bytes that wait for nothing", headings, lines)
    print("registers: at least what the FMA loop moves, 8 bytes for each x = a x + b. Device memory: the largest set.")
    print("ends: the latency is half way up to the next level's. L1 has what shared memory leaves of an SM: here all.")
    print("L2 is in two partitions, and each keeps what the SMs next to it read: all of it may not serve one SM.")
    print(f"  Cycles of single lines in it: nearest {near:.0f}, farthest {far:.0f}.")
    return True


def plot(rows, source):
    """Latency and bandwidth over the size of the working set; the capacities as vertical lines."""
    from matplotlib.figure import Figure

    facts = next(row.figures for row in rows if row.name == "shared memory")
    figure = Figure(figsize=(8, 8), layout="constrained")
    panels = ("cycles", f"A dependent load ({source})"), ("GB/s", "Independent loads of 16 bytes, all SMs")
    for axes, (unit, title) in zip(figure.subplots(2, 1, sharex=True), panels, strict=True):
        for path, marker, colour in (("ca", "o", "#0072B2"), ("cg", "s", "#D55E00"), ("shared", "^", "#009E73")):
            if values := curve(rows, f"{unit}, {path}"):
                label = "ld.shared" if path == "shared" else f"ld.global.{path}"
                axes.loglog(list(values), list(values.values()), marker=marker, color=colour, label=label)
        for name, dashes, what in (("shared", "--", "shared memory of an SM"), ("L2", ":", "L2")):
            nbytes = facts[f"{name}, bytes"]
            axes.axvline(nbytes, color="black", linestyle=dashes, label=f"{what}: {size(nbytes)} (attribute)")
        axes.set(title=title, xlabel="working set in bytes", ylabel=unit)
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
        axes.legend()
    save_figure(figure, "s8_1_1_memory_hierarchy")


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=1000, quick_size=300, plot=True).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    checks_table(verify(options.size))
    if gpu.SIMULATED:
        not_run("cycles and bandwidths: the simulator has neither clock nor caches")
    rows, source = results.measured_or_recorded("8.1.1", benchmark, options.bench)
    if rows and report(rows) and options.plot:
        plot(rows, source)
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
