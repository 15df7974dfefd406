"""PyCUDA's names, on a GPU the real ones and on the simulator the stand-ins: the same tests hold for both."""

from __future__ import annotations

import gc
import os
import shutil
import stat
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from common import gpu
from common import pycuda as seam
from common.cli import Unavailable
from common.simt.errors import IllegalAddress, SimulatorUnsupported

KERNEL = r"""
__global__ void scale_add(float* y, const float* x, float a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
"""
N = 1000
CALL = {"block": (128, 1, 1), "grid": (8, 1)}

on_the_simulator = pytest.mark.simulator


@pytest.fixture
def pycuda() -> SimpleNamespace:
    try:
        return seam.load()
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture
def scale_add(pycuda: SimpleNamespace):  # type: ignore[no-untyped-def]
    return pycuda.SourceModule(KERNEL).get_function("scale_add")


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).random(N, dtype=np.float32)


def test_in_out_and_inout(pycuda, scale_add, x) -> None:
    cuda = pycuda.driver
    y = np.ones(N, np.float32)
    scale_add(cuda.InOut(y), cuda.In(x), np.float32(2), np.int32(N), **CALL)
    np.testing.assert_allclose(y, 1 + 2 * x, rtol=1e-6)
    y[:] = 7
    scale_add(cuda.In(y), cuda.In(x), np.float32(2), np.int32(N), **CALL)
    np.testing.assert_array_equal(y, 7)
    copy = pycuda.SourceModule("__global__ void copy(int* to, int* from) { to[threadIdx.x] = from[threadIdx.x]; }")
    source, target = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    copy.get_function("copy")(cuda.Out(target), cuda.In(source), block=(32, 1, 1))
    np.testing.assert_array_equal(target, source)


def test_explicit_memory(pycuda, scale_add, x) -> None:
    cuda = pycuda.driver
    d_x, d_y = cuda.mem_alloc(x.nbytes), cuda.mem_alloc(x.nbytes)
    cuda.memcpy_htod(d_x, x)
    cuda.memcpy_htod(d_y, x)
    scale_add(d_y, d_x, np.float32(-1), np.int32(N - 1), **CALL)
    y = np.empty_like(x)
    cuda.memcpy_dtoh(y, d_y)
    np.testing.assert_array_equal(y, [*np.zeros(N - 1), x[-1]])
    part = np.empty(10, np.float32)  # the host array says how much is copied, an address may lie anywhere
    cuda.memcpy_dtoh(part, int(d_x) + 4 * 20)
    np.testing.assert_array_equal(part, x[20:30])
    d_x.free()


def test_streams_events_and_page_locked_memory(pycuda, scale_add, x) -> None:
    cuda = pycuda.driver
    stream, other, event = cuda.Stream(), cuda.Stream(), cuda.Event()
    numbers = cuda.pagelocked_empty(N, np.float32)
    numbers[:] = x
    d_y = cuda.mem_alloc(numbers.nbytes)
    cuda.memcpy_htod_async(d_y, numbers, stream)
    scale_add(d_y, d_y, np.float32(1), np.int32(N), stream=stream, **CALL)
    event.record(stream)
    other.wait_for_event(event)
    cuda.memcpy_dtoh_async(numbers, d_y, other)
    other.synchronize()
    assert event.synchronize().query() and other.is_done()
    np.testing.assert_array_equal(numbers, 2 * x)
    assert cuda.pagelocked_empty((3, 4), np.uint8).shape == (3, 4)


def test_gpuarray(pycuda, scale_add, x) -> None:
    d_x, d_y = pycuda.gpuarray.to_gpu(x), pycuda.gpuarray.zeros(N, np.float32)
    scale_add(d_y, d_x, np.float32(3), np.int32(N), **CALL)
    np.testing.assert_allclose(d_y.get(), 3 * x, rtol=1e-6)
    np.testing.assert_array_equal(d_x.get(), x)
    pair = pycuda.gpuarray.to_gpu(np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(pair.get(), [[0, 1, 2], [3, 4, 5]])
    made = pycuda.gpuarray.empty((5, 2), np.int16)
    assert (made.shape, made.dtype, made.nbytes) == ((5, 2), np.int16, 20)


def test_memory_of_cuda_core_is_seen(pycuda, scale_add, x) -> None:
    _, stream = gpu.open_device()
    d_x, d_y = gpu.to_device(x, stream), gpu.zeros(N, np.float32, stream)
    stream.sync()  # PyCUDA works on a stream of its own
    scale_add(d_y, d_x, np.float32(1), np.int32(N), **CALL)
    y = np.empty_like(x)
    pycuda.driver.memcpy_dtoh(y, int(d_y.buffer.handle))
    np.testing.assert_array_equal(y, x)


def test_templates_need_no_extern_c(pycuda) -> None:
    source = """
    template <int N> __device__ int times(int i) { return N * i; }
    extern "C" __global__ void f(int* out) { extern __shared__ int s[]; s[threadIdx.x] = times<3>(threadIdx.x);
                                             out[threadIdx.x] = s[threadIdx.x]; }
    """
    out = np.zeros(32, np.int32)
    f = pycuda.SourceModule(source, no_extern_c=True, options=["-std=c++17"]).get_function("f")
    f(pycuda.driver.Out(out), block=(32, 1, 1), shared=128)
    np.testing.assert_array_equal(out, 3 * np.arange(32))


def test_variables_of_a_module(pycuda) -> None:
    cuda = pycuda.driver
    source = """
    __constant__ float weights[20]; __device__ int counter;
    __global__ void times(float* out) { out[threadIdx.x] = 2 * weights[threadIdx.x]; atomicAdd(&counter, 3); }
    """
    module = pycuda.SourceModule(source)
    (weights, nbytes), (counter, four) = module.get_global("weights"), module.get_global("counter")
    assert (nbytes, four) == (80, 4) and int(weights) != int(counter)
    out, count = np.zeros(20, np.float32), np.zeros(1, np.int32)
    for numbers in (np.arange(20, dtype=np.float32), np.full(20, -1, np.float32)):
        cuda.memcpy_htod(weights, numbers)
        module.get_function("times")(cuda.Out(out), block=(20, 1, 1))
        np.testing.assert_array_equal(out, 2 * numbers)
    cuda.memcpy_dtoh(count, counter)
    assert count[0] == 2 * 20 * 3
    other = pycuda.SourceModule(source)  # a module has variables of its own
    assert int(other.get_global("weights")[0]) != int(weights)
    with pytest.raises(Exception, match=r"missing|not found"):
        module.get_global("missing")


def test_prepared_calls(pycuda, scale_add, x) -> None:
    d_x, d_y = pycuda.gpuarray.to_gpu(x), pycuda.gpuarray.zeros(N, np.float32)
    assert scale_add.prepare("PPfi") is scale_add
    scale_add.prepared_call((8, 1), (128, 1, 1), d_y.gpudata, d_x.gpudata, 2.0, N - 1)  # plain numbers are converted
    np.testing.assert_array_equal(d_y.get(), [*2 * x[:-1], 0])
    scale_add.prepared_call((8, 1), (128, 1, 1), int(d_y.gpudata), int(d_x.gpudata), np.float32(-2), np.int32(N))
    np.testing.assert_array_equal(d_y.get(), [*np.zeros(N - 1), -2 * x[-1]])
    with pytest.raises(Exception, match=r"argument|shorter|pack"):
        scale_add.prepared_call((8, 1), (128, 1, 1), d_y.gpudata, d_x.gpudata, 2.0)


@pytest.mark.parametrize("n", [1, 31, 128, 129, 1000, 200_003])
def test_elementwise_kernels(n: int, pycuda) -> None:
    source = "const double a, int *y, float *x, unsigned int b, long c"
    kernel = pycuda.ElementwiseKernel(source, "y[i] = (int)(a * x[i]) + (int)(n - i) + b + (int)c; x[i] = 0", "mix")
    x = np.random.default_rng(n).integers(-50, 50, n).astype(np.float32)
    d_x, d_y = pycuda.gpuarray.to_gpu(x), pycuda.gpuarray.empty(n, np.int32)
    kernel(2.5, d_y, d_x, 7, np.int64(-3))  # plain numbers and NumPy's
    np.testing.assert_array_equal(d_y.get(), (2.5 * x).astype(np.int32) + np.arange(n, 0, -1) + 4)
    np.testing.assert_array_equal(d_x.get(), 0)


def test_elementwise_kernels_go_by_their_first_array(pycuda) -> None:
    d_x, d_y = pycuda.gpuarray.zeros((2, 5), np.float32), pycuda.gpuarray.zeros((3, 5), np.float32)
    add = pycuda.ElementwiseKernel("float *x, float *y", "x[i] += 1; y[i] += 1")
    add(d_x, d_y)
    np.testing.assert_array_equal(d_x.get(), np.ones((2, 5)))
    np.testing.assert_array_equal(d_y.get(), [[1] * 5, [1] * 5, [0] * 5])


def test_elementwise_kernels_are_compiled_when_called(pycuda) -> None:
    wrong = pycuda.ElementwiseKernel("float *x", "x[i] = no_such_thing")
    with pytest.raises(Exception, match="no_such_thing"):
        wrong(pycuda.gpuarray.zeros(3, np.float32))


def test_free_memory(pycuda) -> None:
    cuda, size = pycuda.driver, 64 << 20
    before, total = cuda.mem_get_info()
    assert 0 < before <= total
    memory = cuda.mem_alloc(size)
    assert cuda.mem_get_info() == (pytest.approx(before - size, abs=4 << 20), total)
    memory.free()
    assert cuda.mem_get_info() == (pytest.approx(before, abs=4 << 20), total)


def test_wrong_calls(pycuda, scale_add, x) -> None:
    cuda = pycuda.driver
    d = cuda.mem_alloc(x.nbytes)
    with pytest.raises(TypeError, match="parameter #3"):
        scale_add(d, d, np.float32(1), N, **CALL)  # a Python int has no size
    with pytest.raises(ValueError, match="block size"):
        scale_add(d, d, np.float32(1), np.int32(N))
    with pytest.raises(Exception, match="contiguous"):
        cuda.memcpy_htod(d, x[::2])


@on_the_simulator
def test_what_is_not_there_is_named(pycuda, scale_add, x) -> None:
    cuda, d = pycuda.driver, pycuda.driver.mem_alloc(4)
    for name, attempt in {
        "driver.Device": lambda: cuda.Device(0),
        "driver.memset_d8": lambda: cuda.memset_d8(d, 0, 4),
        "gpuarray.arange": lambda: pycuda.gpuarray.arange(3),
        "GPUArray.fill": lambda: pycuda.gpuarray.zeros(3).fill(1),
        "SourceModule.get_texref": lambda: pycuda.SourceModule(KERNEL).get_texref("a"),
        "Function.prepared_timed_call": lambda: scale_add.prepared_timed_call((1, 1), (1, 1, 1)),
        "preamble of PyCUDA's Elem": lambda: pycuda.ElementwiseKernel("int *x", "x[i] = 0", "zero", preamble="//"),
        "the type 'short' in": lambda: pycuda.ElementwiseKernel("short a, int *x", "x[i] = a"),
        "stream in the call of": lambda: pycuda.ElementwiseKernel("int *x", "x[i] = 0")(stream=None),
        "Event.time_since": lambda: cuda.Event().time_since(cuda.Event()),
        "texrefs": lambda: scale_add(d, d, np.float32(1), np.int32(1), texrefs=[], **CALL),
        "keep": lambda: pycuda.SourceModule(KERNEL, keep=True),
        "--maxrregcount": lambda: pycuda.SourceModule(KERNEL, options=["--maxrregcount=32"]),
        "by value": lambda: scale_add(x, d, np.float32(1), np.int32(1), **CALL),
    }.items():
        with pytest.raises(SimulatorUnsupported, match=name):
            attempt()
    assert not hasattr(cuda, "__wrapped__")  # Python's own questions are answered as usual


@on_the_simulator
def test_a_fault_surfaces_where_the_host_waits(pycuda, scale_add) -> None:
    cuda, stream = pycuda.driver, pycuda.driver.Stream()
    d = cuda.mem_alloc(4 * 10)
    scale_add(d, d, np.float32(1), np.int32(11), stream=stream, **CALL)
    with pytest.raises(IllegalAddress, match="kernel scale_add"):
        stream.synchronize()
    with pytest.raises(IllegalAddress):
        cuda.memcpy_dtoh(np.empty(10, np.float32), d)


@on_the_simulator
def test_page_locked_memory_lives_as_long_as_its_array(pycuda) -> None:
    from common.simt import api

    def pinned_bytes() -> int:
        gc.collect()
        api.memory_info()  # gives back what nobody refers to any more
        return sum(a.size for a in api.arena().table if a.kind == "pinned")

    before = pinned_bytes()
    numbers = pycuda.driver.pagelocked_empty(1000, np.uint8)
    tail = numbers[500:]
    del numbers
    assert pinned_bytes() == before + 1000
    del tail
    assert pinned_bytes() == before


# --- the seam, as it is on a machine with a GPU ---------------------------------------------------------------


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PyCUDA that imports, on a machine with a GPU."""
    names = ("autoprimaryctx", "driver", "gpuarray", "compiler", "elementwise")
    modules = {name: ModuleType(name) for name in ("pycuda", *(f"pycuda.{name}" for name in names))}
    modules["pycuda.compiler"].SourceModule = "the real one"  # type: ignore[attr-defined]
    modules["pycuda.elementwise"].ElementwiseKernel = "the real one"  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(modules["pycuda"], name.partition(".")[2] or "_", module, raising=False)
    monkeypatch.setattr(seam, "SIMULATED", False)


def test_without_pycuda_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seam, "SIMULATED", False)
    monkeypatch.setitem(sys.modules, "pycuda", None)
    monkeypatch.setitem(sys.modules, "pycuda.autoprimaryctx", None)
    with pytest.raises(Unavailable, match=r"^not run: PyCUDA \(install: ./run setup pycuda\)$"):
        seam.load()


def test_nvcc_is_put_on_the_path(installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    os.symlink(shutil.which("g++"), tmp_path / "g++")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("nvcc") is None
    assert seam.load().SourceModule == "the real one"
    assert shutil.which("nvcc") is not None


def test_without_a_compiler_it_says_so(installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvcc").touch(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match=r"not run: PyCUDA: .*C\+\+ compiler.*\(install: apt install g\+\+\)"):
        seam.load()
