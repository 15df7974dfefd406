"""Inline PTX beyond single-register arithmetic: warp, control, memory, matrix instructions, special registers."""

from __future__ import annotations

import numpy as np

from .elementwise import nothing
from .harness import Arrays, Case, Runner, Tol

# --------------------------------------------------------------------------------------------------- warp
WARP = r"""
#define FULL 0xffffffffu

__global__ void warp_ptx(const unsigned* __restrict__ x, unsigned* __restrict__ out)
{
    int t = threadIdx.x;
    unsigned v = x[t], r[14];
    asm volatile("{ .reg .pred p; shfl.sync.up.b32 %0|p, %2, 3, 0, %3; selp.u32 %1, 1, 0, p; }"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(v), "r"(FULL));
    asm volatile("{ .reg .pred p; shfl.sync.idx.b32 %0|p, %2, %4, 0x1c1f, %3; selp.u32 %1, 1, 0, p; }"
                 : "=r"(r[2]), "=r"(r[3]) : "r"(v), "r"(FULL), "r"(v & 7));
    asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; vote.sync.uni.pred q, p, %2; selp.u32 %0, 1, 0, q; }"
                 : "=r"(r[4]) : "r"(v & 1), "r"(FULL));
    asm volatile("{ .reg .pred p; match.all.sync.b32 %0|p, %2, %3; selp.u32 %1, 1, 0, p; }"
                 : "=r"(r[5]), "=r"(r[6]) : "r"(t / 32), "r"(FULL));
    asm volatile("redux.sync.min.s32 %0, %1, %2;" : "=r"(r[7]) : "r"(v - 7), "r"(FULL));
    asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(r[8]));
    asm volatile("mov.u32 %0, %%lanemask_le;" : "=r"(r[9]));
    asm volatile("mov.u32 %0, %%lanemask_gt;" : "=r"(r[10]));
    asm volatile("mov.u32 %0, %%lanemask_ge;" : "=r"(r[11]));
    asm volatile("mov.u32 %0, %%lanemask_eq;" : "=r"(r[12]));
    asm volatile("{ .reg .pred p; elect.sync _|p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(r[13]) : "r"(FULL));
    for (int k = 0; k < 14; ++k) out[k * 64 + t] = r[k];
}
"""


def inputs_warp(size: int, rng: np.random.Generator) -> Arrays:
    return {"x": rng.integers(0, 100, 64).astype(np.uint32)}


def launch_warp(gpu: Runner, size: int, x: np.ndarray) -> Arrays:
    out = gpu.empty((14, 64), np.uint32)
    gpu.launch("warp_ptx", 1, 64, gpu.to_device(x), out)
    got = gpu.to_host(out)
    # elect.sync: one lane of each warp, whichever the device likes
    return {"out": got[:13].copy(), "elected": got[13].reshape(2, 32).sum(axis=1)}


def reference_warp(size: int, x: np.ndarray) -> Arrays:
    v, lane = x.reshape(2, 32).astype(np.int64), np.arange(32)
    up = np.where(lane >= 3, v[:, lane - 3], v)
    index = lane // 4 * 4 + (v & 7) % 4  # segments of four (mask 0x1c)
    picked = np.take_along_axis(v, index, axis=1)
    uniform = ((v & 1) == (v[:, :1] & 1)).all(axis=1, keepdims=True)
    ones = np.ones((2, 32), np.int64)
    bits = np.broadcast_to(1 << lane, (2, 32))
    rows = [
        up, (lane >= 3) * ones, picked, ones, uniform * ones, ones * 0xFFFFFFFF, ones,
        (v.min(axis=1, keepdims=True) - 7) * ones, bits - 1, 2 * bits - 1, ~(2 * bits - 1), ~(bits - 1), bits,
    ]  # fmt: skip
    out = np.stack([(r.astype(np.int64) & 0xFFFFFFFF).ravel() for r in rows]).astype(np.uint32)
    return {"out": out, "elected": np.ones(2, np.uint64)}


# ------------------------------------------------------------------------------------------------ control
CONTROL = r"""
__global__ void jump_table(const unsigned* __restrict__ x, unsigned* __restrict__ out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned r;
    asm volatile(
        "{\n\t"
        "targets: .branchtargets case0, case1, case2, case3;\n\t"
        "mov.u32 %0, %1;\n\t"
        "brx.idx %2, targets;\n\t"
        "case0: add.u32 %0, %0, 100;\n\t"      // falls into case1
        "case1: mul.lo.u32 %0, %0, 3;\n\t"
        "bra.uni join;\n\t"
        "case2: not.b32 %0, %0;\n\t"
        "bra join;\n\t"
        "case3: shl.b32 %0, %0, 4;\n\t"
        "join: add.u32 %0, %0, 1;\n\t"
        "}"
        : "=&r"(r) : "r"(x[i]), "r"(x[i] % 4));
    out[i] = r;
}

__global__ void barrier_reductions(const unsigned* __restrict__ x, unsigned* __restrict__ out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned count, all, any;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; barrier.cta.red.popc.u32 %0, 3, p; }"
                 : "=r"(count) : "r"(x[i] & 1));
    asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.and.pred q, 0, p; selp.u32 %0, 1, 0, q; }"
                 : "=r"(all) : "r"(x[i] & 3));
    asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.or.pred q, 0, p; selp.u32 %0, 1, 0, q; }"
                 : "=r"(any) : "r"((unsigned)(x[i] == 7)));
    asm volatile("barrier.cta.sync 0;" ::: "memory");
    asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
    out[i] = count | all << 16 | any << 17;
}

__global__ void leave(const unsigned* __restrict__ x, volatile unsigned* out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = 1;
    asm volatile("{ .reg .pred p; setp.gt.u32 p, %0, 50; @p exit; }" ::"r"(x[i]) : "memory");
    asm volatile("nanosleep.u32 20;");
    out[i] = 2;
}
"""


def inputs_control(size: int, rng: np.random.Generator) -> Arrays:
    return {"x": rng.integers(0, 100, size * 48).astype(np.uint32)}


def launch_control(gpu: Runner, size: int, x: np.ndarray) -> Arrays:
    out = {}
    for name in ("jump_table", "barrier_reductions", "leave"):
        result = gpu.empty(x.size, np.uint32)
        gpu.launch(name, size, 48, gpu.to_device(x), result)
        out[name] = gpu.to_host(result)
    return out


def reference_control(size: int, x: np.ndarray) -> Arrays:
    rows = x.reshape(size, 48)
    odd, all_, any_ = (rows & 1).sum(axis=1).astype(np.int64), (rows & 3).all(axis=1), (rows == 7).any(axis=1)
    arms = [(x + np.uint32(100)) * np.uint32(3), x * np.uint32(3), ~x, x << np.uint32(4)]
    return {
        "jump_table": (np.choose(x % 4, arms) + np.uint32(1)).astype(np.uint32),
        "barrier_reductions": np.repeat(odd | all_ << 16 | any_ << 17, 48).astype(np.uint32),
        "leave": np.where(x > 50, 1, 2).astype(np.uint32),
    }


# ------------------------------------------------------------------------------------------------- memory
MEMORY = r"""
// Loads and stores with every hint that compilers and books use; they all move the same bytes.
__global__ void hints(const int* x, int* out, unsigned long long* sum)
{
    int t = threadIdx.x, v[8];
    const int* p = x + t;
    asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(v[0]) : "l"(p));
    asm volatile("ld.global.ca.s32 %0, [%1+256];" : "=r"(v[1]) : "l"(p));
    asm volatile("ld.global.cs.s32 %0, [%1];" : "=r"(v[2]) : "l"(p));
    asm volatile("ld.global.L1::no_allocate.s32 %0, [%1];" : "=r"(v[3]) : "l"(p));
    asm volatile("ld.volatile.global.s32 %0, [%1];" : "=r"(v[4]) : "l"(p));
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(v[5]) : "l"(p));
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v[6]) : "l"(p));
    asm volatile("ld.s32 %0, [%1];" : "=r"(v[7]) : "l"(p));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
    int total = 0;
    for (int k = 0; k < 8; ++k) total = total * 3 + v[k];
    int* q = out + t;
    asm volatile("st.global.wt.s32 [%0], %1;" ::"l"(q), "r"(total) : "memory");
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(q + 64), "r"(total + 1) : "memory");
    asm volatile("st.global.cg.s32 [%0+512], %1;" ::"l"(q), "r"(total + 2) : "memory");
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(sum), "l"((long long)v[0]) : "memory");
    asm volatile("fence.sc.cta; fence.acq_rel.gpu; membar.gl; membar.sys;" ::: "memory");
}

// Narrow loads widen by their type; vectors of four; addresses with offsets; the same word through three spaces.
__global__ void shapes(const unsigned char* bytes, int* out)
{
    __shared__ int s[64];
    int t = threadIdx.x, signed_byte, unsigned_byte, half_word, a, b, c, d, in_shared, in_global;
    const unsigned char* p = bytes + 16 * t;
    asm volatile("ld.global.s8 %0, [%1+3];" : "=r"(signed_byte) : "l"(p));
    asm volatile("ld.global.u8 %0, [%1+3];" : "=r"(unsigned_byte) : "l"(p));
    asm volatile("ld.global.s16 %0, [%1+6];" : "=r"(half_word) : "l"(p));
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(p));
    unsigned to = (unsigned)__cvta_generic_to_shared(&s[t]);
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(a ^ b) : "memory");
    asm volatile("atom.shared.add.u32 %0, [%1], 5;" : "=r"(b) : "r"(to) : "memory");
    asm volatile("{ .reg .pred p; isspacep.shared p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(in_shared) : "l"(&s[t]));
    asm volatile("{ .reg .pred p; isspacep.global p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(in_global) : "l"(out));
    asm volatile("ld.u32 %0, [%1];" : "=r"(c) : "l"(&s[t]) : "memory");
    int* q = out + 8 * t;
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(q), "r"(signed_byte), "r"(unsigned_byte),
                 "r"(half_word), "r"(b) : "memory");
    asm volatile("st.global.v2.u32 [%0+16], {%1, %2};" ::"l"(q), "r"(c), "r"(d) : "memory");
    asm volatile("st.global.v2.u16 [%0+24], {%1, %2};" ::"l"(q), "h"((short)in_shared), "h"((short)in_global)
                 : "memory");
    asm volatile("st.global.u8 [%0+28], %1; st.global.u8 [%0+29], 7; st.global.u16 [%0+30], %1;" ::"l"(q), "r"(d)
                 : "memory");
}

// A base below the array and an offset that brings it back: addresses wrap.
__global__ void negative(const int* x, int* out)
{
    __shared__ int s[64];
    int t = threadIdx.x, a, b, c;
    s[t] = x[t];
    __syncthreads();
    unsigned narrow = (unsigned)__cvta_generic_to_shared(s) - 4u * t;
    unsigned long long wide = __cvta_generic_to_shared(s) - 4ull * t;
    asm volatile("ld.shared.s32 %0, [%1+252];" : "=r"(a) : "r"(narrow) : "memory");
    asm volatile("ld.shared.s32 %0, [%1+252];" : "=r"(b) : "l"(wide) : "memory");
    asm volatile("ld.global.s32 %0, [%1+-4];" : "=r"(c) : "l"(x + 64 - t) : "memory");
    out[t] = a;
    out[64 + t] = b;
    out[128 + t] = c;
}

__global__ void atoms(unsigned* u, unsigned long long* w, unsigned short* h, float* f)
{
    unsigned t = threadIdx.x;
    asm volatile("{ .reg .u32 r; atom.global.inc.u32 r, [%0], 20; }" ::"l"(u) : "memory");
    asm volatile("{ .reg .u32 r; atom.relaxed.gpu.global.max.s32 r, [%0], %1; }" ::"l"(u + 1), "r"(t - 30) : "memory");
    asm volatile("red.global.xor.b32 [%0], %1;" ::"l"(u + 2), "r"(t * 77) : "memory");
    asm volatile("atom.acq_rel.sys.add.u32 _, [%0], %1;" ::"l"(u + 3), "r"(t) : "memory");
    unsigned long long old, seen;
    asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(seen) : "l"(w));
    do {
        old = seen;
        asm volatile("atom.global.cas.b64 %0, [%1], %2, %3;" : "=l"(seen) : "l"(w), "l"(old), "l"(old * 5 + 1)
                     : "memory");
    } while (seen != old);
    unsigned short previous, mine;
    asm volatile("ld.volatile.global.u16 %0, [%1];" : "=h"(mine) : "l"(h));
    do {
        previous = mine;
        asm volatile("atom.global.cas.b16 %0, [%1], %2, %3;" : "=h"(mine) : "l"(h), "h"(previous),
                     "h"((unsigned short)(previous + 3)) : "memory");
    } while (mine != previous);
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(f), "f"(t * 0.5f) : "memory");
}
"""


def inputs_memory(size: int, rng: np.random.Generator) -> Arrays:
    return {
        "x": rng.integers(-1000, 1000, 128).astype(np.int32),
        "bytes_": rng.integers(0, 256, (64, 16)).astype(np.uint8),
    }


def launch_memory(gpu: Runner, size: int, x: np.ndarray, bytes_: np.ndarray) -> Arrays:
    hints, total, shapes = gpu.empty((3, 64), np.int32), gpu.zeros(1, np.uint64), gpu.empty((64, 8), np.int32)
    gpu.launch("hints", 1, 64, gpu.to_device(x), hints, total)
    gpu.launch("shapes", 1, 64, gpu.to_device(bytes_), shapes)
    u, w, h, f = gpu.zeros(4, np.uint32), gpu.zeros(1, np.uint64), gpu.zeros(1, np.uint16), gpu.zeros(1, np.float32)
    u = gpu.to_device(np.array([0, 2**32 - 100, 0, 0], np.uint32))
    gpu.launch("atoms", 1, 64, u, w, h, f)
    negative = gpu.empty((3, 64), np.int32)
    gpu.launch("negative", 1, 64, gpu.to_device(x), negative)
    arrays = {"hints": hints, "total": total, "shapes": shapes, "negative": negative, "u": u, "w": w, "h": h, "f": f}
    return {key: gpu.to_host(array) for key, array in arrays.items()}


def reference_memory(size: int, x: np.ndarray, bytes_: np.ndarray) -> Arrays:
    low, total = x[:64].astype(np.int64), np.zeros(64, np.int64)
    for k in range(8):
        total = total * 3 + (x[64:] if k == 1 else low)
    words = bytes_.view(np.int32)
    mixed = words[:, 0] ^ words[:, 1]
    tail = np.zeros((64, 4), np.uint8)
    tail[:, 0], tail[:, 1] = bytes_[:, 12], 7
    tail[:, 2:] = bytes_[:, 12:14]
    columns = [
        bytes_[:, 3].view(np.int8), bytes_[:, 3], bytes_[:, 6:8].copy().view(np.int16)[:, 0], mixed,
        mixed + np.int32(5), words[:, 3], np.full(64, 0x10001), tail.view(np.int32)[:, 0],
    ]  # fmt: skip
    product = 0
    for _ in range(64):
        product = (product * 5 + 1) % 2**64
    xor = 0
    for t in range(64):
        xor ^= t * 77
    return {
        "hints": np.stack([total, total + 1, total + 2]).astype(np.int32),
        "total": np.array([int(low.sum()) % 2**64], np.uint64),
        "negative": np.stack([x[63::-1]] * 3),
        "shapes": np.stack(columns, axis=1).astype(np.int32),
        "u": np.array([64 % 21, 33, xor, 64 * 63 // 2], np.uint32),
        "w": np.array([product], np.uint64),
        "h": np.array([192], np.uint16),
        "f": np.array([64 * 63 / 4], np.float32),
    }


# ------------------------------------------------------------------------------------------ other matrices
MATRIX = r"""
// The fragment layouts of the PTX manual, filled by hand: A[16][K] row-major, B[K][8] given as its columns.
__global__ void mma_tf32(const float* A, const float* Bt, float* C)
{
    int lane = threadIdx.x, g = lane / 4, q = lane % 4;
    float a[4] = {A[g * 8 + q], A[(g + 8) * 8 + q], A[g * 8 + q + 4], A[(g + 8) * 8 + q + 4]};
    float b[2] = {Bt[g * 8 + q], Bt[g * 8 + q + 4]}, c[4] = {1, 2, 3, 4};
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
                   "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
    for (int k = 0; k < 4; ++k) C[(g + k / 2 * 8) * 8 + q * 2 + k % 2] = c[k];
}

__global__ void mma_s8(const int* A, const int* Bt, int* C)      // K = 32: eight words of four int8 a row
{
    int lane = threadIdx.x, g = lane / 4, q = lane % 4, c[4] = {};
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(A[g * 8 + q]), "r"(A[(g + 8) * 8 + q]), "r"(A[g * 8 + q + 4]), "r"(A[(g + 8) * 8 + q + 4]),
                   "r"(Bt[g * 8 + q]), "r"(Bt[g * 8 + q + 4]));
    for (int k = 0; k < 4; ++k) C[(g + k / 2 * 8) * 8 + q * 2 + k % 2] = c[k];
}

__global__ void mma_f16_f16(const unsigned* A, const unsigned* Bt, unsigned* C)     // K = 8, float16 sums
{
    int lane = threadIdx.x, g = lane / 4, q = lane % 4;
    unsigned c[2] = {0, 0};
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3}, {%4}, {%0,%1};"
                 : "+r"(c[0]), "+r"(c[1])
                 : "r"(A[g * 4 + q]), "r"(A[(g + 8) * 4 + q]), "r"(Bt[g * 4 + q]));
    C[g * 4 + q] = c[0];
    C[(g + 8) * 4 + q] = c[1];
}
"""


def inputs_matrix(size: int, rng: np.random.Generator) -> Arrays:
    return {
        "a": rng.integers(-8, 9, (16, 8)).astype(np.float32) / 4,
        "b": rng.integers(-8, 9, (8, 8)).astype(np.float32) / 4,
        "ia": rng.integers(-128, 128, (16, 32)).astype(np.int8),
        "ib": rng.integers(-128, 128, (8, 32)).astype(np.int8),
    }


def launch_matrix(gpu: Runner, size: int, a, b, ia, ib) -> Arrays:
    tf32, s8, f16 = gpu.empty((16, 8), np.float32), gpu.empty((16, 8), np.int32), gpu.empty((16, 8), np.float16)
    gpu.launch("mma_tf32", 1, 32, gpu.to_device(a), gpu.to_device(b), tf32)
    gpu.launch("mma_s8", 1, 32, gpu.to_device(ia), gpu.to_device(ib), s8)
    gpu.launch("mma_f16_f16", 1, 32, gpu.to_device(a.astype(np.float16)), gpu.to_device(b.astype(np.float16)), f16)
    return {key: gpu.to_host(array) for key, array in (("tf32", tf32), ("s8", s8), ("f16", f16))}


def reference_matrix(size: int, a, b, ia, ib) -> Arrays:
    # quarters of small integers: exact in every type, in any order
    product = a.astype(np.float64) @ b.T
    start = np.tile([1, 2], (8, 4)), np.tile([3, 4], (8, 4))
    return {
        "tf32": (product + np.concatenate(start)).astype(np.float32),
        "s8": (ia.astype(np.int64) @ ib.T.astype(np.int64)).astype(np.int32),
        "f16": product.astype(np.float16),
    }


# -------------------------------------------------------------------------------------- special registers
SPECIAL = r"""
__global__ void special(unsigned* out, unsigned* sm)
{
    extern __shared__ int dynamic[];
    int t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned r[8], s;
    dynamic[t] = t;
    __syncthreads();
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(r[0]));
    asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(r[1]));
    asm volatile("mov.u32 %0, %%ntid.y;" : "=r"(r[2]));
    asm volatile("mov.u32 %0, %%nctaid.z;" : "=r"(r[3]));
    asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(r[4]));
    asm volatile("mov.u32 %0, WARP_SZ;" : "=r"(r[5]));
    asm volatile("mov.u32 %0, %%smid;" : "=r"(s));
    asm volatile("mov.u32 %0, %%nsmid;" : "=r"(r[6]));
    r[6] = s < r[6];
    r[7] = dynamic[t];
    for (int k = 0; k < 8; ++k) out[(b * 60 + t) * 8 + k] = r[k];
    if (t == 0) sm[b] = s;
}
"""


def launch_special(gpu: Runner, size: int) -> Arrays:
    out, sm = gpu.empty((12, 60, 8), np.uint32), gpu.empty(12, np.uint32)
    gpu.launch("special", (2, 3, 2), (5, 4, 3), out, sm, shmem=240)
    low = gpu.to_host(sm)
    return {"out": gpu.to_host(out), "sm_in_range": low < gpu.device.properties.multiprocessor_count}


def reference_special(size: int) -> Arrays:
    out = np.empty((12, 60, 8), np.uint32)
    b, t = np.indices((12, 60))
    columns = (t % 32, 240, 4, 2, b // 2 % 3, 32, 1, t)
    for k, column in enumerate(columns):
        out[:, :, k] = column
    return {"out": out, "sm_in_range": np.ones(12, bool)}


CASES = [
    Case("ptx_warp", WARP, ("warp_ptx",), inputs_warp, launch_warp, reference_warp, (1, 2)),
    Case(
        "ptx_control",
        CONTROL,
        ("jump_table", "barrier_reductions", "leave"),
        inputs_control,
        launch_control,
        reference_control,
        (1, 5),
    ),
    Case(
        "ptx_memory",
        MEMORY,
        ("hints", "shapes", "negative", "atoms"),
        inputs_memory,
        launch_memory,
        reference_memory,
        (1,),
    ),
    Case(
        "ptx_mma",
        MATRIX,
        ("mma_tf32", "mma_s8", "mma_f16_f16"),
        inputs_matrix,
        launch_matrix,
        reference_matrix,
        (1,),
        gpu={"tf32": Tol(1e-6)},
    ),
    Case("special_registers", SPECIAL, ("special",), nothing, launch_special, reference_special, (1,)),
]
