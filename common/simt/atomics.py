"""Atomic operations of a group of threads, in a fixed order: the lower thread first.

Without a result an atomic is one NumPy `ufunc.at`. With one, each thread needs the value it found: threads
whose address nobody shares go at once; integer sums over shared addresses are segmented prefix sums; the rest goes
in rounds (the k-th thread of every address together), and compare-and-swap one thread after the other.
"""

from typing import TYPE_CHECKING

import numpy as np

from common.simt.memory import AnyAddress, check, views_of
from common.simt.ops import widen

if TYPE_CHECKING:
    from common.simt.group import Group

UFUNC = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip


def _apply(op: str, old: np.ndarray, value: np.ndarray) -> np.ndarray:
    """What the memory holds afterwards."""
    if op == "exch":
        return value
    if op == "inc":
        return np.where(old >= value, 0, old + 1).astype(old.dtype)
    if op == "dec":
        return np.where((old == 0) | (old > value), value, old - 1).astype(old.dtype)
    return UFUNC[op](old, value)


def atomic(
    g: "Group",
    address: AnyAddress,
    offset: int,
    op: str,
    dtype: np.dtype,
    value: np.ndarray,
    other: np.ndarray | None,
    wanted: bool,
    where: int,
) -> np.ndarray | None:
    """Perform `op` and return what each thread found (None unless wanted).

    `other` is the new value of a compare-and-swap, whose comparison is `value`. A dtype of float16 means packed
    pairs (f16x2): `value` then has two elements a thread.
    """
    if isinstance(address, list):
        value = np.broadcast_to(value, (g.n, *value.shape[1:]))
        other = None if other is None else widen(other, g.n)
        out = np.empty((g.n, *value.shape[1:]), dtype) if wanted else None
        for lanes, sub, part in address:
            new = None if other is None else other[lanes]
            got = atomic(sub, part, offset, op, dtype, value[lanes], new, wanted, where)
            if out is not None:
                out[lanes] = got
        return out
    pairs = value.ndim - 1  # 1 for packed halves
    check(g, address, offset, dtype.itemsize << pairs, "atomic", where)
    shift = dtype.itemsize.bit_length() - 1
    view = views_of(g, address.space)[dtype]
    index = widen(address.index(shift) + (offset >> shift), g.n)
    value = np.broadcast_to(value, (g.n, *value.shape[1:]))
    if pairs:
        index = index[:, None] + np.arange(2)
    if op == "cas":
        assert other is not None
        old = _compare_and_swap(view, index, value, widen(other, g.n))
        g.chunk.launch.writes += bool((old == value).any())
        return old
    if not wanted and op in UFUNC:
        g.chunk.launch.writes += 1
        UFUNC[op].at(view, index, value)
        return None
    old = _with_result(view, index, op, value)
    g.chunk.launch.writes += bool((view[index] != old).any())  # adding 0 is a way to poll
    return old


def _with_result(view: np.ndarray, index: np.ndarray, op: str, value: np.ndarray) -> np.ndarray:
    """Perform `op` on view[index]; what each thread found, the threads of one address one after the other."""
    keys = index if index.ndim == 1 else index[:, 0]
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    first = np.ones(len(order), bool)
    first[1:] = sorted_keys[1:] != sorted_keys[:-1]
    if first.all():
        old = view[index]
        view[index] = _apply(op, old, value)
        return old
    starts = np.flatnonzero(first)
    segment = np.cumsum(first) - 1
    if op == "add" and view.dtype.kind in "iu":
        v = value[order]
        total = np.cumsum(v, dtype=v.dtype)
        before = total - v
        exclusive = before - before[starts][segment]
        old = np.empty(len(order), v.dtype)
        old[order] = view[sorted_keys] + exclusive
        np.add.at(view, keys, value)
        return old
    rank = np.arange(len(order)) - starts[segment]
    old = np.empty(value.shape, view.dtype)
    by_rank = np.argsort(rank, kind="stable")
    for members in np.split(order[by_rank], np.cumsum(np.bincount(rank))[:-1]):
        found = view[index[members]]
        old[members] = found
        view[index[members]] = _apply(op, found, value[members])
    return old


def _compare_and_swap(view: np.ndarray, index: np.ndarray, compare: np.ndarray, new: np.ndarray) -> np.ndarray:
    old = view[index]
    hits = np.flatnonzero(old == compare)
    if hits.size == 0:  # nobody's comparison holds, so nothing changes: the common case of a spinning lock
        return old
    if np.unique(index).size == index.size:
        view[index[hits]] = new[hits]
        return old
    current: dict[int, int] = {}
    result = old.copy()
    for lane, (where, expected, value) in enumerate(zip(index.tolist(), compare.tolist(), new.tolist(), strict=True)):
        found = current.get(where)
        if found is None:
            found = view[where].item()
        result[lane] = found
        current[where] = value if found == expected else found
    for where, value in current.items():
        view[where] = value
    return result
