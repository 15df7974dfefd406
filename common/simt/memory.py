"""Device memory: one arena of bytes with a table of allocations, and the loads and stores of a group of threads.

An address of global memory is an offset into the arena, so a gather needs no translation. Shared and local
memory have address spaces of their own; seen through a generic pointer they lie in windows far above the arena.
Every access is checked: inside one live allocation, and aligned to its size.
"""

import bisect
import contextlib
import functools
import mmap
import operator
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from common.simt import findings
from common.simt.errors import IllegalAddress, InvalidFree, KernelFault, MisalignedAddress, SimulatorError, UseAfterFree
from common.simt.initcheck import Written
from common.simt.ops import widen

if TYPE_CHECKING:
    from common.simt.group import Group

DEVICE_BYTES = 2 << 30  # what the simulated device has
HOST_BYTES = 1 << 30  # pinned host memory, which the device can address too
FIRST_ADDRESS = 1 << 20  # below it nothing is mapped: null pointers fault
GRANULARITY = 256  # cudaMalloc's alignment
WINDOW_SHIFT = 44  # the bits above it tell in which window a generic address lies
SHARED_WINDOW = 1 << WINDOW_SHIFT
LOCAL_WINDOW = 2 << WINDOW_SHIFT
PARAM_WINDOW = 3 << WINDOW_SHIFT
FREED = 256  # how many freed allocations are remembered
QUARANTINE = 64 << 20  # bytes of addresses behind all that is there, used once each, where somebody watches
UNWRITTEN = 0xFF  # fresh memory: NaN as a float, -1 as an integer; never what a test expects

i8 = np.dtype("i8")
ELEMENTS = tuple(np.dtype(t) for t in ("u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8"))


def typed_views(data: np.ndarray) -> dict[np.dtype, np.ndarray]:
    """Bytes as arrays of each element type."""
    return {dtype: data.view(dtype) for dtype in ELEMENTS}


def fresh_views(size: int) -> dict[np.dtype, np.ndarray]:
    """Shared or local memory that nothing has written yet, by element type."""
    return typed_views(np.full(-(-max(size, 16) // 16) * 16, UNWRITTEN, np.uint8))


@dataclass
class Allocation:
    """One allocation: [start, start + size), what it is called and where it lives ('device', 'pinned', 'module')."""

    start: int
    size: int
    name: str
    kind: str
    serial: int = 0
    line: str = ""  # of the program that asked for it, where somebody watches

    @property
    def end(self) -> int:
        return self.start + self.size


def _locked(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of Arena that one Python thread runs at a time."""

    @functools.wraps(method)
    def alone(self: "Arena", *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            return method(self, *args, **kwargs)

    return alone


class Arena:
    """Global memory of the device and pinned memory of the host."""

    def __init__(self) -> None:
        total = FIRST_ADDRESS + DEVICE_BYTES + HOST_BYTES
        # anonymous pages: the system commits only what is touched
        self.bytes = np.frombuffer(mmap.mmap(-1, total), dtype=np.uint8)
        self.views = typed_views(self.bytes)
        self.table: list[Allocation] = []  # by address
        self.starts: list[int] = []  # of each
        self.last: Allocation | None = None  # where the last access went: mostly the next one's place too
        self.used = {"device": 0, "pinned": 0}  # bytes
        self.serial = 0
        self.dropped: deque[tuple[int, str]] = deque()  # addresses, and the host's line where somebody watches
        self.freed: deque[Allocation] = deque(maxlen=FREED)  # the latest first
        self.written: Written | None = None  # where somebody watches
        self.lock = threading.RLock()  # the device does one thing at a time, whichever Python thread asks

    @_locked
    def allocate(self, size: int, kind: str = "device", name: str = "") -> Allocation:
        """First gap that holds `size` bytes with a guard gap behind it. Raises SimulatorError when memory is out."""
        size = operator.index(size)  # before anything is changed: a float raises TypeError here
        self.free_dropped()
        pool = "pinned" if kind == "pinned" else "device"
        limit = HOST_BYTES if pool == "pinned" else DEVICE_BYTES
        if self.used[pool] + size > limit:
            raise SimulatorError(
                f"CUDA_ERROR_OUT_OF_MEMORY: {size} bytes asked for, {limit - self.used[pool]} of {limit} free ({pool})"
            )
        low, high = FIRST_ADDRESS, FIRST_ADDRESS + DEVICE_BYTES
        if pool == "pinned":
            low, high = high, high + HOST_BYTES
        if self.written is not None:  # what was freed stays nobody's for a while: its use is noticed
            live, freed = (
                max((a.end for a in allocations if low <= a.start < high), default=low)
                for allocations in (self.table, self.freed)
            )
            after = -(-(max(live, freed) + GRANULARITY) // GRANULARITY) * GRANULARITY
            low = after if after + size <= min(live + QUARANTINE, high) else low
        position, index = low, bisect.bisect_left(self.starts, low)
        needed = size + GRANULARITY  # the guard gap: one byte past the end is nobody's
        while index < len(self.table) and self.table[index].start < position + needed:
            position = -(-(self.table[index].end + GRANULARITY) // GRANULARITY) * GRANULARITY
            index += 1
        if position + size > high:
            raise SimulatorError(f"CUDA_ERROR_OUT_OF_MEMORY: no gap of {size} bytes left ({pool})")
        self.serial += 1
        allocation = Allocation(position, size, name or f"{kind} buffer {self.serial}", kind, self.serial)
        self.starts.insert(index, position)
        self.table.insert(index, allocation)
        self.used[pool] += size
        self.bytes[position : position + size] = UNWRITTEN
        if self.written is not None:
            self.written.mark(position, position + size, False)
            allocation.line = findings.host_line()
        return allocation

    def free_later(self, start: int) -> None:
        """What a garbage-collected buffer calls: the table may be in use at that very moment."""
        self.dropped.append((start, "" if self.written is None else findings.host_line()))

    def free_dropped(self) -> None:
        """Give back what free_later() was called for."""
        while self.dropped:
            with contextlib.suppress(InvalidFree):  # nobody to tell but who watches
                self.free(*self.dropped.popleft())

    @_locked
    def free(self, start: int, line: str = "") -> None:
        """Give an allocation back. Raises InvalidFree for an address that is not the start of one."""
        index = bisect.bisect_left(self.starts, start)
        if index == len(self.starts) or self.starts[index] != start:
            raise self._invalid_free(start, line or findings.host_line())
        allocation = self.table.pop(index)
        self.starts.pop(index)
        self.used["pinned" if allocation.kind == "pinned" else "device"] -= allocation.size
        self.last = None
        self.freed.appendleft(allocation)

    def _invalid_free(self, start: int, line: str) -> InvalidFree:
        """What is wrong with freeing this address; who watches is told, too."""
        once = next((a for a in self.freed if a.start == start), None)
        what = f"nothing was allocated at {start:#x}"
        if once is not None:
            what = f"double free of {findings.label(once)}"
        elif (inside := self.find(start, start + 1)) is not None:
            what = f"free of {start:#x}, {start - inside.start} bytes behind the start of {findings.label(inside)}"
        if (found := findings.listener()) is not None:
            found.report(("invalid free", what), lambda: findings.Finding("invalid free", what, (f"by {line}",)))
        return InvalidFree(f"CUDA_ERROR_INVALID_VALUE: {what}")

    def was(self, address: int) -> Allocation | None:
        """The freed allocation that an address belonged to, if none of its place is taken again."""
        once = next((a for a in self.freed if a.start <= address < a.end), None)
        taken = once is not None and any(a.start < once.end and once.start < a.end for a in self.table)
        return None if taken else once

    # ---- where somebody watches
    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Keep account inside the `with` of what is written; all that is there already counts as written."""
        before = self.written
        if before is None:
            self.written = Written(len(self.bytes))
            self.freed.clear()  # what nobody watched is not to be told from what lies beside it now
            for allocation in self.table:
                self.written.mark(allocation.start, allocation.end)
        try:
            yield
        finally:
            self.written = before

    def wrote(self, start: int, size: int) -> None:
        """The host, or a copy, wrote these bytes."""
        if self.written is not None:
            self.written.mark(start, start + size)

    def copied(self, target: int | None, source: int | None, size: int) -> None:
        """A copy was made (None: from or to the host). What the host gets must have been written."""
        if self.written is None or size == 0:
            return
        if source is None and target is not None:
            self.written.mark(target, target + size)
        elif source is not None and target is not None:
            self.written.copy(target, source, size)
        elif source is not None and (missing := self.written.missing(source, size)).size:
            found, line = findings.listener(), f"by {findings.host_line()}"
            of = self.find(source, source + size)
            if found is not None and of is not None:
                at = f"first at byte {source + int(missing[0]) - of.start} of {findings.label(of)}"
                what = f"copy to the host of {size} bytes, {missing.size} of which nothing wrote"
                found.report(("uninitialized", line), lambda: findings.Finding("uninitialized", what, (line, at)))

    @_locked
    def made_since(self, serial: int) -> list[Allocation]:
        """The buffers allocated after that many allocations; a module's variables live as long as their module."""
        return [a for a in self.table if a.serial > serial and a.kind != "module"]

    def find(self, low: int, high: int) -> Allocation | None:
        """The allocation that holds all of [low, high), if one does."""
        last = self.last
        if last is not None and last.start <= low and high <= last.start + last.size:
            return last
        index = bisect.bisect_right(self.starts, low) - 1
        if index < 0 or high > self.table[index].end:
            return None
        self.last = self.table[index]
        return self.last

    def string(self, start: int) -> str:
        """The zero-terminated text at an address."""
        allocation = self.find(start, start + 1)
        if allocation is None:
            return f"<bad pointer {start:#x}>"
        return bytes(self.bytes[start : allocation.end]).split(b"\0", 1)[0].decode("utf-8", "replace")

    def nearest(self, address: int) -> Allocation | None:
        """The allocation that an address missed by least, for the message."""
        if not self.table:
            return None
        index = bisect.bisect_right(self.starts, address)
        near = self.table[max(index - 1, 0) : index + 1]
        return min(near, key=lambda a: max(a.start - address, address - a.end))

    def inside(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """For each address, whether [address, address + size) lies in one allocation."""
        if not self.starts:
            return np.zeros(len(addresses), bool)
        starts = np.array(self.starts)
        ends = np.array([a.end for a in self.table])
        index = np.searchsorted(starts, addresses, "right") - 1
        return (index >= 0) & (addresses + size <= ends[np.maximum(index, 0)])


class Address:
    """An address register made ready for gathers: its range, its low bits, and element indices by size."""

    __slots__ = ("base", "bits", "costs", "high", "low", "raw", "space", "words")

    def __init__(self, space: str, raw: np.ndarray, base: np.ndarray | int):
        self.space = space
        self.raw = raw  # int64, one or one per thread; within the space
        self.base = base  # what to add: where the block's (thread's) part of the arena starts
        if raw.size == 1:
            self.low = self.high = self.bits = int(raw[0])
        else:
            self.low, self.high = int(raw.min()), int(raw.max())
            self.bits = int(np.bitwise_or.reduce(raw))
        self.words: dict[int, np.ndarray] = {}
        self.costs: dict[tuple[str, int, int], dict[str, int]] = {}  # what counters.py found out about it

    def index(self, shift: int) -> np.ndarray:
        """Indices into the arena seen as elements of 2**shift bytes."""
        found = self.words.get(shift)
        if found is None:
            found = self.raw >> shift
            if isinstance(self.base, np.ndarray):
                found = found + (self.base >> shift)
            self.words[shift] = found
        return found


# one space, or (positions of the threads, those threads, their address) for each space that a generic pointer meets
AnyAddress = Address | list[tuple[np.ndarray, "Group", Address]]


def signed(a: np.ndarray) -> np.ndarray:
    """A 32- or 64-bit register as int64. A base below the start of its space counts: the offset may lift it."""
    return a.view(i8) if a.dtype.itemsize == 8 else a.view(np.int32).astype(i8)


# An address register of a group made ready. The generated code calls these by the name of the memory space.
def global_address(g: "Group", a: np.ndarray) -> Address:
    return Address("global", signed(a), 0)


def shared_address(g: "Group", a: np.ndarray) -> Address:
    return Address("shared", signed(a), g.shared_base)


def local_address(g: "Group", a: np.ndarray) -> Address:
    return Address("local", signed(a), g.local_base)


def param_address(g: "Group", a: np.ndarray) -> Address:
    return Address("param", signed(a), 0)


def generic_address(g: "Group", a: np.ndarray) -> AnyAddress:
    """Sort generic addresses into their spaces; a list of (positions, threads, address) where they are mixed."""
    raw = signed(a)
    low, high = (int(raw[0]),) * 2 if raw.size == 1 else (int(raw.min()), int(raw.max()))
    if 0 <= low >> WINDOW_SHIFT == high >> WINDOW_SHIFT <= 3:
        return _in_window(g, raw, low >> WINDOW_SHIFT)
    raw = widen(raw, g.n)
    windows = np.clip(raw >> WINDOW_SHIFT, -1, 4)  # the first and the last hold nothing
    parts = []
    for window in np.unique(windows):
        lanes = np.flatnonzero(windows == window)
        sub = g.subset(lanes)
        parts.append((lanes, sub, _in_window(sub, raw[lanes], int(window))))
    return parts


def _in_window(g: "Group", raw: np.ndarray, window: int) -> Address:
    if window == 1:
        return Address("shared", raw - SHARED_WINDOW, g.shared_base)
    if window == 2:
        return Address("local", raw - LOCAL_WINDOW, g.local_base)
    if window == 3:
        return Address("param", raw - PARAM_WINDOW, 0)
    return Address("global", raw, 0)


def views_of(g: "Group", space: str) -> dict[np.dtype, np.ndarray]:
    """A memory space of the group's chunk, by element type."""
    if space == "global":
        return g.chunk.launch.arena.views
    if space == "shared":
        return g.chunk.shared_views
    if space == "local":
        return g.chunk.local_views
    return g.chunk.launch.param_views


def check(g: "Group", address: Address, offset: int, size: int, what: str, where: int) -> None:
    """Raise the fault that the hardware would report, for the first thread that commits it."""
    aligned(g, address, offset, size, what, where)
    low, high = address.low + offset, address.high + offset + size
    if address.space == "global":
        arena = g.chunk.launch.arena
        if arena.find(low, high) is None:
            good = arena.inside(address.raw + offset, size)
            if not good.all():
                _fault(g, IllegalAddress, address, offset, size, what, where, int(np.argmin(good)))
    else:
        limit = g.chunk.space_bytes(address.space)
        if low < 0 or high > limit:
            good = (address.raw + offset >= 0) & (address.raw + offset + size <= limit)
            _fault(g, IllegalAddress, address, offset, size, what, where, int(np.argmin(good)))


def aligned(g: "Group", address: Address, offset: int, size: int, what: str, where: int) -> None:
    """Raise MisalignedAddress unless `size` divides every address: for what is taken apart into smaller accesses."""
    if (address.bits | offset) & (size - 1):
        wrong = np.flatnonzero(((address.raw + offset) & (size - 1)) != 0)
        if wrong.size:
            _fault(g, MisalignedAddress, address, offset, size, what, where, int(wrong[0]))


def _fault(
    g: "Group",
    kind: type[KernelFault],
    address: Address,
    offset: int,
    size: int,
    what: str,
    where: int,
    lane: int,
) -> None:
    target = int(address.raw[lane if address.raw.size > 1 else 0]) + offset
    if kind is MisalignedAddress:
        detail = f"{what} of {size} bytes at {address.space} address {target:#x} is not aligned to {size}"
    elif address.space == "global":
        launch = g.chunk.launch
        near, once = launch.arena.nearest(target), launch.arena.was(target)
        detail = f"{what} of {size} bytes at {target:#x} is out of bounds"
        if once is not None:
            kind = UseAfterFree
            text = findings.label(once, launch)
            detail = f"{what} of {size} bytes at {target:#x} is after free: byte {target - once.start} of {text}"
        elif near is not None:
            gap = target + size - near.end if target >= near.start else target - near.start
            side = f"{gap} bytes past the end of" if target >= near.start else f"{-gap} bytes before"
            detail += f": {side} {findings.label(near, launch)}"
    else:
        detail = (
            f"{what} of {size} bytes at {address.space} offset {target} is out of bounds: "
            f"{g.chunk.space_name(address.space)} has {g.chunk.space_bytes(address.space)} bytes"
        )
    raise kind(g.describe(kind, detail, where, lane))


def load(g: "Group", address: AnyAddress, offset: int, dtype: np.dtype, where: int, count: int = 1) -> list[np.ndarray]:
    """Gather `count` neighbouring elements a thread (ld.v2 and ld.v4 are one aligned access)."""
    if isinstance(address, list):
        out = [np.empty(g.n, dtype) for _ in range(count)]
        for lanes, sub, part in address:
            for whole, piece in zip(out, load(sub, part, offset, dtype, where, count), strict=True):
                whole[lanes] = piece
        return out
    size = dtype.itemsize
    check(g, address, offset, size * count, "read", where)
    shift = size.bit_length() - 1
    view, index, step = views_of(g, address.space)[dtype], address.index(shift), offset >> shift
    steps = range(step, step + count)
    if step < 0 or address.low < 0:  # base or offset below the start of the space, their sum within it
        return [view.take(index + k, mode="clip") for k in steps]
    return [view[k:].take(index, mode="clip") for k in steps]  # without a new array of indices


# The same under names by which counters.py and races.py tell them apart: constant memory has a cache of its own;
# volatile, relaxed, acquire and release accesses ("strong" in PTX) do not race with each other or with atomics.
load_constant = load_strong = load


def commit_copies(g: "Group") -> None:
    """cp.async.commit_group: copies are done at once here. Where somebody watches, watched.py stands in."""


def wait_copies(g: "Group", pending: int) -> None:
    """cp.async.wait_group: all but the `pending` latest groups have arrived (-1: also what is in no group yet)."""


def store(g: "Group", address: AnyAddress, offset: int, dtype: np.dtype, values: list[np.ndarray], where: int) -> None:
    """Scatter neighbouring elements a thread; of threads that write one address, the highest wins."""
    if isinstance(address, list):
        wide = [widen(v, g.n) for v in values]
        for lanes, sub, part in address:
            store(sub, part, offset, dtype, [v[lanes] for v in wide], where)
        return
    size = dtype.itemsize
    check(g, address, offset, size * len(values), "write", where)
    g.chunk.launch.writes += 1
    shift = size.bit_length() - 1
    view, index, step = views_of(g, address.space)[dtype], address.index(shift), offset >> shift
    for k, value in enumerate(values, step):
        if index.size == 1 and value.size > 1:
            value = value[-1:]
        if step < 0 or address.low < 0:
            view[index + k] = value
        else:
            view[k:][index] = value


store_strong = store


def copy_async(
    g: "Group",
    target: Address,
    source: Address,
    offsets: tuple[int, int],
    size: int,
    take: np.ndarray | None,
    where: int,
) -> None:
    """cp.async: `size` bytes a thread from global to shared memory; beyond `take` bytes the rest is zero.

    `offsets` are added to the target's and the source's address. The copy is done at once.
    """
    aligned(g, target, offsets[0], size, "cp.async", where)
    aligned(g, source, offsets[1], size, "cp.async", where)
    step = min(size, 8)
    dtype = np.dtype(f"u{step}")
    for i in range(0, size, step):
        if take is None:
            value = load(g, source, offsets[1] + i, dtype, where)
        else:
            value = [_partial(g, source, offsets[1] + i, i, dtype, take, where)]
        store(g, target, offsets[0] + i, dtype, value, where)


def _partial(
    g: "Group", source: Address, offset: int, done: int, dtype: np.dtype, take: np.ndarray, where: int
) -> np.ndarray:
    """The part of a cp.async whose source may end early: bytes from `take` on read as zero."""
    out = np.zeros((g.n, dtype.itemsize), np.uint8)
    left = np.broadcast_to(take, (g.n,)).astype(np.int64) - done
    for byte in range(dtype.itemsize):
        lanes = np.flatnonzero(left > byte)
        if lanes.size:
            sub = g.subset(lanes)
            part = Address(source.space, np.broadcast_to(source.raw, (g.n,))[lanes], 0)
            out[lanes, byte] = load(sub, part, offset + byte, np.dtype("u1"), where)[0]
    return out.view(dtype).ravel()
