"""Operations of a warp: shuffles, votes, matches, warp reductions and matrix fragments.

Thread slots are padded so that slot // 32 is the warp and slot % 32 the lane. A group may hold only some of the slots;
`spread` lays its values out over all of them, so that a lane can look at its neighbours.
Fragment layouts: NVIDIA, "Parallel Thread Execution ISA", section "Warp-level matrix instructions".
"""

from typing import TYPE_CHECKING

import numpy as np

from common.simt import memory, ops
from common.simt.errors import SimulatorUnsupported
from common.simt.memory import Address, AnyAddress
from common.simt.ops import f2, f4, f8, i1, i4, i8, u1, u2, u4

if TYPE_CHECKING:
    from common.simt.scheduler import Group


def spread(g: "Group", a: np.ndarray) -> np.ndarray:
    """A register over all slots of the chunk; slots outside the group hold 0."""
    if g.slots is None:
        return np.broadcast_to(a, (g.n,))
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
    return per_warp[g.slot_index >> 5]


def active_mask(g: "Group") -> np.ndarray:
    return of_warp(g, ballot_bits(g, np.ones(1, bool)))


def lane_mask(g: "Group", kind: str) -> np.ndarray:
    one = u4.type(1) << g.lane.astype(u4)
    below = one - u4.type(1)
    return {"eq": one, "lt": below, "le": below | one, "gt": ~(below | one), "ge": ~below}[kind]


def shuffle(
    g: "Group", mode: str, a: np.ndarray, b: np.ndarray, c: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """shfl.sync: the value of another lane, and whether that lane was in range."""
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
    ufunc = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op]  # fmt: skip
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


# ---- matrix fragments -----------------------------------------------------------------------------------------
_LANE = np.arange(32)
_GROUP, _QUAD = _LANE >> 2, _LANE & 3


def _layout(which: str, shape: str, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """(row, column) of each lane's elements, each of shape (32, elements), for mma.sync operands."""
    n = {"m16n8k16": {"A": 8, "B": 4}, "m16n8k8": {"A": 4, "B": 2}, "m16n8k32": {"A": 16, "B": 8},
         "m16n8k4": {"A": 2, "B": 1}, "m8n8k4": {"A": 1, "B": 1}, "m8n8k16": {"A": 4, "B": 4}}[shape]  # fmt: skip
    if which == "C":
        i = np.arange(2 if shape.startswith("m8") else 4)
        return _GROUP[:, None] + 8 * (i >> 1), 2 * _QUAD[:, None] + (i & 1)
    i = np.arange(n[which])
    per = max(32 // bits, 1)  # elements in one register
    j, reg = i % per, i // per  # position inside a register, and which register
    if which == "A":
        tall = not shape.startswith("m8")
        row = _GROUP[:, None] + (8 * (reg & 1) if tall else 0 * reg)
        column = per * _QUAD[:, None] + j + 4 * per * (reg >> 1 if tall else reg)
        return row, column
    row = per * _QUAD[:, None] + j + 4 * per * reg
    return row, np.broadcast_to(_GROUP[:, None], row.shape)


def _unpack(regs: list[np.ndarray], kind: str, g: "Group") -> np.ndarray:
    """Registers of a fragment -> (warps, 32, elements) in a type that multiplies exactly enough."""
    words = np.stack([rows(g, r) for r in regs], axis=2)
    if kind == "f16":
        return np.ascontiguousarray(words).view(f2).astype(f4)
    if kind == "bf16":
        return ops.bf16_to_float(np.ascontiguousarray(words).view(u2))
    if kind == "tf32":  # the hardware ignores the low 13 bits
        return (words.view(u4) & u4.type(0xFFFFE000)).view(f4)
    if kind in ("s8", "u8"):
        return np.ascontiguousarray(words).view(i1 if kind == "s8" else u1).astype(i8)
    if kind == "s32":
        return words.view(i4).astype(i8)
    return words.view(f8 if kind == "f64" else f4)


def _pack(values: np.ndarray, kind: str, g: "Group") -> list[np.ndarray]:
    """(warps, 32, elements) -> registers."""
    if kind == "f16":
        words = np.ascontiguousarray(values.astype(f2)).view(u4)
    elif kind == "s32":
        words = values.astype(i8).astype(np.uint64).astype(u4)
    else:
        words = values.astype(f8 if kind == "f64" else f4)
    return [pick(g, np.ascontiguousarray(words[:, :, i])) for i in range(words.shape[2])]


def _multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray, kind: str) -> np.ndarray:
    """The products are exact; their sum is rounded once (hardware sums in an order of its own)."""
    if kind in ("s32", "f64"):
        return a @ b + c
    return (a.astype(f8) @ b.astype(f8) + c).astype(f4)


def mma(g: "Group", shape: str, kinds: list[str], a: list, b: list, c: list, where: int) -> list[np.ndarray]:
    """mma.sync: kinds are the types of d, a, b and c."""
    bits = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "f64": 64}.get(kinds[1])
    m, n, k = (int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
    if bits is None or (shape == "m8n8k4" and bits != 64):
        raise SimulatorUnsupported(f"mma.sync {shape} with {kinds[1]} operands")
    matrices = []
    for which, regs, kind, size in (("A", a, kinds[1], (m, k)), ("B", b, kinds[2], (k, n)), ("C", c, kinds[3], (m, n))):  # fmt: skip
        fragment = _unpack(regs, kind, g)
        row, column = _layout(which, shape, bits)
        matrix = np.zeros((len(fragment), *size), fragment.dtype)
        matrix[:, row, column] = fragment
        matrices.append(matrix)
    result = _multiply(*matrices, kind=kinds[0])
    row, column = _layout("C", shape, bits)
    return _pack(result[:, row, column], kinds[0], g)


def wmma_count(role: str, shape: str, kind: str) -> int:
    """Elements a lane holds of a wmma fragment; which ones is the simulator's choice, as it is each GPU's."""
    m, n, k = (int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
    return {"a": m * k, "b": k * n}.get(role, m * n) // 32


def _wmma_places(role: str, shape: str) -> tuple[np.ndarray, np.ndarray]:
    m, n, k = (int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
    columns = {"a": k, "b": n}.get(role, n)
    count = wmma_count(role, shape, "")
    element = _LANE[:, None] * count + np.arange(count)
    return element // columns, element % columns


_WMMA_TYPES = {"f16": u2, "bf16": u2, "f32": f4, "tf32": f4, "s8": u1, "u8": u1, "s32": u4, "f64": f8}


def wmma_load(g: "Group", role: str, shape: str, layout: str, kind: str, address: AnyAddress, offset: int, stride: np.ndarray,
              registers: int, where: int) -> list[np.ndarray]:  # fmt: skip
    """wmma.load: each lane reads its elements of the matrix; spare registers repeat them."""
    dtype = _WMMA_TYPES[kind]
    row, column = _wmma_places(role, shape)
    elements = []
    for r, c in zip(row.T, column.T, strict=True):
        at = _element(one_space(address), r[g.lane], c[g.lane], layout, stride, dtype)
        elements.append(memory.load(g, at, offset, dtype, where)[0])
    packed = np.ascontiguousarray(np.stack(elements, axis=1))
    words = packed.view(u4) if dtype.itemsize < 4 else packed
    return [np.ascontiguousarray(words[:, i % words.shape[1]]) for i in range(registers)]


def wmma_store(g: "Group", shape: str, layout: str, kind: str, address: AnyAddress, offset: int, values: list, stride: np.ndarray,
               where: int) -> None:  # fmt: skip
    dtype = _WMMA_TYPES[kind]
    row, column = _wmma_places("d", shape)
    regs = np.ascontiguousarray(np.stack([np.broadcast_to(v, (g.n,)) for v in values], axis=1))
    elements = regs.view(dtype)
    for i, (r, c) in enumerate(zip(row.T, column.T, strict=True)):
        at = _element(one_space(address), r[g.lane], c[g.lane], layout, stride, dtype)
        memory.store(g, at, offset, dtype, [elements[:, i]], where)


def _element(
    address: Address, row: np.ndarray, column: np.ndarray, layout: str, stride: np.ndarray, dtype: np.dtype
) -> Address:
    step = stride.astype(i8)
    away = (row * step + column if layout == "row" else column * step + row) * dtype.itemsize
    return _beside(address, address.raw + away)


def _beside(address: Address, raw: np.ndarray) -> Address:
    """Other addresses in the same space."""
    return Address(address.space, raw, address.base)


def one_space(address: AnyAddress) -> Address:
    """Matrix instructions take pointers into one memory space. Raises SimulatorUnsupported for a mixture."""
    if isinstance(address, list):
        raise SimulatorUnsupported("a matrix instruction on addresses of mixed memory spaces")
    return address


def wmma_mma(g: "Group", shape: str, kinds: list[str], a: list, b: list, c: list) -> list[np.ndarray]:
    """wmma.mma: kinds are the types of d, a, b and c."""
    m, n, k = (int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
    matrices = []
    for role, regs, kind, size in (("a", a, kinds[1], (m, k)), ("b", b, kinds[2], (k, n)), ("c", c, kinds[3], (m, n))):  # fmt: skip
        fragment = _unpack(regs, kind, g)[:, :, : wmma_count(role, shape, kind)]
        row, column = _wmma_places(role, shape)
        matrix = np.zeros((len(fragment), *size), fragment.dtype)
        matrix[:, row, column] = fragment
        matrices.append(matrix)
    row, column = _wmma_places("d", shape)
    return _pack(_multiply(*matrices, kind=kinds[0])[:, row, column], kinds[0], g)


def ldmatrix(
    g: "Group", address: Address, offset: int, count: int, transposed: bool, where: int
) -> list[np.ndarray]:
    """ldmatrix: lane 8m + r has the address of row r (16 bytes) of matrix m; a lane gets two elements of each."""
    at = _row_addresses(g, address)
    lane = g.lane
    out = []
    for m in range(count):
        parts = []
        for half in range(2):
            row = 8 * m + ((2 * (lane & 3) + half) if transposed else (lane >> 2))
            column = (lane >> 2) if transposed else 2 * (lane & 3) + half
            raw = at[g.slot_index >> 5, row] + 2 * column
            parts.append(memory.load(g, _beside(address, raw), offset, u2, where)[0])
        out.append(ops.join(parts[0], parts[1], u2, u4))
    return out


def stmatrix(g: "Group", address: Address, offset: int, values: list, transposed: bool, where: int) -> None:
    """stmatrix: the inverse of ldmatrix."""
    at = _row_addresses(g, address)
    lane = g.lane
    for m, value in enumerate(values):
        pair = np.ascontiguousarray(np.broadcast_to(value, (g.n,))).view(u2).reshape(-1, 2)
        for half in range(2):
            row = 8 * m + ((2 * (lane & 3) + half) if transposed else (lane >> 2))
            column = (lane >> 2) if transposed else 2 * (lane & 3) + half
            raw = at[g.slot_index >> 5, row] + 2 * column
            memory.store(g, _beside(address, raw), offset, u2, [pair[:, half]], where)


def _row_addresses(g: "Group", address: Address) -> np.ndarray:
    return rows(g, np.broadcast_to(address.raw, (g.n,)))


def movmatrix(g: "Group", a: np.ndarray) -> np.ndarray:
    """movmatrix.trans: an 8x8 matrix of 16-bit elements transposed across the warp."""
    fragment = np.ascontiguousarray(rows(g, a)).view(u2).reshape(-1, 32, 2)
    matrix = fragment.reshape(-1, 8, 8)
    turned = np.ascontiguousarray(matrix.transpose(0, 2, 1)).reshape(-1, 32, 2)
    return pick(g, turned.view(u4)[..., 0])
