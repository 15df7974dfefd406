"""What each PTX instruction does, as the NumPy expression that the translator writes for it.

Reference: NVIDIA, "Parallel Thread Execution ISA", chapter 9. One handler for each family of opcodes.
"""

from common.simt.ptx import TYPE_BYTES, Imm, Instr, Mem, Pair, Reg, Sym, Vec
from common.simt.translate import DTYPE, SIZE, UNSIGNED, BlockWriter, handles, space_of, vector_of

ROUNDING = ("rz", "rm", "rp")


def rounding(instr: Instr) -> str:
    return next((m for m in instr.mods if m in ROUNDING), "rn")


# ---- moves and conversions ------------------------------------------------------------------------------------
@handles("mov", "movs")
def move(w: BlockWriter, i: Instr) -> None:
    kind = w.type(i)
    if i.op == "movs":  # parameters of an inlined call: pairs of destination and source
        values = [w.fresh(w.read(s, DTYPE[kind])) for s in i.args[1::2]]
        for target, value in zip(i.args[0::2], values, strict=True):
            w.write(target, DTYPE[kind], value)
        return
    target, source = i.args
    dtype = "f4" if kind == "f32" and isinstance(source, Imm) else "f8" if kind == "f64" else DTYPE[kind]
    if kind == "b128":
        raise ValueError
    if isinstance(target, Vec) and isinstance(source, Vec):
        raise ValueError
    if dtype == "u2" and isinstance(source, Imm) and isinstance(source.value, float):
        raise ValueError
    w.write(target, dtype, w.read(source, dtype))


@handles("cvta")
def convert_address(w: BlockWriter, i: Instr) -> None:
    space = space_of(i)
    value = w.read(i.args[1], "u8")
    window = {"shared": "SHARED_WINDOW", "local": "LOCAL_WINDOW", "param": "PARAM_WINDOW"}.get(space)
    if window is None:  # global and constant addresses are generic addresses
        w.write(i.args[0], "u8", value)
    else:
        sign = "-" if "to" in i.mods else "+"
        w.write(i.args[0], "u8", f"({value} {sign} u8.type(memory.{window}))")


@handles("isspacep")
def is_space(w: BlockWriter, i: Instr) -> None:
    value = w.read(i.args[1], "u8")
    window = {"shared": 1, "local": 2, "param": 3}.get(space_of(i), 0)
    w.write(i.args[0], "?", f"({value} >> u8.type(44)) == {window}")


@handles("cvt")
def convert(w: BlockWriter, i: Instr) -> None:
    target, source = i.mods[-2], i.mods[-1]
    mode = next((m for m in i.mods if m in ("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rna")), "")
    if target in ("f16x2", "bf16x2") and source == "f32":
        high, low = (w.read(a, "f4") for a in i.args[1:3])
        half = "ops.to_half" if target == "f16x2" else "ops.to_bf16"
        a, b = w.fresh(f"{half}({high}, {mode!r})"), w.fresh(f"{half}({low}, {mode!r})")
        w.write(i.args[0], "u4", f"ops.join({b}, {a}, u2, u4)")
        return
    if target == "tf32":
        w.write(i.args[0], "f4", f"ops.tf32({w.read(i.args[1], 'f4')})")
        return
    value = _source(w, i.args[1], source)
    from_float, to_float = source in ("f16", "bf16", "f32", "f64"), target in ("f16", "bf16", "f32", "f64")
    if "ftz" in i.mods and source == "f32":
        value = f"ops.flush({value})"
    if from_float and to_float:
        expr = _float_to_float(value, source, target, mode)
    elif from_float:
        expr = f"ops.to_integer({value}, {mode or 'rzi'!r}, {DTYPE[target]})"
    elif to_float:
        expr = {
            "f16": f"ops.from_integer({value}, {mode!r}, f2).view(u2)",
            "bf16": f"ops.to_bf16(ops.from_integer({value}, {mode!r}, f8), {mode!r})",
        }.get(target, f"ops.from_integer({value}, {mode!r}, {DTYPE[target]})")
    elif "sat" in i.mods:
        info = f"np.iinfo({DTYPE[target]})"
        expr = f"np.clip({value}, {info}.min, {info}.max).astype({DTYPE[target]})"
    else:
        expr = f"{value}.astype({DTYPE[target]})"
    if "sat" in i.mods and to_float and target in ("f32", "f64"):
        expr = f"ops.saturate({expr})"
    w.write(i.args[0], "u2" if target in ("f16", "bf16") else DTYPE[target], expr)


def _source(w: BlockWriter, arg, kind: str) -> str:
    if kind == "bf16":
        return w.fresh(f"ops.bf16_to_float({w.read(arg, 'u2')})")
    return w.read(arg, DTYPE[kind])


def _float_to_float(value: str, source: str, target: str, mode: str) -> str:
    integer = {"rni": "np.rint", "rzi": "np.trunc", "rmi": "np.floor", "rpi": "np.ceil"}.get(mode)
    if integer:
        value = f"{integer}({value})"
    if target == "f16":
        return f"ops.to_half({value}, {mode if mode in ROUNDING else 'rn'!r})"
    if target == "bf16":
        return f"ops.to_bf16({value}, {mode if mode in ROUNDING else 'rn'!r})"
    if mode in ROUNDING and SIZE[DTYPE[target]] < SIZE[DTYPE[source]]:
        return f"ops.directed({value}, {mode!r}, {DTYPE[target]})"
    return f"{value}.astype({DTYPE[target]})"


# ---- integer and logic ----------------------------------------------------------------------------------------
def two(w: BlockWriter, i: Instr, dtype: str) -> tuple[str, str]:
    return w.read(i.args[1], dtype), w.read(i.args[2], dtype)


@handles("add", "sub", "mul")
def arithmetic(w: BlockWriter, i: Instr) -> None:
    kind = w.type(i)
    symbol = {"add": "+", "sub": "-", "mul": "*"}[i.op]
    if kind[0] in "fb":
        floating(w, i, symbol)
        return
    dtype = DTYPE[kind]
    if i.op == "mul" and "wide" in i.mods:
        w.write(i.args[0], _wide(dtype), _wide_product(w, i, dtype))
        return
    if i.op == "mul" and "hi" in i.mods:
        w.write(i.args[0], dtype, "ops.mulhi({}, {})".format(*two(w, i, dtype)))
    elif "sat" in i.mods:
        w.write(i.args[0], dtype, "ops.saturating({}, {}, {})".format(*two(w, i, dtype), i.op == "sub"))
    else:
        unsigned = UNSIGNED[SIZE[dtype]]  # wraps around alike, signed or not
        a, b = two(w, i, unsigned)
        result = w.fresh(f"{a} {symbol} {b}")
        if "cc" in i.mods:
            w.write(Reg("%CC"), "?", f"{result} < {a}" if i.op == "add" else f"{a} >= {b}")
        w.write(i.args[0], unsigned, result)


def _wide(dtype: str) -> str:
    return {"i2": "i4", "u2": "u4", "i4": "i8", "u4": "u8"}[dtype]


def _wide_product(w: BlockWriter, i: Instr, dtype: str) -> str:
    factors = []
    for arg in i.args[1:3]:
        if isinstance(arg, Imm):
            bits = 8 * SIZE[dtype]
            value = int(arg.value) & ((1 << bits) - 1)
            signed = value - (1 << bits) if dtype[0] == "i" and value >> (bits - 1) else value
            factors.append(w.read(Imm(signed), _wide(dtype)))
        else:
            factors.append(f"{w.read(arg, dtype)}.astype({_wide(dtype)})")
    return f"{factors[0]} * {factors[1]}"


@handles("addc", "subc")
def carry(w: BlockWriter, i: Instr) -> None:
    dtype = UNSIGNED[SIZE[DTYPE[w.type(i)]]]
    a, b = two(w, i, dtype)
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


@handles("mad", "madc", "mul24", "mad24")
def multiply_add(w: BlockWriter, i: Instr) -> None:
    kind = w.type(i)
    if kind in ("f32", "f64"):
        fused(w, i)
        return
    if i.op in ("mul24", "mad24"):
        raise ValueError
    dtype = DTYPE[kind]
    if "wide" in i.mods:
        wide = _wide(dtype)
        w.write(i.args[0], wide, f"{_wide_product(w, i, dtype)} + {w.read(i.args[3], wide)}")
        return
    unsigned = UNSIGNED[SIZE[dtype]]
    if "hi" in i.mods:
        a, b = two(w, i, dtype)
        product = f"ops.mulhi({a}, {b}).view({unsigned})"
    else:
        a, b = two(w, i, unsigned)
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
    kind = w.type(i)
    if kind in ("f32", "f64"):
        floating(w, i, "/")
        return
    a, b = two(w, i, DTYPE[kind])
    w.write(i.args[0], DTYPE[kind], f"ops.{'divide' if i.op == 'div' else 'remainder'}({a}, {b})")


@handles("and", "or", "xor")
def logic(w: BlockWriter, i: Instr) -> None:
    dtype = DTYPE[w.type(i)]
    a, b = two(w, i, dtype)
    w.write(i.args[0], dtype, f"{a} {dict(zip(('and', 'or', 'xor'), '&|^', strict=True))[i.op]} {b}")


@handles("not", "cnot")
def invert(w: BlockWriter, i: Instr) -> None:
    dtype = DTYPE[w.type(i)]
    a = w.read(i.args[1], dtype)
    w.write(i.args[0], dtype, f"~{a}" if i.op == "not" else f"({a} == 0).astype({dtype})")


@handles("shl", "shr")
def shift(w: BlockWriter, i: Instr) -> None:
    dtype = DTYPE[w.type(i)]
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
    kind = w.type(i)
    symbol = {"abs": "np.abs", "neg": "-"}[i.op]
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):  # the sign is a bit
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
    kind = w.type(i)
    name = {"min": "minimum", "max": "maximum"}[i.op]
    function = f"np.{name}" if kind[0] in "us" or "NaN" in i.mods else f"ops.{name}"
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        small(w, i, f"{function}({{0}}, {{1}})")
        return
    args = [w.read(a, DTYPE[kind]) for a in i.args[1:]]
    expr = f"{function}({args[0]}, {args[1]})"
    for extra in args[2:]:  # three-input form
        expr = f"{function}({expr}, {extra})"
    w.write(i.args[0], DTYPE[kind], f"ops.flush({expr})" if "ftz" in i.mods else expr)


@handles("sad")
def sum_of_differences(w: BlockWriter, i: Instr) -> None:
    dtype = DTYPE[w.type(i)]
    a, b = two(w, i, dtype)
    w.write(i.args[0], dtype, f"np.where({a} < {b}, {b} - {a}, {a} - {b}) + {w.read(i.args[3], dtype)}")


@handles("popc", "clz", "brev", "bfind")
def bits(w: BlockWriter, i: Instr) -> None:
    dtype = DTYPE[w.type(i)]
    a = w.read(i.args[1], dtype)
    if i.op == "bfind":
        w.write(i.args[0], "u4", f"ops.bfind({a}, {'shiftamt' in i.mods})")
    else:
        w.write(i.args[0], dtype if i.op == "brev" else "u4", f"ops.{i.op}({a})")


@handles("bfe")
def extract(w: BlockWriter, i: Instr) -> None:
    dtype = DTYPE[w.type(i)]
    w.write(i.args[0], dtype, f"ops.bfe({w.read(i.args[1], dtype)}, {w.read(i.args[2], 'u4')}, {w.read(i.args[3], 'u4')})")  # fmt: skip


@handles("bfi")
def insert(w: BlockWriter, i: Instr) -> None:
    dtype = DTYPE[w.type(i)]
    a, b = two(w, i, dtype)
    w.write(i.args[0], dtype, f"ops.bfi({a}, {b}, {w.read(i.args[3], 'u4')}, {w.read(i.args[4], 'u4')})")


@handles("prmt")
def permute(w: BlockWriter, i: Instr) -> None:
    mode = next((m for m in i.mods if m in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")), "")
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
    call = f"ops.dot4({a}, {b}, {c}, {signs})" if i.op == "dp4a" else f"ops.dot2({a}, {b}, {c}, {signs}, {'hi' in i.mods})"  # fmt: skip
    w.write(i.args[0], "u4", call)


# ---- comparison and selection ---------------------------------------------------------------------------------
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}  # fmt: skip


def comparison(w: BlockWriter, i: Instr, kind: str, test: str, first: int) -> str:
    if kind in ("f16x2", "bf16x2"):
        unpack = "ops.halves" if kind == "f16x2" else "ops.bf16_pairs"
        a, b = (w.fresh(f"{unpack}({w.read(x, 'u4')})") for x in i.args[first : first + 2])
    elif kind == "bf16":
        a, b = (w.fresh(f"ops.bf16_to_float({w.read(x, 'u2')})") for x in i.args[first : first + 2])
    else:
        a, b = (w.read(x, DTYPE[kind]) for x in i.args[first : first + 2])
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


def _compare(w: BlockWriter, i: Instr) -> str:
    """The comparison of a set or setp, combined with a third predicate where there is one."""
    tests = set(COMPARE) | {"equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"}
    test = next(m for m in i.mods if m in tests)
    expr = comparison(w, i, w.type(i), test, 1)
    combine = next((m for m in i.mods if m in ("and", "or", "xor")), None)
    if combine and len(i.args) > 3:
        other = w.predicate(i.args[3])
        expr = f"({expr} {dict(zip(('and', 'or', 'xor'), '&|^', strict=True))[combine]} {other})"
    return expr


@handles("setp")
def set_predicate(w: BlockWriter, i: Instr) -> None:
    expr = _compare(w, i)
    target = i.args[0]
    if w.type(i) in ("f16x2", "bf16x2"):
        both = w.fresh(expr)
        w.write(target.first, "?", f"{both}[:, 0]")
        w.write(target.second, "?", f"{both}[:, 1]")
    elif isinstance(target, Pair):
        value = w.fresh(expr)
        w.write(target.first, "?", value)
        if target.second.name != "_":
            w.write(target.second, "?", f"~{value}")
    else:
        w.write(target, "?", expr)


@handles("set")
def set_value(w: BlockWriter, i: Instr) -> None:
    kind = i.mods[-2]
    expr = _compare(w, i)
    if w.type(i) in ("f16x2", "bf16x2"):
        one = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(kind, 0xFFFF)
        w.write(i.args[0], "u4", f"np.where({expr}, u2.type({one}), u2.type(0)).view(u4).ravel()")
    elif kind in ("f16", "bf16"):
        w.write(
            i.args[0], "u2", f"np.where({expr}, u2.type({0x3C00 if kind == 'f16' else 0x3F80}), u2.type(0))"
        )
    elif kind == "f32":
        w.write(i.args[0], "f4", f"{expr}.astype(f4)")
    else:
        w.write(i.args[0], DTYPE[kind], f"np.where({expr}, ~{UNSIGNED[SIZE[DTYPE[kind]]]}.type(0), 0).astype({DTYPE[kind]})")  # fmt: skip


@handles("selp")
def select(w: BlockWriter, i: Instr) -> None:
    dtype = DTYPE[w.type(i)]
    if w.type(i) == "f16":
        dtype = "u2"
    a, b = two(w, i, dtype)
    w.write(i.args[0], dtype, f"np.where({w.predicate(i.args[3])}, {a}, {b})")


@handles("slct")
def select_by_sign(w: BlockWriter, i: Instr) -> None:
    dtype = DTYPE[i.mods[-2]]
    a, b = two(w, i, dtype)
    w.write(i.args[0], dtype, f"np.where({w.read(i.args[3], DTYPE[w.type(i)])} >= 0, {a}, {b})")


@handles("testp")
def test_property(w: BlockWriter, i: Instr) -> None:
    a = w.read(i.args[1], DTYPE[w.type(i)])
    tiny = f"np.finfo({a}.dtype).tiny"
    expr = {
        "finite": f"np.isfinite({a})", "infinite": f"np.isinf({a})", "number": f"~np.isnan({a})",
        "notanumber": f"np.isnan({a})", "normal": f"(np.isfinite({a}) & (np.abs({a}) >= {tiny}))",
        "subnormal": f"((np.abs({a}) < {tiny}) & ({a} != 0))",
    }[i.mods[0]]  # fmt: skip
    w.write(i.args[0], "?", expr)


# ---- floating point -------------------------------------------------------------------------------------------
def finish(w: BlockWriter, i: Instr, dtype: str, expr: str) -> None:
    """Flush and saturate as the instruction says, and write."""
    if "ftz" in i.mods and dtype == "f4":
        expr = f"ops.flush({expr})"
    if "sat" in i.mods:
        expr = f"ops.saturate({expr})"
    w.write(i.args[0], dtype, expr)


def operands(w: BlockWriter, i: Instr, dtype: str) -> list[str]:
    values = [w.read(a, dtype) for a in i.args[1:]]
    return [w.fresh(f"ops.flush({v})") for v in values] if "ftz" in i.mods and dtype == "f4" else values


def floating(w: BlockWriter, i: Instr, symbol: str) -> None:
    kind = w.type(i)
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        small(w, i, f"{{0}} {symbol} {{1}}")
        return
    dtype, mode = DTYPE[kind], rounding(i)
    a, b = operands(w, i, dtype)
    if mode == "rn":
        expr = f"{a} {symbol} {b}"
    elif dtype == "f4" and symbol in "+-":
        expr = f"ops.directed(ops.sum_to_odd({a}.astype(f8), {'-' * (symbol == '-')}{b}.astype(f8)), {mode!r}, f4)"
    elif dtype == "f4":
        expr = f"ops.directed({a}.astype(f8) {symbol} {b}, {mode!r}, f4)"
    elif symbol == "/":
        raise ValueError
    else:
        b = f"-{b}" if symbol == "-" else b
        expr = f"ops.directed64({'mul' if symbol == '*' else 'add'!r}, {a}, {b}, None, {mode!r})"
    finish(w, i, dtype, expr)


def small(w: BlockWriter, i: Instr, expr: str) -> None:
    """Arithmetic of f16, bf16 and their packed pairs: computed wider, rounded once."""
    kind = w.type(i)
    raw = "u4" if kind[-2:] == "x2" else "u2"
    unpack = {"f16": "{}.view(f2)", "f16x2": "ops.halves({})", "bf16": "ops.bf16_to_float({})", "bf16x2": "ops.bf16_pairs({})"}[kind]  # fmt: skip
    values = [w.fresh(f"{unpack.format(w.read(a, raw))}.astype(f8)") for a in i.args[1:]]
    result = expr.format(*values)
    if "sat" in i.mods:
        result = f"ops.saturate({result})"
    if "relu" in i.mods:
        result = f"np.where(({result}) < 0, 0.0, {result})"
    result = w.fresh(result)
    pack = {"f16": "ops.to_half({})", "f16x2": "ops.pack_halves({})", "bf16": "ops.to_bf16({})", "bf16x2": "ops.pack_bf16({})"}[kind]  # fmt: skip
    w.write(i.args[0], raw, pack.format(result))


@handles("fma")
def fused(w: BlockWriter, i: Instr) -> None:
    kind, mode = w.type(i), rounding(i)
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        small(w, i, "{0} * {1} + {2}")
        return
    dtype = DTYPE[kind]
    a, b, c = operands(w, i, dtype)
    if dtype == "f4" and mode == "rn":
        expr = f"ops.fma32({a}, {b}, {c})"
    elif dtype == "f4":
        expr = f"ops.directed(ops.sum_to_odd({a}.astype(f8) * {b}, {c}.astype(f8)), {mode!r}, f4)"
    elif mode == "rn":
        expr = f"ops.fma64({a}, {b}, {c})"
    else:
        expr = f"ops.directed64('fma', {a}, {b}, {c}, {mode!r})"
    finish(w, i, dtype, expr)


@handles("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh")
def transcendental(w: BlockWriter, i: Instr) -> None:
    kind, mode = w.type(i), rounding(i)
    function = {
        "rcp": "1 / {0}", "sqrt": "np.sqrt({0})", "rsqrt": "1 / np.sqrt({0})", "sin": "np.sin({0})",
        "cos": "np.cos({0})", "lg2": "np.log2({0})", "ex2": "np.exp2({0})", "tanh": "np.tanh({0})",
    }[i.op]  # fmt: skip
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        small(w, i, function)
        return
    dtype = DTYPE[kind]
    (a,) = operands(w, i, dtype)
    if dtype == "f8":
        if mode != "rn":
            raise ValueError
        expr = function.format(a)
    elif mode in ROUNDING:
        expr = f"ops.directed({function.format(a + '.astype(f8)')}, {mode!r}, f4)"
    else:
        expr = f"({function.format(a + '.astype(f8)')}).astype(f4)"
    finish(w, i, dtype, expr)


@handles("copysign")
def copy_sign(w: BlockWriter, i: Instr) -> None:
    dtype = DTYPE[w.type(i)]
    a, b = two(w, i, dtype)
    w.write(i.args[0], dtype, f"np.copysign({b}, {a})")


# ---- memory ---------------------------------------------------------------------------------------------------
@handles("ld", "ldu")
def load(w: BlockWriter, i: Instr) -> None:
    space, kind, count = space_of(i), w.type(i), vector_of(i)
    if kind == "b128":
        raise ValueError
    dtype = {"f2": "u2"}.get(DTYPE[kind], DTYPE[kind])
    targets = i.args[0].items if isinstance(i.args[0], Vec) else (i.args[0],)
    mem = i.args[1]
    if space == "param" and isinstance(mem.base, Sym):
        offset = w.p.symbols[mem.base.name] + mem.offset
        for k, target in enumerate(targets):
            w.write(target, dtype, f"g.param({offset + k * SIZE[dtype]}, {dtype})")
        return
    address, offset = w.address(space, mem)
    values = w.fresh(f"memory.load(g, {address}, {offset}, {dtype}, {w.where()}, {count})")
    for k, target in enumerate(targets):
        w.write(target, dtype, f"{values}[{k}]")


@handles("st")
def store(w: BlockWriter, i: Instr) -> None:
    kind = w.type(i)
    if kind == "b128":
        raise ValueError
    dtype = {"f2": "u2"}.get(DTYPE[kind], DTYPE[kind])
    address, offset = w.address(space_of(i), i.args[0])
    sources = i.args[1].items if isinstance(i.args[1], Vec) else (i.args[1],)
    values = ", ".join(w.read(s, dtype) for s in sources)
    w.emit(f"memory.store(g, {address}, {offset}, {dtype}, [{values}], {w.where()})")


@handles("atom", "red")
def atomic(w: BlockWriter, i: Instr) -> None:
    if vector_of(i) > 1:
        raise ValueError
    kind = w.type(i)
    op = next(
        m for m in i.mods if m in ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
    )
    args = list(i.args) if i.op == "red" else i.args[1:]
    target = None if i.op == "red" else i.args[0]
    wanted = target is not None and target.name != "_" and (_read_later(w, target, i))
    address, offset = w.address(space_of(i), args[0])
    if kind in ("f16x2", "bf16x2", "bf16", "f16"):
        _atomic_half(w, i, kind, op, address, offset, args, target if wanted else None)
        return
    dtype = DTYPE[kind]
    values = [w.read(a, dtype) for a in args[1:3]]
    other = values[1] if op == "cas" else "None"
    call = f"atomic(g, {address}, {offset}, {op!r}, {dtype}, {values[0]}, {other}, {wanted}, {w.where()})"
    if wanted:
        w.write(target, dtype, call)
    else:
        w.emit(call)


def _read_later(w: BlockWriter, target: Reg, instr: Instr) -> bool:
    """Whether anything reads an atomic's result; compilers name one even where nobody does."""
    from common.simt.cfg import defs_and_uses

    after = w.block.instrs[[id(x) for x in w.block.instrs].index(id(instr)) + 1 :]
    later = [*after, *([w.block.control] if w.block.control else [])]
    return target.name in w.block.live_out or any(target.name in defs_and_uses(x)[1] for x in later)


def _atomic_half(
    w: BlockWriter, i: Instr, kind: str, op: str, address: str, offset: int, args: list, target
) -> None:
    if kind not in ("f16x2", "f16") or op != "add":
        raise ValueError
    pairs = kind == "f16x2"
    value = f"ops.halves({w.read(args[1], 'u4')})" if pairs else f"{w.read(args[1], 'u2')}.view(f2)"
    call = f"atomic(g, {address}, {offset}, 'add', f2, {value}, None, {target is not None}, {w.where()})"
    if target is None:
        w.emit(call)
    else:
        w.write(
            target,
            "u4" if pairs else "u2",
            f"np.ascontiguousarray({call}).view({'u4' if pairs else 'u2'}).ravel()",
        )


@handles("cp")
def copy_async(w: BlockWriter, i: Instr) -> None:
    """cp.async copies at once; commit and wait have nothing left to do."""
    if "bulk" in i.mods or "mbarrier" in i.mods:
        raise ValueError
    if "commit_group" in i.mods or "wait_group" in i.mods or "wait_all" in i.mods:
        return
    target, to = w.address("shared", i.args[0])
    source, start = w.address("global", i.args[1])
    size = int(i.args[2].value)
    take = "None"
    if len(i.args) > 3:
        take = w.read(i.args[3], "u4")
    w.emit(f"memory.copy_async(g, {target}, {source}, ({to}, {start}), {size}, {take}, {w.where()})")


@handles(
    "membar",
    "fence",
    "prefetch",
    "prefetchu",
    "nanosleep",
    "discard",
    "applypriority",
    "griddepcontrol",
    "brkpt",
)
def nothing(w: BlockWriter, i: Instr) -> None:
    """Memory is sequentially consistent here, and there are no caches and no time."""


@handles("createpolicy")
def policy(w: BlockWriter, i: Instr) -> None:
    w.write(i.args[0], "u8", w.read(Imm(0), "u8"))


# ---- warp and block -------------------------------------------------------------------------------------------
@handles("shfl")
def shuffle(w: BlockWriter, i: Instr) -> None:
    target, a, b, c = i.args[:4]
    mode = next(m for m in i.mods if m in ("up", "down", "bfly", "idx"))
    both = w.fresh(f"warp.shuffle(g, {mode!r}, {w.read(a, 'u4')}, {w.read(b, 'u4')}, {w.read(c, 'u4')})")
    if isinstance(target, Pair):
        w.write(target.first, "u4", f"{both}[0]")
        if target.second.name != "_":
            w.write(target.second, "?", f"{both}[1]")
    else:
        w.write(target, "u4", f"{both}[0]")


@handles("vote")
def vote(w: BlockWriter, i: Instr) -> None:
    mode = next(m for m in i.mods if m in ("ballot", "all", "any", "uni"))
    call = f"warp.vote(g, {mode!r}, {w.predicate(i.args[1])}, {w.read(i.args[2], 'u4')})"
    w.write(i.args[0], "u4" if mode == "ballot" else "?", call)


@handles("match")
def match(w: BlockWriter, i: Instr) -> None:
    mode = "all" if "all" in i.mods else "any"
    target = i.args[0]
    both = w.fresh(
        f"warp.match(g, {mode!r}, {w.read(i.args[1], DTYPE[w.type(i)])}, {w.read(i.args[2], 'u4')})"
    )
    w.write(target, "u4", f"{both}[0]")
    if isinstance(target, Pair) and target.second.name != "_":
        w.write(target.second, "?", f"{both}[1]")


@handles("redux")
def warp_reduce(w: BlockWriter, i: Instr) -> None:
    op = next(m for m in i.mods if m in ("add", "min", "max", "and", "or", "xor"))
    dtype = DTYPE[w.type(i)]
    w.write(
        i.args[0], dtype, f"warp.reduce(g, {op!r}, {w.read(i.args[1], dtype)}, {w.read(i.args[2], 'u4')})"
    )


@handles("elect")
def elect(w: BlockWriter, i: Instr) -> None:
    both = w.fresh(f"warp.elect(g, {w.read(i.args[1], 'u4')})")
    w.write(i.args[0].first, "u4", f"{both}[0]")
    w.write(i.args[0].second, "?", f"{both}[1]")


@handles("activemask")
def active_mask(w: BlockWriter, i: Instr) -> None:
    w.write(i.args[0], "u4", "warp.active_mask(g)")


@handles("bar")
def warp_barrier(w: BlockWriter, i: Instr) -> None:
    """bar.warp.sync: the scheduler waited for the lanes; nothing is left to do."""


def fragment(w: BlockWriter, arg, kind: str) -> str:
    dtype = {"f64": "f8", "f32": "f4"}.get(kind, "u4")
    items = arg.items if isinstance(arg, Vec) else (arg,)
    return "[" + ", ".join(w.read(a, dtype) for a in items) + "]"


def write_fragment(w: BlockWriter, arg, kind: str, values: str) -> None:
    dtype = {"f64": "f8", "f32": "f4"}.get(kind, "u4")
    for k, item in enumerate(arg.items if isinstance(arg, Vec) else (arg,)):
        w.write(item, dtype, f"{values}[{k}]")


@handles("mma")
def mma(w: BlockWriter, i: Instr) -> None:
    shape = next(m for m in i.mods if m[0] == "m" and "n" in m and "k" in m)
    kinds = [m for m in i.mods if m in TYPE_BYTES or m == "tf32"]
    if "sp" in i.mods or len(kinds) != 4:
        raise ValueError
    d, a, b, c = i.args[:4]
    call = f"warp.mma(g, {shape!r}, {kinds!r}, {fragment(w, a, kinds[1])}, {fragment(w, b, kinds[2])}, {fragment(w, c, kinds[3])}, {w.where()})"  # fmt: skip
    write_fragment(w, d, kinds[0], w.fresh(call))


@handles("wmma")
def wmma(w: BlockWriter, i: Instr) -> None:
    shape = next(m for m in i.mods if m[0] == "m" and "n" in m and "k" in m)
    layout = next((m for m in i.mods if m in ("row", "col")), "row")
    kinds = [m for m in i.mods if m in TYPE_BYTES or m == "tf32"]
    if i.mods[0] == "load":
        address, offset = w.address(space_of(i), i.args[1])
        stride = (
            w.read(i.args[2], "u4")
            if len(i.args) > 2
            else w.read(Imm(_dense(shape, i.mods[1], layout)), "u4")
        )
        call = f"warp.wmma_load(g, {i.mods[1]!r}, {shape!r}, {layout!r}, {kinds[0]!r}, {address}, {offset}, {stride}, {len(i.args[0].items)}, {w.where()})"  # fmt: skip
        write_fragment(w, i.args[0], kinds[0], w.fresh(call))
    elif i.mods[0] == "store":
        address, offset = w.address(space_of(i), i.args[0])
        stride = w.read(i.args[2], "u4") if len(i.args) > 2 else w.read(Imm(_dense(shape, "d", layout)), "u4")
        values = fragment(w, i.args[1], kinds[0])
        w.emit(f"warp.wmma_store(g, {shape!r}, {layout!r}, {kinds[0]!r}, {address}, {offset}, {values}, {stride}, {w.where()})")  # fmt: skip
    else:
        d, a, b, c = i.args
        if len(kinds) == 2:  # f16 operands are not named: only d and c are
            kinds = [kinds[0], "f16", "f16", kinds[1]]
        call = f"warp.wmma_mma(g, {shape!r}, {kinds!r}, {fragment(w, a, kinds[1])}, {fragment(w, b, kinds[2])}, {fragment(w, c, kinds[3])})"  # fmt: skip
        write_fragment(w, d, kinds[0], w.fresh(call))


def _dense(shape: str, role: str, layout: str) -> int:
    m, n, k = (int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
    rows, columns = {"a": (m, k), "b": (k, n)}.get(role, (m, n))
    return columns if layout == "row" else rows


@handles("ldmatrix")
def load_matrix(w: BlockWriter, i: Instr) -> None:
    if "b16" not in i.mods:
        raise ValueError
    count = next(int(m[1]) for m in i.mods if m in ("x1", "x2", "x4"))
    address, offset = w.address(space_of(i), i.args[1])
    call = f"warp.ldmatrix(g, warp.one_space({address}), {offset}, {count}, {'trans' in i.mods}, {w.where()})"
    write_fragment(w, i.args[0], "b32", w.fresh(call))


@handles("stmatrix")
def store_matrix(w: BlockWriter, i: Instr) -> None:
    address, offset = w.address(space_of(i), i.args[0])
    values = fragment(w, i.args[1], "b32")
    w.emit(
        f"warp.stmatrix(g, warp.one_space({address}), {offset}, {values}, {'trans' in i.mods}, {w.where()})"
    )


@handles("movmatrix")
def move_matrix(w: BlockWriter, i: Instr) -> None:
    w.write(i.args[0], "u4", f"warp.movmatrix(g, {w.read(i.args[1], 'u4')})")


# ---- the rest -------------------------------------------------------------------------------------------------
@handles("trap")
def trap(w: BlockWriter, i: Instr) -> None:
    w.emit(f"g.trap({w.where()})")


@handles("assertfail")
def assertion(w: BlockWriter, i: Instr) -> None:
    message, file, line, function = (
        w.read(a, t) for a, t in zip(i.args[:4], ("u8", "u8", "u4", "u8"), strict=True)
    )
    w.emit(f"g.assert_fail({message}, {file}, {line}, {function}, {w.where()})")


@handles("printf")
def printf(w: BlockWriter, i: Instr) -> None:
    result, form, arguments = i.args
    w.write(result, "u4", f"g.printf({w.read(form, 'u8')}, {w.read(arguments, 'u8')})")


__all__ = ["Mem", "atomic"]
