"""The scheduler: runs the blocks of a grid in chunks of whole blocks, all threads of a chunk together.

Threads that stand at the same place form a Group (group.py). A branch that not all threads take splits the group;
groups that meet at the same place merge before they go on. The lowest place runs first, which is where the threads
reconverge (see cfg.py). Threads wait at barriers by block, and at warp instructions for the lanes that the instruction
names. A loop that may wait for another thread is left for a while when others could run, and a chunk that only waits
is set aside for the next one, so no order of blocks can hang a correct program.
"""

import os
import sys
import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from common.simt.cfg import Block
from common.simt.counters import Counts
from common.simt.errors import Deadlock
from common.simt.findings import Findings
from common.simt.group import Arrival, Group
from common.simt.memory import Arena, fresh_views, typed_views
from common.simt.ops import u4, widen
from common.simt.ptx import Imm
from common.simt.translate import Program
from common.simt.watched import ChunkWatch, LaunchWatch

CHUNK_THREADS = 16384  # more run no faster: the arrays leave the cache
SPIN_STEPS = 48  # steps in a waiting loop before other threads get their turn
TURNS = 64  # rounds of SPIN_STEPS in which a loop that changes memory may go on before other blocks get their turn
PATIENCE = 3  # stalls before lanes set aside at a warp instruction go on without the missing ones
STALLED_ROUNDS = 256  # rounds of nothing but waiting, over all chunks, before it counts as a deadlock


def _time_limit(text: str) -> float:
    """Seconds for one launch before it counts as endless; a GPU that drives a display allows about two."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:  # which nan is not either
        print(f"error: CUDA_BOOK_TIME_LIMIT is {text!r}; it may be a number of seconds above 0", file=sys.stderr)
        raise SystemExit(2)
    return seconds


TIME_LIMIT = _time_limit(os.environ.get("CUDA_BOOK_TIME_LIMIT", "120"))


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
    output: list[str] = field(default_factory=list)  # what its threads printed
    writes: int = 0  # stores and atomics so far: a waiting loop is one during which this stands still
    ticks: int = 0  # blocks run so far
    counts: Counts | None = None  # where somebody counts
    found: Findings | None = None  # where somebody watches
    watch: LaunchWatch | None = None  # then

    def __post_init__(self) -> None:
        self.started = time.monotonic()
        padded = np.zeros(-(-max(len(self.params), 1) // 16) * 16, np.uint8)
        padded[: len(self.params)] = self.params
        self.param_views = typed_views(padded)

    def run(self) -> None:
        """Run every block to its end. Raises the KernelFault of the first thread that commits one."""
        threads = self.block[0] * self.block[1] * self.block[2]
        padded = -(-threads // 32) * 32
        blocks = self.grid[0] * self.grid[1] * self.grid[2]
        per_chunk = max(1, CHUNK_THREADS // padded)
        waiting = deque(range(0, blocks, per_chunk))
        stalled: deque[Chunk] = deque()
        idle = 0
        self.watch = None if self.found is None else LaunchWatch(self, self.found)
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

    def functions(self) -> list:
        """The generated code, or the one that counts, or watches, or both."""
        return self.program.functions_for(self.counts is not None, self.watch is not None)

    def name_of(self, slot: int) -> str:
        """Which thread a slot of the launch is; each block has its threads rounded up to whole warps."""
        x, y, z = self.block
        gx, gy, _ = self.grid
        block, thread = divmod(slot, -(-x * y * z // 32) * 32)
        who = f"block ({block % gx},{block // gx % gy},{block // (gx * gy)})"
        return f"{who} thread ({thread % x},{thread // x % y},{thread // (x * y)})"

    def overdue(self) -> bool:
        """Count a step, look at the clock now and then, and say whether the launch has taken too long."""
        self.ticks += 1
        return self.ticks & 1023 == 0 and time.monotonic() - self.started > TIME_LIMIT


class Chunk:
    """Some consecutive blocks of the grid, run together."""

    def __init__(self, launch: Launch, first: int, count: int):
        self.launch = launch
        self.first, self.count = first, count
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        self.slots_per_block = -(-threads // 32) * 32
        self.slots = count * self.slots_per_block
        self.all_slots = np.arange(self.slots)
        self.shuffles: dict = {}  # arguments of a shuffle of the whole chunk -> source slots and validity
        self.tables: dict = {}  # special registers and bases of the whole chunk
        self.progress = 0  # steps outside waiting loops, exits, releases
        shared = launch.static_shared + launch.dynamic_shared
        stride = -(-max(shared, 1) // 16) * 16
        self.shared_starts = np.arange(count) * stride
        self.local_stride = -(-max(launch.local_bytes, 1) // 16) * 16
        self.shared_views = fresh_views(count * stride)
        self._local_views: dict | None = None
        self.watch = None if launch.watch is None else ChunkWatch(self, launch.watch)
        regs = {r: np.zeros(1, d) for r, d in launch.program.undefined}
        live = np.flatnonzero(self.all_slots % self.slots_per_block < threads)
        slots = None if len(live) == self.slots else live
        self.live = np.full(count, threads)  # threads of each block that have not exited
        self.live_lanes = self._lanes(live)
        self.ready: dict[int, list[Group]] = {0: [Group(self, 0, slots, regs)]}
        self.parked: list[Group] = []  # at barriers
        self.unfinished: dict[int, Group] = {}  # at warp instructions, lanes missing
        self.stalls = 0  # times in a row that nothing but waiting was left
        self.seen = 0  # state() when the loops of the chunk last looked like waiting
        self.named: dict[int, np.ndarray] = {}  # barrier -> bar.arrive counts of each block

    @property
    def local_views(self) -> dict:
        """The threads' local memory by element type; most kernels have none."""
        if self._local_views is None:
            self._local_views = fresh_views(self.slots * self.local_stride)
        return self._local_views

    def space_bytes(self, space: str) -> int:
        """How much a block has of shared memory, a thread of local memory, a launch of parameters."""
        if space == "shared":
            return self.launch.static_shared + self.launch.dynamic_shared
        return self.launch.local_bytes if space == "local" else len(self.launch.params)

    def space_name(self, space: str) -> str:
        """What a message calls this."""
        names = {"shared": "the block's shared memory", "local": "the thread's local memory"}
        return names.get(space, "the parameters")

    def name_of(self, slot: int) -> str:
        """Which thread a slot is."""
        return self.launch.name_of(self.first * self.slots_per_block + slot)

    def _lanes(self, slots: np.ndarray) -> np.ndarray:
        """For each warp the mask of the lanes that are among the slots."""
        flags = np.zeros(self.slots, bool)
        flags[slots] = True
        return np.packbits(flags.reshape(-1, 32), axis=1, bitorder="little").view(u4).reshape(-1)

    # ---- the main loop
    def run(self) -> bool:
        """Run until every thread has exited (True) or nothing but waiting for other blocks is left (False)."""
        functions, blocks = self.launch.functions(), self.launch.program.kernel.blocks
        spinning: set[int] = set()  # places of waiting loops, run since nobody but waiters had a turn
        steps, writes, turns = 0, self.launch.writes, 0
        while self.ready or self.unfinished:
            if self.launch.overdue():
                raise Deadlock(self.describe_overdue())
            if not self.ready:  # the missing lanes cannot come: go on with those that are there
                if self.watch is not None and len(self.unfinished) == 1:
                    self.watch.incomplete(next(iter(self.unfinished.values())))
                self.step(self.unfinished.pop(next(iter(self.unfinished))), functions, blocks)
                continue
            place = min(self.ready)
            if steps >= SPIN_STEPS:
                others = self.ready.keys() - spinning
                if others:  # somebody else may hold what the loop waits for
                    place = min(others)
                    if steps >= 2 * SPIN_STEPS:
                        spinning, steps, writes = set(), 0, self.launch.writes
                elif self.launch.writes != writes and turns < TURNS:  # the loop changes memory: perhaps not a wait
                    spinning, steps, writes, turns = set(), 0, self.launch.writes, turns + 1
                    self.stalls = 0
                elif turns < TURNS and (state := self.state()) != self.seen:  # its registers change: it computes
                    spinning, steps, turns, self.seen = set(), 0, turns + 1, state
                    self.stalls, self.progress = 0, self.progress + 1
                elif self.unfinished and self.stalls >= PATIENCE:  # the lanes that spin wait for those set aside
                    self.stalls = 0
                    self.step(self.unfinished.pop(next(iter(self.unfinished))), functions, blocks)
                    continue
                else:
                    self.stalls += 1
                    return False
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

    def state(self) -> int:
        """What the threads that could go on hold: a loop that only waits comes back to the same."""
        blocks = self.launch.program.kernel.blocks
        groups = [(place, g.regs) for place, groups in self.ready.items() for g in groups]
        return hash(
            tuple((place, r, regs[r].tobytes()) for place, regs in groups for r in sorted(blocks[place].live_in))
        )

    def step(self, group: Group, functions: list, blocks: list[Block]) -> None:
        """Run one block for one group and send its threads on."""
        block = blocks[group.place]
        if self.launch.counts is not None:
            self.launch.counts.block(group.place, block, group)
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
                self.send_part(group, np.flatnonzero(outcome), block.targets[0])
                self.send_part(group, np.flatnonzero(~outcome), block.targets[1])
        elif kind == "switch":
            index = widen(outcome, group.n)
            for value in np.unique(index):
                self.send_part(group, np.flatnonzero(index == value), block.targets[int(value)])
        elif kind == "barrier":
            self.arrive(group, block, *outcome)
        else:
            self.exit(group)

    def send(self, group: Group, place: int) -> None:
        """Let a group go on at a place."""
        group.place = place
        self.ready.setdefault(place, []).append(group)

    def send_part(self, group: Group, positions: np.ndarray, place: int) -> None:
        """Let some threads of a group go on at a place."""
        self.send(self.part(group, positions, place), place)

    def part(self, group: Group, positions: np.ndarray, place: int | None = None) -> Group:
        """Some threads of a group: at its place with all registers, or at another with those that live there."""
        regs = group.regs
        if place is not None:
            live = self.launch.program.kernel.blocks[place].live_in
            regs = {r: v for r, v in regs.items() if r in live}
        regs = {r: v if v.size == 1 else v.take(positions) for r, v in regs.items()}
        return Group(self, group.place if place is None else place, group.slot_index[positions], regs)

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
        """One group of the threads of several."""
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
                whole = np.concatenate([widen(v, g.n) for v, g in zip(values, groups, strict=True)])
                regs[r] = whole.take(order)
        everyone = len(slots) == self.slots
        return Group(self, place, None if everyone else slots[order], regs)

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
        self,
        group: Group,
        block: Block,
        barrier: np.ndarray,
        threads: np.ndarray | None,
        value: np.ndarray | None,
    ) -> None:
        """A group reached bar.sync, bar.red or bar.arrive."""
        control = block.control
        assert control is not None
        if barrier.size > 1 and not (barrier == barrier[0]).all():  # warps that go to barriers of their own
            for each in np.unique(barrier):
                positions = np.flatnonzero(barrier == each)
                own_threads, own_value = (v if v is None or v.size == 1 else v[positions] for v in (threads, value))
                self.arrive(self.part(group, positions), block, barrier[positions], own_threads, own_value)
            return
        number = int(barrier[0])
        count = None if threads is None else int(threads[0])
        if "arrive" in control.mods:  # counts, but does not wait
            assert count is not None
            arrivals = self.named.setdefault(number, np.zeros(self.count, int))
            arrivals += self.whole_warps([group])
            self.send(group, block.targets[0])
            self.release()
            arrivals[arrivals >= count] -= count  # full without anybody who waits: the barrier starts anew
            return
        group.arrived = Arrival(control, number, count, value)
        group.place = block.targets[0]
        if count is None and group.n == int(self.live.sum()):
            self.open([group])
            return
        self.parked.append(group)
        self.release()

    def per_block(self, group: Group) -> np.ndarray:
        """How many threads of each block the group has."""
        return np.bincount(group.slot_index // self.slots_per_block, minlength=self.count)

    def whole_warps(self, groups: list[Group]) -> np.ndarray:
        """What a barrier with a count sees of each block: 32 threads for each warp whose live lanes are all here."""
        present = self._lanes(np.concatenate([g.slot_index for g in groups]))
        here = (present != 0) & ((self.live_lanes & ~present) == 0)
        return 32 * here.reshape(self.count, -1).sum(1)

    def release(self) -> None:
        """Open every barrier whose block has all its threads there."""
        for number in {g.arrived.number for g in self.parked if g.arrived}:
            groups = [g for g in self.parked if g.arrived and g.arrived.number == number]
            counts = {g.arrived.count for g in groups if g.arrived}
            early = self.named.get(number)
            limit = next(iter(counts - {None}), None)
            if limit is None:
                arrived, expected = sum(self.per_block(g) for g in groups), self.live
            else:
                arrived, expected = self.whole_warps(groups), np.full(self.count, limit)
            if early is not None:
                arrived = arrived + early
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
                    going.append(self.waiting_part(g, np.flatnonzero(go)))
                self.parked.append(self.waiting_part(g, np.flatnonzero(~go)))
            if early is not None:
                early[full] = 0
            self.open(going)

    def waiting_part(self, group: Group, positions: np.ndarray) -> Group:
        """Some threads of a group that waits at a barrier."""
        new = self.part(group, positions)
        new.arrived = group.arrived
        return new

    def open(self, groups: list[Group]) -> None:
        """Let groups pass a barrier; bar.red gives each thread its block's result first."""
        self.progress += 1
        if self.watch is not None:
            self.watch.pass_barrier(groups)
        total = np.zeros(self.count, int)  # threads of each block whose predicate holds
        asked = np.zeros(self.count, int)  # threads of each block
        reducing = [
            (g, g.arrived.control, g.arrived.predicate) for g in groups if g.arrived and g.arrived.predicate is not None
        ]
        for g, _, predicate in reducing:
            holds = g.slot_index[widen(predicate, g.n)]
            total += np.bincount(holds // self.slots_per_block, minlength=self.count)
            asked += self.per_block(g)
        for g, control, _ in reducing:
            mods = control.mods
            result = total.astype(u4) if "popc" in mods else total == asked if "and" in mods else total > 0
            g.regs[control.args[0].name] = g.of_block(result)
        for g in groups:
            g.arrived = None
            self.send(g, g.place)

    def exit(self, group: Group) -> None:
        """The threads of a group ended: those that wait may now be complete."""
        self.progress += 1
        self.live -= self.per_block(group)
        self.live_lanes &= ~self._lanes(group.slot_index)
        if self.parked:
            self.release()
        for place in list(self.unfinished):  # fewer lanes are needed now
            self.ready.setdefault(place, []).append(self.unfinished.pop(place))

    # ---- messages
    def whereabouts(self) -> tuple[int, str]:
        """How many threads could go on, and the source lines at which they are."""
        blocks = self.launch.program.kernel.blocks
        first = [next(iter([*blocks[p].instrs, blocks[p].control]), None) for p in self.ready]
        where = {instr.loc for instr in first if instr is not None}
        threads = sum(g.n for groups in self.ready.values() for g in groups)
        return threads, ", ".join(f"line {n}" for _, n in sorted(where)) or "unknown lines"

    def describe_wait(self) -> str:
        """The text of a Deadlock in waiting loops."""
        threads, lines = self.whereabouts()
        return (
            f"{Deadlock.code}: {threads} threads of kernel {self.launch.program.kernel.name} wait in a loop ({lines}) "
            f"for something that no thread changes"
        )

    def describe_overdue(self) -> str:
        """The text of a Deadlock by the clock."""
        threads, lines = self.whereabouts()
        return (
            f"{Deadlock.code}: kernel {self.launch.program.kernel.name} has run for {TIME_LIMIT:.0f} s, and {threads} "
            f"threads are still at {lines}: an endless loop? CUDA_BOOK_TIME_LIMIT=SECONDS allows more"
        )

    def describe_barrier(self) -> str:
        """The text of a Deadlock at a barrier."""
        group = self.parked[0]
        assert group.arrived
        number, line = group.arrived.number, group.arrived.control.loc[1]
        text = self.launch.source.split("\n")[line - 1].strip() if line else ""
        index = int(group.slot_index[0]) // self.slots_per_block
        here = int(self.per_block(group)[index])
        return (
            f"{Deadlock.code}: {here} of {int(self.live[index])} threads of block {self.first + index} wait at barrier "
            f"{number} of kernel {self.launch.program.kernel.name}, line {line}: {text}\n  the others never reach it"
        )
