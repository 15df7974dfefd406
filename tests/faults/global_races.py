"""Races in global memory: threads that nothing orders within a launch, mostly those of different blocks."""

from tests.faults import Fault, Memory

X = Memory(256)
OUT = Memory(256, fill="zero")


def race(name: str, source: str, mend: tuple[str, str], *args: object, **others: object) -> Fault:
    return Fault(name, "global race", source, mend, args or (X, OUT), **{"grid": 4, **others})


PLANTED = [
    race(
        "histogram_without_atomics",
        r"""extern "C" __global__ void histogram(const int* x, int* bins)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    bins[x[i]] += 1;  // fault
}""",
        ("bins[x[i]] += 1", "atomicAdd(&bins[x[i]], 1)"),
        X, Memory(7, fill="zero"), buffer="bins",
    ),
    race(
        "one_counter_for_all",
        r"""extern "C" __global__ void count(const int* x, int* odd)
{
    if (x[blockIdx.x * blockDim.x + threadIdx.x] % 2)
        *odd += 1;  // fault
}""",
        ("*odd += 1", "atomicAdd(odd, 1)"),
        X, Memory(1, fill="zero"), buffer="odd",
    ),
    race(
        "stencil_in_place",
        r"""extern "C" __global__ void smooth(float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i > 0 && i < n - 1) x[i] = (x[i - 1] + x[i] + x[i + 1]) / 3;  // fault
}""",
        (") x[i] =", ") y[i] ="),
        Memory(256, "f4"), Memory(256, "f4", "zero"), 256, buffer="x",
    ),
    race(
        "stencil_across_blocks",
        r"""extern "C" __global__ void difference(int* x, int* y)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int left = x[max(i - 1, 0)];
    __syncthreads();
    x[i] -= left;  // fault
}""",
        ("x[i] -= left", "y[i] = x[i] - left"),
        buffer="x",
    ),
    race(
        "result_of_every_block",
        r"""extern "C" __global__ void sum(const int* x, int* y)
{
    __shared__ int total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    atomicAdd(&total, x[blockIdx.x * blockDim.x + threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) y[0] = total;  // fault
}""",
        ("y[0]", "y[blockIdx.x]"),
        buffer="y",
    ),
    race(
        "two_threads_for_an_element",
        r"""extern "C" __global__ void halve(const int* x, int* y)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i / 2] = x[i];  // fault
}""",
        ("= x[i]", "= x[i / 2]"),
        buffer="y",
    ),
    race(
        "exchange_within_a_block",
        r"""extern "C" __global__ void swap(const int* x, int* y)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i];
    __syncwarp();
    const int other = y[i ^ 32];  // fault
    __syncthreads();
    y[i] = other;
}""",
        ("__syncwarp", "__syncthreads"),
        buffer="y",
    ),
    race(
        "reversed_in_place",
        r"""extern "C" __global__ void reverse(int* x, int* y)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    x[255 - i] = x[i];  // fault
}""",
        ("x[255 - i] =", "y[255 - i] ="),
        buffer="x",
    ),
    race(
        "transposed_in_place",
        r"""extern "C" __global__ void transpose(int* x, int* y)
{
    const int i = threadIdx.x, j = blockIdx.x;
    x[16 * j + i] = x[16 * i + j];  // fault
}""",
        ("x[16 * j", "y[16 * j"),
        grid=16, block=16, buffer="x",
    ),
    race(
        "sum_read_while_it_is_summed",
        r"""extern "C" __global__ void share(const int* x, int* total, int* y)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(total, x[i]);
    y[i] = total[0];  // fault
}""",
        ("= total[0]", "= x[i]"),
        X, Memory(1, fill="zero"), OUT, buffer="total",
    ),
    race(
        "gaps_closed_by_a_position_of_the_block",
        r"""extern "C" __global__ void compact(const int* x, int* y)
{
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    const int value = x[blockIdx.x * blockDim.x + threadIdx.x];
    if (value % 2) {
        const int place = atomicAdd(&count, 1);
        y[place] = value + blockIdx.x;  // fault
    }
}""",
        ("y[place]", "y[64 * blockIdx.x + place]"),
        buffer="y",
    ),
    race(
        "tiles_that_overlap",
        r"""extern "C" __global__ void copy(const int* x, int* y)
{
    const int i = blockIdx.x * (blockDim.x - 1) + threadIdx.x;
    y[i] = x[i] + blockIdx.x;  // fault
}""",
        ("(blockDim.x - 1)", "blockDim.x"),
        buffer="y",
    ),
    race(
        "bytes_of_a_word",
        r"""extern "C" __global__ void flags(char* odd, int* words)
{
    const int t = threadIdx.x;
    odd[t] = t % 2;
    __syncwarp();
    if (t < 64) words[t] = reinterpret_cast<int*>(odd)[t];  // fault
}""",
        ("__syncwarp", "__syncthreads"),
        Memory(256, "i1"), Memory(64, fill="zero"), grid=1, block=256, buffer="odd",
    ),
]  # fmt: skip
