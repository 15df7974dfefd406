"""Matrices: three rungs of the matrix product, three of the transpose, two of sparse matrix times vector."""

from __future__ import annotations

import numpy as np

from .harness import Arrays, Case, Runner, Tol, blocks_for

# ------------------------------------------------------------------------------------------ matrix product
MATMUL = r"""
// C[m][n] = A[m][k] * B[k][n], row-major
__global__ void matmul_naive(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C,
                             int M, int N, int K)
{
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= M || col >= N) return;
    float sum = 0.0f;
    for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];
    C[row * N + col] = sum;
}

template <int TILE>
__global__ void matmul_tiled(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C,
                             int M, int N, int K)
{
    __shared__ float As[TILE][TILE];
    __shared__ float Bs[TILE][TILE];
    int tx = threadIdx.x, ty = threadIdx.y;
    int row = blockIdx.y * TILE + ty, col = blockIdx.x * TILE + tx;
    float sum = 0.0f;
    for (int t = 0; t < K; t += TILE) {
        As[ty][tx] = (row < M && t + tx < K) ? A[row * K + t + tx] : 0.0f;
        Bs[ty][tx] = (t + ty < K && col < N) ? B[(t + ty) * N + col] : 0.0f;
        __syncthreads();                       // the whole tile is there
        #pragma unroll
        for (int k = 0; k < TILE; ++k) sum += As[ty][k] * Bs[k][tx];
        __syncthreads();                       // nobody needs the old tile any more
    }
    if (row < M && col < N) C[row * N + col] = sum;
}

// 256 threads, a 64 x 64 tile of C: each thread keeps 4 x 4 results in registers.
__global__ void matmul_register(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C,
                                int M, int N, int K)
{
    const int BM = 64, BN = 64, BK = 8;
    __shared__ float As[BK][BM + 1];
    __shared__ float Bs[BK][BN];
    int tid = threadIdx.x, tx = tid % 16, ty = tid / 16;
    int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;
    float acc[4][4] = {};
    for (int t = 0; t < K; t += BK) {
        for (int i = tid; i < BM * BK; i += 256) {
            int m = i / BK, k = i % BK;
            As[k][m] = (row0 + m < M && t + k < K) ? A[(row0 + m) * K + t + k] : 0.0f;
        }
        for (int i = tid; i < BK * BN; i += 256) {
            int k = i / BN, n = i % BN;
            Bs[k][n] = (t + k < K && col0 + n < N) ? B[(t + k) * N + col0 + n] : 0.0f;
        }
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < BK; ++k) {
            float a[4], b[4];
            #pragma unroll
            for (int i = 0; i < 4; ++i) a[i] = As[k][ty + 16 * i], b[i] = Bs[k][tx + 16 * i];
            #pragma unroll
            for (int i = 0; i < 4; ++i)
                #pragma unroll
                for (int j = 0; j < 4; ++j) acc[i][j] += a[i] * b[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) {
            int row = row0 + ty + 16 * i, col = col0 + tx + 16 * j;
            if (row < M && col < N) C[row * N + col] = acc[i][j];
        }
}
"""


def inputs_matmul(size: tuple[int, int, int], rng: np.random.Generator) -> Arrays:
    m, n, k = size
    return {
        "a": rng.standard_normal((m, k)).astype(np.float32),
        "b": rng.standard_normal((k, n)).astype(np.float32),
    }


def matmul_launcher(kernel: str, tile: tuple[int, int], block: tuple[int, ...]):
    def launch(gpu: Runner, size: tuple[int, int, int], a: np.ndarray, b: np.ndarray) -> Arrays:
        m, n, k = size
        c = gpu.empty((m, n), np.float32)
        grid = blocks_for(n, tile[0]), blocks_for(m, tile[1])
        shape = np.int32(m), np.int32(n), np.int32(k)
        gpu.launch(kernel, grid, block, gpu.to_device(a), gpu.to_device(b), c, *shape)
        return {"c": gpu.to_host(c)}

    return launch


def reference_matmul(size: tuple[int, int, int], a: np.ndarray, b: np.ndarray) -> Arrays:
    return {"c": (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)}


# ---------------------------------------------------------------------------------------------- transpose
TRANSPOSE = r"""
#define TILE 32
#define ROWS 8

__global__ void transpose_naive(const float* __restrict__ in, float* __restrict__ out, int rows, int cols)
{
    int col = blockIdx.x * TILE + threadIdx.x;
    int row = blockIdx.y * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += ROWS)
        if (col < cols && row + j < rows) out[(long long)col * rows + row + j] = in[(long long)(row + j) * cols + col];
}

// PAD = 0: the column read hits one bank 32 times; PAD = 1: every row starts one bank further on.
template <int PAD>
__global__ void transpose_tiled(const float* __restrict__ in, float* __restrict__ out, int rows, int cols)
{
    __shared__ float tile[TILE][TILE + PAD];
    int col = blockIdx.x * TILE + threadIdx.x;
    int row = blockIdx.y * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += ROWS)
        if (col < cols && row + j < rows) tile[threadIdx.y + j][threadIdx.x] = in[(long long)(row + j) * cols + col];
    __syncthreads();
    col = blockIdx.y * TILE + threadIdx.x;     // of the transposed matrix
    row = blockIdx.x * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += ROWS)
        if (col < rows && row + j < cols) out[(long long)(row + j) * rows + col] = tile[threadIdx.x][threadIdx.y + j];
}
"""


def inputs_transpose(size: tuple[int, int], rng: np.random.Generator) -> Arrays:
    return {"x": rng.standard_normal(size).astype(np.float32)}


def transpose_launcher(kernel: str):
    def launch(gpu: Runner, size: tuple[int, int], x: np.ndarray) -> Arrays:
        rows, cols = size
        out = gpu.empty((cols, rows), np.float32)
        grid = blocks_for(cols, 32), blocks_for(rows, 32)
        gpu.launch(kernel, grid, (32, 8), gpu.to_device(x), out, np.int32(rows), np.int32(cols))
        return {"out": gpu.to_host(out)}

    return launch


def reference_transpose(size: tuple[int, int], x: np.ndarray) -> Arrays:
    return {"out": np.ascontiguousarray(x.T)}


# --------------------------------------------------------------------------------- sparse matrix times vector
SPMV = r"""
// Compressed sparse rows: row r holds entries start[r] .. start[r + 1] - 1
__global__ void spmv_scalar(const int* __restrict__ start, const int* __restrict__ column,
                            const float* __restrict__ value, const float* __restrict__ x, float* __restrict__ y,
                            int rows)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int j = start[row]; j < start[row + 1]; ++j) sum += value[j] * x[column[j]];
    y[row] = sum;
}

// One warp per row: neighbouring lanes read neighbouring entries, then add up by shuffles.
__global__ void spmv_vector(const int* __restrict__ start, const int* __restrict__ column,
                            const float* __restrict__ value, const float* __restrict__ x, float* __restrict__ y,
                            int rows)
{
    int lane = threadIdx.x % 32;
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (row >= rows) return;                   // a whole warp leaves, or none of it
    float sum = 0.0f;
    for (int j = start[row] + lane; j < start[row + 1]; j += 32) sum += value[j] * x[column[j]];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (lane == 0) y[row] = sum;
}
"""


def inputs_spmv(size: int, rng: np.random.Generator) -> Arrays:
    lengths = rng.integers(0, 12, size)
    lengths[rng.integers(0, size)] += 150  # one long row among short ones
    start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return {
        "start": start,
        "column": rng.integers(0, size, start[-1]).astype(np.int32),
        "value": rng.standard_normal(start[-1]).astype(np.float32),
        "x": rng.standard_normal(size).astype(np.float32),
    }


def spmv_launcher(kernel: str, threads_per_row: int):
    def launch(gpu: Runner, size: int, **arrays: np.ndarray) -> Arrays:
        device = [gpu.to_device(arrays[key]) for key in ("start", "column", "value", "x")]
        y = gpu.empty(size, np.float32)
        gpu.launch(kernel, blocks_for(size * threads_per_row, 128), 128, *device, y, np.int32(size))
        return {"y": gpu.to_host(y)}

    return launch


def reference_spmv(size: int, start, column, value, x) -> Arrays:
    products = np.append(value.astype(np.float64) * x[column], 0.0)
    sums = [products[start[row] : start[row + 1]].sum() for row in range(size)]
    return {"y": np.array(sums, np.float32)}


MATMUL_TOL = {"c": Tol(1e-5, 1e-4, "a float32 sum of k products against a float64 one")}
SPMV_TOL = {"y": Tol(1e-5, 1e-4, "a float32 sum of up to 160 products against a float64 one")}
MATMUL_SIZES = ((1, 1, 1), (31, 33, 17), (70, 65, 40), (250, 210, 20))
TRANSPOSE_SIZES = ((1, 1), (31, 33), (33, 64), (410, 380))

CASES = [
    Case(
        "matmul_naive",
        MATMUL,
        ("matmul_naive",),
        inputs_matmul,
        matmul_launcher("matmul_naive", (16, 16), (16, 16)),
        reference_matmul,
        MATMUL_SIZES,
        MATMUL_TOL,
    ),
    Case(
        "matmul_tiled",
        MATMUL,
        ("matmul_tiled<16>",),
        inputs_matmul,
        matmul_launcher("matmul_tiled<16>", (16, 16), (16, 16)),
        reference_matmul,
        MATMUL_SIZES,
        MATMUL_TOL,
    ),
    Case(
        "matmul_register",
        MATMUL,
        ("matmul_register",),
        inputs_matmul,
        matmul_launcher("matmul_register", (64, 64), (256,)),
        reference_matmul,
        MATMUL_SIZES,
        MATMUL_TOL,
    ),
    Case(
        "transpose_naive",
        TRANSPOSE,
        ("transpose_naive",),
        inputs_transpose,
        transpose_launcher("transpose_naive"),
        reference_transpose,
        TRANSPOSE_SIZES,
    ),
    Case(
        "transpose_tiled",
        TRANSPOSE,
        ("transpose_tiled<0>",),
        inputs_transpose,
        transpose_launcher("transpose_tiled<0>"),
        reference_transpose,
        TRANSPOSE_SIZES,
    ),
    Case(
        "transpose_padded",
        TRANSPOSE,
        ("transpose_tiled<1>",),
        inputs_transpose,
        transpose_launcher("transpose_tiled<1>"),
        reference_transpose,
        TRANSPOSE_SIZES,
    ),
    Case(
        "spmv_scalar",
        SPMV,
        ("spmv_scalar",),
        inputs_spmv,
        spmv_launcher("spmv_scalar", 1),
        reference_spmv,
        (1, 31, 33, 3000),
        SPMV_TOL,
    ),
    Case(
        "spmv_vector",
        SPMV,
        ("spmv_vector",),
        inputs_spmv,
        spmv_launcher("spmv_vector", 32),
        reference_spmv,
        (1, 31, 33, 2000),
        SPMV_TOL,
    ),
]
