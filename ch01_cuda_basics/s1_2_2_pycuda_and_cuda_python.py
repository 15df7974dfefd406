# %%
"""1.2.2 Python环境配置：PyCUDA与CUDA Python接口 — PyCUDA and CUDA Python

本节把同一个核函数用 cuda.bindings（驱动 API）、cuda.core 与 PyCUDA 各写一遍，比较结果、代码和每次启动占用主机的时间。
One kernel through cuda.bindings (the driver API), cuda.core and PyCUDA: the results, the code and the cost of a launch.

要点
  所有接口最后都由驱动 API 启动核函数，所以结果逐位相同；差别在于谁检查错误、谁释放内存、启动一次占用主机多久。
  cuda.bindings 与 C 函数一一对应，状态码要自己检查；cuda.core 抛出异常、自动释放；PyCUDA 还能由一个表达式生成核函数。
  混用时共用同一个主上下文（pycuda.autoprimaryctx，不用 autoinit），并放进同一个流：不同的流之间没有先后。
Key idea
  All roads lead to the driver API. Take cuda.core for new code, PyCUDA where its arrays and generated kernels save
  work, the bindings for what neither has; in one primary context and one stream they share memory.

Run:      ./run 1.2.2     or     python ch01_cuda_basics/s1_2_2_pycuda_and_cuda_python.py [--size N] [--quick]
Look at:  that all give the same bits, with how much code; on a GPU, what a launch costs the host.
"""

import contextlib
import ctypes
from functools import partial

import numpy as np

from common import gpu, timing
from common.cli import Unavailable, check_fits, header, parser, run_main

# in your own code: from cuda.core import LEGACY_DEFAULT_STREAM, Buffer, Device, LaunchConfig, Program, ProgramOptions
#                   from cuda.core import launch
from common.gpu import LEGACY_DEFAULT_STREAM, Buffer, Device, LaunchConfig, Program, ProgramOptions, launch
from common.pycuda import load as load_pycuda
from common.report import si, table
from common.results import Row, measure
from common.verify import check, checks_table

NEEDS = ()

# %% The kernel
KERNEL = r"""
// y = a x + y, held between low and high: a step of an update, with clipping. Not by fminf and fmaxf, which would turn
// a NaN into a bound. fmaf: every compiler rounds once.
extern "C" __global__ void clipped_update(float a, const float* __restrict__ x, float* __restrict__ y, float low,
                                          float high, long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float v = fmaf(a, x[i], y[i]);
    y[i] = v < low ? low : v > high ? high : v;
}
"""
BLOCK = 256


# %% The reference, and what every interface does
def reference(a, x, y, low, high):
    """clip(a x + y, low, high): the product is exact in float64; rounded to float32 at the end, as fmaf does."""
    exact = np.float64(np.float32(a)) * x.astype(np.float64) + y
    return np.clip(exact.astype(np.float32), np.float32(low), np.float32(high))


def checked(x, y, low, high):
    """x and y as contiguous arrays. ValueError unless float32 vectors of one length, not empty, and low <= high."""
    x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
    if not (x.dtype == y.dtype == np.float32 and x.shape == y.shape == (x.size,) and x.size > 0 and low <= high):
        got = f"{x.dtype} {x.shape}, {y.dtype} {y.shape}, {low} and {high}"
        raise ValueError(f"expected two float32 vectors of one length, not empty, and low <= high, got {got}")
    return x, y


class Interface:
    """`call = Interface(); call(a, x, y, low, high)` is the updated y, in new memory. ValueError as `checked` says."""

    def __call__(self, a, x, y, low, high):
        x, y = checked(x, y, low, high)
        d_x, d_y, out = self.upload(x), self.upload(y), np.empty_like(y)
        try:
            self.launcher(a, d_x, d_y, low, high, out.size)()
            self.download(out, d_y)
        finally:
            self.free(d_x, d_y)
        return out

    def free(self, *arrays):
        """Nothing to do: they are freed when nobody refers to them any more."""

    close = free  # nor here


# %% cuda.bindings: the driver's own functions, one for one
class Driver(Interface):
    """cuda.bindings.driver. Each function returns a status first: gpu.checked raises CUDAError unless that is 0."""

    def __init__(self):
        if gpu.SIMULATED:
            raise Unavailable("cuda.bindings.driver: the simulator has no driver", "an NVIDIA GPU with its driver")
        from cuda.bindings import driver

        self.driver = driver
        gpu.checked(driver.cuInit(0))
        self.device = gpu.checked(driver.cuDeviceGet(0))
        gpu.checked(driver.cuCtxSetCurrent(gpu.checked(driver.cuDevicePrimaryCtxRetain(self.device))))
        self.module = gpu.checked(driver.cuModuleLoadData(compile_with_nvrtc(f"sm_{Device(0).arch}")))
        self.kernel = gpu.checked(driver.cuModuleGetFunction(self.module, b"clipped_update"))

    def upload(self, array):
        on_device = gpu.checked(self.driver.cuMemAlloc(array.nbytes))
        gpu.checked(self.driver.cuMemcpyHtoD(on_device, array.ctypes.data, array.nbytes))
        return on_device

    def launcher(self, a, d_x, d_y, low, high, n):
        """cuLaunchKernel wants the addresses of the arguments, so each lives in memory of its own until the call."""
        types = ctypes.c_float, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_float, ctypes.c_longlong
        values = [kind(value) for kind, value in zip(types, (a, int(d_x), int(d_y), low, high, n), strict=True)]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        grid, block, shared, stream = (-(-n // BLOCK), 1, 1), (BLOCK, 1, 1), 0, 0  # stream 0: the legacy default one

        def start(keep=values):  # alive as long as this function
            where = ctypes.addressof(addresses)
            gpu.checked(self.driver.cuLaunchKernel(self.kernel, *grid, *block, shared, stream, where, 0))

        return start

    def download(self, array, on_device):
        gpu.checked(self.driver.cuMemcpyDtoH(array.ctypes.data, on_device, array.nbytes))  # waits for the kernel

    def free(self, *arrays):
        for on_device in arrays:
            gpu.checked(self.driver.cuMemFree(on_device))

    def close(self):
        gpu.checked(self.driver.cuModuleUnload(self.module))
        gpu.checked(self.driver.cuDevicePrimaryCtxRelease(self.device))


def compile_with_nvrtc(arch):
    """KERNEL as a cubin (bytes) for `arch`, such as "sm_90", by the compiler's own functions. CUDAError has its log."""
    from cuda.bindings import nvrtc

    program = gpu.checked(nvrtc.nvrtcCreateProgram(KERNEL.encode(), b"clipped_update.cu", 0, [], []))
    (status,) = nvrtc.nvrtcCompileProgram(program, 2, [b"-std=c++17", f"-arch={arch}".encode()])
    if int(status) != 0:
        log = bytes(gpu.checked(nvrtc.nvrtcGetProgramLogSize(program)) + 1)  # written into: Python shares short bytes
        gpu.checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise gpu.CUDAError(log.rstrip(b"\0").decode())
    cubin = bytes(gpu.checked(nvrtc.nvrtcGetCUBINSize(program)))
    gpu.checked(nvrtc.nvrtcGetCUBIN(program, cubin))
    gpu.checked(nvrtc.nvrtcDestroyProgram(program))
    return cubin


# %% cuda.core: objects that own what they hold
class Core(Interface):
    """cuda.core. `stream`: one of its own, unless given."""

    def __init__(self, stream=None):
        self.device = Device(0)
        self.device.set_current()
        self.stream = stream or self.device.create_stream()
        options = ProgramOptions(std="c++17", arch=f"sm_{self.device.arch}")
        self.kernel = Program(KERNEL, "c++", options).compile("cubin").get_kernel("clipped_update")

    def upload(self, array):
        on_device = self.device.allocate(array.nbytes, stream=self.stream)
        on_device.copy_from(Buffer.from_handle(array.ctypes.data, array.nbytes, owner=array), stream=self.stream)
        return on_device

    def launcher(self, a, d_x, d_y, low, high, n):
        config = LaunchConfig(grid=-(-n // BLOCK), block=BLOCK)
        arguments = np.float32(a), d_x, d_y, np.float32(low), np.float32(high), np.int64(n)
        return lambda: launch(self.stream, config, self.kernel, *arguments)

    def download(self, array, on_device):
        on_device.copy_to(Buffer.from_handle(array.ctypes.data, array.nbytes, owner=array), stream=self.stream)
        self.stream.sync()


# %% PyCUDA: modules from source, arrays on the device
class PyCuda(Interface):
    """PyCUDA's SourceModule, compiled by nvcc, and GPUArray. Its stream is the legacy default one."""

    def __init__(self):
        # in your own code: import pycuda.autoprimaryctx, pycuda.driver, pycuda.gpuarray
        #                   from pycuda.compiler import SourceModule
        self.pycuda = load_pycuda()
        self.kernel = self.pycuda.SourceModule(KERNEL, no_extern_c=True).get_function("clipped_update")

    def upload(self, array):
        return self.pycuda.gpuarray.to_gpu(array)

    def launcher(self, a, d_x, d_y, low, high, n):
        arguments = np.float32(a), d_x, d_y, np.float32(low), np.float32(high), np.int64(n)
        return lambda: self.kernel(*arguments, block=(BLOCK, 1, 1), grid=(-(-n // BLOCK), 1))

    def download(self, array, on_device):
        self.pycuda.driver.memcpy_dtoh(array, on_device.gpudata)  # waits for the kernel


class Prepared(PyCuda):
    """The same; the types of the arguments are told once, not found out at each launch."""

    def launcher(self, a, d_x, d_y, low, high, n):
        self.kernel.prepare("fPPffq")  # as Python's struct spells them: float, pointer, ..., long long
        grid, block, arguments = (-(-n // BLOCK), 1), (BLOCK, 1, 1), (a, d_x.gpudata, d_y.gpudata, low, high, n)
        return lambda: self.kernel.prepared_call(grid, block, *arguments)


class Elementwise(PyCuda):
    """PyCUDA's ElementwiseKernel: only the operation for element i is given, kernel and grid are generated."""

    def __init__(self):
        # in your own code: from pycuda.elementwise import ElementwiseKernel
        self.pycuda = load_pycuda()
        arguments = "float a, float *x, float *y, float low, float high"
        operation = "float v = fmaf(a, x[i], y[i]); y[i] = v < low ? low : v > high ? high : v"
        self.kernel = self.pycuda.ElementwiseKernel(arguments, operation, "clipped_update_elementwise")

    def launcher(self, a, d_x, d_y, low, high, n):
        return lambda: self.kernel(a, d_x, d_y, low, high)


INTERFACES = {  # and: who checks errors, who frees memory, what it is good for
    "cuda.bindings.driver": (Driver, "you, each status", "you, cuMemFree", "what the others do not have"),
    "cuda.core": (Core, "it raises CUDAError", "the Buffer", "new code; shares streams with torch, CuPy"),
    "PyCUDA SourceModule": (PyCuda, "it raises its Error", "the GPUArray", "code that uses PyCUDA already"),
    "PyCUDA prepared_call": (Prepared, "no check of types", "the GPUArray", "the same, where launches are many"),
    "PyCUDA ElementwiseKernel": (Elementwise, "it raises its Error", "the GPUArray", "a formula, and no kernel"),
}


@contextlib.contextmanager
def interfaces():
    """({name: interface} of those that are here, closed in the end; one line for each library that is missing)."""
    found, missing = {}, {}
    with contextlib.ExitStack() as stack:
        for name, (make, *_) in INTERFACES.items():
            try:
                found[name] = stack.enter_context(contextlib.closing(make()))
            except Unavailable as error:
                missing[str(error)] = name  # three need PyCUDA, but that is one line
        yield found, list(missing)


# %% One memory, two libraries
def shared_memory(x, y):
    """One update by PyCUDA, then another one by cuda.core, in the same memory. Unavailable without PyCUDA.

    PyCUDA's kernels take whatever has __cuda_array_interface__; cuda.core's take the Buffer around a GPUArray's
    address. Both work in the legacy default stream, so the second launch waits for the first, and the host for none.
    """
    (x, y), theirs, ours = checked(x, y, -1, 1), PyCuda(), Core(LEGACY_DEFAULT_STREAM)
    d_x, d_y = gpu.DeviceArray(ours.upload(x), x.shape, x.dtype), theirs.upload(y)
    theirs.launcher(2, d_x, d_y, -5, 5, x.size)()
    y_buffer = Buffer.from_handle(int(d_y.gpudata), d_y.nbytes, owner=d_y)
    ours.launcher(-1, d_x.buffer, y_buffer, -1, 1, x.size)()
    return d_y.get()


# %% Verify and measure
def random_vectors(n):
    return np.random.default_rng(122).standard_normal((2, n), dtype=np.float32)


def verify(found, n):
    """The checks of the interfaces on n random elements: the same bits from each. Raises Mismatch if one is wrong."""
    x, y = random_vectors(n)
    expected = reference(1.75, x, y, -1.5, 2.5)  # a of few bits: a x + y is exact in float64
    checks = [check(name, call(1.75, x, y, -1.5, 2.5), expected) for name, call in found.items()]
    if "PyCUDA SourceModule" in found:
        twice = reference(-1, x, reference(2, x, y, -5, 5), -1, 1)
        checks.append(check("PyCUDA, then cuda.core", shared_memory(x, y), twice))
    return checks


LAUNCHES, SMALL = 1000, 256  # launches in a row; elements of each


def benchmark() -> list[Row]:
    """What each of many launches costs the host; the kernel alone, on the GPU; whole calls, copies and all."""
    with interfaces() as (found, _):
        yardsticks = timing.yardsticks(*gpu.open_device())
        verify(found, 100_003)
        (x, y), back = random_vectors(1 << 20), np.empty(SMALL, np.float32)
        held = {name: [call.upload(v[:SMALL]) for v in (x, y)] for name, call in found.items()}
        starts = {name: call.launcher(1, *held[name], -1, 1, SMALL) for name, call in found.items()}

        def launches(name):
            for _ in range(LAUNCHES):
                starts[name]()
            found[name].download(back, held[name][1])  # waits for all of them

        taken = timing.wall_clock({name: partial(launches, name) for name in found})
        costs = {name: timing.Timing.of([s / LAUNCHES for s in t.samples], LAUNCHES) for name, t in taken.items()}
        calls = timing.wall_clock({name: partial(call, 1, x, y, -1, 1) for name, call in found.items()})
        alone = timing.benchmark({"the kernel on the GPU": lambda _: starts["cuda.core"]()}, found["cuda.core"].stream)
        for name, call in found.items():
            call.free(*held[name])
        row, rows = partial(Row.from_timing, section="1.2.2", dtype="f32", yardsticks=yardsticks), []
        for size, times in ((f"{SMALL}, each launch", costs), ("2^20, a whole call", calls)):
            peer = "driver", times["cuda.bindings.driver"]
            rows += [row(name=name, size=size, timing=t, peer=peer) for name, t in times.items()]
        return rows + [row(name=name, size=f"{SMALL}, each launch", timing=t) for name, t in alone.items()]


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=1_000_003, quick_size=100_003).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    check_fits(16 * options.size)
    arch = f"sm_{Device(0).arch}"
    print(f"cuda.bindings.nvrtc: {len(compile_with_nvrtc(arch)):,} bytes of machine code for {arch}")
    with interfaces() as (found, missing):
        for line in missing:
            print(line)
        checks_table(verify(found, options.size))
        facts = [(name, *others) for name, (_, *others) in INTERFACES.items()]
        table("", ("interface", "who checks errors", "who frees memory", "good for"), facts)
    rows = measure(benchmark, options.bench)
    if rows:
        *launched, kernel = (row.seconds for row in rows if row.size.endswith("each launch"))
        cost = f"{si(min(launched), 's')} to {si(max(launched), 's')}"
        print(f"a launch costs the host {cost}, its kernel the GPU {si(kernel, 's')}: small kernels wait for Python")
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
