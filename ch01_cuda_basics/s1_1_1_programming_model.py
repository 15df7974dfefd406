# %%
"""1.1.1 CUDA编程模型概述 — The CUDA programming model

本节用向量加法和 SAXPY（y = a·x + y）走完 CUDA 编程模型：写核函数、编译、分配、拷贝、启动、同步、取回、释放。
Vector addition and SAXPY, from one thread per element to the version that one would ship.

要点
  核函数只写一个线程做什么；启动时给出网格（多少块）和块（多少线程），几百万个线程执行同一段代码。
  线程用 blockIdx.x * blockDim.x + threadIdx.x 算出自己的下标；块数向上取整，多余的线程由 if (i < n) 拦住。
  网格跨步循环让任意大小的网格处理任意长度的数据；float4 让一次访存搬运 16 字节。
Key idea
  A kernel says what one thread does; the launch says how many threads there are. Index arithmetic maps threads
  to data, the guard handles the ragged end, and launches are asynchronous: results exist after a sync.

Run:      ./run 1.1.1     or     python ch01_cuda_basics/s1_1_1_programming_model.py [--size N] [--quick]
Look at:  the life of one call, step by step with its real values; which thread handles which element;
          on a GPU, how close each version comes to the speed of a plain device copy, and of torch.
"""

import functools

import numpy as np

from common import gpu, timing
from common.cli import Unavailable, check_fits, header, parser, run_main

# in your own code: from cuda.core import Buffer, Device, LaunchConfig, Program, ProgramOptions, launch
from common.gpu import Buffer, Device, LaunchConfig, Program, ProgramOptions, launch
from common.pycuda import load as load_pycuda
from common.report import table
from common.results import Row, measure
from common.verify import check, checks_table

NEEDS = ()

# %% The kernels
KERNEL = r"""
// One thread adds one pair. The grid is rounded up to whole blocks, so the last block has threads to spare:
// the guard stops them. The index has 64 bits, for vectors of more than 2^31 elements.
extern "C" __global__ void vector_add(const float* __restrict__ x, const float* __restrict__ y,
                                      float* __restrict__ out, long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] + y[i];
}

// y = a x + y in place: "single-precision a times x plus y", with the arguments in the order of BLAS.
extern "C" __global__ void saxpy(long long n, float a, const float* __restrict__ x, float* __restrict__ y)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

// Grid-stride loop: any grid covers any n. Each thread walks on by the size of the whole grid, so at every
// step neighbouring threads touch neighbouring elements, which the memory system serves together.
extern "C" __global__ void saxpy_grid_stride(long long n, float a, const float* __restrict__ x,
                                             float* __restrict__ y)
{
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        y[i] = a * x[i] + y[i];
}

// How to cut two vectors of n floats for float4, which needs addresses that 16 divides: `head` single elements,
// then `quads` groups of four, then what is left. If the two never reach such an address at the same element,
// there are no groups.
struct Cut { long long head, quads; };

__device__ Cut cut_for_float4(long long n, const float* x, const float* y)
{
    const int x_past = (unsigned long long)x / 4 % 4, y_past = (unsigned long long)y / 4 % 4;  // elements
    if (x_past != y_past) return {0, 0};
    const long long head = (4 - y_past) % 4;
    return {head, (n - head) / 4};  // no groups either where n < head: the quotient is rounded towards zero
}

// The version to ship: 16 bytes per load and store, any alignment, any n, any grid.
extern "C" __global__ void saxpy_float4(long long n, float a, const float* __restrict__ x, float* __restrict__ y)
{
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long stride = (long long)gridDim.x * blockDim.x;
    const Cut cut = cut_for_float4(n, x, y);

    const float4* x4 = reinterpret_cast<const float4*>(x + cut.head);
    float4* y4 = reinterpret_cast<float4*>(y + cut.head);
    for (long long q = first; q < cut.quads; q += stride) {
        const float4 u = x4[q];
        float4 v = y4[q];
        v.x = a * u.x + v.x;
        v.y = a * u.y + v.y;
        v.z = a * u.z + v.z;
        v.w = a * u.w + v.w;
        y4[q] = v;
    }
    // the elements before the first group and after the last one, numbered through
    for (long long r = first; r < n - 4 * cut.quads; r += stride) {
        const long long i = r < cut.head ? r : r + 4 * cut.quads;
        y[i] = a * x[i] + y[i];
    }
}

// The same, reduced to moving memory: how fast can it be at all?
extern "C" __global__ void copy_float4(long long n, const float* __restrict__ x, float* __restrict__ y)
{
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long stride = (long long)gridDim.x * blockDim.x;
    const Cut cut = cut_for_float4(n, x, y);

    const float4* x4 = reinterpret_cast<const float4*>(x + cut.head);
    float4* y4 = reinterpret_cast<float4*>(y + cut.head);
    for (long long q = first; q < cut.quads; q += stride) y4[q] = x4[q];
    for (long long r = first; r < n - 4 * cut.quads; r += stride) {
        const long long i = r < cut.head ? r : r + 4 * cut.quads;
        y[i] = x[i];
    }
}
"""


# %% The reference: NumPy, obviously right
def reference(a, x, y):
    """a x + y in float64. For x + y alone NumPy's own float32 sum will do: it rounds once, as the GPU does."""
    return float(a) * x.astype(np.float64) + y


# %% One call from beginning to end
BLOCK = 256  # threads in a block: a multiple of 32, which is a warp; 128 to 512 suit most kernels


def vectors(x, y):
    """x and y, contiguous. ValueError unless both are float32 and 1-D, of one length and not empty."""
    x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
    if not (x.dtype == y.dtype == np.float32 and x.ndim == 1 and x.shape == y.shape and x.size > 0):
        raise ValueError(f"expected two float32 vectors of one length, got {x.dtype} {x.shape}, {y.dtype} {y.shape}")
    return x, y


def vector_add(x, y, steps=None):
    """x + y of float32 vectors of one length, shape (n,). A list given as `steps` receives what each step did.

    ValueError for other vectors, CUDAError where the device has too little memory or the kernel fails.
    """
    x, y = vectors(x, y)
    n, out = x.size, np.empty_like(x)
    h_x, h_y, h_out = (Buffer.from_handle(a.ctypes.data, a.nbytes, owner=a) for a in (x, y, out))  # as copies take it

    device = Device(0)
    device.set_current()
    stream = device.create_stream()

    program = Program(KERNEL, "c++", ProgramOptions(std="c++17", arch=f"sm_{device.arch}"))
    module = program.compile("cubin")  # compile, for the architecture of this device
    kernel = module.get_kernel("vector_add")  # load
    d_x, d_y, d_out = (device.allocate(x.nbytes, stream=stream) for _ in range(3))  # allocate
    d_x.copy_from(h_x, stream=stream)  # copy in
    d_y.copy_from(h_y, stream=stream)

    blocks = (n + BLOCK - 1) // BLOCK  # rounded up, or the end of the vectors would be left out
    config = LaunchConfig(grid=blocks, block=BLOCK)
    launch(stream, config, kernel, d_x, d_y, d_out, np.int64(n))  # launch: returns before the kernel has run
    stream.sync()  # wait: an error of the kernel surfaces here
    d_out.copy_to(h_out, stream=stream)  # copy out
    stream.sync()

    addresses = ", ".join(f"{int(buffer.handle):#x}" for buffer in (d_x, d_y, d_out))
    for buffer in (d_x, d_y, d_out):
        buffer.close(stream)  # free
    if steps is not None:
        steps += [
            ("compile", "Program.compile", f"CUDA C++ to {len(module.code):,} bytes of {module.code_type}"),
            ("load", "module.get_kernel", f"vector_add, which takes {kernel.num_arguments} arguments"),
            ("allocate", "device.allocate", f"3 × {x.nbytes:,} bytes, at {addresses}"),
            ("copy in", "Buffer.copy_from", f"x and y, 2 × {x.nbytes:,} bytes from host to device"),
            ("launch", "launch", f"{blocks:,} blocks × {BLOCK} threads, {blocks * BLOCK - n} of them to spare"),
            ("wait", "stream.sync", "every thread has run, no error"),
            ("copy out", "Buffer.copy_to", f"out, {out.nbytes:,} bytes from device to host"),
            ("free", "Buffer.close", "3 buffers"),
        ]
    return out


# %% The rungs of saxpy, and the copy
@functools.cache
def compiled():
    """KERNEL, compiled once for the current device."""
    return Program(KERNEL, "c++", ProgramOptions(std="c++17", arch=f"sm_{Device().arch}")).compile("cubin")


def blocks_for(name, n):
    """How many blocks of BLOCK threads a kernel gets for n elements."""
    if name == "saxpy_grid_stride":  # no more than run at the same time: each thread then takes many elements
        limits = Device().properties
        resident = limits.multiprocessor_count * (limits.max_threads_per_multiprocessor // BLOCK)
        return min(resident, -(-n // BLOCK))
    return -(-n // (4 * BLOCK if name.endswith("_float4") else BLOCK))  # a thread for each float4, or each float


def run(name, x, y, *scalars):
    """What the kernel `name`, given (n, *scalars, x, y), makes of y: float32 (n,). Steps as above, by helpers."""
    (x, y), (_, stream) = vectors(x, y), gpu.open_device()
    d_x, d_y = gpu.to_device(x, stream), gpu.to_device(y, stream)
    config = LaunchConfig(grid=blocks_for(name, x.size), block=BLOCK)
    launch(stream, config, compiled().get_kernel(name), np.int64(x.size), *scalars, d_x.buffer, d_y.buffer)
    return d_y.to_host(stream)


def saxpy(a, x, y, kernel="saxpy"):
    """a x + y of float32 vectors of one length, shape (n,), by one of SAXPYS. Arguments in the order of BLAS."""
    return run(kernel, x, y, np.float32(a))


# %% The same kernel through PyCUDA
def saxpy_pycuda(a, x, y):
    """As `saxpy`: In and InOut allocate and copy before the kernel, InOut copies back after it. Unavailable without."""
    # in your own code: import pycuda.autoprimaryctx, pycuda.driver; from pycuda.compiler import SourceModule
    pycuda = load_pycuda()
    x, y = vectors(x, y)
    out = y.copy()
    kernel = pycuda.SourceModule(KERNEL, no_extern_c=True).get_function("saxpy")
    arguments = np.int64(x.size), np.float32(a), pycuda.driver.In(x), pycuda.driver.InOut(out)
    kernel(*arguments, block=(BLOCK, 1, 1), grid=(blocks_for("saxpy", x.size), 1))
    return out


# %% Verify and measure
A = 2.5
SAXPYS = ("saxpy", "saxpy_grid_stride", "saxpy_float4")


def random_vectors(n):
    return np.random.default_rng(111).standard_normal((2, n), dtype=np.float32)


def verify(n):
    """The checks of all variants on n random elements. Raises Mismatch if one is wrong."""
    x, y = random_vectors(n)
    checks = [check("vector_add", vector_add(x, y), x + y), check("copy_float4", run("copy_float4", x, y), x)]
    results = {kernel: saxpy(A, x, y, kernel) for kernel in SAXPYS}
    try:
        results["saxpy_pycuda"] = saxpy_pycuda(A, x, y)
    except Unavailable as missing:
        print(missing)
    # float32 rounds a x + y once (a fused multiply-add) or twice, by 6e-8 of numbers up to about 15
    return checks + [check(name, out, reference(A, x, y), rtol=1e-7, atol=1e-6) for name, out in results.items()]


def benchmark() -> list[Row]:
    """saxpy and copy of 2^28 elements (fewer where memory is short), against a device copy and against torch."""
    yardsticks = timing.yardsticks(*gpu.open_device())
    import torch

    verify(1_000_003)
    log = min(28, (gpu.free_memory() // 32).bit_length() - 1)  # two vectors in a quarter of the free memory
    n = 1 << log
    with timing.torch_stream() as stream:
        x, y = (gpu.to_device(vector, stream) for vector in random_vectors(n))
        torch_x, torch_y = (torch.as_tensor(vector, device="cuda") for vector in (x, y))  # the same memory

        def ours(name, *scalars):
            config, kernel = LaunchConfig(grid=blocks_for(name, n), block=BLOCK), compiled().get_kernel(name)
            return lambda s: launch(s, config, kernel, np.int64(n), *scalars, x.buffer, y.buffer)

        variants = {name: ours(name, np.float32(A)) for name in SAXPYS}
        variants["torch.add"] = lambda s: torch.add(torch_y, torch_x, alpha=A, out=torch_y)
        variants["copy_float4"] = ours("copy_float4")
        variants["torch copy_"] = lambda s: torch_y.copy_(torch_x)
        times = timing.benchmark(variants, stream)
    rows, what = [], {"section": "1.1.1", "size": f"2^{log}", "dtype": "f32", "yardsticks": yardsticks}
    for name, taken in times.items():
        moved, peer = (8 * n, "torch copy_") if "copy" in name else (12 * n, "torch.add")
        rows.append(Row.from_timing(name=name, timing=taken, bytes=moved, peer=(peer, times[peer]), **what))
    return rows


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=1_000_003, quick_size=100_003).parse_args(argv)
    n, (device, _) = options.size, gpu.open_device()
    header(__doc__, device)
    check_fits(3 * 4 * n)

    steps = []
    vector_add(*random_vectors(n), steps)
    table("The life of one call: vector_add", ("step", "call", "what it did"), steps)
    some = sorted(i for i in {0, BLOCK - 1, BLOCK, n - 1} if i < n)
    who = [(i, i // BLOCK, i % BLOCK, f"{i // BLOCK} * {BLOCK} + {i % BLOCK}") for i in some]
    table("Who handles what", ("element", "blockIdx.x", "threadIdx.x", "blockIdx.x * blockDim.x + threadIdx.x"), who)
    threads = BLOCK * blocks_for("saxpy_grid_stride", n)
    print(f"saxpy_grid_stride: {threads:,} threads walk through {n:,} elements in {-(-n // threads)} steps")
    checks_table(verify(n))
    measure(benchmark, options.bench)
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
