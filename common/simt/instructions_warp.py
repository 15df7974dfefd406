"""What a warp does together: shuffles, votes, reductions, matrix fragments. All of it calls warp.py and matrix.py."""

from common.simt import matrix
from common.simt.errors import UnknownForm
from common.simt.ptx import TYPE_BYTES, Imm, Instr, Operand, Pair
from common.simt.writer import DTYPE, BlockWriter, handles, items, modifier, refuse, space_of, type_of


@handles("shfl")
def shuffle(w: BlockWriter, i: Instr) -> None:
    target, a, b, c = i.args[:4]
    mode = modifier(i, ("up", "down", "bfly", "idx"))
    both = w.fresh(f"warp.shuffle(g, {mode!r}, {w.read(a, 'u4')}, {w.read(b, 'u4')}, {w.read(c, 'u4')})")
    _write_both(w, target, both)


def _write_both(w: BlockWriter, target: Operand, both: str) -> None:
    """Give `d` or `d|p` the value and the predicate of a pair."""
    w.write(target, "u4", f"{both}[0]")
    if isinstance(target, Pair) and target.second.name != "_":
        w.write(target.second, "?", f"{both}[1]")


@handles("vote")
def vote(w: BlockWriter, i: Instr) -> None:
    mode = modifier(i, ("ballot", "all", "any", "uni"))
    call = f"warp.vote(g, {mode!r}, {w.predicate(i.args[1])}, {w.read(i.args[2], 'u4')})"
    w.write(i.args[0], "u4" if mode == "ballot" else "?", call)


@handles("match")
def match(w: BlockWriter, i: Instr) -> None:
    mode = modifier(i, ("all", "any"))
    value, mask = w.read(i.args[1], DTYPE[type_of(i)]), w.read(i.args[2], "u4")
    _write_both(w, i.args[0], w.fresh(f"warp.match(g, {mode!r}, {value}, {mask})"))


@handles("redux")
def warp_reduce(w: BlockWriter, i: Instr) -> None:
    op = modifier(i, ("add", "min", "max", "and", "or", "xor"))
    dtype = DTYPE[type_of(i)]
    if dtype[0] == "f":
        raise UnknownForm("a warp reduction of floats")
    w.write(i.args[0], dtype, f"warp.reduce(g, {op!r}, {w.read(i.args[1], dtype)}, {w.read(i.args[2], 'u4')})")


@handles("elect")
def elect(w: BlockWriter, i: Instr) -> None:
    _write_both(w, i.args[0], w.fresh(f"warp.elect(g, {w.read(i.args[1], 'u4')})"))


@handles("activemask")
def active_mask(w: BlockWriter, i: Instr) -> None:
    w.write(i.args[0], "u4", "warp.active_mask(g)")


@handles("bar")
def warp_barrier(w: BlockWriter, i: Instr) -> None:
    """bar.warp.sync: the scheduler waited for the lanes."""
    w.emit("warp.barrier(g)")


# ---- matrix fragments ------------------------------------------------------------------------------------------------
# In each matrix instruction `kinds` are the PTX types of the fragments, in the order d, a, b, c.
FRAGMENT_DTYPE = {"f64": "f8", "f32": "f4"}  # of its registers; u4 for the others


def fragment(w: BlockWriter, arg: Operand, kind: str) -> str:
    """The registers of a fragment as a list."""
    return "[" + ", ".join(w.read(a, FRAGMENT_DTYPE.get(kind, "u4")) for a in items(arg)) + "]"


def write_fragment(w: BlockWriter, arg: Operand, kind: str, values: str) -> None:
    """Give the registers of a fragment the elements of a list."""
    for k, item in enumerate(items(arg)):
        w.write(item, FRAGMENT_DTYPE.get(kind, "u4"), f"{values}[{k}]")


def shape_of(i: Instr) -> str:
    """The shape in the modifiers, e.g. 'm16n8k16'."""
    return next(m for m in i.mods if m[0] == "m" and "n" in m and "k" in m)


def kinds_of(i: Instr) -> list[str]:
    """The types in the modifiers."""
    return [m for m in i.mods if m in TYPE_BYTES or m == "tf32"]


@handles("mma")
def mma(w: BlockWriter, i: Instr) -> None:
    refuse(i, "sp", "satfinite")
    shape, kinds = shape_of(i), kinds_of(i)
    if len(kinds) != 4 or not matrix.knows_mma(shape, kinds):
        raise UnknownForm("these operand types in this shape")
    d, a, b, c = i.args
    sources = ", ".join(fragment(w, arg, kind) for arg, kind in zip((a, b, c), kinds[1:], strict=True))
    write_fragment(w, d, kinds[0], w.fresh(f"matrix.mma(g, {shape!r}, {kinds!r}, {sources})"))


@handles("wmma")
def wmma(w: BlockWriter, i: Instr) -> None:
    """wmma.load, wmma.store and wmma.mma."""
    refuse(i, "satfinite")
    shape, kinds, layout = shape_of(i), kinds_of(i), modifier(i, ("row", "col"), "row")
    if i.mods[0] == "mma":
        if kinds in (["f16", "f16"], ["f16", "f32"], ["f32", "f16"], ["f32", "f32"]):  # f16 factors are not named
            kinds = [kinds[0], "f16", "f16", kinds[1]]
        d, a, b, c = i.args
        sources = ", ".join(fragment(w, arg, kind) for arg, kind in zip((a, b, c), kinds[1:], strict=True))
        write_fragment(w, d, kinds[0], w.fresh(f"matrix.wmma_mma(g, {shape!r}, {kinds!r}, {sources})"))
        return
    role, kind = i.mods[1], kinds[0]
    mem = i.args[1] if i.mods[0] == "load" else i.args[0]
    address, offset = w.address(space_of(i), mem)
    stride = w.read(i.args[2] if len(i.args) > 2 else Imm(_dense(shape, role, layout)), "u4")
    place = f"matrix.one_space({address}), {offset}, {stride}"
    if i.mods[0] == "load":
        count = len(items(i.args[0]))
        call = f"matrix.wmma_load(g, {role!r}, {shape!r}, {layout!r}, {kind!r}, {place}, {count}, {w.where()})"
        write_fragment(w, i.args[0], kind, w.fresh(call))
    else:
        values = fragment(w, i.args[1], kind)
        w.emit(f"matrix.wmma_store(g, {role!r}, {shape!r}, {layout!r}, {kind!r}, {place}, {values}, {w.where()})")


def _dense(shape: str, role: str, layout: str) -> int:
    """The stride of a matrix whose rows (columns) follow each other without a gap."""
    rows, columns = matrix.size_of(shape, role)
    return columns if layout == "row" else rows


@handles("ldmatrix")
def load_matrix(w: BlockWriter, i: Instr) -> None:
    modifier(i, ("b16",))
    count = int(modifier(i, ("x1", "x2", "x4"))[1])
    address, offset = w.address(space_of(i), i.args[1])
    call = f"matrix.ldmatrix(g, matrix.one_space({address}), {offset}, {count}, {'trans' in i.mods}, {w.where()})"
    write_fragment(w, i.args[0], "b32", w.fresh(call))


@handles("stmatrix")
def store_matrix(w: BlockWriter, i: Instr) -> None:
    modifier(i, ("b16",))
    address, offset = w.address(space_of(i), i.args[0])
    values = fragment(w, i.args[1], "b32")
    w.emit(f"matrix.stmatrix(g, matrix.one_space({address}), {offset}, {values}, {'trans' in i.mods}, {w.where()})")


@handles("movmatrix")
def move_matrix(w: BlockWriter, i: Instr) -> None:
    w.write(i.args[0], "u4", f"matrix.movmatrix(g, {w.read(i.args[1], 'u4')})")
