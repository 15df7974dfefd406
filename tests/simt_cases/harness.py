"""What every case of the corpus shares: a tiny runner over cuda.core's API, and the comparisons.

`Runner(backend)` takes any namespace with cuda.core's names: `cuda.core` itself on a GPU, `common.simt.api`
without one. A `Case` is a kernel text, seeded inputs, the launch, and a NumPy reference.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Size = int | tuple[int, ...]
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Tol:
    """|actual - expected| <= atol + rtol * |expected|; `why` explains a tolerance that is not obvious."""

    rtol: float = 0.0
    atol: float = 0.0
    why: str = ""


EXACT = Tol()


@dataclass(frozen=True)
class Case:
    """One kernel of the corpus.

    inputs(size, rng) -> arrays; launch(gpu, size, **inputs) -> outputs; reference(size, **inputs) -> outputs.
    `tolerance`: per output, against NumPy; an output that is not named must be equal bit for bit.
    `gpu`: per float output, simulator against hardware: ulp (int) or a Tol; not named means equal bit for bit.
    """

    name: str
    source: str
    kernels: tuple[str, ...]
    inputs: Callable[..., Arrays]
    launch: Callable[..., Arrays]
    reference: Callable[..., Arrays]
    sizes: tuple[Size, ...]
    tolerance: dict[str, Tol] = field(default_factory=dict)
    gpu: dict[str, int | Tol] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def make_inputs(self, size: Size, seed: int = 0) -> Arrays:
        parts = size if isinstance(size, tuple) else (size,)
        return self.inputs(size, np.random.default_rng([seed, *parts]))

    def run(self, backend: Any, size: Size, seed: int = 0) -> Arrays:
        gpu = Runner.of(backend)
        gpu.module = gpu.compile(self.source, self.kernels, **self.options)
        return self.launch(gpu, size, **self.make_inputs(size, seed))

    def expected(self, size: Size, seed: int = 0) -> Arrays:
        return self.reference(size, **self.make_inputs(size, seed))


@dataclass
class DeviceArray:
    """Device memory with the shape and dtype that the host gave it."""

    buffer: Any
    shape: tuple[int, ...]
    dtype: np.dtype


def include_paths() -> list[str]:
    """The toolkit's header folders: wheels first, then an installed toolkit, which has what wheels may lack."""
    from cuda import pathfinder

    found = [pathfinder.find_nvidia_header_directory(name) for name in ("cudart", "cccl")]
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    candidates = [Path(path) for path in found if path] + [toolkit]
    paths = [folder for path in candidates for folder in (path, path / "cccl") if folder.is_dir()]
    return list(dict.fromkeys(map(str, paths)))


class Runner:
    """Compile, copy, launch and fetch through `backend`'s names. One runner per backend is enough."""

    _runners: dict[int, Runner] = {}  # noqa: RUF012

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.device = backend.Device(0)
        self.device.set_current()
        self.stream = self.device.create_stream()
        self.arch = f"sm_{self.device.arch}"
        self.module: Any = None  # the compiled source of the running case
        self._modules: dict[Any, Any] = {}

    @classmethod
    def of(cls, backend: Any) -> Runner:
        if id(backend) not in cls._runners:
            cls._runners[id(backend)] = cls(backend)
        return cls._runners[id(backend)]

    @classmethod
    def forget(cls) -> None:
        """Drop all runners: their streams and modules are of no use after a fault."""
        cls._runners.clear()

    def compile(self, source: str, names: tuple[str, ...] = (), **options: Any) -> Any:
        key = (source, names, tuple(sorted(options.items())))
        if key not in self._modules:
            settings: dict[str, Any] = {
                "std": "c++17",
                "arch": self.arch,
                "lineinfo": True,
                "include_path": include_paths(),
            }
            program = self.backend.Program(source, "c++", self.backend.ProgramOptions(**(settings | options)))
            self._modules[key] = program.compile("cubin", name_expressions=names)
        return self._modules[key]

    def kernel(self, name: str) -> Any:
        return self.module.get_kernel(name)

    def copy_in(self, buffer: Any, array: np.ndarray) -> None:
        """Copy a host array to the start of a device buffer."""
        array = np.ascontiguousarray(array)
        host = self.backend.Buffer.from_handle(array.ctypes.data, array.nbytes, owner=array)
        buffer.copy_from(host, stream=self.stream)
        self.sync()

    def to_device(self, array: np.ndarray) -> DeviceArray:
        device = self.empty(array.shape, array.dtype)
        self.copy_in(device.buffer, array)
        return device

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> DeviceArray:
        shape = shape if isinstance(shape, tuple) else (shape,)
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape)) * dtype.itemsize
        return DeviceArray(self.device.allocate(nbytes, stream=self.stream), shape, dtype)

    def zeros(self, shape: int | tuple[int, ...], dtype: Any) -> DeviceArray:
        return self.to_device(np.zeros(shape, dtype))

    def full(self, shape: int | tuple[int, ...], value: Any, dtype: Any) -> DeviceArray:
        return self.to_device(np.full(shape, value, dtype))

    def launch(
        self,
        kernel: Any,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        *args: Any,
        shmem: int = 0,
        cooperative: bool = False,
    ) -> None:
        """Launch a kernel, given as an object or by its name in the running case's module."""
        kernel = self.kernel(kernel) if isinstance(kernel, str) else kernel
        keywords: dict[str, Any] = {"is_cooperative": True} if cooperative else {}
        config = self.backend.LaunchConfig(grid=grid, block=block, shmem_size=shmem, **keywords)
        plain = [arg.buffer if isinstance(arg, DeviceArray) else arg for arg in args]
        self.backend.launch(self.stream, config, kernel, *plain)

    def to_host(self, array: DeviceArray) -> np.ndarray:
        out = np.empty(array.shape, array.dtype)
        host = self.backend.Buffer.from_handle(out.ctypes.data, out.nbytes, owner=out)
        host.copy_from(array.buffer, stream=self.stream)
        self.sync()
        return out

    def sync(self) -> None:
        self.stream.sync()

    def get_global(self, name: str) -> Any:
        """The buffer behind a `__device__` or `__constant__` variable of the running case's module."""
        if hasattr(self.backend, "get_global"):
            return self.backend.get_global(self.module, name)
        from cuda.bindings import driver

        error, pointer, nbytes = driver.cuLibraryGetGlobal(self.module.handle, name.encode())
        if int(error) != 0:
            raise RuntimeError(f"cuLibraryGetGlobal({name}): {error}")
        return self.backend.Buffer.from_handle(int(pointer), int(nbytes), owner=self.module)

    def allow_shared(self, kernel: Any, nbytes: int) -> None:
        """Opt a kernel in to more than 48 KB of dynamic shared memory."""
        if hasattr(self.backend, "set_max_dynamic_shared"):
            self.backend.set_max_dynamic_shared(kernel, nbytes)
        elif self.backend.__name__.startswith("cuda."):
            from cuda.bindings import driver

            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            kernel_handle = driver.CUkernel(int(kernel.handle))
            (error,) = driver.cuKernelSetAttribute(attribute, nbytes, kernel_handle, driver.CUdevice(0))
            if int(error) != 0:
                raise RuntimeError(f"cuKernelSetAttribute: {error}")

    @contextlib.contextmanager
    def captured_stdout(self) -> Iterator[list[str]]:
        """Collect what kernels print, at the level of the file descriptor, as a GPU's driver writes there."""
        lines: list[str] = []
        libc = ctypes.CDLL(None)
        sys.stdout.flush()
        libc.fflush(None)
        with tempfile.TemporaryFile() as target:
            saved_fd, saved_stdout = os.dup(1), sys.stdout
            os.dup2(target.fileno(), 1)
            sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            try:
                yield lines
                self.sync()
            finally:
                sys.stdout.flush()
                libc.fflush(None)
                sys.stdout = saved_stdout
                os.dup2(saved_fd, 1)
                os.close(saved_fd)
            target.seek(0)
            lines += target.read().decode().splitlines()


def blocks_for(count: int, block: int) -> int:
    """How many blocks of `block` threads cover `count` elements."""
    return (count + block - 1) // block


def ulp_distance(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Distance in units in the last place, as int64; two NaNs are 0 apart, a NaN and a number 2**62."""
    bits = {2: np.int16, 4: np.int32, 8: np.int64}[actual.dtype.itemsize]

    def ordered(values: np.ndarray) -> np.ndarray:
        raw = np.ascontiguousarray(values).view(bits).astype(np.int64)
        return np.where(raw < 0, np.int64(np.iinfo(bits).min) - raw, raw)

    distance = np.abs(ordered(actual) - ordered(expected))
    nan_actual, nan_expected = np.isnan(actual), np.isnan(expected)
    distance = np.where(nan_actual & nan_expected, 0, distance)
    return np.where(nan_actual ^ nan_expected, np.int64(2**62), distance)


def _describe(name: str, bad: np.ndarray, actual: np.ndarray, expected: np.ndarray) -> str:
    where = np.argwhere(np.atleast_1d(bad))[:5]
    actual, expected = np.atleast_1d(actual), np.atleast_1d(expected)
    rows = [f"  {tuple(map(int, i))}: got {actual[tuple(i)]!r}, expected {expected[tuple(i)]!r}" for i in where]
    return "\n".join([f"{name}: {int(np.count_nonzero(bad))} of {bad.size} elements differ", *rows])


def compare(name: str, actual: np.ndarray, expected: np.ndarray, tol: Tol = EXACT) -> None:
    """Raise AssertionError unless equal within `tol`. Shapes and dtypes must agree; a NaN never passes."""
    assert actual.shape == expected.shape, f"{name}: shape {actual.shape}, expected {expected.shape}"
    assert actual.dtype == expected.dtype, f"{name}: dtype {actual.dtype}, expected {expected.dtype}"
    if tol.rtol == 0 and tol.atol == 0:
        bad = actual != expected  # a NaN differs from everything
    else:
        a, e = actual.astype(np.float64), expected.astype(np.float64)
        with np.errstate(invalid="ignore"):
            near = np.abs(a - e) <= tol.atol + tol.rtol * np.abs(e)
        bad = ~np.where(np.isfinite(e) & np.isfinite(a), near, a == e)
    if np.any(bad):
        raise AssertionError(_describe(name, np.asarray(bad), actual, expected))


def compare_ulp(name: str, actual: np.ndarray, expected: np.ndarray, ulp: int) -> None:
    """Raise AssertionError unless within `ulp` units in the last place (0: the same number)."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype, name
    if actual.dtype.kind != "f":
        return compare(name, actual, expected)
    distance = ulp_distance(actual, expected)
    if np.any(distance > ulp):
        worst = f" (worst {int(distance.max())} ulp, allowed {ulp})"
        raise AssertionError(_describe(name, distance > ulp, actual, expected) + worst)
    return None
