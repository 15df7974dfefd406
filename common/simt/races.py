"""Races in shared memory: two threads, at least one of which writes, and nothing that orders them.

    with watching() as races:
        launch(stream, config, kernel, ...)
    for race in races: print(race)

What orders two threads of a block is a barrier that both passed (`__syncthreads`, a named barrier), and for threads of
one warp also `__syncwarp`. Atomics do not race with each other, nor do volatile accesses. Each element of shared memory
remembers who wrote it last and who has read it since, and in which epoch: how many barriers the block and the warp had
passed by then. Not seen: what wmma and ldmatrix read, and threads that no barrier of their own orders where others of
the block passed one meanwhile.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from common.simt import atomics, memory, warp
from common.simt.cfg import Kernel
from common.simt.group import line_text
from common.simt.memory import Address, AnyAddress
from common.simt.ops import widen
from common.simt.ptx import TYPE_BYTES
from common.simt.writer import space_of, type_of

if TYPE_CHECKING:
    from common.simt.group import Group
    from common.simt.scheduler import Chunk

NOBODY = -1


@dataclass(frozen=True)
class Race:
    """Two accesses to one place in shared memory that nothing orders."""

    kind: str  # "write after write", "read after write", "write after read"
    kernel: str
    offset: int  # bytes from the start of the block's shared memory
    block: int
    first: str  # "thread (0,0,0), line 12: tile[i] = x"
    second: str

    def __str__(self) -> str:
        return (
            f"race in shared memory, {self.kind}: kernel {self.kernel}, block {self.block}, byte {self.offset}\n"
            f"  {self.first}\n  {self.second}"
        )


def smallest_access(kernel: Kernel) -> int:
    """Bytes of the smallest access that may be to shared memory, 4 at most: the elements that a Watch tells apart."""
    sizes = [4]
    for block in kernel.blocks:
        for instr in block.instrs:
            if instr.op in ("ld", "st", "atom", "red") and space_of(instr) in ("shared", "generic"):
                sizes.append(TYPE_BYTES[type_of(instr)])
    return min(sizes)


class Watch:
    """The shared memory of a chunk, element by element."""

    def __init__(self, chunk: "Chunk", found: list[Race]):
        self.chunk, self.found = chunk, found
        self.unit = smallest_access(chunk.launch.program.kernel)
        self.dtype = np.dtype(f"u{self.unit}")
        self.elements = chunk.shared_views[self.dtype]
        self.block_epoch = np.zeros(chunk.count, np.int32)  # how many barriers a block has passed
        self.warp_epoch = np.zeros(chunk.slots // 32, np.int32)  # and a warp, of its own
        size = len(self.elements)
        self.writer, self.reader = np.full((2, size), NOBODY, np.int32)  # slots of the chunk
        # of the last write, and of the reads since: epoch of the block, of the warp, place in the program
        self.written, self.read = np.zeros((2, 3, size), np.int32)
        self.strong = np.zeros(size, bool)  # the last write was an atomic, or volatile
        self.readers, self.warps = np.zeros((2, size), bool)  # more than one thread, and warp, has read since
        self.seen: set[tuple[str, int, int]] = set()  # kinds and places reported

    def pass_barrier(self, groups: "list[Group]") -> None:
        """The blocks of these threads have passed a barrier."""
        blocks = np.concatenate([g.slot_index // self.chunk.slots_per_block for g in groups])
        self.block_epoch[np.unique(blocks)] += 1

    def pass_warp_barrier(self, group: "Group") -> None:
        """The warps of these threads have passed a __syncwarp."""
        self.warp_epoch[np.unique(group.slot_index >> 5)] += 1

    def before_write(self, who: "_Accesses", values: np.ndarray, strong: bool) -> None:
        """Report what a write of these elements races with. `strong`: an atomic, or volatile."""
        at, writer, reader = who.at, self.writer[who.at], self.reader[who.at]
        clash = self._unordered(writer, self.written[:, at], who)
        clash &= self.elements[at] != values  # the same again does no harm
        if strong:
            clash &= ~self.strong[at]
        self._report("write after write", clash, who, writer, self.written[2, at])
        one_warp = ~self.warps[at] & (reader >> 5 == who.slot >> 5)
        ordered = one_warp & ((~self.readers[at] & (reader == who.slot)) | (self.read[1, at] < who.warp_epoch))
        clash = (reader != NOBODY) & (self.read[0, at] == who.block_epoch) & ~ordered
        self._report("write after read", clash, who, reader, self.read[2, at])

    def after_write(self, who: "_Accesses", values: np.ndarray, strong: bool) -> None:
        """Note a write; report threads that wrote different values to one place with one instruction."""
        at = who.at
        self.writer[at] = who.slot
        self.written[:, at] = who.block_epoch, who.warp_epoch, np.full(len(at), who.where)
        self.strong[at] = strong
        self.reader[at] = NOBODY
        if not strong:
            last = self.writer[at]
            clash = (last != who.slot) & (self.elements[at] != values)
            self._report("write after write", clash, who, last, np.full(len(at), who.where))

    def read_by(self, who: "_Accesses", strong: bool) -> None:
        """Note a read, and report the writes that it races with."""
        at, writer = who.at, self.writer[who.at]
        clash = self._unordered(writer, self.written[:, at], who)
        if strong:
            clash &= ~self.strong[at]
        self._report("read after write", clash, who, writer, self.written[2, at])
        if strong:  # who polls is no reason to call the write that ends it a race
            return
        before = self.reader[at]
        fresh = (before == NOBODY) | (self.read[0, at] != who.block_epoch)
        fresh |= ~self.warps[at] & (before >> 5 == who.slot >> 5) & (self.read[1, at] < who.warp_epoch)
        self.readers[at[fresh]] = self.warps[at[fresh]] = False
        self.reader[at] = who.slot
        self.read[:, at] = who.block_epoch, who.warp_epoch, np.full(len(at), who.where)
        for several, shift in ((self.readers, 0), (self.warps, 5)):
            others = (self.reader[at] >> shift != who.slot >> shift) | (~fresh & (before >> shift != who.slot >> shift))
            several[at[others]] = True

    @staticmethod
    def _unordered(other: np.ndarray, epochs: np.ndarray, who: "_Accesses") -> np.ndarray:
        """Whether an access by `other` threads may be at the same time as that of `who`."""
        by_warp = (other >> 5 == who.slot >> 5) & (epochs[1] < who.warp_epoch)
        return (other != NOBODY) & (other != who.slot) & (epochs[0] == who.block_epoch) & ~by_warp

    def _report(self, kind: str, clash: np.ndarray, who: "_Accesses", others: np.ndarray, places: np.ndarray) -> None:
        """One Race for each pair of places in the program."""
        for place in np.unique(places[clash]) if clash.any() else ():
            key = (kind, int(place), who.where)
            if key in self.seen:
                continue
            self.seen.add(key)
            first = int(np.flatnonzero(clash & (places == place))[0])
            slot = int(who.slot[first])
            block = slot // self.chunk.slots_per_block
            self.found.append(
                Race(
                    kind,
                    self.chunk.launch.program.kernel.name,
                    int(who.at[first] * self.unit - self.chunk.shared_starts[block]),
                    self.chunk.first + block,
                    self._name(int(others[first]), int(place)),
                    self._name(slot, who.where),
                )
            )

    def _name(self, slot: int, place: int) -> str:
        return f"{self.chunk.name_of(slot)}{line_text(self.chunk.launch, place)}"


class _Accesses:
    """One access for each element that the threads of a group touch in shared memory."""

    def __init__(self, group: "Group", address: Address, offset: int, size: int, where: int):
        watch = _watch(group)
        self.where, count = where, size // watch.unit
        shift = watch.unit.bit_length() - 1
        start = widen(address.index(shift) + (offset >> shift), group.n)
        self.at = start if count == 1 else (start[:, None] + np.arange(count)).ravel()
        self.slot = np.repeat(group.slot_index, count).astype(np.int32)
        self.block_epoch = watch.block_epoch[self.slot // group.chunk.slots_per_block]
        self.warp_epoch = watch.warp_epoch[self.slot >> 5]


# ---- who watches
_listeners: list[list[Race]] = []


@contextlib.contextmanager
def watching() -> Iterator[list[Race]]:
    """Look for races inside the `with`; the list gets each once for a pair of source lines, chunk by chunk."""
    found: list[Race] = []
    _listeners.append(found)
    try:
        yield found
    finally:
        _listeners.remove(found)


def listener() -> list[Race] | None:
    """The list of the innermost `watching()`; None where nobody watches."""
    return _listeners[-1] if _listeners else None


# ---- what generated code calls instead
def _watch(g: "Group") -> Watch:
    watch = g.chunk.watch
    assert watch is not None
    return watch


def _shared_parts(g: "Group", address: AnyAddress) -> Iterator[tuple[Any, "Group", Address]]:
    """(positions in the group, those threads, their address) of what lies in shared memory."""
    parts = address if isinstance(address, list) else [(slice(None), g, address)]
    return ((lanes, sub, part) for lanes, sub, part in parts if part.space == "shared")


def _loads(strong: bool) -> Callable[..., list]:
    def load(g: "Group", address: AnyAddress, offset: int, dtype: np.dtype, where: int, count: int = 1) -> list:
        values = memory.load(g, address, offset, dtype, where, count)
        for _, sub, part in _shared_parts(g, address):
            _watch(g).read_by(_Accesses(sub, part, offset, dtype.itemsize * count, where), strong)
        return values

    return load


def _stores(strong: bool) -> Callable[..., None]:
    def store(
        g: "Group", address: AnyAddress, offset: int, dtype: np.dtype, values: list[np.ndarray], where: int
    ) -> None:
        columns = [np.ascontiguousarray(widen(v, g.n)).view(dtype) for v in values]
        data, size, watch, parts = np.stack(columns, axis=1), dtype.itemsize * len(values), _watch(g), []
        for lanes, sub, part in _shared_parts(g, address):
            memory.check(sub, part, offset, size, "write", where)
            who, written = _Accesses(sub, part, offset, size, where), data[lanes].view(watch.dtype).ravel()
            watch.before_write(who, written, strong)
            parts.append((who, written))
        memory.store(g, address, offset, dtype, values, where)
        for who, written in parts:
            watch.after_write(who, written, strong)

    return store


def _copy_async(
    g: "Group", target: Address, source: Address, offsets: tuple[int, int], size: int, take: Any, where: int
) -> None:
    memory.copy_async(g, target, source, offsets, size, take, where)
    who, watch = _Accesses(g, target, offsets[0], size, where), _watch(g)
    written = watch.elements[who.at]  # already there: only the reads of what it overwrote are seen
    watch.before_write(who, written, False)
    watch.after_write(who, written, False)


def _atomic(
    g: "Group", address: AnyAddress, offset: int, op: str, dtype: np.dtype, value: np.ndarray, *rest: Any
) -> np.ndarray | None:
    parts, size, where, watch = [], dtype.itemsize << (value.ndim - 1), rest[-1], _watch(g)
    for _, sub, part in _shared_parts(g, address):
        memory.check(sub, part, offset, size, "atomic", where)
        parts.append(_Accesses(sub, part, offset, size, where))
        watch.before_write(parts[-1], ~watch.elements[parts[-1].at], True)  # whatever it writes
    result = atomics.atomic(g, address, offset, op, dtype, value, *rest)
    for who in parts:
        watch.after_write(who, watch.elements[who.at], True)
    return result


def _warp_barrier(g: "Group") -> None:
    _watch(g).pass_warp_barrier(g)


_MEMORY = {
    "load": _loads(False),
    "load_strong": _loads(True),
    "store": _stores(False),
    "store_strong": _stores(True),
    "copy_async": _copy_async,
}
NAMESPACE = {  # for generated code, over its own
    "memory": SimpleNamespace(**vars(memory) | _MEMORY),
    "warp": SimpleNamespace(**vars(warp) | {"barrier": _warp_barrier}),
    "atomic": _atomic,
}
