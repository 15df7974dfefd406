"""Loads, stores, atomics, asynchronous copies; fences and cache hints, which have nothing to do here."""

from common.simt.cfg import defs_and_uses
from common.simt.errors import UnknownForm
from common.simt.ptx import Imm, Instr, Sym
from common.simt.writer import (
    DTYPE,
    SIZE,
    BlockWriter,
    handles,
    items,
    modifier,
    refuse,
    space_of,
    type_of,
    vector_of,
)

STRONG = {"volatile", "relaxed", "acquire", "release"}
ATOMICS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


def raw_dtype(kind: str) -> str:
    """The dtype in which a PTX type is loaded and stored; float16 moves as its bits."""
    return "u2" if kind == "f16" else DTYPE[kind]


@handles("ld", "ldu")
def load(w: BlockWriter, i: Instr) -> None:
    space, dtype = space_of(i), raw_dtype(type_of(i))
    targets, mem = items(i.args[0]), i.args[1]
    if space == "param" and isinstance(mem.base, Sym):
        offset = w.symbol(mem.base) + mem.offset
        for k, target in enumerate(targets):
            w.write(target, dtype, f"g.param({offset + k * SIZE[dtype]}, {dtype})")
        return
    address, offset = w.address(space, mem)
    name = "load_constant" if "const" in i.mods else "load_strong" if STRONG.intersection(i.mods) else "load"
    values = w.fresh(f"memory.{name}(g, {address}, {offset}, {dtype}, {w.where()}, {vector_of(i)})")
    for k, target in enumerate(targets):
        w.write(target, dtype, f"{values}[{k}]")


@handles("st")
def store(w: BlockWriter, i: Instr) -> None:
    refuse(i, "async", "bulk")
    dtype = raw_dtype(type_of(i))
    address, offset = w.address(space_of(i), i.args[0])
    values = ", ".join(w.read(source, dtype) for source in items(i.args[1]))
    name = "store_strong" if STRONG.intersection(i.mods) else "store"
    w.emit(f"memory.{name}(g, {address}, {offset}, {dtype}, [{values}], {w.where()})")


@handles("atom", "red")
def atomic(w: BlockWriter, i: Instr) -> None:
    """A red is an atom without a result."""
    refuse(i, "async", "v2", "v4", "v8")
    kind, op = type_of(i), modifier(i, ATOMICS)
    args = i.args if i.op == "red" else i.args[1:]
    wanted = i.op == "atom" and _read_later(w, i)
    address, offset = w.address(space_of(i), args[0])
    if kind in ("f16", "f16x2", "bf16", "bf16x2"):
        if kind[0] == "b" or op != "add":
            raise UnknownForm(f"an atomic {op} of {kind}")
        raw, dtype, other = "u4" if kind == "f16x2" else "u2", "f2", "None"
        bits = w.read(args[1], raw)
        value = f"ops.halves({bits})" if kind == "f16x2" else f"{bits}.view(f2)"
    else:
        raw = dtype = DTYPE[kind]
        values = [w.read(a, dtype) for a in args[1:3]]
        value, other = values[0], values[1] if op == "cas" else "None"
    call = f"atomic(g, {address}, {offset}, {op!r}, {dtype}, {value}, {other}, {wanted}, {w.where()})"
    if not wanted:
        w.emit(call)
    else:
        w.write(i.args[0], raw, call if raw == dtype else f"np.ascontiguousarray({call}).view({raw}).ravel()")


def _read_later(w: BlockWriter, i: Instr) -> bool:
    """Whether anything reads an atomic's result; compilers name one even where nobody does."""
    target = i.args[0]
    position = next(n for n, instr in enumerate(w.block.instrs) if instr is i)
    later = w.block.all_instrs()[position + 1 :]
    return target.name in w.block.live_out or any(target.name in defs_and_uses(instr)[1] for instr in later)


@handles("cp")
def copy_async(w: BlockWriter, i: Instr) -> None:
    """cp.async copies at once; commit and wait matter to those who watch."""
    refuse(i, "bulk", "mbarrier")
    if "commit_group" in i.mods:
        w.emit("memory.commit_copies(g)")
        return
    if "wait_group" in i.mods or "wait_all" in i.mods:
        w.emit(f"memory.wait_copies(g, {i.args[0].value if 'wait_group' in i.mods else -1})")
        return
    target, to = w.address("shared", i.args[0])
    source, start = w.address("global", i.args[1])
    size, *rest = i.args[2:]
    if "L2__cache_hint" in i.mods:
        rest.pop()  # the cache policy
    take = w.read(rest[0], "u4") if rest else "None"
    w.emit(f"memory.copy_async(g, {target}, {source}, ({to}, {start}), {size.value}, {take}, {w.where()})")


@handles("membar", "fence", "prefetch", "prefetchu", "discard", "applypriority")
def nothing(w: BlockWriter, i: Instr) -> None:
    """Memory is sequentially consistent here, and there are no caches."""


@handles("createpolicy")
def policy(w: BlockWriter, i: Instr) -> None:
    w.write(i.args[0], "u8", w.read(Imm(0), "u8"))
