# %%
"""1.5.1 性能瓶颈的识别 — Finding the bottleneck

本节画出这块 GPU 的屋顶线（roofline），放上受访存、计算、延迟、启动限制的核函数，自动判断瓶颈，再以“只改一处”验证。
The roofline of this GPU, with kernels bound by memory, arithmetic, latency and launching on it, judged automatically.

要点
  算术强度 I = 浮点运算次数 ÷ 访存字节数，两者都能手算；屋顶是 min(峰值, I × 带宽)，两段相交处叫拐点（ridge）。
  贴近斜线是访存受限，贴近横线是计算受限；离两者都远，就是在等待：相互依赖的访存、线程太少、原子操作排队，或启动本身。
  最简单的诊断是只改一处再计时：运算减半、字节减半、线程加倍，哪一项使时间变短，瓶颈就在哪里。
Key idea
  Count operations and bytes by hand and divide by the time: the roof that a kernel touches is what binds it, and one
  that touches neither is waiting. To be sure, change one thing at a time and see which change shortens the time.

Run:      ./run 1.5.1     or     python ch01_cuda_basics/s1_5_1_bottlenecks.py [--size N] [--quick] [--plot]
Look at:  "of the roof" and "bound by"; what changing one thing says. Without a GPU: what was recorded on one.
"""

import functools
from collections import namedtuple

import numpy as np

from common import gpu, results, timing
from common.cli import check_fits, header, parser, run_main

# in your own code: from cuda.core import LaunchConfig, launch
from common.gpu import LaunchConfig, launch
from common.report import new_figure, save_figure, si, table
from common.results import Row
from common.verify import check, checks_table

NEEDS = ()

# %% The kernels
KERNEL = r"""
#include <cuda_fp16.h>

// The arguments are in each kernel: inputs, output, number of elements, further numbers.

// Four neighbours: one load or store of 16 bytes for float, of 8 for __half.
template <typename T> struct alignas(4 * sizeof(T)) Four { T v[4]; };

// 1 + x + x^2 + ... + x^DEGREE by Horner's scheme, for N numbers at once: N chains that do not wait for each other.
// DEGREE additions and DEGREE - 1 multiplications for each number.
template <int DEGREE, int N> __device__ void series(const float (&x)[N], float (&sum)[N])
{
    for (int j = 0; j < N; ++j) sum[j] = x[j] + 1.0f;
    #pragma unroll 64
    for (int k = 1; k < DEGREE; ++k)
        for (int j = 0; j < N; ++j) sum[j] = sum[j] * x[j] + 1.0f;
}

// Reads and writes sizeof(T) bytes an element, whatever DEGREE is: so DEGREE dials the arithmetic intensity.
// x and y are aligned as Four is; any n, any grid.
template <typename T, int DEGREE>
__global__ void geometric(const T* __restrict__ x, T* __restrict__ y, long long n)
{
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long stride = (long long)gridDim.x * blockDim.x;
    #pragma unroll 1  // one load in flight for each thread, whatever DEGREE and T are
    for (long long q = first; q < n / 4; q += stride) {
        const Four<T> u = reinterpret_cast<const Four<T>*>(x)[q];
        const float v[4] = {float(u.v[0]), float(u.v[1]), float(u.v[2]), float(u.v[3])};
        float sum[4];
        series<DEGREE>(v, sum);
        reinterpret_cast<Four<T>*>(y)[q] = {T(sum[0]), T(sum[1]), T(sum[2]), T(sum[3])};
    }
    const long long i = n / 4 * 4 + first;  // the up to three elements behind the last four
    if (i < n) {
        const float v[1] = {float(x[i])};
        float sum[1];
        series<DEGREE>(v, sum);
        y[i] = T(sum[0]);
    }
}

// One member of an array of structures: not coalesced. Memory comes in sectors of 32 bytes, so each record costs one.
struct Record { float value, others[7]; };

extern "C" __global__ void field_of_records(const Record* __restrict__ records, float* __restrict__ y, long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = records[i].value + 1.0f;
}

// Each thread walks along a list of its own, HOPS nodes long. It learns the next address from the load before: nothing
// can overlap. All lists lie on one ring of n nodes; that of thread t begins at node t * (n / 32).
struct alignas(8) Node { float value; int next; };

template <int HOPS>
__global__ void sums_of_lists(const Node* __restrict__ nodes, float* __restrict__ sums, long long n)
{
    if (threadIdx.x >= 32) return;  // a single warp
    int at = threadIdx.x * (n / 32);
    float sum = 0.0f;
    for (int hop = 0; hop < HOPS; ++hop) {
        const Node node = nodes[at];
        sum += node.value;
        at = node.next;
    }
    sums[threadIdx.x] = sum;
}

// All threads add to one address, where the additions queue up.
extern "C" __global__ void sum_by_atomics(const float* __restrict__ x, float* __restrict__ sum, long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(sum, x[i]);
}
"""
BLOCK, HOPS, LOG = 256, 1024, 27
DEGREES, LISTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), f"sums_of_lists<{HOPS}>"


@functools.cache
def compiled():
    """KERNEL, compiled once for the current device, with the instances of its templates that the section uses."""
    names = [f"geometric<{c_type}, {degree}>" for c_type in ("float", "__half") for degree in DEGREES]
    return gpu.compile_module(KERNEL, (*names, LISTS))


# %% The references
def reference(x, degree):
    """1 + x + ... + x^degree in float64."""
    return np.polynomial.polynomial.polyval(x.astype(np.float64), [1] * (degree + 1))


def reference_lists(nodes):
    """The sum of HOPS values from each of 32 nodes on, which lie at equal distances; in float64."""
    at, sums = np.arange(32) * (nodes.size // 32), np.zeros(32)
    for _ in range(HOPS):
        sums += nodes["value"][at]
        at = nodes["next"][at]
    return sums


# %% One launch each, kernel(x, y, n): its operations and bytes counted by hand, and the y that has to come out
Job = namedtuple("Job", "name kernel x y n blocks flops bytes expected useful", defaults=[None])  # useful: of the bytes
FEW, TWICE, NOTHING = ", 1 block", ", twice the threads", "nothing"


def geometric(x, y, degree, blocks, where=""):
    """y = 1 + x + ... + x^degree for one of DEGREES; float32 or float16 vectors of one length, float32 arithmetic.
    ValueError for others."""
    if x.dtype not in (np.float32, np.float16) or (x.dtype, x.shape) != (y.dtype, y.shape) or degree not in DEGREES:
        raise ValueError(f"expected float32 or float16 alike, got {x.dtype} {x.shape}, {y.dtype} {y.shape}, {degree}")
    kernel = f"geometric<{'float' if x.dtype == np.float32 else '__half'}, {degree}>"
    work, expected = ((2 * degree - 1) * x.size, x.nbytes + y.nbytes), lambda: reference(x, degree)
    return Job(f"degree {degree}{where}", kernel, x, y, x.size, blocks, *work, expected)


def random(n, dtype=np.float32):
    """Numbers between -1/2 and 1/2, where the series converges. After 2^20 they repeat."""
    return np.resize(np.random.default_rng(151).uniform(-0.5, 0.5, min(n, 1 << 20)).astype(dtype), n)


def jobs_for(n):
    """Each kernel on up to n elements, with the experiments; and two launches with little and with nothing to do."""
    large, m, k, ring, hops = [], -(-n // 8), -(-n // 32), 1 << max(n // 8, 32).bit_length() - 1, 32 * HOPS
    for size, blocks, degrees, where in ((n, -(-n // (8 * BLOCK)), DEGREES, ""), (-(-n // 128), 1, (4, 8), FEW)):
        single, half = ((random(size, dtype), random(size, dtype)) for dtype in ("f4", "f2"))
        for degree in degrees:
            large.append(geometric(*single, degree, blocks, where))
            if degree in (8, DEGREES[-1]):  # half the bytes, and twice the threads
                large.append(geometric(*half, degree, blocks, where))
                large.append(geometric(*single, degree, 2 * blocks, where + TWICE))
    records, few, order = random(8 * m).reshape(m, 8), np.arange(k, dtype="f4") % 4, np.arange(ring, dtype=np.uint32)
    # float32 sums of small whole numbers are exact, in any order; `next` leads through all nodes in a scattered one
    nodes = np.empty(ring, [("value", "f4"), ("next", "i4")])
    nodes["value"], nodes["next"] = order % 4, (1664525 * order + 1013904223) % ring
    fields, sums, total, first = *(np.zeros(s, "f4") for s in (m, 32, 1)), lambda: records[:, 0].astype("f8") + 1
    large += [
        Job("field of records", "field_of_records", records, fields, m, -(-m // BLOCK), m, (32 + 4) * m, first, 8 * m),
        Job("linked lists", LISTS, nodes, sums, ring, 1, hops, 32 * hops, lambda: reference_lists(nodes), 8 * hops),
        Job("atomics", "sum_by_atomics", few, total, k, -(-k // BLOCK), k, 4 * k, lambda: np.array([few.sum()])),
    ]
    tiny = geometric(random(1024), old := random(1024), 8, 1, ", 1024 elements")
    return large, [tiny, tiny._replace(name=NOTHING, n=0, flops=0, bytes=0, expected=lambda: old)]


# %% Launch, verify and measure
def enqueue(job, memory, stream):
    """Launch a job; `memory` has its arrays on the device, by the id of the array."""
    config, buffers = LaunchConfig(grid=job.blocks, block=BLOCK), (memory[id(a)].buffer for a in (job.x, job.y))
    launch(stream, config, compiled().get_kernel(job.kernel), *buffers, np.int64(job.n))


def run(job):
    """The y that comes out of one launch."""
    _, stream = gpu.open_device()
    enqueue(job, memory := {id(a): gpu.to_device(a, stream) for a in (job.x, job.y)}, stream)
    return memory[id(job.y)].to_host(stream)


def verify(n):
    """The checks of all jobs, on vectors of up to n elements. Raises Mismatch if one is wrong."""
    # an operation rounds a number below 2 by up to 2^-24, and halves the errors before it; float16 rounds by 2^-11
    rtol = {"float32": 4e-7, "float16": 5e-4}
    return [check(j.name, run(j), j.expected(), rtol=rtol[j.y.dtype.name]) for jobs in jobs_for(n) for j in jobs]


def benchmark() -> list[Row]:
    """All jobs, with vectors of 2^27 elements (fewer where memory is short)."""
    (device, stream), rows = gpu.open_device(), []
    yardsticks = timing.yardsticks(device, stream)
    verify(20_003)
    n = 1 << min(LOG, (gpu.free_memory() // 128).bit_length() - 1)  # 18 bytes an element, in a quarter of what is free
    for jobs in jobs_for(n):
        memory = {key: gpu.to_device(a, stream) for key, a in {id(a): a for j in jobs for a in (j.x, j.y)}.items()}
        keyed = {(job.name, f"f{8 * job.y.itemsize}"): job for job in jobs}
        times = timing.benchmark({key: functools.partial(enqueue, job, memory) for key, job in keyed.items()}, stream)
        for (name, dtype), job in keyed.items():
            what = {"section": "1.5.1", "name": name, "size": f"2^{job.n.bit_length() - 1}" if job.n else "0"}
            what |= {"dtype": dtype, "timing": times[name, dtype], "bytes": job.bytes, "flops": job.flops}
            what |= {"figures": job.useful and {"useful bytes": job.useful}, "peak_tflops": yardsticks.fma_tflops}
            rows.append(Row.from_timing(**what, yardsticks=yardsticks))
    return rows


# %% Which roof does a kernel touch?
NEXT = {
    "memory": "move fewer bytes: coalesce, fuse kernels, reuse what is in caches or shared memory, smaller types",
    "compute": "do fewer or cheaper operations: another algorithm, lower precision, tensor cores",
    "latency": "have more in flight: more threads, independent loads, no queue for one address, less divergence",
    "launch": "launch less often: larger batches, fused kernels; and in a CUDA graph, as here, not one by one (1.2.2)",
}


def ceilings_of(rows):
    """(copy in byte/s, FMA in FLOP/s, seconds of a launch that does nothing): of the rows' run, or of this process."""
    run = results.load(results.REFERENCE)["runs"].get(rows[0].run) or vars(timing.yardsticks(*gpu.open_device()))
    return run["copy_gbps"] * 1e9, run["fma_tflops"] * 1e12, next(r.seconds for r in rows if r.name == NOTHING)


def bound(row, ceilings):
    """(what binds a kernel, its share of the roof min(peak, I × copy), which is the larger of its shares of the two):
    the launch, if an empty one takes over a third of its time; latency, if the share is below 60% (where Nsight Compute
    draws the line, too); else memory or compute, by the larger share."""
    copy, peak, launched = ceilings
    share, roof = max((row.bytes / row.seconds / copy, "memory"), (row.flops / row.seconds / peak, "compute"))
    return "launch" if row.seconds < 3 * launched else "latency" if share < 0.6 else roof, share


def gains(rows):
    """{kernel: {what binds it, should this be the largest: how many times as fast one change made it}}."""
    seconds, found = {(row.name, row.dtype): row.seconds for row in rows}, {}
    for degree, where in ((8, ""), (DEGREES[-1], ""), (8, FEW)):
        base, half = f"degree {degree}{where}", f"degree {degree // 2}{where}"
        changed = {"compute": (half, "f32"), "memory": (base, "f16"), "latency": (base + TWICE, "f32")}
        found[base] = {binds: seconds[base, "f32"] / seconds[key] for binds, key in changed.items()}
    return found


def report(rows, ceilings):
    """Print each kernel under its roof and what binds it, then what the experiments say."""
    copy, peak, launched = ceilings
    print(f"roof: copy {si(copy, 'B/s')}, FMA {si(peak, 'FLOP/s')}, so the ridge is at {peak / copy:.1f} FLOP/byte;")
    print(
        f"a launch that does nothing takes {si(launched, 's')} in a CUDA graph, as which all that is so short is timed"
    )
    found, lines = {(row.name, row.dtype): (row, *bound(row, ceilings)) for row in rows if row.flops}, []
    for row, verdict, share in found.values():
        counted = si(row.flops), si(row.bytes), f"{row.flops / row.bytes:.3g}", si(row.seconds, "s")
        rates = si(row.bytes / row.seconds), si(row.flops / row.seconds), f"{share:.1%}"
        lines.append((row.name, row.dtype, *counted, *rates, verdict))
    columns = "kernel", "type", "FLOP", "bytes", "FLOP/byte", "time", "byte/s", "FLOP/s", "of the roof", "bound by"
    table("FLOP and bytes counted by hand, time measured", columns, lines)
    shares = [found[f"degree {degree}", "f32"][2] for degree in DEGREES]
    print(f"degrees 1 and {DEGREES[-1]}, far from the ridge: {shares[0]:.0%} and {shares[-1]:.0%} (expected: 100%)")
    print(f"near it, where loads and arithmetic get in each other's way: {min(shares):.0%}")
    print(*(f"{verdict}: {NEXT[verdict]}" for verdict in dict.fromkeys(line[-1] for line in lines)), sep="\n")
    for row in (row for row, *_ in found.values() if row.figures):
        useful, moved = row.flops / row.figures["useful bytes"], row.flops / row.bytes
        print(f"{row.name}: {useful:.3g} FLOP for each byte that it asks for, {moved:.3g} for each that is moved")
    changes = gains(rows).items()
    lines = [(k, *(f"{x:.2f}×" for x in g.values()), max(g, key=g.get), found[k, "f32"][1]) for k, g in changes]
    columns = "kernel", "half the FLOPs", "half the bytes", "twice the threads", "so it is bound by", "by the roof"
    table("Change one thing: how many times as fast", columns, lines)


def plot(rows, ceilings, source):
    """The roofline, with the float32 kernels on it."""
    figure, axes = new_figure(f"Roofline ({source})", "FLOP/byte", "FLOP/s", size=(9, 6))
    copy, peak, _ = ceilings
    axes.loglog([1 / 64, peak / copy, 512], [copy / 64, peak, peak], color="black", marker="", label="roof: copy, FMA")
    shown = [row for row in rows if row.flops and row.dtype == "f32" and TWICE not in row.name]
    for verdict in NEXT:
        points = {r.name: (r.flops / r.bytes, r.flops / r.seconds) for r in shown if bound(r, ceilings)[0] == verdict}
        axes.loglog(*np.reshape([*points.values()], (-1, 2)).T, linestyle="", markersize=8, label=f"bound by {verdict}")
        for name, point in points.items():
            axes.annotate(name, point, (6, -6), textcoords="offset points", fontsize=8, rotation=-30, va="top")
    axes.legend()
    save_figure(figure, "s1_5_1_bottlenecks")


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=20_003, quick_size=5_003, plot=True).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    check_fits(32 * options.size)
    checks_table(verify(options.size))
    rows, source = results.measured_or_recorded("1.5.1", benchmark, options.bench)
    if not rows:
        return 0
    ceilings = ceilings_of(rows)
    report(rows, ceilings)
    if options.plot:
        plot(rows, ceilings, source)
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
