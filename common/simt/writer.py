"""The writer: turns the instructions of one basic block into the text of one Python function.

A generated function `block_N(R, g)` works on all threads of a group `g` at once. It reads the registers that live
into the block from the dict R, keeps the others in local variables, and writes back those that live out. A register
holds raw bits: a value keeps the dtype it was computed in and is re-viewed (never converted) when another
instruction reads its bits as another type.

What an opcode means is in the instructions*.py files: handlers that call read() for their operands' expressions and
write() for the result. `@handles("opcode")` enters a handler into HANDLERS.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

import numpy as np

from common.simt.cfg import SPECIAL, Block
from common.simt.errors import SimulatorUnsupported, UnknownForm
from common.simt.ptx import Imm, Instr, Mem, Not, Operand, Pair, Reg, Sym, Vec, register_type

if TYPE_CHECKING:
    from common.simt.translate import Program


class _Types(dict[str, str]):
    """A table by PTX type."""

    def __missing__(self, kind: str) -> str:
        raise UnknownForm(f"the type .{kind}")


# PTX type -> the dtype its bits are computed with; ops handles bf16 and packed pairs on the raw bits
DTYPE = _Types({
    "pred": "?", "b8": "u1", "u8": "u1", "s8": "i1", "b16": "u2", "u16": "u2", "s16": "i2", "f16": "f2", "bf16": "u2",
    "b32": "u4", "u32": "u4", "s32": "i4", "f32": "f4", "f16x2": "u4", "bf16x2": "u4", "b64": "u8", "u64": "u8",
    "s64": "i8", "f64": "f8",
})  # fmt: skip
# PTX type -> dtype in which a register of it travels between blocks, where that is not DTYPE's
HOME = {"f16": "u2", "s16": "u2", "s32": "u4", "s64": "u8", "s8": "u2", "u8": "u2", "b8": "u2"}
SIZE = {dtype: int(dtype[1:] or 1) for dtype in ("?", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8")}
UNSIGNED = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}
WIDER = {"u1": "u2", "i1": "i2", "u2": "u4", "i2": "i4", "u4": "u8", "i4": "i8"}
SPACES = ("global", "shared", "local", "const", "param")
TIMES = ("clock", "clock64", "clock_hi", "globaltimer", "globaltimer_lo", "globaltimer_hi")

Handler = Callable[["BlockWriter", Instr], None]
HANDLERS: dict[str, Handler] = {}


def handles(*opcodes: str) -> Callable[[Handler], Handler]:
    """Decorator: this function writes the Python of these opcodes."""

    def register(function: Handler) -> Handler:
        for opcode in opcodes:
            HANDLERS[opcode] = function
        return function

    return register


def modifier(instr: Instr, known: Collection[str], default: str | None = None) -> str:
    """The first modifier of the instruction that is one of `known`. Without a default, UnknownForm if none is."""
    for mod in instr.mods:
        if mod in known:
            return mod
    if default is None:
        raise UnknownForm(f"none of its modifiers is one of {', '.join(sorted(known))}")
    return default


def refuse(instr: Instr, *mods: str) -> None:
    """Raise UnknownForm for modifiers that change the result in a way that the handler does not know."""
    for mod in mods:
        if mod in instr.mods:
            raise UnknownForm(f"the modifier .{mod}")


def type_of(instr: Instr) -> str:
    """The type an instruction works on: its last modifier."""
    return instr.mods[-1]


def space_of(instr: Instr) -> str:
    """The memory space that an instruction names, 'generic' if none."""
    for mod in instr.mods:
        base = mod.split("__")[0]  # shared::cta, which the parser spells shared__cta
        if base in SPACES:
            return base
    return "generic"


def vector_of(instr: Instr) -> int:
    """How many elements a load or store moves."""
    return int(modifier(instr, ("v2", "v4", "v8"), "v1")[1:])


def items(arg: Operand) -> tuple:
    """The elements of {a, b, ...}; a lone operand counts as one element."""
    return arg.items if isinstance(arg, Vec) else (arg,)


class BlockWriter:
    """Writes the Python of one block."""

    def __init__(self, program: "Program", number: int, block: Block):
        self.program = program
        self.number = number
        self.block = block
        self.instr: Instr  # the one being translated
        self.code: list[str] = []
        self.values: dict[str, dict[str, str]] = {}  # register -> dtype -> local variable
        self.written: list[str] = []
        self.addresses: dict[tuple[str, str], str] = {}  # (space, variable) -> prepared address
        self.count = 0  # of local variables

    # ---- the function's text
    def text(self) -> str:
        """The whole function. Raises SimulatorUnsupported naming the first instruction that has no translation."""
        for instr in self.block.instrs:
            with self.translating(instr):
                if instr.op not in HANDLERS:
                    raise UnknownForm("an opcode it does not know")
                HANDLERS[instr.op](self, instr)
        result = "None"
        if self.block.control is not None:
            with self.translating(self.block.control):
                result = self.control(self.block.control)
        for reg in dict.fromkeys(self.written):
            if reg in self.block.live_out:
                self.emit(f"R[{reg!r}] = {self.read(Reg(reg), self.home(reg))}")
        body = [*self.code, f"return {result}"]
        return f"def block_{self.number}(R, g):\n" + "\n".join(f"    {line}" for line in body) + "\n"

    @contextlib.contextmanager
    def translating(self, instr: Instr) -> Iterator[None]:
        """Turns what a handler raises into a SimulatorUnsupported that names the instruction and its source line."""
        self.instr = instr
        try:
            yield
        except UnknownForm as form:
            raise SimulatorUnsupported(f"{self.place(instr)}: {form}") from form
        except (LookupError, StopIteration, ValueError, AttributeError) as error:
            # operands or modifiers that the handler was not written for; the chained exception shows where it failed
            raise SimulatorUnsupported(f"{self.place(instr)}: its translation fails with {error!r}") from error

    def place(self, instr: Instr) -> str:
        """What a message calls an instruction."""
        line = f"line {instr.loc[1]}" if instr.loc[1] else "no source line"
        return f"the PTX instruction '{instr.text}' in kernel {self.program.kernel.name} ({line})"

    def control(self, instr: Instr) -> str:
        """What the scheduler needs to know to go on: a predicate, an index, the barrier's operands."""
        if self.block.kind in ("jump", "exit"):
            return "None"
        if self.block.kind == "branch":
            return self.predicate(instr.guard)
        if self.block.kind == "switch":
            return self.read(instr.args[0], "u4")
        args, value = list(instr.args), "None"
        if "red" in instr.mods:  # result, barrier, threads, predicate
            value = self.predicate(args.pop())
            args.pop(0)
        barrier = self.read(args[0], "u4") if args else self.program.constant(0, "u4")
        threads = self.read(args[1], "u4") if len(args) > 1 else "None"
        return f"({barrier}, {threads}, {value})"

    # ---- values
    def emit(self, line: str) -> None:
        """Append a line of Python."""
        self.code.append(line)

    def fresh(self, expr: str) -> str:
        """A local variable that holds the expression (the expression itself where it is one already)."""
        if expr.isidentifier():
            return expr
        self.count += 1
        name = f"v{self.count}"
        self.emit(f"{name} = {expr}")
        return name

    def home(self, reg: str) -> str:
        """The dtype in which a register travels between blocks."""
        if reg == "%CC":  # the carry flag of add.cc and its like
            return "?"
        kind = register_type(self.program.kernel.function, reg)
        return HOME.get(kind) or DTYPE[kind]

    def two(self, instr: Instr, dtype: str) -> tuple[str, str]:
        """The first two sources of an instruction."""
        return self.read(instr.args[1], dtype), self.read(instr.args[2], dtype)

    def read(self, arg: Operand, dtype: str) -> str:
        """An expression for an operand's bits seen as `dtype` (the low ones if the register is wider)."""
        if isinstance(arg, Imm):
            if dtype in ("f2", "f4", "f8") or isinstance(arg.value, int):
                return self.program.constant(arg.value, dtype)
            size = max(SIZE[dtype], 4)
            bits = np.array([arg.value], f"f{size}").view(UNSIGNED[size])
            return self.program.constant(int(bits[0]), dtype)
        if isinstance(arg, Sym):
            return self.program.constant(self.symbol(arg), dtype)
        if isinstance(arg, Not):
            return f"~{self.read(arg.reg, '?')}"
        if isinstance(arg, Vec):
            return self.joined(arg, dtype)
        if not isinstance(arg, Reg):
            raise UnknownForm(f"the operand {arg}")
        name = arg.name
        if name.split(".")[0] in SPECIAL:
            return self.special(name, dtype)
        known = self.values.get(name)
        if known is None:
            known = self.values[name] = {self.home(name): self.fresh(f"R[{name!r}]")}
        if dtype in known:
            return known[dtype]
        source, variable = next(iter(known.items()))
        if dtype == "?" or source == "?":
            raise UnknownForm(f"the register {name} as a predicate and as a number")
        if SIZE[source] == SIZE[dtype]:
            expr = f"{variable}.view({dtype})"
        elif SIZE[source] > SIZE[dtype]:
            narrow, wide = UNSIGNED[SIZE[dtype]], UNSIGNED[SIZE[source]]
            expr = variable if source == wide else f"{variable}.view({wide})"
            expr = f"{expr}.astype({narrow})" + ("" if dtype == narrow else f".view({dtype})")
        else:  # a register narrower than what is asked for, e.g. st.b32 of a 16-bit one: zero bits above
            expr = f"{self.read(arg, UNSIGNED[SIZE[source]])}.astype({UNSIGNED[SIZE[dtype]]}).view({dtype})"
        known[dtype] = self.fresh(expr)
        return known[dtype]

    def joined(self, vec: Vec, dtype: str) -> str:
        """{low, high} as one wider value (two parts of half, or four of a quarter)."""
        part = UNSIGNED[SIZE[dtype] // len(vec.items)]
        parts = [self.read(item, part) for item in vec.items]
        kind = part
        while len(parts) > 1:
            couples = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.fresh(f"ops.join({low}, {high}, {kind}, {WIDER[kind]})") for low, high in couples]
            kind = WIDER[kind]
        return parts[0] if kind == dtype else f"{parts[0]}.view({dtype})"

    def symbol(self, sym: Sym) -> int:
        """The address of a variable within its memory space."""
        if sym.name not in self.program.symbols:
            raise UnknownForm(f"the symbol {sym.name}")
        return self.program.symbols[sym.name] + sym.offset

    def special(self, name: str, dtype: str) -> str:
        """A special register such as %tid.x."""
        base, _, axis = name[1:].partition(".")
        if base in TIMES:
            raise UnknownForm(f"the simulator has no time (%{base})")
        expr = self.fresh(f"g.special({base!r}, {axis!r})")
        return expr if dtype == "u4" else self.fresh(f"{expr}.astype({UNSIGNED[SIZE[dtype]]}).view({dtype})")

    def predicate(self, arg: Operand | None) -> str:
        """A local variable that holds p or !p."""
        assert arg is not None
        return self.fresh(self.read(arg, "?"))

    def write(self, arg: Operand, dtype: str, expr: str) -> None:
        """Give a register a new value; an integer narrower than the register is extended by its sign."""
        if isinstance(arg, Vec):
            self.scattered(arg, dtype, expr)
            return
        if isinstance(arg, Pair):
            arg = arg.first
        if not isinstance(arg, Reg):
            raise UnknownForm(f"a result in {arg}")
        if arg.name == "_":
            self.emit(expr)
            return
        home = self.home(arg.name)
        if home != "?" and SIZE[dtype] < SIZE[home] and dtype != "?":
            wide = ("i" if dtype[0] == "i" else "u") + str(SIZE[home])
            if dtype[0] == "f":
                expr, dtype = f"{expr}.view({UNSIGNED[SIZE[dtype]]})", UNSIGNED[SIZE[dtype]]
            expr, dtype = f"({expr}).astype({wide})", wide
        elif home != "?" and SIZE[dtype] > SIZE[home]:
            wide, dtype = UNSIGNED[SIZE[dtype]], UNSIGNED[SIZE[home]]
            expr = f"({expr}).view({wide}).astype({dtype})"
        self.values[arg.name] = {dtype: self.fresh(expr)}
        self.written.append(arg.name)

    def scattered(self, vec: Vec, dtype: str, expr: str) -> None:
        """mov {low, high}, wide"""
        whole = self.fresh(expr if dtype[0] == "u" else f"({expr}).view({UNSIGNED[SIZE[dtype]]})")
        part = SIZE[dtype] // len(vec.items)
        kind, wide = UNSIGNED[part], UNSIGNED[SIZE[dtype]]
        for i, item in enumerate(vec.items):
            if item.name != "_":
                shifted = f"({whole} >> {wide}.type({8 * part * i}))" if i else whole
                self.write(item, kind, f"{shifted}.astype({kind})")

    # ---- memory
    def address(self, space: str, mem: Mem) -> tuple[str, int]:
        """A prepared address (shared by all accesses through this register in the block) and a byte offset."""
        if isinstance(mem.base, Sym):
            space = self.program.spaces.get(mem.base.name, space)
            variable = self.program.constant(self.symbol(mem.base), "u8")
        elif isinstance(mem.base, Imm):
            variable = self.program.constant(int(mem.base.value), "u8")
        else:
            wide = SIZE[self.home(mem.base.name)] == 8
            variable = self.read(mem.base, "u8" if wide else "u4")
        space = "global" if space == "const" else space
        if (space, variable) not in self.addresses:
            self.addresses[space, variable] = self.fresh(f"memory.{space}_address(g, {variable})")
        return self.addresses[space, variable], mem.offset

    def where(self) -> int:
        """The number under which a fault finds the source line of this instruction."""
        return self.program.where(self.instr.loc)
