# %%
"""8.3.1 主机内存与设备内存的交互 — Host and device memory

同一份主机数据，核函数可以拷贝过去再用，可以隔着总线直接读，也可以交给统一内存搬运。本节测量哪种用法该选哪一种。
What the host has, a kernel can use after a copy, in place over the bus, or wherever managed memory puts it. Which one
when: measured for data that is read once, read in part, read many times, and for results that the host reads back.

要点
  每字节只用一次：锁页内存原地读写（零拷贝）与拷贝一样受总线限制，还省掉一次拷贝；反复使用：先拷贝，总线只走一次。
  只用其中一小部分：原地读只搬用到的缓存行，拷贝和按页迁移却要搬整块；用到多少次才值得拷贝，数一数过总线的字节就知道。
  统一内存靠缺页迁移，先预取（prefetch）才接近拷贝；只读数据可建议 read-mostly，很少访问的可建议留在主机、映射给设备。
Key idea
  Count how often each byte crosses the bus. A copy moves all of it once; reading in place moves what is used, each time
  it is used; managed memory moves whole pages, well if it is told beforehand, slowly if it finds out by page faults.

Run:      ./run 8.3.1     or     python ch08_memory/s8_3_1_host_device_interaction.py [--size N] [--quick] [--plot]
Look at:  the fastest way for each use, and by how much; from how many uses on a copy pays, by counting bytes and as
          measured. Without a GPU: what was recorded on the GPU that it names.
"""

import ctypes
import functools
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from common import gpu, results, timing
from common.cli import Unavailable, check_fits, header, not_run, parser, run_main

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
@dataclass
class Way:
    """uint32 words: the host has them in `host`, a kernel finds them at `address`. `bring` is enqueued before kernels
    read, `back` before the host reads what a kernel wrote. `memory` is given back with the Way."""

    host: np.ndarray
    address: int
    memory: object
    bring: Callable = lambda stream: None
    back: Callable = lambda stream: None


def pinned(n):
    """n words of page-locked host memory: (Buffer, what NumPy sees of it)."""
    buffer = LegacyPinnedMemoryResource().allocate(4 * n)
    return buffer, np.from_dlpack(buffer).view(np.uint32)


def copied(n, stream, pageable=False):
    """Device memory of its own, and copies on purpose (cuMemcpyAsync) from and to page-locked or ordinary memory."""
    d_words = gpu.empty(n, np.uint32, stream).buffer
    if pageable:
        host = np.empty(n, np.uint32)
        source = Buffer.from_handle(host.ctypes.data, host.nbytes, owner=host)
    else:
        source, host = pinned(n)
    way = Way(host, int(d_words.handle), (source, d_words))
    way.bring = lambda s: d_words.copy_from(source, stream=s)
    way.back = lambda s: d_words.copy_to(source, stream=s)
    return way


def mapped(n, stream):
    """Page-locked memory, used by the kernel where it lies ("zero copy")."""
    buffer, host = pinned(n)
    return Way(host, int(buffer.handle), buffer)


def managed_here():
    """Whether host and device can use managed memory at the same time: not on Windows, WSL or the simulator."""
    return not gpu.SIMULATED and Device().properties.concurrent_managed_access


def managed(n, stream, prefetch=False, advice=""):
    """Managed memory: one pointer; the pages go where they are touched, or earlier where `prefetch` says so. `advice`:
    "read mostly" (a page may be on both sides, until somebody writes it), "stay" (on the host, and the device has it
    mapped: no page moves), or none."""
    if not managed_here():
        raise Unavailable(NO_MANAGED)
    from cuda.bindings import driver
    from cuda.core import Host, ManagedBuffer

    flags, device = driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value, Device()
    address = int(gpu.checked(driver.cuMemAllocManaged(4 * n, flags)))
    buffer = ManagedBuffer.from_handle(address, 4 * n)
    way = Way(np.ctypeslib.as_array((ctypes.c_uint32 * n).from_address(address)), address, buffer)
    weakref.finalize(way, driver.cuMemFree, address)  # ManagedBuffer did not allocate it, so it does not free it
    # What follows is cuMemAdvise and cuMemPrefetchAsync, whose arguments CUDA 13 changed: a CUmemLocation where a
    # device's number was. ManagedBuffer knows which.
    if advice == "read mostly":
        buffer.read_mostly = True
    elif advice == "stay":
        buffer.preferred_location = Host()
        buffer.accessed_by.add(device)
    if prefetch:
        way.bring = lambda s: buffer.prefetch(device, stream=s)
        way.back = lambda s: buffer.prefetch(Host(), stream=s)
    return way


COPIED, MAPPED = "pinned, copied", "pinned, mapped"
NO_MANAGED = "managed memory, used by both sides at once: the simulator, Windows and WSL do not have it"
WAYS = {
    "pageable, copied": functools.partial(copied, pageable=True),
    COPIED: copied,
    MAPPED: mapped,
    "managed": managed,
    "managed, prefetched": functools.partial(managed, prefetch=True),
    "managed, read-mostly": functools.partial(managed, prefetch=True, advice="read mostly"),
    "managed, stays on host": functools.partial(managed, advice="stay"),
}


# %% The uses: each returns when the host has what it wants
def read(way, stream, d_sum, every=1, uses=1, turns=1):
    """Bring the words once; in each turn a kernel reads them `uses` times and, where there are several turns, the host
    looks at every page. The sum of all (int, modulo 2^64)."""
    n, groups, total = way.host.size, -(-way.host.size // (LINE * every)), 0
    blocks = min(8 * Device().properties.multiprocessor_count, -(-groups // (BLOCK // 8)))
    config, kernel = LaunchConfig(grid=(blocks, uses), block=BLOCK), compiled().get_kernel("sum_lines")
    way.bring(stream)
    for _ in range(turns):
        d_sum.buffer.fill(0, stream=stream)
        launch(stream, config, kernel, np.uint64(way.address), np.int64(n), np.int32(every), d_sum.buffer)
        total += int(d_sum.to_host(stream)[0])  # which waits
        if turns > 1:
            way.host[::1024].max()
    return total % 2**64


def write(way, stream, seed=1):
    """A kernel writes all words; the host looks at every page."""
    n, kernel = way.host.size, compiled().get_kernel("write_results")
    config = LaunchConfig(grid=-(-n // (4 * BLOCK)), block=BLOCK)
    launch(stream, config, kernel, np.uint64(way.address), np.int64(n), np.uint32(seed))
    way.back(stream)
    stream.sync()
    way.host[::1024].max()


def require(possible, expected, got):
    if not possible:
        raise ValueError(f"expected {expected}, got {got}")


def as_words(words):
    """The array; ValueError unless contiguous uint32, shape (n,), not empty."""
    words = np.asarray(words)
    fits = words.dtype == np.uint32 and words.ndim == 1 and words.size and words.flags.c_contiguous
    require(fits, "a contiguous uint32 vector that is not empty", f"{words.dtype} {words.shape}")
    return words


def opened(name, n, stream):
    """One of WAYS with memory for n words. ValueError for another name or no words."""
    require(name in WAYS, f"one of {'; '.join(WAYS)}", repr(name))
    require(n > 0, "a positive n", n)
    return WAYS[name](n, stream)


def sum_lines(words, name=COPIED, every=1, uses=1, turns=1):
    """The sum that `read` finds in uint32 words, shape (n,), by one of WAYS. ValueError for other arguments (`uses`
    is a grid's second dimension), Unavailable where the way is not there."""
    words, (_, stream) = as_words(words), gpu.open_device()
    numbers = 1 <= every < 2**31 and 1 <= uses <= 65535 and turns > 0
    require(numbers, "positive every and turns, 1 to 65535 uses", f"{every}, {turns}, {uses}")
    way = opened(name, words.size, stream)
    way.host[:] = words
    return read(way, stream, gpu.empty(1, np.uint64, stream), every, uses, turns)


def results_of(n, name=COPIED, seed=1):
    """What a kernel wrote and the host read, by one of WAYS: uint32, shape (n,)."""
    require(0 <= seed < 2**32, "a seed from 0 to 2^32 - 1", seed)
    stream = gpu.open_device()[1]
    way = opened(name, n, stream)
    write(way, stream, seed)
    return way.host.copy()


# %% The same through PyCUDA
def sum_pycuda(words, managed=False):
    """As `sum_lines`, all words once: from pinned memory by a copy, or `managed`; Unavailable without PyCUDA."""
    # in your own code: import pycuda.autoprimaryctx, pycuda.gpuarray, pycuda.driver as cuda
    # from pycuda.compiler import SourceModule
    words, pycuda = as_words(words), load_pycuda()
    cuda, n = pycuda.driver, words.size
    if managed and not managed_here():
        raise Unavailable(NO_MANAGED)
    if managed:
        source = cuda.managed_empty(n, np.uint32, mem_flags=cuda.mem_attach_flags.GLOBAL)
        source[:] = words  # PyCUDA passes the pointer of such an array
    else:
        host, source = cuda.pagelocked_empty(n, np.uint32), cuda.mem_alloc(4 * n)
        host[:] = words
        cuda.memcpy_htod(source, host)
    d_sum, grid = pycuda.gpuarray.to_gpu(np.zeros(1, np.uint64)), (min(1024, -(-n // (LINE * BLOCK // 8))), 1)
    kernel = pycuda.SourceModule(KERNEL, no_extern_c=True).get_function("sum_lines")
    kernel(source, np.int64(n), np.int32(1), d_sum, block=(BLOCK, 1, 1), grid=grid)
    return int(d_sum.get()[0])  # which waits


# %% Verify
def random_words(n):
    return np.random.default_rng(831).integers(0, 2**32, n, dtype=np.uint32)


def available():
    """Those of WAYS that are here."""
    return [name for name in WAYS if managed_here() or not name.startswith("managed")]


def verify(n):
    """The checks of all ways and uses on n random words. Raises Mismatch if one is wrong."""
    words, names, checks = random_words(n), available(), []
    all_words = reference(words)
    sums = np.array([all_words, reference(words, 64, 5), 4 * all_words % 2**64], np.uint64)
    if len(names) < len(WAYS):
        not_run(NO_MANAGED)
    for name in names:
        ours = sum_lines(words, name), sum_lines(words, name, 64, 5), sum_lines(words, name, turns=4)
        checks.append(check(f"{name}: all, sparse, in turns", np.array(ours, np.uint64), sums))
        checks.append(check(f"{name}: results", results_of(n, name, 7), reference_results(n, 7)))
    try:
        for kind in ("copied", "managed") if "managed" in names else ("copied",):
            checks.append(check(f"PyCUDA, {kind}: all", np.uint64(sum_pycuda(words, kind == "managed")), sums[0]))
    except Unavailable as missing:
        print(missing)
    return checks


# %% Measure
SIZES = {"64 KiB": 1 << 14, "16 MiB": 1 << 22}  # in words
SIZE, EVERY, TIMES = "16 MiB", 64, (1, 16, 256)
# a use, how much data, and what `read` is told (None: it is `write`)
CASES = [("once", "64 KiB", {}), ("once", SIZE, {}), ("16 times", SIZE, {"uses": 16}), ("4 turns", SIZE, {"turns": 4})]
CASES += [("results", SIZE, None), *[(f"sparse × {k}", SIZE, {"every": EVERY, "uses": k}) for k in TIMES]]


def from_host_to_host(names, call, words, stream, samples=20, warmup=2):
    """{way: Timing} of call(way) by the host's clock; before each the host writes all words, which is not timed."""
    ways, taken = {name: opened(name, words.size, stream) for name in names}, {name: [] for name in names}
    for _ in range(warmup + samples):
        for name, way in ways.items():
            way.host[:] = words
            begin = time.perf_counter()
            call(way)
            taken[name].append(time.perf_counter() - begin)
    return {name: timing.Timing.of(seconds[warmup:]) for name, seconds in taken.items()}


def benchmark() -> list[Row]:
    """Every way for every use, from data that the host has just written to what the host wants to know."""
    (device, stream), rows, words = gpu.open_device(), [], random_words(SIZES[SIZE])
    row = functools.partial(Row.from_timing, section="8.3.1", dtype="u32", yardsticks=timing.yardsticks(device, stream))
    verify(100_003)
    names, d_sum = available(), gpu.empty(1, np.uint64, stream)
    for name, size, arguments in tqdm(CASES, desc="measuring", delay=5, leave=False):
        call = functools.partial(write, stream=stream)
        if arguments is not None:
            call = functools.partial(read, stream=stream, d_sum=d_sum, **arguments)
        times = from_host_to_host(names, call, words[: SIZES[size]], stream)
        for way, taken in times.items():
            rows.append(row(name=f"{name}: {way}", size=size, timing=taken, peer=(COPIED, times[COPIED])))
    return rows


# %% Read the figures
def report(rows):
    """Which way for which use; from how many sparse reads on a copy pays. {way: {uses: seconds}} of sparse reads."""
    seconds, columns = {(row.name, row.size): row.seconds for row in rows}, {}
    for use, size, _ in CASES:
        if ways := {way: seconds[f"{use}: {way}", size] for way in WAYS if (f"{use}: {way}", size) in seconds}:
            columns[use if size == SIZE else f"{use}, {size}"] = ways
    print(f"""
From {SIZE} (or what is said) that the host has just written, to what it wants to know, by the host's clock:
  once, 16 times: a kernel reads everything
  4 turns: a kernel reads everything, then the host looks at every page, four times
  results: a kernel writes everything, then the host looks at every page
  sparse × k: k times a kernel reads one line of 128 bytes in {EVERY}, each time another one
* is the fastest of its column.""")

    def cell(ways, way):
        return si(ways[way], "s") + " *" * (ways[way] == min(ways.values())) if way in ways else ""

    table("", ("way", *columns), [(way, *[cell(ways, way) for ways in columns.values()]) for way in WAYS])
    sparse = {k: columns.get(f"sparse × {k}", {}) for k in TIMES}
    series = {way: {k: sparse[k][way] for k in TIMES} for way in WAYS if all(way in sparse[k] for k in TIMES)}
    if not {COPIED, MAPPED} <= set(series):
        return {}
    lines = {way: np.polyfit(TIMES, list(series[way].values()), 1) for way in (COPIED, MAPPED)}
    (here, copy), (there, start) = lines.values()
    meet = (copy - start) / (there - here)
    found = f"{meet:.1f}, where these straight lines meet" if meet > 0 else "none: these straight lines do not meet"
    print(f"""From how many sparse reads on does a copy pay?
  by counting bytes: {EVERY}, for a copy brings all over the bus once, a read in place one {EVERY}th of them each time
  measured: {found}""")
    for way, (one, fixed) in lines.items():
        print(f"  {way}: {si(fixed, 's')}, and {si(one, 's')} for each use")
    return series


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=1_000_003, quick_size=100_003, plot=True).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    check_fits(4 * options.size)
    checks_table(verify(options.size))
    rows, source = results.measured_or_recorded("8.3.1", benchmark, options.bench)
    series = report(rows) if rows else {}
    if series and options.plot:
        title = f"{SIZE}, one line in {EVERY} read each time ({source})"
        plot_curves(series, title, "uses", "seconds", "s8_3_1_host_device_interaction")
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
