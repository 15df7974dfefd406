"""Floating-point arithmetic: one rounding per operation, as IEEE 754 and the instruction's modifiers say.

f32 rounds to nearest through NumPy's own operators; the directed roundings and fma go through float64 (ops.py). Small
formats (f16, bf16 and their packed pairs) are computed in float64 and rounded once.
"""

from common.simt.errors import UnknownForm
from common.simt.ptx import Instr
from common.simt.writer import DTYPE, BlockWriter, handles, modifier, type_of

SMALL_FLOATS = ("f16", "bf16", "f16x2", "bf16x2")
UNPACK = {
    "f16": "{}.view(f2)", "f16x2": "ops.halves({})", "bf16": "ops.bf16_to_float({})", "bf16x2": "ops.bf16_pairs({})",
}  # fmt: skip
PACK = {
    "f16": "ops.to_half({})", "f16x2": "ops.pack_halves({})", "bf16": "ops.to_bf16({})", "bf16x2": "ops.pack_bf16({})",
}  # fmt: skip
FUNCTIONS = {
    "rcp": "1 / {0}", "sqrt": "np.sqrt({0})", "rsqrt": "1 / np.sqrt({0})", "sin": "np.sin({0})", "cos": "np.cos({0})",
    "lg2": "np.log2({0})", "ex2": "np.exp2({0})", "tanh": "np.tanh({0})",
}  # fmt: skip


def rounding(instr: Instr) -> str:
    """'rz', 'rm' or 'rp' where the instruction rounds so, else 'rn'."""
    return modifier(instr, ("rz", "rm", "rp"), "rn")


def finish(w: BlockWriter, i: Instr, dtype: str, expr: str) -> None:
    """Flush and saturate as the instruction says, and write."""
    if "ftz" in i.mods and dtype == "f4":
        expr = f"ops.flush({expr})"
    if "sat" in i.mods:
        expr = f"ops.saturate({expr})"
    w.write(i.args[0], dtype, expr)


def operands(w: BlockWriter, i: Instr, dtype: str) -> list[str]:
    """The sources, flushed where the instruction says so."""
    values = [w.read(a, dtype) for a in i.args[1:]]
    return [w.fresh(f"ops.flush({v})") for v in values] if "ftz" in i.mods and dtype == "f4" else values


def floating(w: BlockWriter, i: Instr, symbol: str) -> None:
    """+, -, * or /"""
    kind = type_of(i)
    if kind in SMALL_FLOATS:
        # sums made odd: float64 has too few bits for numbers far apart, and they are rounded once more
        sums = {"+": "ops.sum_to_odd({0}, {1})", "-": "ops.sum_to_odd({0}, -{1})"}
        small(w, i, sums.get(symbol, f"{{0}} {symbol} {{1}}"))
        return
    dtype, mode = DTYPE[kind], rounding(i)
    a, b = operands(w, i, dtype)
    if mode == "rn":
        expr = f"{a} {symbol} {b}"
    elif dtype == "f4" and symbol in "+-":
        expr = f"ops.directed_sum({a}.astype(f8), {'-' * (symbol == '-')}{b}.astype(f8), {mode!r})"
    elif dtype == "f4":
        expr = f"ops.directed({a}.astype(f8) {symbol} {b}, {mode!r}, f4)"
    elif symbol == "/":
        raise UnknownForm(f"double-precision division rounded by .{mode}")
    else:
        b = f"-{b}" if symbol == "-" else b
        expr = f"ops.directed64({'mul' if symbol == '*' else 'add'!r}, {a}, {b}, None, {mode!r})"
    finish(w, i, dtype, expr)


def small(w: BlockWriter, i: Instr, expr: str) -> None:
    """Arithmetic of f16, bf16 and their packed pairs: computed wider, rounded once."""
    kind = type_of(i)
    raw = "u4" if kind[-2:] == "x2" else "u2"
    values = [w.fresh(f"{UNPACK[kind].format(w.read(a, raw))}.astype(f8)") for a in i.args[1:]]
    result = expr.format(*values)
    if "sat" in i.mods:
        result = f"ops.saturate({result})"
    if "relu" in i.mods:
        result = f"np.where(({result}) < 0, 0.0, {result})"
    w.write(i.args[0], raw, PACK[kind].format(w.fresh(result)))


@handles("fma")
def fused(w: BlockWriter, i: Instr) -> None:
    kind, mode = type_of(i), rounding(i)
    if kind in SMALL_FLOATS:
        small(w, i, "ops.sum_to_odd({0} * {1}, {2})")
        return
    dtype = DTYPE[kind]
    a, b, c = operands(w, i, dtype)
    if dtype == "f4" and mode == "rn":
        expr = f"ops.fma32({a}, {b}, {c})"
    elif dtype == "f4":
        expr = f"ops.directed_sum({a}.astype(f8) * {b}, {c}.astype(f8), {mode!r})"
    elif mode == "rn":
        expr = f"ops.fma64({a}, {b}, {c})"
    else:
        expr = f"ops.directed64('fma', {a}, {b}, {c}, {mode!r})"
    finish(w, i, dtype, expr)


@handles(*FUNCTIONS)
def transcendental(w: BlockWriter, i: Instr) -> None:
    """Rounded once, the .approx forms too: hardware's are within a few units in the last place of it."""
    kind, mode, function = type_of(i), rounding(i), FUNCTIONS[i.op]
    if kind in SMALL_FLOATS:
        small(w, i, function)
        return
    dtype = DTYPE[kind]
    (a,) = operands(w, i, dtype)
    if dtype == "f8":
        if mode != "rn":
            raise UnknownForm(f"double precision rounded by .{mode}")
        expr = function.format(a)
    elif mode != "rn":
        expr = f"ops.directed({function.format(a + '.astype(f8)')}, {mode!r}, f4)"
    else:
        expr = f"({function.format(a + '.astype(f8)')}).astype(f4)"
    finish(w, i, dtype, expr)


@handles("copysign")
def copy_sign(w: BlockWriter, i: Instr) -> None:
    dtype = DTYPE[type_of(i)]
    a, b = w.two(i, dtype)
    w.write(i.args[0], dtype, f"np.copysign({b}, {a})")
