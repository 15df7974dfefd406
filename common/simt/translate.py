"""Translator: each basic block becomes one Python function of NumPy expressions over all its threads.

A generated function reads the registers that live into the block from the dict R, keeps the rest in local
variables, and writes back what lives out. Values keep the dtype they were computed in and are re-viewed (never
converted) when another instruction reads the bits as another type. `python -m common.simt.translate file.ptx`
prints the generated code.
"""

from collections.abc import Callable

import numpy as np

from common.simt import atomics, memory, ops, warp
from common.simt.cfg import SPECIAL, Block, Kernel
from common.simt.errors import SimulatorUnsupported
from common.simt.ptx import Function, Imm, Instr, Mem, Not, Pair, Reg, Sym, Vec, register_type

# PTX type -> how its bits are computed with; bf16 and packed pairs are handled on raw bits by ops
DTYPE = {"pred": "?", "b8": "u1", "u8": "u1", "s8": "i1", "b16": "u2", "u16": "u2", "s16": "i2", "f16": "f2", "bf16": "u2",
         "b32": "u4", "u32": "u4", "s32": "i4", "f32": "f4", "f16x2": "u4", "bf16x2": "u4", "b64": "u8", "u64": "u8",
         "s64": "i8", "f64": "f8"}  # fmt: skip
REGISTER = {"f16": "u2", "s16": "u2", "s32": "u4", "s64": "u8", "s8": "u2", "u8": "u2", "b8": "u2"}
SIZE = {
    "?": 1,
    "u1": 1,
    "i1": 1,
    "u2": 2,
    "i2": 2,
    "f2": 2,
    "u4": 4,
    "i4": 4,
    "f4": 4,
    "u8": 8,
    "i8": 8,
    "f8": 8,
}
WIDER = {"u1": "u2", "i1": "i2", "u2": "u4", "i2": "i4", "u4": "u8", "i4": "i8"}
UNSIGNED = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}
SPACES = ("global", "shared", "local", "const", "param")

Handler = Callable[["BlockWriter", Instr], None]
HANDLERS: dict[str, Handler] = {}


def handles(*names: str):
    def register(function: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = function
        return function

    return register


class Program:
    """All blocks of a kernel as Python functions f(R, g), and the tables they use."""

    def __init__(self, kernel: Kernel, symbols: dict[str, int], spaces: dict[str, str]):
        self.kernel = kernel
        self.symbols = symbols  # variable -> address within its space
        self.spaces = spaces  # variable -> space
        self.namespace: dict = {
            "np": np,
            "memory": memory,
            "warp": warp,
            "atomic": atomics.atomic,
            "ops": ops,
        }
        self.namespace |= {t: np.dtype(t) for t in SIZE if t != "?"}
        self.constants: dict[tuple, str] = {}
        self.lines: list[tuple[int, int]] = []  # `where` -> (file, line)
        self.source = "\n".join(BlockWriter(self, i, b).text() for i, b in enumerate(kernel.blocks))
        exec(compile(self.source, f"<simulated {kernel.name}>", "exec"), self.namespace)
        self.functions = [self.namespace[f"block_{i}"] for i in range(len(kernel.blocks))]

    def constant(self, value: int | float | bool, dtype: str) -> str:
        key = (repr(value), dtype)
        if key not in self.constants:
            name = f"c{len(self.constants)}"
            if dtype == "?":
                array = np.array([bool(value)])
            elif dtype[0] == "f":
                array = np.array([value], dtype)
            else:
                bits = 8 * SIZE[dtype]
                array = np.array([int(value) & ((1 << bits) - 1)], UNSIGNED[SIZE[dtype]]).view(dtype)
            array.flags.writeable = False
            self.constants[key] = name
            self.namespace[name] = array
        return self.constants[key]

    def where(self, loc: tuple[int, int]) -> int:
        if not self.lines or self.lines[-1] != loc:
            self.lines.append(loc)
        return len(self.lines) - 1


class BlockWriter:
    """Writes the Python of one block."""

    def __init__(self, program: Program, number: int, block: Block):
        self.p = program
        self.f: Function = program.kernel.function
        self.number = number
        self.block = block
        self.code: list[str] = []
        self.values: dict[str, dict[str, str]] = {}  # register -> dtype -> local variable
        self.written: list[str] = []
        self.addresses: dict[tuple[str, str], str] = {}  # (space, variable) -> prepared address
        self.count = 0

    # ---- the function's text
    def text(self) -> str:
        for instr in self.block.instrs:
            self.instr = instr
            handler = HANDLERS.get(instr.op)
            if handler is None:
                self.unsupported(instr)
            try:
                handler(self, instr)
            except (KeyError, IndexError, AttributeError, ValueError):
                # a form of a known opcode that the handler was not written for
                self.unsupported(instr)
        result = self.control()
        for reg in dict.fromkeys(self.written):
            if reg in self.block.live_out:
                self.emit(f"R[{reg!r}] = {self.read(Reg(reg), self.home(reg))}")
        body = [*self.code, f"return {result}"]
        return f"def block_{self.number}(R, g):\n" + "\n".join(f"    {line}" for line in body) + "\n"

    def control(self) -> str:
        """What the scheduler needs to know to go on: a predicate, an index, the barrier's operands."""
        instr = self.block.control
        if instr is None or self.block.kind in ("jump", "exit"):
            return "None"
        self.instr = instr
        if self.block.kind == "branch":
            return self.predicate(instr.guard)
        if self.block.kind == "switch":
            return self.read(instr.args[0], "u4")
        args = list(instr.args)
        if "red" in instr.mods:
            args.pop(0)
        value = "None"
        if "red" in instr.mods:
            value = self.predicate(args.pop())
        barrier = self.read(args[0], "u4") if args else self.p.constant(0, "u4")
        threads = self.read(args[1], "u4") if len(args) > 1 else "None"
        return f"({barrier}, {threads}, {value})"

    def unsupported(self, instr: Instr):
        line = f"line {instr.loc[1]}" if instr.loc[1] else "no source line"
        raise SimulatorUnsupported(
            f"the PTX instruction '{instr.text}' in kernel {self.p.kernel.name} ({line})"
        )

    # ---- values
    def emit(self, line: str) -> None:
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
        if reg == "%CC":
            return "?"
        kind = register_type(self.f, reg)
        return REGISTER.get(kind) or DTYPE[kind]

    def read(self, arg, dtype: str) -> str:
        """An expression for an operand's bits seen as `dtype` (the low ones if the register is wider)."""
        if isinstance(arg, Imm):
            if dtype in ("f2", "f4", "f8") or isinstance(arg.value, int):
                return self.p.constant(arg.value, dtype)
            bits = np.array([arg.value], "f8" if dtype in ("u8", "i8") else "f4").view(
                UNSIGNED[max(SIZE[dtype], 4)]
            )
            return self.p.constant(int(bits[0]), dtype)
        if isinstance(arg, Sym):
            return self.p.constant(self.symbol(arg), dtype)
        if isinstance(arg, Not):
            return f"~{self.read(arg.reg, '?')}"
        if isinstance(arg, Vec):
            return self.joined(arg, dtype)
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
            self.unsupported(self.instr)
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
            parts = [self.fresh(f"ops.join({a}, {b}, {kind}, {WIDER[kind]})") for a, b in zip(parts[::2], parts[1::2], strict=True)]  # fmt: skip
            kind = WIDER[kind]
        return parts[0] if kind == dtype else f"{parts[0]}.view({dtype})"

    def symbol(self, sym: Sym) -> int:
        if sym.name not in self.p.symbols:
            raise SimulatorUnsupported(f"the symbol {sym.name}")
        return self.p.symbols[sym.name] + sym.offset

    def special(self, name: str, dtype: str) -> str:
        base, _, axis = name[1:].partition(".")
        if base in ("clock", "clock64", "clock_hi", "globaltimer", "globaltimer_lo", "globaltimer_hi"):
            raise SimulatorUnsupported(f"%{base}: the simulator has no time")
        expr = self.fresh(f"g.special({base!r}, {axis!r})")
        return expr if dtype == "u4" else self.fresh(f"{expr}.astype({UNSIGNED[SIZE[dtype]]}).view({dtype})")

    def predicate(self, arg) -> str:
        if isinstance(arg, Not):
            return self.fresh(f"~{self.read(arg.reg, '?')}")
        return self.read(arg, "?")

    def write(self, arg, dtype: str, expr: str) -> None:
        """Give a register a new value; an integer narrower than the register is extended by its sign."""
        if isinstance(arg, Vec):
            self.scattered(arg, dtype, expr)
            return
        if isinstance(arg, Pair):
            arg = arg.first
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
            expr, dtype = (
                f"({expr}).view({UNSIGNED[SIZE[dtype]]}).astype({UNSIGNED[SIZE[home]]})",
                UNSIGNED[SIZE[home]],
            )
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

    def type(self, instr: Instr) -> str:
        return instr.mods[-1]

    # ---- memory
    def address(self, space: str, mem: Mem) -> tuple[str, int]:
        """A prepared address (shared by all accesses through this register in the block) and a byte offset."""
        if isinstance(mem.base, Sym):
            space = self.p.spaces.get(mem.base.name, space)
            variable, offset = self.p.constant(self.symbol(mem.base), "u8"), mem.offset
        elif isinstance(mem.base, Imm):
            variable, offset = self.p.constant(int(mem.base.value), "u8"), mem.offset
        else:
            wide = SIZE[self.home(mem.base.name)] == 8
            variable, offset = self.read(mem.base, "u8" if wide else "u4"), mem.offset
        space = "global" if space == "const" else space
        if (space, variable) not in self.addresses:
            self.addresses[space, variable] = self.fresh(f"memory.{space}_address(g, {variable})")
        return self.addresses[space, variable], offset

    def where(self) -> int:
        return self.p.where(self.instr.loc)


def space_of(instr: Instr) -> str:
    for mod in instr.mods:
        base = mod.split("__")[0]
        if base in SPACES:
            return base
    return "generic"


def vector_of(instr: Instr) -> int:
    return 4 if "v4" in instr.mods else 2 if "v2" in instr.mods else 8 if "v8" in instr.mods else 1


def translate(kernel: Kernel, symbols: dict[str, int], spaces: dict[str, str]) -> Program:
    """Translate a kernel. Raises SimulatorUnsupported naming the first instruction it does not know."""
    return Program(kernel, symbols, spaces)


from common.simt import instructions  # noqa: E402, F401 (fills HANDLERS)
