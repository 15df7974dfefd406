"""Loading: a PTX module's variables get addresses, a kernel is translated when first asked for, a launch is checked."""

from dataclasses import dataclass

import numpy as np

from common.simt import cfg, translate
from common.simt.errors import LaunchError, SimulatorError
from common.simt.group import SMS
from common.simt.memory import Arena
from common.simt.ptx import Instr, Mem, Module, Operand, Sym, Variable, Vec, parse
from common.simt.scheduler import Launch

MAX_THREADS = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)
SHARED_DEFAULT = 48 << 10
SHARED_OPTIN = 227 << 10
THREADS_PER_SM = 2048


class LoadedModule:
    """A parsed module with its variables in device memory."""

    def __init__(self, ptx: str, source: str, arena: Arena):
        self.module: Module = parse(ptx)
        self.source = source
        self.arena = arena
        self.addresses: dict[str, int] = {}
        self.kernels: dict[str, LoadedKernel] = {}

    def address(self, name: str) -> int:
        """Where a __device__ or __constant__ variable lies; it is placed and initialised when first asked for."""
        if name in self.addresses:
            return self.addresses[name]
        variable = self.module.variables.get(name)
        if variable is None or variable.space not in ("global", "const"):
            raise SimulatorError(f"CUDA_ERROR_NOT_FOUND: no variable named {name}")
        allocation = self.arena.allocate(max(variable.size, 1), "module", name)
        self.addresses[name] = allocation.start
        self.arena.wrote(allocation.start, allocation.size)
        data = self.arena.bytes[allocation.start : allocation.end]
        data[:] = 0
        for offset, piece in variable.init:
            if isinstance(piece, tuple):
                piece = (self.address(piece[0]) + piece[1]).to_bytes(8, "little")
            data[offset : offset + len(piece)] = np.frombuffer(piece, np.uint8)
        return allocation.start

    def kernel(self, name: str, shown: str = "") -> "LoadedKernel":
        """A kernel by its mangled name; messages call it `shown`. Raises SimulatorError, SimulatorUnsupported."""
        if name not in self.kernels:
            function = self.module.functions.get(name)
            if function is None or not function.is_entry:
                known = ", ".join(f.name for f in self.module.functions.values() if f.is_entry)
                raise SimulatorError(f"CUDA_ERROR_NOT_FOUND: no kernel named {name} (the module has: {known})")
            kernel = cfg.build(self.module, name)
            kernel.name = shown or name
            self.kernels[name] = LoadedKernel(self, kernel)
        return self.kernels[name]

    def close(self) -> None:
        """Give the variables' memory back (called when the module is garbage)."""
        for start in self.addresses.values():
            self.arena.free_later(start)
        self.addresses.clear()


def _symbols(instrs: list[Instr]) -> set[str]:
    """Names of the variables that the operands mention."""
    found: set[str] = set()

    def visit(arg: Operand) -> None:
        if isinstance(arg, Sym):
            found.add(arg.name)
        elif isinstance(arg, Mem):
            visit(arg.base)
        elif isinstance(arg, Vec):
            for item in arg.items:
                visit(item)

    for instr in instrs:
        for arg in instr.args:
            visit(arg)
    return found


def _place(variables: list[Variable]) -> tuple[dict[str, int], int]:
    """Offsets of variables one behind the other, each aligned, and the bytes they take."""
    offsets, end = {}, 0
    for variable in variables:
        end = -(-end // variable.align) * variable.align
        offsets[variable.name] = end
        end += variable.size
    return offsets, end


@dataclass
class Parameter:
    """Where a kernel parameter lies among the parameter bytes."""

    offset: int
    size: int


class LoadedKernel:
    """A translated kernel and what a launch must respect."""

    def __init__(self, owner: LoadedModule, kernel: cfg.Kernel):
        self.owner = owner
        self.name = kernel.name
        params, self.param_bytes = _place(kernel.function.params)
        self.params = [Parameter(params[p.name], p.size) for p in kernel.function.params]
        self.max_threads = kernel.function.max_threads or MAX_THREADS
        used = _symbols([i for b in kernel.blocks for i in b.instrs])
        visible = {**owner.module.variables, **kernel.shared}.values()
        shared = [v for v in visible if v.space == "shared" and v.name in used]
        static, self.static_shared = _place([v for v in shared if v.size])
        dynamic = {v.name: -(-self.static_shared // 16) * 16 for v in shared if not v.size}
        if dynamic:
            self.static_shared = -(-self.static_shared // 16) * 16
        if self.static_shared > SHARED_DEFAULT:
            raise SimulatorError(
                f"kernel {self.name} has {self.static_shared} bytes of static shared memory, 48 KiB at most"
            )
        self.max_dynamic_shared = max(SHARED_DEFAULT - self.static_shared, 0)  # unless raised
        locals_ = [Variable(name, v.space, v.align, v.size) for name, v in kernel.local.items()]
        local, self.local_bytes = _place(locals_)
        symbols = {**params, **static, **dynamic, **local}
        spaces = dict.fromkeys((*static, *dynamic), "shared") | dict.fromkeys(local, "local")
        spaces |= dict.fromkeys(params, "param")
        for name in sorted(used - symbols.keys()):
            variable = owner.module.variables.get(name)
            if variable is not None:
                symbols[name] = owner.address(name)
                spaces[name] = "global"
        self.program = translate.translate(kernel, symbols, spaces)

    def pack(self, args: list[bytes]) -> np.ndarray:
        """The parameter bytes. Raises LaunchError where count or sizes differ from the kernel's parameters."""
        if len(args) != len(self.params):
            raise LaunchError(
                f"kernel {self.name} has {len(self.params)} parameters, the launch gave {len(args)} arguments"
            )
        data = np.zeros(self.param_bytes, np.uint8)
        for i, (arg, param) in enumerate(zip(args, self.params, strict=True)):
            if len(arg) != param.size:
                raise LaunchError(
                    f"argument {i} of kernel {self.name} has {len(arg)} bytes, its parameter {param.size}: "
                    "wrap numbers in the NumPy type that the kernel declares, e.g. np.int32(n), np.float32(a)"
                )
            data[param.offset : param.offset + param.size] = np.frombuffer(arg, np.uint8)
        return data

    def prepare(self, grid: tuple, block: tuple, shared: int, cooperative: bool, args: list[bytes]) -> Launch:
        """Check a launch as the driver would. Raises LaunchError."""
        threads = block[0] * block[1] * block[2]
        sizes, limits = (*grid, *block), (*MAX_GRID, *MAX_BLOCK)
        if any(not 1 <= size <= limit for size, limit in zip(sizes, limits, strict=True)):
            raise LaunchError(
                f"CUDA_ERROR_INVALID_VALUE: grid {grid} of blocks {block} (limits {MAX_GRID} and {MAX_BLOCK})"
            )
        limit = min(self.max_threads, MAX_THREADS)
        if threads > limit:
            raise LaunchError(f"CUDA_ERROR_INVALID_VALUE: {threads} threads a block, kernel {self.name} allows {limit}")
        if shared > self.max_dynamic_shared:
            raise LaunchError(
                f"CUDA_ERROR_INVALID_VALUE: {shared} bytes of dynamic shared memory, kernel {self.name} allows "
                f"{self.max_dynamic_shared} (raise it with set_max_dynamic_shared, up to {SHARED_OPTIN})"
            )
        if shared + self.static_shared > SHARED_OPTIN:
            raise LaunchError(f"CUDA_ERROR_INVALID_VALUE: {shared + self.static_shared} bytes of shared memory a block")
        blocks = grid[0] * grid[1] * grid[2]
        most = SMS * (THREADS_PER_SM // threads)
        if cooperative and blocks > most:  # cuda.core's own check, before the driver's
            raise ValueError(f"The specified grid size ({' * '.join(map(str, grid))}) exceeds the limit ({most})")
        return Launch(
            program=self.program,
            arena=self.owner.arena,
            grid=grid,
            block=block,
            params=self.pack(args),
            dynamic_shared=shared,
            static_shared=self.static_shared,
            local_bytes=self.local_bytes,
            source=self.owner.source,
        )
