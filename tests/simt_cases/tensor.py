"""Tensor cores (wmma, mma.sync with ldmatrix) and asynchronous copies into shared memory (cp.async)."""

from __future__ import annotations

import numpy as np

from .harness import Arrays, Case, Runner, Tol, blocks_for
from .small_types import from_bf16, to_bf16

# --------------------------------------------------------------------------------------------------- wmma
WMMA = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <mma.h>
using namespace nvcuda;

// One warp per block makes one 16 x 16 tile of C = A * B + C. A is row-major, B column-major (that is, B
// transposed); M, N and K are multiples of 16.
template <typename In, typename Acc>
__device__ void tile_product(const In* A, const In* B, Acc* C, int N, int K)
{
    wmma::fragment<wmma::matrix_a, 16, 16, 16, In, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, In, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, Acc> c;
    int row = blockIdx.y * 16, col = blockIdx.x * 16;
    wmma::load_matrix_sync(c, C + row * N + col, N, wmma::mem_row_major);
    for (int k = 0; k < K; k += 16) {
        wmma::load_matrix_sync(a, A + row * K + k, K);
        wmma::load_matrix_sync(b, B + col * K + k, K);
        wmma::mma_sync(c, a, b, c);
    }
    for (int i = 0; i < c.num_elements; ++i) c.x[i] = c.x[i] + c.x[i];
    wmma::store_matrix_sync(C + row * N + col, c, N, wmma::mem_row_major);
}

__global__ void wmma_f16_f32(const half* A, const half* B, float* C, int N, int K) { tile_product(A, B, C, N, K); }
__global__ void wmma_f16_f16(const half* A, const half* B, half* C, int N, int K) { tile_product(A, B, C, N, K); }
__global__ void wmma_bf16_f32(const __nv_bfloat16* A, const __nv_bfloat16* B, float* C, int N, int K)
{
    tile_product(A, B, C, N, K);
}
__global__ void wmma_s8_s32(const signed char* A, const signed char* B, int* C, int N, int K)
{
    tile_product(A, B, C, N, K);
}

// B row-major, staged through shared memory, C written column-major.
__global__ void wmma_shared(const half* A, const half* B, float* Ct, int M, int N, int K)
{
    __shared__ half As[16][16], Bs[16][24];    // rows of 48 bytes: still 16-byte aligned, other banks
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
    wmma::fill_fragment(c, 0.0f);
    int row = blockIdx.y * 16, col = blockIdx.x * 16;
    for (int k = 0; k < K; k += 16) {
        for (int i = threadIdx.x; i < 256; i += 32) {
            As[i / 16][i % 16] = A[(row + i / 16) * K + k + i % 16];
            Bs[i / 16][i % 16] = B[(k + i / 16) * N + col + i % 16];
        }
        __syncwarp();
        wmma::load_matrix_sync(a, &As[0][0], 16);
        wmma::load_matrix_sync(b, &Bs[0][0], 24);
        wmma::mma_sync(c, a, b, c);
        __syncwarp();
    }
    wmma::store_matrix_sync(Ct + col * M + row, c, M, wmma::mem_col_major);
}
"""
WMMA_NAMES = ("wmma_f16_f32", "wmma_f16_f16", "wmma_bf16_f32", "wmma_s8_s32", "wmma_shared")


def inputs_wmma(size: tuple[int, int, int], rng: np.random.Generator) -> Arrays:
    m, n, k = size
    shapes = (m, k), (n, k), (m, n)
    a, b, c = (rng.standard_normal(shape).astype(np.float16) for shape in shapes)
    # small integers: every product and sum is exact, whatever the order
    ia, ib, ic = (rng.integers(-3, 4, shape).astype(np.int8) for shape in shapes)
    return {"a": a, "b": b, "c": c, "ia": ia, "ib": ib, "ic": ic}


def launch_wmma(gpu: Runner, size: tuple[int, int, int], a, b, c, ia, ib, ic) -> Arrays:
    m, n, k = size
    grid, shape = (n // 16, m // 16), (np.int32(n), np.int32(k))
    out = {}
    for name, x, y, z in (
        ("f16_f32", a, b, c.astype(np.float32)),
        ("f16_f16", ia.astype(np.float16), ib.astype(np.float16), ic.astype(np.float16)),
        ("bf16_f32", to_bf16(a), to_bf16(b), c.astype(np.float32)),
        ("s8_s32", ia * np.int8(30), ib * np.int8(40), ic.astype(np.int32)),
    ):
        dz = gpu.to_device(z)
        gpu.launch(f"wmma_{name}", grid, 32, gpu.to_device(x), gpu.to_device(y), dz, *shape)
        out[name] = gpu.to_host(dz)
    ct = gpu.empty((n, m), np.float32)
    gpu.launch(
        "wmma_shared", grid, 32, gpu.to_device(a), gpu.to_device(np.ascontiguousarray(b.T)), ct, np.int32(m), *shape
    )
    return out | {"shared": gpu.to_host(ct)}


def reference_wmma(size: tuple[int, int, int], a, b, c, ia, ib, ic) -> Arrays:
    def product(x: np.ndarray, y: np.ndarray, z: np.ndarray, dtype: type) -> np.ndarray:
        return ((x.astype(np.float64) @ y.T.astype(np.float64) + z) * 2).astype(dtype)

    return {
        "f16_f32": product(a, b, c, np.float32),
        "f16_f16": product(ia, ib, ic, np.float16),
        "bf16_f32": product(from_bf16(to_bf16(a)), from_bf16(to_bf16(b)), c, np.float32),
        "s8_s32": product(ia * np.int8(30), ib * np.int8(40), ic, np.int32),
        "shared": (b.astype(np.float64) @ a.T.astype(np.float64)).astype(np.float32),
    }


# ------------------------------------------------------------------------------------- mma.sync and ldmatrix
MMA = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>

__device__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// One warp makes a 16 x 8 tile of C[m][n] = A[m][k] * B[k][n]. ldmatrix hands out the fragments: x4 is the
// 16 x 16 tile of A, x2.trans the 16 x 8 tile of the row-major B.
template <bool BF16>
__device__ void mma_tile(const unsigned short* A, const unsigned short* B, float* C, int N, int K)
{
    __shared__ __align__(16) unsigned short As[16][16];
    __shared__ __align__(16) unsigned short Bs[16][8];
    int lane = threadIdx.x, row = blockIdx.y * 16, col = blockIdx.x * 8;
    float c0 = 0, c1 = 0, c2 = 0, c3 = 0;
    for (int k = 0; k < K; k += 16) {
        for (int i = lane; i < 256; i += 32) As[i / 16][i % 16] = A[(row + i / 16) * K + k + i % 16];
        for (int i = lane; i < 128; i += 32) Bs[i / 8][i % 8] = B[(k + i / 8) * N + col + i % 8];
        __syncwarp();
        unsigned a0, a1, a2, a3, b0, b1;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a0), "=r"(a1), "=r"(a2), "=r"(a3)
                     : "r"(shared_address(&As[lane % 16][lane / 16 * 8])));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(b0), "=r"(b1)
                     : "r"(shared_address(&Bs[lane % 16][0])));
        if (BF16)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                         "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                         : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
                         : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
        else
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                         "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                         : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
                         : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
        __syncwarp();
    }
    int r = row + lane / 4, c = col + lane % 4 * 2;
    C[r * N + c] = c0;
    C[r * N + c + 1] = c1;
    C[(r + 8) * N + c] = c2;
    C[(r + 8) * N + c + 1] = c3;
}

__global__ void mma_f16(const unsigned short* A, const unsigned short* B, float* C, int N, int K)
{
    mma_tile<false>(A, B, C, N, K);
}
__global__ void mma_bf16(const unsigned short* A, const unsigned short* B, float* C, int N, int K)
{
    mma_tile<true>(A, B, C, N, K);
}

// Who gets what: ldmatrix x1 of a matrix of indices, plain and transposed.
__global__ void ldmatrix_layout(unsigned* out)
{
    __shared__ __align__(16) unsigned short s[8][8];
    int lane = threadIdx.x;
    s[lane / 4][lane % 4 * 2] = (unsigned short)(2 * lane);
    s[lane / 4][lane % 4 * 2 + 1] = (unsigned short)(2 * lane + 1);
    __syncwarp();
    unsigned plain, turned, address = shared_address(&s[lane % 8][0]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(plain) : "r"(address));
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(turned) : "r"(address));
    out[lane] = plain;
    out[32 + lane] = turned;
}
"""


def inputs_mma(size: tuple[int, int, int], rng: np.random.Generator) -> Arrays:
    m, n, k = size
    return {
        "a": rng.standard_normal((m, k)).astype(np.float16),
        "b": rng.standard_normal((k, n)).astype(np.float16),
    }


def launch_mma(gpu: Runner, size: tuple[int, int, int], a: np.ndarray, b: np.ndarray) -> Arrays:
    m, n, k = size
    out = {}
    for name, x, y in (("f16", a, b), ("bf16", to_bf16(a), to_bf16(b))):
        c = gpu.empty((m, n), np.float32)
        arguments = gpu.to_device(x), gpu.to_device(y), c, np.int32(n), np.int32(k)
        gpu.launch(f"mma_{name}", (n // 8, m // 16), 32, *arguments)
        out[name] = gpu.to_host(c)
    layout = gpu.empty((2, 8, 4), np.uint32)
    gpu.launch("ldmatrix_layout", 1, 32, layout)
    return out | {"layout": gpu.to_host(layout)}


def reference_mma(size: tuple[int, int, int], a: np.ndarray, b: np.ndarray) -> Arrays:
    x, y = from_bf16(to_bf16(a)), from_bf16(to_bf16(b))
    index = np.arange(64, dtype=np.uint32).reshape(8, 8)
    return {
        "f16": (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32),
        "bf16": (x.astype(np.float64) @ y.astype(np.float64)).astype(np.float32),
        "layout": np.stack([t[:, 0::2] | t[:, 1::2] << 16 for t in (index, index.T)]).astype(np.uint32),
    }


# ------------------------------------------------------------------------------------------------ cp.async
CP_ASYNC = r"""
#include <cuda_pipeline.h>
#define BLOCK 64
#define STAGES 3

// Each block sums its chunk of n float4. STAGES copies are under way while one is used; the ones past the end
// are filled with zeros by the copy itself (a source size of 0 bytes).
__global__ void sum_ptx(const float4* __restrict__ x, float4* __restrict__ out, int n, int per_block)
{
    __shared__ float4 stage[STAGES][BLOCK];
    int first = blockIdx.x * per_block, end = min(n, first + per_block), t = threadIdx.x;
    auto fetch = [&](int i, int s) {
        unsigned to = (unsigned)__cvta_generic_to_shared(&stage[s][t]);
        int bytes = i < end ? 16 : 0;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(x + (i < end ? i : 0)), "r"(bytes));
        asm volatile("cp.async.commit_group;");
    };
    float4 sum = make_float4(0, 0, 0, 0);
    for (int s = 0; s < STAGES - 1; ++s) fetch(first + s * BLOCK + t, s);
    int slot = 0;
    for (int i = first; i < end; i += BLOCK) {
        fetch(i + (STAGES - 1) * BLOCK + t, (slot + STAGES - 1) % STAGES);
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1));
        __syncthreads();
        float4 v = stage[slot][BLOCK - 1 - t];         // somebody else's element
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        __syncthreads();
        slot = (slot + 1) % STAGES;
    }
    asm volatile("cp.async.wait_all;");
    out[blockIdx.x * BLOCK + t] = sum;
}

// The same idea with the intrinsics, in pieces of 4, 8 and 16 bytes: reverse each block's elements.
template <typename T>
__global__ void reverse_blocks(const T* __restrict__ in, T* __restrict__ out, int n)
{
    __shared__ T s[BLOCK];
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) __pipeline_memcpy_async(&s[threadIdx.x], &in[i], sizeof(T));
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    int count = min(BLOCK, n - (int)blockIdx.x * BLOCK);
    if (i < n) out[i] = s[count - 1 - threadIdx.x];
}
"""
CP_NAMES = ("sum_ptx", "reverse_blocks<int>", "reverse_blocks<int2>", "reverse_blocks<int4>")
PER_BLOCK = 300


def inputs_cp_async(size: int, rng: np.random.Generator) -> Arrays:
    return {"x": rng.integers(-50, 50, (size, 4)).astype(np.float32)}


def launch_cp_async(gpu: Runner, size: int, x: np.ndarray) -> Arrays:
    dx, blocks = gpu.to_device(x), blocks_for(size, PER_BLOCK)
    sums = gpu.empty((blocks, 64, 4), np.float32)
    gpu.launch("sum_ptx", blocks, 64, dx, sums, np.int32(size), np.int32(PER_BLOCK))
    out = {"sums": gpu.to_host(sums)}
    for kind, words in (("int", 1), ("int2", 2), ("int4", 4)):
        turned = gpu.empty((size, words), np.float32)
        source = gpu.to_device(x[:, :words])
        gpu.launch(f"reverse_blocks<{kind}>", blocks_for(size, 64), 64, source, turned, np.int32(size))
        out[kind] = gpu.to_host(turned)
    return out


def reference_cp_async(size: int, x: np.ndarray) -> Arrays:
    blocks = blocks_for(size, PER_BLOCK)
    padded = np.zeros((blocks, blocks_for(PER_BLOCK, 64) * 64, 4), np.float32)
    for b in range(blocks):
        chunk = x[b * PER_BLOCK : (b + 1) * PER_BLOCK]
        padded[b, : len(chunk)] = chunk
    sums = padded.reshape(blocks, -1, 64, 4).sum(axis=1)[:, ::-1]
    turned = np.concatenate([x[i : i + 64][::-1] for i in range(0, size, 64)])
    pieces = {kind: np.ascontiguousarray(turned[:, :w]) for kind, w in (("int", 1), ("int2", 2), ("int4", 4))}
    return {"sums": np.ascontiguousarray(sums)} | pieces


TENSOR = Tol(1e-5, 2e-4, "tensor cores add products in their own order and truncate when they align them")

CASES = [
    Case(
        "wmma",
        WMMA,
        WMMA_NAMES,
        inputs_wmma,
        launch_wmma,
        reference_wmma,
        ((16, 16, 16), (32, 48, 64)),
        {"f16_f32": TENSOR, "bf16_f32": TENSOR, "shared": TENSOR},
        gpu={"f16_f32": TENSOR, "bf16_f32": TENSOR, "shared": TENSOR},
    ),
    Case(
        "mma_ldmatrix",
        MMA,
        ("mma_f16", "mma_bf16", "ldmatrix_layout"),
        inputs_mma,
        launch_mma,
        reference_mma,
        ((16, 8, 16), (48, 24, 64)),
        {"f16": TENSOR, "bf16": TENSOR},
        gpu={"f16": TENSOR, "bf16": TENSOR},
    ),
    Case("cp_async", CP_ASYNC, CP_NAMES, inputs_cp_async, launch_cp_async, reference_cp_async, (1, 31, 65, 1000)),
]
