# %%
"""1.5.4 GPU硬件性能计数器的使用 — Hardware performance counters

本节先用手算出各种访存方式需要多少请求、扇区和波前（wavefront），再用硬件计数器（ncu）核对；没有 GPU 时由模拟器计数。
How many requests, sectors and wavefronts each access pattern needs: worked out by hand, then counted by the hardware
through ncu, or by the simulator.

要点
  一个线程束的一条访存指令是一次请求；内存以 32 字节的扇区搬运：连续的 32 个 float 要 4 个扇区，跨步大时每个线程一个。
  共享内存有 32 个存储体：同一存储体的不同字要分几个波前依次访问，多出来的就是存储体冲突；多加一列（padding）可以错开。
  计数器说的是“做了多少”，不是“花了多久”：先数清楚，再看时间，就知道是哪一种浪费。
Key idea
  Work out from the addresses what a pattern must cost, then count. If the two agree you have understood the kernel; the
  ratio of sectors moved to sectors needed is what the pattern wastes.

Run:      ./run 1.5.4     or     python ch01_cuda_basics/s1_5_4_hardware_counters.py [--quick]
Look at:  that by hand and counted are equal; the naive transpose's 32 sectors a request; the wavefronts of the tiled
          one, which one column of padding takes away; and, on a GPU or as recorded, what each pattern costs against a
          better one: which count grows with the time, and where all are equal and the time is not.
"""

import functools
import json
import sys
from collections import namedtuple

import numpy as np

from common import gpu, ncu, results, timing
from common.cli import Unavailable, header, not_run, parser, run_main

# in your own code: from cuda.core import LaunchConfig, launch
from common.gpu import LaunchConfig, launch
from common.report import table
from common.results import Row
from common.simt.counters import METRICS, counting
from common.verify import Mismatch, check, checks_table

NEEDS = ()

# %% The kernels
KERNEL = r"""
// All of them have the same arguments: in, out, n, and a number k whose meaning is the kernel's own.
extern "C" __global__ void copy(const float* __restrict__ in, float* __restrict__ out, int n, int k)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i];
}

// Four floats at once: n is a multiple of 4.
extern "C" __global__ void copy_float4(const float* __restrict__ in, float* __restrict__ out, int n, int k)
{
    const int q = blockIdx.x * blockDim.x + threadIdx.x;
    if (q < n / 4) reinterpret_cast<float4*>(out)[q] = reinterpret_cast<const float4*>(in)[q];
}

// Misaligned: begins k floats later, and repeats the last one.
extern "C" __global__ void copy_offset(const float* __restrict__ in, float* __restrict__ out, int n, int k)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[min(i + k, n - 1)];
}

// Reads every k-th element; n is a power of two, so that the index comes around by a mask.
extern "C" __global__ void copy_strided(const float* __restrict__ in, float* __restrict__ out, int n, int k)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[(unsigned)i * k & (n - 1)];
}

// k x k numbers are transposed. Reads along rows, writes along columns.
extern "C" __global__ void transpose_naive(const float* __restrict__ in, float* __restrict__ out, int n, int k)
{
    const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    if (x < k && y < k) out[(long long)x * k + y] = in[(long long)y * k + x];
}

// Through a tile in shared memory, both sides along rows; but a warp reads a column of the tile. PAD columns more shift
// each row by PAD banks. A thread takes ROWS rows, 32 / ROWS apart, in blocks of 32 x (32 / ROWS): in <1, 4> the four
// loads of a thread are on their way together.
template <int PAD, int ROWS>
__global__ void transpose_tiled(const float* __restrict__ in, float* __restrict__ out, int n, int k)
{
    __shared__ float tile[32][32 + PAD];
    const int left = blockIdx.x * 32, top = blockIdx.y * 32, lane = threadIdx.x;
    for (int i = 0; i < ROWS; ++i) {
        const int row = threadIdx.y + i * (32 / ROWS);
        if (top + row < k && left + lane < k) tile[row][lane] = in[(long long)(top + row) * k + left + lane];
    }
    __syncthreads();  // the tile is whole
    for (int i = 0; i < ROWS; ++i) {
        const int row = threadIdx.y + i * (32 / ROWS);
        if (left + row < k && top + lane < k) out[(long long)(left + row) * k + top + lane] = tile[lane][row];
    }
}

// A warp reads every k-th word of shared memory.
extern "C" __global__ void shared_strided(const float* __restrict__ in, float* __restrict__ out, int n, int k)
{
    __shared__ float words[1024];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int w = threadIdx.x; w < 1024; w += blockDim.x) words[w] = in[w];
    __syncthreads();
    if (i < n) out[i] = words[threadIdx.x * k % 1024];
}
"""
TILED, PADDED, FOUR_ROWS = TEMPLATES = [f"transpose_tiled<{padding}>" for padding in ("0, 1", "1, 1", "1, 4")]
Pattern = namedtuple("Pattern", "name kernel k better")  # better: the pattern to compare it with
PATTERNS = (
    Pattern("copy", "copy", 0, "copy float4"),
    Pattern("copy float4", "copy_float4", 0, None),
    Pattern("copy, 1 float later", "copy_offset", 1, "copy"),
    Pattern("copy, every 2nd", "copy_strided", 2, "copy"),
    Pattern("copy, every 8th", "copy_strided", 8, "copy"),
    Pattern("copy, every 32nd", "copy_strided", 32, "copy"),
    Pattern("transpose naive", "transpose_naive", None, "transpose padded"),
    Pattern("transpose tiled", TILED, None, "transpose padded"),
    Pattern("transpose padded", PADDED, None, "transpose 4 rows"),
    Pattern("transpose 4 rows", FOUR_ROWS, None, None),
    Pattern("shared, every 2nd word", "shared_strided", 2, "shared, every 33rd word"),
    Pattern("shared, every 32nd word", "shared_strided", 32, "shared, every 33rd word"),
    Pattern("shared, every 33rd word", "shared_strided", 33, None),
)
compiled = functools.cache(lambda: gpu.compile_module(KERNEL, tuple(TEMPLATES)))


def shape_of(pattern, side):
    """(grid, block, n, k) of a pattern on side x side floats."""
    n = side * side
    if pattern.kernel.startswith("transpose"):
        return (side // 32, side // 32), (32, 8 if pattern.kernel == FOUR_ROWS else 32), n, side
    return (n // (4 if pattern.kernel == "copy_float4" else 1) // 256,), (256,), n, pattern.k


def source(pattern, side):
    """Which element of the input each element of the output is: integers, shape (side * side,)."""
    i = np.arange(side * side)
    if pattern.kernel.startswith("transpose"):
        return i % side * side + i // side
    if pattern.kernel == "copy_offset":
        return np.minimum(i + pattern.k, i.size - 1)
    if pattern.kernel == "copy_strided":
        return i * pattern.k % i.size
    if pattern.kernel == "shared_strided":
        return i % 256 * pattern.k % 1024
    return i


# %% By hand
COUNTERS = (
    *("global_load_requests", "global_load_sectors", "global_store_requests", "global_store_sectors"),
    *("shared_load_wavefronts", "shared_store_wavefronts"),
)


def global_memory(index, size=4):
    """(requests, sectors) when the lanes of each warp, a row of `index`, use elements of `size` bytes: a request for
    each warp, and as many sectors as its lanes touch blocks of 32 bytes."""
    sector = np.sort(index * size // 32, axis=1)
    return len(index), int(np.count_nonzero(np.diff(sector, axis=1, prepend=-1)))


def wavefronts(word):
    """Steps that shared memory takes when the lanes of each warp, a row of `word`, use these words: for each warp as
    many as the bank with most different words has. Word w lies in bank w % 32."""
    ordered = np.sort(word, axis=1)
    row, lane = np.nonzero(np.diff(ordered, axis=1, prepend=-1))  # each different word once
    in_bank = np.bincount(32 * row + ordered[row, lane] % 32, minlength=32 * len(word))
    return int(in_bank.reshape(-1, 32).max(axis=1).sum())


def by_hand(pattern, side):
    """{counter of METRICS: what the pattern must cost}, from the addresses of its lanes."""
    i, lane = np.arange(side * side).reshape(-1, 32), np.arange(32)
    loads, stores, size = source(pattern, side).reshape(-1, 32), i, 4
    shared_loads = shared_stores = np.zeros((0, 32), int)  # words of shared memory
    if pattern.kernel == "copy_float4":
        loads, stores, size = i[: len(i) // 4], i[: len(i) // 4], 16
    elif pattern.kernel == "transpose_naive":
        loads, stores = stores, loads  # it reads along rows, and writes to where a reader along rows would have read
    elif pattern.kernel in TEMPLATES:
        loads, pitch = i, 32 if pattern.kernel == TILED else 33
        shared_stores, shared_loads = (np.tile(step * lane, (len(i), 1)) for step in (1, pitch))
    elif pattern.kernel == "shared_strided":
        shared_loads = loads
        loads = shared_stores = np.tile(i[:32], (i.size // 256, 1))  # each block of 256 fills its 1024 words
    counts = *global_memory(loads, size), *global_memory(stores, size), *map(wavefronts, (shared_loads, shared_stores))
    return dict(zip(COUNTERS, counts, strict=True))


# %% Counted by the hardware: a program of its own, which ncu starts
PROGRAM = r"""
import json, sys
import numpy as np
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

job = json.load(sys.stdin)
device = Device(0)
device.set_current()
stream = device.create_stream()
options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
module = Program(job["source"], "c++", options).compile("cubin", name_expressions=job["names"])
x, y = (device.allocate(job["bytes"], stream=stream) for _ in range(2))
x.fill(0, stream=stream)
stream.sync()
driver.cuProfilerStart()
for kernel, grid, block, n, k in job["launches"]:
    config = LaunchConfig(grid=tuple(grid), block=tuple(block))
    launch(stream, config, module.get_kernel(kernel), x, y, np.int32(n), np.int32(k))
stream.sync()
driver.cuProfilerStop()
"""


def by_hardware(side):
    """[{counter: value}] of PATTERNS, from ncu. Raises Unavailable where there is none, or no permission."""
    launches = [(pattern.kernel, *shape_of(pattern, side)) for pattern in PATTERNS]
    job = {"source": KERNEL, "names": TEMPLATES, "bytes": 4 * side * side, "launches": launches}
    found = ncu.profile([sys.executable, "-c", PROGRAM], [METRICS[name] for name in COUNTERS], stdin=json.dumps(job))
    return [{name: int(launched.metrics[METRICS[name]]) for name in COUNTERS} for launched in found]


# %% Run, and counted by the simulator
def start(stream, pattern, side, d_in, d_out):
    """Launch a pattern on side x side floats (side: a multiple of 32, a power of two for the strided copies)."""
    grid, block, n, k = shape_of(pattern, side)
    config, kernel = LaunchConfig(grid=grid, block=block), compiled().get_kernel(pattern.kernel)
    launch(stream, config, kernel, d_in.buffer, d_out.buffer, np.int32(n), np.int32(k))


def run(pattern, values):
    """The output of a pattern for float32 values, shape (side, side); ValueError for another side or dtype."""
    side = len(values)
    if values.dtype != np.float32 or values.shape != (side, side) or side < 32 or side & (side - 1):
        raise ValueError(f"expected float32 (side, side), a power of two from 32 on, got {values.dtype} {values.shape}")
    _, stream = gpu.open_device()
    d_in, d_out = gpu.to_device(values, stream), gpu.empty(values.shape, np.float32, stream)
    start(stream, pattern, side, d_in, d_out)
    return d_out.to_host(stream)


def by_simulator(side):
    """[{counter: value}] of PATTERNS, from the simulator."""
    with counting() as launches:
        for pattern in PATTERNS:
            run(pattern, random_values(side))
    return [{name: launched.total(name) for name in COUNTERS} for launched in launches]


# %% Verify and measure
def random_values(side):
    return np.random.default_rng(154).standard_normal((side, side), dtype=np.float32)


def reference(pattern, values):
    """What a pattern makes of (side, side) values."""
    return values.ravel()[source(pattern, len(values))].reshape(values.shape)


def verify(side):
    """The checks of all patterns on side x side numbers. Raises Mismatch if one is wrong."""
    values = random_values(side)
    return [check(pattern.name, run(pattern, values), reference(pattern, values)) for pattern in PATTERNS]


def compare(side, counted, by_whom):
    """Print by hand against counted; raise Mismatch where they differ."""
    rows, wrong = [], []
    for pattern, found in zip(PATTERNS, counted, strict=True):
        expected, cells = by_hand(pattern, side), []
        for name in COUNTERS:
            requests = found[name.replace("sectors", "requests")]
            each = f" ({found[name] / max(requests, 1):.3g} each)" if "sectors" in name else ""
            cells.append(f"{found[name]:,}{each}{' ≠' * (found[name] != expected[name])}")
            if found[name] != expected[name]:
                wrong.append(f"{pattern.name}: {name} is {found[name]:,}, by hand {expected[name]:,}")
        rows.append((pattern.name, *cells))
    title = f"{side} × {side} floats, counted by {by_whom}; equal to what was worked out by hand unless marked ≠"
    table(title, ("pattern", *(name.replace("_", " ") for name in COUNTERS)), rows)
    if wrong:
        raise Mismatch("\n".join(wrong))


def benchmark() -> list[Row]:
    """The time of each pattern on 8192 x 8192 floats, and with it what ncu counted on 1024 x 1024."""
    device, stream = gpu.open_device()
    yardsticks = timing.yardsticks(device, stream)
    verify(256)
    try:
        counted = by_hardware(1024)
    except Unavailable as missing:
        print(missing)
        counted = [None] * len(PATTERNS)
    side = 8192
    while 8 * side * side > gpu.free_memory() // 4:
        side //= 2
    d_in, d_out = gpu.to_device(random_values(side), stream), gpu.empty((side, side), np.float32, stream)
    calls = {p.name: functools.partial(start, pattern=p, side=side, d_in=d_in, d_out=d_out) for p in PATTERNS}
    rows, kinds, times = [], ("load", "store"), timing.benchmark(calls, stream)
    what = {"section": "1.5.4", "size": f"{side}x{side}", "dtype": "f32", "yardsticks": yardsticks}
    for pattern, found in zip(PATTERNS, counted, strict=True):
        figures = found and {
            **{f"{k} sectors/request": found[f"global_{k}_sectors"] / found[f"global_{k}_requests"] for k in kinds},
            **{f"{k} wavefronts, 1024²": found[f"shared_{k}_wavefronts"] for k in kinds},
        }
        moved = side * side * (4 if pattern.kernel == "shared_strided" else 8)  # that one reads 1024 numbers only
        peer = (pattern.better, times[pattern.better]) if pattern.better else None
        timed = {"name": pattern.name, "timing": times[pattern.name], "bytes": moved, "peer": peer}
        rows.append(Row.from_timing(**what, **timed, figures=figures))
    return rows


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    side = 256 if options.quick else 1024
    checks_table(verify(side))
    try:
        by_whom, count = ("the simulator", by_simulator) if gpu.SIMULATED else ("the hardware (ncu)", by_hardware)
        compare(side, count(side), by_whom)
    except Unavailable as missing:
        print(missing)
    if gpu.SIMULATED:
        not_run("ncu: hardware counters need a GPU")
    rows, _ = results.measured_or_recorded("1.5.4", benchmark, options.bench)
    if not rows:
        return 0
    results.show(rows, "Which count explains the time? 'vs peer' is the better pattern's time over this one's")
    print("A copy of one float a thread waits for its loads more than for the bus: there a wasted sector costs little.")
    print("What fills the bus pays for each: float4 and the transposes.")
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
