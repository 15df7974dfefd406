"""What generated code calls while somebody watches (findings.py), in place of the functions of the same names.

Each does what it stands for and tells the checks of its chunk: races.py, initcheck.py, and below those of barriers and
of asynchronous copies.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from common.simt import matrix, memory
from common.simt.findings import Finding, Findings, global_name, shared_name
from common.simt.group import line_text
from common.simt.initcheck import Written
from common.simt.memory import DEVICE_BYTES, FIRST_ADDRESS, Address, AnyAddress
from common.simt.ops import widen
from common.simt.ptx import Instr
from common.simt.races import Accesses, Epochs, RaceWatch, smallest_access, synchronises

if TYPE_CHECKING:
    from common.simt.group import Group
    from common.simt.scheduler import Chunk, Launch


class LaunchWatch:
    """The checks of one launch."""

    def __init__(self, launch: "Launch", found: Findings):
        self.launch, self.found = launch, found
        kernel, arena = launch.program.kernel, launch.arena
        self.units = {space: smallest_access(kernel, space) for space in ("shared", "global")}
        found.launches += 1
        found.kernels.add(kernel.name)
        self.shared_races = not synchronises(kernel, "shared")
        if not self.shared_races:
            found.synchronising["shared race"].add(kernel.name)
        self.races = None
        if launch.workspace or synchronises(kernel):
            found.synchronising["global race"].add(kernel.name)
        else:
            end = max((a.end for a in arena.table if a.kind != "pinned"), default=0)
            self.races = RaceWatch(launch, "global", end // self.units["global"] + 1, found)

    def report(self, kind: str, what: str, *threads: "tuple[Group, int, int]", at: str = "") -> None:
        """A finding about threads, each with its group, its position there and its place in the program; and where in
        memory."""
        launch, kernel = self.launch, self.launch.program.kernel.name

        def make() -> Finding:
            names = [
                f"{g.chunk.name_of(int(g.slot_index[lane]))}{line_text(launch, where)}" for g, lane, where in threads
            ]
            places = [f"in kernel {kernel}, {names[0]}", *(f"and {n}" for n in names[1:])]
            return Finding(kind, what, (*places, f"at {at}") if at else tuple(places), kernel)

        self.found.report((kind, kernel, *(launch.program.lines[where] for *_, where in threads)), make)


class ChunkWatch:
    """The checks of the blocks that run together: their accesses and their barriers."""

    def __init__(self, chunk: "Chunk", launch: LaunchWatch):
        self.chunk, self.launch = chunk, launch
        size = chunk.shared_views[np.dtype("u1")].size
        elements = size // launch.units["shared"]
        self.epochs = Epochs(chunk)
        self.races = RaceWatch(chunk.launch, "shared", elements, launch.found) if launch.shared_races else None
        self.written = Written(size)
        self.copies = Copies(chunk, elements)

    # ---- accesses of a group to shared or global memory
    def read(
        self, g: "Group", part: Address, offset: int, size: int, count: int, where: int, strong: bool = False
    ) -> None:
        """Threads read `count` neighbouring elements of `size` bytes."""
        self.must_be_written(g, part, offset, size, count, where, "read")
        races = self._races_in(part)
        if races is None:
            return
        who = self._accesses(g, part, offset, size * count, where)
        races.read_by(who, strong)
        late = self.copies.missing(who.at) if part.space == "shared" and self.copies.any else None
        if late is not None and late.any():
            lane = int(np.argmax(late)) * g.n // len(late)
            at = shared_name(g.chunk.launch, int(widen(part.raw, g.n)[lane]) + offset)
            self.launch.report("shared race", "race in shared memory, read before cp.async", (g, lane, where), at=at)

    def must_be_written(
        self, g: "Group", part: Address, offset: int, size: int, count: int, where: int, what: str
    ) -> None:
        """Report elements that threads use and nothing wrote."""
        written, launch = self._written_in(part.space), self.chunk.launch
        bad = written.unwritten(part, offset, size, count)
        if bad is None:
            return
        lane = int(np.argmax(bad))
        at = int(part.raw[lane if part.raw.size > 1 else 0]) + offset
        base = part.base if isinstance(part.base, int) else int(part.base[lane])
        at += int(written.missing(base + at, size * count)[0])
        name = shared_name(launch, at) if part.space == "shared" else global_name(launch, at)
        text = f"{what} of {size * count} bytes of {part.space} memory that nothing wrote"
        self.launch.report("uninitialized", text, (g, lane, where), at=name)

    def before_write(
        self, g: "Group", part: Address, offset: int, size: int, where: int, values: np.ndarray | None, strong: bool
    ) -> Callable[[], None]:
        """Threads are about to write `size` bytes, `values` (None: an atomic, which may write anything). What is to be
        done when they have."""
        races, written = self._races_in(part), self._written_in(part.space)
        pieces = (size, 1) if size <= 8 else (8, size // 8)
        if races is None:
            return lambda: written.store(part, offset, *pieces)
        who, elements = self._accesses(g, part, offset, size, where), self._elements(part.space)
        new = ~elements[who.at] if values is None else values.view(elements.dtype).ravel()
        races.before_write(who, elements[who.at], new, strong)

        def after() -> None:
            races.after_write(who, elements[who.at], elements[who.at] if values is None else new, strong)
            written.store(part, offset, *pieces)
            if part.space == "shared":
                self.copies.overwrite(who)

        return after

    def wrote(self, g: "Group", part: Address, offset: int, size: int, where: int) -> Accesses:
        """Threads have written `size` bytes. Only the reads of what was there are seen, not other writes."""
        who = self._accesses(g, part, offset, size, where)
        self.before_write(g, part, offset, size, where, self._elements(part.space)[who.at], False)()
        return who

    def _races_in(self, part: Address) -> RaceWatch | None:
        """Who looks for races there: nobody where the kernel signals through memory, nor in pinned host memory."""
        if part.space == "shared":
            return self.races
        return self.launch.races if part.high < FIRST_ADDRESS + DEVICE_BYTES else None

    def _written_in(self, space: str) -> Written:
        written = self.written if space == "shared" else self.chunk.launch.arena.written
        assert written is not None
        return written

    def _elements(self, space: str) -> np.ndarray:
        """A memory as the elements that are told apart."""
        views = self.chunk.shared_views if space == "shared" else self.chunk.launch.arena.views
        return views[np.dtype(f"u{self.launch.units[space]}")]

    def _accesses(self, g: "Group", part: Address, offset: int, size: int, where: int) -> Accesses:
        return Accesses(g, self.epochs, self.launch.units[part.space], part, offset, size, where)

    # ---- barriers
    def pass_barrier(self, groups: "list[Group]") -> None:
        """A barrier opens for these threads: it must be one barrier, and all threads of a block must be at it."""
        self.epochs.pass_barrier(groups)
        threads = int(np.prod(self.chunk.launch.block))
        first: dict[int, tuple[Group, int, Instr]] = {}  # block -> a thread at the barrier, and which barrier that is
        for g in groups:
            if g.arrived is None or g.arrived.count is not None or not _aligned(g.arrived.control):
                continue
            blocks, positions = np.unique(g.slot_index // self.chunk.slots_per_block, return_index=True)
            for block, position in zip(blocks.tolist(), positions.tolist(), strict=True):
                me = (g, position, g.arrived.control)
                if gone := threads - int(self.chunk.live[block]):
                    what = f"barrier missed: {gone} of the {threads} threads of the block ended before they reached it"
                    self._report(what, me)
                if first.setdefault(block, me)[2] is not me[2]:
                    self._report("barrier missed: threads of one block wait at different ones", first[block], me)

    def incomplete(self, group: "Group") -> None:
        """A warp instruction goes on without lanes that its mask names, which wait elsewhere for good."""
        instr = self.chunk.launch.program.kernel.blocks[group.place].warp_op
        assert instr is not None
        what = "barrier of a warp missed: lanes that the mask names wait elsewhere for good"
        self._report(what, (group, 0, instr))

    def _report(self, what: str, *threads: "tuple[Group, int, Instr]") -> None:
        """Each thread with where it waits."""
        program, places = self.chunk.launch.program, []
        for g, lane, instr in threads:
            known = instr.loc in program.lines
            places.append((g, lane, program.lines.index(instr.loc) if known else program.where(instr.loc)))
        self.launch.report("barrier", what, *places)


def _aligned(instr: Instr) -> bool:
    """Whether all threads of a block must execute this same barrier: bar.sync, not barrier.sync."""
    return instr.op == "bar" or "aligned" in instr.mods


class Copies:
    """Asynchronous copies (cp.async) on their way into the shared memory of a chunk."""

    def __init__(self, chunk: "Chunk", elements: int):
        self.any = False
        self.owner = np.zeros(elements, np.int32)  # slot + 1 of the thread that copies an element, 0: nobody
        self.batch = np.zeros(elements, np.int32)  # with which of its groups
        self.committed, self.arrived = np.zeros((2, chunk.slots), np.int32)  # groups of each thread

    def start(self, who: Accesses, g: "Group") -> None:
        """Threads copy into these elements."""
        slots = np.repeat(g.slot_index, len(who.at) // g.n)
        self.any = True
        self.owner[who.at] = slots + 1
        self.batch[who.at] = self.committed[slots] + 1

    def overwrite(self, who: Accesses) -> None:
        """Other values are stored into these elements."""
        if self.any:
            self.owner[who.at] = 0

    def commit(self, g: "Group") -> None:
        """Threads close a group of copies."""
        self.committed[g.slot_index] += 1

    def wait(self, g: "Group", pending: int) -> None:
        """Threads wait for all but their `pending` latest groups (-1: also for what is in no group yet)."""
        slots = g.slot_index
        self.arrived[slots] = np.maximum(self.arrived[slots], self.committed[slots] - pending)

    def missing(self, at: np.ndarray) -> np.ndarray:
        """Which of these elements may not be there yet."""
        owner = self.owner[at] - 1
        return (owner >= 0) & (self.batch[at] > self.arrived[owner])


# ---- the functions
def _watch(g: "Group") -> ChunkWatch:
    assert g.chunk.watch is not None
    return g.chunk.watch


def _parts(g: "Group", address: AnyAddress) -> list[tuple[Any, "Group", Address]]:
    """(positions in the group, those threads, their address) of what is in shared or global memory."""
    parts = address if isinstance(address, list) else [(slice(None), g, address)]
    return [(lanes, sub, part) for lanes, sub, part in parts if part.space in ("shared", "global")]


def namespace(below: dict[str, Any]) -> dict[str, Any]:
    """Functions for generated code that watch, and call those of `below`, which is generated code's own namespace."""
    plain, matrices, plain_atomic = below["memory"], below["matrix"], below["atomic"]

    def loads(name: str) -> Callable[..., list]:
        do, strong = getattr(plain, name), name == "load_strong"

        def load(g: "Group", address: AnyAddress, offset: int, dtype: np.dtype, where: int, count: int = 1) -> list:
            values = do(g, address, offset, dtype, where, count)
            for _, sub, part in _parts(g, address):
                _watch(g).read(sub, part, offset, dtype.itemsize, count, where, strong)
            return values  # type: ignore[no-any-return]

        return load

    def stores(name: str) -> Callable[..., None]:
        do, strong = getattr(plain, name), name == "store_strong"

        def store(g: "Group", address: AnyAddress, offset: int, dtype: np.dtype, values: list, where: int) -> None:
            size, parts, after = dtype.itemsize * len(values), _parts(g, address), []
            data = np.stack([np.ascontiguousarray(widen(v, g.n)).view(dtype) for v in values], axis=1)
            for lanes, sub, part in parts:
                memory.check(sub, part, offset, size, "write", where)
                after.append(_watch(g).before_write(sub, part, offset, size, where, data[lanes], strong))
            do(g, address, offset, dtype, values, where)
            for note in after:
                note()

        return store

    def atomic(
        g: "Group", address: AnyAddress, offset: int, op: str, dtype: np.dtype, value: np.ndarray, *rest: Any
    ) -> np.ndarray | None:
        size, count, (_, wanted, where) = dtype.itemsize, value.ndim, rest  # two halves where there are two dimensions
        watch, after = _watch(g), []
        for _, sub, part in _parts(g, address):
            memory.check(sub, part, offset, size * count, "atomic", where)
            if wanted or op != "exch":
                watch.must_be_written(sub, part, offset, size, count, where, f"atomic {op}")
            after.append(watch.before_write(sub, part, offset, size * count, where, None, True))
        result: np.ndarray | None = plain_atomic(g, address, offset, op, dtype, value, *rest)
        for note in after:
            note()
        return result

    def copy_async(
        g: "Group", target: Address, source: Address, offsets: tuple[int, int], size: int, take: Any, where: int
    ) -> None:
        plain.copy_async(g, target, source, offsets, size, take, where)
        if take is None:
            _watch(g).read(g, source, offsets[1], min(size, 8), size // min(size, 8), where)
        _watch(g).copies.start(_watch(g).wrote(g, target, offsets[0], size, where), g)

    # what the lanes of a matrix instruction read or wrote, element by element
    def wmma_load(
        g: "Group", role: str, shape: str, layout: str, kind: str, address: Address, offset: int, stride: np.ndarray,
        registers: int, where: int,
    ) -> Any:  # fmt: skip
        values = matrices.wmma_load(g, role, shape, layout, kind, address, offset, stride, registers, where)
        dtype = matrix.WMMA_TYPES[kind]
        for at in matrix.fragment_elements(g, role, shape, layout, address, stride, dtype):
            _watch(g).read(g, at, offset, dtype.itemsize, 1, where)
        return values

    def wmma_store(
        g: "Group", role: str, shape: str, layout: str, kind: str, address: Address, offset: int, stride: np.ndarray,
        values: list, where: int,
    ) -> None:  # fmt: skip
        matrices.wmma_store(g, role, shape, layout, kind, address, offset, stride, values, where)
        dtype = matrix.WMMA_TYPES[kind]
        for at in matrix.fragment_elements(g, role, shape, layout, address, stride, dtype):
            _watch(g).wrote(g, at, offset, dtype.itemsize, where)

    def ldmatrix(g: "Group", address: Address, offset: int, count: int, transposed: bool, where: int) -> Any:
        values = matrices.ldmatrix(g, address, offset, count, transposed, where)
        for at in matrix.matrix_elements(g, address, count, transposed):
            _watch(g).read(g, at, offset, 2, 1, where)
        return values

    def stmatrix(g: "Group", address: Address, offset: int, values: list, transposed: bool, where: int) -> None:
        matrices.stmatrix(g, address, offset, values, transposed, where)
        for at in matrix.matrix_elements(g, address, len(values), transposed):
            _watch(g).wrote(g, at, offset, 2, where)

    functions = {
        **{name: loads(name) for name in ("load", "load_strong")},
        **{name: stores(name) for name in ("store", "store_strong")},
        "copy_async": copy_async,
        "commit_copies": lambda g: _watch(g).copies.commit(g),
        "wait_copies": lambda g, pending: _watch(g).copies.wait(g, pending),
    }
    fragments = {"wmma_load": wmma_load, "wmma_store": wmma_store, "ldmatrix": ldmatrix, "stmatrix": stmatrix}
    barrier = {"barrier": lambda g: _watch(g).epochs.pass_warp_barrier(g)}
    return {
        **below,
        "memory": SimpleNamespace(**vars(plain) | functions),
        "matrix": SimpleNamespace(**vars(matrices) | fragments),
        "warp": SimpleNamespace(**vars(below["warp"]) | barrier),
        "atomic": atomic,
    }
