# %%
"""1.1.3 GPU与CPU的并行计算差异 — How a GPU and a CPU compute in parallel

本节用同一个多项式比较 NumPy 与 GPU（含传输、不含传输），规模从 2^10 到 2^26，并用实测数据验证阿姆达尔定律。
One polynomial on NumPy and on the GPU, from 2^10 to 2^26 elements: where the GPU begins to win, and what limits it.

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

import functools
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from tqdm import tqdm

from common import gpu, results, timing
from common.cli import UsageError, header, not_run, parser, run_main

# in your own code: from cuda.core import Buffer, Device, LaunchConfig, Program, ProgramOptions, launch, ...
from common.gpu import Buffer, Device, LaunchConfig, LegacyPinnedMemoryResource, Program, ProgramOptions, launch
from common.report import new_figure, save_figure, si, table
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
COEFFICIENTS = [1 / math.factorial(k) for k in range(9)]


# %% The reference, and NumPy at its best
def reference(x):
    """The polynomial in float64."""
    return np.polynomial.polynomial.polyval(x.astype(np.float64), COEFFICIENTS)


THREADS = len(os.sched_getaffinity(0))
PIECE = 1 << 16  # elements: x and y of a piece stay in a core's cache during the 16 passes of Horner's scheme


def horner(x, y):
    """y = polynomial(x) for one piece, without temporary arrays."""
    np.multiply(x, np.float32(COEFFICIENTS[8]), out=y)
    for c in COEFFICIENTS[7:0:-1]:
        y += np.float32(c)
        y *= x
    y += np.float32(COEFFICIENTS[0])


def numpy_one_thread(x, y):
    """y = polynomial(x), piece by piece."""
    for start in range(0, x.size, PIECE):
        horner(x[start : start + PIECE], y[start : start + PIECE])


@functools.cache
def pool():
    return ThreadPoolExecutor(THREADS)


def numpy_all_threads(x, y):
    """The same with pieces for all threads: while NumPy computes, others run. Handing over less does not pay."""
    piece = min(PIECE, max(-(-x.size // THREADS), PIECE // 4))
    if x.size <= piece:
        horner(x, y)
    else:
        list(pool().map(lambda i: horner(x[i : i + piece], y[i : i + piece]), range(0, x.size, piece)))


def polynomial_numpy(x, variant=numpy_one_thread):
    """polynomial(x) on the CPU."""
    y = np.empty_like(x)
    variant(x, y)
    return y


# %% The GPU
@functools.cache
def compiled():
    """KERNEL, compiled once for the current device."""
    return Program(KERNEL, "c++", ProgramOptions(std="c++17", arch=f"sm_{Device().arch}")).compile("cubin")


class Offload:
    """polynomial(x) on the GPU. Its memory is allocated once, as in a program that calls it again and again.

    x and the result, `y`, lie in ordinary (pageable) host memory or in page-locked (`pinned`) memory, which the GPU
    reaches without the driver copying it to such memory first. CUDAError where so much of it is refused.
    """

    def __init__(self, x, pinned=False):
        device = Device(0)
        device.set_current()
        self.stream, self.sms = device.create_stream(), device.properties.multiprocessor_count
        self.d_x, self.d_y = (device.allocate(x.nbytes, stream=self.stream) for _ in range(2))
        if pinned:
            self.host_x, self.host_y = (LegacyPinnedMemoryResource().allocate(x.nbytes) for _ in range(2))
            np.from_dlpack(self.host_x).view(np.float32)[:] = x
            self.y = np.from_dlpack(self.host_y).view(np.float32)
        else:
            self.y = np.empty_like(x)
            self.host_x, self.host_y = (Buffer.from_handle(a.ctypes.data, a.nbytes, owner=a) for a in (x, self.y))
        self.kernel, self.n = compiled().get_kernel("polynomial"), x.size
        resident = self.sms * (device.properties.max_threads_per_multiprocessor // BLOCK)
        self.blocks = min(resident, -(-x.size // BLOCK))
        self()

    def compute(self, blocks=None):
        config = LaunchConfig(grid=blocks or self.blocks, block=BLOCK)
        launch(self.stream, config, self.kernel, self.d_x, self.d_y, np.int64(self.n))

    def __call__(self, copies=True, kernel=True, blocks=None):
        if copies:
            self.d_x.copy_from(self.host_x, stream=self.stream)
        if kernel:
            self.compute(blocks)
        if copies:
            self.d_y.copy_to(self.host_y, stream=self.stream)
        self.stream.sync()


def polynomial_gpu(x, pinned=False):
    """polynomial(x) of a float32 vector, with transfers. TypeError or ValueError for anything else."""
    if not isinstance(x, np.ndarray) or x.dtype != np.float32:
        raise TypeError(f"expected a float32 array, got {getattr(x, 'dtype', type(x).__name__)}")
    if x.ndim != 1 or x.size == 0:
        raise ValueError(f"expected a 1-D array with at least one element, got shape {x.shape}")
    return Offload(np.ascontiguousarray(x), pinned).y.copy()


# %% Verify and measure
ONE, ALL = "NumPy, 1 thread", f"NumPy, {THREADS} threads"
LOGS = range(10, 27, 2)  # of the numbers of elements that are compared


def random_vector(n):
    return np.random.default_rng(113).uniform(-1, 1, n).astype(np.float32)


def verify(n):
    """The checks of NumPy and GPU on n random elements. Raises Mismatch if one is wrong."""
    x = random_vector(n)
    outcomes = {ONE: polynomial_numpy(x), ALL: polynomial_numpy(x, numpy_all_threads)}
    outcomes |= {"GPU, pageable": polynomial_gpu(x), "GPU, pinned": polynomial_gpu(x, pinned=True)}
    # each of the 16 operations rounds by at most 6e-8, and only the last few weigh fully
    return [check(name, y, reference(x), rtol=5e-7) for name, y in outcomes.items()]


def wall_clock(calls, samples=20):
    """Seconds on the wall, launches and waiting included. The calls take turns; the first two turns warm up."""
    taken = {name: [] for name in calls}
    for _ in range(2 + samples):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - start)
    return {name: timing.Timing.of(seconds[2:]) for name, seconds in taken.items()}


def benchmark() -> list[Row]:
    """NumPy and GPU from 2^10 to 2^26 elements; then copies, kernel and whole call at 2^24 on 1, 2, 4, ... SMs."""
    device = Device(0)
    device.set_current()
    yardsticks, rows = timing.yardsticks(device, device.create_stream()), []
    verify(100_003)

    def add(name, size, taken, **more):
        what = {"section": "1.1.3", "dtype": "f32", "yardsticks": yardsticks}
        rows.append(Row.from_timing(name=name, size=size, timing=taken, **what, **more))

    logs = [k for k in LOGS if 16 << k <= gpu.free_memory() // 4]  # 8 bytes an element, twice
    pinned_logs = []
    for log in tqdm(logs, desc="sizes", delay=5, leave=False):
        x, y = random_vector(1 << log), np.empty(1 << log, np.float32)
        calls = {ONE: functools.partial(numpy_one_thread, x, y), ALL: functools.partial(numpy_all_threads, x, y)}
        calls["GPU, pageable copies"] = pageable = Offload(x)
        calls["GPU, kernel alone"] = functools.partial(pageable, copies=False)
        try:
            calls["GPU, pinned copies"] = Offload(x, pinned=True)
            pinned_logs.append(log)
        except gpu.CUDAError as refused:  # containers and WSL allow only so much
            not_run(f"pinned copies of 2^{log} elements: {refused}")
        times = wall_clock(calls)
        for name, taken in times.items():
            add(name, f"2^{log}", taken, peer=(ALL, times[ALL]) if name.startswith("GPU") else None)

    log = min(24, pinned_logs[-1])
    call = Offload(random_vector(1 << log), pinned=True)
    add("Amdahl, copies", f"2^{log}", wall_clock({"": functools.partial(call, kernel=False)})[""])
    counts = [*(1 << k for k in range(10) if 1 << k < call.sms), call.sms]
    whole = wall_clock({k: functools.partial(call, blocks=k) for k in counts})
    alone = timing.benchmark({k: lambda stream, k=k: call.compute(k) for k in counts}, call.stream)
    for k in counts:
        add("Amdahl, kernel", f"2^{log} on {k} SMs", alone[k], bytes=8 << log)
        add("Amdahl, whole call", f"2^{log} on {k} SMs", whole[k])
    return rows


# %% Read the figures
def curves(rows):
    """{name: {number: seconds}}: the number of elements, or for Amdahl's law the number of SMs."""
    result = {}
    for row in rows:
        log, _, sms = row.size.removeprefix("2^").partition(" on ")
        result.setdefault(row.name, {})[int(sms.split()[0]) if sms else 1 << int(log)] = row.seconds
    return result


def crossing(cpu, gpu_):
    """The size from which on the GPU stays faster, by interpolation in logarithms between the measured sizes.

    The smallest size where it always is; None where it is slower at the largest.
    """
    sizes = sorted(cpu.keys() & gpu_.keys())
    gain = np.log([cpu[n] / gpu_[n] for n in sizes])
    slower = np.flatnonzero(gain < 0)
    if slower.size == 0:
        return float(sizes[0])
    i = slower[-1]
    if i == len(sizes) - 1:
        return None
    return float(np.exp(np.interp(0, gain[i : i + 2], np.log(sizes[i : i + 2]))))


def amdahl(by_name):
    """The share f of the copies in the call on one SM, and per number of SMs: kernel, call, and two speed-ups.

    The one is measured; the other, 1 / (f + (1 - f) / SMs), knows of nothing but the copies and the kernel on one SM.
    """
    kernel, call = by_name["Amdahl, kernel"], by_name["Amdahl, whole call"]
    (copies,) = by_name["Amdahl, copies"].values()
    f = copies / (copies + kernel[1])
    return f, [(k, kernel[k], call[k], call[1] / call[k], 1 / (f + (1 - f) / k)) for k in sorted(call)]


def report(rows):
    """Print the comparison, the crossings and Amdahl's law."""
    by_name = curves(rows)
    compared = {name: curve for name, curve in by_name.items() if not name.startswith("Amdahl")}
    sizes = sorted({n for curve in compared.values() for n in curve})
    lines = [(f"2^{n.bit_length() - 1}", *(si(c[n], "s") if n in c else "" for c in compared.values())) for n in sizes]
    table("Seconds for n elements", ("n", *compared), lines)
    for name, curve in compared.items():
        for cpu in (c for c in compared if c.startswith("NumPy") and name.startswith("GPU")):
            n = crossing(compared[cpu], curve)
            print(f"{name}: faster than {cpu}", "at none of these sizes" if n is None else f"from n = {n:,.0f} on")
    f, parts = amdahl(by_name)
    lines = [(k, si(kernel, "s"), si(call, "s"), f"{m:.2f}", f"{p:.2f}") for k, kernel, call, m, p in parts]
    table("One call on more and more SMs", ("SMs", "kernel", "whole call", "speed-up", "by Amdahl's law"), lines)
    print(f"f = {f:.1%} of the call on one SM are copies: no number of SMs makes it {1 / f:.1f} times as fast")


def plot(rows, source):
    """The curves, and Amdahl's law, into out/."""
    by_name = curves(rows)
    figure, axes = new_figure(f"A polynomial on CPU and GPU ({source})", "elements", "seconds")
    for name, curve in by_name.items():
        if not name.startswith("Amdahl"):
            axes.loglog(list(curve), list(curve.values()), label=name)
    axes.legend()
    save_figure(figure, "s1_1_3_gpu_vs_cpu")
    f, parts = amdahl(by_name)
    counts, kernel, _, measured, predicted = zip(*parts, strict=True)
    figure, axes = new_figure(f"Amdahl's law ({source})", "multiprocessors (SMs)", "speed-up over one SM")
    axes.loglog(counts, kernel[0] / np.array(kernel), label="kernel alone")
    axes.loglog(counts, measured, label="whole call")
    axes.loglog(counts, predicted, label=f"Amdahl's law for f = {f:.0%}")
    axes.legend()
    save_figure(figure, "s1_1_3_amdahl")


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=1_000_003, quick_size=100_003, plot=True).parse_args(argv)
    device = Device(0)
    device.set_current()
    header(__doc__, device)
    if 16 * options.size > gpu.free_memory():
        raise UsageError(f"--size {options.size} needs more than the {gpu.free_memory():,} bytes that are free")
    checks_table(verify(options.size))
    if options.bench:
        rows, source = benchmark(), f"{device.name}, measured now"
    else:
        stored, rows = results.load(results.REFERENCE), results.recorded("1.1.3")
        source = " and ".join({f"{stored['gpu']}, {stored['runs'][row.run]['date'][:10]}" for row in rows})
    if not rows:
        print(results.NOTHING)
        if options.plot:
            not_run("the plot: it shows recorded figures", "./run bench 1, on a machine with a GPU")
        return 0
    print(source if options.bench else f"recorded on {source}, not measured here")
    report(rows)
    if options.plot:
        plot(rows, source)
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
