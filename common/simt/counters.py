"""Counters of simulated launches, named and defined as Nsight Compute does: METRICS says which metric each stands for.

    with counting() as launches:
        launch(stream, config, kernel, ...)
    print(launches[0].total("global_load_sectors"))

While somebody counts, generated code calls the functions below in place of those of memory.py, atomics.py and
matrix.py; each works out what the access costs (access.py has the rules) and hands it on. Requests, sectors and
wavefronts equal the hardware's, apart from kernels whose accesses ptxas changes (merged shared loads, if-conversion)
and from the loads and stores of wmma fragments, which are not counted: their layout is the hardware's own. Instructions
are PTX instructions, which are not the hardware's; CLASSES says what kinds of them are told apart.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from common.simt import access, atomics, matrix, memory
from common.simt.cfg import Block
from common.simt.memory import Address, AnyAddress
from common.simt.ops import widen

if TYPE_CHECKING:
    from common.simt.group import Group
    from common.simt.scheduler import Launch

_GLOBAL = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"
_SHARED = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
_INSTRUCTIONS = "smsp__inst_executed_op_{}_pred_on_any.sum"  # without those that no lane takes part in
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
_LOCAL = "l1tex__t_{}_pipe_lsu_mem_local_op_{}.sum"
NO_METRIC = "-"
# our name -> the metric of Nsight Compute, NO_METRIC where it has none for just this
METRICS = {
    "global_load_requests": _GLOBAL.format("requests", "ld"),
    "global_load_sectors": _GLOBAL.format("sectors", "ld"),
    "global_store_requests": _GLOBAL.format("requests", "st"),
    "global_store_sectors": _GLOBAL.format("sectors", "st"),
    "global_atomic_requests": f"{_GLOBAL.format('requests', 'atom')} + {_GLOBAL.format('requests', 'red')}",
    "global_atomic_sectors": f"{_GLOBAL.format('sectors', 'atom')} + {_GLOBAL.format('sectors', 'red')}",
    "global_load_bytes": "l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum",
    "global_store_bytes": "l1tex__t_bytes_pipe_lsu_mem_global_op_st.sum",
    "local_load_requests": _LOCAL.format("requests", "ld"),
    "local_load_sectors": _LOCAL.format("sectors", "ld"),
    "local_store_requests": _LOCAL.format("requests", "st"),
    "local_store_sectors": _LOCAL.format("sectors", "st"),
    "shared_load_requests": _INSTRUCTIONS.format("shared_ld"),
    "shared_store_requests": _INSTRUCTIONS.format("shared_st"),
    "shared_atomic_requests": _INSTRUCTIONS.format("shared_atom"),
    "shared_matrix_load_requests": _INSTRUCTIONS.format("ldsm"),
    "shared_matrix_store_requests": _INSTRUCTIONS.format("shared_stsm"),
    "shared_load_wavefronts": _SHARED.format("ld"),
    "shared_load_conflicts": _CONFLICTS.format("ld"),
    "shared_store_wavefronts": _SHARED.format("st"),
    "shared_store_conflicts": _CONFLICTS.format("st"),
    "shared_atomic_wavefronts": _SHARED.format("atom"),
    "shared_atomic_conflicts": _CONFLICTS.format("atom"),
    "shared_matrix_load_wavefronts": _SHARED.format("ldsm"),
    "shared_matrix_load_conflicts": NO_METRIC,
    "shared_matrix_store_wavefronts": _SHARED.format("stsm"),
    "shared_matrix_store_conflicts": NO_METRIC,
    "instructions": "smsp__inst_executed.sum",  # of a warp; PTX here, SASS there
    "thread_instructions": "smsp__thread_inst_executed.sum",
    "barriers": NO_METRIC,
    "flops": "2 × smsp__sass_thread_inst_executed_op_ffma_pred_on.sum + …_fadd_… + …_fmul_…",
}
# classes of PTX instructions: the counter `<class>_instructions`, and what belongs to it
CLASSES = {
    "float": "arithmetic on floating-point numbers",
    "integer": "arithmetic, logic and comparison of integers and predicates",
    "move": "copies, conversions and selections",
    "global": "loads, stores and atomics of global memory, and asynchronous copies from it",
    "shared": "loads, stores and atomics of shared memory",
    "other_memory": "loads and stores of parameters, constant and local memory, and through generic pointers",
    "control": "branches, calls and the end of a thread",
    "barrier": "barriers and fences",
    "warp": "shuffles, votes and reductions in a warp",
    "matrix": "matrix products, and loads and stores of their operands",
}
BYTES = {"global_load_bytes": "global_load_sectors", "global_store_bytes": "global_store_sectors"}  # 32 times as many


class Counts:
    """What one launch did: a number for each counter at each source line."""

    def __init__(self, launch: "Launch"):
        self.kernel = launch.program.kernel.name
        self.shape = (launch.grid, launch.block)
        self.source = launch.source
        self._program = launch.program
        self._table: Counter[tuple[int, str]] = Counter()  # (place in the program, counter)
        self._blocks: dict[int, list[tuple[int, str, int, bool]]] = {}

    def add(self, where: int, name: str, number: int) -> None:
        """Add to a counter at a place in the program."""
        self._table[where, name] += number

    def total(self, name: str) -> int:
        """A counter, all lines together."""
        if name in BYTES:
            return 32 * self.total(BYTES[name])
        return sum(number for (_, counter), number in self._table.items() if counter == name)

    def totals(self) -> dict[str, int]:
        """Every counter of METRICS, and the classes of instructions."""
        return {name: self.total(name) for name in (*METRICS, *(f"{kind}_instructions" for kind in CLASSES))}

    def lines(self) -> dict[int, dict[str, int]]:
        """Source line -> its counters; 0 stands for what comes from headers or from no line."""
        result: dict[int, Counter[str]] = {}
        for (where, name), number in self._table.items():
            file, line = self._program.lines[where]
            result.setdefault(line if file == 1 else 0, Counter())[name] += number
        for counted in result.values():
            counted.update({name: 32 * counted[sectors] for name, sectors in BYTES.items() if sectors in counted})
        return {line: dict(result[line]) for line in sorted(result)}

    @property
    def active_threads(self) -> float:
        """Active threads per warp instruction, 32 where nothing diverges; the hardware's differs by some percent."""
        return self.total("thread_instructions") / max(self.total("instructions"), 1)

    def block(self, number: int, block: Block, group: "Group") -> None:
        """A group runs a block of the program: its instructions, by line."""
        if number not in self._blocks:
            self._blocks[number] = _per_run(block, self._program)
        slots = group.slot_index >> 5
        warps = len(slots) // 32 if group.slots is None else int(np.count_nonzero(np.diff(slots))) + 1
        for where, name, count, by_thread in self._blocks[number]:
            self._table[where, name] += count * (group.n if by_thread else warps)


def _per_run(block: Block, program: Any) -> list[tuple[int, str, int, bool]]:
    """(place, counter, how many, for each thread?) of the instructions of a block."""
    found: Counter[tuple[int, str, bool]] = Counter()
    for instr in block.all_instrs():
        where = program.where(instr.loc)
        found[where, "instructions", False] += 1
        found[where, "thread_instructions", True] += 1
        found[where, f"{class_of(instr.op, instr.mods)}_instructions", False] += 1
        if instr.op in ("bar", "barrier") and "warp" not in instr.mods:
            found[where, "barriers", False] += 1
        if flops := _flops(instr.op, instr.mods):
            found[where, "flops", True] += flops
    return [(where, name, count, by_thread) for (where, name, by_thread), count in found.items()]


_CLASS_OF_OPCODE = {
    opcode: kind
    for kind, opcodes in {
        "move": ("mov", "cvt", "cvta", "selp"),
        "control": ("bra", "brx", "call", "ret", "exit", "trap"),
        "barrier": ("bar", "barrier", "membar", "fence"),
        "warp": ("shfl", "vote", "match", "redux", "activemask"),
        "matrix": ("mma", "wmma", "ldmatrix", "stmatrix", "movmatrix"),
    }.items()
    for opcode in opcodes
}
_FLOATS = {"f16", "f16x2", "bf16", "bf16x2", "f32", "f64"}


def class_of(op: str, mods: Sequence[str]) -> str:
    """The class, one of CLASSES, of a PTX instruction: its opcode and modifiers."""
    if op in ("ld", "ldu", "st", "atom", "red", "cp", "prefetch"):
        if "global" in mods:  # an asynchronous copy names both
            return "global"
        return "shared" if any(mod.startswith("shared") for mod in mods) else "other_memory"
    return _CLASS_OF_OPCODE.get(op) or ("integer" if _FLOATS.isdisjoint(mods) else "float")


def _flops(op: str, mods: Sequence[str]) -> int:
    """Floating-point operations of one thread: 2 for a fused multiply-add, 1 for an addition or a product."""
    packed = 2 if "f16x2" in mods or "bf16x2" in mods else 1
    if _FLOATS.isdisjoint(mods):
        return 0
    return packed * {"fma": 2, "mad": 2, "add": 1, "sub": 1, "mul": 1}.get(op, 0)


# ---- who counts
_listeners: list[list[Counts]] = []


@contextlib.contextmanager
def counting() -> Iterator[list[Counts]]:
    """Count inside the `with`; the list gets one Counts for each launch, in their order."""
    launches: list[Counts] = []
    _listeners.append(launches)
    try:
        yield launches
    finally:
        _listeners.remove(launches)


def begin(launch: "Launch") -> None:
    """A launch starts: it gets counters if somebody counts."""
    launch.counts = None  # a graph launches the same one again
    if _listeners:
        launch.counts = counts = Counts(launch)
        for listener in _listeners:
            listener.append(counts)


# ---- what generated code calls instead
def _lanes(g: "Group", raw: np.ndarray) -> np.ndarray:
    """The threads' addresses as (warps, 32), INACTIVE where the group lacks the lane."""
    raw = widen(raw, g.n)
    if g.slots is None:
        return raw.reshape(-1, 32)
    warp = g.slot_index >> 5
    row = np.concatenate([[0], np.cumsum(np.diff(warp) != 0)])
    lanes = np.full((int(row[-1]) + 1, 32), access.INACTIVE)
    lanes[row, g.lane] = raw
    return lanes


def _parts(g: "Group", address: AnyAddress) -> Iterator[tuple["Group", Address]]:
    if isinstance(address, list):
        for _, sub, part in address:
            yield sub, part
    else:
        yield g, address


def _add(g: "Group", where: int, cost: dict[str, int]) -> None:
    counts = g.chunk.launch.counts
    assert counts is not None
    for name, number in cost.items():
        counts.add(where, name, number)


def _count(g: "Group", address: AnyAddress, offset: int, size: int, kind: str, where: int) -> None:
    """Count a load or store of `size` bytes a lane."""
    for sub, part in _parts(g, address):
        space = part.space
        if space == "param":
            continue
        unit = 4 if space == "shared" else 32
        key = (kind, size, offset % unit)
        if key not in part.costs:
            part.costs[key] = _cost(_lanes(sub, part.raw + offset), size, kind, space, unit)
        _add(g, where, part.costs[key])


def _cost(lanes: np.ndarray, size: int, kind: str, space: str, unit: int) -> dict[str, int]:
    if space == "local":
        requests, sectors = len(lanes) * max(1, size // 4), int(access.local_sectors(lanes, size).sum())
        return {f"local_{kind}_requests": requests, f"local_{kind}_sectors": sectors}
    patterns, times = access.collapse(lanes, unit)
    if space == "global":
        sectors = int(access.sectors(patterns) @ times)
        return {f"global_{kind}_requests": len(lanes), f"global_{kind}_sectors": sectors}
    rule = access.shared_load if kind == "load" else access.shared_store
    return _shared(kind, *rule(patterns, size), times)


def _shared(kind: str, wavefronts: np.ndarray, conflicts: np.ndarray, times: np.ndarray) -> dict[str, int]:
    return {
        f"shared_{kind}_requests": int(times.sum()),
        f"shared_{kind}_wavefronts": int(wavefronts @ times),
        f"shared_{kind}_conflicts": int(conflicts @ times),
    }


def _load(
    g: "Group", address: AnyAddress, offset: int, dtype: np.dtype, where: int, count: int = 1
) -> list[np.ndarray]:
    values = memory.load(g, address, offset, dtype, where, count)
    _count(g, address, offset, dtype.itemsize * count, "load", where)
    return values


def _store(g: "Group", address: AnyAddress, offset: int, dtype: np.dtype, values: list[np.ndarray], where: int) -> None:
    memory.store(g, address, offset, dtype, values, where)
    _count(g, address, offset, dtype.itemsize * len(values), "store", where)


def _copy_async(
    g: "Group", target: Address, source: Address, offsets: tuple[int, int], size: int, take: Any, where: int
) -> None:
    """The hardware counts it as a load, of the lanes that read anything."""
    memory.copy_async(g, target, source, offsets, size, take, where)
    reading = np.flatnonzero(np.broadcast_to(1 if take is None else take, g.n))
    if len(reading) == g.n:
        _count(g, source, offsets[1], size, "load", where)
    elif len(reading):
        part = Address(source.space, widen(source.raw, g.n)[reading], 0)
        _count(g.subset(reading), part, offsets[1], size, "load", where)


def _atomic(
    g: "Group", address: AnyAddress, offset: int, op: str, dtype: np.dtype, value: np.ndarray, *rest: Any
) -> np.ndarray | None:
    wanted, where = rest[-2:]
    result = atomics.atomic(g, address, offset, op, dtype, value, *rest)
    counts_up = op == "add" and dtype.kind in "iu" and not wanted and bool((value == 1).all())
    for sub, part in _parts(g, address):
        lanes = _lanes(sub, part.raw + offset)
        if part.space == "global":
            cost = {
                "global_atomic_requests": len(lanes),
                "global_atomic_sectors": int(access.atomic_sectors(lanes).sum()),
            }
        elif op == "add" and dtype.kind == "f":
            patterns, times = access.collapse(lanes, 4)
            loads, conflicts, turns = (int(n @ times) for n in access.shared_float_add(patterns))
            cost = {
                "shared_atomic_requests": len(lanes),
                "shared_load_wavefronts": loads,
                "shared_load_conflicts": conflicts,
                "shared_atomic_wavefronts": turns,
            }
        else:
            patterns, times = access.collapse(lanes, 4)
            cost = _shared("atomic", *access.shared_atomic(patterns, op, counts_up), times)
        _add(g, where, cost)
    return result


def _count_matrices(g: "Group", address: Address, offset: int, count: int, kind: str, where: int) -> None:
    patterns, times = access.collapse(_lanes(g, address.raw + offset), 4)
    _add(g, where, _shared(kind, *access.matrices(patterns, count), times))


def _ldmatrix(g: "Group", address: Address, offset: int, count: int, transposed: bool, where: int) -> Any:
    values = matrix.ldmatrix(g, address, offset, count, transposed, where)
    _count_matrices(g, address, offset, count, "matrix_load", where)
    return values


def _stmatrix(g: "Group", address: Address, offset: int, values: list, transposed: bool, where: int) -> None:
    matrix.stmatrix(g, address, offset, values, transposed, where)
    _count_matrices(g, address, offset, len(values), "matrix_store", where)


_MEMORY = {
    "load": _load,
    "load_strong": _load,
    "store": _store,
    "store_strong": _store,
    "copy_async": _copy_async,
}
NAMESPACE = {  # for generated code, over its own
    "memory": SimpleNamespace(**vars(memory) | _MEMORY),
    "matrix": SimpleNamespace(**vars(matrix) | {"ldmatrix": _ldmatrix, "stmatrix": _stmatrix}),
    "atomic": _atomic,
}
