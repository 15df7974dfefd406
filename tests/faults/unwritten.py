"""Reads of global or shared memory that nothing wrote."""

from tests.faults import Fault, Memory

UNSET = Memory(1, fill="nothing")
OUT = Memory(64, fill="zero")


def unwritten(name: str, source: str, mend: tuple[str, str], *args: object, **others: object) -> Fault:
    return Fault(name, "uninitialized", source, mend, args, **others)


PLANTED = [
    unwritten(
        "sum_that_starts_anywhere",
        r"""extern "C" __global__ void sum(const int* x, int* total)
{
    atomicAdd(total, x[threadIdx.x]);  // fault
}""",
        ("", ""),
        Memory(64), UNSET, mended_args=(Memory(64), Memory(1, fill="zero")), buffer="total",
    ),
    unwritten(
        "maximum_that_starts_anywhere",
        r"""extern "C" __global__ void maximum(const int* x, int* most)
{
    atomicMax(most, x[threadIdx.x]);  // fault
}""",
        ("", ""),
        Memory(64), UNSET, mended_args=(Memory(64), Memory(1, fill="zero")), buffer="most",
    ),
    unwritten(
        "accumulated_in_place",
        r"""extern "C" __global__ void axpy(const float* x, float* y)
{
    y[threadIdx.x] += 2 * x[threadIdx.x];  // fault
}""",
        ("+=", "="),
        Memory(64, "f4"), Memory(64, "f4", "nothing"), buffer="y",
    ),
    unwritten(
        "bins_cleared_but_the_last",
        r"""extern "C" __global__ void clear(const int* x, int* bins)
{
    if (threadIdx.x < 6) bins[threadIdx.x] = 0;
}
extern "C" __global__ void histogram(const int* x, int* bins)
{
    atomicAdd(&bins[x[threadIdx.x]], 1);  // fault
}""",
        ("< 6", "< 7"),
        Memory(64), Memory(7, fill="nothing"), buffer="bins",
    ),
    unwritten(
        "elements_that_the_kernel_skips",
        r"""extern "C" __global__ void copy(const int* x, int* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n - 1) y[i] = x[i];
}""",
        ("n - 1", "n"),
        Memory(1000), Memory(1000, fill="nothing", back=True), 1000, grid=4, block=256, mark="array.to_host",
    ),
    unwritten(
        "tail_that_the_grid_misses",
        r"""extern "C" __global__ void copy(const int4* x, int4* y, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n / 8; i += gridDim.x * blockDim.x) y[i] = x[i];
}""",
        ("n / 8", "n / 4"),
        Memory(1000), Memory(1000, fill="nothing", back=True), 1000, grid=2, mark="array.to_host",
    ),
    unwritten(
        "next_kernel_reads_odd_elements",
        r"""extern "C" __global__ void first(int* x, int* y)
{
    x[2 * threadIdx.x] = threadIdx.x;
}
extern "C" __global__ void second(int* x, int* y)
{
    y[threadIdx.x] = x[2 * threadIdx.x + 1];  // fault
}""",
        ("2 * threadIdx.x + 1", "2 * threadIdx.x"),
        Memory(128, fill="nothing"), OUT, buffer="x",
    ),
    unwritten(
        "the_other_of_two_buffers",
        r"""extern "C" __global__ void step(int* ping, int* pong)
{
    ping[threadIdx.x] = 1;
}
extern "C" __global__ void again(int* ping, int* pong)
{
    ping[threadIdx.x] = pong[threadIdx.x] + 1;  // fault
}""",
        (" = pong", " = ping"),
        Memory(64, fill="nothing"), Memory(64, fill="nothing"), buffer="pong",
    ),
    unwritten(
        "fourth_of_three_floats",
        r"""extern "C" __global__ void points(float* p, float* y)
{
    for (int k = 0; k < 3; ++k) p[4 * threadIdx.x + k] = k;
}
extern "C" __global__ void norms(float* p, float* y)
{
    const float4 v = reinterpret_cast<float4*>(p)[threadIdx.x];  // fault
    y[threadIdx.x] = v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
}""",
        ("k < 3", "k < 4"),
        Memory(256, "f4", "nothing"), Memory(64, "f4", "zero"), buffer="p",
    ),
    unwritten(
        "word_over_the_last_bytes",
        r"""extern "C" __global__ void letters(char* text, int* y)
{
    for (int i = threadIdx.x; i < 253; i += blockDim.x) text[i] = 'a';
}
extern "C" __global__ void words(char* text, int* y)
{
    y[threadIdx.x] = reinterpret_cast<int*>(text)[threadIdx.x];  // fault
}""",
        ("i < 253", "i < 256"),
        Memory(256, "i1", "nothing"), OUT, buffer="text",
    ),
    unwritten(
        "exclusive_scan_without_its_zero",
        r"""extern "C" __global__ void shift(const int* x, int* y)
{
    __shared__ int s[65];
    s[threadIdx.x + 1] = x[threadIdx.x];
    if (threadIdx.x == 64) s[0] = 0;
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x];  // fault
}""",
        ("== 64", "== 0"),
        Memory(64), OUT, buffer="s",
    ),
    unwritten(
        "border_of_a_tile",
        r"""extern "C" __global__ void smooth(const float* x, float* y)
{
    __shared__ float tile[66];
    const int t = threadIdx.x;
    tile[t + 1] = x[t];
    if (t == 0) tile[0] = x[0];
    if (t == 64) tile[65] = x[63];
    __syncthreads();
    y[t] = (tile[t] + tile[t + 1] + tile[t + 2]) / 3;  // fault
}""",
        ("t == 64", "t == 63"),
        Memory(64, "f4"), Memory(64, "f4", "zero"), buffer="tile",
    ),
    unwritten(
        "tile_of_a_ragged_matrix",
        r"""extern "C" __global__ void transpose(const int* x, int* y, int n)
{
    __shared__ int tile[8][9];
    const int i = threadIdx.x, j = threadIdx.y;
    if (i < n && j < n) tile[j][i] = x[j * n + i];
    __syncthreads();
    if (i < n + 1 && j < n) y[j * 8 + i] = tile[i][j];  // fault
}""",
        ("n + 1", "n"),
        Memory(36), Memory(64, fill="zero"), 6, block=(8, 8), buffer="tile",
    ),
    unwritten(
        "shared_bins_not_cleared",
        r"""extern "C" __global__ void histogram(const int* x, int* bins)
{
    __shared__ int own[7];
    if (threadIdx.x < 6) own[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&own[x[threadIdx.x]], 1);  // fault
    __syncthreads();
    if (threadIdx.x < 7) atomicAdd(&bins[threadIdx.x], own[threadIdx.x]);
}""",
        ("< 6", "< 7"),
        Memory(64), Memory(7, fill="zero"), buffer="own",
    ),
    unwritten(
        "dynamic_shared_memory_half_filled",
        r"""extern "C" __global__ void spread(const int* x, int* y)
{
    extern __shared__ int buffer[];
    if (threadIdx.x < 32) buffer[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = buffer[threadIdx.x];  // fault
}""",
        ("= buffer[threadIdx.x]", "= buffer[threadIdx.x % 32]"),
        Memory(64), OUT, shared=256, buffer="buffer",
    ),
    unwritten(
        "reduction_of_more_than_was_loaded",
        r"""extern "C" __global__ void sum(const int* x, int* y, int n)
{
    __shared__ int s[64];
    const int t = threadIdx.x;
    if (t < n) s[t] = x[t];
    for (int k = 32; k > 0; k /= 2) {
        __syncthreads();
        if (t < k) s[t] += s[t + k];  // fault
    }
    if (t == 0) y[0] = s[0];
}""",
        ("if (t < n) s[t] = x[t];", "s[t] = t < n ? x[t] : 0;"),
        Memory(50), Memory(1, fill="zero"), 50, buffer="s",
    ),
    unwritten(
        "fragment_of_an_unset_tile",
        r"""#include <mma.h>
extern "C" __global__ void square(const float* x, float* y)
{
    using namespace nvcuda::wmma;
    __shared__ __align__(32) half tile[256];
    for (int i = threadIdx.x; i < 240; i += 32) tile[i] = __float2half(x[i]);
    __syncwarp();
    fragment<matrix_a, 16, 16, 16, half, row_major> a;
    fragment<matrix_b, 16, 16, 16, half, row_major> b;
    fragment<accumulator, 16, 16, 16, float> c;
    fill_fragment(c, 0.0f);
    load_matrix_sync(a, tile, 16);  // fault
    load_matrix_sync(b, tile, 16);
    mma_sync(c, a, b, c);
    store_matrix_sync(y, c, 16, mem_row_major);
}""",
        ("240", "256"),
        Memory(256, "f4"), Memory(256, "f4", "zero"), block=32, buffer="tile", mark="",
    ),
]  # fmt: skip
