"""The seam: a GPU's cuda.core where there is one, else the simulator's stand-ins under the same names.

    from common.gpu import Device, LaunchConfig, launch   # in your own code: from cuda.core import ...

A GPU is used if libcuda loads, cuInit succeeds and there is a device; CUDA_BOOK_DEVICE=simulator forces the simulator.
Below the names stand the few helpers that save a script from repeating itself: open the device, compile, device arrays.
"""

import ctypes
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from cuda.core import EventOptions, StreamOptions
from cuda.core._utils.cuda_utils import CUDAError


def _stop(message: str) -> NoReturn:
    """One line and exit code 2, like any wrong option: nothing can be done before the device is known."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


def _probe() -> str:
    """Why there is no usable GPU; an empty string if there is one."""
    choice = os.environ.get("CUDA_BOOK_DEVICE", "")
    if choice not in ("", "gpu", "simulator"):
        _stop(f"CUDA_BOOK_DEVICE is {choice!r}; it may be 'gpu' or 'simulator'")
    if choice == "simulator":
        return "CUDA_BOOK_DEVICE=simulator"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver (libcuda.so.1) on this machine"
    status = driver.cuInit(0)
    if status != 0:
        return f"the NVIDIA driver does not start (cuInit returned {status})"
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    return "" if count.value else "the NVIDIA driver sees no GPU"


DEVICE_REASON = _probe()
SIMULATED = bool(DEVICE_REASON)
if SIMULATED and os.environ.get("CUDA_BOOK_DEVICE") == "gpu":
    _stop(f"CUDA_BOOK_DEVICE=gpu, but {DEVICE_REASON}")

if TYPE_CHECKING or not SIMULATED:
    from cuda.core import (
        LEGACY_DEFAULT_STREAM,
        PER_THREAD_DEFAULT_STREAM,
        Buffer,
        Device,
        DeviceMemoryResource,
        Event,
        Kernel,
        LaunchConfig,
        LegacyPinnedMemoryResource,
        ObjectCode,
        Program,
        ProgramOptions,
        Stream,
        launch,
    )
else:
    from common.simt.api import (
        LEGACY_DEFAULT_STREAM,
        PER_THREAD_DEFAULT_STREAM,
        Buffer,
        Device,
        DeviceMemoryResource,
        Event,
        Kernel,
        LaunchConfig,
        LegacyPinnedMemoryResource,
        ObjectCode,
        Program,
        ProgramOptions,
        Stream,
        launch,
    )


def open_device(index: int = 0) -> tuple[Device, Stream]:
    """Make a device current and give it a stream of its own."""
    device = Device(index)
    device.set_current()
    return device, device.create_stream()


def describe_device(device: Device) -> str:
    """One line: the device in use, and for the simulator why."""
    capability = "{}.{}".format(*device.compute_capability)
    sms = device.properties.multiprocessor_count
    text = f"{device.name}, compute capability {capability}, {sms} SMs"
    return f"{text} ({DEVICE_REASON})" if SIMULATED else text


def include_folders() -> list[str]:
    """Where the CUDA headers are (cuda_fp16.h, mma.h, cooperative_groups.h, cuda/atomic): wheels or a toolkit."""
    from cuda import pathfinder

    found = [pathfinder.find_nvidia_header_directory(name) for name in ("cudart", "nvcc", "cccl")]
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    toolkit = [Path(home, "include"), Path(home, "include", "cccl")]
    return list(dict.fromkeys([f for f in found if f] + [str(p) for p in toolkit if p.is_dir()]))


def compile_module(source: str, names: tuple[str, ...] = (), **options: Any) -> ObjectCode:
    """Compile CUDA C++ for the current device: to machine code, or to PTX if the GPU is newer than NVRTC.

    `names` are C++ name expressions ("axpy<float>") that get_kernel() will be asked for; `options` go to
    ProgramOptions. Raises CUDAError with the compiler's log.
    """
    from cuda.bindings import nvrtc

    arch = Device().arch
    settings = {"std": "c++17", "lineinfo": True, "include_path": include_folders(), "no_cache": True, **options}
    known = [int(a) for a in nvrtc.nvrtcGetSupportedArchs()[-1]]
    capability = int(arch.rstrip("af"))
    native = capability in known
    target = f"sm_{arch}" if native else f"compute_{max([a for a in known if a < capability] or known)}"
    program = Program(source, "c++", ProgramOptions(arch=target, **settings))
    return program.compile("cubin" if native else "ptx", name_expressions=names)


def compile_kernels(source: str, *names: str, **options: Any) -> tuple[Kernel, ...]:
    """Compile CUDA C++ and take kernels out of it: plain names or C++ name expressions such as "axpy<float>"."""
    module = compile_module(source, names, **options)
    return tuple(module.get_kernel(name) for name in names)


class DeviceArray:
    """A cuda.core Buffer with a shape and a dtype; kernels get its `.buffer`, other libraries see the same memory."""

    def __init__(self, buffer: Buffer, shape: int | tuple[int, ...], dtype: Any):
        self.buffer = buffer
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype = np.dtype(dtype)
        self.size = math.prod(self.shape)
        self.nbytes = self.size * self.dtype.itemsize
        if self.nbytes > buffer.size:
            raise ValueError(f"{self.shape} of {self.dtype} needs {self.nbytes} bytes, the buffer has {buffer.size}")

    @property
    def __cuda_array_interface__(self) -> dict:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (int(self.buffer.handle), False),
            "version": 3,
        }

    def __dlpack__(self, **options: Any) -> Any:
        """The memory as flat bytes (int8), as a cuda.core Buffer gives it."""
        return self.buffer.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.buffer.__dlpack_device__()

    def copy_from_host(self, array: np.ndarray, stream: Stream) -> None:
        """Copy a host array of the same size in bytes to the device (waits: pageable memory is staged)."""
        array = np.ascontiguousarray(array)
        if array.nbytes != self.nbytes:
            raise ValueError(f"the host array has {array.nbytes} bytes, the device array {self.nbytes}")
        if self.nbytes:
            copy_to_buffer(self.buffer, array, stream)

    def to_host(self, stream: Stream) -> np.ndarray:
        """Wait for the stream and return a NumPy copy."""
        out = np.empty(self.shape, self.dtype)
        if self.nbytes:
            self.buffer.copy_to(_host_buffer(out), stream=stream)
        stream.sync()
        return out


def _host_buffer(array: np.ndarray) -> Buffer:
    return Buffer.from_handle(array.ctypes.data, array.nbytes, owner=array)


def copy_to_buffer(buffer: Buffer, array: np.ndarray, stream: Stream) -> None:
    """Copy a contiguous host array into a buffer of the same size in bytes, and wait. ValueError for another array."""
    if not array.flags.c_contiguous:
        raise ValueError(f"the array is not contiguous: shape {array.shape}, strides {array.strides}")
    buffer.copy_from(_host_buffer(array), stream=stream)
    stream.sync()


def empty(shape: int | tuple[int, ...], dtype: Any, stream: Stream) -> DeviceArray:
    """Uninitialised device memory. Raises CUDAError when there is not enough."""
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    if min(extents, default=1) < 0:
        raise ValueError(f"extents must not be negative: {shape}")
    nbytes = math.prod(extents) * np.dtype(dtype).itemsize
    return DeviceArray(stream.device.allocate(nbytes, stream=stream), shape, dtype)


def zeros(shape: int | tuple[int, ...], dtype: Any, stream: Stream) -> DeviceArray:
    """Device memory filled with zero bytes."""
    array = empty(shape, dtype, stream)
    if array.nbytes:
        array.buffer.fill(0, stream=stream)
    return array


def to_device(array: np.ndarray, stream: Stream) -> DeviceArray:
    """A device copy of a host array."""
    result = empty(array.shape, array.dtype, stream)
    result.copy_from_host(array, stream)
    return result


def get_global(module: ObjectCode, name: str) -> Buffer:
    """The memory of a __device__ or __constant__ variable of a module."""
    if SIMULATED:
        from common.simt import api

        return api.get_global(module, name)  # type: ignore[arg-type]
    from cuda.bindings import driver

    symbol = module.symbol_mapping.get(name, name)
    address, size = checked(driver.cuLibraryGetGlobal(module.handle, symbol.encode()))
    return Buffer.from_handle(int(address), size, owner=module)


def allow_shared_memory(kernel: Kernel, nbytes: int) -> None:
    """Allow launches of a kernel with more than 48 KiB of dynamic shared memory (sm_70 and newer)."""
    if SIMULATED:
        from common.simt import api

        api.set_max_dynamic_shared(kernel, nbytes)  # type: ignore[arg-type]
        return
    from cuda.bindings import driver

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    checked(driver.cuKernelSetAttribute(attribute, nbytes, kernel.handle, Device().device_id))


def free_memory() -> int:
    """Bytes of device memory that are free now."""
    if SIMULATED:
        from common.simt import api

        return api.memory_info()[0]
    from cuda.bindings import driver

    return checked(driver.cuMemGetInfo())[0]


def checked(result: tuple) -> Any:
    """Unwrap a cuda.bindings result; raises CUDAError."""
    status, *values = result
    if int(status) != 0:
        raise CUDAError(status.name)
    return values[0] if len(values) == 1 else tuple(values)


__all__ = [
    "DEVICE_REASON", "LEGACY_DEFAULT_STREAM", "PER_THREAD_DEFAULT_STREAM", "SIMULATED", "Buffer", "CUDAError",
    "Device", "DeviceArray", "DeviceMemoryResource", "Event", "EventOptions", "Kernel", "LaunchConfig",
    "LegacyPinnedMemoryResource", "ObjectCode", "Program", "ProgramOptions", "Stream", "StreamOptions",
    "allow_shared_memory", "compile_kernels", "compile_module", "copy_to_buffer", "describe_device", "empty",
    "free_memory", "get_global", "include_folders", "launch", "open_device", "to_device", "zeros",
]  # fmt: skip
