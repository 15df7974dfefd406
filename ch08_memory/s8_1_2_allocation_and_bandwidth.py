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
import contextlib
import functools
import threading
from collections import namedtuple

import numpy as np

from common import gpu, results, timing
from common.cli import Unavailable, check_fits, header, not_run, parser, run_main

# in your own code: from cuda.core import Buffer, Device, DeviceMemoryResource, LaunchConfig, Program, …
from common.gpu import Buffer, Device, DeviceMemoryResource, LaunchConfig, Program, ProgramOptions, launch
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

// Vectorised: 16 bytes a lane, and LOADS of them on their way before the first is stored. A block copies LOADS *
// blockDim.x float4 that lie together, so that a warp's loads are whole pieces of 512 bytes. With STREAMING the caches
// are told that nothing is used again (ld.global.cs, st.global.cs). Memory that 16 does not divide is copied by floats.
template <int LOADS, bool STREAMING>
__global__ void copy_float4(const float* __restrict__ x, float* __restrict__ y, long long n)
{
    const bool aligned = ((unsigned long long)x | (unsigned long long)y) % 16 == 0;
    const long long quads = aligned ? n / 4 : 0, tile = LOADS * (long long)blockDim.x;
    const float4* const from = reinterpret_cast<const float4*>(x);
    float4* const to = reinterpret_cast<float4*>(y);
    const long long q = blockIdx.x * tile + threadIdx.x;
    if ((blockIdx.x + 1) * tile <= quads) {
        float4 v[LOADS];
        #pragma unroll
        for (int k = 0; k < LOADS; ++k)
            v[k] = STREAMING ? __ldcs(from + q + k * blockDim.x) : from[q + k * blockDim.x];
        #pragma unroll
        for (int k = 0; k < LOADS; ++k)
            if (STREAMING) __stcs(to + q + k * blockDim.x, v[k]);
            else to[q + k * blockDim.x] = v[k];
    } else {
        for (long long p = q; p < min((blockIdx.x + 1) * tile, quads); p += blockDim.x) to[p] = from[p];
    }
    const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (long long i = 4 * quads + thread; i < n; i += (long long)gridDim.x * blockDim.x) y[i] = x[i];
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
COPIES = {f"copy_float4<{loads}, {streaming}>": loads for loads in (4, 1) for streaming in ("true", "false")}
# number: the shift or stride; multiple: of what n is one; loads, stores: by hand, the sectors of a warp's request
Pattern = namedtuple("Pattern", "name kernel number multiple loads stores")
PATTERNS = (
    Pattern("copy", "copy", 0, 1, 4, 4),  # 32 lanes × 4 bytes are 128, and a sector is 32
    Pattern("copy, 1 float later", "copy_shifted", 1, 1, 5, 4),  # 128 bytes that begin inside a sector touch one more
    Pattern("copy, stride 2", "copy_strided", 2, 2, 8, 4),
    Pattern("copy, stride 8", "copy_strided", 8, 8, 32, 4),  # a sector for each lane; there cannot be more
    Pattern("copy, stride 32", "copy_strided", 32, 32, 32, 4),
    *(Pattern(name, name, 0, 1, 16, 16) for name in COPIES),  # 32 lanes × 16 bytes
    Pattern("move_aos", "move_aos", 0, 8, 32, 32),  # lanes are 32 bytes apart
    Pattern("move_aos_float4", "move_aos_float4", 0, 8, 32, 32),
    Pattern("move_soa", "move_soa", 0, 8, 4, 4),
    Pattern("move_soa_float4", "move_soa_float4", 0, 32, 16, 16),
)


@functools.cache
def compiled():
    """KERNEL, compiled once for the current device."""
    options = ProgramOptions(std="c++17", arch=f"sm_{Device().arch}")
    return Program(KERNEL, "c++", options).compile("cubin", name_expressions=list(COPIES))


# %% Memory from the driver and from its pool
class DriverMemory:
    """cuMemAlloc and cuMemFree, which are cudaMalloc and cudaFree: no stream has a say, and freeing waits for all."""

    def __init__(self):
        if gpu.SIMULATED:
            raise Unavailable("cuMemAlloc: it is the driver's, which the simulator does not have")
        from cuda.bindings import driver

        self.driver = driver

    def allocate(self, nbytes, stream):
        return int(gpu.checked(self.driver.cuMemAlloc(nbytes)))

    def free(self, address):
        gpu.checked(self.driver.cuMemFree(address))


class PooledMemory:
    """cuMemAllocAsync, cuMemFreeAsync by cuda.core: in the order of a stream, from a pool that the driver keeps."""

    def __init__(self):
        self.resource, self.buffers = DeviceMemoryResource(Device()), {}

    def allocate(self, nbytes, stream):
        buffer = self.resource.allocate(nbytes, stream=stream)
        self.buffers[int(buffer.handle)] = buffer
        return int(buffer.handle)

    def free(self, address):
        self.buffers.pop(address).close()  # in the order of the stream that it was allocated on


# %% A caching allocator
ALIGNMENT, SEGMENT, SMALL = 512, 2 << 20, 1 << 20
# segment: (address, size) of what it was cut from; pool: (stream, whether for small requests)
Block = namedtuple("Block", "address size segment pool free")


class CachingAllocator:
    """Takes segments of 2 MiB or more from `upstream`, cuts them up, and keeps what is freed for the next request.

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
        if nbytes <= 0:
            raise ValueError(f"expected a positive number of bytes, got {nbytes}")
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        with self.lock:
            pool = int(stream.handle), size <= SMALL
            free = self.free_lists.setdefault(pool, [])
            if not free or free[-1][0] < size:
                segment = self._segment(-(-size // SEGMENT) * SEGMENT, stream)
                self._add(Block(*segment, segment, pool, True))
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
                if other and other.free and other.segment == block.segment:
                    self._remove(other.address)
                    block = block._replace(address=min(block.address, other.address), size=block.size + other.size)
            self._add(block._replace(free=True))

    def release(self):
        """Give the segments in which nothing is in use back to `upstream`."""
        with self.lock:
            for block in list(self.blocks.values()):
                if block.free and (block.address, block.size) == block.segment:
                    self.upstream.free(self._remove(block.address).address)

    def _segment(self, nbytes, stream):
        try:
            return self.upstream.allocate(nbytes, stream), nbytes
        except (gpu.CUDAError, MemoryError):
            self.release()  # and once more, without what is only kept
            return self.upstream.allocate(nbytes, stream), nbytes

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


@contextlib.contextmanager
def caching():
    """A CachingAllocator on what there is: cuMemAlloc, or on the simulator its pool. At the end it gives all back."""
    allocator = CachingAllocator(PooledMemory() if gpu.SIMULATED else DriverMemory())
    yield allocator
    allocator.release()  # which waits for the device, or is in the order of the stream


# %% What fragmentation looks like
def usage(allocator):
    """Bytes of a CachingAllocator: {"in use", "free", "largest free"}."""
    free = [b.size for b in allocator.blocks.values() if b.free]
    used = sum(b.size for b in allocator.blocks.values() if not b.free)
    return {"in use": used, "free": sum(free), "largest free": max(free, default=0)}


def picture(allocator, unit=64 << 10):
    """A line for each segment, a character for each `unit` bytes: # where some of them are in use, . where none is."""
    lines = {}
    for block in sorted(allocator.blocks.values()):
        first, nbytes = block.segment
        line = lines.setdefault(first, ["."] * -(-nbytes // unit))
        if not block.free:
            begin, end = (block.address - first) // unit, -(-(block.address + block.size - first) // unit)
            line[begin:end] = "#" * (end - begin)
    return "\n".join("".join(line) for line in lines.values())


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


def show_fragmentation(allocator, stream):
    """The map of the blocks and their figures, step by step."""
    lines = []
    for step in fragment(allocator, stream):
        found = usage(allocator)
        whole = f"{found['largest free'] / found['free']:.0%}" if found["free"] else "—"
        lines.append((step, picture(allocator), *(f"{n >> 10} KiB" for n in found.values()), whole))
    title = "A caching allocator: a line is a segment, # in use, . free, 64 KiB each; last: what one request can have"
    table(title, ("step", "map", *found, "largest / free"), lines)


# %% Kernels in memory of any kind
def relay(x, allocator):
    """x, copied from one array to a second and from there to a third, which may get the memory of the first: that one
    is freed when the copy is enqueued, not when it is done. ValueError unless float32, shape (n,), not empty."""
    checked(x)
    _, stream = gpu.open_device()

    def empty():
        buffer = Buffer.from_handle(allocator.allocate(x.nbytes, stream), x.nbytes, owner=allocator)
        return gpu.DeviceArray(buffer, x.size, np.float32)

    first, second = empty(), empty()
    first.copy_from_host(x, stream)
    start(stream, PATTERNS[0], first, second)
    allocator.free(int(first.buffer.handle))
    third = empty()
    start(stream, PATTERNS[0], second, third)
    out = third.to_host(stream)
    for array in (second, third):
        allocator.free(int(array.buffer.handle))
    return out


def copy_pycuda(x):
    """x, copied on the device, in memory by PyCUDA's mem_alloc; Unavailable without PyCUDA, ValueError as `relay`."""
    # in your own code: import pycuda.autoprimaryctx, pycuda.driver as cuda; from pycuda.compiler import SourceModule
    checked(x)
    pycuda, out = load_pycuda(), np.empty_like(x)
    cuda = pycuda.driver
    kernel = pycuda.SourceModule(KERNEL, no_extern_c=True, options=["-std=c++17"]).get_function("copy")
    d_x, d_y = cuda.mem_alloc(x.nbytes), cuda.mem_alloc(x.nbytes)
    cuda.memcpy_htod(d_x, x)
    kernel(d_x, d_y, np.int64(x.size), block=(BLOCK, 1, 1), grid=(-(-x.size // BLOCK), 1))
    cuda.memcpy_dtoh(out, d_y)
    d_x.free()  # or when nobody refers to it any more
    d_y.free()
    return out


# %% Patterns of access
def checked(x, multiple=1):
    """ValueError unless float32, contiguous, shape (n,), with n > 0 a multiple of `multiple`."""
    if x.dtype != np.float32 or x.ndim != 1 or x.size == 0 or x.size % multiple or not x.flags.c_contiguous:
        what = f"contiguous float32 (n,), n > 0 and a multiple of {multiple}"
        raise ValueError(f"expected {what}, got {x.dtype} {x.shape}")


def start(stream, pattern, x, y):
    """Launch a pattern from x to y, arrays on the device; the particles of a move are those of x, which it changes."""
    name, k, n, across = pattern.kernel, np.int32(pattern.number), y.size, 1
    arguments, threads = (x.buffer, y.buffer, np.int64(n)), n
    if name == "copy_shifted":
        arguments += (k,)
    elif name == "copy_strided":
        threads, across = n // pattern.number, pattern.number
        arguments = x.buffer, y.buffer, np.int64(threads), k
    elif name in COPIES:
        threads = -(-n // (4 * COPIES[name]))
    elif name.startswith("move"):
        threads = x.size // 8
        arguments = x.buffer, DT, np.int64(threads)
    config = LaunchConfig(grid=(-(-threads // BLOCK), across), block=BLOCK)
    launch(stream, config, compiled().get_kernel(name), *arguments)


def run(pattern, x):
    """What a pattern makes of float32 (n,): a copy, or particles that have moved. ValueError if n does not suit it."""
    shift = pattern.number if pattern.kernel == "copy_shifted" else 0
    checked(x[shift:], pattern.multiple)
    _, stream = gpu.open_device()
    d_x, d_y = gpu.to_device(x, stream), gpu.empty(x.size - shift, np.float32, stream)
    start(stream, pattern, d_x, d_y)
    return (d_x if pattern.kernel.startswith("move") else d_y).to_host(stream)


def reference(pattern, x):
    """What `run` should give, in float64 where something is computed."""
    if pattern.kernel == "copy_strided":
        return x.reshape(-1, pattern.number).T.ravel()
    if not pattern.kernel.startswith("move"):
        return x[pattern.number :]
    soa = "soa" in pattern.kernel
    members = np.array(x.reshape(8, -1) if soa else x.reshape(-1, 8).T, np.float64)
    members[:3] += DT * members[4:7]
    return (members if soa else members.T).ravel()


# %% By hand and counted
def suitable(pattern, n):
    """Random input for a pattern, of n elements or a few more."""
    return random(-(-n // pattern.multiple) * pattern.multiple + (pattern.kernel == "copy_shifted"))


def useful_bytes(pattern, n):
    """Bytes that a pattern has to move on n elements: of a particle's 8 floats it reads 6 and writes 3."""
    return 36 * (n // 8) if pattern.kernel.startswith("move") else 8 * n


def compare(n):
    """Print the sectors of a request by hand and as the simulator counts; Mismatch if they differ. n fills warps."""
    lines, wrong = [], []
    for pattern in PATTERNS:
        with counting() as launches:
            run(pattern, suitable(pattern, n))
        cells, travels = [], 0
        for kind, by_hand in (("load", pattern.loads), ("store", pattern.stores)):
            requests, sectors = (launches[0].total(f"global_{kind}_{what}") for what in ("requests", "sectors"))
            cells += [f"{requests:,}", by_hand, f"{sectors / requests:g}"]
            travels += 32 * sectors
            if sectors != by_hand * requests:
                wrong.append(f"{pattern.name}: {sectors / requests:g} sectors a {kind}, by hand {by_hand}")
        lines.append((pattern.name, *cells, f"{travels / useful_bytes(pattern, n):.3g}"))
    each = "by hand", "counted"
    headings = "pattern", "load requests", *each, "store requests", *each, "bytes / useful"
    table(f"{n:,} floats: sectors (32 bytes) of a warp's request; bytes in sectors / bytes needed", headings, lines)
    if wrong:
        raise Mismatch("\n".join(wrong))


# %% Verify and measure
def random(n):
    """float32 (n,) in [-1, 1). After 2^20 they repeat."""
    return np.resize(np.random.default_rng(812).uniform(-1, 1, min(n, 1 << 20)).astype(np.float32), n)


def verify(n):
    """The checks of every allocator and pattern, on about n elements. Raises Mismatch if one is wrong."""
    x, checks = random(n), []

    def in_cache():
        with caching() as allocator:
            return relay(x, allocator)

    calls = {"cuMemAlloc": lambda: relay(x, DriverMemory()), "the driver's pool": lambda: relay(x, PooledMemory())}
    calls |= {"the caching allocator": in_cache, "PyCUDA's mem_alloc": lambda: copy_pycuda(x)}
    for name, call in calls.items():
        try:
            checks.append(check(f"copy in memory of {name}", call(), x))
        except Unavailable as missing:
            print(missing)
    for pattern in PATTERNS:
        atol = 2.0**-22 if "move" in pattern.name else 0  # it rounds once or twice, by 2^-24 of a number below 2
        x = suitable(pattern, n)
        checks.append(check(pattern.name, run(pattern, x), reference(pattern, x), atol=atol))
    return checks


# %% Measure
PAIR, DTOD = "allocate, free: ", "cuMemcpyDtoD"
PAIRS, REQUESTS = 20, {"64 KiB": 64 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20}


def by_torch():
    """(allocate, free) of PyTorch's caching allocator, without a tensor around it; Unavailable without torch's CUDA."""
    import torch

    if not torch.cuda.is_available():
        raise Unavailable("PyTorch's allocator: this torch is built without CUDA", "./run setup")
    torch.cuda.init()
    return torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete


def by_pycuda(pool=False):
    """(allocate, free) of PyCUDA's mem_alloc or of its DeviceMemoryPool; Unavailable without PyCUDA."""
    allocate = load_pycuda().driver.mem_alloc
    if pool:
        from pycuda.tools import DeviceMemoryPool

        allocate = DeviceMemoryPool().allocate
    return allocate, lambda allocation: allocation.free()


def pairs(stream, row, cache):
    """What a pair of allocate and free costs the host, by each allocator: the segments of a cache are there already."""

    def ours(allocator):
        return functools.partial(allocator.allocate, stream=stream), allocator.free

    def repeated(allocate, free, nbytes):
        for _ in range(PAIRS):
            free(allocate(nbytes))

    rows, ways = [], {"cuMemAlloc": ours(DriverMemory()), "driver's pool": ours(PooledMemory()), "ours": ours(cache)}
    others = {"PyTorch": by_torch, "PyCUDA mem_alloc": by_pycuda, "PyCUDA pool": lambda: by_pycuda(pool=True)}
    for name, make in others.items():
        try:
            ways[name] = make()
        except Unavailable as missing:
            print(missing)
    for size, nbytes in REQUESTS.items():
        times = timing.wall_clock({name: functools.partial(repeated, *way, nbytes) for name, way in ways.items()})
        each = {name: timing.Timing.of([s / PAIRS for s in t.samples], PAIRS) for name, t in times.items()}
        peer = "cuMemAlloc", each["cuMemAlloc"]
        rows += [row(name=f"{PAIR}{k}", size=size, dtype="", timing=t, peer=peer) for k, t in each.items()]
    return rows


def benchmark() -> list[Row]:
    """Pairs of allocate and free; each pattern on 2^28 floats (less on a small GPU), beside cuMemcpyDtoD."""
    from cuda.bindings import driver

    device, stream = gpu.open_device()
    row = functools.partial(Row.from_timing, section="8.1.2", yardsticks=timing.yardsticks(device, stream))
    verify(10_007)
    with caching() as cache:
        rows = pairs(stream, row, cache)
    log = min(28, (gpu.free_memory() // 32).bit_length() - 1)  # two arrays in a quarter of what is free
    n = 1 << log
    d_x, d_y = gpu.to_device(random(n + 1), stream), gpu.empty(n, np.float32, stream)
    ends = int(d_y.buffer.handle), int(d_x.buffer.handle)
    calls = {DTOD: lambda s: gpu.checked(driver.cuMemcpyDtoDAsync(*ends, 4 * n, int(s.handle)))}
    for pattern in PATTERNS:
        calls[pattern.name] = functools.partial(start, pattern=pattern, x=d_x, y=d_y)
    sectors = {p.name: {"load sectors/request": p.loads, "store sectors/request": p.stores} for p in PATTERNS}
    moved = {p.name: useful_bytes(p, n) for p in PATTERNS} | {DTOD: 8 * n}
    times = timing.benchmark(calls, stream)
    for name, taken in times.items():
        what = {"size": f"2^{log}", "dtype": "f32", "bytes": moved[name], "figures": sectors.get(name)}
        peer = None if name.startswith("move") else (DTOD, times[DTOD])  # which move other bytes
        rows.append(row(name=name, timing=taken, peer=peer, **what))
    return rows


# %% Show
def report(rows):
    """The rows in two tables."""
    host = "One pair, the host's clock, the device idle (ours is Python); 'vs peer': cuMemAlloc's time over this one's"
    device = "GB/s of the bytes that are needed; sectors by hand; 'vs peer': the device copy's time over this one's"
    for title, wanted in ((host, True), (device, False)):
        if chosen := [row for row in rows if row.name.startswith(PAIR) is wanted]:
            results.show(chosen, title)


def plot(allocator, stream):
    """A random workload on a caching allocator: what is in use, free, and the largest free block, over time."""
    generator, live, history = np.random.default_rng(8), [], []
    for _ in range(400):
        if generator.random() < len(live) / 60:
            allocator.free(live.pop(generator.integers(len(live))))
        else:
            live.append(allocator.allocate(int(2 ** generator.uniform(12, 22.5)), stream))
        history.append(usage(allocator))
    for address in live:
        allocator.free(address)
    figure, axes = new_figure("A random workload on the caching allocator", "step", "MiB")
    for name in history[0]:
        axes.plot([found[name] / 2**20 for found in history], label=name, markevery=40)
    axes.legend()
    save_figure(figure, "s8_1_2_allocation_and_bandwidth")


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=100_003, quick_size=10_007, plot=True).parse_args(argv)
    device, stream = gpu.open_device()
    header(__doc__, device)
    check_fits(16 * options.size)
    checks_table(verify(options.size))
    with caching() as allocator:
        show_fragmentation(allocator, stream)
        if options.plot:
            plot(allocator, stream)
    if gpu.SIMULATED:
        compare(1 << 15)
        not_run("PyTorch's allocator, the cost of a pair, GB/s: the simulator has no time")
    report(results.measured_or_recorded("8.1.2", benchmark, options.bench)[0])
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
