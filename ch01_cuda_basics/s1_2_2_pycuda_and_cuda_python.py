# %%
"""1.2.2 Python环境配置：PyCUDA与CUDA Python接口 — PyCUDA and CUDA Python

本节把同一个核函数用四种接口写一遍：PyCUDA 的 SourceModule 与 ElementwiseKernel、cuda.core、以及最底层的 cuda.bindings。
One kernel through PyCUDA's SourceModule and ElementwiseKernel, cuda.core, and the driver's own functions.

要点
  四种接口最后都调用驱动的同一个 cuLaunchKernel，所以结果相同；差别在于谁检查错误、谁释放内存、每次启动花主机多少时间。
  cuda.bindings 与 C 的函数一一对应，状态码要自己检查；cuda.core 抛出异常、自动释放，也能与 torch、CuPy 共用流与内存。
  混用时要共用同一个主上下文：用 pycuda.autoprimaryctx，不要用 autoinit；PyCUDA 默认的流与 cuda.core 的流之间没有先后。
Key idea
  All roads lead to cuLaunchKernel. Take cuda.core for new code, PyCUDA where its arrays and generated kernels save
  work, the bindings for what neither has; in one primary context they can share memory.

Run:      ./run 1.2.2     or     python ch01_cuda_basics/s1_2_2_pycuda_and_cuda_python.py [--size N] [--quick]
Look at:  that all give the same bits; on a GPU what a launch costs the host in each.
"""

import ctypes
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

# %% The kernel
KERNEL = r"""
// y = a x + y, held between low and high: a step of an update with clipping. fmaf, so that every compiler rounds alike.
extern "C" __global__ void clipped_update(float a, const float* __restrict__ x, float* __restrict__ y, float low,
                                          float high, long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fminf(fmaxf(fmaf(a, x[i], y[i]), low), high);
}
"""
BLOCK = 256


# %% The reference
def reference(a, x, y, low, high):
    """clip(a x + y, low, high): exact in float64, then rounded once to float32, as fmaf does."""
    exact = np.float64(np.float32(a)) * x.astype(np.float64) + y
    return np.clip(exact.astype(np.float32), np.float32(low), np.float32(high))


def checked(x, y):
    """The two as contiguous arrays. ValueError unless they are float32 vectors of one length, not empty."""
    if x.dtype != np.float32 or y.dtype != np.float32 or x.ndim != 1 or x.shape != y.shape or x.size == 0:
        raise ValueError(f"expected two float32 vectors of one length, got {x.dtype} {x.shape} and {y.dtype} {y.shape}")
    return np.ascontiguousarray(x), np.array(y)


# %% cuda.core: objects that own what they hold; errors are exceptions
class Core:
    """cuda.core: one call is `Core()(a, x, y, low, high)`."""

    def __init__(self):
        self.device = Device(0)
        self.device.set_current()
        self.stream = self.device.create_stream()
        options = ProgramOptions(std="c++17", arch=f"sm_{self.device.arch}")
        self.kernel = Program(KERNEL, "c++", options).compile("cubin").get_kernel("clipped_update")

    def launcher(self, a, d_x, d_y, low, high, n):
        """A function that launches once. Memory is a Buffer, or an address as np.uint64."""
        config = LaunchConfig(grid=-(-n // BLOCK), block=BLOCK)
        arguments = np.float32(a), d_x, d_y, np.float32(low), np.float32(high), np.int64(n)
        return lambda: launch(self.stream, config, self.kernel, *arguments)

    def __call__(self, a, x, y, low, high):
        x, y = checked(x, y)
        hosts = [Buffer.from_handle(array.ctypes.data, array.nbytes, owner=array) for array in (x, y)]
        d_x, d_y = (self.device.allocate(host.size, stream=self.stream) for host in hosts)
        for host, on_device in zip(hosts, (d_x, d_y), strict=True):
            on_device.copy_from(host, stream=self.stream)
        self.launcher(a, d_x, d_y, low, high, x.size)()
        d_y.copy_to(hosts[1], stream=self.stream)
        self.stream.sync()
        return y

    def sync(self):
        self.stream.sync()


# %% PyCUDA: a SourceModule, and GPUArrays
class PyCuda:
    """PyCUDA's SourceModule; Unavailable without PyCUDA. Its default stream is the legacy one."""

    def __init__(self):
        # in your own code: import pycuda.autoprimaryctx, pycuda.driver, pycuda.gpuarray
        #                   from pycuda.compiler import SourceModule
        self.pycuda = load_pycuda()
        self.kernel = self.pycuda.SourceModule(KERNEL, no_extern_c=True).get_function("clipped_update")
        self.sync = (
            self.pycuda.driver.Stream(0).synchronize if gpu.SIMULATED else self.pycuda.driver.Context.synchronize
        )

    def launcher(self, a, d_x, d_y, low, high, n):
        arguments = np.float32(a), d_x, d_y, np.float32(low), np.float32(high), np.int64(n)
        return lambda: self.kernel(*arguments, block=(BLOCK, 1, 1), grid=(-(-n // BLOCK), 1))

    def __call__(self, a, x, y, low, high):
        x, y = checked(x, y)
        d_x, d_y = self.pycuda.gpuarray.to_gpu(x), self.pycuda.gpuarray.to_gpu(y)
        self.launcher(a, d_x, d_y, low, high, x.size)()
        return d_y.get()


# %% PyCUDA writes the kernel: only the operation for one element is given
class Elementwise(PyCuda):
    """PyCUDA's ElementwiseKernel; Unavailable without PyCUDA."""

    def __init__(self):
        super().__init__()
        # in your own code: from pycuda.elementwise import ElementwiseKernel
        arguments = "float a, float *x, float *y, float low, float high"
        operation = "y[i] = fminf(fmaxf(fmaf(a, x[i], y[i]), low), high)"
        self.kernel = self.pycuda.ElementwiseKernel(arguments, operation, "clipped_update")

    def launcher(self, a, d_x, d_y, low, high, n):
        return lambda: self.kernel(np.float32(a), d_x, d_y, np.float32(low), np.float32(high))


# %% cuda.bindings: the driver's own functions, one for one
class Driver:
    """cuda.bindings.driver and cuda.bindings.nvrtc; Unavailable on the simulator, which has no driver.

    Each function returns a status first, which gpu.checked turns into an exception. Nothing is freed by itself.
    """

    def __init__(self):
        if gpu.SIMULATED:
            raise Unavailable("cuda.bindings.driver: the simulator has no driver; its compiler half runs")
        from cuda.bindings import driver

        self.driver, self.stream = driver, 0  # the legacy default stream
        gpu.checked(driver.cuInit(0))
        device = gpu.checked(driver.cuDeviceGet(0))
        gpu.checked(driver.cuCtxSetCurrent(gpu.checked(driver.cuDevicePrimaryCtxRetain(device))))
        self.module = gpu.checked(driver.cuModuleLoadData(compile_with_nvrtc(f"sm_{Device(0).arch}")))
        self.kernel = gpu.checked(driver.cuModuleGetFunction(self.module, b"clipped_update"))

    def launcher(self, a, d_x, d_y, low, high, n):
        """Arguments are passed as an array of their addresses, so each has to live somewhere until the call."""
        types = ctypes.c_float, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_float, ctypes.c_float, ctypes.c_int64
        values = [kind(value) for kind, value in zip(types, (a, int(d_x), int(d_y), low, high, n), strict=True)]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        grid, block, pointer = (-(-n // BLOCK), 1, 1), (BLOCK, 1, 1), ctypes.addressof(addresses)

        def start(keep=(values, addresses)):  # alive as long as this function
            gpu.checked(self.driver.cuLaunchKernel(self.kernel, *grid, *block, 0, self.stream, pointer, 0))

        return start

    def __call__(self, a, x, y, low, high):
        x, y = checked(x, y)
        d_x, d_y = (gpu.checked(self.driver.cuMemAlloc(array.nbytes)) for array in (x, y))
        try:
            for array, on_device in ((x, d_x), (y, d_y)):
                gpu.checked(self.driver.cuMemcpyHtoD(on_device, array.ctypes.data, array.nbytes))
            self.launcher(a, d_x, d_y, low, high, x.size)()
            gpu.checked(self.driver.cuMemcpyDtoH(y.ctypes.data, d_y, y.nbytes))  # waits for the kernel
        finally:
            for on_device in (d_x, d_y):
                gpu.checked(self.driver.cuMemFree(on_device))
        return y

    def sync(self):
        gpu.checked(self.driver.cuCtxSynchronize())


def compile_with_nvrtc(arch):
    """KERNEL as a cubin, bytes, by the compiler's own functions. Raises CUDAError, with the log."""
    from cuda.bindings import nvrtc

    program = gpu.checked(nvrtc.nvrtcCreateProgram(KERNEL.encode(), b"clipped_update.cu", 0, [], []))
    options = [b"-std=c++17", f"-arch={arch}".encode()]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status) != 0:
        log = bytes(gpu.checked(nvrtc.nvrtcGetProgramLogSize(program)) + 1)  # it is written into, so it must be new
        gpu.checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise gpu.CUDAError(log.decode())
    cubin = bytes(gpu.checked(nvrtc.nvrtcGetCUBINSize(program)))
    gpu.checked(nvrtc.nvrtcGetCUBIN(program, cubin))
    gpu.checked(nvrtc.nvrtcDestroyProgram(program))
    return cubin


INTERFACES = {
    "cuda.bindings.driver": Driver,
    "cuda.core": Core,
    "PyCUDA SourceModule": PyCuda,
    "PyCUDA ElementwiseKernel": Elementwise,
}
FACTS = (
    (
        "cuda.bindings.driver",
        "you, each status",
        "you, cuMemFree",
        "explicit, 0 is the legacy one",
        "what no other has",
    ),
    ("cuda.core", "it raises CUDAError", "it, with the Buffer", "always explicit", "new code; with torch, CuPy"),
    (
        "PyCUDA SourceModule",
        "it raises LogicError",
        "it, with the array",
        "the legacy one unless given",
        "existing code",
    ),
    (
        "PyCUDA ElementwiseKernel",
        "it raises LogicError",
        "it, with the array",
        "the legacy one unless given",
        "formulas, no kernel",
    ),
)


@functools.cache
def interface(name):
    """One of INTERFACES, compiled once; Unavailable where it is not there."""
    return INTERFACES[name]()


def available():
    """{name: interface} of those that are there; a line for each that is not."""
    found = {}
    for name in INTERFACES:
        try:
            found[name] = interface(name)
        except Unavailable as missing:
            print(missing)
    return found


# %% One memory for two interfaces
def shared_memory(x, y):
    """One update by PyCUDA and a second one by cuda.core in the same memory: a GPUArray's address is an address.

    Their streams do not wait for each other, so PyCUDA's work is waited for in between. Unavailable without PyCUDA.
    """
    x, y = checked(x, y)
    ours, theirs = interface("cuda.core"), interface("PyCUDA SourceModule")
    d_x, d_y = theirs.pycuda.gpuarray.to_gpu(x), theirs.pycuda.gpuarray.to_gpu(y)
    theirs.launcher(2, d_x, d_y, -5, 5, x.size)()
    theirs.sync()
    ours.launcher(-1, *(np.uint64(int(array.gpudata)) for array in (d_x, d_y)), -1, 1, x.size)()
    ours.sync()
    return d_y.get()


# %% Verify and measure
def random_vectors(n):
    return np.random.default_rng(122).standard_normal((2, n), dtype=np.float32)


def verify(n):
    """The checks of all interfaces on n random elements: the same bits from each. Raises Mismatch if one is wrong."""
    (x, y), found = random_vectors(n), available()
    expected = reference(1.75, x, y, -1.5, 2.5)
    checks = [check(name, call(1.75, x, y, -1.5, 2.5), expected) for name, call in found.items()]
    if "PyCUDA SourceModule" in found:
        twice = reference(-1, x, reference(2, x, y, -5, 5), -1, 1)
        checks.append(check("PyCUDA, then cuda.core", shared_memory(x, y), twice))
    return checks


LAUNCHES = 1000


def benchmark() -> list[Row]:
    """What a launch costs the host, from 1000 small ones in a row; and a whole call with its copies."""
    device, stream = gpu.open_device()
    what = {"section": "1.2.2", "dtype": "f32", "yardsticks": timing.yardsticks(device, stream)}
    verify(100_003)
    found, n, (x, y) = available(), 256, random_vectors(1 << 20)
    (d_x, d_y), calls, arrays = (gpu.to_device(v[:n], stream) for v in (x, y)), {}, None
    for name, way in found.items():
        if name.startswith("PyCUDA"):
            arrays = arrays or [way.pycuda.gpuarray.to_gpu(v[:n]) for v in (x, y)]
            start = way.launcher(1, *arrays, -1, 1, n)
        else:
            start = way.launcher(1, *(np.uint64(int(d.buffer.handle)) for d in (d_x, d_y)), -1, 1, n)

        def many(start=start, way=way):
            for _ in range(LAUNCHES):
                start()
            way.sync()

        calls[name] = many
    rows = []
    for size, share, timed in (
        ("a launch", LAUNCHES, calls),
        ("2^20, a whole call", 1, {k: functools.partial(way, 1, x, y, -1, 1) for k, way in found.items()}),
    ):
        taken = timing.wall_clock(timed)
        times = {name: timing.Timing.of([s / share for s in t.samples], share) for name, t in taken.items()}
        peer = "cuda.core", times["cuda.core"]
        rows += [Row.from_timing(name=k, size=size, timing=t, peer=peer, **what) for k, t in times.items()]
    return rows


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=1_000_003, quick_size=100_003).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    check_fits(16 * options.size)
    cubin = compile_with_nvrtc(f"sm_{Device(0).arch}")
    print(f"cuda.bindings.nvrtc: {len(cubin):,} bytes of machine code for sm_{Device(0).arch}")
    checks_table(verify(options.size))
    table("Four interfaces", ("interface", "who checks errors", "who frees memory", "stream", "good for"), FACTS)
    measure(benchmark, options.bench)
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
