"""Operations of a warp: shuffles, votes, matches and warp reductions (matrix instructions: matrix.py).

Thread slots are padded so that slot // 32 is the warp and slot % 32 the lane. A group may hold only some of the slots;
`spread` lays its values out over all of them, so that a lane can look at its neighbours.
"""

from typing import TYPE_CHECKING

import numpy as np

from common.simt import ops
from common.simt.atomics import UFUNC
from common.simt.ops import i8, u4

if TYPE_CHECKING:
    from common.simt.group import Group


def barrier(g: "Group") -> None:
    """__syncwarp: memory is in order here as it is. Where somebody watches for races, races.py stands in."""


def spread(g: "Group", a: np.ndarray) -> np.ndarray:
    """A register over all slots of the chunk; slots outside the group hold 0."""
    if g.slots is None:
        return ops.widen(a, g.n)
    full = np.zeros(g.chunk.slots, a.dtype)
    full[g.slots] = a
    return full


def rows(g: "Group", a: np.ndarray) -> np.ndarray:
    """A register as (warps, 32)."""
    return np.ascontiguousarray(spread(g, a)).reshape(-1, 32)


def pick(g: "Group", table: np.ndarray) -> np.ndarray:
    """(warps, 32) -> one value for each thread of the group."""
    flat = table.reshape(-1)
    return flat if g.slots is None else flat[g.slots]


def ballot_bits(g: "Group", p: np.ndarray) -> np.ndarray:
    """For each warp the 32-bit mask of the group's lanes whose predicate holds."""
    return np.packbits(rows(g, p), axis=1, bitorder="little").view(u4).reshape(-1)


def of_warp(g: "Group", per_warp: np.ndarray) -> np.ndarray:
    """Each thread's warp's value."""
    return per_warp[g.slot_index >> 5]


def active_mask(g: "Group") -> np.ndarray:
    """For each thread the mask of its warp's lanes in the group."""
    return of_warp(g, ballot_bits(g, np.ones(1, bool)))


def lane_mask(g: "Group", kind: str) -> np.ndarray:
    """%lanemask_lt and its like: the lanes below each thread's own, ..."""
    one = u4.type(1) << g.lane.astype(u4)
    below = one - u4.type(1)
    return {"eq": one, "lt": below, "le": below | one, "gt": ~(below | one), "ge": ~below}[kind]


def shuffle(g: "Group", mode: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """shfl.sync: the value of another lane, and whether that lane was in range.

    a: the values; b: the lane, or how far away it is; c: the clamp in bits 0-4, the segment mask in bits 8-12.
    """
    key = (mode, int(b[0]), int(c[0])) if g.slots is None and b.size == c.size == 1 else None
    found = g.chunk.shuffles.get(key) if key else None
    if found is None:
        lane = g.lane
        clamp, segment = c.astype(i8) & 31, (c.astype(i8) >> 8) & 31
        step = b.astype(i8) & 31
        first = lane & segment
        last = first | (clamp & ~segment)
        if mode == "up":
            source = lane - step
            valid = source >= last
        else:
            source = {"down": lane + step, "bfly": lane ^ step, "idx": first | (step & ~segment)}[mode]
            valid = source <= last
        found = ((g.slot_index & ~31) | np.where(valid, source, lane), np.broadcast_to(valid, (g.n,)))
        if key:
            g.chunk.shuffles[key] = found
    return spread(g, a).take(found[0]), found[1]


def vote(g: "Group", mode: str, p: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """vote.sync: ballot, all, any or uni over the lanes named by the mask."""
    here = active_mask(g) & mask
    true = of_warp(g, ballot_bits(g, p)) & mask
    if mode == "ballot":
        return true
    if mode == "any":
        return true != 0
    return true == here if mode == "all" else (true == here) | (true == 0)


def match(g: "Group", mode: str, a: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """match.sync: the mask of the lanes that hold the same value; for `all`, also whether all do."""
    values = rows(g, a)
    here = rows(g, np.ones(1, bool))
    same = (values[:, :, None] == values[:, None, :]) & here[:, None, :]
    masks = np.packbits(same, axis=2, bitorder="little").view(u4)[..., 0]
    masks = pick(g, masks) & mask
    if mode == "any":
        return masks, masks != 0
    every = masks == (active_mask(g) & mask)
    return np.where(every, masks, u4.type(0)), every


def reduce(g: "Group", op: str, a: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """redux.sync over the lanes named by each lane's mask."""
    ufunc = UFUNC[op]
    values = rows(g, a)
    if mask.size == 1 and int(mask[0]) == 0xFFFFFFFF and g.slots is None:
        return np.repeat(ufunc.reduce(values, axis=1, dtype=a.dtype), 32)
    wanted = mask & active_mask(g)
    warp = g.slot_index >> 5
    total: np.ndarray | None = None
    for lane in range(32):
        member = (wanted >> u4.type(lane)) & u4.type(1) == 1
        value = values[warp, lane]
        if total is None:
            total, started = np.where(member, value, a.dtype.type(0)), member
        else:
            both = ufunc(total, value)
            total = np.where(member, np.where(started, both, value), total)
            started = started | member
    assert total is not None
    return total


def elect(g: "Group", mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """elect.sync: the lowest lane of the mask, and whether this thread is it."""
    wanted = np.broadcast_to(mask & active_mask(g), (g.n,))
    leader = (ops.clz(ops.brev(wanted))).astype(u4)
    return leader, leader == g.lane.astype(u4)
