"""Barriers that not all threads reach, or that they reach in different places."""

from tests.faults import Fault, Memory

X = Memory(128)
OUT = Memory(128, fill="zero")


def missed(name: str, source: str, mend: tuple[str, str], *args: object, **others: object) -> Fault:
    return Fault(name, "barrier", source, mend, args or (X, OUT), **{"block": 128, **others})


PLANTED = [
    missed(
        "barrier_in_a_branch",
        r"""extern "C" __global__ void reverse(const int* x, int* y)
{
    __shared__ int s[128];
    const int t = threadIdx.x;
    if (t < 64) {
        s[t] = x[t];
        __syncthreads();  // fault
        y[t] = s[t ^ 1];
    }
}""",
        ("t < 64", "t < 128"),
    ),
    missed(
        "barrier_in_a_branch_of_the_warp",
        r"""extern "C" __global__ void even(const int* x, int* y)
{
    const int t = threadIdx.x;
    y[t] = x[t];
    if (t % 2 == 0) __syncthreads();  // fault
    y[t] += 1;
    __syncthreads();
}""",
        ("t % 2 == 0", "x[0] == 0"),
    ),
    missed(
        "barrier_on_either_side",
        r"""extern "C" __global__ void sides(const int* x, int* y)
{
    const int t = threadIdx.x;
    if (t < 64) {
        y[t] = x[t];
        __syncthreads();  // fault
    } else {
        y[t] = -x[t];
        __syncthreads();
    }
}""",
        ("t < 64", "x[0] == 0"),
    ),
    missed(
        "return_before_the_barrier",
        r"""extern "C" __global__ void reverse(const int* x, int* y, int n)
{
    __shared__ int s[128];
    const int t = threadIdx.x;
    if (t >= n) return;
    s[t] = x[t];
    __syncthreads();  // fault
    y[t] = s[n - 1 - t];
}""",
        ("", ""),
        X, OUT, 100, mended_args=(X, OUT, 128),
    ),
    missed(
        "return_from_a_reduction",
        r"""extern "C" __global__ void sum(const int* x, int* y)
{
    __shared__ int s[128];
    const int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    for (int k = 64; k > 0; k /= 2) {
        if (t >= k) return; else s[t] += s[t + k];
        __syncthreads();  // fault
    }
    y[0] = s[0];
}""",
        ("if (t >= k) return; else", "if (t < k)"),
    ),
    missed(
        "loop_as_long_as_the_thread_says",
        r"""extern "C" __global__ void rounds(const int* x, int* y)
{
    const int t = threadIdx.x;
    for (int k = 0; k < x[t] + 1; ++k) {
        y[t] += k;
        __syncthreads();  // fault
    }
}""",
        ("x[t] + 1", "x[0] + 1"),
    ),
    missed(
        "break_before_the_barrier",
        r"""extern "C" __global__ void search(const int* x, int* y)
{
    const int t = threadIdx.x;
    for (int k = 0; k < 8; ++k) {
        if (x[(t + k) % 128] == 6) break;
        y[t] = k;
        __syncthreads();  // fault
    }
}""",
        ("x[(t + k) % 128]", "x[k]"),
    ),
    missed(
        "lanes_that_a_mask_names_in_vain",
        r"""extern "C" __global__ void halves(const int* x, int* y)
{
    const int t = threadIdx.x;
    if (t % 32 < 16) {
        y[t] = x[t];
        __syncwarp(0xffffffff);  // fault
        y[t ^ 1] += 1;
    }
    __syncthreads();
}""",
        ("0xffffffff", "0x0000ffff"),
        hangs=True,
    ),
    missed(
        "named_barrier_for_too_many",
        r"""extern "C" __global__ void pair(const int* x, int* y)
{
    const int t = threadIdx.x;
    y[t] = x[t];
    if (t < 64) asm volatile("bar.sync 1, 96;" ::: "memory");  // fault
    y[t] += 1;
}""",
        ("1, 96", "1, 64"),
        hangs=True,
    ),
]  # fmt: skip
