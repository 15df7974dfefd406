"""Moves, conversions, integer arithmetic, logic, comparison and selection.

One handler for each family of opcodes: it writes, into the block that `w` collects, the NumPy expression of what
the instruction `i` does. Reference: NVIDIA, "Parallel Thread Execution ISA", chapter 9.
"""

from common.simt.errors import UnknownForm
from common.simt.instructions_float import SMALL_FLOATS, floating, fused, small
from common.simt.ptx import Imm, Instr, Pair, Reg, Vec
from common.simt.writer import (
    DTYPE,
    SIZE,
    UNSIGNED,
    WIDER,
    BlockWriter,
    handles,
    modifier,
    refuse,
    space_of,
    type_of,
)

FLOATS = ("f16", "bf16", "f32", "f64")
ROUNDINGS = ("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rna")
LOGIC = {"and": "&", "or": "|", "xor": "^"}
COMPARE = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">=",
}  # fmt: skip
TESTS = {*COMPARE, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"}
ONES = {"f16": 0x3C00, "f16x2": 0x3C00, "bf16": 0x3F80, "bf16x2": 0x3F80}  # the bits of 1.0


# ---- moves and conversions -------------------------------------------------------------------------------------------
@handles("mov")
def move(w: BlockWriter, i: Instr) -> None:
    target, source = i.args
    dtype = DTYPE[type_of(i)]
    if isinstance(target, Vec) and isinstance(source, Vec):
        raise UnknownForm("a vector on both sides")
    if dtype == "u2" and isinstance(source, Imm) and isinstance(source.value, float):
        raise UnknownForm("a float constant in 16 bits")
    w.write(target, dtype, w.read(source, dtype))


@handles("movs")
def move_parameters(w: BlockWriter, i: Instr) -> None:
    """The parameters of an inlined call (cfg.py makes this opcode): pairs of destination and source."""
    dtype = DTYPE[type_of(i)]
    values = [w.fresh(w.read(source, dtype)) for source in i.args[1::2]]
    for target, value in zip(i.args[0::2], values, strict=True):
        w.write(target, dtype, value)


@handles("cvta")
def convert_address(w: BlockWriter, i: Instr) -> None:
    value = w.read(i.args[1], "u8")
    window = {"shared": "SHARED_WINDOW", "local": "LOCAL_WINDOW", "param": "PARAM_WINDOW"}.get(space_of(i))
    if window is None:  # global and constant addresses are generic addresses
        w.write(i.args[0], "u8", value)
    else:
        sign = "-" if "to" in i.mods else "+"
        w.write(i.args[0], "u8", f"({value} {sign} u8.type(memory.{window}))")


@handles("isspacep")
def is_space(w: BlockWriter, i: Instr) -> None:
    value = w.read(i.args[1], "u8")
    window = {"shared": 1, "local": 2, "param": 3}.get(space_of(i), 0)
    w.write(i.args[0], "?", f"({value} >> u8.type(memory.WINDOW_SHIFT)) == {window}")


@handles("cvt")
def convert(w: BlockWriter, i: Instr) -> None:
    target, source = i.mods[-2:]
    refuse(i, "relu", "satfinite", "pack")
    mode = modifier(i, ROUNDINGS, "")
    if target in ("f16x2", "bf16x2") and source == "f32":
        high, low = (w.read(a, "f4") for a in i.args[1:3])
        half = "ops.to_half" if target == "f16x2" else "ops.to_bf16"
        a, b = w.fresh(f"{half}({high}, {mode!r})"), w.fresh(f"{half}({low}, {mode!r})")
        w.write(i.args[0], "u4", f"ops.join({b}, {a}, u2, u4)")
        return
    if target == "tf32":
        if mode != "rna":
            raise UnknownForm(f"rounding .{mode} to tf32")
        w.write(i.args[0], "f4", f"ops.tf32({w.read(i.args[1], 'f4')})")
        return
    if source == "bf16":
        value = w.fresh(f"ops.bf16_to_float({w.read(i.args[1], 'u2')})")
    else:
        value = w.read(i.args[1], DTYPE[source])
    from_float, to_float = source in FLOATS, target in FLOATS
    if "ftz" in i.mods and source == "f32":
        value = f"ops.flush({value})"
    if from_float and to_float:
        expr = _float_to_float(
            f"{value}.astype(f4)" if (source, target) == ("f16", "bf16") else value, source, target, mode
        )
        if "ftz" in i.mods and target == "f32":
            expr = f"ops.flush({expr})"
    elif from_float:
        expr = f"ops.to_integer({value}, {mode or 'rzi'!r}, {DTYPE[target]})"
    elif to_float:
        expr = {
            "f16": f"ops.to_half({value}.astype(f8), {mode!r})",
            "bf16": f"ops.to_bf16(ops.integer_to_odd({value}), {mode!r})",
        }.get(target, f"ops.from_integer({value}, {mode!r}, {DTYPE[target]})")
    elif "sat" in i.mods:
        info = f"np.iinfo({DTYPE[target]})"
        expr = f"np.clip({value}, {info}.min, {info}.max).astype({DTYPE[target]})"
    else:
        expr = f"{value}.astype({DTYPE[target]})"
    if "sat" in i.mods and to_float:
        if target in ("f16", "bf16"):
            raise UnknownForm("the modifier .sat")
        expr = f"ops.saturate({expr})"
    w.write(i.args[0], "u2" if target in ("f16", "bf16") else DTYPE[target], expr)


def _float_to_float(value: str, source: str, target: str, mode: str) -> str:
    integer = {"rni": "np.rint", "rzi": "np.trunc", "rmi": "np.floor", "rpi": "np.ceil"}.get(mode)
    if integer:
        value = f"{integer}({value})"
    directed = mode in ("rz", "rm", "rp")
    if target in ("f16", "bf16"):
        function = "ops.to_half" if target == "f16" else "ops.to_bf16"
        return f"{function}({value}, {mode if directed else 'rn'!r})"
    if directed and SIZE[DTYPE[target]] < SIZE[DTYPE[source]]:
        return f"ops.directed({value}, {mode!r}, {DTYPE[target]})"
    return f"{value}.astype({DTYPE[target]})"


# ---- integer and logic -----------------------------------------------------------------------------------------------
@handles("add", "sub", "mul")
def arithmetic(w: BlockWriter, i: Instr) -> None:
    kind = type_of(i)
    symbol = {"add": "+", "sub": "-", "mul": "*"}[i.op]
    if kind[0] in "fb":
        floating(w, i, symbol)
        return
    dtype = DTYPE[kind]
    if i.op == "mul" and "wide" in i.mods:
        w.write(i.args[0], WIDER[dtype], _wide_product(w, i, dtype))
        return
    if i.op == "mul" and "hi" in i.mods:
        w.write(i.args[0], dtype, "ops.mulhi({}, {})".format(*w.two(i, dtype)))
    elif "sat" in i.mods:
        w.write(i.args[0], dtype, "ops.saturating({}, {}, {})".format(*w.two(i, dtype), i.op == "sub"))
    else:
        unsigned = UNSIGNED[SIZE[dtype]]  # wraps around alike, signed or not
        a, b = w.two(i, unsigned)
        result = w.fresh(f"{a} {symbol} {b}")
        if "cc" in i.mods:
            w.write(Reg("%CC"), "?", f"{result} < {a}" if i.op == "add" else f"{a} >= {b}")
        w.write(i.args[0], unsigned, result)


def _wide_product(w: BlockWriter, i: Instr, dtype: str) -> str:
    """The whole product of the first two sources, twice as wide as they are."""
    wide = WIDER[dtype]
    factors = []
    for arg in i.args[1:3]:
        if isinstance(arg, Imm):
            bits = 8 * SIZE[dtype]
            value = int(arg.value) & ((1 << bits) - 1)
            signed = value - (1 << bits) if dtype[0] == "i" and value >> (bits - 1) else value
            factors.append(w.read(Imm(signed), wide))
        else:
            factors.append(f"{w.read(arg, dtype)}.astype({wide})")
    return f"{factors[0]} * {factors[1]}"


@handles("addc", "subc")
def carry(w: BlockWriter, i: Instr) -> None:
    dtype = UNSIGNED[SIZE[DTYPE[type_of(i)]]]
    a, b = w.two(i, dtype)
    carried = w.fresh(f"{w.read(Reg('%CC'), '?')}.astype({dtype})")
    if i.op == "addc":
        first = w.fresh(f"{a} + {b}")
        result = w.fresh(f"{first} + {carried}")
        flag = f"({first} < {a}) | ({result} < {first})"
    else:  # %CC set means: no borrow
        result = w.fresh(f"{a} - {b} - ({dtype}.type(1) - {carried})")
        flag = f"({a} > {b}) | (({a} == {b}) & ({carried} == 1))"
    if "cc" in i.mods:
        w.write(Reg("%CC"), "?", flag)
    w.write(i.args[0], dtype, result)


@handles("mad", "madc")
def multiply_add(w: BlockWriter, i: Instr) -> None:
    kind = type_of(i)
    if kind in ("f32", "f64"):
        fused(w, i)
        return
    refuse(i, "sat")
    dtype = DTYPE[kind]
    if "wide" in i.mods:
        wide = WIDER[dtype]
        w.write(i.args[0], wide, f"{_wide_product(w, i, dtype)} + {w.read(i.args[3], wide)}")
        return
    unsigned = UNSIGNED[SIZE[dtype]]
    if "hi" in i.mods:
        a, b = w.two(i, dtype)
        product = f"ops.mulhi({a}, {b}).view({unsigned})"
    else:
        a, b = w.two(i, unsigned)
        product = f"{a} * {b}"
    c = w.read(i.args[3], unsigned)
    result = w.fresh(f"{product} + {c}")
    if i.op == "madc":
        carried = w.fresh(f"{w.read(Reg('%CC'), '?')}.astype({unsigned})")
        whole = w.fresh(f"{result} + {carried}")
        flag = f"({result} < {c}) | ({whole} < {result})"
        result = whole
    else:
        flag = f"{result} < {c}"
    if "cc" in i.mods:
        w.write(Reg("%CC"), "?", flag)
    w.write(i.args[0], unsigned, result)


@handles("div", "rem")
def division(w: BlockWriter, i: Instr) -> None:
    kind = type_of(i)
    if kind in ("f32", "f64"):
        floating(w, i, "/")
        return
    a, b = w.two(i, DTYPE[kind])
    w.write(i.args[0], DTYPE[kind], f"ops.{'divide' if i.op == 'div' else 'remainder'}({a}, {b})")


@handles("and", "or", "xor")
def logic(w: BlockWriter, i: Instr) -> None:
    dtype = DTYPE[type_of(i)]
    a, b = w.two(i, dtype)
    w.write(i.args[0], dtype, f"{a} {LOGIC[i.op]} {b}")


@handles("not", "cnot")
def invert(w: BlockWriter, i: Instr) -> None:
    dtype = DTYPE[type_of(i)]
    a = w.read(i.args[1], dtype)
    w.write(i.args[0], dtype, f"~{a}" if i.op == "not" else f"({a} == 0).astype({dtype})")


@handles("shl", "shr")
def shift(w: BlockWriter, i: Instr) -> None:
    dtype = DTYPE[type_of(i)]
    if i.op == "shl":
        dtype = UNSIGNED[SIZE[dtype]]
    a, amount = w.read(i.args[1], dtype), i.args[2]
    if isinstance(amount, Imm) and 0 <= amount.value < 8 * SIZE[dtype]:
        w.write(i.args[0], dtype, f"{a} {'<<' if i.op == 'shl' else '>>'} {dtype}.type({amount.value})")
    else:
        w.write(i.args[0], dtype, f"ops.{i.op}({a}, {w.read(amount, 'u4')})")


@handles("shf")
def funnel_shift(w: BlockWriter, i: Instr) -> None:
    low, high, amount = (w.read(a, "u4") for a in i.args[1:4])
    w.write(i.args[0], "u4", f"ops.funnel({low}, {high}, {amount}, {'l' in i.mods}, {'clamp' in i.mods})")


@handles("abs", "neg")
def sign(w: BlockWriter, i: Instr) -> None:
    kind = type_of(i)
    symbol = {"abs": "np.abs", "neg": "-"}[i.op]
    if kind in SMALL_FLOATS:  # the sign is a bit
        dtype = DTYPE[kind] if kind[-1] == "2" else "u2"
        mask = {"u2": 0x8000, "u4": 0x80008000}[dtype]
        a = w.read(i.args[1], dtype)
        expr = f"{a} & ~{dtype}.type({mask})" if i.op == "abs" else f"{a} ^ {dtype}.type({mask})"
        w.write(i.args[0], dtype, expr)
        return
    a = w.read(i.args[1], DTYPE[kind])
    a = f"ops.flush({a})" if "ftz" in i.mods else a
    w.write(i.args[0], DTYPE[kind], f"{symbol}({a})")


@handles("min", "max")
def extreme(w: BlockWriter, i: Instr) -> None:
    kind = type_of(i)
    refuse(i, "relu", "xorsign")
    name = {"min": "minimum", "max": "maximum"}[i.op]
    function = f"np.{name}" if kind[0] in "us" or "NaN" in i.mods else f"ops.{name}"
    if kind in SMALL_FLOATS:
        small(w, i, f"{function}({{0}}, {{1}})")
        return
    args = [w.read(a, DTYPE[kind]) for a in i.args[1:]]
    expr = f"{function}({args[0]}, {args[1]})"
    for extra in args[2:]:  # three-input form
        expr = f"{function}({expr}, {extra})"
    w.write(i.args[0], DTYPE[kind], f"ops.flush({expr})" if "ftz" in i.mods else expr)


@handles("sad")
def sum_of_differences(w: BlockWriter, i: Instr) -> None:
    dtype = DTYPE[type_of(i)]
    a, b = w.two(i, dtype)
    w.write(i.args[0], dtype, f"np.where({a} < {b}, {b} - {a}, {a} - {b}) + {w.read(i.args[3], dtype)}")


@handles("popc", "clz", "brev", "bfind")
def bits(w: BlockWriter, i: Instr) -> None:
    dtype = DTYPE[type_of(i)]
    a = w.read(i.args[1], dtype)
    if i.op == "bfind":
        w.write(i.args[0], "u4", f"ops.bfind({a}, {'shiftamt' in i.mods})")
    else:
        w.write(i.args[0], dtype if i.op == "brev" else "u4", f"ops.{i.op}({a})")


@handles("bfe")
def extract(w: BlockWriter, i: Instr) -> None:
    dtype = DTYPE[type_of(i)]
    a, position, length = w.read(i.args[1], dtype), w.read(i.args[2], "u4"), w.read(i.args[3], "u4")
    w.write(i.args[0], dtype, f"ops.bfe({a}, {position}, {length})")


@handles("bfi")
def insert(w: BlockWriter, i: Instr) -> None:
    dtype = DTYPE[type_of(i)]
    a, b = w.two(i, dtype)
    w.write(i.args[0], dtype, f"ops.bfi({a}, {b}, {w.read(i.args[3], 'u4')}, {w.read(i.args[4], 'u4')})")


@handles("prmt")
def permute(w: BlockWriter, i: Instr) -> None:
    mode = modifier(i, ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"), "")
    a, b, selector = (w.read(x, "u4") for x in i.args[1:4])
    w.write(i.args[0], "u4", f"ops.prmt({a}, {b}, {selector}, {mode!r})")


@handles("lop3")
def truth_table(w: BlockWriter, i: Instr) -> None:
    a, b, c = (w.read(x, "u4") for x in i.args[1:4])
    w.write(i.args[0], "u4", f"ops.lop3({a}, {b}, {c}, {int(i.args[4].value)})")


@handles("dp4a", "dp2a")
def dot(w: BlockWriter, i: Instr) -> None:
    a, b, c = (w.read(x, "u4") for x in i.args[1:4])
    signs = f"{i.mods[-2][0] == 's'}, {i.mods[-1][0] == 's'}"
    if i.op == "dp4a":
        w.write(i.args[0], "u4", f"ops.dot4({a}, {b}, {c}, {signs})")
    else:
        w.write(i.args[0], "u4", f"ops.dot2({a}, {b}, {c}, {signs}, {'hi' in i.mods})")


# ---- comparison and selection ----------------------------------------------------------------------------------------
def _compare(w: BlockWriter, i: Instr) -> str:
    """The test of a set or setp on its first two sources."""
    kind, test = type_of(i), modifier(i, TESTS)
    if kind in ("f16x2", "bf16x2"):
        unpack = "ops.halves" if kind == "f16x2" else "ops.bf16_pairs"
        a, b = (w.fresh(f"{unpack}({w.read(x, 'u4')})") for x in i.args[1:3])
    elif kind == "bf16":
        a, b = (w.fresh(f"ops.bf16_to_float({w.read(x, 'u2')})") for x in i.args[1:3])
    else:
        a, b = (w.read(x, DTYPE[kind]) for x in i.args[1:3])
    if "ftz" in i.mods:
        a, b = w.fresh(f"ops.flush({a})"), w.fresh(f"ops.flush({b})")
    if kind[0] not in "fb" or kind in ("b16", "b32", "b64"):
        return f"({a} {COMPARE[test]} {b})"
    if test == "num":
        return f"~(np.isnan({a}) | np.isnan({b}))"
    if test == "nan":
        return f"(np.isnan({a}) | np.isnan({b}))"
    if test == "ne":  # ordered: false for NaN
        return f"(({a} < {b}) | ({a} > {b}))"
    if test == "equ":
        return f"~(({a} < {b}) | ({a} > {b}))"
    if test == "neu":
        return f"({a} != {b})"
    if test[-1] == "u":  # unordered: true for NaN
        opposite = {"ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}[test]
        return f"~({a} {opposite} {b})"
    return f"({a} {COMPARE[test]} {b})"


def _combine(w: BlockWriter, i: Instr, expr: str) -> str:
    """A test combined with a third source, a predicate, where the instruction says so."""
    if len(i.args) < 4:
        return expr
    other = w.predicate(i.args[3])
    if type_of(i) in ("f16x2", "bf16x2"):  # the one predicate goes with both halves
        other = f"{other}[:, None]"
    return f"({expr} {LOGIC[modifier(i, LOGIC)]} {other})"


@handles("setp")
def set_predicate(w: BlockWriter, i: Instr) -> None:
    expr, target = _compare(w, i), i.args[0]
    if type_of(i) in ("f16x2", "bf16x2"):
        both = w.fresh(_combine(w, i, expr))
        w.write(target.first, "?", f"{both}[:, 0]")
        w.write(target.second, "?", f"{both}[:, 1]")
    elif isinstance(target, Pair):  # the second predicate gets the opposite test
        test = w.fresh(expr)
        w.write(target.first, "?", _combine(w, i, test))
        if target.second.name != "_":
            w.write(target.second, "?", _combine(w, i, f"~{test}"))
    else:
        w.write(target, "?", _combine(w, i, expr))


@handles("set")
def set_value(w: BlockWriter, i: Instr) -> None:
    kind = i.mods[-2]
    expr = _combine(w, i, _compare(w, i))
    if type_of(i) in ("f16x2", "bf16x2"):
        one = ONES.get(kind, 0xFFFF)
        w.write(i.args[0], "u4", f"np.where({expr}, u2.type({one}), u2.type(0)).view(u4).ravel()")
    elif kind in ("f16", "bf16"):
        w.write(i.args[0], "u2", f"np.where({expr}, u2.type({ONES[kind]}), u2.type(0))")
    elif kind == "f32":
        w.write(i.args[0], "f4", f"{expr}.astype(f4)")
    else:
        dtype = DTYPE[kind]
        w.write(i.args[0], dtype, f"np.where({expr}, ~{UNSIGNED[SIZE[dtype]]}.type(0), 0).astype({dtype})")


@handles("selp")
def select(w: BlockWriter, i: Instr) -> None:
    dtype = "u2" if type_of(i) == "f16" else DTYPE[type_of(i)]
    a, b = w.two(i, dtype)
    w.write(i.args[0], dtype, f"np.where({w.predicate(i.args[3])}, {a}, {b})")


@handles("slct")
def select_by_sign(w: BlockWriter, i: Instr) -> None:
    dtype = DTYPE[i.mods[-2]]
    a, b = w.two(i, dtype)
    w.write(i.args[0], dtype, f"np.where({w.read(i.args[3], DTYPE[type_of(i)])} >= 0, {a}, {b})")


@handles("testp")
def test_property(w: BlockWriter, i: Instr) -> None:
    a = w.read(i.args[1], DTYPE[type_of(i)])
    tiny = f"np.finfo({a}.dtype).tiny"
    expr = {
        "finite": f"np.isfinite({a})", "infinite": f"np.isinf({a})", "number": f"~np.isnan({a})",
        "notanumber": f"np.isnan({a})", "normal": f"(np.isfinite({a}) & (np.abs({a}) >= {tiny}))",
        "subnormal": f"((np.abs({a}) < {tiny}) & ({a} != 0))",
    }[i.mods[0]]  # fmt: skip
    w.write(i.args[0], "?", expr)


# ---- control ---------------------------------------------------------------------------------------------------------
@handles("trap")
def trap(w: BlockWriter, i: Instr) -> None:
    w.emit(f"g.trap({w.where()})")


@handles("assertfail")
def assertion(w: BlockWriter, i: Instr) -> None:
    """assert() that failed: message, file, line, function. The message is shown with the simulator's own position."""
    w.emit(f"g.assert_fail({w.read(i.args[0], 'u8')}, {w.where()})")


@handles("printf")
def printf(w: BlockWriter, i: Instr) -> None:
    result, form, arguments = i.args
    w.write(result, "u4", f"g.printf({w.read(form, 'u8')}, {w.read(arguments, 'u8')})")


@handles("nanosleep", "brkpt", "griddepcontrol")
def nothing(w: BlockWriter, i: Instr) -> None:
    """There is no time, no debugger and one kernel at once."""
