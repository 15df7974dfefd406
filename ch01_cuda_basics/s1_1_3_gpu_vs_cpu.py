# %%
"""1.1.3 GPU与CPU的并行计算差异 — How a GPU and a CPU compute in parallel

本节用同一个多项式比较 NumPy 与 GPU（含传输、不含传输），规模从 2^10 到 2^26，并用实测数据验证阿姆达尔定律。
One polynomial on NumPy and on the GPU, from 2^10 to 2^26 elements: where the GPU wins, and what limits it.

要点
  CPU 用少数大核心和大缓存追求低延迟，GPU 用成千上万个线程追求高吞吐；小任务输在启动开销上。
  数据在主机与设备之间的传输往往比计算更久；锁页内存（pinned）的传输比普通内存快得多。
  阿姆达尔定律：串行部分（传输与启动）占比为 f 时，无论有多少个 SM，加速比都不超过 1/f。
Key idea
  A CPU is built for latency, a GPU for throughput: below some size the launch alone costs more than the work. And
  what cannot be spread over more multiprocessors, above all the transfers, bounds the speed-up: Amdahl's law.

Run:      ./run 1.1.3     or     python ch01_cuda_basics/s1_1_3_gpu_vs_cpu.py [--size N] [--quick] [--plot]
Look at:  the sizes at which the curves cross, with and without transfers; the speed-up that Amdahl's law predicts
          from the measured parts, beside the one measured. Without a GPU: what was recorded on the GPU that it names.
"""

import math
import os
import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import numpy as np

from common import gpu, results, timing
from common.cli import check_fits, header, not_run, parser, run_main

# in your own code: from cuda.core import Buffer, LaunchConfig, LegacyPinnedMemoryResource, launch
from common.gpu import Buffer, LaunchConfig, LegacyPinnedMemoryResource, launch
from common.report import plot_curves, si, table
from common.results import Row
from common.verify import check, checks_table

NEEDS = ()

# %% The kernel
KERNEL = r"""
// exp(x) near 0 by its Taylor polynomial of degree 8, in Horner's scheme. Any grid covers any n.
extern "C" __global__ void polynomial(const float* __restrict__ x, float* __restrict__ y, long long n)
{
    const float c[9] = {1.0f, 1.0f, 1.0f / 2, 1.0f / 6, 1.0f / 24, 1.0f / 120, 1.0f / 720, 1.0f / 5040, 1.0f / 40320};
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        const float v = x[i];
        float sum = c[8];
        #pragma unroll
        for (int k = 7; k >= 0; --k) sum = sum * v + c[k];
        y[i] = sum;
    }
}
"""
BLOCK = 1024  # so that a block has a multiprocessor (SM) for itself as long as there are no more blocks than SMs
compiled = cache(lambda: gpu.compile_kernels(KERNEL, "polynomial")[0])
COEFFICIENTS = [1 / math.factorial(k) for k in range(9)]


# %% The reference, and NumPy at its best
def reference(x):
    """The polynomial in float64."""
    return np.polynomial.polynomial.polyval(x.astype(np.float64), COEFFICIENTS)


THREADS = len(os.sched_getaffinity(0))
pool = cache(lambda: ThreadPoolExecutor(THREADS))
PIECE = 1 << 16  # elements: x and y of a piece stay in a core's cache during the 16 passes of Horner's scheme
SHARE = 1 << 18, 1 << 20  # the fewest and the most elements in a piece for a thread: small ones wait for the GIL


def horner(x, y):
    """y = polynomial(x) for one piece, without temporary arrays."""
    np.multiply(x, np.float32(COEFFICIENTS[8]), out=y)
    for c in COEFFICIENTS[7:0:-1]:
        y += np.float32(c)
        y *= x
    y += np.float32(COEFFICIENTS[0])


def polynomial_numpy(x, y, threads=1):
    """y = polynomial(x), piece by piece; both float32, shape (n,). With THREADS, several at a time where that pays."""
    alone = threads == 1 or x.size < 2 * SHARE[0]
    piece = PIECE if alone else min(max(x.size // threads, SHARE[0]), SHARE[1])
    each = map if alone else pool().map
    list(each(lambda i: horner(x[i : i + piece], y[i : i + piece]), range(0, x.size, piece)))
    return y


# %% The GPU
class Polynomial:
    """`call = Polynomial(x)` allocates; `call()` copies x to the GPU, computes, copies y back and returns it.

    float32, shape (n,), else ValueError. `pinned` (page-locked) host memory is copied at once; CUDAError if refused.
    """

    def __init__(self, x, pinned=False):
        x = np.ascontiguousarray(x)
        if x.dtype != np.float32 or x.ndim != 1 or x.size == 0:
            raise ValueError(f"expected a float32 vector that is not empty, got {x.dtype} of shape {x.shape}")
        device, self.stream = gpu.open_device()
        self.d_x, self.d_y = (device.allocate(x.nbytes, stream=self.stream) for _ in range(2))
        if pinned:
            self.host_x, self.host_y = (LegacyPinnedMemoryResource().allocate(x.nbytes) for _ in range(2))
            np.from_dlpack(self.host_x).view(np.float32)[:] = x
            self.y = np.from_dlpack(self.host_y).view(np.float32)
        else:
            self.y = np.empty_like(x)
            self.host_x, self.host_y = (Buffer.from_handle(a.ctypes.data, a.nbytes, owner=a) for a in (x, self.y))
        self.sms, threads = device.properties.multiprocessor_count, device.properties.max_threads_per_multiprocessor
        self.blocks = min(self.sms * (threads // BLOCK), -(-x.size // BLOCK))  # as many as run at the same time

    def __call__(self, copies=True, kernel=True, blocks=None):
        if copies:
            self.d_x.copy_from(self.host_x, stream=self.stream)
        if kernel:
            config = LaunchConfig(grid=blocks or self.blocks, block=BLOCK)
            launch(self.stream, config, compiled(), self.d_x, self.d_y, np.int64(self.y.size))
        if copies:
            self.d_y.copy_to(self.host_y, stream=self.stream)
        self.stream.sync()
        return self.y


# %% Verify and measure
ONE, ALL = "NumPy, 1 thread", f"NumPy, {THREADS} threads"
LOGS = range(10, 27, 2)  # of the numbers of elements that are compared


def random_vector(n):
    return np.random.default_rng(113).uniform(-1, 1, n).astype(np.float32)


def verify(n):
    """The checks of NumPy and GPU on n random elements. Raises Mismatch if one is wrong."""
    x, y = random_vector(n), np.empty((2, n), np.float32)
    outcomes = {ONE: polynomial_numpy(x, y[0]), ALL: polynomial_numpy(x, y[1], THREADS)}
    outcomes |= {"GPU": Polynomial(x)(), "GPU, pinned": Polynomial(x, pinned=True)()}
    # each of the 16 operations rounds by at most 6e-8, and only the last few weigh fully
    return [check(name, out, reference(x), rtol=5e-7) for name, out in outcomes.items()]


def benchmark() -> list[Row]:
    """NumPy and GPU from 2^10 to 2^26 elements; then 2^24 on 1, 2, 4, ... SMs, whole and in parts."""
    yardsticks, rows, pinned_log = timing.yardsticks(*gpu.open_device()), [], LOGS[0]
    row = partial(Row.from_timing, section="1.1.3", dtype="f32", yardsticks=yardsticks)
    verify(1_000_003)
    for log in [k for k in LOGS if 16 << k <= gpu.free_memory() // 4]:  # 8 bytes an element, twice
        x, y = random_vector(1 << log), np.empty(1 << log, np.float32)
        calls = {ONE: partial(polynomial_numpy, x, y), ALL: partial(polynomial_numpy, x, y, THREADS)}
        calls |= {"GPU, pageable copies": (call := Polynomial(x)), "GPU, kernel alone": partial(call, copies=False)}
        try:
            calls["GPU, pinned copies"], pinned_log = Polynomial(x, pinned=True), log
        except gpu.CUDAError as refused:  # containers and WSL allow only so much
            not_run(f"pinned copies of 2^{log} elements: {refused}")
        times = timing.wall_clock(calls)
        best = min(ONE, ALL, key=lambda name: times[name].seconds)
        peers = {name: (best, times[best]) for name in times if name.startswith("GPU")}
        rows += [row(name=k, size=f"2^{log}", timing=taken, peer=peers.get(k)) for k, taken in times.items()]

    log = min(24, pinned_log)
    call, one = Polynomial(random_vector(1 << log), pinned=True), f"2^{log} on 1 SMs"
    calls = {("copies", f"2^{log}"): partial(call, kernel=False)}
    calls["kernel", one] = partial(call, copies=False, blocks=1)
    counts = [*(1 << k for k in range(10) if 1 << k < call.sms), call.sms]
    calls |= {("whole call", f"2^{log} on {k} SMs"): partial(call, blocks=k) for k in counts}
    return rows + [row(name=f"Amdahl, {k}", size=n, timing=taken) for (k, n), taken in timing.wall_clock(calls).items()]


# %% Read the figures
def curves(rows, *kinds):
    """{name: {number: seconds}} of names that begin so: the last number in a size, log2 of the elements or the SMs."""
    result = {}
    for row in rows:
        if row.name.startswith(kinds):
            result.setdefault(row.name, {})[int(re.findall(r"\d+", row.size)[-1])] = row.seconds
    return result


def faster(cpu, gpu_):
    """Where the GPU is faster: [(from, to), ...] in log2 of the size, interpolated between the measured sizes."""
    logs = sorted(cpu.keys() & gpu_.keys())
    gain = [math.log(cpu[k] / gpu_[k]) for k in logs]
    steps = zip(logs, gain, logs[1:], gain[1:], strict=False)
    ends = logs[:1] * (gain[0] > 0) + [a + (b - a) * g / (g - h) for a, g, b, h in steps if (g > 0) != (h > 0)]
    ends += logs[-1:] * (len(ends) % 2)
    return list(zip(ends[::2], ends[1::2], strict=True))


def amdahl(rows):
    """f, the copies' share in a call on one SM; (SMs, seconds, speed-up, Amdahl's 1 / (f + (1 - f) / SMs)) for each."""
    parts = curves(rows, "Amdahl")
    (copies,), kernel, call = parts["Amdahl, copies"].values(), parts["Amdahl, kernel"], parts["Amdahl, whole call"]
    f = copies / (copies + kernel[1])
    return f, [(k, call[k], call[1] / call[k], 1 / (f + (1 - f) / k)) for k in sorted(call)]


def report(rows):
    """Print the comparison, where the GPU wins, and Amdahl's law."""
    compared, numpy = curves(rows, "NumPy", "GPU"), curves(rows, "NumPy").values()
    best = {k: min(curve[k] for curve in numpy) for k in compared[ONE]}
    lines = [(f"2^{k}", *(si(c[k], "s") if k in c else "" for c in compared.values())) for k in best]
    table("Seconds for n elements", ("n", *compared), lines)
    for name, curve in curves(rows, "GPU").items():
        where = " and ".join(f"n = {2**a:,.0f} to {2**b:,.0f}" for a, b in faster(best, curve))
        print(f"{name}: faster than NumPy", f"for {where}" if where else "at none of these sizes")
    f, parts = amdahl(rows)
    lines = [(k, si(seconds, "s"), f"{measured:.2f}", f"{law:.2f}") for k, seconds, measured, law in parts]
    table("One call on more and more SMs", ("SMs", "whole call", "speed-up", "by Amdahl's law"), lines)
    print(f"f = {f:.1%} of the call on one SM are copies: no number of SMs makes it {1 / f:.1f} times as fast")


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=1_000_003, quick_size=100_003, plot=True).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    check_fits(16 * options.size)
    checks_table(verify(options.size))
    rows, source = results.measured_or_recorded("1.1.3", benchmark, options.bench)
    if not rows:
        return 0
    report(rows)
    if options.plot:
        lines = {name: {2**k: s for k, s in curve.items()} for name, curve in curves(rows, "NumPy", "GPU").items()}
        plot_curves(lines, f"A polynomial on CPU and GPU ({source})", "elements", "seconds", "s1_1_3_gpu_vs_cpu")
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
