"""PyCUDA's names on the simulator: the part of PyCUDA that chapters 1 and 8 use, with PyCUDA's own rules.

Numbers reach a kernel as NumPy scalars, host arrays inside In, Out or InOut, and `block` is three numbers. Work is
done at once, whatever the stream; a kernel's fault surfaces where the host next waits. What is not here raises
SimulatorUnsupported, which names it.
"""

import functools
import math
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from common.gpu import include_folders
from common.simt import api
from common.simt.errors import SimulatorError, SimulatorUnsupported


class _Partial:
    """Something of PyCUDA's that is only partly here."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # what Python itself looks for
            raise AttributeError(name)
        raise SimulatorUnsupported(f"PyCUDA's {getattr(self, '__name__', type(self).__name__)}.{name}")


class _Module(_Partial, SimpleNamespace):
    """A module of PyCUDA."""


# ---- memory
class DeviceAllocation(_Partial):
    """Device memory; int() of it is its address. Freed by free(), or when nobody holds it any more."""

    def __init__(self, nbytes: int):
        if nbytes <= 0:
            raise SimulatorError(f"cuMemAlloc failed: invalid argument ({nbytes} bytes)")
        self._buffer = api.Device().allocate(int(nbytes), stream=api.LEGACY_DEFAULT_STREAM)

    def __int__(self) -> int:
        return int(self._buffer.handle)

    def free(self) -> None:
        self._buffer.close()


def mem_get_info() -> tuple[int, int]:
    """(free, total) bytes of device memory."""
    return api.memory_info()


def memcpy_htod(dest: Any, src: Any) -> None:
    """Copy the whole host array `src` to the device address `dest`, and wait."""
    host = _host(src)
    api.Buffer.from_handle(int(dest), host.size).copy_from(host, stream=api.LEGACY_DEFAULT_STREAM)


def memcpy_dtoh(dest: Any, src: Any) -> None:
    """Wait for the device, then fill the whole host array `dest` from the device address `src`."""
    if not np.asarray(dest).flags.writeable:
        raise TypeError("memcpy_dtoh: the host array is read-only")
    host = _host(dest)
    api.Buffer.from_handle(int(src), host.size).copy_to(host, stream=api.LEGACY_DEFAULT_STREAM)


def memcpy_htod_async(dest: Any, src: Any, stream: "Stream | None" = None) -> None:
    memcpy_htod(dest, src)  # on a GPU it would not wait if `src` is page-locked


def memcpy_dtoh_async(dest: Any, src: Any, stream: "Stream | None" = None) -> None:
    memcpy_dtoh(dest, src)


def _host(array: Any) -> api.Buffer:
    array = np.asarray(array)
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise ValueError("ndarray is not contiguous")
    return api.Buffer.from_handle(array.ctypes.data, array.nbytes, owner=array)


def pagelocked_empty(shape: Any, dtype: Any) -> np.ndarray:
    """An uninitialised NumPy array in page-locked host memory, which lives as long as the array."""
    nbytes = math.prod(_shape(shape)) * np.dtype(dtype).itemsize
    memory = np.from_dlpack(api.LegacyPinnedMemoryResource().allocate(nbytes))
    return memory.view(dtype).reshape(shape)


def _shape(shape: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in shape) if np.iterable(shape) else (int(shape),)


# ---- streams and events
class Stream(_Partial):
    """A queue of work; here its work is done as soon as it is given."""

    def __init__(self, flags: int = 0):
        self._stream = api.Device().create_stream()
        self.handle = int(self._stream.handle)

    def synchronize(self) -> None:
        self._stream.sync()

    def is_done(self) -> bool:
        return True

    def wait_for_event(self, event: "Event") -> None:
        return None


class Event(_Partial):
    """A mark in a stream. It orders; the simulator has no time that it could measure."""

    def __init__(self, flags: int = 0):
        self._event = api.Device().create_event()

    def record(self, stream: Stream | None = None) -> "Event":
        return self

    def synchronize(self) -> "Event":
        self._event.sync()
        return self

    def query(self) -> bool:
        return True


# ---- kernels
class _HostArray:
    """A host array as a kernel's argument, with device memory of its own for the length of the call."""

    copy_in = copy_out = False

    def __init__(self, array: np.ndarray):
        self.array = array
        self.gpudata = DeviceAllocation(array.nbytes)


class In(_HostArray):
    copy_in = True


class Out(_HostArray):
    copy_out = True


class InOut(_HostArray):
    copy_in = copy_out = True


def _argument(value: Any, position: int) -> Any:
    """What launch() gets for an argument of a PyCUDA call."""
    if isinstance(value, np.number):
        return value
    if isinstance(value, _HostArray | GPUArray):
        value = value.gpudata
    if isinstance(value, DeviceAllocation):
        return int(value)
    if isinstance(value, np.ndarray):
        text = "is a NumPy array, which PyCUDA passes by value: wrap it in In, Out or InOut"
        raise SimulatorUnsupported(f"argument {position} {text}")
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        raise TypeError(f"invalid type on parameter #{position} (0-based)")
    return int(interface["data"][0])


class Function(_Partial):
    """A kernel."""

    def __init__(self, kernel: api.Kernel):
        self._kernel = kernel

    def __call__(self, *args: Any, **options: Any) -> None:
        """Launch with block=(x, y, z), and grid=(x, y), stream and shared where they are not the default."""
        block, stream = options.pop("block", None), options.pop("stream", None)
        grid, shared = options.pop("grid", (1, 1)), options.pop("shared", 0)
        if options:
            raise SimulatorUnsupported(f"{', '.join(options)} in the call of a PyCUDA kernel")
        if block is None or len(block) != 3:
            raise ValueError(f"must specify block size: three numbers, got {block}")
        config = api.LaunchConfig(grid=_shape(grid), block=_shape(block), shmem_size=shared)
        values = [_argument(a, i) for i, a in enumerate(args)]
        arrays = [a for a in args if isinstance(a, _HostArray)]
        for a in arrays:
            if a.copy_in:
                memcpy_htod(a.gpudata, a.array)
        api.launch(stream._stream if stream else api.LEGACY_DEFAULT_STREAM, config, self._kernel, *values)
        for a in arrays:
            if a.copy_out:
                memcpy_dtoh(a.array, a.gpudata)

    def prepare(self, arg_types: str) -> "Function":
        """Say the types of the arguments once, as Python's struct spells them: P for a pointer, f, d, i, q, ..."""
        self._types = [np.dtype(code).type for code in arg_types]
        return self

    def prepared_call(self, grid: Any, block: Any, *args: Any, shared_size: int = 0) -> None:
        """Launch a prepared kernel; plain numbers become what prepare() said."""
        pairs = zip(self._types, args, strict=True)
        values = [kind(int(a) if isinstance(a, DeviceAllocation) else a) for kind, a in pairs]
        self(*values, grid=grid, block=block, shared=shared_size)


class SourceModule(_Partial):
    """Compiled CUDA C++; without `no_extern_c` it is put inside extern "C" { }. `arch` makes no difference."""

    def __init__(self, source: str, options: Any = (), no_extern_c: bool = False, arch: str = "", **others: Any):
        if others:
            raise SimulatorUnsupported(f"{', '.join(others)} of PyCUDA's SourceModule")
        settings: dict[str, Any] = {"include_path": include_folders()}
        for option in options or ():
            if option.startswith("-std="):
                settings["std"] = option[5:]
            elif option.lstrip("-") == "use_fast_math":
                settings["use_fast_math"] = True
            else:
                raise SimulatorUnsupported(f"nvcc's option {option}")
        text = source if no_extern_c else f'extern "C" {{\n{source}\n}}\n'
        self._code = api.Program(text, "c++", api.ProgramOptions(**settings)).compile("ptx")

    def get_function(self, name: str) -> Function:
        return Function(self._code.get_kernel(name))

    def get_global(self, name: str) -> tuple[int, int]:
        """(address, bytes) of a __device__ or __constant__ variable."""
        buffer = api.get_global(self._code, name)
        return int(buffer.handle), buffer.size


# ---- pycuda.gpuarray
class GPUArray(_Partial):
    """A device array with shape and dtype. Its arithmetic is not simulated: write a kernel."""

    def __init__(self, shape: Any, dtype: Any):
        self.shape, self.dtype = _shape(shape), np.dtype(dtype)
        self.size = math.prod(self.shape)
        self.nbytes = self.size * self.dtype.itemsize
        self.gpudata = DeviceAllocation(self.nbytes)

    def get(self) -> np.ndarray:
        result = np.empty(self.shape, self.dtype)
        memcpy_dtoh(result, self.gpudata)
        return result


def to_gpu(ary: np.ndarray) -> GPUArray:
    """A device copy of a host array."""
    result = GPUArray(ary.shape, ary.dtype)
    memcpy_htod(result.gpudata, np.ascontiguousarray(ary))
    return result


def zeros(shape: Any, dtype: Any = np.float64) -> GPUArray:
    """A device array of zeros."""
    return to_gpu(np.zeros(_shape(shape), dtype))


# ---- pycuda.elementwise
class ElementwiseKernel(_Partial):
    """A loop around `operation` for each i < n, where n is the size of the first array that the call is given.

    `arguments` are those of the kernel in C++, such as "float a, float *x". A call takes a GPUArray for each pointer,
    all contiguous, and converts its numbers to the type that is declared. Compiled at the first call.
    """

    def __init__(self, arguments: str, operation: str, name: str = "kernel", **others: Any):
        if others:
            raise SimulatorUnsupported(f"{', '.join(others)} of PyCUDA's ElementwiseKernel")
        self._source = f"""
extern "C" __global__ void {name}({arguments}, size_t n)
{{
    for (size_t i = blockDim.x * blockIdx.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {{
        {operation};
    }}
}}
"""
        self._name, self._types = name, "".join(_type_code(argument) for argument in arguments.split(","))

    @functools.cached_property
    def _kernel(self) -> Function:
        return SourceModule(self._source, no_extern_c=True).get_function(self._name).prepare(self._types + "P")

    def __call__(self, *args: Any, **options: Any) -> None:
        if options:
            raise SimulatorUnsupported(f"{', '.join(options)} in the call of PyCUDA's ElementwiseKernel")
        sizes = [a.size for a in args if isinstance(a, GPUArray)]
        values = [a.gpudata if isinstance(a, GPUArray) else a for a in args]
        self._kernel.prepared_call((min(-(-sizes[0] // 128), 1024), 1), (128, 1, 1), *values, sizes[0])


def _type_code(argument: str) -> str:
    """How Python's struct spells the type of an argument in C++."""
    if "*" in argument:
        return "P"
    kind = " ".join(word for word in argument.split()[:-1] if word != "const")
    codes = {"float": "f", "double": "d", "int": "i", "unsigned": "I", "unsigned int": "I", "long": "l"}
    if kind not in codes:
        raise SimulatorUnsupported(f"the type {kind!r} in PyCUDA's ElementwiseKernel")
    return codes[kind]


_copies = {f.__name__: f for f in (memcpy_dtoh, memcpy_dtoh_async, memcpy_htod, memcpy_htod_async)}
_classes = {c.__name__: c for c in (DeviceAllocation, Event, Function, In, InOut, Out, Stream)}
driver = _Module(
    __name__="driver",
    mem_alloc=DeviceAllocation,
    mem_get_info=mem_get_info,
    pagelocked_empty=pagelocked_empty,
    **_copies,
    **_classes,
)
gpuarray = _Module(__name__="gpuarray", GPUArray=GPUArray, empty=GPUArray, to_gpu=to_gpu, zeros=zeros)
