"""The scheduler: runs the blocks of a grid in chunks of whole blocks, all threads of a chunk together.

Threads that stand at the same place form a Group; a group has a dense array for each register (or one element
where the value is the same in all its threads). A branch that not all threads take splits the group; groups that
meet at the same place merge before they go on. The lowest place runs first, which is where the threads
reconverge (see cfg.py). Threads wait at barriers by block, and at warp instructions for the lanes that the
instruction names. A loop that may wait for another thread is left for a while when others could run, and a chunk that only
waits is set aside for the next one, so no order of blocks can hang a correct program.
"""

import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from common.simt import warp
from common.simt.cfg import Block
from common.simt.errors import Deadlock, KernelFault, Trap
from common.simt.memory import Arena
from common.simt.ops import i8, u4
from common.simt.output import format_printf
from common.simt.ptx import Imm
from common.simt.translate import Program

CHUNK_THREADS = 16384  # more run no faster: the arrays leave the cache
SPIN_STEPS = 48  # steps in a waiting loop before other threads get their turn
STALLED_ROUNDS = 256  # rounds of nothing but waiting, over all chunks, before it counts as a deadlock
TIME_LIMIT = 600.0  # seconds for one launch; a display's GPU allows about two
SMS = 16  # multiprocessors of the simulated device


@dataclass
class Launch:
    """One kernel launch: what runs, on which memory, with which parameters."""

    program: Program
    arena: Arena
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    params: np.ndarray  # the parameter bytes
    dynamic_shared: int
    static_shared: int  # bytes of the kernel's own shared variables (dynamic memory follows them)
    local_bytes: int
    source: str
    workspace: int = 0  # address of the grid barrier, for cooperative launches
    output: list[str] = field(default_factory=list)
    param_views: dict = field(default_factory=dict)
    writes: int = 0  # stores and atomics so far: a waiting loop is one during which this stands still
    ticks: int = 0

    def __post_init__(self) -> None:
        self.started = time.monotonic()
        padded = np.zeros(-(-max(len(self.params), 1) // 16) * 16, np.uint8)
        padded[: len(self.params)] = self.params
        self.param_views = {np.dtype(t): padded.view(t) for t in ("u1", "i1", "u2", "i2", "u4", "i4", "f4", "u8", "i8", "f8")}  # fmt: skip

    def run(self) -> None:
        """Run every block to its end. Raises a KernelFault."""
        threads = self.block[0] * self.block[1] * self.block[2]
        padded = -(-threads // 32) * 32
        blocks = self.grid[0] * self.grid[1] * self.grid[2]
        per_chunk = max(1, CHUNK_THREADS // padded)
        waiting = deque(range(0, blocks, per_chunk))
        stalled: deque[Chunk] = deque()
        idle = 0
        with np.errstate(all="ignore"):
            while waiting or stalled:
                # new blocks first: what the stalled ones wait for may be there
                if waiting:
                    first = waiting.popleft()
                    chunk = Chunk(self, first, min(per_chunk, blocks - first))
                else:
                    chunk = stalled.popleft()
                before = (chunk.progress, self.writes)
                finished = chunk.run()
                if not finished:
                    stalled.append(chunk)
                idle = 0 if finished or (chunk.progress, self.writes) != before else idle + 1
                if idle > STALLED_ROUNDS + len(stalled):
                    raise Deadlock(chunk.describe_wait())

    def tick(self) -> None:
        """Count a step; look at the clock now and then."""
        self.ticks += 1
        if self.ticks & 1023 == 0 and time.monotonic() - self.started > TIME_LIMIT:
            raise Deadlock(
                f"{Deadlock.code}: kernel {self.program.kernel.name} ran for more than {TIME_LIMIT:.0f} s"
            )


class Group:
    """Threads of a chunk that stand at the same place, with their registers."""

    __slots__ = ("_cache", "arrived", "chunk", "n", "place", "regs", "slots")

    def __init__(self, chunk: "Chunk", place: int, slots: np.ndarray | None, regs: dict[str, np.ndarray]):
        self.chunk = chunk
        self.place = place  # number of the block it will run next
        self.slots = slots  # which slots of the chunk, ascending; None for all
        self.n = chunk.slots if slots is None else len(slots)
        self.regs = regs
        self.arrived: tuple | None = None  # (barrier, count, value) while it waits
        self._cache: dict = {}

    # ---- what the generated code asks for
    @property
    def slot_index(self) -> np.ndarray:
        return self.chunk.all_slots if self.slots is None else self.slots

    @property
    def lane(self) -> np.ndarray:
        return self.slot_index & 31

    @property
    def shared_base(self) -> np.ndarray | int:
        """Where each thread's block has its part of the shared arena, in bytes."""
        if self.chunk.count == 1:
            return 0
        return self._cached("shared", lambda: self.of_block(self.chunk.shared_starts))

    @property
    def local_base(self) -> np.ndarray:
        return self._cached("local", lambda: self.slot_index * self.chunk.local_stride)

    def _cached(self, key, make):
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
        return per_block[self.slot_index // self.chunk.slots_per_block]

    def special(self, name: str, axis: str) -> np.ndarray:
        """A special register, as u4."""
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
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        one = {
            "nwarpid": -(-threads // 32), "nsmid": SMS, "gridid": 0, "envreg1": launch.workspace >> 32,
            "envreg2": launch.workspace & 0xFFFFFFFF, "dynamic_smem_size": launch.dynamic_shared,
            "total_smem_size": launch.dynamic_shared + launch.static_shared, "is_explicit_cluster": 0,
            "nclusterid": {"x": gx, "y": gy, "z": launch.grid[2]}.get(axis, 1), "cluster_nctaid": 1, "cluster_ctaid": 0,
            "cluster_ctarank": 0, "cluster_nctarank": 1, "clusterid": 0,
        }  # fmt: skip
        if name in one:
            return np.array([one[name]], u4)
        return (self.lane if name == "laneid" else thread >> 5).astype(u4)

    def param(self, offset: int, dtype: np.dtype) -> np.ndarray:
        view = self.chunk.launch.param_views[np.dtype(f"u{dtype.itemsize}")]
        index = offset // dtype.itemsize
        return view[index : index + 1].view(dtype)

    def subset(self, lanes: np.ndarray) -> "Group":
        """A group of some of these threads (positions in the group), without registers."""
        return Group(self.chunk, self.place, self.slot_index[lanes], {})

    def trap(self, where: int) -> None:
        raise Trap(self.describe(Trap, "the kernel executed a trap", where, 0))

    def assert_fail(self, message, file, line, function, where: int) -> None:
        text = self.chunk.launch.arena.string(int(message[0]))
        raise Trap(self.describe(Trap, f"device assertion failed: {text}", where, 0))

    def printf(self, form: np.ndarray, arguments: np.ndarray) -> np.ndarray:
        self.chunk.launch.output += format_printf(self, form, arguments)
        return np.array([1], u4)

    def describe(self, kind: type[KernelFault], detail: str, where: int, lane: int) -> str:
        """The text of a fault: what, kernel, source line, block and thread."""
        launch = self.chunk.launch
        slot = int(self.slot_index[lane])
        block = self.chunk.first + slot // self.chunk.slots_per_block
        thread = slot % self.chunk.slots_per_block
        x, y, _ = launch.block
        gx, gy, _ = launch.grid
        who = f"block ({block % gx},{block // gx % gy},{block // (gx * gy)})"
        who += f" thread ({thread % x},{thread // x % y},{thread // (x * y)})"
        return f"{kind.code}: {detail}\n  in kernel {launch.program.kernel.name}, {who}{line_text(launch, where)}"


def line_text(launch: Launch, where: int) -> str:
    """', line 12: the source text' for a place in the program."""
    if not 0 <= where < len(launch.program.lines):
        return ""
    file, line = launch.program.lines[where]
    lines = launch.source.split("\n")
    if file != 1 or not 0 < line <= len(lines):
        return ""
    return f", line {line}: {lines[line - 1].strip()}"


class Chunk:
    """Some consecutive blocks of the grid, run together."""

    def __init__(self, launch: Launch, first: int, count: int):
        self.launch = launch
        self.first, self.count = first, count
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        self.slots_per_block = -(-threads // 32) * 32
        self.slots = count * self.slots_per_block
        self.all_slots = np.arange(self.slots)
        self.shuffles: dict = {}
        self.tables: dict = {}
        self.progress = 0  # steps outside waiting loops, exits, releases
        shared = launch.static_shared + launch.dynamic_shared
        stride = -(-max(shared, 1) // 16) * 16
        self.shared_starts = np.arange(count) * stride
        self.local_stride = -(-max(launch.local_bytes, 1) // 16) * 16
        self.shared_views = _views(count * stride)
        self._local_views: dict | None = None
        regs = {r: np.zeros(1, d) for r, d in _undefined(launch.program)}
        live = np.flatnonzero(self.all_slots % self.slots_per_block < threads)
        slots = None if len(live) == self.slots else live
        self.live = np.full(count, threads)  # threads of each block that have not exited
        self.live_lanes = self._lanes(live)
        self.ready: dict[int, list[Group]] = {0: [Group(self, 0, slots, regs)]}
        self.parked: list[Group] = []  # at barriers
        self.unfinished: dict[int, Group] = {}  # at warp instructions, lanes missing
        self.named: dict[int, np.ndarray] = {}  # barrier -> bar.arrive counts of each block

    @property
    def local_views(self) -> dict:
        if self._local_views is None:
            self._local_views = _views(self.slots * self.local_stride)
        return self._local_views

    def space_bytes(self, space: str) -> int:
        if space == "shared":
            return self.launch.static_shared + self.launch.dynamic_shared
        return self.launch.local_bytes if space == "local" else len(self.launch.params)

    def space_name(self, space: str) -> str:
        return {"shared": "the block's shared memory", "local": "the thread's local memory"}.get(
            space, "the parameters"
        )

    def _lanes(self, slots: np.ndarray) -> np.ndarray:
        flags = np.zeros(self.slots, bool)
        flags[slots] = True
        return np.packbits(flags.reshape(-1, 32), axis=1, bitorder="little").view(u4).reshape(-1)

    # ---- the main loop
    def run(self) -> bool:
        """Run until every thread has exited (True) or nothing but waiting for other blocks is left (False)."""
        functions, blocks = self.launch.program.functions, self.launch.program.kernel.blocks
        spinning: set[int] = set()  # places of waiting loops, run since nobody but waiters had a turn
        steps, writes = 0, self.launch.writes
        while self.ready or self.unfinished:
            self.launch.tick()
            if not self.ready:  # the missing lanes cannot come: go on with those that are there
                self.step(self.unfinished.pop(min(self.unfinished)), functions, blocks)
                continue
            place = min(self.ready)
            if steps >= SPIN_STEPS:
                others = self.ready.keys() - spinning
                if others:  # somebody else may hold what the loop waits for
                    place = min(others)
                    if steps >= 2 * SPIN_STEPS:
                        spinning, steps, writes = set(), 0, self.launch.writes
                elif self.unfinished:
                    self.step(self.unfinished.pop(min(self.unfinished)), functions, blocks)
                    continue
                elif self.launch.writes == writes:
                    return False
                else:  # not a wait: the loop changes memory
                    spinning, steps, writes = set(), 0, self.launch.writes
            block = blocks[place]
            if block.spins:
                spinning.add(place)
            else:
                self.progress += 1
                if spinning and spinning.isdisjoint(self.ready):
                    spinning, steps = set(), 0
            steps += bool(spinning)
            group = self.merged(place)
            if block.warp_op is not None and group.slots is not None:
                complete = self.gathered(group, block)
                if complete is None:
                    continue
                group = complete
            self.step(group, functions, blocks)
        if self.parked:
            raise Deadlock(self.describe_barrier())
        return True

    def step(self, group: Group, functions: list, blocks: list[Block]) -> None:
        """Run one block for one group and send its threads on."""
        block = blocks[group.place]
        outcome = functions[group.place](group.regs, group)
        kind = block.kind
        if kind == "jump":
            self.send(group, block.targets[0])
        elif kind == "branch":
            taken = np.count_nonzero(outcome)
            if taken == outcome.size:
                self.send(group, block.targets[0])
            elif taken == 0:
                self.send(group, block.targets[1])
            else:
                self.split(group, [(block.targets[0], np.flatnonzero(outcome)), (block.targets[1], np.flatnonzero(~outcome))])  # fmt: skip
        elif kind == "switch":
            index = np.broadcast_to(outcome, (group.n,))
            self.split(group, [(block.targets[int(v)], np.flatnonzero(index == v)) for v in np.unique(index)])
        elif kind == "barrier":
            self.arrive(group, block, *outcome)
        else:
            self.exit(group)

    def send(self, group: Group, place: int) -> None:
        group.place = place
        self.ready.setdefault(place, []).append(group)

    def split(self, group: Group, parts: list[tuple[int, np.ndarray]]) -> None:
        """Send each part (positions in the group) to its place with the registers that live there."""
        blocks = self.launch.program.kernel.blocks
        slots = group.slot_index
        for place, lanes in parts:
            if lanes.size == 0:
                continue
            live = blocks[place].live_in
            regs = {r: v if v.size == 1 else v.take(lanes) for r, v in group.regs.items() if r in live}
            self.ready.setdefault(place, []).append(Group(self, place, slots[lanes], regs))

    def merged(self, place: int) -> Group:
        """All groups ready at a place, as one."""
        groups = self.ready.pop(place)
        waiting = self.unfinished.pop(place, None)
        if waiting is not None:
            groups.append(waiting)
        if len(groups) == 1:
            return groups[0]
        return self.join(groups, place)

    def join(self, groups: list[Group], place: int) -> Group:
        slots = np.concatenate([g.slot_index for g in groups])
        order = np.argsort(slots, kind="stable")
        live = self.launch.program.kernel.blocks[place].live_in
        regs = {}
        for r in live:
            values = [g.regs[r] for g in groups]
            first = values[0]
            if all(v.size == 1 and v.tobytes() == first.tobytes() for v in values):
                regs[r] = first
            else:
                whole = np.concatenate(
                    [np.broadcast_to(v, (g.n,)) for v, g in zip(values, groups, strict=True)]
                )
                regs[r] = whole.take(order)
        everyone = len(slots) == self.slots
        return Group(self, place, None if everyone else slots[order], regs)

    def part(self, group: Group, lanes: np.ndarray) -> Group:
        """Some threads of a group (positions), with all their registers."""
        regs = {r: v if v.size == 1 else v.take(lanes) for r, v in group.regs.items()}
        new = Group(self, group.place, group.slot_index[lanes], regs)
        new.arrived = group.arrived
        return new

    # ---- warp instructions
    def gathered(self, group: Group, block: Block) -> Group | None:
        """The threads whose warp has all the lanes that the instruction names; the others are set aside."""
        if group.n == int(self.live.sum()):
            return group
        present = self._lanes(group.slot_index)
        needed = self.live_lanes[group.slot_index >> 5] & self.members(group, block)
        complete = (needed & ~present[group.slot_index >> 5]) == 0
        if complete.all():
            return group
        rest = self.part(group, np.flatnonzero(~complete))
        self.unfinished[group.place] = rest
        return self.part(group, np.flatnonzero(complete)) if complete.any() else None

    def members(self, group: Group, block: Block) -> np.ndarray:
        """The mask operand of the warp instruction: every lane for those that have none."""
        instr = block.warp_op
        assert instr is not None
        if instr.op in ("shfl", "vote", "match", "redux", "elect", "bar") and "sync" in instr.mods:
            mask = instr.args[-1]
            if isinstance(mask, Imm):
                return np.array([int(mask.value) & 0xFFFFFFFF], u4)
            return group.regs[mask.name].view(u4)
        return np.array([0xFFFFFFFF], u4)

    # ---- barriers and exits
    def arrive(
        self, group: Group, block: Block, barrier: np.ndarray, threads: np.ndarray | None, value
    ) -> None:
        """A group reached bar.sync, bar.red or bar.arrive."""
        control = block.control
        assert control is not None
        if barrier.size > 1 or (threads is not None and threads.size > 1):
            barrier, threads = barrier.reshape(-1)[:1], None if threads is None else threads.reshape(-1)[:1]
        number = int(barrier[0])
        count = None if threads is None else int(threads[0])
        if "arrive" in control.mods:  # counts, but does not wait
            arrivals = self.named.setdefault(number, np.zeros(self.count, int))
            arrivals += self.per_block(group)
            self.send(group, block.targets[0])
            self.release()
            return
        group.arrived = (number, count, value)
        group.place = block.targets[0]
        if count is None and group.n == int(self.live.sum()):
            self.open([group])
            return
        self.parked.append(group)
        self.release()

    def per_block(self, group: Group) -> np.ndarray:
        return np.bincount(group.slot_index // self.slots_per_block, minlength=self.count)

    def release(self) -> None:
        """Open every barrier whose block has all its threads there."""
        for number in {g.arrived[0] for g in self.parked if g.arrived}:
            groups = [g for g in self.parked if g.arrived and g.arrived[0] == number]
            arrived = sum(self.per_block(g) for g in groups)
            counts = {g.arrived[1] for g in groups if g.arrived}
            early = self.named.get(number)
            if early is not None:
                arrived = arrived + early
            limit = next(iter(counts - {None}), None)
            expected = self.live if limit is None else np.full(self.count, limit)
            full = (arrived >= expected) & (arrived > 0)
            if not full.any():
                continue
            self.parked = [g for g in self.parked if g not in groups]
            going = []
            for g in groups:
                go = full[g.slot_index // self.slots_per_block]
                if go.all():
                    going.append(g)
                    continue
                if go.any():
                    going.append(self.part(g, np.flatnonzero(go)))
                self.parked.append(self.part(g, np.flatnonzero(~go)))
            if early is not None:
                early[full] = 0
            self.open(going)

    def open(self, groups: list[Group]) -> None:
        """Let groups pass a barrier; bar.red gives each thread its block's result first."""
        self.progress += 1
        reducing = [g for g in groups if g.arrived and g.arrived[2] is not None]
        if reducing:
            total = np.zeros(self.count, int)
            asked = np.zeros(self.count, int)
            for g in reducing:
                assert g.arrived
                block_of = g.slot_index // self.slots_per_block
                total += np.bincount(block_of, np.broadcast_to(g.arrived[2], (g.n,)), self.count).astype(int)
                asked += self.per_block(g)
            for g in reducing:
                self.reduced(g, total, asked)
        for g in groups:
            g.arrived = None
            self.send(g, g.place)

    def reduced(self, group: Group, total: np.ndarray, asked: np.ndarray) -> None:
        blocks = self.launch.program.kernel.blocks
        control = next(b.control for b in blocks if b.kind == "barrier" and b.targets[0] == group.place and b.control and "red" in b.control.mods)  # fmt: skip
        target = control.args[0].name
        if "popc" in control.mods:
            group.regs[target] = group.of_block(total).astype(u4)
        else:
            result = total == asked if "and" in control.mods else total > 0
            group.regs[target] = group.of_block(result)

    def exit(self, group: Group) -> None:
        self.progress += 1
        self.live -= self.per_block(group)
        self.live_lanes &= ~self._lanes(group.slot_index)
        if self.parked:
            self.release()
        for place in list(self.unfinished):  # fewer lanes are needed now
            self.ready.setdefault(place, []).append(self.unfinished.pop(place))

    # ---- messages
    def describe_wait(self) -> str:
        places = sorted(self.ready)
        where = {self.launch.program.kernel.blocks[p].instrs[0].loc for p in places if self.launch.program.kernel.blocks[p].instrs}  # fmt: skip
        lines = ", ".join(f"line {n}" for _, n in sorted(where)) or "unknown lines"
        threads = sum(g.n for gs in self.ready.values() for g in gs)
        return (
            f"{Deadlock.code}: {threads} threads of kernel {self.launch.program.kernel.name} wait in a loop ({lines}) "
            f"for something that no thread changes"
        )

    def describe_barrier(self) -> str:
        blocks = self.launch.program.kernel.blocks
        group = self.parked[0]
        assert group.arrived
        number = group.arrived[0]
        at = [b.control for b in blocks if b.kind == "barrier" and b.targets[0] == group.place]
        line = at[0].loc[1] if at and at[0] else 0
        text = self.launch.source.split("\n")[line - 1].strip() if line else ""
        index = int(group.slot_index[0]) // self.slots_per_block
        here = int(self.per_block(group)[index])
        return (
            f"{Deadlock.code}: {here} of {int(self.live[index])} threads of block {self.first + index} wait at barrier "
            f"{number} of kernel {self.launch.program.kernel.name}, line {line}: {text}\n  the others never reach it"
        )


def _views(size: int) -> dict:
    data = np.full(-(-max(size, 16) // 16) * 16, 0xFF, np.uint8)
    return {
        np.dtype(t): data.view(t) for t in ("u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8")
    }


def _undefined(program: Program) -> list[tuple[str, str]]:
    """Registers that some path reads before any write: the compiler knows it never matters."""
    from common.simt.translate import BlockWriter

    entry = program.kernel.blocks[0]
    writer = BlockWriter(program, 0, entry)
    return [(r, writer.home(r)) for r in entry.live_in]


__all__ = ["Chunk", "Group", "Launch", "i8"]
