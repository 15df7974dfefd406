"""Device printf: the format string and the packed arguments of every thread become text."""

import re
from typing import TYPE_CHECKING

import numpy as np

from common.simt import memory

if TYPE_CHECKING:
    from common.simt.group import Group

_SPEC = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+))?(hh|h|ll|l|z|j|t|L)?([diouxXeEfFgGaAcspn%])")


def format_printf(g: "Group", form: np.ndarray, arguments: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The text each thread prints, in thread order, and what its printf() returns: the number of arguments."""
    counts = np.zeros(g.n, np.uint32)
    form = np.broadcast_to(form, (g.n,))
    texts: list[str] = [""] * g.n
    for pointer in np.unique(form):
        lanes = np.flatnonzero(form == pointer)
        template = g.chunk.launch.arena.string(int(pointer))
        columns = _columns(g, lanes, template, np.broadcast_to(arguments, (g.n,))[lanes])
        counts[lanes] = len(columns)
        for position, lane in enumerate(lanes):
            texts[lane] = _fill(g, template, [c[position].item() for c in columns])
    return texts, counts


def _columns(g: "Group", lanes: np.ndarray, template: str, arguments: np.ndarray) -> list[np.ndarray]:
    """One array for each argument: read from the threads' stacks, each aligned to its size."""
    columns, offset = [], 0
    sub = g.subset(lanes)
    address = memory.generic_address(sub, arguments)
    for _, width, precision, length, kind in _SPEC.findall(template):
        if kind == "%":
            continue
        wanted = ["i4" for star in (width, precision) if star == "*"]
        if kind in "eEfFgGaA":
            wanted.append("f8")
        elif kind in "sp" or length in ("l", "ll", "j", "z", "t"):
            wanted.append("u8" if kind not in "di" else "i8")
        else:
            wanted.append("i4" if kind in "di" else "u4")
        for name in wanted:
            dtype = np.dtype(name)
            offset = -(-offset // dtype.itemsize) * dtype.itemsize
            value = memory.load(sub, address, offset, dtype, -1)[0]
            columns.append(np.broadcast_to(value, (len(lanes),)))
            offset += dtype.itemsize
    return columns


def _fill(g: "Group", template: str, values: list) -> str:
    queue = list(values)

    def one(match: re.Match) -> str:
        flags, width, precision, length, kind = match.groups()
        if kind == "%":
            return "%"
        width = str(queue.pop(0)) if width == "*" else width or ""
        precision = str(queue.pop(0)) if precision == "*" else precision
        value = queue.pop(0)
        if precision is not None and precision.startswith("-"):
            precision = None  # C: as if it were not there
        if length in ("h", "hh") and kind in "diouxX":
            bits = 16 if length == "h" else 8
            value &= (1 << bits) - 1
            value -= (value >> (bits - 1) << bits) if kind in "di" else 0
        spec = f"%{flags}{width}" + (f".{precision}" if precision is not None else "")
        if kind == "s":
            return (spec + "s") % g.chunk.launch.arena.string(value)
        if kind == "c":
            return (spec + "s") % chr(value & 255)
        if kind == "p":
            return (f"%{flags}{width}s") % hex(value)
        if kind in "aA":
            return float(value).hex()
        return (spec + {"u": "d", "i": "d"}.get(kind, kind)) % value

    return _SPEC.sub(one, template)
