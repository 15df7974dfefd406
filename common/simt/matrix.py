"""Matrix instructions of a warp: mma.sync, wmma, ldmatrix, stmatrix, movmatrix.

A matrix is spread over the registers of the 32 lanes; such a piece is a fragment. Which lane holds which element
is fixed for mma.sync (NVIDIA, "Parallel Thread Execution ISA", "Warp-level matrix instructions") and, for wmma, the
simulator's own choice, as it is each GPU's. Roles: 'a' (m x k), 'b' (k x n), 'c' and 'd' (m x n).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from common.simt import memory, ops
from common.simt.errors import SimulatorUnsupported
from common.simt.memory import Address, AnyAddress
from common.simt.ops import f2, f4, f8, i1, i4, i8, u1, u2, u4
from common.simt.warp import pick, rows

if TYPE_CHECKING:
    from common.simt.group import Group

LANE = np.arange(32)
GROUP, QUAD = LANE >> 2, LANE & 3  # PTX's groupID and threadID_in_group
FACTOR_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "f64": 64}
# mma.sync: shape -> elements of a and of b in each lane
FACTOR_ELEMENTS = {
    "m16n8k16": {"a": 8, "b": 4}, "m16n8k8": {"a": 4, "b": 2}, "m16n8k32": {"a": 16, "b": 8},
    "m16n8k4": {"a": 2, "b": 1}, "m8n8k4": {"a": 1, "b": 1}, "m8n8k16": {"a": 4, "b": 4},
}  # fmt: skip
WMMA_TYPES = {"f16": u2, "bf16": u2, "f32": f4, "tf32": f4, "s8": u1, "u8": u1, "s32": u4, "f64": f8}


def dimensions(shape: str) -> tuple[int, int, int]:
    """m, n, k of e.g. 'm16n8k16'."""
    m, n, k = (int(part) for part in shape[1:].replace("n", " ").replace("k", " ").split())
    return m, n, k


def size_of(shape: str, role: str) -> tuple[int, int]:
    """Rows and columns of the matrix in this role."""
    m, n, k = dimensions(shape)
    return {"a": (m, k), "b": (k, n)}.get(role, (m, n))


def knows_mma(shape: str, kinds: list[str]) -> bool:
    """Whether mma() does this shape with these types of d, a, b and c."""
    bits = FACTOR_BITS.get(kinds[1])
    return bits is not None and shape in FACTOR_ELEMENTS and (shape != "m8n8k4" or bits == 64)


def _mma_places(role: str, shape: str, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each lane's elements, both of shape (32, elements); `bits` is the size of a factor."""
    if role in "cd":
        i = np.arange(2 if shape.startswith("m8") else 4)
        return GROUP[:, None] + 8 * (i >> 1), 2 * QUAD[:, None] + (i & 1)
    i = np.arange(FACTOR_ELEMENTS[shape][role])
    per = max(32 // bits, 1)  # elements in one register
    j, reg = i % per, i // per  # position inside a register, and which register
    if role == "a":
        tall = not shape.startswith("m8")
        row = GROUP[:, None] + (8 * (reg & 1) if tall else 0 * reg)
        column = per * QUAD[:, None] + j + 4 * per * (reg >> 1 if tall else reg)
        return row, column
    row = per * QUAD[:, None] + j + 4 * per * reg
    return row, np.broadcast_to(GROUP[:, None], row.shape)


def _unpack(g: "Group", registers: list[np.ndarray], kind: str) -> np.ndarray:
    """Registers of a fragment -> (warps, 32, elements) in a type that multiplies exactly enough."""
    words = np.stack([rows(g, r) for r in registers], axis=2)
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


def _pack(g: "Group", values: np.ndarray, kind: str) -> list[np.ndarray]:
    """(warps, 32, elements) -> registers."""
    if kind == "f16":
        words = np.ascontiguousarray(values.astype(f2)).view(u4)
    elif kind == "s32":
        words = values.astype(i8).astype(np.uint64).astype(u4)
    else:
        words = values.astype(f8 if kind == "f64" else f4)
    return [pick(g, np.ascontiguousarray(words[:, :, i])) for i in range(words.shape[2])]


def _multiply_add(a: np.ndarray, b: np.ndarray, c: np.ndarray, kind: str) -> np.ndarray:
    """The products are exact; their sum is rounded once (hardware sums in an order of its own)."""
    if kind in ("s32", "f64"):
        return a @ b + c
    return (a.astype(f8) @ b.astype(f8) + c).astype(f4)


def mma(g: "Group", shape: str, kinds: list[str], a: list, b: list, c: list) -> list[np.ndarray]:
    """mma.sync: the registers of d; kinds are the types of d, a, b and c."""
    bits = FACTOR_BITS[kinds[1]]
    places = {role: _mma_places(role, shape, bits) for role in "abcd"}
    return _product(g, shape, kinds, (a, b, c), places)


def wmma_mma(g: "Group", shape: str, kinds: list[str], a: list, b: list, c: list) -> list[np.ndarray]:
    """wmma.mma: the registers of d; kinds are the types of d, a, b and c."""
    places = {role: _wmma_places(role, shape) for role in "abcd"}
    return _product(g, shape, kinds, (a, b, c), places)


def _product(g: "Group", shape: str, kinds: list[str], sources: tuple, places: dict) -> list[np.ndarray]:
    """Fragments to matrices, multiplied, and back; `places` has the rows and columns of each role's elements."""
    matrices = []
    for role, registers, kind in zip("abc", sources, kinds[1:], strict=True):
        row, column = places[role]
        fragment = _unpack(g, registers, kind)[:, :, : row.shape[1]]  # wmma may have spare registers
        matrix = np.zeros((len(fragment), *size_of(shape, role)), fragment.dtype)
        matrix[:, row, column] = fragment
        matrices.append(matrix)
    row, column = places["d"]
    result = _multiply_add(matrices[0], matrices[1], matrices[2], kinds[0])
    return _pack(g, result[:, row, column], kinds[0])


def _wmma_places(role: str, shape: str) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each lane's elements, both of shape (32, elements): row by row, lane by lane."""
    height, width = size_of(shape, role)
    count = height * width // 32
    element = LANE[:, None] * count + np.arange(count)
    return element // width, element % width


def wmma_load(
    g: "Group",
    role: str,
    shape: str,
    layout: str,
    kind: str,
    address: Address,
    offset: int,
    stride: np.ndarray,
    registers: int,
    where: int,
) -> list[np.ndarray]:
    """wmma.load: each lane reads its elements of the matrix; spare registers repeat them."""
    memory.aligned(g, address, offset, 16, "wmma.load", where)
    dtype = WMMA_TYPES[kind]
    elements = [
        memory.load(g, at, offset, dtype, where)[0]
        for at in fragment_elements(g, role, shape, layout, address, stride, dtype)
    ]
    packed = np.ascontiguousarray(np.stack(elements, axis=1))
    words = packed.view(u4) if dtype.itemsize < 4 else packed
    return [np.ascontiguousarray(words[:, i % words.shape[1]]) for i in range(registers)]


def wmma_store(
    g: "Group",
    role: str,
    shape: str,
    layout: str,
    kind: str,
    address: Address,
    offset: int,
    stride: np.ndarray,
    values: list,
    where: int,
) -> None:
    """wmma.store: the inverse of wmma.load."""
    memory.aligned(g, address, offset, 16, "wmma.store", where)
    dtype = WMMA_TYPES[kind]
    registers = np.ascontiguousarray(np.stack([np.broadcast_to(v, (g.n,)) for v in values], axis=1))
    elements = registers.view(dtype)
    for i, at in enumerate(fragment_elements(g, role, shape, layout, address, stride, dtype)):
        memory.store(g, at, offset, dtype, [elements[:, i]], where)


def fragment_elements(
    g: "Group", role: str, shape: str, layout: str, address: Address, stride: np.ndarray, dtype: np.dtype
) -> Iterator[Address]:
    """For each element of a wmma fragment, where the lanes find it in memory."""
    step = stride.astype(i8)
    for row, column in zip(*(table.T for table in _wmma_places(role, shape)), strict=True):
        r, c = row[g.lane], column[g.lane]
        away = r * step + c if layout == "row" else c * step + r
        yield _beside(address, address.raw + away * dtype.itemsize)


def _beside(address: Address, raw: np.ndarray) -> Address:
    """Other addresses in the same space."""
    return Address(address.space, raw, address.base)


def one_space(address: AnyAddress) -> Address:
    """Matrix instructions take pointers into one memory space. Raises SimulatorUnsupported for a mixture."""
    if isinstance(address, list):
        raise SimulatorUnsupported("a matrix instruction on addresses of mixed memory spaces")
    return address


def ldmatrix(g: "Group", address: Address, offset: int, count: int, transposed: bool, where: int) -> list[np.ndarray]:
    """ldmatrix: lane 8m + r has the address of row r (16 bytes) of matrix m; a lane gets two elements of each."""
    _rows_aligned(g, address, offset, count, "ldmatrix", where)
    halves = [memory.load(g, at, offset, u2, where)[0] for at in matrix_elements(g, address, count, transposed)]
    return [ops.join(low, high, u2, u4) for low, high in zip(halves[::2], halves[1::2], strict=True)]


def stmatrix(g: "Group", address: Address, offset: int, values: list, transposed: bool, where: int) -> None:
    """stmatrix: the inverse of ldmatrix."""
    _rows_aligned(g, address, offset, len(values), "stmatrix", where)
    pairs = [np.ascontiguousarray(np.broadcast_to(v, (g.n,))).view(u2).reshape(-1, 2) for v in values]
    halves = [pair[:, half] for pair in pairs for half in range(2)]
    for at, half in zip(matrix_elements(g, address, len(values), transposed), halves, strict=True):
        memory.store(g, at, offset, u2, [half], where)


def _rows_aligned(g: "Group", address: Address, offset: int, count: int, what: str, where: int) -> None:
    """Rows have 16 bytes and start at multiples of 16; the lanes that name one are the first 8 * count of a warp."""
    naming = np.flatnonzero(g.lane < 8 * count)
    raw = np.broadcast_to(address.raw, (g.n,))[naming]
    memory.aligned(g.subset(naming), Address(address.space, raw, 0), offset, 16, what, where)


def matrix_elements(g: "Group", address: Address, count: int, transposed: bool) -> Iterator[Address]:
    """Where the two elements of each of `count` matrices lie that a lane loads or stores."""
    of_row = rows(g, np.broadcast_to(address.raw, (g.n,)))  # (warps, 32)
    for matrix in range(count):
        for half in range(2):
            row, column = g.lane >> 2, 2 * (g.lane & 3) + half
            if transposed:
                row, column = column, row
            yield _beside(address, of_row[g.slot_index >> 5, 8 * matrix + row] + 2 * column)


def movmatrix(g: "Group", a: np.ndarray) -> np.ndarray:
    """movmatrix.trans: an 8x8 matrix of 16-bit elements transposed across the warp."""
    fragment = np.ascontiguousarray(rows(g, a)).view(u2).reshape(-1, 32, 2)
    matrix = fragment.reshape(-1, 8, 8)
    turned = np.ascontiguousarray(matrix.transpose(0, 2, 1)).reshape(-1, 32, 2)
    return pick(g, turned.view(u4)[..., 0])
