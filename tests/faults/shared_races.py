"""Races in shared memory: barriers of the block or of the warp that are missing, or too weak."""

from tests.faults import Fault, Memory

OUT = Memory(128, fill="zero")
X = Memory(128)


def race(name: str, source: str, mend: tuple[str, str], *args: object, **others: object) -> Fault:
    return Fault(name, "shared race", source, mend, args or (X, OUT), **{"block": 128, **others})


PLANTED = [
    race(
        "reversed_without_a_barrier",
        r"""extern "C" __global__ void reverse(const int* x, int* y)
{
    __shared__ int s[128];
    s[threadIdx.x] = x[threadIdx.x];

    y[threadIdx.x] = s[127 - threadIdx.x];  // fault
}""",
        ("\n\n", "\n    __syncthreads();\n"),
        buffer="s",
    ),
    race(
        "barrier_of_the_warp_for_one_of_the_block",
        r"""extern "C" __global__ void halves(const int* x, int* y)
{
    __shared__ int s[128];
    s[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    y[threadIdx.x] = s[threadIdx.x ^ 64];  // fault
}""",
        ("__syncwarp", "__syncthreads"),
        buffer="s",
    ),
    race(
        "tile_of_a_transpose",
        r"""extern "C" __global__ void transpose(const int* x, int* y)
{
    __shared__ int tile[16][17];
    const int i = threadIdx.x, j = threadIdx.y;
    tile[j][i] = x[16 * j + i];

    y[16 * j + i] = tile[i][j];  // fault
}""",
        ("\n\n", "\n    __syncthreads();\n"),
        Memory(256), Memory(256, fill="zero"), block=(16, 16), buffer="tile",
    ),
    race(
        "tree_without_its_barrier",
        r"""extern "C" __global__ void sum(const int* x, int* y)
{
    __shared__ int s[128];
    const int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    for (int k = 64; k > 0; k /= 2) {
        if (t < k) s[t] += s[t + k];  // fault

    }
    if (t == 0) y[0] = s[0];
}""",
        ("\n\n", "\n        __syncthreads();\n"),
        buffer="s",
    ),
    race(
        "last_warp_without_syncwarp",
        r"""extern "C" __global__ void sum(const int* x, int* y)
{
    __shared__ int s[32];
    const int t = threadIdx.x;
    s[t] = x[t];
    __syncwarp();
    for (int k = 16; k > 0; k /= 2) {
        if (t < k) s[t] += s[t + k];  // fault

    }
    if (t == 0) y[0] = s[0];
}""",
        ("\n\n", "\n        __syncwarp();\n"),
        block=32, buffer="s",
    ),
    race(
        "warp_that_overwrites_what_it_reads",
        r"""extern "C" __global__ void rotate(const int* x, int* y)
{
    __shared__ int s[32];
    const int t = threadIdx.x;
    s[t] = x[t];
    __syncwarp();
    const int next = s[(t + 1) % 32];

    s[t] = next;  // fault
    y[t] = s[t];
}""",
        ("\n\n", "\n    __syncwarp();\n"),
        block=32, buffer="s",
    ),
    race(
        "scan_in_place",
        r"""extern "C" __global__ void scan(const int* x, int* y)
{
    __shared__ int s[128];
    const int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    for (int k = 1; k < 128; k *= 2) {
        const int left = t >= k ? s[t - k] : 0;

        s[t] += left;  // fault
        __syncthreads();
    }
    y[t] = s[t];
}""",
        ("\n\n", "\n        __syncthreads();\n"),
        buffer="s",
    ),
    race(
        "one_tile_used_again_too_early",
        r"""extern "C" __global__ void windows(const int* x, int* y)
{
    __shared__ int tile[64];
    int sum = 0;
    for (int k = 0; k < 2; ++k) {
        tile[threadIdx.x] = x[64 * k + threadIdx.x];  // fault
        __syncthreads();
        for (int j = 0; j < 8; ++j) sum += tile[(8 * threadIdx.x + j) % 64];

    }
    y[threadIdx.x] = sum;
}""",
        ("\n\n", "\n        __syncthreads();\n"),
        block=64, buffer="tile",
    ),
    race(
        "two_buffers_that_are_one",
        r"""extern "C" __global__ void stages(const int* x, int* y)
{
    __shared__ int tile[2][64];
    int sum = 0;
    for (int k = 0; k < 4; ++k) {
        int* now = tile[k / 2];
        now[threadIdx.x] = x[(k + threadIdx.x) % 128];  // fault
        __syncthreads();
        sum += now[63 - threadIdx.x];
    }
    y[threadIdx.x] = sum;
}""",
        ("k / 2", "k % 2"),
        block=64, buffer="tile",
    ),
    race(
        "product_of_tiles",
        r"""extern "C" __global__ void multiply(const int* a, const int* b, int* c)
{
    __shared__ int sa[8][8], sb[8][8];
    const int i = threadIdx.y, j = threadIdx.x;
    int sum = 0;
    for (int k = 0; k < 16; k += 8) {
        sa[i][j] = a[16 * i + k + j], sb[i][j] = b[8 * (k + i) + j];  // fault
        __syncthreads();
        for (int m = 0; m < 8; ++m) sum += sa[i][m] * sb[m][j];
        __syncwarp();
    }
    c[8 * i + j] = sum;
}""",
        ("__syncwarp", "__syncthreads"),
        X, X, Memory(64, fill="zero"), block=(8, 8),
    ),
    race(
        "shared_histogram_without_atomics",
        r"""extern "C" __global__ void histogram(const int* x, int* bins)
{
    __shared__ int own[7];
    if (threadIdx.x < 7) own[threadIdx.x] = 0;
    __syncthreads();
    own[x[threadIdx.x]] += 1;  // fault
    __syncthreads();
    if (threadIdx.x < 7) bins[threadIdx.x] = own[threadIdx.x];
}""",
        ("own[x[threadIdx.x]] += 1", "atomicAdd(&own[x[threadIdx.x]], 1)"),
        X, Memory(7, fill="zero"), buffer="own",
    ),
    race(
        "value_for_all_without_a_barrier",
        r"""extern "C" __global__ void scale(const int* x, int* y)
{
    __shared__ int factor;
    if (threadIdx.x == 0) factor = 0;
    __syncthreads();
    if (threadIdx.x == 0) factor = x[3];

    y[threadIdx.x] = factor * x[threadIdx.x];  // fault
}""",
        ("\n\n", "\n    __syncthreads();\n"),
        buffer="factor",
    ),
    race(
        "parts_that_overlap",
        r"""extern "C" __global__ void parts(const int* x, int* y)
{
    extern __shared__ int memory[];
    int *low = memory, *high = memory + 127;
    low[threadIdx.x] = x[threadIdx.x];
    high[threadIdx.x] = -1 - x[threadIdx.x];  // fault
    __syncthreads();
    y[threadIdx.x] = low[threadIdx.x] + high[127 - threadIdx.x];
}""",
        ("+ 127;", "+ 128;"),
        shared=1024, buffer="memory",
    ),
    race(
        "halo_of_the_neighbouring_warp",
        r"""extern "C" __global__ void smooth(const float* x, float* y)
{
    __shared__ float tile[130];
    const int t = threadIdx.x;
    tile[t + 1] = x[t];
    if (t == 0) tile[0] = tile[129] = 0;
    __syncwarp();
    y[t] = (tile[t] + tile[t + 1] + tile[t + 2]) / 3;  // fault
}""",
        ("__syncwarp", "__syncthreads"),
        Memory(128, "f4"), Memory(128, "f4", "zero"), buffer="tile",
    ),
    race(
        "bitonic_step_without_a_barrier",
        r"""extern "C" __global__ void sort(const int* x, int* y)
{
    __shared__ int s[128];
    const int t = threadIdx.x;
    s[t] = x[t];
    for (int k = 2; k <= 128; k *= 2)
        for (int j = k / 2; j > 0; j /= 2) {
            __syncwarp();
            const int other = t ^ j, a = s[t], b = s[other];  // fault
            __syncthreads();
            s[t] = (t < other) == ((t & k) == 0) ? min(a, b) : max(a, b);
        }
    y[t] = s[t];
}""",
        ("__syncwarp", "__syncthreads"),
        buffer="s",
    ),
    race(
        "count_read_while_it_is_counted",
        r"""extern "C" __global__ void odd(const int* x, int* y)
{
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    if (x[threadIdx.x] % 2) atomicAdd(&count, 1);

    y[threadIdx.x] = count;  // fault
}""",
        ("\n\n", "\n    __syncthreads();\n"),
        buffer="count",
    ),
    race(
        "flags_packed_into_bytes",
        r"""extern "C" __global__ void flags(const int* x, int* y)
{
    __shared__ char odd[128];
    odd[threadIdx.x] = x[threadIdx.x] % 2;
    __syncwarp();
    if (threadIdx.x < 32) y[threadIdx.x] = reinterpret_cast<int*>(odd)[threadIdx.x];  // fault
}""",
        ("__syncwarp", "__syncthreads"),
    ),
    race(
        "two_threads_write_one_element",
        r"""extern "C" __global__ void halve(const int* x, int* y)
{
    __shared__ int s[128];
    s[threadIdx.x / 2] = x[threadIdx.x];  // fault
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x / 2];
}""",
        ("s[threadIdx.x / 2] = x[threadIdx.x];", "s[threadIdx.x / 2] = x[threadIdx.x / 2];"),
        buffer="s",
    ),
    race(
        "asynchronous_copy_without_a_barrier",
        r"""#include <cuda_pipeline.h>
extern "C" __global__ void stage(const int* x, int* y)
{
    __shared__ int tile[128];
    __pipeline_memcpy_async(&tile[threadIdx.x], &x[threadIdx.x], 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncwarp();
    y[threadIdx.x] = tile[127 - threadIdx.x];  // fault
}""",
        ("__syncwarp", "__syncthreads"),
        buffer="tile",
    ),
    race(
        "asynchronous_copy_not_waited_for",
        r"""#include <cuda_pipeline.h>
extern "C" __global__ void stage(const int* x, int* y)
{
    __shared__ int tile[128];
    __pipeline_memcpy_async(&tile[threadIdx.x], &x[threadIdx.x], 4);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    y[threadIdx.x] = tile[127 - threadIdx.x];  // fault
}""",
        ("prior(1)", "prior(0)"),
        buffer="tile",
    ),
    race(
        "accumulator_read_before_the_warp_is_done",
        r"""#include <mma.h>
extern "C" __global__ void product(const float* x, float* y)
{
    using namespace nvcuda::wmma;
    __shared__ __align__(32) float tile[256];
    fragment<accumulator, 16, 16, 16, float> c;
    fill_fragment(c, x[1]);
    store_matrix_sync(tile, c, 16, mem_row_major);

    for (int i = threadIdx.x; i < 256; i += 32) y[i] = tile[255 - i];  // fault
}""",
        ("\n\n", "\n    __syncwarp();\n"),
        Memory(256, "f4"), Memory(256, "f4", "zero"), block=32, buffer="tile",
    ),
]  # fmt: skip
