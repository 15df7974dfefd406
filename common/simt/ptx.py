"""Parser: the text of a PTX module -> functions made of instructions, and module variables.

Only what a compiler emits (and what inline assembly in CUDA C++ adds) is understood: statements end with ';',
`.loc` lines carry source positions, braces open scopes whose registers are renamed apart.
Reference: NVIDIA, "Parallel Thread Execution ISA", chapters 4 and 5.
"""

import re
import struct
from dataclasses import dataclass, field

from common.simt.errors import SimulatorUnsupported, UnknownForm

TYPE_BYTES = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "b32": 4, "u32": 4,
    "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16,
}  # fmt: skip


@dataclass(frozen=True)
class Reg:
    """A register (special registers such as %tid.x included)."""

    name: str


@dataclass(frozen=True)
class Imm:
    """A constant: an int, or a float already decoded from its 0f/0d form."""

    value: int | float


@dataclass(frozen=True)
class Sym:
    """The address of a variable, a label or a function, plus a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Mem:
    """[base + offset]; the base is a register, a variable or an absolute address."""

    base: Reg | Sym | Imm
    offset: int = 0


@dataclass(frozen=True)
class Vec:
    """{a, b, ...}"""

    items: tuple


@dataclass(frozen=True)
class Pair:
    """d|p: a result and the predicate that comes with it."""

    first: Reg
    second: Reg


@dataclass(frozen=True)
class Not:
    """!p"""

    reg: Reg


@dataclass(frozen=True)
class Other:
    """An operand of a kind that no instruction with a translation has, e.g. a texture's [handle, {coordinates}]."""

    text: str

    def __str__(self) -> str:
        return self.text


Operand = Reg | Imm | Sym | Mem | Vec | Pair | Not | Other


@dataclass
class Instr:
    """One instruction: `@guard op.mod1.mod2 operands`, and the source position (file, line) it came from."""

    op: str
    mods: tuple[str, ...]  # with '::' spelled '__', e.g. shared__cta
    args: list  # of Operand
    guard: Reg | Not | None = None
    loc: tuple[int, int] = (0, 0)
    text: str = ""


@dataclass
class Label:
    """A place that branches name."""

    name: str


@dataclass
class Variable:
    """A module, shared, local or param variable: its space, alignment, size in bytes and initial bytes."""

    name: str
    space: str
    align: int
    size: int
    init: list = field(default_factory=list)  # (byte offset, bytes) or (byte offset, (symbol, addend))


@dataclass
class Function:
    """A kernel (an entry) or a device function."""

    name: str
    is_entry: bool
    params: list[Variable] = field(default_factory=list)
    returns: list[Variable] = field(default_factory=list)
    regs: dict[str, str] = field(default_factory=dict)  # name -> type; '%r<>' for the family %r0, %r1, ...
    variables: dict[str, Variable] = field(default_factory=dict)  # shared and local
    body: list = field(default_factory=list)  # of Instr and Label
    targets: dict[str, list[str]] = field(default_factory=dict)  # brx.idx tables
    max_threads: int | None = None


@dataclass
class Module:
    """A parsed PTX module."""

    functions: dict[str, Function]
    variables: dict[str, Variable]


_VARIABLE = re.compile(
    r"(?:\.(?:visible|extern|weak|common)\s+)*\.(global|const|shared|local|param)\s+(?:\.attribute\([^)]*\)\s*)?"
    r"(?:\.align\s+(\d+)\s+)?\.(?:v([24])\s+\.)?(\w+)\s+"
    r"(?:\.ptr[^%\w$]*(?:\.\w+\s+)*(?:\.align\s+\d+\s+)?)?([\w$%]+)((?:\[\d*\])*)"
    r"(?:\s*=\s*(.*))?$",
    re.S,
)
_NUMBER = re.compile(r"^-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)[uU]?$")


def _number(text: str) -> int | float:
    """A literal: decimal, hexadecimal, binary, or a float as the hexadecimal of its bits (0f3F800000)."""
    if text[:2] in ("0f", "0F"):
        return struct.unpack("<f", int(text[2:], 16).to_bytes(4, "little"))[0]
    if text[:2] in ("0d", "0D"):
        return struct.unpack("<d", int(text[2:], 16).to_bytes(8, "little"))[0]
    if _NUMBER.match(text):
        return int(text.rstrip("uU"), 0)
    return float(text)


def _split(text: str) -> list[str]:
    """Split at the commas that stand outside every bracket."""
    parts, depth, start = [], 0, 0
    for i, ch in enumerate(text):
        if ch in "{[(":
            depth += 1
        elif ch in "}])":
            depth -= 1
        elif ch == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    tail = text[start:].strip()
    return [*parts, tail] if tail else parts


def _initial(text: str, element: int) -> list:
    """The initialiser of a variable as (byte offset, bytes or (symbol, addend)) pieces."""
    items = _split(text.strip().strip("{}")) if text.strip().startswith("{") else [text.strip()]
    pieces: list = []
    for i, item in enumerate(items):
        while item.startswith("{"):
            item = item[1:-1].strip()
        if re.match(r"0xFF0*\(.*\)$", item):  # one byte of an address: 0xFF00(symbol)
            raise SimulatorUnsupported("an initialiser that stores an address byte by byte")
        generic = re.match(r"generic\((.*)\)(?:\s*\+\s*(\d+))?$", item)
        if generic:
            pieces.append((i * element, (generic[1], int(generic[2] or 0))))
        elif re.match(r"^[A-Za-z_$%]", item):
            name, _, addend = item.partition("+")
            pieces.append((i * element, (name.strip(), int(addend or 0))))
        else:
            value = _number(item)
            if isinstance(value, float):
                data = struct.pack("<f" if element == 4 else "<d", value)
            else:
                data = (value & ((1 << 8 * element) - 1)).to_bytes(element, "little")
            pieces.append((i * element, data))
    return pieces


def _variable(text: str) -> Variable:
    match = _VARIABLE.match(text.strip())
    if not match:
        raise SimulatorUnsupported(f"this PTX declaration: {text.strip()[:120]}")
    space, align, vector, dtype, name, dims, init = match.groups()
    element = TYPE_BYTES.get(dtype)
    if element is None:
        raise SimulatorUnsupported(f"PTX variables of type .{dtype}")
    size = element * int(vector or 1)
    for dim in re.findall(r"\[(\d*)\]", dims):
        size *= int(dim or 0)
    return Variable(name, space, int(align or size or element), size, _initial(init, element) if init else [])


class _BodyParser:
    """Parses the statements between a function's braces."""

    def __init__(self, function: Function):
        self.f = function
        self.scopes: list[dict[str, str]] = [{}]  # innermost last: name in the text -> unique name
        self.counter = 0
        self.loc = (0, 0)  # of the last .loc line: file, line

    def name(self, text: str) -> str:
        """The unique name of what a name means in this scope."""
        for scope in reversed(self.scopes):
            if text in scope:
                return scope[text]
        return text

    def declare(self, text: str) -> str:
        """Names of inner scopes get a number, so that two inline-asm blocks do not share a register."""
        if len(self.scopes) == 1:
            return text
        self.counter += 1
        renamed = f"{text}.{self.counter}"
        self.scopes[-1][text] = renamed
        return renamed

    def statement(self, text: str) -> None:
        """Parse one statement (without its ';') and the labels before it."""
        while match := re.match(r"^([\w$]+):(?!:)\s*", text):
            label, text = match[1], text[match.end() :]
            table = re.match(r"^\.branchtargets\s+(.*)$", text, re.S)
            if table:
                self.f.targets[label] = [self.name(t) for t in _split(table[1])]
                return
            self.f.body.append(Label(self.name(label)))
        if not text:
            return
        if text.startswith(".reg"):
            self.registers(text)
        elif text.startswith((".shared", ".local", ".param", ".extern", ".const", ".global", ".align")):
            variable = _variable(text)
            variable.name = self.declare(variable.name)
            self.f.variables[variable.name] = variable
        elif text.startswith("."):
            if ".callprototype" in text:
                raise SimulatorUnsupported("indirect function calls")
            # .pragma and the like only steer ptxas
        else:
            self.instruction(text)

    def registers(self, text: str) -> None:
        """A .reg declaration."""
        match = re.match(r"\.reg\s*\.(\w+)\s+(.*)$", text, re.S)
        if not match:
            raise SimulatorUnsupported(f"this register declaration: {text}")
        for name in _split(match[2]):
            many = re.match(r"([\w$%]+)<(\d+)>$", name)
            if many and len(self.scopes) == 1:
                # %r<9> declares %r0 ... %r8; typed when first met (thousands of them are never used)
                self.f.regs[f"{many[1]}<>"] = match[1]
            elif many:
                for i in range(int(many[2])):
                    self.f.regs[self.declare(f"{many[1]}{i}")] = match[1]
            else:
                self.f.regs[self.declare(name)] = match[1]

    def operand(self, text: str) -> Operand:
        """One operand. What no translated instruction takes becomes an Other."""
        text = text.strip()
        if text[0] == "{":
            return Vec(tuple(self.operand(t) for t in _split(text[1:-1])))
        if text[0] == "[":
            inner = text[1:-1].strip()
            if "," in inner:
                return Other(text)
            match = re.match(r"^([^+\s]+)\s*\+\s*(-?\w+)$", inner)
            base, offset = (match[1], int(match[2], 0)) if match else (inner, 0)
            value = self.operand(base)
            if isinstance(value, Sym):
                return Mem(Sym(value.name), value.offset + offset)
            return Mem(value, offset) if isinstance(value, Reg | Imm) else Other(text)
        if text[0] == "(":
            return Vec(tuple(self.operand(t) for t in _split(text[1:-1])))
        if text[0] == "!":
            return Not(Reg(self.name(text[1:].strip())))
        if "|" in text:
            first, second = (Reg(self.name(part.strip())) for part in text.split("|"))
            return Pair(first, second)
        if text[0] == "%" or self.name(text) in self.f.regs or text == "_":
            return Reg(self.name(text))
        if re.match(r"^-?[\d]", text):
            return Imm(_number(text))
        if text == "WARP_SZ":
            return Imm(32)
        match = re.match(r"^([\w$.]+)\s*\+\s*(\d+)$", text)
        return Sym(self.name(match[1]), int(match[2])) if match else Sym(self.name(text))

    def instruction(self, text: str) -> None:
        """`@guard op.mods operands`"""
        guard: Reg | Not | None = None
        if text[0] == "@":
            name, text = text[1:].split(None, 1)
            register = Reg(self.name(name.lstrip("!")))
            guard = Not(register) if name[0] == "!" else register
        head, _, rest = text.partition(" ") if " " in text else text.partition("\t")
        head = head.strip()
        parts = head.replace("::", "__").split(".")
        try:
            args = [self.operand(t) for t in _split(rest.strip())] if rest.strip() else []
        except SimulatorUnsupported:  # the translator names it, if a kernel that is used contains it
            self.f.body.append(Instr("unreadable", (), [], guard, self.loc, text))
            return
        self.f.body.append(Instr(parts[0], tuple(parts[1:]), args, guard, self.loc, text))


def _strip_comments(text: str) -> str:
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)\s+\d+(?:.*inlined_at\s+(\d+)\s+(\d+))?")


def _parse_body(function: Function, body: str) -> None:
    """Cut the text between a function's braces into statements and parse each."""
    parser = _BodyParser(function)
    pending = ""  # text of the statement under construction
    depth = 0  # of vector braces inside it
    for line in body.split("\n"):
        loc = _LOC.match(line)
        if loc:
            # code inlined from a header is reported where the reader's file called it
            if loc[3] is None or int(loc[1]) == 1:
                parser.loc = (int(loc[1]), int(loc[2]))
            elif int(loc[3]) == 1:
                parser.loc = (int(loc[3]), int(loc[4]))
            continue
        for ch in line + " ":
            if ch == ";":
                parser.statement(" ".join(pending.split()))
                pending = ""
            elif ch == "{" and not _in_statement(pending):
                if pending.strip():
                    parser.statement(" ".join(pending.split()))
                    pending = ""
                parser.scopes.append({})
            elif ch == "}" and not pending.strip() and depth == 0:
                parser.scopes.pop()
            else:
                depth += (ch == "{") - (ch == "}")
                pending += ch


def _in_statement(pending: str) -> bool:
    """True where a '{' is part of an operand, False where it opens a scope (possibly after a label)."""
    text = pending.strip()
    return bool(text) and not re.match(r"^[\w$]+:$", text)


def _matching_brace(text: str, start: int) -> int:
    """Where the brace that opens at `start` closes."""
    depth = 0
    for i in range(start, len(text)):
        if text[i] == "{":
            depth += 1
        elif text[i] == "}":
            depth -= 1
            if depth == 0:
                return i
    raise SimulatorUnsupported("PTX with unbalanced braces")


_HEAD = re.compile(r"((?:\.(?:visible|weak|extern)\s+)*)\.(entry|func)\b")


def _function(header: str, body: str | None) -> Function:
    """A function from the text before its brace and the text inside (None for a mere declaration)."""
    match = _HEAD.match(header.strip())
    assert match
    rest = header.strip()[match.end() :].strip()
    returns = ""
    if match[2] == "func" and rest.startswith("("):
        end = rest.index(")")
        returns, rest = rest[1:end], rest[end + 1 :].strip()
    name_match = re.match(r"([\w$]+)\s*(?:\(([^)]*)\))?(.*)$", rest, re.S)
    assert name_match
    name, params, tail = name_match.groups()
    function = Function(name, match[2] == "entry")
    function.params = [_variable(p) for p in _split(params or "")]
    function.returns = [_variable(p) for p in _split(returns)]
    limit = re.search(r"\.(?:maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", tail)
    if limit:
        function.max_threads = int(limit[1]) * int(limit[2] or 1) * int(limit[3] or 1)
    if body is not None:
        _parse_body(function, body)
    return function


def parse(text: str) -> Module:
    """Parse a whole PTX module. Raises SimulatorUnsupported for a construct it does not know."""
    text = re.sub(r"^\s*\.section\s+\.debug\w*\s*\{.*?^\s*\}", "", text, flags=re.S | re.M)
    text = re.sub(r"^\s*\.(file|version|target|address_size)\b[^\n]*", "", text, flags=re.M)
    text = _strip_comments(text)
    module = Module({}, {})
    position = 0
    while match := re.compile(r"\S").search(text, position):
        position = match.start()
        end, brace = text.find(";", position), text.find("{", position)
        head = _HEAD.match(text, position)
        if head and brace != -1 and (end == -1 or brace < end):
            close = _matching_brace(text, brace)
            function = _function(text[position:brace], text[brace + 1 : close])
            module.functions[function.name] = function
            position = close + 1
        elif end == -1:
            raise SimulatorUnsupported(f"this PTX text: {text[position : position + 80]!r}")
        else:
            statement = text[position:end]
            if head:
                function = _function(statement, None)
                module.functions.setdefault(function.name, function)
            elif not statement.lstrip().startswith((".pragma", ".alias")):
                variable = _variable(statement)
                module.variables[variable.name] = variable
            position = end + 1
    return module


def register_type(function: Function, name: str) -> str:
    """The declared PTX type of a register, e.g. 'f32' for %f7 after `.reg .f32 %f<9>`. Raises UnknownForm."""
    known = function.regs.get(name)
    if known is None:
        family = re.match(r"^(.*?)\d+$", name)
        known = function.regs.get(f"{family[1]}<>") if family else None
        if known is None:
            raise UnknownForm(f"the register {name}")
        function.regs[name] = known
    return known
