"""Races: two threads of a launch at one address, at least one of which writes, and nothing that orders them.

What orders two threads of a block is a barrier that both passed (`__syncthreads`, a named barrier), and for threads of
one warp also `__syncwarp`; nothing orders threads of different blocks. Atomics do not race with each other, nor do
volatile accesses. Each element of a memory remembers who wrote it last and who has read it since, and in which epoch:
how many barriers the block and the warp had passed by then.

Races are not looked for in kernels whose threads may order themselves through that memory in other ways: in global
memory by fences, volatile or acquiring loads, atomics whose result is used; in shared memory by these loads and atomics
together with a fence. Not seen: threads that no barrier of their own orders where others of the block passed one
meanwhile.
"""

import functools
from typing import TYPE_CHECKING

import numpy as np

from common.simt.cfg import Kernel, defs_and_uses, registers
from common.simt.findings import Finding, Findings, global_name, shared_name, watching
from common.simt.group import line_text
from common.simt.matrix import WMMA_TYPES
from common.simt.memory import Address
from common.simt.ops import widen
from common.simt.ptx import TYPE_BYTES, Instr
from common.simt.writer import space_of, type_of

if TYPE_CHECKING:
    from common.simt.group import Group
    from common.simt.scheduler import Chunk, Launch

__all__ = ["Epochs", "RaceWatch", "smallest_access", "synchronises", "watching"]
NOBODY = 0  # threads of the launch are numbered from 1 here
WARP, WARPS, BLOCKS = 1, 2, 3  # who has read an element: more than one thread of a warp, warp of a block, block


def smallest_access(kernel: Kernel, space: str) -> int:
    """Bytes of the smallest access that may be to this space, 4 at most: the elements that are told apart."""
    sizes = [4]
    for block in kernel.blocks:
        for instr in block.instrs:
            if instr.op in ("ld", "ldu", "st", "atom", "red") and space_of(instr) in (space, "generic"):
                sizes.append(TYPE_BYTES[type_of(instr)])
            elif instr.op in ("ldmatrix", "stmatrix"):
                sizes.append(2)
            elif instr.op == "wmma" and instr.mods[0] != "mma":
                sizes += [WMMA_TYPES[m].itemsize for m in instr.mods if m in WMMA_TYPES]
    return min(sizes)


def synchronises(kernel: Kernel, space: str = "global") -> bool:
    """Whether threads of this kernel may order themselves through global memory, or through shared: there only in
    kernels with a fence, for many a queue in shared memory takes its places from an atomic."""
    used = {r for b in kernel.blocks for i in b.all_instrs() for r in defs_and_uses(i)[1]}
    instrs = [instr for block in kernel.blocks for instr in block.instrs]
    if space == "shared" and not any(_fences(instr) for instr in instrs):
        return False
    return any(_signals(instr, used, space) for instr in instrs)


def _fences(instr: Instr) -> bool:
    return instr.op in ("membar", "fence") or not {"acquire", "release", "acq_rel"}.isdisjoint(instr.mods)


def _signals(instr: Instr, used: set[str], space: str) -> bool:
    if space == "global" and instr.op in ("membar", "fence", "nanosleep"):
        return True
    if instr.op not in ("ld", "atom") or space_of(instr) not in (space, "generic"):
        return False
    if instr.op == "atom":
        return bool(used.intersection(registers(instr.args[0])))
    return bool({"volatile", "relaxed", "acquire"}.intersection(instr.mods))


class Epochs:
    """How many barriers the blocks of a chunk have passed, and the warps of their own."""

    def __init__(self, chunk: "Chunk"):
        self.chunk = chunk
        self.block = np.zeros(chunk.count, np.int32)
        self.warp = np.zeros(chunk.slots // 32, np.int32)

    def pass_barrier(self, groups: "list[Group]") -> None:
        """The blocks of these threads have passed a barrier."""
        blocks = np.concatenate([g.slot_index // self.chunk.slots_per_block for g in groups])
        self.block[np.unique(blocks)] += 1

    def pass_warp_barrier(self, group: "Group") -> None:
        """The warps of these threads have passed a __syncwarp."""
        self.warp[np.unique(group.slot_index >> 5)] += 1


class Accesses:
    """One access for each element of a memory that the threads of a group touch."""

    def __init__(self, g: "Group", epochs: Epochs, unit: int, address: Address, offset: int, size: int, where: int):
        self.chunk, self.where, count = g.chunk, where, size // unit
        shift = unit.bit_length() - 1
        start = widen(address.index(shift) + (offset >> shift), g.n)
        self.at = start if count == 1 else (start[:, None] + np.arange(count)).ravel()
        slot = g.slot_index if count == 1 else np.repeat(g.slot_index, count)
        before = g.chunk.first * g.chunk.slots_per_block
        self.thread = (slot + (before + 1)).astype(np.int32)
        self.block_epoch = epochs.block[slot // g.chunk.slots_per_block]
        self.warp_epoch = epochs.warp[slot >> 5]


class RaceWatch:
    """A memory, element by element: the shared memory of a chunk, or the global memory of a launch."""

    def __init__(self, launch: "Launch", space: str, elements: int, found: Findings):
        self.launch, self.space, self.found = launch, space, found
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        self.slots_per_block = -(-threads // 32) * 32
        self.writer, self.reader = np.zeros((2, elements), np.int32)  # threads
        # of the last write, and of the reads since: epoch of the block, of the warp, place in the program
        self.written, self.read = np.zeros((2, 3, elements), np.int32)
        self.strong = np.zeros(elements, bool)  # the last write was an atomic, or volatile
        self.readers = np.zeros(elements, np.uint8)  # WARP, WARPS or BLOCKS

    def before_write(self, who: Accesses, old: np.ndarray, values: np.ndarray, strong: bool) -> None:
        """Report what a write of these elements races with. `strong`: an atomic, or volatile."""
        at, writer, reader = who.at, self.writer[who.at], self.reader[who.at]
        clash = self._unordered(writer, self.written[:, at], who)
        clash &= old != values  # the same again does no harm
        if strong:
            clash &= ~self.strong[at]
        self._report("write after write", clash, who, writer, self.written[2, at])
        readers = self.readers[at]
        one_warp = (readers <= WARP) & self._same_warp(reader, who)
        ordered = one_warp & (((readers == 0) & (reader == who.thread)) | (self.read[1, at] < who.warp_epoch))
        ordered |= (readers < BLOCKS) & self._same_block(reader, who) & (self.read[0, at] != who.block_epoch)
        self._report("write after read", (reader != NOBODY) & ~ordered, who, reader, self.read[2, at])

    def after_write(self, who: Accesses, new: np.ndarray, values: np.ndarray, strong: bool) -> None:
        """Note a write; report threads that wrote different values to one place with one instruction."""
        at = who.at
        self.writer[at] = who.thread
        self.written[:, at] = who.block_epoch, who.warp_epoch, np.full(len(at), who.where)
        self.strong[at] = strong
        self.reader[at] = NOBODY
        if not strong:
            last = self.writer[at]
            clash = (last != who.thread) & (new != values)
            self._report("write after write", clash, who, last, np.full(len(at), who.where))

    def read_by(self, who: Accesses, strong: bool) -> None:
        """Note a read, and report the writes that it races with."""
        at, writer = who.at, self.writer[who.at]
        clash = self._unordered(writer, self.written[:, at], who)
        if strong:
            clash &= ~self.strong[at]
        self._report("read after write", clash, who, writer, self.written[2, at])
        if strong:  # who polls is no reason to call the write that ends it a race
            return
        before, readers, same_block = self.reader[at], self.readers[at], self._same_block(self.reader[at], who)
        fresh = (before == NOBODY) | (same_block & (readers < BLOCKS) & (self.read[0, at] != who.block_epoch))
        fresh |= (readers <= WARP) & self._same_warp(before, who) & (self.read[1, at] < who.warp_epoch)
        self.readers[at[fresh]] = 0
        self.reader[at] = who.thread
        self.read[:, at] = who.block_epoch, who.warp_epoch, np.full(len(at), who.where)
        last = self.reader[at]  # of the threads that read an element just now
        for level, size in ((WARP, 1), (WARPS, 32), (BLOCKS, self.slots_per_block)):
            if level == BLOCKS and self.space == "shared":
                break
            mine = (who.thread - 1) // size
            others = (((last - 1) // size) != mine) | (~fresh & (((before - 1) // size) != mine))
            several = at[others]
            self.readers[several] = np.maximum(self.readers[several], level)

    @staticmethod
    def _same_warp(other: np.ndarray, who: Accesses) -> np.ndarray:
        return (other - 1) >> 5 == (who.thread - 1) >> 5

    def _same_block(self, other: np.ndarray, who: Accesses) -> np.ndarray | bool:
        if self.space == "shared":
            return True
        return (other - 1) // self.slots_per_block == (who.thread - 1) // self.slots_per_block

    def _unordered(self, other: np.ndarray, epochs: np.ndarray, who: Accesses) -> np.ndarray:
        """Whether an access by `other` threads may be at the same time as that of `who`."""
        ordered = self._same_block(other, who) & (epochs[0] != who.block_epoch)
        ordered |= self._same_warp(other, who) & (epochs[1] < who.warp_epoch)
        return (other != NOBODY) & (other != who.thread) & ~ordered

    def _report(self, kind: str, clash: np.ndarray, who: Accesses, others: np.ndarray, places: np.ndarray) -> None:
        """One finding for each pair of places in the program."""
        program = self.launch.program
        for place in np.unique(places[clash]) if clash.any() else ():
            first = int(np.flatnonzero(clash & (places == place))[0])
            self.found.report(
                (kind, self.space, program.kernel.name, program.lines[place], program.lines[who.where]),
                functools.partial(self._finding, kind, who, first, int(others[first]), int(place)),
            )

    def _finding(self, kind: str, who: Accesses, first: int, other: int, place: int) -> Finding:
        launch, chunk, me = self.launch, who.chunk, int(who.thread[first]) - 1
        if self.space == "shared":
            unit = smallest_access(launch.program.kernel, "shared")
            start = chunk.shared_starts[me // self.slots_per_block - chunk.first]
            at = shared_name(launch, int(who.at[first]) * unit - int(start))
        else:
            at = global_name(launch, int(who.at[first]) * smallest_access(launch.program.kernel, "global"))
        earlier, later = (
            f"{launch.name_of(n)}{line_text(launch, p)}" for n, p in ((other - 1, place), (me, who.where))
        )
        return Finding(
            f"{self.space} race",
            f"race in {self.space} memory, {kind}",
            (f"in kernel {launch.program.kernel.name}, {earlier}", f"and {later}", f"at {at}"),
            launch.program.kernel.name,
        )
