# %%
"""1.5.2 GPU计算性能与效率指标 — Performance and efficiency metrics

本节把效率指标逐一算出，并与实测对照：理论峰值、有效带宽、占用率、利特尔定律（Little's law）、每焦耳完成的工作。
The figures by which efficiency is judged, computed and measured: peaks, bandwidth, occupancy, Little's law, energy.

要点
  理论峰值由时钟、位宽和核心数算出；实测的拷贝与 FMA 才是够得着的上限，效率应当同它们相比。
  利特尔定律：在途字节数 = 延迟 × 带宽。在途的请求不够多，带宽就上不去；够了以后，再多也没有用。
  在途字节数 = 驻留线程数 × 每个线程同时发出的字节数：每个线程多取一些，占用率低也能跑满带宽；占用率不是目标。
Key idea
  Little's law: bytes in flight = latency × bandwidth. They come from resident threads times what each one asks for at
  a time, so that wide, independent loads make up for a low occupancy, which is a means and not the goal.

Run:      ./run 1.5.2     or     python ch01_cuda_basics/s1_5_2_efficiency_metrics.py [--size N] [--quick] [--plot]
Look at:  the bandwidth beside what the law says; from which occupancy on it is full. Without a GPU: recorded figures.
"""

import functools
import itertools
import math
import time

import numpy as np

from common import gpu, results, timing
from common.cli import check_fits, header, not_run, parser, run_main

# in your own code: from cuda.core import Device, LaunchConfig, launch
from common.gpu import Device, LaunchConfig, launch
from common.report import plot_curves, si, table
from common.results import Row
from common.verify import check, checks_table

NEEDS = ()

# %% The kernels
KERNEL = r"""
// y = x; n counts float4.
extern "C" __global__ void copy(const float4* __restrict__ x, float4* __restrict__ y, long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}

// y = a x + y; n counts float4.
extern "C" __global__ void saxpy(const float4* __restrict__ x, float4* __restrict__ y, long long n, float a)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float4 u = x[i], v = y[i];
    y[i] = {a * u.x + v.x, a * u.y + v.y, a * u.z + v.z, a * u.w + v.w};
}

// One sum for each thread. At each step it issues LOADS loads of 16 bytes and then adds them up: so many bytes are in
// flight for each thread. n counts float4.
template <int LOADS>
__global__ void partial_sums(const float4* __restrict__ x, float* __restrict__ sums, long long n)
{
    const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long threads = (long long)gridDim.x * blockDim.x;
    float sum = 0.0f;
    #pragma unroll 1
    for (long long q = thread; q < n; q += LOADS * threads) {
        float4 v[LOADS];
        #pragma unroll
        for (int k = 0; k < LOADS; ++k)
            v[k] = q + k * threads < n ? x[q + k * threads] : float4{0.0f, 0.0f, 0.0f, 0.0f};
        #pragma unroll
        for (int k = 0; k < LOADS; ++k) sum += v[k].x + v[k].y + v[k].z + v[k].w;
    }
    sums[thread] = sum;
}

// C = A B for square matrices of n rows, through tiles of 32 x 32 in shared memory; blocks of 32 x 32 threads.
extern "C" __global__ void matmul(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c,
                                  int n)
{
    __shared__ float tile_a[32][32], tile_b[32][32];
    const int x = threadIdx.x, y = threadIdx.y, column = blockIdx.x * 32 + x, row = blockIdx.y * 32 + y;
    float sum = 0.0f;
    for (int k = 0; k < n; k += 32) {
        tile_a[y][x] = row < n && k + x < n ? a[(long long)row * n + k + x] : 0.0f;
        tile_b[y][x] = k + y < n && column < n ? b[(long long)(k + y) * n + column] : 0.0f;
        __syncthreads();
        for (int j = 0; j < 32; ++j) sum += tile_a[y][j] * tile_b[j][x];
        __syncthreads();  // before the next step overwrites the tiles
    }
    if (row < n && column < n) c[(long long)row * n + column] = sum;
}

// One thread follows a ring: each load gives the address of the next one, so `hops` latencies add up.
extern "C" __global__ void chase(const int* __restrict__ next, int* __restrict__ last, int hops)
{
    int at = 0;
    for (int hop = 0; hop < hops; ++hop) at = next[at];
    *last = at;
}
"""
CLOCKED = r"""
// The same, in cycles of the multiprocessor.
extern "C" __global__ void chase_cycles(const int* __restrict__ next, long long* __restrict__ cycles, int hops)
{
    const long long start = clock64();
    int at = 0;
    for (int hop = 0; hop < hops; ++hop) at = next[at];
    *cycles = at < 0 ? 0 : clock64() - start;  // which needs `at`: the clock is read when the last load is there
}
"""
BLOCK, LOADS, HOPS, A = 128, (1, 2, 4, 8), 4096, np.float32(2.5)
LOG, SIDE, SECONDS = 27, 2048, 0.5  # measured: vectors of 2^LOG, matrices of SIDE², energy for SECONDS
compiled = functools.cache(lambda: gpu.compile_module(KERNEL, tuple(f"partial_sums<{k}>" for k in LOADS)))


# %% What can be computed: peaks, Little's law, occupancy
# float32 FMA lanes of an SM: the CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions"
LANES = {(7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128, (12, 0): 128}


def theoretical_peaks(sms, capability, clock_khz, memory_khz, bus_bits):
    """(GB/s, TFLOP/s): two transfers of the bus in a memory clock; an FMA, 2 FLOP, of each lane in a clock."""
    return 2 * memory_khz * bus_bits / 8 / 1e6, 2 * sms * LANES.get(tuple(capability), 128) * clock_khz / 1e9


def littles_law(in_flight, latency, peak):
    """byte/s that so many bytes in flight give at a latency in seconds: no more than the peak."""
    return min(peak, in_flight / latency)


def with_ballast(name, blocks):
    """(bytes of unused shared memory a block that leave room for so many on an SM, or fewer; the threads in them)."""
    kernel, limits = compiled().get_kernel(name), Device().properties
    each = limits.max_shared_memory_per_multiprocessor // blocks - 1024  # CUDA keeps 1 KiB of every block for itself
    shared = min(each, limits.max_shared_memory_per_block_optin) // 1024 * 1024
    gpu.allow_shared_memory(kernel, limits.max_shared_memory_per_block_optin)  # more than 48 KiB have to be asked for
    return shared, BLOCK * kernel.occupancy.max_active_blocks_per_multiprocessor(BLOCK, shared)


# %% Calls: (kernel, grid, block, inputs, output, numbers), the arrays in NumPy or on the device
def vectors(name, x, y, *numbers):
    """`copy` or `saxpy` of float32 vectors of one length, which 4 divides; else ValueError."""
    if not (x.dtype == y.dtype == np.float32 and x.shape == y.shape == (x.size,) and x.size and x.size % 4 == 0):
        raise ValueError(f"not float32 vectors of 4, 8, ... elements: {x.dtype} {x.shape}, {y.dtype} {y.shape}")
    return name, -(-x.size // (4 * BLOCK)), BLOCK, x, y, np.int64(x.size // 4), *numbers


def partial_sums(x, sums, loads):
    """Each of `sums`, a multiple of BLOCK of them, becomes a part of the sum of x, by one of LOADS at a time.

    ValueError for others, or unless x is float32 of shape (n,), of which 4 divides n.
    """
    if x.dtype != np.float32 or x.shape != (x.size,) or not x.size or x.size % 4:
        raise ValueError(f"not a float32 vector of 4, 8, ... elements: {x.dtype} {x.shape}")
    if sums.dtype != np.float32 or not sums.size or sums.size % BLOCK or loads not in LOADS:
        raise ValueError(f"not float32 sums of whole blocks of {BLOCK}: {sums.dtype} {sums.shape}, or {loads} loads")
    return f"partial_sums<{loads}>", sums.size // BLOCK, BLOCK, x, sums, np.int64(x.size // 4)


def matmul(a, b, c):
    """c = a b; float32, shape (n, n); ValueError for others."""
    if not all(m.dtype == np.float32 and m.size and m.shape == a.shape[:1] * 2 for m in (a, b, c)):
        raise ValueError(
            f"not square float32 matrices of one size: {', '.join(f'{m.dtype} {m.shape}' for m in (a, b))}"
        )
    return "matmul", (-(-a.shape[0] // 32),) * 2, (32, 32), a, b, c, np.int32(a.shape[0])


def chase(ring, last):
    """last[0] = where HOPS steps along the ring lead from 0; int32."""
    return "chase", 1, 1, ring, last, np.int32(HOPS)


def start(call, stream, shared=0):
    """Launch a call whose arrays are on the device, with so many bytes of dynamic shared memory a block."""
    name, grid, block, *arguments = call
    buffers = (a.buffer if isinstance(a, gpu.DeviceArray) else a for a in arguments)
    launch(stream, LaunchConfig(grid=grid, block=block, shmem_size=shared), compiled().get_kernel(name), *buffers)


def run(call):
    """Launch a call with NumPy arrays, and return the last of them, the output."""
    _, stream = gpu.open_device()
    call = [gpu.to_device(a, stream) if isinstance(a, np.ndarray) else a for a in call]
    start(call, stream)
    return [a for a in call if isinstance(a, gpu.DeviceArray)][-1].to_host(stream)


# %% The references
def reference_sums(x, threads):
    """float64 (threads,): thread t adds up the groups of 4 numbers t, t + threads, t + 2 threads, ... of x."""
    steps = -(-x.size // (4 * threads))
    padded = np.pad(x.astype(np.float64), (0, 4 * threads * steps - x.size))
    return padded.reshape(steps, threads, 4).sum(axis=(0, 2))


def reference_chase(ring):
    """int32 (1,): where HOPS steps along the ring lead from 0."""
    at = 0
    for _ in range(HOPS):
        at = ring[at]
    return np.array([at])


# %% Verify and measure
def random(*shape):
    """Numbers in [-1, 1). After 2^20 they repeat."""
    return np.resize(np.random.default_rng(152).uniform(-1, 1, min(math.prod(shape), 1 << 20)).astype("f4"), shape)


def scattered_ring(log):
    """int32 (2^log,): for each index the next one, on one ring through all (a full period, by Hull and Dobell)."""
    return ((1664525 * np.arange(1 << log, dtype=np.uint32) + 1013904223) % (1 << log)).astype(np.int32)


def verify(n):
    """The checks of all kernels, on 4 n elements and on matrices of about n. Raises Mismatch if one is wrong."""
    x, y, a, ring = random(4 * n), random(4 * n)[::-1].copy(), random(*[math.isqrt(n)] * 2), scattered_ring(12)
    steps, x64, sums = -(-n // (3 * BLOCK)), x.astype(np.float64), np.zeros(3 * BLOCK, np.float32)
    # float32 rounds by 2^-24 of what it has: up to 3.5 in saxpy, below the number of additions in a sum
    cases = [(vectors("copy", x, y), x, 0), (vectors("saxpy", x, y, A), A * x64 + y, 3e-7)]
    cases.append((matmul(a, a, np.zeros_like(a)), a.astype(np.float64) @ a, 6e-8 * len(a) ** 1.5))
    cases.append((chase(ring, np.zeros(1, np.int32)), reference_chase(ring), 0))
    parts = reference_sums(x, sums.size)
    cases += [(partial_sums(x, sums, loads), parts, 4e-7 * steps) for loads in LOADS]
    return [check(call[0], run(call), expected, atol=atol) for call, expected, atol in cases]


def energy(call, stream, moved, flops):
    """Power, and work for each joule, while a call is repeated for SECONDS; empty where NVML does not tell."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByPciBusId(stream.device.pci_bus_id)
        began, before, launches = time.perf_counter(), nvml.nvmlDeviceGetTotalEnergyConsumption(handle), 0
    except Exception:  # no pynvml, a container that hides NVML, a GPU without this counter
        return {}
    while time.perf_counter() - began < SECONDS:
        for _ in range(20):
            start(call, stream)
        launches += 20
        stream.sync()
    joules = (nvml.nvmlDeviceGetTotalEnergyConsumption(handle) - before) / 1e3  # it counts millijoules
    work = {"GB/J": moved * launches / joules / 1e9, "GFLOP/J": flops * launches / joules / 1e9}
    return {"W": joules / (time.perf_counter() - began), **work}


def facts(ring, stream):
    """Theoretical peaks, and the cycles of a hop along the ring by the multiprocessor's own clock."""
    limits, kernel = stream.device.properties, gpu.compile_kernels(CLOCKED, "chase_cycles")[0]
    cycles = gpu.zeros(1, np.int64, stream)
    launch(stream, LaunchConfig(grid=1, block=1), kernel, ring.buffer, cycles.buffer, np.int32(HOPS))
    clocks = limits.clock_rate, limits.memory_clock_rate, limits.global_memory_bus_width
    gbps, tflops = theoretical_peaks(limits.multiprocessor_count, stream.device.compute_capability, *clocks)
    peaks = {"peak GB/s": gbps, "peak TFLOP/s": tflops}
    return {"cycles": cycles.to_host(stream)[0] / HOPS, "SMs": limits.multiprocessor_count, **peaks}


def benchmark() -> list[Row]:
    """Latency; bandwidth over occupancy and bytes in flight; time and energy of four kernels."""
    (device, stream), rows = gpu.open_device(), []
    yardsticks, limits = timing.yardsticks(device, stream), device.properties
    verify(1009)
    log = min(LOG, (gpu.free_memory() // 64).bit_length() - 1)  # 10 bytes an element, in a quarter of what is free
    n, sms, most = 1 << log, limits.multiprocessor_count, limits.max_threads_per_multiprocessor
    arrays = scattered_ring(log - 1), random(n), random(n), *[random(SIDE, SIDE)] * 3
    ring, x, y, *matrices = (gpu.to_device(array, stream) for array in arrays)  # x and y drive the ring out of L2
    sums, last = gpu.empty(sms * most, np.float32, stream), gpu.zeros(1, np.int32, stream)
    cases = {("dependent loads", f"{HOPS}"): (chase(ring, last), 0, None, None, facts(ring, stream))}
    for loads, blocks in itertools.product(LOADS, (1, 2, 4, 8, 16)):
        shared, threads = with_ballast(f"partial_sums<{loads}>", blocks)
        call = partial_sums(x, gpu.DeviceArray(sums.buffer, sms * threads, np.float32), loads)  # all blocks at a time
        figures = {"occupancy": threads / most, "bytes in flight": 16 * loads * threads}
        cases[f"sum, {loads} × 16 B a thread", f"2^{log}, {blocks} blocks an SM"] = call, shared, 4 * n, n, figures
    for name, call, size, elements, moved, flops in (
        ("copy", vectors("copy", x, y), f"2^{log}", n, 8 * n, 0),
        ("saxpy", vectors("saxpy", x, y, A), f"2^{log}", n, 12 * n, 2 * n),
        ("sum", partial_sums(x, sums, 4), f"2^{log}", n, 4 * n, n),
        ("matmul", matmul(*matrices), f"{SIDE}x{SIDE}", SIDE**2, 12 * SIDE**2, 2 * SIDE**3),
    ):
        figures = {"FLOP/byte": flops / moved, "G elements/s": elements / 1e9, **energy(call, stream, moved, flops)}
        cases[name, size] = call, 0, moved, flops, figures
    calls = {key: functools.partial(start, call, shared=shared) for key, (call, shared, *_) in cases.items()}
    times = timing.benchmark(calls, stream)
    hop = times["dependent loads", f"{HOPS}"].seconds / HOPS
    for (name, size), (_, _, moved, flops, figures) in cases.items():
        if "bytes in flight" in figures:
            law = littles_law(sms * figures["bytes in flight"], hop, yardsticks.copy_gbps * 1e9)
            figures |= {"law, GB/s": round(law / 1e9), "of law": moved / times[name, size].seconds / law}
        elif moved:
            figures["G elements/s"] = float(f"{figures['G elements/s'] / times[name, size].seconds:.3g}")
        what = {"section": "1.5.2", "name": name, "size": size, "timing": times[name, size]}
        what |= {"dtype": "i32" if name == "dependent loads" else "f32"}
        what |= {"bytes": moved, "flops": flops, "figures": figures, "yardsticks": yardsticks}
        rows.append(Row.from_timing(**what))
    return rows


# %% Show
def report(rows):
    """Print what was computed beside what was measured."""
    facts, latency, lines = rows[0].figures, rows[0].seconds / HOPS, []
    copy = next(row.bytes / row.seconds / row.of_copy for row in rows if row.of_copy) / 1e9
    fma = next(row.flops / row.seconds / row.of_peak for row in rows if row.of_peak) / 1e12
    for unit, how, measured in (("GB/s", "device copy", copy), ("TFLOP/s", "FMA in registers", fma)):
        computed = facts[f"peak {unit}"]
        lines.append((unit, f"{computed:.4g}", f"{measured:.4g}", how, f"{measured / computed:.1%}"))
    table("Peaks", ("", "theoretical", "measured", "by", "share"), lines)
    needed, sms, ns = latency * copy * 1e9, facts["SMs"], f"{latency * 1e9:.0f} ns ({facts['cycles']:.0f} cycles)"
    print(f"Little's law: {ns} × {copy:.0f} GB/s = {si(needed, 'B')} in flight, which is")
    print(f"on each of {sms:.0f} SMs {si(needed / sms, 'B')}, or {needed / sms / 16:.0f} loads of 16 bytes at any time")
    results.show([row for row in rows if "bytes in flight" in row.figures], "More and more bytes in flight (on an SM)")
    print("less than the law says: under load a request takes longer, and while threads add up they ask for nothing")
    results.show([row for row in rows if "G elements/s" in row.figures], "Efficiency")
    if "W" not in rows[-1].figures:
        not_run("energy: NVML does not tell how much this GPU has used")


def plot(rows, source):
    """Bandwidth by bytes in flight, with Little's law, and by occupancy."""
    rows = [row for row in rows if "bytes in flight" in row.figures]
    law = dict(sorted((row.figures["bytes in flight"], row.figures["law, GB/s"]) for row in rows))
    for figure, curves in (("bytes in flight", {"Little's law": law}), ("occupancy", {})):
        for row in rows:
            curves.setdefault(row.name, {})[row.figures[figure]] = row.bytes / row.seconds / 1e9
        name = f"s1_5_2_{figure.replace(' ', '_')}"
        plot_curves(curves, f"Bandwidth of a sum ({source})", f"{figure} (an SM)", "GB/s", name)


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=10_007, quick_size=1009, plot=True).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    check_fits(64 * options.size)
    checks_table(verify(options.size))
    rows, source = results.measured_or_recorded("1.5.2", benchmark, options.bench)
    if not rows:
        return 0
    report(rows)
    if options.plot:
        plot(rows, source)
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
