# %%
"""1.3.1 内存管理：主机内存与设备内存 — Host memory and device memory

本节用同一个核函数依次使用设备内存、内存池、锁页（映射）内存与统一内存：怎样分配、使用、释放，各付出什么代价；谁负责释放；显存不足时会怎样。
One kernel on device, pooled, pinned (read in place) and managed memory: how each is allocated, used and freed, and what
that costs; what frees a Buffer; and what happens when memory runs out.

要点
  cuMemAlloc 每次都找驱动，释放时还要等待设备；流序内存池（cuMemAllocAsync）把用过的内存留着，再次分配几乎不花时间。
  锁页内存不会被换出，设备可以直接读写（零拷贝），但每次都经过总线：只读一次的数据合适，反复读的应当先拷贝过去。
  统一内存主机和设备用同一个指针，页面在首次访问时迁移。显存不足是可以处理的错误：之前的分配和设备都还能用。
  Buffer 在 close()、with 结束或最后一个引用消失时释放；列表里忘掉的引用就是内存泄漏。
Key idea
  Allocate once and reuse, or take memory from a pool. Pinned memory is what copies want; mapped, it saves the copy of
  data that is read once. Memory lives as long as somebody refers to its Buffer. Running out of it is an error like
  others: catch it, take less, go on.

Run:      ./run 1.3.1     or     python ch01_cuda_basics/s1_3_1_host_and_device_memory.py [--size N] [--quick]
Look at:  what frees a Buffer; what an allocation that is too large says, and that the device works on; what allocating
          and freeing costs, the first time and again; how fast the kernel reads each kind of memory.
          Without a GPU: what was recorded on the GPU that it names.
"""

import contextlib
import ctypes
import time
from collections import namedtuple
from functools import cache, partial

import numpy as np
from cuda.bindings import driver
from cuda.core import DeviceMemoryResourceOptions

from common import gpu, results, timing
from common.cli import Unavailable, check_fits, header, not_run, parser, run_main

# in your own code: from cuda.core import Buffer, Device, DeviceMemoryResource, LaunchConfig, ...
from common.gpu import Buffer, Device, DeviceMemoryResource, LaunchConfig, LegacyPinnedMemoryResource, launch
from common.pycuda import load as load_pycuda
from common.report import brief, table
from common.results import Row
from common.verify import Mismatch, check, checks_table

NEEDS = ()

# %% The kernel
KERNEL = r"""
// y = 3 x + 1, wherever the two lie: the kernel sees addresses only. Four elements a thread at a time: x and y are
// aligned to 16 bytes, as every allocation is.
extern "C" __global__ void three_x_plus_1(const float* __restrict__ x, float* __restrict__ y, long long n)
{
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long q = first; q < n / 4; q += stride) {
        const float4 v = reinterpret_cast<const float4*>(x)[q];
        reinterpret_cast<float4*>(y)[q] = {3 * v.x + 1, 3 * v.y + 1, 3 * v.z + 1, 3 * v.w + 1};
    }
    const long long i = n / 4 * 4 + first;
    if (i < n) y[i] = 3 * x[i] + 1;
}
"""
BLOCK = 256
compiled = cache(lambda: gpu.compile_module(KERNEL))


# %% The reference
def reference(x):
    """3 x + 1 in float64."""
    return 3 * x.astype(np.float64) + 1


# %% Five kinds of memory
# Memory as a Buffer, which kernels and copies take; a uint8 view of it where the host can use it in place, else None;
# and a function that gives it back, after the work that uses it.
Memory = namedtuple("Memory", "buffer host free")


def from_driver(nbytes):
    """Device memory by cuMemAlloc, what cudaMalloc is. cuMemFree waits until the device has nothing to do."""
    address = int(gpu.checked(driver.cuMemAlloc(nbytes)))
    return Memory(Buffer.from_handle(address, nbytes), None, lambda: gpu.checked(driver.cuMemFree(address)))


def from_pool(nbytes):
    """Device memory from the device's pool (cuMemAllocAsync): allocated and freed in the order of a stream."""
    device = Device()
    buffer = device.allocate(nbytes, stream=device.default_stream)
    return Memory(buffer, None, buffer.close)


def pinned(nbytes):
    """Page-locked host memory (cuMemAllocHost). The device can address it: a kernel may read it in place ("mapped")."""
    buffer = LegacyPinnedMemoryResource().allocate(nbytes)
    return Memory(buffer, np.from_dlpack(buffer).view(np.uint8), buffer.close)


def managed(nbytes):
    """Managed memory (cuMemAllocManaged): one pointer for both; pages go to the side that touches them."""
    flags = driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value
    address = int(gpu.checked(driver.cuMemAllocManaged(nbytes, flags)))
    host = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
    return Memory(Buffer.from_handle(address, nbytes), host, lambda: gpu.checked(driver.cuMemFree(address)))


def pageable(nbytes):
    """Ordinary host memory, for comparison: a kernel cannot use it (but on systems that share their page tables)."""
    host = np.empty(nbytes, np.uint8)
    return Memory(Buffer.from_handle(host.ctypes.data, nbytes, owner=host), host, lambda: None)


KINDS = {"device": from_driver, "pooled": from_pool, "pinned, mapped": pinned, "managed": managed}


@contextlib.contextmanager
def allocated(kind, nbytes):
    """Memory of a kind inside the `with`; freed behind it, when the device has done its work."""
    if nbytes < 1:
        raise ValueError(f"expected a positive number of bytes, got {nbytes}")
    if gpu.SIMULATED and kind in (from_driver, managed):
        raise Unavailable("cuMemAlloc and managed memory: they are the driver's, which the simulator does not have")
    memory = kind(nbytes)
    try:
        Device().sync()  # pooled memory is there when the default stream has come so far, and others may use it then
        yield memory
    finally:
        Device().sync()
        memory.free()


# %% Use it
def write(memory, array, stream):
    """Fill memory with a host array of its size: in place where the host can, else by a copy."""
    if memory.host is not None:
        memory.host[:] = array.view(np.uint8)
    else:
        gpu.copy_to_buffer(memory.buffer, array, stream)


def read(memory, stream):
    """All of it as float32, in a NumPy array."""
    if memory.host is None:
        return gpu.DeviceArray(memory.buffer, memory.buffer.size // 4, np.float32).to_host(stream)
    stream.sync()  # the host reads in place: nothing else would make it wait
    return memory.host.view(np.float32).copy()


def start(stream, x, y):
    """Launch y = 3 x + 1 on all float32 of memory x, into memory y."""
    n = x.buffer.size // 4
    config = LaunchConfig(grid=-(-n // (4 * BLOCK)), block=BLOCK)
    launch(stream, config, compiled().get_kernel("three_x_plus_1"), x.buffer, y.buffer, np.int64(n))


def as_vector(x):
    """x in contiguous memory; ValueError unless it is float32 of shape (n,), n > 0."""
    if (x := np.asarray(x)).dtype != np.float32 or x.ndim != 1 or x.size == 0:
        raise ValueError(f"expected a float32 vector that is not empty, got {x.dtype} of shape {x.shape}")
    return np.ascontiguousarray(x)


def three_x_plus_1(x, kind=from_pool):
    """3 x + 1 for float32 x, shape (n,), in memory of a kind; ValueError for other x, Unavailable on the simulator for
    the kinds that it does not have."""
    x, (_, stream) = as_vector(x), gpu.open_device()
    with allocated(kind, x.nbytes) as source, allocated(kind, x.nbytes) as target:
        write(source, x, stream)
        start(stream, source, target)
        return read(target, stream)


# %% The same through PyCUDA
PYCUDA_KINDS = ("device", "pooled", "managed")


def three_x_plus_1_pycuda(x, kind="device"):
    """As `three_x_plus_1`, in memory of PyCUDA's, a kind of PYCUDA_KINDS. Unavailable without PyCUDA, and for the last
    two on the simulator."""
    if kind not in PYCUDA_KINDS:
        raise ValueError(f"expected a kind of memory out of {PYCUDA_KINDS}, got {kind!r}")
    # in your own code: import pycuda.autoprimaryctx, pycuda.driver as cuda; from pycuda.compiler import SourceModule
    x, pycuda = as_vector(x), load_pycuda()
    if gpu.SIMULATED and kind != "device":
        raise Unavailable("PyCUDA's pooled and managed memory: the simulator has neither")
    cuda, n = pycuda.driver, np.int64(x.size)
    kernel = pycuda.SourceModule(KERNEL, no_extern_c=True).get_function("three_x_plus_1")
    shape = {"block": (BLOCK, 1, 1), "grid": (-(-x.size // (4 * BLOCK)), 1)}
    if kind == "managed":
        flags = cuda.mem_attach_flags.GLOBAL
        source, target = (cuda.managed_empty(x.shape, np.float32, mem_flags=flags) for _ in range(2))
        source[:] = x
        kernel(source, target, n, **shape)
        cuda.Context.synchronize()  # the host may look only then
        return target.copy()
    allocate = cuda.mem_alloc
    if kind == "pooled":
        from pycuda.tools import DeviceMemoryPool

        allocate = DeviceMemoryPool().allocate  # of PyCUDA's own making, over cuMemAlloc: it knows no streams
    host, d_x, d_y = cuda.pagelocked_empty(x.size, np.float32), allocate(x.nbytes), allocate(x.nbytes)
    host[:] = x
    cuda.memcpy_htod(d_x, host)
    kernel(d_x, d_y, n, **shape)
    cuda.memcpy_dtoh(host, d_y)
    d_x.free()  # or when nobody refers to it any more
    d_y.free()
    return host.copy()


# %% Who frees it
def lifetimes(nbytes=8 << 20):
    """[(what a program does, how many of its Buffers hold memory then)], as the device's pool tells, which it must
    have. Mismatch if they are not as expected."""
    device, stream = gpu.open_device()
    pool, found = DeviceMemoryResource(device), []
    device.sync()
    before = pool.attributes.used_mem_current

    def note(what):
        device.sync()  # memory goes back in the order of its stream
        found.append((what, (pool.attributes.used_mem_current - before) / nbytes))

    buffer = pool.allocate(nbytes, stream=stream)
    note("buffer = pool.allocate(...)")
    part = Buffer.from_handle(int(buffer.handle), 1024, owner=buffer)  # without its owner it would dangle
    del buffer
    note("del buffer, while a view names it as its owner")
    del part
    note("del of the view: the last reference is gone")
    with pool.allocate(nbytes, stream=stream) as buffer:
        note("inside `with pool.allocate(...) as buffer:`")
    note(f"behind the `with`: buffer.is_closed is {buffer.is_closed}")
    kept = [pool.allocate(nbytes, stream=stream) for _ in range(3)]
    note("three in a list that nobody reads any more: a leak")
    kept[0].close()
    note("close() of the first of them")
    check("who frees it", [held for _, held in found], [1.0, 1, 0, 1, 0, 3, 2])
    return found


# %% When memory runs out
def out_of_memory():
    """[(what, found)] when a quarter more than is free is asked for. Mismatch if that succeeds, or if the device does
    not work as before."""
    before = gpu.free_memory()
    wanted, allocate = before + before // 4, from_pool if gpu.SIMULATED else from_driver
    try:
        allocate(wanted).free()
        raise Mismatch(f"{wanted:,} bytes were allocated where {before:,} are free")
    except gpu.CUDAError as error:
        said = f"{type(error).__name__}: {brief(error)}"
    x = np.arange(1000, dtype=np.float32)
    check("after running out of memory", three_x_plus_1(x), reference(x))
    sizes = {"free before": before, "asked for": wanted, "free after": gpu.free_memory()}
    lines = [(what, f"{nbytes:,} bytes") for what, nbytes in sizes.items()]
    return [*lines, ("the answer", said), ("the device", "works on: verified")]


def pinnable(nbytes):
    """`nbytes`, or the half, quarter, ... of it that can be pinned here (containers, WSL); says so where it is less."""
    try:
        pinned(nbytes).free()
        return nbytes
    except gpu.CUDAError as refused:
        if nbytes < 1 << 16:
            raise
        print(f"{nbytes:,} bytes of pinned memory: {brief(refused)}; half of that is tried")
        return pinnable(nbytes // 2)


# %% Verify and measure
def random_vector(n):
    return np.random.default_rng(131).uniform(-1, 1, n).astype(np.float32)


def verify(n):
    """The checks of every kind of memory on n random elements. Raises Mismatch if one is wrong."""
    x, checks, missing = random_vector(n), [], []
    calls = {name: partial(three_x_plus_1, x, kind) for name, kind in KINDS.items()}
    calls |= {f"PyCUDA, {kind}": partial(three_x_plus_1_pycuda, x, kind) for kind in PYCUDA_KINDS}
    for name, call in calls.items():
        try:
            # a product and a sum, each rounded by at most 2^-24 of a number below 4
            checks.append(check(name, call(), reference(x), atol=8 * 2.0**-24))
        except Unavailable as reason:
            missing.append(str(reason))
    for line in dict.fromkeys(missing):  # each once
        print(line)
    return checks


SIZES = {"64 KiB": 1 << 16, "1 MiB": 1 << 20, "64 MiB": 1 << 26}


def benchmark() -> list[Row]:
    """Allocating and freeing each kind of memory, and the kernel reading it."""
    device, stream = gpu.open_device()
    row = partial(Row.from_timing, section="1.3.1", yardsticks=timing.yardsticks(device, stream))
    verify(100_003)
    rows = reading(row, stream, ("device", "pooled", "pinned, mapped"), 1 << 28)
    return allocating(row, stream) + rows + reading(row, stream, ("device", "managed"), 1 << 26)


def timed_after(prepare, call, samples=20):
    """The timing of call(prepare()) by the host's clock, which stands still while `prepare` works."""
    taken = []
    for _ in range(samples):
        prepared = prepare()
        began = time.perf_counter()
        call(prepared)
        taken.append(time.perf_counter() - began)
    return timing.Timing.of(taken)


def allocating(row, stream):
    """Allocating and freeing by the host's clock, with nothing in between."""

    def own(kind, nbytes):
        memory = kind(nbytes)
        if kind in (pageable, managed):
            memory.host[:: 1 << 12] = 1  # the system gives pages when they are touched
        memory.free()

    def new_pool():  # which has yet to get its memory from the driver; without options it would be the device's own
        stream.sync()
        return DeviceMemoryResource(stream.device, DeviceMemoryResourceOptions())

    def take_and_free(nbytes, pool):
        pool.allocate(nbytes, stream=stream).close()

    rows, kinds = [], {**KINDS, "pageable": pageable}
    for size, nbytes in SIZES.items():
        times = timing.wall_clock({name: partial(own, kind, nbytes) for name, kind in kinds.items()})
        times["pooled, the first time"] = timed_after(new_pool, partial(take_and_free, nbytes))
        peer = next(iter(times.items()))
        rows += [row(name=f"allocate, free: {k}", size=size, dtype="", timing=t, peer=peer) for k, t in times.items()]
    return rows


def reading(row, stream, names, nbytes):
    """The kernel reading these kinds of memory, compared with the first; it always writes to device memory."""
    nbytes = pinnable(min(nbytes, gpu.free_memory() // 8) >> 20 << 20)
    x = random_vector(nbytes // 4)
    with contextlib.ExitStack() as held:
        target = held.enter_context(allocated(from_driver, nbytes))
        memory = {name: held.enter_context(allocated(KINDS[name], nbytes)) for name in names}
        for source in memory.values():
            write(source, x, stream)
        calls = {f"kernel reads: {name}": partial(start, x=source, y=target) for name, source in memory.items()}

        def copy_then_read(s):
            memory["device"].buffer.copy_from(memory["pinned, mapped"].buffer, stream=s)
            start(s, memory["device"], target)

        def read_pages(_):  # which move as the kernel touches them
            start(stream, memory["managed"], target)
            stream.sync()

        if "pinned, mapped" in memory:
            calls["copy, then kernel reads: device"] = copy_then_read
        times = timing.benchmark(calls, stream)
        if "managed" in memory:
            late = timed_after(partial(write, memory["managed"], x, stream), read_pages)
            times["kernel reads: managed, after the host wrote"] = late
    what = {"size": f"{nbytes >> 20} MiB", "dtype": "f32", "bytes": 2 * nbytes, "peer": next(iter(times.items()))}
    return [row(name=k, timing=t, figures={"GB/s read": nbytes / t.seconds / 1e9}, **what) for k, t in times.items()]


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=1_000_003, quick_size=100_003).parse_args(argv)
    device, _ = gpu.open_device()
    header(__doc__, device)
    check_fits(16 * options.size)
    checks_table(verify(options.size))
    if device.properties.memory_pools_supported:
        lines = [(what, f"{held:g}") for what, held in lifetimes()]
        table("Who frees it", ("what the program does", "Buffers that hold memory"), lines)
    else:
        not_run("who frees memory: this device has no memory pools, which tell")
    table("Out of memory", ("what", "found"), out_of_memory())
    rows, _ = results.measured_or_recorded("1.3.1", benchmark, options.bench)
    if rows:
        results.show(rows)
        print("'vs peer': allocating against cuMemAlloc and cuMemFree, reading against device memory. Over the bus the")
        print("kernel reads no faster than a copy, which 1.3.2 measures; managed pages cross it once, when they move.")
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
