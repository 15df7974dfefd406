"""Stand-ins for cuda.core's objects, so that a script's lines run unchanged on the simulator.

Work is done at once, whatever the stream; only errors keep their timing: a kernel's fault is raised by the next
synchronisation and by everything after it, until `reset()`. What is not here raises SimulatorUnsupported.
"""

import atexit
import ctypes
import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import cuda.core
import numpy as np
from cuda.core import EventOptions, StreamOptions
from cuda.core._utils.cuda_utils import ComputeCapability

from common.simt import counters, findings
from common.simt.compiler import compile_ptx, ptxas_log
from common.simt.errors import KernelFault, LaunchError, SimulatorError, SimulatorUnsupported
from common.simt.graph import GraphBuilder
from common.simt.group import SMS
from common.simt.memory import DEVICE_BYTES, Arena
from common.simt.module import (
    MAX_BLOCK,
    MAX_GRID,
    MAX_THREADS,
    SHARED_DEFAULT,
    SHARED_OPTIN,
    THREADS_PER_SM,
    LoadedKernel,
    LoadedModule,
)
from common.simt.occupancy import SHARED_RESERVED, Occupancy, Resources, log_of_ptx, resources_in

NAME = "CUDA book simulator"


class _State:
    """What the one simulated device holds."""

    def __init__(self) -> None:
        self.arena = Arena()
        self.fault: KernelFault | None = None
        self.reported = False
        self.output: list[str] = []

    def check(self) -> None:
        """Where the host waits for the device: print what kernels printed, raise what they did wrong."""
        if self.output:
            text, self.output = "".join(self.output), []
            sys.stdout.write(text)
        if self.fault is not None:
            self.reported = True
            raise self.fault.with_traceback(None)  # where the simulator was does not help; the message has the line

    def at_exit(self) -> None:
        """A program that never waits for its kernels should still learn that one failed."""
        if self.fault is not None and not self.reported:
            print(f"a kernel failed, and nothing waited for it: {self.fault}", file=sys.stderr)


_state = _State()
atexit.register(_state.at_exit)
_handles = itertools.count(1)


def reset() -> None:
    """Forget a sticky fault and unprinted output (a GPU needs a new process for that). Memory stays."""
    _state.fault = None
    _state.reported = False
    _state.output = []


def arena() -> Arena:
    """The device's memory, for tests and tools."""
    return _state.arena


class LaunchConfig(cuda.core.LaunchConfig):
    """cuda.core's own; only that `is_cooperative` asks no driver."""

    def __init__(self, *args: Any, is_cooperative: bool = False, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.is_cooperative = is_cooperative


class ProgramOptions(cuda.core.ProgramOptions):
    """cuda.core's own; only that the default architecture is the simulator's."""

    def __init__(self, *args: Any, arch: str | None = None, **kwargs: Any):
        super().__init__(*args, arch=arch or "sm_90", **kwargs)


class Device:
    """The simulated device; there is one. A property that is not here raises SimulatorUnsupported."""

    _instance: "Device | None" = None

    def __new__(cls, device_id: "Device | int | None" = None) -> "Device":
        if device_id not in (None, 0) and not isinstance(device_id, Device):
            raise SimulatorError(f"CUDA_ERROR_INVALID_DEVICE: device {device_id}; the simulator has device 0 only")
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    device_id = 0
    name = NAME
    arch = "90"
    uuid = "00000000-0000-0000-0000-000000000000"
    pci_bus_id = "0000:00:00.0"

    @property
    def compute_capability(self) -> ComputeCapability:
        return ComputeCapability(9, 0)

    @property
    def properties(self) -> SimpleNamespace:
        return SimpleNamespace(
            max_threads_per_block=MAX_THREADS,
            max_block_dim_x=MAX_BLOCK[0], max_block_dim_y=MAX_BLOCK[1], max_block_dim_z=MAX_BLOCK[2],
            max_grid_dim_x=MAX_GRID[0], max_grid_dim_y=MAX_GRID[1], max_grid_dim_z=MAX_GRID[2],
            warp_size=32, multiprocessor_count=SMS, max_shared_memory_per_block=SHARED_DEFAULT,
            max_shared_memory_per_block_optin=SHARED_OPTIN, reserved_shared_memory_per_block=SHARED_RESERVED,
            max_shared_memory_per_multiprocessor=228 << 10,
            max_threads_per_multiprocessor=THREADS_PER_SM, max_blocks_per_multiprocessor=32,
            max_registers_per_block=65536, max_registers_per_multiprocessor=65536, total_constant_memory=65536,
            compute_capability_major=9, compute_capability_minor=0, concurrent_kernels=True, unified_addressing=True,
            cooperative_launch=True, kernel_exec_timeout=False, can_map_host_memory=True, memory_pools_supported=True,
            managed_memory=False, integrated=False,
        )  # fmt: skip

    @classmethod
    def get_all_devices(cls) -> "tuple[Device, ...]":
        return (cls(0),)

    def set_current(self, ctx: object = None) -> None:
        return None

    def create_stream(self, obj: object = None, options: StreamOptions | None = None) -> "Stream":
        return Stream(options)

    def create_event(self, options: EventOptions | None = None) -> "Event":
        return Event(options)

    def create_graph_builder(self) -> GraphBuilder:
        return self.create_stream().create_graph_builder()

    @property
    def default_stream(self) -> "Stream":
        return LEGACY_DEFAULT_STREAM

    @property
    def memory_resource(self) -> "DeviceMemoryResource":
        return DeviceMemoryResource(self)

    def allocate(self, size: int, *, stream: "Stream | GraphBuilder") -> "Buffer":
        return self.memory_resource.allocate(size, stream=stream)

    def sync(self) -> None:
        _state.check()

    def __int__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"<Device 0 ({NAME})>"

    def __getattr__(self, name: str) -> NoReturn:
        raise SimulatorUnsupported(f"Device.{name}")


class Stream:
    """A stream whose work is done as soon as it is given."""

    def __init__(self, options: StreamOptions | None = None):
        self.handle = next(_handles)
        self.is_nonblocking = True if options is None else bool(options.nonblocking)
        self.priority = 0 if options is None or options.priority is None else options.priority
        self.is_closed = False
        self.device = Device()

    @staticmethod
    def from_handle(handle: int) -> "Stream":
        return Stream()

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, int(self.handle))

    def sync(self) -> None:
        _state.check()

    def record(self, event: "Event | None" = None, options: EventOptions | None = None) -> "Event":
        return Event(options) if event is None else event

    def wait(self, event_or_stream: "Event | Stream") -> None:
        return None

    def close(self) -> None:
        self.is_closed = True

    def create_graph_builder(self) -> GraphBuilder:
        return GraphBuilder(self)

    def _submit(self, work: Callable[[], None]) -> None:
        with _state.arena.lock:
            work()


class Event:
    """An event; it orders, but the simulator has no time to measure."""

    def __init__(self, options: "EventOptions | dict | None" = None):
        settings = EventOptions(**options) if isinstance(options, dict) else options
        self.handle = next(_handles)
        self.is_timing_enabled = settings is not None and bool(settings.timing_enabled)
        self.is_blocking_sync = settings is not None and bool(settings.blocking_sync)
        self.is_done = True
        self.device = Device()

    def sync(self) -> None:
        _state.check()

    def close(self) -> None:
        return None

    def __sub__(self, other: "Event") -> float:
        raise SimulatorUnsupported("the time between events: the simulator has no time")


LEGACY_DEFAULT_STREAM = Stream(StreamOptions(nonblocking=False))
PER_THREAD_DEFAULT_STREAM = Stream(StreamOptions(nonblocking=False))


class DeviceMemoryResource:
    """Memory of the device."""

    is_device_accessible, is_host_accessible, is_managed, device_id = True, False, False, 0
    _kind = "device"

    def __init__(self, device_id: object = 0, options: object = None):
        pass

    def allocate(self, size: int, *, stream: object = None) -> "Buffer":
        if size < 0:
            raise ValueError(f"size must not be negative: {size}")
        if size == 0:
            return Buffer(0, 0, self)
        allocation = _state.arena.allocate(size, self._kind)
        return Buffer(allocation.start, size, self)

    def deallocate(self, ptr: int, size: int, *, stream: object = None) -> None:
        if size:
            _state.arena.free(int(ptr))

    @property
    def attributes(self) -> SimpleNamespace:
        """What is in use. All resources share one pool here, which keeps back nothing that was freed."""
        if self._kind != "device":
            raise AttributeError("attributes: page-locked memory comes from no pool")
        free, total = memory_info()
        return SimpleNamespace(used_mem_current=total - free, reserved_mem_current=total - free)


class LegacyPinnedMemoryResource(DeviceMemoryResource):
    """Page-locked host memory; the device can address it too."""

    is_host_accessible = True
    _kind = "pinned"


class Buffer:
    """A range of device, pinned or plain host memory."""

    def __init__(self, ptr: int, size: int, resource: DeviceMemoryResource | None, owner: object = None):
        self.handle = ptr
        self.size = size
        self.memory_resource = resource
        self.owner = owner
        self.device_id = 0
        # a NumPy array lies on the host; of other owners the address tells (a DeviceArray's is the device's)
        foreign = owner is not None and not isinstance(owner, Buffer)
        here = foreign and (hasattr(owner, "__array_interface__") or not _state.arena.find(ptr, ptr + size))
        self._host: bool = owner._host if isinstance(owner, Buffer) else here
        self._free = weakref.finalize(self, _drop, resource, ptr, size) if resource is not None else None

    @staticmethod
    def from_handle(
        ptr: int,
        size: int,
        mr: DeviceMemoryResource | None = None,
        owner: object = None,
        *,
        stream: object = None,
    ) -> "Buffer":
        if mr is not None and owner is not None:
            raise ValueError("owner and memory resource cannot be both specified together")
        return Buffer(int(ptr), size, mr, owner)

    @property
    def is_closed(self) -> bool:
        return self._free is not None and not self._free.alive

    @property
    def is_device_accessible(self) -> bool:
        return not self._host

    @property
    def is_host_accessible(self) -> bool:
        return self._host or bool(self.memory_resource and self.memory_resource.is_host_accessible)

    def _bytes(self) -> np.ndarray:
        """This memory as uint8, wherever it lies."""
        if self.is_closed:
            raise RuntimeError("this Buffer is closed")
        if self.size == 0:
            return np.zeros(0, np.uint8)
        if self._host:
            return np.ctypeslib.as_array((ctypes.c_uint8 * self.size).from_address(self.handle))
        if _state.arena.find(self.handle, self.handle + self.size) is None:
            once = _state.arena.was(self.handle)
            why = "are not allocated" if once is None else f"are of {findings.label(once)}, which is freed"
            raise SimulatorError(f"CUDA_ERROR_INVALID_VALUE: {self.size} bytes at {self.handle:#x} {why}")
        return _state.arena.bytes[self.handle : self.handle + self.size]

    def copy_from(self, src: "Buffer", *, stream: "Stream | GraphBuilder", options: object = None) -> None:
        if src.size != self.size:
            raise ValueError(f"buffer sizes mismatch between src and dst (sizes are: {src.size} vs {self.size})")
        _on(stream, lambda: _copy(self, src))

    def copy_to(
        self, dst: "Buffer | None" = None, *, stream: "Stream | GraphBuilder", options: object = None
    ) -> "Buffer":
        if dst is None:
            if self.memory_resource is None:
                raise ValueError("a destination buffer must be provided (this buffer has no memory_resource)")
            dst = self.memory_resource.allocate(self.size, stream=stream)
        dst.copy_from(self, stream=stream)
        return dst

    def fill(self, value: int | bytes, *, stream: "Stream | GraphBuilder") -> None:
        pattern = bytes([value]) if isinstance(value, int) else bytes(value)
        if len(pattern) not in (1, 2, 4):
            raise ValueError(f"value must be 1, 2, or 4 bytes, got {len(pattern)}")
        if self.size % len(pattern):
            raise ValueError(f"buffer size ({self.size}) must be divisible by {len(pattern)}")
        data = self._bytes()
        _on(stream, lambda: data.view(f"u{len(pattern)}").fill(int.from_bytes(pattern, "little")))
        if not self._host:
            _on(stream, lambda: _state.arena.wrote(self.handle, self.size))

    def close(self, stream: object = None) -> None:
        if self._free is not None and self._free.detach():
            assert self.memory_resource is not None
            self.memory_resource.deallocate(self.handle, self.size)

    def __enter__(self):
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (3, 0) if self.is_host_accessible else (2, 0)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if not self.is_host_accessible:
            raise SimulatorUnsupported("DLPack of device memory: no other library can see the simulator's memory")
        if not self._host:
            _state.arena.wrote(self.handle, self.size)  # from now on the host may, unseen
        return np.asarray(_HostView(self)).__dlpack__(max_version=max_version)

    def __repr__(self) -> str:
        return f"<Buffer ptr={self.handle:#x} size={self.size}>"


def _drop(resource: DeviceMemoryResource, ptr: int, size: int) -> None:
    """A buffer that nobody refers to any more."""
    if type(resource) in (DeviceMemoryResource, LegacyPinnedMemoryResource):
        if size:
            _state.arena.free_later(ptr)
    else:
        resource.deallocate(ptr, size)


class _HostView:
    """Bytes that keep their buffer alive."""

    def __init__(self, buffer: Buffer):
        self.buffer = buffer
        self.__array_interface__ = buffer._bytes().view(np.int8).__array_interface__


def _on(stream: Stream | GraphBuilder, work: Callable[[], None]) -> None:
    """Give work to a stream, or record it where the stream is a graph under construction."""
    if not hasattr(stream, "_submit"):
        raise TypeError(f"a Stream or GraphBuilder is needed, not {type(stream).__name__}")
    stream._submit(work)


def _copy(dst: Buffer, src: Buffer) -> None:
    # a copy that involves pageable host memory waits for the device, so a fault surfaces here
    if dst._host or src._host:
        _state.check()
    elif _state.fault is not None:
        return
    dst._bytes()[:] = src._bytes()
    _state.arena.copied(None if dst._host else dst.handle, None if src._host else src.handle, src.size)


class Program:
    """CUDA C++ to be compiled."""

    backend = "NVRTC"

    def __init__(self, code: str | bytes, code_type: str, options: cuda.core.ProgramOptions | None = None):
        if str(code_type).lower() not in ("c++", "ptx"):
            raise SimulatorUnsupported(f"programs of type {code_type!r}")
        self.code = code.decode() if isinstance(code, bytes) else code
        self.code_type = str(code_type).lower()
        self.options = options if options is not None else ProgramOptions()

    def compile(
        self,
        target_type: str,
        name_expressions: Sequence[str | bytes] = (),
        logs: Any = None,
        *,
        cache: object = None,
    ) -> "ObjectCode":
        """Whatever target is asked for, the simulator runs the PTX."""
        if str(target_type) not in ("ptx", "cubin"):
            raise SimulatorUnsupported(f"compiling to {target_type!r}")
        if self.code_type == "ptx":
            return ObjectCode(self.code, {}, "")
        names = tuple(n.decode() if isinstance(n, bytes) else n for n in name_expressions)
        ptx, mangled, log = compile_ptx(self.code, self.options, names)
        if logs is not None and log:
            logs.write(log)
        return ObjectCode(ptx, mangled, self.code, functools.partial(ptxas_log, self.code, self.options, names))

    def close(self) -> None:
        return None


class ObjectCode:
    """A compiled module; loaded when a kernel is first taken from it."""

    code_type = "ptx"

    def __init__(self, ptx: str, mapping: dict[str, str], source: str, log: Callable[[], str] | None = None):
        self.code = ptx.encode()
        self.symbol_mapping = mapping
        self._source = source
        self._log = log or functools.partial(log_of_ptx, ptx)
        self._loaded: LoadedModule | None = None

    @staticmethod
    def from_ptx(module: str | bytes, *, name: str = "", symbol_mapping: dict[str, str] | None = None) -> "ObjectCode":
        text = module.decode() if isinstance(module, bytes) else module
        return ObjectCode(text, symbol_mapping or {}, "")

    @staticmethod
    def from_cubin(*module: object, **options: object) -> NoReturn:
        raise SimulatorUnsupported("loading machine code: the simulator runs PTX")

    from_fatbin = from_ltoir = from_cubin

    def _module(self) -> LoadedModule:
        if self._loaded is None:
            self._loaded = LoadedModule(self.code.decode(), self._source, _state.arena)
            weakref.finalize(self, self._loaded.close)
        return self._loaded

    def get_kernel(self, name: str | bytes) -> "Kernel":
        name = name.decode() if isinstance(name, bytes) else name
        mangled = self.symbol_mapping.get(name, name)
        return Kernel(self._module().kernel(mangled, name), self, mangled)

    @functools.cached_property
    def _resources(self) -> dict[str, Resources]:
        """What each kernel needs as machine code, which is compiled only for this."""
        return resources_in(self._log())


class KernelAttributes(SimpleNamespace):
    """What is known of a kernel; its registers when first asked for, since that compiles it to machine code."""

    @property
    def num_regs(self) -> int:
        return self._kernel._resources().registers  # type: ignore[no-any-return]


class Kernel:
    """A kernel that launch() takes."""

    def __init__(self, loaded: LoadedKernel, owner: ObjectCode, mangled: str):
        self._kernel = loaded
        self._mangled = mangled
        self._owner = owner  # keeps the module's variables alive

    def _resources(self) -> Resources:
        return self._owner._resources[self._mangled]

    @property
    def num_arguments(self) -> int:
        return len(self._kernel.params)

    @property
    def attributes(self) -> "KernelAttributes":
        k = self._kernel
        return KernelAttributes(
            max_threads_per_block=k.max_threads, shared_size_bytes=k.static_shared, local_size_bytes=k.local_bytes,
            max_dynamic_shared_size_bytes=k.max_dynamic_shared, _kernel=self,
        )  # fmt: skip

    @property
    def occupancy(self) -> Occupancy:
        return Occupancy(self._kernel, self._resources)

    def __getattr__(self, name: str) -> NoReturn:
        raise SimulatorUnsupported(f"Kernel.{name}")


def _argument(value: Any, position: int) -> bytes:
    """The bytes of one kernel argument, by cuda.core's rules."""
    if isinstance(value, Buffer):
        if value.is_closed:
            raise LaunchError(f"argument {position} is a closed Buffer")
        return int(value.handle).to_bytes(8, "little")
    if isinstance(value, bool):
        return bytes([value])
    if isinstance(value, np.generic):
        return value.tobytes()
    if isinstance(value, int):
        return (value & (2**64 - 1)).to_bytes(8, "little")
    if isinstance(value, float):
        return np.float64(value).tobytes()
    if isinstance(value, complex):
        return np.complex128(value).tobytes()
    if isinstance(value, ctypes._SimpleCData):
        return bytes(value)
    raise TypeError(f"the argument is of unsupported type: {type(value)}")


def launch(stream: Stream | GraphBuilder, config: cuda.core.LaunchConfig, kernel: Kernel, *kernel_args: Any) -> None:
    """Run a kernel. Bad configurations raise here, faults of the kernel at the next synchronisation."""
    if not isinstance(config, cuda.core.LaunchConfig) or not isinstance(kernel, Kernel):
        raise TypeError(
            "launch() takes a stream, a LaunchConfig and a Kernel, in this order, then the kernel's arguments"
        )
    if config.cluster is not None:
        raise SimulatorUnsupported("thread block clusters")
    args = [_argument(a, i) for i, a in enumerate(kernel_args)]
    prepared = kernel._kernel.prepare(config.grid, config.block, config.shmem_size, config.is_cooperative, args)

    def run(owner: Kernel) -> None:  # a graph that replays this keeps the kernel's module alive
        if _state.reported:
            _state.check()  # the context is lost, and every call says so
        if _state.fault is not None:
            return
        _state.arena.free_dropped()
        workspace = _state.arena.allocate(64, "device", "grid barrier") if config.is_cooperative else None
        if workspace is not None:
            _state.arena.bytes[workspace.start : workspace.end] = 0
            _state.arena.wrote(workspace.start, workspace.size)
            prepared.workspace = workspace.start
        counters.begin(prepared)
        prepared.found = findings.listener()
        try:
            prepared.run()
        except KernelFault as fault:
            _state.fault = fault
            if prepared.found is not None:
                prepared.found.fault(fault, prepared.program.kernel.name)
        finally:
            _state.output += prepared.output
            prepared.output, prepared.watch = [], None
            if workspace is not None:
                _state.arena.free(workspace.start)

    _on(stream, functools.partial(run, kernel))


def get_global(module: ObjectCode, name: str) -> Buffer:
    """The memory of a __device__ or __constant__ variable."""
    loaded = module._module()
    mapped = module.symbol_mapping.get(name, name)
    start = loaded.address(mapped)
    return Buffer(start, loaded.module.variables[mapped].size, None, owner=module)  # the memory is the module's


def set_max_dynamic_shared(kernel: Kernel, size: int) -> None:
    """Allow launches of this kernel with up to `size` bytes of dynamic shared memory."""
    if not 0 <= size + kernel._kernel.static_shared <= SHARED_OPTIN:
        raise LaunchError(f"CUDA_ERROR_INVALID_VALUE: {size} bytes of dynamic shared memory (at most {SHARED_OPTIN})")
    kernel._kernel.max_dynamic_shared = size


def memory_info() -> tuple[int, int]:
    """(free, total) bytes of device memory."""
    _state.arena.free_dropped()
    return DEVICE_BYTES - _state.arena.used["device"], DEVICE_BYTES
