"""Accesses outside of what is allocated, and misaligned ones."""

from tests.faults import Fault, Memory

INCLUDE_PIPELINE = "#include <cuda_pipeline.h>\n"
N = Memory(1000)
OUT = Memory(1000, fill="zero")


def outside(name: str, source: str, mend: tuple[str, str], *args: object, **others: object) -> Fault:
    return Fault(name, "out of bounds", source, mend, args, **others)


PLANTED = [
    outside(
        "guard_off_by_one",
        r"""extern "C" __global__ void scale(const int* x, int* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) y[i] = 2 * x[i];  // fault
}""",
        ("<=", "<"),
        N, OUT, 1000, grid=4, block=256, buffer="x",
    ),
    outside(
        "no_guard_in_the_last_block",
        r"""extern "C" __global__ void ones(int* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = 1;  // fault
}""",
        ("    y[i]", "    if (i < n) y[i]"),
        OUT, 1000, grid=4, block=256, buffer="y",
    ),
    outside(
        "left_neighbour_of_the_first",
        r"""extern "C" __global__ void difference(const int* x, int* y)
{
    const int i = threadIdx.x;
    y[i] = x[i] - x[i - 1];  // fault
}""",
        ("x[i - 1]", "x[max(i - 1, 0)]"),
        Memory(64), Memory(64, fill="zero"), buffer="x",
    ),
    outside(
        "right_neighbour_of_the_last",
        r"""extern "C" __global__ void smooth(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i > 0 && i < n) y[i] = (x[i - 1] + x[i] + x[i + 1]) / 3;  // fault
}""",
        ("i < n)", "i < n - 1)"),
        Memory(1000, "f4"), Memory(1000, "f4", "zero"), 1000, grid=4, block=256, buffer="x",
    ),
    outside(
        "vector_tail",
        r"""extern "C" __global__ void copy(const float4* x, float4* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < (n + 3) / 4) y[i] = x[i];  // fault
}""",
        ("(n + 3) / 4", "n / 4"),
        Memory(1001, "f4"), Memory(1001, "f4", "zero"), 1001, grid=4, block=64, buffer="x",
    ),
    outside(
        "vector_store_past_the_end",
        r"""extern "C" __global__ void zeros(int2* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (2 * i < n) y[i] = make_int2(0, 0);  // fault
}""",
        ("2 * i < n", "2 * i + 1 < n"),
        Memory(999, fill="zero"), 999, grid=8, block=64, buffer="y",
    ),
    outside(
        "pitch_in_bytes_for_elements",
        r"""extern "C" __global__ void brighten(int* image, int width, int height, int pitch)
{
    const int column = threadIdx.x, row = threadIdx.y;
    if (column < width && row < height) image[row * pitch + column] += 1;  // fault
}""",
        ("row * pitch", "row * pitch / 4"),
        Memory(8 * 24), 20, 8, 96, block=(32, 8), buffer="image",
    ),
    outside(
        "rows_for_columns",
        r"""extern "C" __global__ void transpose(const int* x, int* y, int rows, int columns)
{
    const int i = threadIdx.x, j = threadIdx.y;
    if (i < columns && j < rows) y[i * rows + j] = x[j * rows + i];  // fault
}""",
        ("x[j * rows", "x[j * columns"),
        Memory(10 * 7), Memory(10 * 7, fill="zero"), 10, 7, block=(32, 10), buffer="x",
    ),
    outside(
        "inner_loop_one_too_far",
        r"""extern "C" __global__ void multiply(const float* a, const float* b, float* c, int n)
{
    const int i = threadIdx.y, j = threadIdx.x;
    float sum = 0;
    for (int k = 0; k <= n; ++k)
        sum += a[i * n + k] * b[k * n + j];  // fault
    c[i * n + j] = sum;
}""",
        ("k <= n", "k < n"),
        Memory(81, "f4"), Memory(81, "f4"), Memory(81, "f4", "zero"), 9, block=(9, 9),
    ),
    outside(
        "bin_number_too_large",
        r"""extern "C" __global__ void histogram(const int* x, int* bins, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&bins[x[i]], 1);  // fault
}""",
        ("x[i]]", "x[i] % 6]"),
        N, Memory(6, fill="zero"), 1000, grid=4, block=256, buffer="bins",
    ),
    outside(
        "compare_and_swap_past_the_end",
        r"""extern "C" __global__ void claim(int* owner, int n)
{
    const int i = threadIdx.x;
    if (i <= n) atomicCAS(&owner[i], 0, i + 1);  // fault
}""",
        ("<=", "<"),
        Memory(50, fill="zero"), 50, buffer="owner",
    ),
    outside(
        "asynchronous_copy_past_the_end",
        INCLUDE_PIPELINE
        + r"""extern "C" __global__ void stage(const int* x, int* y, int n)
{
    __shared__ int tile[256];
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    tile[t] = 0;
    if (i < n + 1) __pipeline_memcpy_async(&tile[t], &x[i], 4);  // fault
    __pipeline_commit();
    __pipeline_wait_prior(0);
    if (i < n) y[i] = tile[t];
}""",
        ("i < n + 1", "i < n"),
        N, OUT, 1000, grid=4, block=256, buffer="x",
    ),
    outside(
        "shared_array_too_small",
        r"""extern "C" __global__ void reverse(int* x)
{
    __shared__ int s[48];
    const int t = threadIdx.x;
    s[t] = x[t];  // fault
    __syncthreads();
    x[t] = s[63 - t];
}""",
        ("s[48]", "s[64]"),
        Memory(64), mark="// fault",
    ),
    outside(
        "dynamic_shared_memory_too_small",
        r"""extern "C" __global__ void fill(int* y)
{
    extern __shared__ int buffer[];
    const int t = threadIdx.x;
    if (t < 40) buffer[t] = t;  // fault
    y[t] = t < 32 ? buffer[t] : 0;
}""",
        ("t < 40", "t < 32"),
        Memory(64, fill="zero"), shared=128,
    ),
    outside(
        "negative_shared_index",
        r"""extern "C" __global__ void shift(int* y)
{
    __shared__ int s[64];
    const int t = threadIdx.x;
    s[t] = t;
    __syncthreads();
    y[t] = s[t - 1];  // fault
}""",
        ("s[t - 1]", "s[max(t - 1, 0)]"),
        Memory(64, fill="zero"),
    ),
    outside(
        "local_array_too_small",
        r"""extern "C" __global__ void count(const int* x, int* y)
{
    int seen[6] = {0, 0, 0, 0, 0, 0};
    const int t = threadIdx.x;
    for (int k = 0; k < 10; ++k)
        seen[x[t + k]] += 1;  // fault
    y[t] = seen[x[t + 10] % 6];
}""",
        ("seen[x[t + k]]", "seen[x[t + k] % 6]"),
        Memory(80), Memory(64, fill="zero"),
    ),
    outside(
        "index_from_data",
        r"""extern "C" __global__ void gather(const int* index, const int* x, int* y)
{
    const int t = threadIdx.x;
    y[t] = x[100 * index[t]];  // fault
}""",
        ("100 * ", "10 * "),
        Memory(64), Memory(100), Memory(64, fill="zero"), buffer="x",
    ),
    Fault(
        "float2_at_an_odd_float",
        "misaligned",
        r"""extern "C" __global__ void pairs(const float* x, float2* y)
{
    y[threadIdx.x] = reinterpret_cast<const float2*>(x + 1)[threadIdx.x];  // fault
}""",
        ("x + 1", "x + 2"),
        (Memory(140, "f4"), Memory(128, "f4", "zero")),
    ),
    Fault(
        "float4_at_a_row_of_odd_length",
        "misaligned",
        r"""extern "C" __global__ void rows(const float* x, float4* y, int width)
{
    const int row = threadIdx.x;
    y[row] = *reinterpret_cast<const float4*>(x + row * width);  // fault
}""",
        ("row * width", "row * (width / 4 * 4)"),
        (Memory(64 * 18, "f4"), Memory(256, "f4", "zero"), 18),
    ),
    Fault(
        "integer_out_of_bytes",
        "misaligned",
        r"""extern "C" __global__ void fields(const char* records, int* y)
{
    y[threadIdx.x] = *reinterpret_cast<const int*>(records + 6 * threadIdx.x);  // fault
}""",
        ("6 * threadIdx.x", "8 * threadIdx.x"),
        (Memory(512, "i1"), Memory(64, fill="zero")),
    ),
    Fault(
        "shared_int4_at_an_odd_int",
        "misaligned",
        r"""extern "C" __global__ void vectors(int* y)
{
    __shared__ __align__(16) int s[260];
    const int t = threadIdx.x;
    *reinterpret_cast<int4*>(&s[4 * t + 1]) = make_int4(t, t, t, t);  // fault
    y[t] = s[4 * t + 1];
}""",
        ("4 * t + 1])", "4 * t])"),
        (Memory(64, fill="zero"),),
    ),
    Fault(
        "double_at_a_float",
        "misaligned",
        r"""extern "C" __global__ void sums(float* x)
{
    atomicAdd(reinterpret_cast<double*>(x + 1), 1.0);  // fault
}""",
        ("x + 1", "x + 2"),
        (Memory(64, "f4", "zero"),),
    ),
]  # fmt: skip
