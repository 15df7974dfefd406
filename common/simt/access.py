"""What a warp's memory instruction costs the hardware, worked out from the addresses of its lanes.

Each function takes `lanes`, int64 of shape (k, 32): the byte address that each lane of k instructions uses, INACTIVE
where the lane takes no part, and returns one number for each instruction. The rules were found with micro-kernels under
Nsight Compute on an H200 (compute capability 9.0). Words are 4 bytes; word w lies in bank w % 32.
"""

import numpy as np

INACTIVE = -1
SECTOR = 5  # log2 of 32 bytes, what the caches move
LANES = np.arange(32)

Counts = np.ndarray  # int64, one for each instruction


def collapse(lanes: np.ndarray, unit: int) -> tuple[np.ndarray, Counts]:
    """The different instructions among `lanes`, each moved to begin near 0 by a multiple of `unit` bytes, and how often
    each occurs. What a function below counts must not change by such a move."""
    active = lanes >= 0
    lowest = np.where(active, lanes, np.iinfo(np.int64).max).min(axis=1, keepdims=True)
    moved = np.where(active, lanes - lowest // unit * unit, INACTIVE)
    if (moved == moved[0]).all():  # nearly always
        return moved[:1], np.array([len(moved)])
    weights = np.random.default_rng(0).integers(1, 2**62, 32)
    _, first, count = np.unique(moved @ weights, return_index=True, return_counts=True)  # a hash, modulo 2^64
    return moved[first], count


def sectors(lanes: np.ndarray) -> Counts:
    """Distinct 32-byte sectors: what a load or store of global memory moves. No aligned access crosses a sector."""
    return _distinct(lanes >> SECTOR)


def atomic_sectors(lanes: np.ndarray) -> Counts:
    """Of global atomics: each sector counts as often as the most frequent address in it."""
    row, lane = np.nonzero(lanes >= 0)
    addresses, times = np.unique(row << 48 | lanes[row, lane], return_counts=True)
    sector = addresses >> SECTOR
    begins = np.flatnonzero(np.diff(sector, prepend=-1))
    most = np.maximum.reduceat(times, begins)
    return np.bincount(sector[begins] >> 48 - SECTOR, most, len(lanes)).astype(np.int64)


def local_sectors(lanes: np.ndarray, size: int) -> Counts:
    """Sectors of a load or store of `size` bytes a lane in local memory; `lanes` are offsets in each thread's own.

    It is interleaved: for each word there is a row of 32 lanes, which is four sectors of 8 lanes each.
    """
    octets = np.where(lanes < 0, INACTIVE, (lanes >> 2) * 4 + (LANES >> 3))
    return _distinct(octets) * max(size // 4, 1)


def shared_load(lanes: np.ndarray, size: int) -> tuple[Counts, Counts]:
    """(wavefronts, bank conflicts) of a load of `size` bytes a lane (1 to 16) from shared memory.

    64 bits go by half-warps and 128 by quarters; lanes that share an address with a neighbour let two groups be one.
    """
    if size <= 4:
        return _in_groups(lanes, size, 32)
    merged = np.zeros(len(lanes), bool)
    for step in (1, 2):
        other = lanes[:, LANES ^ step]
        merged |= ((lanes < 0) | (other < 0) | (lanes == other)).all(axis=1)
    wavefronts, conflicts = np.zeros((2, len(lanes)), np.int64)
    for rows, width in ((~merged, 128 // size), (merged, 256 // size)):
        if rows.any():
            wavefronts[rows], conflicts[rows] = _in_groups(lanes[rows], size, width)
    return wavefronts, conflicts


def shared_store(lanes: np.ndarray, size: int) -> tuple[Counts, Counts]:
    """(wavefronts, bank conflicts) of a store of `size` bytes a lane (1 to 16) to shared memory."""
    return _in_groups(lanes, size, 32 if size <= 4 else 128 // size)


def shared_atomic(lanes: np.ndarray, op: str, counts_up: bool) -> tuple[Counts, Counts]:
    """(wavefronts, bank conflicts) of an atomic of 4 bytes on integers in shared memory.

    The lanes of one bank take turns; a compare-and-swap takes two wavefronts a turn. `counts_up`: each lane adds the
    constant 1 and nobody reads the result; then the lanes of one address go together.
    """
    if counts_up:
        return _in_groups(lanes, 4, 32)
    turns = _lanes_of_the_fullest_bank(lanes)
    return turns * (2 if op == "cas" else 1), np.maximum(turns - 1, 0)


def shared_float_add(lanes: np.ndarray) -> tuple[Counts, Counts, Counts]:
    """(load wavefronts, load conflicts, atomic wavefronts) of an atomicAdd of float32 in shared memory.

    It is a load and a compare-and-swap in a loop: in each round the lowest lane left on each bank succeeds. So it is
    for a warp alone; what several that meet cost depends on their timing.
    """
    left, loads, conflicts, atomics = lanes.copy(), *np.zeros((3, len(lanes)), np.int64)
    while (left >= 0).any():
        wavefronts, extra = _in_groups(left, 4, 32)
        loads, conflicts, atomics = loads + wavefronts, conflicts + extra, atomics + 2 * (wavefronts > 0)
        row, lane = np.nonzero(left >= 0)  # by row, and in a row by lane
        _, first = np.unique(32 * row + (left[row, lane] >> 2 & 31), return_index=True)
        left[row[first], lane[first]] = INACTIVE
    return loads, conflicts, atomics


def matrices(lanes: np.ndarray, count: int) -> tuple[Counts, Counts]:
    """(wavefronts, bank conflicts) of ldmatrix or stmatrix: 8 lanes name the rows of 16 bytes of each matrix."""
    named = np.where(8 * count > LANES, lanes, INACTIVE)
    return _in_groups(named, 16, 8)


def _distinct(values: np.ndarray) -> Counts:
    """How many different numbers each row holds; negative ones do not count."""
    order = np.sort(values, axis=1)
    return (order[:, 1:] != order[:, :-1]).sum(axis=1) + 1 - (order[:, 0] < 0)


def _lanes_of_the_fullest_bank(lanes: np.ndarray) -> Counts:
    """The most active lanes on one bank, whether or not they share an address."""
    row, lane = np.nonzero(lanes >= 0)
    bank = 32 * row + (lanes[row, lane] >> 2 & 31)
    return np.bincount(bank, minlength=32 * len(lanes)).reshape(-1, 32).max(axis=1)


def _in_groups(lanes: np.ndarray, size: int, width: int) -> tuple[Counts, Counts]:
    """Groups of `width` lanes, one after the other: each takes as many wavefronts as its fullest bank has words."""
    words = lanes[:, :, None] >> 2
    words = np.where(words < 0, INACTIVE, words + np.arange(max(size // 4, 1))).reshape(len(lanes) * 32 // width, -1)
    order = np.sort(words, axis=1)
    counted = order >= 0
    counted[:, 1:] &= order[:, 1:] != order[:, :-1]
    row = np.broadcast_to(np.arange(len(order))[:, None], order.shape)
    fullest = np.bincount((32 * row + (order & 31))[counted], minlength=32 * len(order)).reshape(-1, 32).max(axis=1)
    by_instruction = fullest.reshape(len(lanes), -1)
    wavefronts = by_instruction.sum(axis=1)
    return wavefronts, wavefronts - (by_instruction > 0).sum(axis=1)
