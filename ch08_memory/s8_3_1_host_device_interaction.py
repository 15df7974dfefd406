# %%
"""8.3.1 主机内存与设备内存的交互 — Host and device memory

同一份主机数据，核函数可以拷贝过去再用，可以隔着总线直接读，也可以交给统一内存搬运。本节测量哪种用法该选哪一种。
What the host has, a kernel can use after a copy, in place over the bus, or wherever managed memory puts it. Which one
when: measured for data that is read once, read in part, read many times, and for results that the host reads back.

要点
  每字节只用一次：锁页内存原地读写（零拷贝）与拷贝一样受总线限制，还省掉一次拷贝；反复使用：先拷贝，总线只走一次。
  只用其中一小部分：原地读只搬用到的缓存行，拷贝和按页迁移却要搬整块；用到多少次才值得拷贝，可以由速率算出来。
  统一内存靠缺页迁移，先预取（prefetch）才接近拷贝；只读数据可建议 read-mostly，很少访问的可建议留在主机、映射给设备。
Key idea
  Count how often each byte crosses the bus. A copy moves all of it once; reading in place moves what is used, each time
  it is used; managed memory moves whole pages, well if it is told beforehand, slowly if it finds out by page faults.

Run:      ./run 8.3.1     or     python ch08_memory/s8_3_1_host_device_interaction.py [--size N] [--quick] [--plot]
Look at:  the fastest way for each use, and by how much; from how many uses on a copy pays, computed from three rates
          and measured. Without a GPU: what was recorded on the GPU that it names.
"""

import contextlib
import ctypes
import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from common import gpu, results, timing
from common.cli import Unavailable, check_fits, header, parser, run_main

# in your own code: from cuda.core import Buffer, Device, LaunchConfig, LegacyPinnedMemoryResource, launch
from common.gpu import Buffer, Device, LaunchConfig, LegacyPinnedMemoryResource, launch
from common.pycuda import load as load_pycuda
from common.report import plot_curves, si, table
from common.results import Row
from common.verify import check, checks_table

NEEDS = ()

# %% The kernels
KERNEL = r"""
__device__ unsigned mix(unsigned x)  // a hash: every bit of x changes half of the bits
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

// The sum of one line of 128 bytes out of each group of `every` lines; which one, a hash of the group and of
// blockIdx.y says. So a launch with gridDim.y = k uses the data k times, with every = 1 all of it, with every = 64 some
// 1.6% of it, each time another part. Eight lanes read a line, 16 bytes each: `words` is aligned to 16 bytes, as every
// allocation is. blockDim.x is a multiple of 32; *sum is 0 before.
extern "C" __global__ void sum_lines(const unsigned* __restrict__ words, long long n, int every,
                                     unsigned long long* __restrict__ sum)
{
    const long long lines = (n + 31) / 32, groups = (lines + every - 1) / every;
    const long long stride = (long long)gridDim.x * (blockDim.x / 8);
    unsigned long long mine = 0;
    for (long long g = (long long)blockIdx.x * (blockDim.x / 8) + threadIdx.x / 8; g < groups; g += stride) {
        const long long first = g * every, left = lines - first;
        const unsigned here = left < every ? left : every;  // the last group may be shorter
        const long long w = 32 * (first + mix(g + blockIdx.y * 0x9e3779b9u) % here) + threadIdx.x % 8 * 4;
        if (w + 4 <= n) {
            const uint4 v = *reinterpret_cast<const uint4*>(words + w);
            mine += (unsigned long long)v.x + v.y + v.z + v.w;
        } else {
            for (long long i = w; i < n; ++i) mine += words[i];  // and the last line
        }
    }
    __shared__ unsigned long long of_warp[32];  // one atomic for each block, not for each warp
    for (int offset = 16; offset > 0; offset /= 2) mine += __shfl_down_sync(0xffffffff, mine, offset);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int k = 1; k < blockDim.x / 32; ++k) mine += of_warp[k];
        atomicAdd(sum, mine);
    }
}

// Results for the host: out[i] = mix(i + seed), four at a time.
extern "C" __global__ void write_results(unsigned* __restrict__ out, long long n, unsigned seed)
{
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long q = first; q < n / 4; q += stride) {
        const unsigned i = 4 * q + seed;
        reinterpret_cast<uint4*>(out)[q] = {mix(i), mix(i + 1), mix(i + 2), mix(i + 3)};
    }
    const long long i = n / 4 * 4 + first;
    if (i < n) out[i] = mix(i + seed);
}
"""
BLOCK, LINE, GOLDEN = 256, 32, 0x9E3779B9  # threads, words, and what moves the hash from use to use
compiled = functools.cache(lambda: gpu.compile_module(KERNEL))


# %% The references
def mix(x):
    """The kernels' hash of uint32."""
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D)
    x = (x ^ x >> np.uint32(15)) * np.uint32(0x846CA68B)
    return x ^ x >> np.uint32(16)


def reference(words, every=1, uses=1):
    """What sum_lines adds up of uint32 words, modulo 2^64."""
    lines = -(-words.size // LINE)
    of_line = np.pad(words, (0, lines * LINE - words.size)).reshape(lines, LINE).sum(axis=1, dtype=np.uint64)
    group = np.arange(-(-lines // every))
    here, total = np.minimum(every, lines - group * every), 0
    for use in range(uses):
        hashed = mix((group + use * GOLDEN).astype(np.uint32))
        total += int(of_line[group * every + hashed % here].sum())
    return total % 2**64


def reference_results(n, seed):
    """What write_results writes: uint32, shape (n,)."""
    return mix((np.arange(n) + seed).astype(np.uint32))


# %% The ways
def nothing(stream):
    """Nothing to do."""


@dataclass
class Way:
    """uint32 words that the host has in `host` and a kernel finds at `address`.

    `bring` is enqueued before a kernel reads them, `back` before the host reads what a kernel wrote. `home` puts all on
    the host's side again, as if no kernel had used it. `owner` keeps the memory; `free` gives it back.
    """

    host: np.ndarray
    address: int
    bring: Callable = nothing
    back: Callable = nothing
    home: Callable = nothing
    free: Callable = lambda: None
    owner: Any = None


def pinned_words(n):
    """n words of page-locked host memory: (Buffer, what NumPy sees of it)."""
    buffer = LegacyPinnedMemoryResource().allocate(4 * n)
    return buffer, np.from_dlpack(buffer).view(np.uint32)


def pageable_words(n):
    """n words of ordinary host memory: (a Buffer over it, the array)."""
    array = np.zeros(n, np.uint32)  # written, so that the system has given it pages
    return Buffer.from_handle(array.ctypes.data, array.nbytes, owner=array), array


def copied(n, stream, words=pinned_words):
    """Device memory of its own, and copies on purpose: cuMemcpyAsync."""
    (source, host), d_words = words(n), gpu.empty(n, np.uint32, stream).buffer

    def bring(s):
        d_words.copy_from(source, stream=s)

    def back(s):
        d_words.copy_to(source, stream=s)

    return Way(host, int(d_words.handle), bring, back, owner=(source, d_words))


def mapped(n, stream):
    """Page-locked memory, used by the kernel where it lies ("zero copy")."""
    buffer, host = pinned_words(n)
    return Way(host, int(buffer.handle), owner=buffer)


def managed(n, stream, prefetch=False, advice=""):
    """Managed memory: one pointer; the pages go where they are touched, or earlier where `prefetch` says so.

    `advice` is "read mostly" (a page may be on both sides, until somebody writes it), "stay" (on the host, and the
    device has it mapped: no page moves), or none. ManagedBuffer makes cuMemPrefetchAsync and cuMemAdvise of this, whose
    arguments changed with CUDA 13 (a CUmemLocation where a device's number was). Raises Unavailable where host and
    device cannot use managed memory at the same time (Windows, WSL, the simulator).
    """
    if gpu.SIMULATED or not Device().properties.concurrent_managed_access:
        why = "the simulator moves no pages" if gpu.SIMULATED else "this system moves no single pages"
        raise Unavailable(f"managed memory: {why}")
    from cuda.bindings import driver
    from cuda.core import Host, ManagedBuffer

    flags = driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value
    address = int(gpu.checked(driver.cuMemAllocManaged(4 * n, flags)))
    buffer, device = ManagedBuffer.from_handle(address, 4 * n), Device()
    if advice == "read mostly":
        buffer.read_mostly = True
    elif advice == "stay":
        buffer.preferred_location = Host()
        buffer.accessed_by.add(device)

    def home(s):
        buffer.prefetch(Host(), stream=s)

    return Way(
        np.ctypeslib.as_array((ctypes.c_uint32 * n).from_address(address)),
        address,
        (lambda s: buffer.prefetch(device, stream=s)) if prefetch else nothing,
        home if prefetch else nothing,
        home,
        lambda: gpu.checked(driver.cuMemFree(address)),
        buffer,
    )


COPIED, MAPPED = "pinned, copied", "pinned, mapped"
WAYS = {
    "pageable, copied": functools.partial(copied, words=pageable_words),
    COPIED: copied,
    MAPPED: mapped,
    "managed": managed,
    "managed, prefetched": functools.partial(managed, prefetch=True),
    "managed, read-mostly": functools.partial(managed, prefetch=True, advice="read mostly"),
    "managed, stays on host": functools.partial(managed, advice="stay"),
}


@contextlib.contextmanager
def opened(name, n, stream):
    """One of WAYS with memory for n words inside the `with`; given back behind it, after the work on the stream."""
    way = WAYS[name](n, stream)
    try:
        yield way
    finally:
        stream.sync()
        way.free()


# %% The uses: each returns when the host has what it wants
def start_sum(stream, address, n, every, uses, d_sum):
    """Launch sum_lines on n words at an address."""
    groups = math.ceil(n / (LINE * every))
    blocks = min(8 * Device().properties.multiprocessor_count, -(-groups // (BLOCK // 8)))
    config = LaunchConfig(grid=(blocks, uses), block=BLOCK)
    launch(stream, config, compiled().get_kernel("sum_lines"), np.uint64(address), np.int64(n), np.int32(every), d_sum)


class Use:
    """What kernels do with the words of a way, on one stream; with memory for the sum on both sides."""

    def __init__(self, stream):
        self.stream, self.d_sum = stream, gpu.empty(1, np.uint64, stream).buffer
        self.answer = LegacyPinnedMemoryResource().allocate(8)

    def ask(self, way, every, uses):
        """The kernel's sum, as an int."""
        self.d_sum.fill(0, stream=self.stream)
        start_sum(self.stream, way.address, way.host.size, every, uses, self.d_sum)
        self.d_sum.copy_to(self.answer, stream=self.stream)
        self.stream.sync()
        return int(np.from_dlpack(self.answer).view(np.uint64)[0])

    def read(self, way, every=1, uses=1):
        """Bring the words, and read them `uses` times: the sum."""
        way.bring(self.stream)
        return self.ask(way, every, uses)

    def in_turns(self, way, turns=4):
        """Bring the words once; then the kernel reads all, the host looks at every page, and so on: the sum of all."""
        way.bring(self.stream)
        total = 0
        for _ in range(turns):
            total += self.ask(way, 1, 1)
            way.host[::1024].max()
        return total % 2**64

    def results(self, way, seed=1):
        """A kernel writes all words; the host looks at every page."""
        n, quads = way.host.size, max(way.host.size // 4, 1)
        config = LaunchConfig(grid=-(-quads // BLOCK), block=BLOCK)
        kernel = compiled().get_kernel("write_results")
        launch(self.stream, config, kernel, np.uint64(way.address), np.int64(n), np.uint32(seed))
        way.back(self.stream)
        self.stream.sync()
        way.host[::1024].max()


def check_numbers(name, n, every=1, uses=1, turns=0):
    """ValueError unless the name is one of WAYS and the numbers are possible; `uses` is a grid's second dimension."""
    if name not in WAYS:
        raise ValueError(f"expected one of {', '.join(WAYS)}; got {name!r}")
    if n < 1 or not 1 <= every < 2**31 or not 1 <= uses <= 65535 or turns < 0:
        raise ValueError(f"expected positive n and every, 1 to 65535 uses, got {n}, {every}, {uses}; turns {turns}")


def check_words(words):
    """ValueError unless contiguous uint32, shape (n,), not empty."""
    if words.dtype != np.uint32 or words.ndim != 1 or words.size == 0 or not words.flags.c_contiguous:
        raise ValueError(f"expected a contiguous uint32 vector that is not empty, got {words.dtype} {words.shape}")


def sum_lines(words, name=COPIED, every=1, uses=1, turns=0):
    """The kernel's sum (int, modulo 2^64) of uint32 words, shape (n,), by one of WAYS: of one line of 128 bytes in
    `every`, `uses` times; or of all, as often as `turns` says, the host looking at them in between. ValueError for
    other arguments, Unavailable where the way is not there.
    """
    check_words(words)
    check_numbers(name, words.size, every, uses, turns)
    _, stream = gpu.open_device()
    with opened(name, words.size, stream) as way:
        way.host[:] = words
        return Use(stream).in_turns(way, turns) if turns else Use(stream).read(way, every, uses)


def results_of(n, name=COPIED, seed=1):
    """What a kernel wrote and the host read, by one of WAYS: uint32, shape (n,)."""
    check_numbers(name, n)
    _, stream = gpu.open_device()
    with opened(name, n, stream) as way:
        Use(stream).results(way, seed)
        return way.host.copy()


# %% The same through PyCUDA
def sum_pycuda(words, managed=False):
    """As `sum_lines`, all words once: from pinned memory by a copy, or `managed`; Unavailable without PyCUDA."""
    # in your own code: import pycuda.autoprimaryctx, pycuda.driver as cuda; from pycuda.compiler import SourceModule
    check_words(words)
    pycuda = load_pycuda()
    cuda, n = pycuda.driver, words.size
    if managed and gpu.SIMULATED:
        raise Unavailable("PyCUDA's managed memory: the simulator moves no pages")
    kernel = pycuda.SourceModule(KERNEL, no_extern_c=True).get_function("sum_lines")
    stream, d_sum, total = cuda.Stream(), cuda.mem_alloc(8), cuda.pagelocked_empty(1, np.uint64)
    if managed:
        source = cuda.managed_empty(n, np.uint32, mem_flags=cuda.mem_attach_flags.GLOBAL)
        source[:], argument = words, source  # PyCUDA passes the pointer of such an array
    else:
        source, argument = cuda.pagelocked_empty(n, np.uint32), cuda.mem_alloc(4 * n)
        source[:] = words
        cuda.memcpy_htod_async(argument, source, stream)
    total[0] = 0
    cuda.memcpy_htod_async(d_sum, total, stream)
    grid = min(1024, -(-n // (LINE * BLOCK // 8))), 1
    kernel(argument, np.int64(n), np.int32(1), d_sum, block=(BLOCK, 1, 1), grid=grid, stream=stream)
    cuda.memcpy_dtoh_async(total, d_sum, stream)
    stream.synchronize()
    return int(total[0])


# %% Verify
def random_words(n):
    return np.random.default_rng(831).integers(0, 2**32, n, dtype=np.uint32)


def available(stream):
    """Those of WAYS that are here; says once what is missing."""
    names, missing = [], {}
    for name in WAYS:
        try:
            with opened(name, 1, stream):
                names.append(name)
        except Unavailable as reason:
            missing[str(reason)] = reason
    for reason in missing.values():
        print(reason)
    return names


def verify(n):
    """The checks of every way and use on n random words. Raises Mismatch if one is wrong."""
    words, checks = random_words(n), []
    everything, sparse = reference(words), reference(words, 64, 5)
    sums = np.array([everything, sparse, 4 * everything % 2**64], np.uint64)
    for name in available(gpu.open_device()[1]):
        ours = sum_lines(words, name), sum_lines(words, name, 64, 5), sum_lines(words, name, turns=4)
        checks.append(check(f"{name}: all, sparse, in turns", np.array(ours, np.uint64), sums))
        checks.append(check(f"{name}: results", results_of(n, name, 7), reference_results(n, 7)))
    for managed_too in (False, True):
        try:
            ours = np.array([sum_pycuda(words, managed_too)], np.uint64)
            checks.append(check(f"PyCUDA, {'managed' if managed_too else 'copied'}: all", ours, sums[:1]))
        except Unavailable as missing:
            print(missing)
    return checks


# %% Measure
SIZES = {"64 KiB": 1 << 14, "1 MiB": 1 << 18, "16 MiB": 1 << 22}  # in words
SIZE, EVERY, TIMES = "16 MiB", 64, (1, 4, 16, 64, 256)
COPY, HERE, THERE = "copy alone", "sparse alone, device memory", "sparse alone, mapped memory"


def from_host_to_host(names, call, words, stream, samples=20, warmup=2):
    """{way: Timing} of call(way) by the host's clock; before each the host writes all words, which is not timed."""
    taken = {name: [] for name in names}
    with contextlib.ExitStack() as held:
        ways = {name: held.enter_context(opened(name, words.size, stream)) for name in names}
        for _ in tqdm(range(warmup + samples), desc="measuring", delay=5, leave=False):
            for name, way in ways.items():
                way.home(stream)
                stream.sync()
                way.host[:] = words
                begin = time.perf_counter()
                call(way)
                taken[name].append(time.perf_counter() - begin)
    return {name: timing.Timing.of(seconds[warmup:]) for name, seconds in taken.items()}


def benchmark() -> list[Row]:
    """Every way for every use, from data that the host has just written to what the host wants to know; how the cost of
    sparse reads grows with their number; and the three rates that say where a copy begins to pay."""
    device, stream = gpu.open_device()
    row = functools.partial(Row.from_timing, section="8.3.1", dtype="u32", yardsticks=timing.yardsticks(device, stream))
    verify(100_003)
    use, names, words = Use(stream), available(stream), random_words(max(SIZES.values()))
    cases = [("once", size, use.read, 1, names) for size in SIZES]
    cases.append(("16 times", SIZE, functools.partial(use.read, uses=16), 16, names))
    cases += [("4 turns", SIZE, use.in_turns, 4, names), ("results", SIZE, use.results, 1, names)]
    for k in TIMES:
        call = functools.partial(use.read, every=EVERY, uses=k)
        cases.append((f"sparse × {k}", SIZE, call, k / EVERY, names if k == 1 else [COPIED, MAPPED]))
    rows = []
    for name, size, call, share, who in cases:  # share: what the kernels read or write, of all words
        for way, taken in (times := from_host_to_host(who, call, words[: SIZES[size]], stream)).items():
            peer, figures = (COPIED, times[COPIED]), {"GB/s": 4 * SIZES[size] * share / taken.seconds / 1e9}
            rows.append(row(name=f"{name}: {way}", size=size, timing=taken, peer=peer, figures=figures))
    return rows + alone(row, words[: SIZES[SIZE]], stream)


def alone(row, words, stream):
    """By events: the copy, and sparse reads in device and in mapped memory, without a host that waits."""
    d_sum, share = gpu.zeros(1, np.uint64, stream).buffer, TIMES[-1] / EVERY
    with opened(COPIED, words.size, stream) as here, opened(MAPPED, words.size, stream) as there:
        here.host[:] = there.host[:] = words
        here.bring(stream)
        read = functools.partial(start_sum, n=words.size, every=EVERY, uses=TIMES[-1], d_sum=d_sum)
        calls = {COPY: here.bring, HERE: functools.partial(read, address=here.address)}
        times = timing.benchmark(calls | {THERE: functools.partial(read, address=there.address)}, stream)
    nbytes = {COPY: words.nbytes, HERE: words.nbytes * share, THERE: words.nbytes * share}
    return [
        row(name=k, size=SIZE if k == COPY else f"{SIZE}, {TIMES[-1]} uses", timing=t,
            figures={"GB/s": nbytes[k] / t.seconds / 1e9})
        for k, t in times.items()
    ]  # fmt: skip


# %% Read the figures
def costs(rows):
    """{use: {way: seconds}}; a use of another size than SIZE says so."""
    found = {}
    for row in rows:
        use, colon, way = row.name.partition(": ")
        if colon:
            found.setdefault(use if row.size == SIZE else f"{use}, {row.size}", {})[way] = row.seconds
    return found


def crossing_measured(ours, theirs):
    """From which x on {x: seconds} of `theirs` lies above `ours`, by straight lines between the x; None if nowhere, the
    first x if everywhere."""
    xs = sorted(set(ours) & set(theirs))
    above = [theirs[x] - ours[x] for x in xs]
    if not xs or above[-1] <= 0:
        return None
    last = max((k for k, d in enumerate(above) if d <= 0), default=-1)
    if last < 0:
        return float(xs[0])
    return xs[last] + (xs[last + 1] - xs[last]) * -above[last] / (above[last + 1] - above[last])


def crossing_computed(copy, here, there):
    """After how many uses copy + uses × here = uses × there; None if a copy never pays."""
    return copy / (there - here) if there > here else None


def sparse_series(rows):
    """{way: {uses: seconds}} of the sparse reads."""
    found = {}
    for use, ways in costs(rows).items():
        word, times, number = use.partition(" × ")
        if word == "sparse" and times and number.isdigit():
            for way, seconds in ways.items():
                found.setdefault(way, {})[int(number)] = seconds
    return found


def report(rows):
    """Which way for which use; then from how many sparse reads on a copy pays."""
    found = {use: ways for use, ways in costs(rows).items() if len(ways) > 2}
    lines = []
    for way in dict.fromkeys(way for ways in found.values() for way in ways):
        cells = [(ways.get(way), min(ways.values())) for ways in found.values()]
        lines.append((way, *["" if t is None else si(t, "s") + " *" * (t == best) for t, best in cells]))
    print(f"""
From {SIZE} (or what is said) that the host has just written, to what it wants to know, by the host's clock:
  once, 16 times: a kernel reads everything; sparse: one line of 128 bytes in {EVERY}
  4 turns: a kernel reads everything, then the host looks at every page, four times
  results: a kernel writes everything, then the host looks at every page
* is the fastest of its column.""")
    table("", ("way", *found), lines)
    report_crossing(rows)


def report_crossing(rows):
    """The computed and the measured number of sparse reads from which a copy pays."""
    seconds, series = {row.name: row.seconds for row in rows}, sparse_series(rows)
    if not {COPY, HERE, THERE} <= set(seconds) or not {COPIED, MAPPED} <= set(series):
        print("From how many sparse reads on a copy pays, these figures do not say.")
        return
    copy, here, there = seconds[COPY], seconds[HERE] / TIMES[-1], seconds[THERE] / TIMES[-1]
    everything = 4 * SIZES[SIZE]
    parts = [("copy of all", everything, copy), ("a use, device memory", everything // EVERY, here)]
    parts.append(("a use, over the bus", everything // EVERY, there))
    lines = [(what, si(nbytes, "B"), si(taken, "s"), si(nbytes / taken, "B/s")) for what, nbytes, taken in parts]
    print("From how many sparse reads on does a copy pay? Each part alone, by events:")
    table("", ("what", "bytes", "time", "rate"), lines)
    measured = crossing_measured(series[COPIED], series[MAPPED])
    print(
        f"computed, copy / (use over the bus - use in device memory): {in_words(crossing_computed(copy, here, there))}"
    )
    print(f"measured by the host's clock, where the two ways cost the same: {in_words(measured)}")


def in_words(uses):
    return "never" if uses is None else f"{uses:.1f} uses"


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=1_000_003, quick_size=100_003, plot=True).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    check_fits(4 * options.size)
    checks_table(verify(options.size))
    rows, source = results.measured_or_recorded("8.3.1", benchmark, options.bench)
    if not rows:
        return 0
    report(rows)
    if options.plot:
        title = f"{SIZE}, one line in {EVERY} read each time ({source})"
        plot_curves(sparse_series(rows), title, "uses", "seconds", "s8_3_1_host_device_interaction")
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
