"""Single PTX instructions: a table of inline assembly with the result that the PTX manual defines for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .harness import Runner, Tol
from .integers import bits_of
from .small_types import from_bf16, to_bf16

U64 = np.uint64
TYPES = {
    "h": ("unsigned short", np.uint16),
    "r": ("unsigned", np.uint32),
    "l": ("unsigned long long", np.uint64),
    "f": ("float", np.float32),
    "d": ("double", np.float64),
}
COUNT = 192


@dataclass(frozen=True)
class Op:
    """`asm` with %0 as result (type `out`) and %1, %2, ... as inputs (types `ins`); h r l f d as in inline PTX."""

    name: str
    out: str
    ins: str
    asm: str
    reference: Callable[..., np.ndarray]
    tol: Tol | None = None
    values: dict[int, np.ndarray] = field(default_factory=dict, hash=False)

    def kernel(self) -> str:
        names = "abcd"[: len(self.ins)]
        inputs = "".join(f"const {TYPES[t][0]}* {v}, " for v, t in zip(names, self.ins, strict=True))
        operands = ", ".join(f'"{t}"({v}[i])' for v, t in zip(names, self.ins, strict=True))
        kind = TYPES[self.out][0]
        return (
            f"__global__ void op_{self.name}({inputs}{kind}* out)\n{{\n"
            f"    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    {kind} result;\n"
            f'    asm volatile("{{ {self.asm} }}" : "={self.out}"(result) : {operands});\n'
            f"    out[i] = result;\n}}\n"
        )

    def inputs(self) -> list[np.ndarray]:
        rng = np.random.default_rng(list(self.name.encode()))
        return [self.values.get(k, random_words(t, rng)) for k, t in enumerate(self.ins)]

    def run(self, gpu: Runner, module: object) -> np.ndarray:
        out = gpu.empty(COUNT, TYPES[self.out][1])
        kernel = module.get_kernel(f"op_{self.name}")  # type: ignore[attr-defined]
        gpu.launch(kernel, COUNT // 64, 64, *map(gpu.to_device, self.inputs()), out)
        return gpu.to_host(out)

    def expected(self) -> np.ndarray:
        with np.errstate(all="ignore"):
            result = np.asarray(self.reference(*self.inputs()))
            if result.dtype.kind in "biu" and self.out in "hrl":
                mask = {"h": 0xFFFF, "r": 0xFFFFFFFF, "l": 0xFFFFFFFFFFFFFFFF}[self.out]
                result = result.astype(U64) & U64(mask)
            return result.astype(TYPES[self.out][1])


EDGE = [0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x8000, 0xFF, 0x12345678]
EDGE_FLOAT = [0.0, -0.0, 0.5, -1.5, 2.5, np.inf, -np.inf, np.nan, 1e-40, -1e-42, 3e38, 1.0, 65520.0, 1e-7]


def random_words(kind: str, rng: np.random.Generator) -> np.ndarray:
    if kind in "fd":
        values = rng.standard_normal(COUNT) * 10.0 ** rng.integers(-6, 7, COUNT)
        values[::3] = rng.choice(EDGE_FLOAT, values[::3].size)
        return values.astype(TYPES[kind][1])
    bits = {"h": 16, "r": 32, "l": 64}[kind]
    values = rng.integers(0, 2**63, COUNT, dtype=np.uint64) * U64(2) + rng.integers(0, 2, COUNT, dtype=np.uint64)
    values >>= rng.integers(64 - bits, 64, COUNT).astype(U64)
    values[::3] = rng.choice(np.array(EDGE, U64), values[::3].size)
    return (values & U64(2**bits - 1)).astype(TYPES[kind][1])


def signed(x: np.ndarray) -> np.ndarray:
    return x.view({2: np.int16, 4: np.int32, 8: np.int64}[x.dtype.itemsize]).astype(np.int64)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(U64)


def each(function: Callable[..., int]) -> Callable[..., np.ndarray]:
    """Element by element, in Python's exact integers."""

    def apply(*arrays: np.ndarray) -> np.ndarray:
        rows = zip(*(a.tolist() for a in arrays), strict=True)
        return np.array([function(*row) % 2**64 for row in rows], U64)

    return apply


def s32(v: int) -> int:
    return (v + 2**31) % 2**32 - 2**31


def s64(v: int) -> int:
    return (v + 2**63) % 2**64 - 2**63


def extract(bits: int, is_signed: bool) -> Callable[[int, int, int], int]:
    def bfe(a: int, position: int, length: int) -> int:
        position, length = position & 0xFF, length & 0xFF
        field_ = (a >> position) & ((1 << length) - 1) if position < bits else 0
        top = min(position + length - 1, bits - 1)
        if is_signed and length and (a >> top) & 1:
            kept = max(0, min(length, bits - position))
            field_ |= -1 << kept
        return field_

    return bfe


def insert(bits: int) -> Callable[[int, int, int, int], int]:
    def bfi(a: int, b: int, position: int, length: int) -> int:
        position, length = position & 0xFF, length & 0xFF
        mask = (((1 << length) - 1) << position) & (2**bits - 1)
        return (b & ~mask) | ((a << position) & mask)

    return bfi


def prmt(mode: str) -> Callable[[int, int, int], int]:
    tables = {
        "f4e": [(s, s + 1, s + 2, s + 3) for s in range(4)],
        "b4e": [(s, s + 7, s + 6, s + 5) for s in range(4)],
        "rc8": [(s, s, s, s) for s in range(4)],
        "ecl": [tuple(max(k, s) for k in range(4)) for s in range(4)],
        "ecr": [tuple(min(k, s) for k in range(4)) for s in range(4)],
        "rc16": [(0, 1, 0, 1), (2, 3, 2, 3)] * 2,
    }

    def permute(a: int, b: int, c: int) -> int:
        source, result = a | b << 32, 0
        for k in range(4):
            if mode:
                byte = (source >> 8 * (tables[mode][c & 3][k] % 8)) & 0xFF
            else:
                selector = (c >> 4 * k) & 15
                byte = (source >> 8 * (selector & 7)) & 0xFF
                if selector & 8:
                    byte = 0xFF if byte & 0x80 else 0
            result |= byte << 8 * k
        return result

    return permute


def lop3(table: int) -> Callable[[int, int, int], int]:
    def logic(a: int, b: int, c: int) -> int:
        result = 0
        for k in range(8):
            if table >> k & 1:
                result |= (a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c)
        return result & 0xFFFFFFFF

    return logic


def leading(is_signed: bool, shift_amount: bool) -> Callable[[int], int]:
    def bfind(a: int) -> int:
        value = ~a & 0xFFFFFFFF if is_signed and a >> 31 else a
        top = value.bit_length() - 1
        return 0xFFFFFFFF if top < 0 else (31 - top if shift_amount else top)

    return bfind


def dp2a(a: int, b: int, c: int, high: bool) -> int:
    halves = [s32((a & 0xFFFF) << 16) >> 16, s32(a) >> 16]
    parts = [s32(((b >> (16 * high + 8 * k)) & 0xFF) << 24) >> 24 for k in range(2)]
    return c + halves[0] * parts[0] + halves[1] * parts[1]


def dp4a_mixed(a: int, b: int, c: int) -> int:
    left = [s32(((a >> 8 * k) & 0xFF) << 24) >> 24 for k in range(4)]
    return c + sum(x * ((b >> 8 * k) & 0xFF) for k, x in enumerate(left))


def clamp(low: int, high: int) -> Callable[[int], int]:
    return lambda v: min(max(s32(v), low), high)


SMALL = np.arange(COUNT, dtype=np.uint32) * np.uint32(7) % np.uint32(40)
FIELD = {1: SMALL, 2: SMALL[::-1].copy()}  # position and length
FIELD_TO = {2: SMALL, 3: SMALL[::-1].copy()}
CARRY = "add.cc.u32 lo, al, bl; addc.u32 hi, ah, bh;"
BORROW = "sub.cc.u32 lo, al, bl; subc.u32 hi, ah, bh;"
PAIR = ".reg .u32 al, ah, bl, bh, lo, hi; mov.b64 {al, ah}, %1; mov.b64 {bl, bh}, %2; OP mov.b64 %0, {lo, hi};"
PRODUCT = (
    ".reg .u32 al, ah, bl, bh, lo, hi; mov.b64 {al, ah}, %1; mov.b64 {bl, bh}, %2; mul.lo.u32 lo, al, bl;"
    " mul.hi.u32 hi, al, bl; mad.lo.u32 hi, al, bh, hi; mad.lo.cc.u32 hi, ah, bl, hi; mov.b64 %0, {lo, hi};"
)
HIGH = (  # the high word of a 64-bit product plus a 64-bit number, by the carry chain
    ".reg .u32 lo, hi, cl, ch; mov.b64 {cl, ch}, %3; mad.lo.cc.u32 lo, %1, %2, cl; madc.hi.u32 hi, %1, %2, ch;"
    " mov.b64 %0, {lo, hi};"
)
SETP = ".reg .pred p, q; setp.{} {}; selp.u32 %0, 1, 0, p; @q add.u32 %0, %0, 2;"

INTEGER = [
    Op("add_carry", "l", "ll", PAIR.replace("OP", CARRY), lambda a, b: a + b),
    Op("sub_borrow", "l", "ll", PAIR.replace("OP", BORROW), lambda a, b: a - b),
    Op("mul_parts", "l", "ll", PRODUCT, lambda a, b: a * b),
    Op("mad_carry", "l", "rrl", HIGH, lambda a, b, c: wide(a) * wide(b) + c),
    Op("mad_wide_s32", "l", "rrl", "mad.wide.s32 %0, %1, %2, %3;", lambda a, b, c: signed(a) * signed(b) + signed(c)),
    Op("mad_hi_u32", "r", "rrr", "mad.hi.u32 %0, %1, %2, %3;",
       lambda a, b, c: (wide(a) * wide(b) >> U64(32)) + wide(c)),
    Op("mul_wide_u16", "r", "hh", "mul.wide.u16 %0, %1, %2;", lambda a, b: wide(a) * wide(b)),
    Op("mul_lo_s16", "h", "hh", "mul.lo.s16 %0, %1, %2;", lambda a, b: wide(a) * wide(b)),
    Op("min_s16", "h", "hh", "min.s16 %0, %1, %2;", lambda a, b: np.minimum(signed(a), signed(b))),
    Op("max_s64", "l", "ll", "max.s64 %0, %1, %2;", lambda a, b: np.maximum(signed(a), signed(b))),
    Op("bfe_u32", "r", "rrr", "bfe.u32 %0, %1, %2, %3;", each(extract(32, False)), values=FIELD),
    Op("bfe_s32", "r", "rrr", "bfe.s32 %0, %1, %2, %3;", each(extract(32, True)), values=FIELD),
    Op("bfe_s64", "l", "lrr", "bfe.s64 %0, %1, %2, %3;", each(extract(64, True)), values=FIELD),
    Op("bfi_b32", "r", "rrrr", "bfi.b32 %0, %1, %2, %3, %4;", each(insert(32)), values=FIELD_TO),
    Op("bfi_b64", "l", "llrr", "bfi.b64 %0, %1, %2, %3, %4;", each(insert(64)), values=FIELD_TO),
    *[
        Op(f"prmt_{mode or 'index'}", "r", "rrr", f"prmt.b32{'.' * bool(mode)}{mode} %0, %1, %2, %3;", each(prmt(mode)))
        for mode in ("", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    ],
    *[
        Op(f"lop3_{table:02x}", "r", "rrr", f"lop3.b32 %0, %1, %2, %3, 0x{table:02x};", each(lop3(table)))
        for table in (0x80, 0x96, 0xE8, 0xCA, 0x1B)
    ],
    Op("shf_l_wrap", "r", "rrr", "shf.l.wrap.b32 %0, %1, %2, %3;",
       each(lambda a, b, c: ((b << 32 | a) << (c & 31)) >> 32)),
    Op("shf_r_clamp", "r", "rrr", "shf.r.clamp.b32 %0, %1, %2, %3;", each(lambda a, b, c: (b << 32 | a) >> min(c, 32))),
    Op("shl_clamps", "r", "rr", "shl.b32 %0, %1, %2;", each(lambda a, b: a << min(b, 32)), values={1: SMALL}),
    Op("shr_s32_clamps", "r", "rr", "shr.s32 %0, %1, %2;", each(lambda a, b: s32(a) >> min(b, 31)), values={1: SMALL}),
    Op("shr_u64_clamps", "l", "lr", "shr.u64 %0, %1, %2;", each(lambda a, b: a >> min(b, 64)),
       values={1: SMALL * np.uint32(2)}),
    Op("bfind_u32", "r", "r", "bfind.u32 %0, %1;", each(leading(False, False))),
    Op("bfind_s32", "r", "r", "bfind.s32 %0, %1;", each(leading(True, False))),
    Op("bfind_shift", "r", "r", "bfind.shiftamt.u32 %0, %1;", each(leading(False, True))),
    Op("popc_b64", "r", "l", "popc.b64 %0, %1;", each(lambda a: a.bit_count())),
    Op("clz_b64", "r", "l", "clz.b64 %0, %1;", each(lambda a: 64 - a.bit_length())),
    Op("brev_b64", "l", "l", "brev.b64 %0, %1;", each(lambda a: int(f"{a:064b}"[::-1], 2))),
    Op("sad_u32", "r", "rrr", "sad.u32 %0, %1, %2, %3;", each(lambda a, b, c: c + abs(a - b))),
    Op("dp2a_lo", "r", "rrr", "dp2a.lo.s32.s32 %0, %1, %2, %3;", each(lambda a, b, c: dp2a(a, b, c, False))),
    Op("dp2a_hi", "r", "rrr", "dp2a.hi.s32.s32 %0, %1, %2, %3;", each(lambda a, b, c: dp2a(a, b, c, True))),
    Op("dp4a_mixed", "r", "rrr", "dp4a.s32.u32 %0, %1, %2, %3;", each(dp4a_mixed)),
    Op("cnot", "r", "r", "cnot.b32 %0, %1;", lambda a: a == 0),
    Op("abs_s64", "l", "l", "abs.s64 %0, %1;", lambda a: np.abs(signed(a))),
    Op("slct", "r", "rrr", "slct.u32.s32 %0, %1, %2, %3;", lambda a, b, c: np.where(signed(c) >= 0, a, b)),
    Op("set_lt", "r", "rr", "set.lt.u32.s32 %0, %1, %2;", lambda a, b: np.where(signed(a) < signed(b), -1, 0)),
    Op("set_gt_f32", "f", "ff", "set.gt.f32.f32 %0, %1, %2;", lambda a, b: (a > b).astype(np.float32)),
    Op("setp_and", "r", "rrr",
       SETP.format("lt.and.s32", "p|q, %1, %2, r").replace("p, q;", "p, q, r; setp.ne.u32 r, %3, 0;"),
       lambda a, b, c: ((signed(a) < signed(b)) & (c != 0)) + 2 * (~(signed(a) < signed(b)) & (c != 0))),
    Op("setp_unordered", "r", "ff", SETP.format("ltu.f32", "p|q, %1, %2"), lambda a, b: 2 - (~(a >= b)).astype(int)),
    Op("setp_unsigned", "r", "rr",
       ".reg .pred p, q; .reg .b32 a, b; and.b32 a, %1, 3; and.b32 b, %2, 3; setp.lo.u32 p, a, b; setp.ls.u32 q, a, b;"
       "selp.u32 %0, 1, 0, p; @q add.u32 %0, %0, 2; setp.hi.u32 p, a, b; setp.hs.u32 q, a, b; @p add.u32 %0, %0, 4;"
       "@q add.u32 %0, %0, 8;",
       lambda a, b: (((a & 3) < (b & 3)) + 2 * ((a & 3) <= (b & 3)) + 4 * ((a & 3) > (b & 3)) +
                     8 * ((a & 3) >= (b & 3)))),
    Op("setp_num_nan", "r", "ff",
       ".reg .pred p, q; setp.num.f32 p, %1, %2; setp.nan.f32 q, %1, %2; selp.u32 %0, 1, 0, p;"
       " @q add.u32 %0, %0, 2;", lambda a, b: np.where(np.isnan(a) | np.isnan(b), 2, 1)),
    Op("rem_s32", "r", "rr", "rem.s32 %0, %1, %2;", each(lambda a, b: int(np.fmod(s32(a), s32(b)))),
       values={1: SMALL * np.uint32(99991) - np.uint32(2000001)}),
    Op("unpack_b16", "r", "l", ".reg .b16 x, y, z, w; mov.b64 {x, y, z, w}, %1; mov.b32 %0, {z, x};",
       each(lambda a: ((a >> 32) & 0xFFFF) | (a & 0xFFFF) << 16)),
    Op("cvt_sat_s8", "r", "r", ".reg .s8 t; cvt.sat.s8.s32 t, %1; cvt.s32.s8 %0, t;", each(clamp(-128, 127))),
    Op("cvt_sat_u16", "r", "r", ".reg .u16 t; cvt.sat.u16.s32 t, %1; cvt.u32.u16 %0, t;", each(clamp(0, 65535))),
    Op("cvt_s64_s16", "l", "h", "cvt.s64.s16 %0, %1;", signed),
]  # fmt: skip


# ------------------------------------------------------------------------------------------- floating point
def exact_fma32(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c with one rounding, by exact fractions (finite values)."""
    from .floats import exact_fma
    from .integers import directed

    return directed([exact_fma(*row) for row in zip(a, b, c, strict=True)], np.float32)[0]


def hard_cases() -> dict[int, np.ndarray]:
    """Sums that lie a hair beside the middle of two float32: rounding through float64 gets them wrong."""
    rng = np.random.default_rng(7)
    one = 1 + rng.integers(0, 2**23, COUNT) * 2.0**-23
    a = (1 + 2.0**-23 * rng.integers(1, 4, COUNT)) * np.where(rng.integers(0, 2, COUNT), 1, -1)
    b = (1 - 2.0**-23 * rng.integers(1, 4, COUNT)) * 2.0**-24
    return {0: a.astype(np.float32), 1: b.astype(np.float32), 2: one.astype(np.float32)}


def ordinary(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(COUNT) * 10.0 ** rng.integers(-6, 7, COUNT)).astype(np.float32)


def flush(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x).astype(np.float32)


TINY = (np.arange(COUNT, dtype=np.float32) - 96) * np.float32(3e-40)


def halves(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.float16).reshape(-1, 2)


def packed(pair: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(pair.astype(np.float16)).view(np.uint32).ravel()


def half_inputs(count: int, seed: int = 3) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {k: packed(rng.standard_normal((COUNT, 2)) * 4) for k in range(count)}


def bf_inputs(count: int) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(5)
    return {k: bf_packed(rng.standard_normal((COUNT, 2)).astype(np.float32) * 4) for k in range(count)}


def bf_pair(x: np.ndarray) -> np.ndarray:
    return from_bf16(np.ascontiguousarray(x).view(np.uint16)).reshape(-1, 2).astype(np.float64)


def bf_packed(pair: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(to_bf16(pair.astype(np.float32))).view(np.uint32).ravel()


def fma_half(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    x, y, z = (halves(v).astype(np.float64) for v in (a, b, c))
    return x * y + z


def tf32(x: np.ndarray) -> np.ndarray:
    """Round to nearest, ties away, to 10 bits after the point."""
    bits = x.view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def number_or_nan(function: Callable) -> Callable:
    return lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.nan, function(a, b))


LAST_BITS = Tol(3e-7, 0, "an approximation whose last bits are the hardware's own")
FLOAT = [
    Op("fma_hard", "f", "fff", "fma.rn.f32 %0, %1, %2, %3;", exact_fma32, values=hard_cases()),
    Op("fma_ftz", "f", "fff", "fma.rn.ftz.f32 %0, %1, %2, %3;",
       lambda a, b, c: flush((flush(a).astype(np.float64) * flush(b) + flush(c)).astype(np.float32)),
       values={0: TINY, 1: ordinary(1), 2: TINY[::-1].copy()}),
    Op("add_ftz", "f", "ff", "add.ftz.f32 %0, %1, %2;", lambda a, b: flush(flush(a) + flush(b)),
       values={0: TINY, 1: TINY[::-1].copy() * np.float32(1.01)}),
    Op("mul_keeps_subnormals", "f", "ff", "mul.f32 %0, %1, %2;", lambda a, b: a * b, values={0: TINY}),
    Op("add_sat", "f", "ff", "add.sat.f32 %0, %1, %2;",
       lambda a, b: np.where(np.isnan(a + b), 0, np.clip(a + b, 0, 1)) + np.float32(0)),
    Op("min_nan", "f", "ff", "min.NaN.f32 %0, %1, %2;", number_or_nan(np.minimum), values={1: ordinary(2)}),
    Op("max_plain", "f", "ff", "max.f32 %0, %1, %2;", np.fmax, values={1: ordinary(2)}),
    Op("copysign", "f", "ff", "copysign.f32 %0, %1, %2;", lambda a, b: np.copysign(b, a)),
    Op("testp_subnormal", "r", "f", ".reg .pred p; testp.subnormal.f32 p, %1; selp.u32 %0, 1, 0, p;",
       lambda a: (a != 0) & (np.abs(a) < np.float32(2.0**-126))),
    Op("cvt_rni", "f", "f", "cvt.rni.f32.f32 %0, %1;", np.rint),
    Op("cvt_rzi_s32", "r", "f", "cvt.rzi.s32.f32 %0, %1;",
       lambda a: np.where(np.isnan(a), 0, np.clip(np.trunc(a.astype(float)), -(2**31), 2**31 - 1)).astype(np.int64)),
    Op("cvt_f16x2", "r", "ff", "cvt.rn.f16x2.f32 %0, %1, %2;", lambda a, b: packed(np.stack([b, a], axis=1)),
       values={0: ordinary(1), 1: ordinary(2)}),
    Op("cvt_bf16x2", "r", "ff", "cvt.rn.bf16x2.f32 %0, %1, %2;", lambda a, b: bf_packed(np.stack([b, a], axis=1)),
       values={0: ordinary(1), 1: ordinary(2)}),
    Op("cvt_tf32", "f", "f", ".reg .b32 t; cvt.rna.tf32.f32 t, %1; mov.b32 %0, t;", tf32, values={0: ordinary(3)}),
    Op("rcp_rn", "f", "f", "rcp.rn.f32 %0, %1;", lambda a: np.float32(1) / a),
    Op("sqrt_rn_f64", "d", "d", "sqrt.rn.f64 %0, %1;", np.sqrt),
    Op("div_rn_f64", "d", "dd", "div.rn.f64 %0, %1, %2;", lambda a, b: a / b),
    Op("ex2", "f", "f", "ex2.approx.f32 %0, %1;", lambda a: np.exp2(a.astype(np.float64)), LAST_BITS,
       {0: np.linspace(-20, 20, COUNT, dtype=np.float32)}),
    Op("lg2", "f", "f", "lg2.approx.f32 %0, %1;", lambda a: np.log2(a.astype(np.float64)), Tol(3e-7, 3e-7),
       {0: np.geomspace(1e-20, 1e20, COUNT, dtype=np.float32)}),
    Op("sin", "f", "f", "sin.approx.f32 %0, %1;", lambda a: np.sin(a.astype(np.float64)), Tol(0, 1e-6),
       {0: np.linspace(-3, 3, COUNT, dtype=np.float32)}),
    Op("rsqrt", "f", "f", "rsqrt.approx.f32 %0, %1;", lambda a: 1 / np.sqrt(a.astype(np.float64)), LAST_BITS,
       {0: np.geomspace(1e-20, 1e20, COUNT, dtype=np.float32)}),
    Op("tanh", "f", "f", "tanh.approx.f32 %0, %1;", lambda a: np.tanh(a.astype(np.float64)), Tol(6e-4, 1e-6),
       {0: np.linspace(-5, 5, COUNT, dtype=np.float32)}),
    Op("div_full", "f", "ff", "div.full.f32 %0, %1, %2;", lambda a, b: a.astype(np.float64) / b, LAST_BITS,
       {0: ordinary(4), 1: ordinary(5)}),
    Op("rcp_f64", "d", "d", "rcp.approx.ftz.f64 %0, %1;", lambda a: 1 / a, Tol(2e-6),
       {0: np.geomspace(1e-9, 1e9, COUNT)}),
    Op("fma_f16x2", "r", "rrr", "fma.rn.f16x2 %0, %1, %2, %3;", lambda a, b, c: packed(fma_half(a, b, c)),
       values=half_inputs(3)),
    Op("fma_relu_f16x2", "r", "rrr", "fma.rn.relu.f16x2 %0, %1, %2, %3;",
       lambda a, b, c: packed(np.maximum(fma_half(a, b, c), 0)), values=half_inputs(3)),
    Op("add_f16x2", "r", "rr", "add.rn.f16x2 %0, %1, %2;", lambda a, b: packed(halves(a) + halves(b)),
       values=half_inputs(2)),
    Op("max_f16x2", "r", "rr", "max.f16x2 %0, %1, %2;", lambda a, b: packed(np.maximum(halves(a), halves(b))),
       values=half_inputs(2)),
    Op("neg_f16x2", "r", "r", "neg.f16x2 %0, %1;", lambda a: packed(-halves(a)), values=half_inputs(1)),
    Op("setp_f16x2", "r", "rr",
       ".reg .pred p, q; setp.lt.f16x2 p|q, %1, %2; selp.u32 %0, 1, 0, p; @q add.u32 %0, %0, 2;",
       lambda a, b: (halves(a) < halves(b)) @ np.array([1, 2]), values=half_inputs(2)),
    Op("ex2_f16x2", "r", "r", "ex2.approx.f16x2 %0, %1;", lambda a: packed(np.exp2(halves(a).astype(np.float64))),
       Tol(2e-3, 0, "an approximation: 2 ulp of float16"), half_inputs(1, 9)),
    Op("fma_bf16x2", "r", "rrr", "fma.rn.bf16x2 %0, %1, %2, %3;",
       lambda a, b, c: bf_packed(bf_pair(a) * bf_pair(b) + bf_pair(c)), values=bf_inputs(3)),
    Op("max_bf16x2", "r", "rr", "max.bf16x2 %0, %1, %2;", lambda a, b: bf_packed(np.maximum(bf_pair(a), bf_pair(b))),
       values=bf_inputs(2)),
    Op("mul_f16", "h", "hh", "mul.rn.f16 %0, %1, %2;",
       lambda a, b: (a.view(np.float16) * b.view(np.float16)).view(np.uint16),
       values={k: np.random.default_rng(k).standard_normal(COUNT).astype(np.float16).view(np.uint16) for k in (0, 1)}),
]  # fmt: skip

OPS = INTEGER + FLOAT
SOURCE = "\n".join(op.kernel() for op in OPS)
NAMES = tuple(f"op_{op.name}" for op in OPS)


def comparable(values: np.ndarray, tol: Tol | None) -> np.ndarray:
    """Bits (all NaNs alike) where every bit counts, else numbers; a packed pair of halves as two numbers."""
    if tol is None:
        return bits_of(values)
    return values.view(np.float16) if values.dtype == np.uint32 else values
