"""Reads of memory that nothing wrote: for each byte of a memory whether something has written it.

What the host copies or fills, what a kernel stores, and a module's variables count as written; a copy from device
to device carries over what was written of its source.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from common.simt.memory import Address

ONES = {size: np.dtype(f"u{size}").type(int.from_bytes(b"\1" * size, "little")) for size in (1, 2, 4, 8)}


class Written:
    """Which bytes of a memory have been written: 1 for each that has, by size of the elements that are looked at."""

    def __init__(self, size: int):
        self.bytes = np.zeros(-(-size // 8) * 8, np.uint8)  # pages that nobody touches take no memory
        self.views = {n: self.bytes.view(f"u{n}") for n in ONES}

    def mark(self, start: int, end: int, written: bool = True) -> None:
        """All of [start, end)."""
        self.bytes[start:end] = written

    def copy(self, target: int, source: int, size: int) -> None:
        """A copy within this memory, of what may not have been written."""
        self.bytes[target : target + size] = self.bytes[source : source + size].copy()

    def missing(self, start: int, size: int) -> np.ndarray:
        """The offsets in [start, start + size) of bytes that nothing wrote."""
        return np.flatnonzero(self.bytes[start : start + size] == 0)

    def store(self, address: "Address", offset: int, size: int, count: int) -> None:
        """Threads write `count` neighbouring elements of `size` bytes each."""
        index = _index(address, offset, size)
        for k in range(count):
            self.views[size][index + k] = ONES[size]

    def unwritten(self, address: "Address", offset: int, size: int, count: int) -> np.ndarray | None:
        """For each thread (one for all where they share the address) whether it reads what nothing wrote; None if
        none does."""
        index, view = _index(address, offset, size), self.views[size]
        bad = view[index] != ONES[size]
        for k in range(1, count):
            bad |= view[index + k] != ONES[size]
        return bad if bad.any() else None


def _index(address: "Address", offset: int, size: int) -> np.ndarray:
    shift = size.bit_length() - 1
    return address.index(shift) + (offset >> shift)
