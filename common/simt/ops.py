"""Arithmetic that NumPy has no single expression for; the generated code calls these.

Registers are arrays of one element (the same in every thread) or of one element a thread. `u4`, `i4`, `f4`, ... are
NumPy's dtypes; f16 and bf16 live in 16-bit registers, their packed pairs in 32-bit ones.
"""

from fractions import Fraction

import numpy as np

u1, u2, u4, u8 = (np.dtype(t) for t in ("u1", "u2", "u4", "u8"))
i1, i2, i4, i8 = (np.dtype(t) for t in ("i1", "i2", "i4", "i8"))
f2, f4, f8 = (np.dtype(t) for t in ("f2", "f4", "f8"))
BITS = {u1: 8, u2: 16, u4: 32, u8: 64, i1: 8, i2: 16, i4: 32, i8: 64}


def widen(a, n):
    """A register as one element for each of n threads (much faster than np.broadcast_to)."""
    return a if a.size == n else np.full(n, a[0], a.dtype)


# ---- integers --------------------------------------------------------------------------------------------------------
def shl(a, b):
    """Shift left; by the width or more gives 0."""
    width = BITS[a.dtype]
    return np.where(b < width, a << np.minimum(b, width - 1).astype(a.dtype), a.dtype.type(0))


def shr(a, b):
    """Shift right, arithmetic for signed types; by the width or more gives 0 or the sign."""
    width = BITS[a.dtype]
    shifted = a >> np.minimum(b, width - 1).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else np.where(b < width, shifted, a.dtype.type(0))


def funnel(low, high, b, left, clamp):
    """shf.l / shf.r: 32 bits out of the 64 of high:low."""
    b = np.minimum(b, 32) if clamp else b & 31
    both = (high.astype(u8) << u8.type(32)) | low.astype(u8)
    b = b.astype(u8)
    return ((both << b) >> u8.type(32)).astype(u4) if left else (both >> b).astype(u4)


def mulhi(a, b):
    """The upper half of the product."""
    if a.dtype.itemsize == 4:
        wide = i8 if a.dtype.kind == "i" else u8
        return ((a.astype(wide) * b.astype(wide)) >> wide.type(32)).astype(a.dtype)
    if a.dtype.itemsize == 2:
        return ((a.astype(i8) * b.astype(i8)) >> 16).astype(a.dtype)
    low32 = u8.type(0xFFFFFFFF)
    x, y = a.view(u8), b.view(u8)
    s = u8.type(32)
    xl, xh, yl, yh = x & low32, x >> s, y & low32, y >> s
    mid = xh * yl + ((xl * yl) >> s)
    mid2 = xl * yh + (mid & low32)
    high = xh * yh + (mid >> s) + (mid2 >> s)
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, y, u8.type(0)) - np.where(b < 0, x, u8.type(0))
    return high.view(a.dtype)


def divide(a, b):
    """C's integer division (towards zero); by zero gives all ones, as the hardware does."""
    zero = b == 0
    if a.dtype.kind == "u":
        return np.where(zero, ~a.dtype.type(0), a // np.where(zero, a.dtype.type(1), b))
    safe = np.where(zero | (b == -1), a.dtype.type(1), b)
    quotient = a // safe
    quotient = quotient + ((a % safe != 0) & ((a < 0) != (safe < 0)))
    return np.where(zero, a.dtype.type(-1), np.where(b == -1, a.dtype.type(0) - a, quotient)).astype(a.dtype)


def remainder(a, b):
    """C's remainder: the sign of the dividend."""
    zero = b == 0
    safe = np.where(zero, a.dtype.type(1), b)
    if a.dtype.kind == "u":
        return np.where(zero, a, a % safe)
    result = np.fmod(a, np.where(safe == -1, a.dtype.type(1), safe))
    return np.where(zero, a, result).astype(a.dtype)


def saturating(a, b, subtract):
    """a + b or a - b, clamped to the range of 32 bits."""
    wide = a.astype(i8) - b if subtract else a.astype(i8) + b
    return np.clip(wide, np.iinfo(a.dtype).min, np.iinfo(a.dtype).max).astype(a.dtype)


def popc(a):
    """How many bits are set."""
    return np.bitwise_count(a).astype(u4)


def clz(a):
    """Leading zeros, through the exponent of an exact float."""
    if a.dtype == u8:
        high = (a >> u8.type(32)).astype(u4)
        return np.where(high != 0, clz(high), 32 + clz(a.astype(u4))).astype(u4)
    return np.where(a == 0, 32, 31 - (np.frexp(a.astype(f8))[1] - 1)).astype(u4)


def bfind(a, shiftamt):
    """Position of the highest set bit (for signed: of the highest bit that differs from the sign)."""
    width = BITS[a.dtype]
    if a.dtype.kind == "i":
        a = np.where(a < 0, ~a, a)
    unsigned = a.view(u8 if width == 64 else u4)
    position = u4.type(width - 1) - clz(unsigned)
    if shiftamt:
        position = u4.type(width - 1) - position
    return np.where(unsigned == 0, u4.type(0xFFFFFFFF), position)


def brev(a):
    """The bits in reverse order."""
    width = a.dtype.itemsize
    octets = np.ascontiguousarray(a).view(u1).reshape(-1, width)
    table = np.array([int(f"{i:08b}"[::-1], 2) for i in range(256)], u1)
    return np.ascontiguousarray(table[octets][:, ::-1]).view(a.dtype).ravel()


def bfe(a, position, length):
    """Bit field extract, sign-extended for signed types."""
    width = BITS[a.dtype]
    p = np.minimum(position & 255, width).astype(i8)
    n = np.minimum(length & 255, width).astype(i8)
    a, p, n = np.broadcast_arrays(a, p, n)
    wide = a.astype(i8 if a.dtype.kind == "i" else u8)  # the bits beyond the register are its sign, or zero
    inside = np.minimum(n, width - p)  # the part of the field that lies in the register
    field = shr(shl(wide, (64 - inside - p).astype(u4)), (64 - inside).astype(u4))
    beyond = wide >> wide.dtype.type(63) if a.dtype.kind == "i" else np.zeros(1, u8)  # wholly outside: all sign
    result = np.where(inside > 0, field, beyond)
    return np.where(n == 0, 0, result).astype(a.dtype)


def bfi(a, b, position, length):
    """Insert the low `length` bits of a into b at `position`."""
    width = BITS[b.dtype]
    p, n = position & 255, np.minimum(length & 255, width)
    ones = shl(np.ones(1, u8), n.astype(u4)) - u8.type(1)
    mask = shl(ones, p.astype(u4)).astype(b.dtype)
    return (b & ~mask) | (shl(a.astype(u8), p.astype(u4)).astype(b.dtype) & mask)


def prmt(a, b, selector, mode=""):
    """Pick four bytes out of the eight of b:a, each possibly replaced by its sign."""
    if mode:
        selector = np.array(PRMT_MODES[mode], u4)[(selector & 3).astype(i8)]
    a, b, selector = np.broadcast_arrays(a, b, selector)
    octets = np.concatenate([np.ascontiguousarray(x).view(u1).reshape(-1, 4) for x in (a, b)], 1)
    out = np.empty((len(octets), 4), u1)
    rows = np.arange(len(octets))
    for i in range(4):
        nibble = (selector >> u4.type(4 * i)) & u4.type(15)
        byte = octets[rows, (nibble & 7).astype(i8)]
        out[:, i] = np.where(nibble & 8, np.where(byte & 128, 255, 0), byte)
    return out.view(u4).ravel()


# prmt's special modes as the selector that does the same, by the low two bits of theirs
PRMT_MODES = {
    "f4e": [0x3210, 0x4321, 0x5432, 0x6543], "b4e": [0x5670, 0x6701, 0x7012, 0x0123],
    "rc8": [0x0000, 0x1111, 0x2222, 0x3333], "ecl": [0x3210, 0x3211, 0x3222, 0x3333],
    "ecr": [0x0000, 0x1110, 0x2210, 0x3210], "rc16": [0x1010, 0x3232, 0x1010, 0x3232],
}  # fmt: skip


def lop3(a, b, c, table):
    """Any function of three bits, given by its truth table."""
    out = np.zeros(1, u4)
    for i in range(8):
        if table >> i & 1:
            out = out | ((a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c))
    return out


def dot4(a, b, c, a_signed, b_signed):
    """dp4a: four 8-bit products added to c."""
    x = np.ascontiguousarray(a).view(i1 if a_signed else u1).reshape(-1, 4).astype(i8)
    y = np.ascontiguousarray(b).view(i1 if b_signed else u1).reshape(-1, 4).astype(i8)
    return ((x * y).sum(1) + c.astype(i8)).astype(u4)


def dot2(a, b, c, a_signed, b_signed, high):
    """dp2a: two 16-bit by 8-bit products added to c."""
    x = np.ascontiguousarray(a).view(i2 if a_signed else u2).reshape(-1, 2).astype(i8)
    y = np.ascontiguousarray(b).view(i1 if b_signed else u1).reshape(-1, 4).astype(i8)
    return ((x * (y[:, 2:] if high else y[:, :2])).sum(1) + c.astype(i8)).astype(u4)


# ---- floating point --------------------------------------------------------------------------------------------------
def round_odd(exact):
    """float64 -> float32 with the last bit set when inexact: rounding again is then correct (no double rounding)."""
    r = exact.astype(f4)
    wrong = (r.astype(f8) != exact) & np.isfinite(r) & ~np.isnan(exact)
    if not wrong.any():
        return r
    toward = np.where(np.abs(r.astype(f8)) > np.abs(exact), np.nextafter(r, f4.type(0)), r)
    return np.where(wrong, (toward.view(u4) | u4.type(1)).view(f4), r)


def directed(exact, mode, dtype):
    """float64 -> dtype, rounded to zero ('rz'), down ('rm') or up ('rp')."""
    r = exact.astype(dtype)
    back = r.astype(f8)
    if mode == "rz":
        return np.where(np.abs(back) > np.abs(exact), np.nextafter(r, dtype.type(0)), r)
    if mode == "rm":
        return np.where(back > exact, np.nextafter(r, dtype.type(-np.inf)), r)
    return np.where(back < exact, np.nextafter(r, dtype.type(np.inf)), r)


def fma32(a, b, c):
    """float32 fused multiply-add. The product is exact in float64; the sum rounds there and again to float32, which
    can differ from one rounding only where float64 landed on a tie of float32: those sums are made odd first."""
    product = np.multiply(a, b, dtype=f8)
    total = product + c
    twice = ((total.view(i8) & TIE_MASK) == TIE) | (np.abs(total) < SUBNORMAL)
    if twice.any() and (total[twice] != 0).any():
        total = np.where(twice, sum_to_odd(product, c.astype(f8)), total)
    return total.astype(f4)


# the 29 bits that float64 has more than float32, and their value half-way between two float32 numbers
TIE_MASK, TIE = np.int64(0x1FFFFFFF), np.int64(0x10000000)
SUBNORMAL = 2.0**-125  # below it float32 has fewer bits, and the half-way point lies elsewhere


def _two_product(a, b):
    """Dekker: a * b = p + e exactly."""
    split = 134217729.0
    ah = a * split
    ah = ah - (ah - a)
    bh = b * split
    bh = bh - (bh - b)
    al, bl = a - ah, b - bh
    p = a * b
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def _two_sum(a, b):
    """Knuth: a + b = s + error exactly."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def sum_to_odd(a, b):
    """float64 a + b; where inexact the last bit is set, so that rounding the result once more is still right."""
    s, error = _two_sum(a, b)
    s, error = np.broadcast_arrays(s, error)
    bits = np.ascontiguousarray(s).view(i8)
    nudged = np.where((error > 0) == (s > 0), bits + 1, bits - 1).view(f8)
    return np.where((error != 0) & np.isfinite(error) & ((bits & 1) == 0), nudged, s)


def fma64(a, b, c):
    """float64 fused multiply-add, correctly rounded (Boldo & Melquiond 2008: round-to-odd before the last sum)."""
    a, b, c = np.broadcast_arrays(a, b, c)
    p, e = _two_product(a, b)
    high, low = _two_sum(c, e)
    s, f = _two_sum(p, high)
    result = s + sum_to_odd(low, f)
    extreme = _is_extreme(a, b, c, p)
    if extreme.any():
        result = np.where(extreme, _exactly(a, b, c, extreme), result)
    # a sum of 0 is exact, so the plain one has it with the right sign; infinities and NaN are its own too
    plain = ~extreme & (~np.isfinite(result) | (result == 0))
    return np.where(plain, a * b + c, result)


def _is_extreme(a, b, c, p):
    """Where a step of Dekker's product or of the sums would overflow or lose bits below the smallest number."""
    large = ~np.isfinite(p) | (np.abs(a) > 1e150) | (np.abs(b) > 1e150) | (np.abs(c) > 1e290)
    return large | ((np.abs(p) < 1e-270) & (a != 0) & (b != 0))


def _exactly(a, b, c, where, mode="rn"):
    """a * b + c where Dekker's splitting would overflow or underflow: rational arithmetic, one element at a time."""
    out = (a * b + c).copy()
    for i in np.flatnonzero(where):
        x, y, z = a[i].item(), b[i].item(), c[i].item()
        if not np.isfinite([x, y, z]).all():
            continue
        if exact := Fraction(x) * Fraction(y) + Fraction(z):
            out[i] = _round(exact, mode)
        elif mode == "rm" and np.signbit(x) ^ np.signbit(y) != np.signbit(z):
            out[i] = -0.0
    return out


def _round(exact, mode):
    """A Fraction as float64: to nearest even, or rounded to zero ('rz'), down ('rm') or up ('rp')."""
    inward = mode == "rz" or mode == ("rm" if exact > 0 else "rp")  # the directed mode that makes it smaller in size
    try:
        r = exact.numerator / exact.denominator
    except OverflowError:
        r = np.finfo(f8).max if inward else np.inf
        return r if exact > 0 else -r
    error = exact - Fraction(r)
    if mode == "rn" or error == 0:
        return r
    toward = np.inf if mode == "rp" or (mode == "rz" and exact < 0) else -np.inf
    return np.nextafter(r, toward) if (error > 0) == (toward > 0) else r


def directed64(op, a, b, c, mode):
    """float64 add, mul or fma rounded towards zero, down or up: the rounding error's sign decides."""
    if op == "add":
        a, b, c = a, np.ones(1), b
    elif op == "mul":
        c = np.copysign(0.0, a) * np.copysign(1.0, b)  # a zero of the product's sign adds nothing, not even a sign
    a, b, c = np.broadcast_arrays(a, b, c)
    r = fma64(a, b, c)
    p, e1 = _two_product(a, b)
    s, e2 = _two_sum(p, c)
    e = (s - r) + (e1 + e2)
    up = (e > 0) & ((mode == "rp") | ((mode == "rz") & (r < 0)))
    down = (e < 0) & ((mode == "rm") | ((mode == "rz") & (r > 0)))
    r = np.where(up, np.nextafter(r, np.inf), np.where(down, np.nextafter(r, -np.inf), r))
    if mode == "rm" and op != "mul":
        r = np.where((r == 0) & (np.signbit(p) != np.signbit(c)), -0.0, r)  # rounded down, x - x is -0
    extreme = _is_extreme(a, b, c, p)
    if extreme.any():
        r = np.where(extreme, _exactly(a, b, c, extreme, mode), r)
    return r


def directed_sum(a, b, mode):
    """float64 a + b (b perhaps an exact product) as float32, rounded in one of the directed modes."""
    total = sum_to_odd(a, b)
    r = directed(total, mode, f4)
    # rounded down, x - x is -0
    return np.where((total == 0) & (np.signbit(a) != np.signbit(b)), f4.type(-0.0), r) if mode == "rm" else r


def flush(a):
    """Denormal float32 numbers become zero of the same sign (.ftz)."""
    return np.where(np.abs(a) < f4.type(1.17549435e-38), np.copysign(f4.type(0), a), a)


def saturate(a):
    """Clamp to [0, 1]; NaN and -0 become +0."""
    return np.where(a > 0, np.minimum(a, a.dtype.type(1)), a.dtype.type(0))


CANONICAL_NAN = {
    f2: np.array(0x7FFF, u2).view(f2),
    f4: np.array(0x7FFFFFFF, u4).view(f4),
    f8: np.array(0x7FF8 << 48, u8).view(f8),
}


def _settled(r, zero, where):
    """Zeros of the right sign and the hardware's one NaN in the result of a minimum or maximum."""
    if where.any():
        r = np.where(where, r.dtype.type(zero), r)
    missing = np.isnan(r)
    return np.where(missing, CANONICAL_NAN[r.dtype], r) if missing.any() else r


def minimum(a, b):
    """The smaller; a NaN gives way to a number, and -0 counts as less than +0."""
    return _settled(np.fmin(a, b), -0.0, (a == 0) & (b == 0) & (np.signbit(a) | np.signbit(b)))


def maximum(a, b):
    """The larger; a NaN gives way to a number, and +0 counts as more than -0."""
    return _settled(np.fmax(a, b), 0.0, (a == 0) & (b == 0) & ~(np.signbit(a) & np.signbit(b)))


def to_integer(a, mode, dtype):
    """Float to integer with saturation; NaN gives 0, or only the top bit where 64 bits are involved on either side."""
    rounded = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode](a.astype(f8))
    info = np.iinfo(dtype)
    top = float(info.max) if BITS[dtype] <= 32 else np.nextafter(float(info.max) + 1.0, 0)
    inside = np.clip(np.where(np.isnan(rounded), 0.0, rounded), float(info.min), top).astype(dtype)
    inside = np.where(rounded >= float(info.max), dtype.type(info.max), inside)
    if BITS[dtype] == 64 or a.dtype == f8:
        top_bit = np.array(1 << (BITS[dtype] - 1), f"u{dtype.itemsize}").view(dtype)
        inside = np.where(np.isnan(rounded), top_bit, inside)
    return inside


def from_integer(a, mode, dtype):
    """Integer to float32 or float64; rn is the cast's own rounding, the directed modes correct it."""
    if mode in ("rn", ""):
        return a.astype(dtype)
    if BITS[a.dtype] <= 32:
        return directed(a.astype(f8), mode, dtype)
    return _directed_long(a, mode, dtype)


def integer_to_odd(a):
    """Integer to float64; where inexact the last bit is set, so that rounding once more is still right."""
    r = a.astype(f8)
    if BITS[a.dtype] <= 32:
        return r
    error = a.astype(np.longdouble) - r.astype(np.longdouble)  # exact: a long double holds 64 bits
    bits = r.view(i8)
    nudged = np.where((error > 0) == (r > 0), bits + 1, bits - 1).view(f8)
    return np.where((error != 0) & ((bits & 1) == 0), nudged, r)


def _directed_long(a, mode, dtype):
    r = a.astype(dtype)
    exact, back = a.astype(np.longdouble), r.astype(np.longdouble)
    zero = {"rz": dtype.type(0), "rm": dtype.type(-np.inf), "rp": dtype.type(np.inf)}[mode]
    over = {"rz": np.abs(back) > np.abs(exact), "rm": back > exact, "rp": back < exact}[mode]
    return np.where(over, np.nextafter(r, zero), r)


def to_half(a, mode="rn"):
    """float32 or float64 -> float16 bits."""
    if mode in ("rn", ""):
        return a.astype(f2).view(u2)
    return directed(a.astype(f8), mode, f2).view(u2)


def bf16_to_float(a):
    """bf16 bits -> float32."""
    return (a.astype(u4) << u4.type(16)).view(f4)


def to_bf16(a, mode="rn"):
    """float32 (or exact float64) -> bf16 bits, to nearest even unless the mode is 'rz', 'rm' or 'rp'."""
    if a.dtype == f8:
        a = round_odd(a)
    bits = a.view(u4)
    if mode in ("rz", "rm", "rp"):
        away = {"rz": False, "rm": a < 0, "rp": a > 0}[mode]  # from zero, where the mode's direction is that
        rounded = (bits >> u4.type(16)) + (away & ((bits & u4.type(0xFFFF)) != 0))
    else:
        rounded = (bits + u4.type(0x7FFF) + ((bits >> u4.type(16)) & u4.type(1))) >> u4.type(16)
    return np.where(np.isnan(a), u4.type(0x7FFF), rounded).astype(u2)


def tf32(a):
    """float32 rounded to 10 bits of fraction, ties away from zero (cvt.rna.tf32); NaN stays NaN."""
    rounded = ((a.view(u4) + u4.type(0x1000)) & u4.type(0xFFFFE000)).view(f4)
    return np.where(np.isfinite(a), rounded, a)


def halves(a):
    """A packed f16x2 register as float16 of shape (threads, 2)."""
    return np.ascontiguousarray(a).view(f2).reshape(-1, 2)


def bf16_pairs(a):
    """A packed bf16x2 register as float32 of shape (threads, 2)."""
    return bf16_to_float(np.ascontiguousarray(a).view(u2).reshape(-1, 2))


def pack_halves(a):
    """The inverse of halves()."""
    return np.ascontiguousarray(a.astype(f2)).view(u4).ravel()


def pack_bf16(a):
    """The inverse of bf16_pairs()."""
    return np.ascontiguousarray(to_bf16(a)).view(u4).ravel()


def join(low, high, half, whole):
    """Two registers as one of twice the width."""
    return low.astype(whole) | (high.astype(whole) << whole.type(8 * half.itemsize))
