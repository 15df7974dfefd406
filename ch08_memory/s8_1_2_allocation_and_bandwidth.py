# %%
"""8.1.2 CUDA内存分配与释放以及内存带宽优化问题 — Allocation, release and bandwidth

本节先比较分配显存的几种办法，并写出自己的缓存分配器：取整、最佳适配、拆分与合并，碎片画成图；再看访问方式怎样决定带宽。
Ways to allocate device memory, with a caching allocator of our own (rounding, best fit, splitting, merging) and a map
of its fragmentation; then what the pattern of access does to the bandwidth: sectors by hand, counted, and GB/s.

要点
  大块的 cuMemAlloc/cuMemFree 很贵，释放还要等设备；缓存分配器留着释放的块，同一个流里再用不必等：流保证先后。
  空闲总量够而最大的空闲块不够，就是碎片：相邻的空闲块要合并，小请求与大请求分开存放。
  一个线程束读 128 字节，最少 4 个扇区（各 32 字节）；跨步、未对齐、结构体数组（AoS）都会多取，数组结构体（SoA）不会。
Key idea
  Allocate once and keep what is freed: work in one stream is in order, so the next user need not wait. And let
  neighbouring lanes read neighbouring bytes, 16 a lane: every sector that is fetched should be used whole.

Run:      ./run 8.1.2     or     python ch08_memory/s8_1_2_allocation_and_bandwidth.py [--size N] [--quick] [--plot]
Look at:  the map of the blocks: a request that does not fit although enough is free; sectors for each request, by hand
          and counted; on a GPU the cost of a pair of allocate and free, and the copies against cuMemcpyDtoD.
"""

import bisect
import functools
import threading
from collections import namedtuple

import numpy as np
from cuda.bindings import driver

from common import gpu, results, timing
from common.cli import Unavailable, check_fits, header, not_run, parser, run_main

# in your own code: from cuda.core import Buffer, LaunchConfig, launch
from common.gpu import Buffer, LaunchConfig, launch
from common.pycuda import load as load_pycuda
from common.report import new_figure, save_figure, table
from common.results import Row
from common.simt.counters import counting
from common.verify import Mismatch, check, checks_table

NEEDS = ()

# %% The kernels
KERNEL = r"""
// y = x, one float a thread: a warp reads 128 bytes, 4 sectors.
extern "C" __global__ void copy(const float* __restrict__ x, float* __restrict__ y, long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}

// Misaligned: y[i] = x[i + shift]; x has n + shift elements.
extern "C" __global__ void copy_shifted(const float* __restrict__ x, float* __restrict__ y, long long n, int shift)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i + shift];
}

// Strided: x has n rows of k, and y gets its columns, one after the other: column blockIdx.y. Each element is read
// once, k elements from the one that the next lane reads.
extern "C" __global__ void copy_strided(const float* __restrict__ x, float* __restrict__ y, long long n, int k)
{
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row < n) y[blockIdx.y * n + row] = x[row * k + blockIdx.y];
}

// Vectorised: 16 bytes a lane, so that a warp's load is 512 bytes that lie together. Where 16 does not divide an
// address, and the last n % 4 elements, are copied by floats.
extern "C" __global__ void copy_float4(const float* __restrict__ x, float* __restrict__ y, long long n)
{
    const bool aligned = ((unsigned long long)x | (unsigned long long)y) % 16 == 0;
    const long long quads = aligned ? n / 4 : 0, threads = (long long)gridDim.x * blockDim.x;
    const long long q = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (q < quads) reinterpret_cast<float4*>(y)[q] = reinterpret_cast<const float4*>(x)[q];
    for (long long i = 4 * quads + q; i < n; i += threads) y[i] = x[i];
}

// An array of structures: a particle is 8 floats. A warp's load touches 32 sectors, and uses 4 of the 32 bytes of each.
struct Particle { float x, y, z, mass, vx, vy, vz, charge; };

extern "C" __global__ void move_aos(Particle* p, float dt, long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    p[i].x += dt * p[i].vx;
    p[i].y += dt * p[i].vy;
    p[i].z += dt * p[i].vz;
}

__device__ float4 moved(const float4 place, const float4 speed, float dt)
{
    return {place.x + dt * speed.x, place.y + dt * speed.y, place.z + dt * speed.z, place.w + dt * speed.w};
}

// The same layout by two loads of 16 bytes and a store: fewer requests, but what is not needed travels all the same.
extern "C" __global__ void move_aos_float4(float4* p, float dt, long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 speed = p[2 * i + 1];
    speed.w = 0.0f;  // that is the charge, beside the mass: the mass stays
    p[2 * i] = moved(p[2 * i], speed, dt);
}

// A structure of arrays: member m of particle i is p[m * n + i]. A warp's load is 128 bytes that lie together.
extern "C" __global__ void move_soa(float* p, float dt, long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    for (int axis = 0; axis < 3; ++axis) p[axis * n + i] += dt * p[(4 + axis) * n + i];
}

// Four particles a thread, 16 bytes a load; n is a multiple of 4, so that each array begins where 16 divides.
extern "C" __global__ void move_soa_float4(float4* p, float dt, long long n)
{
    const long long q = (long long)blockIdx.x * blockDim.x + threadIdx.x, quads = n / 4;
    if (q >= quads) return;
    #pragma unroll
    for (int axis = 0; axis < 3; ++axis)
        p[axis * quads + q] = moved(p[axis * quads + q], p[(4 + axis) * quads + q], dt);
}
"""
BLOCK, DT = 256, np.float32(0.25)
compiled = functools.cache(lambda: gpu.compile_module(KERNEL))
# k: the shift or the stride; multiple: of what n is one; each: how many floats or particles a thread does;
# loads, stores: the sectors of a warp's request, by hand
Pattern = namedtuple("Pattern", "name kernel k multiple each loads stores")
PATTERNS = (
    Pattern("copy", "copy", 0, 1, 1, 4, 4),  # 32 lanes × 4 bytes are 128, and a sector is 32
    Pattern("copy, 1 float later", "copy_shifted", 1, 1, 1, 5, 4),  # 128 bytes that begin inside a sector touch 5
    Pattern("copy, stride 2", "copy_strided", 2, 2, 1, 8, 4),
    Pattern("copy, stride 8", "copy_strided", 8, 8, 1, 32, 4),  # a sector for each lane; there cannot be more
    Pattern("copy, stride 32", "copy_strided", 32, 32, 1, 32, 4),
    Pattern("copy_float4", "copy_float4", 0, 1, 4, 16, 16),  # 32 lanes × 16 bytes
    Pattern("move_aos", "move_aos", 0, 8, 1, 32, 32),  # lanes are 32 bytes apart
    Pattern("move_aos_float4", "move_aos_float4", 0, 8, 1, 32, 32),
    Pattern("move_soa", "move_soa", 0, 8, 1, 4, 4),
    Pattern("move_soa_float4", "move_soa_float4", 0, 32, 4, 16, 16),
)


# %% A caching allocator
ALIGNMENT, SEGMENT, SMALL = 512, 2 << 20, 1 << 20
# segment: the Buffer that it was cut from; pool: (stream, whether for small requests)
Block = namedtuple("Block", "address size segment pool free")


class CachingAllocator:
    """Takes segments of 2 MiB or more from `upstream`, a MemoryResource; cuts them up, and keeps what is freed.

    Stream order: a freed block goes to the next request *of its stream* at once, though a kernel may still use it: that
    one runs first. If another stream uses a block too, make the block's stream wait for it before you free. A stream's
    number may be used again when it is gone: wait for its work first. Threads may share an allocator: each call holds a
    lock. The idea is that of PyTorch's CUDACachingAllocator.
    """

    def __init__(self, upstream):
        self.upstream, self.lock = upstream, threading.RLock()
        self.blocks, self.ends = {}, {}  # every Block by its address, and by the address where it ends
        self.free_lists = {}  # pool -> [(size, address)] of its free blocks, from small to large

    def allocate(self, nbytes, stream):
        """The address of `nbytes`, rounded up to 512: the smallest free block that holds them, cut to size."""
        if nbytes <= 0 or nbytes % 1:
            raise ValueError(f"expected a positive whole number of bytes, got {nbytes}")
        size = -(-int(nbytes) // ALIGNMENT) * ALIGNMENT
        with self.lock:
            pool = int(stream.handle), size <= SMALL
            free = self.free_lists.setdefault(pool, [])
            if not free or free[-1][0] < size:
                segment = self._segment(-(-size // SEGMENT) * SEGMENT, stream)
                self._add(Block(int(segment.handle), segment.size, segment, pool, True))
            block = self._remove(free[bisect.bisect_left(free, (size, 0))][1])
            if block.size > size:
                self._add(block._replace(address=block.address + size, size=block.size - size))
            self._add(block._replace(size=size, free=False))
            return block.address

    def free(self, address):
        """Give a block back, merged with its free neighbours. ValueError if no block in use begins at the address."""
        with self.lock:
            if address not in self.blocks or self.blocks[address].free:
                raise ValueError(f"no block in use begins at {address:#x}")
            block = self._remove(address)
            for other in (self.ends.get(address), self.blocks.get(address + block.size)):
                if other and other.free and other.segment is block.segment:
                    self._remove(other.address)
                    block = block._replace(address=min(block.address, other.address), size=block.size + other.size)
            self._add(block._replace(free=True))

    def release(self):
        """Give the segments in which nothing is in use back to `upstream`."""
        with self.lock:
            for block in list(self.blocks.values()):
                if block.free and block.size == block.segment.size:
                    self._remove(block.address).segment.close()  # in the order of the stream that it was allocated on

    def _segment(self, nbytes, stream):
        try:
            return self.upstream.allocate(nbytes, stream=stream)
        except (gpu.CUDAError, MemoryError):
            self.release()  # and once more, without what is only kept
            return self.upstream.allocate(nbytes, stream=stream)

    def _add(self, block):
        self.blocks[block.address] = self.ends[block.address + block.size] = block
        if block.free:
            bisect.insort(self.free_lists[block.pool], (block.size, block.address))

    def _remove(self, address):
        block = self.blocks.pop(address)
        del self.ends[address + block.size]
        if block.free:
            self.free_lists[block.pool].remove((block.size, address))
        return block


# %% What fragmentation looks like
def state(allocator, unit=64 << 10):
    """(map, bytes in use, free, of the largest free block) of a CachingAllocator. In the map a line is a segment, and a
    character is `unit` bytes: # where some of them are in use, . where none is."""
    lines, sizes = {}, {True: [0], False: [0]}
    for block in sorted(allocator.blocks.values()):
        first = int(block.segment.handle)
        line = lines.setdefault(first, ["."] * -(-block.segment.size // unit))
        sizes[block.free].append(block.size)
        if not block.free:
            begin, end = (block.address - first) // unit, -(-(block.address + block.size - first) // unit)
            line[begin:end] = "#" * (end - begin)
    return "\n".join(map("".join, lines.values())), sum(sizes[False]), sum(sizes[True]), max(sizes[True])


def fragment(allocator, stream):
    """Fragment a fresh CachingAllocator, and yield what has happened after each step; at the end nothing is in use."""
    blocks = [allocator.allocate(128 << 10, stream) for _ in range(16)]
    yield "16 × 128 KiB are allocated"
    for address in blocks[::2]:
        allocator.free(address)
    yield "every second one is freed"
    blocks = [*blocks[1::2], allocator.allocate(256 << 10, stream)]
    yield "256 KiB fit in no hole"
    for address in blocks[:4]:
        allocator.free(address)
    yield "4 more are freed: merged"
    for address in blocks[4:]:
        allocator.free(address)
    yield "all are freed"


def show_fragmentation(stream):
    """The map of the blocks and their bytes, step by step."""
    allocator, lines = CachingAllocator(stream.device.memory_resource), []
    for step in fragment(allocator, stream):
        blocks, *sizes = state(allocator)
        lines.append((step, blocks, *(f"{nbytes >> 10} KiB" for nbytes in sizes)))
    title = "A caching allocator: a line is a segment, # in use, . free, 64 KiB each; no more than 'largest free' fits"
    table(title, ("step", "map", "in use", "free", "largest free"), lines)


def plot(stream):
    """A random workload on a caching allocator: bytes in use, free, and of the largest free block, over time."""
    allocator, generator = CachingAllocator(stream.device.memory_resource), np.random.default_rng(8)
    live, history = [], []
    for _ in range(400):
        if generator.random() < len(live) / 60:
            allocator.free(live.pop(generator.integers(len(live))))
        else:
            live.append(allocator.allocate(int(2 ** generator.uniform(12, 22.5)), stream))
        history.append(state(allocator)[1:])
    figure, axes = new_figure("A random workload on the caching allocator", "step", "MiB")
    axes.plot(np.array(history) / 2**20, label=("in use", "free", "largest free"), markevery=40)
    axes.legend()
    save_figure(figure, "s8_1_2_allocation_and_bandwidth")


# %% Memory of any kind
def allocators(stream):
    """{name: (allocate, free)}: what allocate(nbytes) gives is an address or a Buffer, and free takes that.

    cuMemAlloc and cuMemFree are cudaMalloc and cudaFree: no stream has a say, and freeing waits for all. The pool's are
    cuMemAllocAsync and cuMemFreeAsync by cuda.core, in the order of a stream. Ours takes its segments from there.
    """
    device, ours = stream.device, CachingAllocator(stream.device.memory_resource)
    found = {}
    if gpu.SIMULATED:
        not_run("cuMemAlloc: it is the driver's, which the simulator does not have")
    else:
        found["cuMemAlloc"] = (
            lambda nbytes: int(gpu.checked(driver.cuMemAlloc(nbytes))),
            lambda address: gpu.checked(driver.cuMemFree(address)),
        )
    found["driver's pool"] = functools.partial(device.allocate, stream=stream), lambda buffer: buffer.close()
    found["ours"] = functools.partial(ours.allocate, stream=stream), ours.free
    return found


def checked(x, multiple=1, spare=0):
    """The array. ValueError unless float32, contiguous, shape (n + spare,), with n > 0 a multiple of `multiple`."""
    n = (x := np.asarray(x)).size - spare
    if x.dtype != np.float32 or x.ndim != 1 or n <= 0 or n % multiple or not x.flags.c_contiguous:
        what = f"contiguous float32 (n,), n > {spare}" + (f" and a multiple of {multiple}" if multiple > 1 else "")
        raise ValueError(f"expected {what}, got {x.dtype} {x.shape}")
    return x


def relay(x, stream, allocate, free):
    """x, copied from one array to a second and from there to a third, which may get the memory of the first: that one
    is freed when the copy is enqueued, not when it is done. ValueError unless float32, shape (n,), not empty."""
    x, held = checked(x), []

    def empty():
        held.append(allocate(x.nbytes))
        address = int(getattr(held[-1], "handle", held[-1]))
        return gpu.DeviceArray(Buffer.from_handle(address, x.nbytes, owner=held[-1]), x.size, np.float32)

    first, second = empty(), empty()
    first.copy_from_host(x, stream)
    start(stream, PATTERNS[0], first, second)
    free(held[0])
    third = empty()
    start(stream, PATTERNS[0], second, third)
    out = third.to_host(stream)
    for memory in held[1:]:
        free(memory)
    return out


def copy_pycuda(x):
    """x, copied on the device, in memory by PyCUDA's mem_alloc; Unavailable without PyCUDA, ValueError as `relay`."""
    # in your own code: import pycuda.autoprimaryctx, pycuda.driver as cuda; from pycuda.compiler import SourceModule
    x, pycuda = checked(x), load_pycuda()
    cuda, out = pycuda.driver, np.empty_like(x)
    kernel = pycuda.SourceModule(KERNEL, no_extern_c=True).get_function("copy")
    d_x, d_y = cuda.mem_alloc(x.nbytes), cuda.mem_alloc(x.nbytes)
    cuda.memcpy_htod(d_x, x)
    kernel(d_x, d_y, np.int64(x.size), block=(BLOCK, 1, 1), grid=(-(-x.size // BLOCK), 1))
    cuda.memcpy_dtoh(out, d_y)
    d_x.free()  # or when nobody refers to it any more
    d_y.free()
    return out


# %% Patterns of access
def start(stream, pattern, x, y):
    """Launch a pattern from x to y, arrays on the device; the particles of a move are those of x, which it changes."""
    n, k, columns = y.size, pattern.k, 1
    if pattern.kernel == "copy_strided":
        n, columns = n // k, k
    arguments = x.buffer, y.buffer, np.int64(n)
    if k > 0:
        arguments += (np.int32(k),)
    if pattern.kernel.startswith("move"):
        n = x.size // 8
        arguments = x.buffer, DT, np.int64(n)
    threads = -(-n // pattern.each)
    config = LaunchConfig(grid=(-(-threads // BLOCK), columns), block=BLOCK)
    launch(stream, config, compiled().get_kernel(pattern.kernel), *arguments)


def run(pattern, x):
    """What a pattern makes of float32 (n,): a copy, or particles that have moved. ValueError if n does not suit it."""
    shift = pattern.k if pattern.kernel == "copy_shifted" else 0
    x, (_, stream) = checked(x, pattern.multiple, shift), gpu.open_device()
    d_x, d_y = gpu.to_device(x, stream), gpu.empty(x.size - shift, np.float32, stream)
    start(stream, pattern, d_x, d_y)
    return (d_x if pattern.kernel.startswith("move") else d_y).to_host(stream)


def reference(pattern, x):
    """What `run` should give, in float64 where something is computed."""
    if pattern.kernel == "copy_strided":
        return x.reshape(-1, pattern.k).T.ravel()
    if not pattern.kernel.startswith("move"):
        return x[pattern.k :]
    soa = "soa" in pattern.kernel
    members = np.array(x.reshape(8, -1) if soa else x.reshape(-1, 8).T, np.float64)
    members[:3] += DT * members[4:7]
    return (members if soa else members.T).ravel()


def suitable(pattern, n):
    """Random input for a pattern, of n elements or a few more, in [-1, 1). After 2^20 they repeat."""
    n = -(-n // pattern.multiple) * pattern.multiple + (pattern.kernel == "copy_shifted")
    return np.resize(np.random.default_rng(812).uniform(-1, 1, min(n, 1 << 20)).astype(np.float32), n)


def useful_bytes(pattern, n):
    """Bytes that a pattern has to move on n elements: of a particle's 8 floats it reads 6 and writes 3."""
    return 36 * (n // 8) if pattern.kernel.startswith("move") else 8 * n


# %% By hand and counted
def compare(n):
    """Print the sectors of a request by hand and as the simulator counts; Mismatch if they differ. n fills warps."""
    lines = []
    for pattern in PATTERNS:
        with counting() as launches:
            run(pattern, suitable(pattern, n))
        line, travels = [pattern.name], 0
        for kind, by_hand in (("load", pattern.loads), ("store", pattern.stores)):
            requests, sectors = (launches[0].total(f"global_{kind}_{what}") for what in ("requests", "sectors"))
            if sectors != by_hand * requests:
                raise Mismatch(f"{pattern.name}: {sectors / requests:g} sectors a {kind}, by hand {by_hand}")
            line += [f"{requests:,}", by_hand, f"{sectors / requests:g}"]
            travels += 32 * sectors
        lines.append((*line, f"{travels / useful_bytes(pattern, n):.3g}"))
    each = "by hand", "counted"
    headings = "pattern", "loads", *each, "stores", *each, "bytes / useful"
    table(f"{n:,} floats: requests of warps, sectors of 32 bytes in each; their bytes / those needed", headings, lines)


# %% Verify and measure
def verify(n):
    """The checks of every allocator and pattern, on about n elements. Raises Mismatch if one is wrong."""
    x, checks, (_, stream) = suitable(PATTERNS[0], n), [], gpu.open_device()
    for name, way in allocators(stream).items():
        checks.append(check(f"copy in memory of {name}", relay(x, stream, *way), x))
    try:
        checks.append(check("copy in memory of PyCUDA's mem_alloc", copy_pycuda(x), x))
    except Unavailable as missing:
        print(missing)
    for pattern in PATTERNS:
        atol = 2.0**-22 if "move" in pattern.name else 0  # it rounds once or twice, by 2^-24 of a number below 2
        x = suitable(pattern, n)
        checks.append(check(pattern.name, run(pattern, x), reference(pattern, x), atol=atol))
    return checks


PAIR, DTOD = "allocate, free: ", "cuMemcpyDtoD"
PAIRS, REQUESTS = 20, {"64 KiB": 64 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20}


def pairs(stream, row):
    """What a pair of allocate and free costs the host, by each allocator: the segments of a cache are there already."""
    import torch

    ways = allocators(stream)
    if torch.cuda.is_available():
        torch.cuda.init()
        ways["PyTorch"] = torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete
    else:
        not_run("PyTorch's allocator: this torch is built without CUDA", "./run setup")
    try:
        mem_alloc = load_pycuda().driver.mem_alloc
        from pycuda.tools import DeviceMemoryPool

        for name, allocate in (("PyCUDA mem_alloc", mem_alloc), ("PyCUDA pool", DeviceMemoryPool().allocate)):
            ways[name] = allocate, lambda allocation: allocation.free()
    except Unavailable as missing:
        print(missing)

    def repeat(allocate, free, nbytes):
        for _ in range(PAIRS):
            free(allocate(nbytes))

    rows = []
    for size, nbytes in REQUESTS.items():
        times = timing.wall_clock({name: functools.partial(repeat, *way, nbytes) for name, way in ways.items()})
        each = {name: timing.Timing.of([s / PAIRS for s in t.samples], PAIRS) for name, t in times.items()}
        peer = "cuMemAlloc", each["cuMemAlloc"]
        rows += [row(name=f"{PAIR}{k}", size=size, dtype="", timing=t, peer=peer) for k, t in each.items()]
    return rows


def benchmark() -> list[Row]:
    """Pairs of allocate and free; each pattern on 2^28 floats (less on a small GPU), beside cuMemcpyDtoD."""
    device, stream = gpu.open_device()
    row = functools.partial(Row.from_timing, section="8.1.2", yardsticks=timing.yardsticks(device, stream))
    verify(10_007)
    rows = pairs(stream, row)
    log = min(28, (gpu.free_memory() // 32).bit_length() - 1)  # two arrays in a quarter of what is free
    n = 1 << log
    d_x, d_y = gpu.to_device(suitable(PATTERNS[1], n), stream), gpu.empty(n, np.float32, stream)
    ends = int(d_y.buffer.handle), int(d_x.buffer.handle)
    calls = {p.name: functools.partial(start, pattern=p, x=d_x, y=d_y) for p in PATTERNS}
    calls[DTOD] = lambda s: gpu.checked(driver.cuMemcpyDtoDAsync(*ends, 4 * n, int(s.handle)))
    times = timing.benchmark(calls, stream)
    row = functools.partial(row, size=f"2^{log}", dtype="f32")
    rows.append(row(name=DTOD, timing=times[DTOD], bytes=8 * n))
    for p in PATTERNS:
        figures = {"load sectors/request": p.loads, "store sectors/request": p.stores}
        peer = None if p.kernel.startswith("move") else (DTOD, times[DTOD])  # which moves other bytes
        rows.append(row(name=p.name, timing=times[p.name], bytes=useful_bytes(p, n), peer=peer, figures=figures))
    return rows


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=100_003, quick_size=10_007, plot=True).parse_args(argv)
    device, stream = gpu.open_device()
    header(__doc__, device)
    check_fits(16 * options.size)
    checks_table(verify(options.size))
    show_fragmentation(stream)
    if options.plot:
        plot(stream)
    if gpu.SIMULATED:
        compare(1 << 15)
        not_run("PyTorch's allocator, the cost of a pair, GB/s: the simulator has no time")
    rows, _ = results.measured_or_recorded("8.1.2", benchmark, options.bench)
    costs = "A pair of allocate and free on the host's clock, the device idle (ours is Python)"
    rates = "GB/s of the bytes that are needed; sectors by hand; vs: its time over this one's"
    for title, of_pairs in ((costs, True), (rates, False)):
        if chosen := [row for row in rows if row.name.startswith(PAIR) is of_pairs]:
            results.show(chosen, title)
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
