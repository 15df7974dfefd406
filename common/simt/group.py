"""A group: threads of a chunk that stand at the same place, and what the generated code asks them for.

A chunk numbers its thread slots: each block has its threads rounded up to whole warps, so that slot // 32 is a warp
and slot % 32 a lane. The scheduler makes, splits and merges the groups.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from common.simt import warp
from common.simt.errors import KernelFault, Trap
from common.simt.ops import u4
from common.simt.output import format_printf
from common.simt.ptx import Instr

if TYPE_CHECKING:
    from common.simt.scheduler import Chunk, Launch

SMS = 16  # multiprocessors of the simulated device


@dataclass(frozen=True)
class Arrival:
    """At which barrier a group waits, for how many threads (None: all of the block), and its operand of a bar.red."""

    control: Instr
    number: int
    count: int | None
    predicate: np.ndarray | None


class Group:
    """Threads of a chunk that stand at the same place, with their registers.

    A register is an array of one element a thread, or of one element where the value is the same in all of them.
    """

    __slots__ = ("_cache", "arrived", "chunk", "n", "place", "regs", "slots")

    def __init__(self, chunk: "Chunk", place: int, slots: np.ndarray | None, regs: dict[str, np.ndarray]):
        self.chunk = chunk
        self.place = place  # number of the block it will run next
        self.slots = slots  # which slots of the chunk, ascending; None for all
        self.n = chunk.slots if slots is None else len(slots)
        self.regs = regs
        self.arrived: Arrival | None = None  # while it waits at a barrier
        self._cache: dict[Hashable, np.ndarray] = {}

    @property
    def slot_index(self) -> np.ndarray:
        """The slot of each thread."""
        return self.chunk.all_slots if self.slots is None else self.slots

    @property
    def lane(self) -> np.ndarray:
        """The lane of each thread in its warp."""
        return self.slot_index & 31

    @property
    def shared_base(self) -> np.ndarray | int:
        """Where each thread's block has its part of the shared arena, in bytes."""
        if self.chunk.count == 1:
            return 0
        return self._cached("shared", lambda: self.of_block(self.chunk.shared_starts))

    @property
    def local_base(self) -> np.ndarray:
        """Where each thread has its part of the local arena, in bytes."""
        return self._cached("local", lambda: self.slot_index * self.chunk.local_stride)

    def _cached(self, key: Hashable, make: Callable[[], np.ndarray]) -> np.ndarray:
        if self.slots is None:  # the full group is remade at every merge; its tables stay with the chunk
            found = self.chunk.tables.get(key)
            if found is None:
                found = self.chunk.tables[key] = make()
            return found
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = make()
        return found

    def of_block(self, per_block: np.ndarray) -> np.ndarray:
        """Each thread's block's value."""
        return per_block[self.slot_index // self.chunk.slots_per_block]

    def special(self, name: str, axis: str) -> np.ndarray:
        """A special register such as %tid.x (name 'tid', axis 'x'), as u4."""
        return self._cached((name, axis), lambda: self._special(name, axis))

    def _special(self, name: str, axis: str) -> np.ndarray:
        launch, chunk = self.chunk.launch, self.chunk
        x, y, _ = launch.block
        gx, gy, _ = launch.grid
        if name in ("ntid", "nctaid"):
            shape = launch.block if name == "ntid" else launch.grid
            return np.array([shape["xyz".index(axis)]], u4)
        thread = self.slot_index % chunk.slots_per_block
        if name == "tid":
            value = {"x": thread % x, "y": thread // x % y, "z": thread // (x * y)}[axis]
            return value.astype(u4)
        if name in ("ctaid", "smid"):
            block = np.arange(chunk.first, chunk.first + chunk.count)
            if name == "smid":
                value = block % SMS
            else:
                value = {"x": block % gx, "y": block // gx % gy, "z": block // (gx * gy)}[axis]
            return value.astype(u4) if chunk.count == 1 else self.of_block(value.astype(u4))
        if name.startswith("lanemask"):
            return warp.lane_mask(self, name[9:])
        if name in ("laneid", "warpid"):
            return (self.lane if name == "laneid" else thread >> 5).astype(u4)
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        one = {
            "nwarpid": -(-threads // 32), "nsmid": SMS, "gridid": 0, "envreg1": launch.workspace >> 32,
            "envreg2": launch.workspace & 0xFFFFFFFF, "dynamic_smem_size": launch.dynamic_shared,
            "total_smem_size": launch.dynamic_shared + launch.static_shared, "is_explicit_cluster": 0,
            "nclusterid": {"x": gx, "y": gy, "z": launch.grid[2]}.get(axis, 1), "cluster_nctaid": 1, "cluster_ctaid": 0,
            "cluster_ctarank": 0, "cluster_nctarank": 1, "clusterid": 0,
        }  # fmt: skip
        return np.array([one[name]], u4)

    def param(self, offset: int, dtype: np.dtype) -> np.ndarray:
        """A kernel parameter, the same for all threads."""
        view = self.chunk.launch.param_views[np.dtype(f"u{dtype.itemsize}")]
        index = offset // dtype.itemsize
        return view[index : index + 1].view(dtype)

    def subset(self, lanes: np.ndarray) -> "Group":
        """A group of some of these threads (positions in the group), without registers."""
        return Group(self.chunk, self.place, self.slot_index[lanes], {})

    def trap(self, where: int) -> None:
        """The trap instruction."""
        raise Trap(self.describe(Trap, "the kernel executed a trap", where, 0))

    def assert_fail(self, message: np.ndarray, where: int) -> None:
        """A device assertion failed; `message` is the address of its text."""
        text = self.chunk.launch.arena.string(int(message[0]))
        raise Trap(self.describe(Trap, f"device assertion failed: {text}", where, 0))

    def printf(self, form: np.ndarray, arguments: np.ndarray) -> np.ndarray:
        """Device printf: addresses of the format and of each thread's packed arguments."""
        texts, counts = format_printf(self, form, arguments)
        self.chunk.launch.output += texts
        return counts

    def describe(self, kind: type[KernelFault], detail: str, where: int, lane: int) -> str:
        """The text of a fault: what, kernel, source line, block and thread."""
        launch = self.chunk.launch
        who = self.chunk.name_of(int(self.slot_index[lane]))
        return f"{kind.code}: {detail}\n  in kernel {launch.program.kernel.name}, {who}{line_text(launch, where)}"


def line_text(launch: "Launch", where: int) -> str:
    """', line 12: the source text' for a place in the program."""
    if not 0 <= where < len(launch.program.lines):
        return ""
    file, line = launch.program.lines[where]
    lines = launch.source.split("\n")
    if file != 1 or not 0 < line <= len(lines):
        return ""
    return f", line {line}: {lines[line - 1].strip()}"
