# %%
"""1.3.4 CUDA流与事件管理 — Streams and events

本节把数据切成块，用多个流让拷入、计算、拷出同时进行；再用实验展示流的优先级和默认流的规则。
Copy in, compute and copy out, chunk after chunk in several streams at a time; then priorities and the default stream.

要点
  同一个流按顺序执行，不同的流可以同时使用两个方向的拷贝引擎和 SM：流水线的时间趋近最慢的一级，而不是各级之和。
  设备上只要几块缓冲区：两块时三级中总有一级空闲，三块就够。缓冲区何时可以重用由事件规定，主机不必等待。
  默认流（legacy）与阻塞流互相等待，非阻塞流不受影响；高优先级的流不打断运行中的块，但比排队的块先得到 SM。
Key idea
  Work in one stream keeps its order, work in different streams may run at once, and an event orders what has to be
  ordered. With three buffers on the device a pipeline of three stages takes about as long as its slowest stage.

Run:      ./run 1.3.4     or     python ch01_cuda_basics/s1_3_4_streams_and_events.py [--size N] [--quick] [--plot]
Look at:  the efficiency (vs peer: the slowest stage alone) with 1 to 4 buffers, beside the time that the stages
          promise; who waits for whom. Without a GPU: all results are verified, and recorded figures are shown.
"""

from functools import cache, partial

import numpy as np

from common import gpu, results, timing
from common.cli import Unavailable, check_fits, header, not_run, parser, run_main

# in your own code: from cuda.core import LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM, Buffer, EventOptions
#                   from cuda.core import LaunchConfig, LegacyPinnedMemoryResource, StreamOptions, launch
from common.gpu import Buffer, EventOptions, LaunchConfig, LegacyPinnedMemoryResource, StreamOptions, launch
from common.pycuda import load as load_pycuda
from common.report import save_figure, si
from common.verify import check, checks_table

NEEDS = ()

# %% The kernel
KERNEL = r"""
// `rounds` steps of a linear congruential generator for each element: work that takes as long as one asks for, with a
// result that is known exactly.
extern "C" __global__ void advance(unsigned* __restrict__ state, long long n, int rounds)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned s = state[i];
    for (int r = 0; r < rounds; ++r) s = 1664525u * s + 1013904223u;
    state[i] = s;
}
"""
BLOCK = 256
compiled = cache(lambda: gpu.compile_kernels(KERNEL, "advance")[0])


def advance(stream, d_state, rounds):
    """Enqueue `rounds` steps of each element of a Buffer of uint32."""
    config = LaunchConfig(grid=-(-d_state.size // (4 * BLOCK)), block=BLOCK)
    launch(stream, config, compiled(), d_state, np.int64(d_state.size // 4), np.int32(rounds))


# %% The reference
def reference(state, rounds):
    """`rounds` steps for each element: their composition is one step with another factor and another summand."""
    factor, summand = 1, 0
    for _ in range(rounds):
        factor, summand = 1664525 * factor % 2**32, (1664525 * summand + 1013904223) % 2**32
    return np.uint32(factor) * state + np.uint32(summand)


# %% The pipeline: chunks in page-locked memory, a few buffers on the device, three stages
STAGES = COPY_IN, COMPUTE, COPY_OUT = "copy in", "compute", "copy out"


class Pipeline:
    """Host arrays `numbers` and `result`, uint32 of `shape` (chunks, n), in page-locked memory; and what lies between.

    CUDAError where so much page-locked memory is refused. Without it, no copy is asynchronous.
    """

    def __init__(self, stream, shape, rounds, buffers):
        self.rounds, nbytes = rounds, 4 * shape[1]
        both = [LegacyPinnedMemoryResource().allocate(shape[0] * nbytes) for _ in range(2)]
        self.numbers, self.result = (np.from_dlpack(buffer).view(np.uint32).reshape(shape) for buffer in both)
        pairs = zip(self.numbers, self.result, strict=True)  # of chunks, which keep the memory alive
        self.host_chunks = [[Buffer.from_handle(a.ctypes.data, nbytes, owner=a) for a in pair] for pair in pairs]
        self.d_chunks = [stream.device.allocate(nbytes, stream=stream) for _ in range(buffers)]
        self.streams = [stream.device.create_stream() for _ in range(max(buffers, len(STAGES)))]

    def enqueue(self, stage, stream, i, slot):
        """Put one stage of chunk i, which uses that buffer on the device, into a stream."""
        (source, target), d_chunk = self.host_chunks[i], self.d_chunks[slot]
        if stage == COPY_IN:
            d_chunk.copy_from(source, stream=stream)
        elif stage == COMPUTE:
            advance(stream, d_chunk, self.rounds)
        else:
            d_chunk.copy_to(target, stream=stream)


def overlapped(stream, pipeline, buffers, stages=STAGES, by_chunk=False):
    """Enqueue all chunks behind what is in `stream`, which then waits for them. ValueError for buffers it has not got.

    Each stage has a stream, and events hand a chunk on to the next stage and its buffer to a later chunk. `by_chunk`:
    each buffer has a stream, whose order alone would do. With one buffer everything is serial.
    """
    if not 1 <= buffers <= len(pipeline.d_chunks):
        raise ValueError(f"expected 1 to {len(pipeline.d_chunks)} buffers, got {buffers}")
    free = [stream.record()] * buffers
    for i in range(len(pipeline.numbers)):
        slot, done = i % buffers, free[i % buffers]
        for k, stage in enumerate(stages):
            own = pipeline.streams[slot if by_chunk else k]
            own.wait(done)  # the stream waits, the host goes on
            pipeline.enqueue(stage, own, i, slot)
            done = own.record()
        free[slot] = done
    for event in free:
        stream.wait(event)


def checked(state, rounds, buffers):
    """The array. ValueError unless it is uint32, (chunks, n), not empty, and the numbers make sense."""
    if (state := np.asarray(state)).dtype != np.uint32 or state.ndim != 2 or state.size == 0:
        raise ValueError(f"expected uint32 (chunks, n), not empty, got {state.dtype} of shape {state.shape}")
    if not 0 <= rounds < 2**31 or buffers < 1:
        raise ValueError(f"expected 0 to 2^31 - 1 rounds and at least 1 buffer, got {rounds} and {buffers}")
    return state


def process(state, rounds, buffers, by_chunk=False):
    """`rounds` steps of state, uint32, shape (chunks, n)."""
    (_, stream), state = gpu.open_device(), checked(state, rounds, buffers)
    pipeline = Pipeline(stream, state.shape, rounds, buffers)
    pipeline.numbers[:] = state
    overlapped(stream, pipeline, buffers, by_chunk=by_chunk)
    stream.sync()
    return pipeline.result.copy()


# %% The same through PyCUDA
def process_pycuda(state, rounds, buffers):
    """As `process`, with a stream for each stage; Unavailable without PyCUDA."""
    # in your own code: import pycuda.autoprimaryctx, pycuda.driver as cuda; from pycuda.compiler import SourceModule
    (chunks, n), pycuda = checked(state, rounds, buffers).shape, load_pycuda()
    cuda, kernel = pycuda.driver, pycuda.SourceModule(KERNEL, no_extern_c=True).get_function("advance")
    numbers, result = (cuda.pagelocked_empty((chunks, n), np.uint32) for _ in range(2))
    numbers[:] = state
    inward, work, outward = (cuda.Stream() for _ in STAGES)
    d_chunks, free = [cuda.mem_alloc(4 * n) for _ in range(buffers)], [cuda.Event().record()] * buffers
    call = {"block": (BLOCK, 1, 1), "grid": (-(-n // BLOCK), 1), "stream": work}
    for i in range(chunks):
        slot = i % buffers
        inward.wait_for_event(free[slot])
        cuda.memcpy_htod_async(d_chunks[slot], numbers[i], inward)
        work.wait_for_event(cuda.Event().record(inward))
        kernel(d_chunks[slot], np.int64(n), np.int32(rounds), **call)
        outward.wait_for_event(cuda.Event().record(work))
        cuda.memcpy_dtoh_async(result[i], d_chunks[slot], outward)
        free[slot] = cuda.Event().record(outward)
    outward.synchronize()
    return result.copy()


# %% A short kernel behind a long one, in another stream: does it wait?
LEGACY, PER_THREAD, FREE = "legacy default", "per-thread default", "non-blocking"
TIMED = EventOptions(timing_enabled=True)  # other events only order
WAVES, MANY, ONE = 16, "16 waves of blocks", "1 block"  # the long kernels of the two experiments
CASES = {  # (long kernel, its stream, the stream of the short one): what part of the long one the short one waits for
    (MANY, "low priority", "same priority"): 1,
    (MANY, "low priority", "high priority"): 1 / WAVES,  # at most: until the first block makes room
    (ONE, "blocking", LEGACY): 1,
    (ONE, PER_THREAD, LEGACY): 1,
    (ONE, FREE, LEGACY): 0,
    (ONE, "blocking", PER_THREAD): 0,
}


def late_comers(row):
    """Rows: the time from the start of a long kernel in one stream until a short one, given to another, is done."""
    device, stream = gpu.open_device()
    resident = device.properties.multiprocessor_count * device.properties.max_threads_per_multiprocessor
    many, few, other = (gpu.zeros(n, np.uint32, stream).buffer for n in (WAVES * resident, BLOCK, BLOCK))
    long = {MANY: partial(advance, d_state=many, rounds=200_000), ONE: partial(advance, d_state=few, rounds=2_000_000)}
    options = {"low priority": {"priority": 0}, "same priority": {"priority": 0}, "high priority": {"priority": -1}}
    options |= {"blocking": {"nonblocking": False}, FREE: {"nonblocking": True}}
    streams = {name: device.create_stream(options=StreamOptions(**its)) for name, its in options.items()}
    streams |= {LEGACY: gpu.LEGACY_DEFAULT_STREAM, PER_THREAD: gpu.PER_THREAD_DEFAULT_STREAM}  # both are cuda.core's
    alone, name = timing.benchmark(long, stream), "the long kernel"
    rows = [row(name=name, size=size, timing=taken) for size, taken in alone.items()]
    for (size, first, second), part in CASES.items():
        samples = []
        for _ in range(22):
            begin = streams[first].record(options=TIMED)
            long[size](streams[first])
            advance(streams[second], other, rounds=100)
            done = streams[second].record(options=TIMED)
            device.sync()
            samples.append((done - begin) / 1e3)
        figures, peer = {"expected, ms": 1e3 * part * alone[size].seconds}, (name, alone[size])
        taken = timing.Timing.of(samples[2:])
        rows.append(row(name=f"{second}, behind {first}", size=size, timing=taken, figures=figures, peer=peer))
    return rows


# %% Verify and measure
COUNT, AT_ONCE, SLOWEST = 64, "copy in and out", "slowest stage"  # chunks; names of a row and of the peer


def random_state(chunks, n):
    # after 2^20 they repeat
    return np.resize(np.random.default_rng(134).integers(0, 2**32, 1 << 20, dtype=np.uint32), (chunks, n))


def verify(n, rounds):
    """The checks of all variants, on 13 chunks of n elements. Raises Mismatch if one is wrong."""
    state = random_state(13, n)
    found = {f"a stream a stage, {k} buffers": process(state, rounds, k) for k in (1, 2, 3, 4)}
    found |= {f"{k} streams": process(state, rounds, k, by_chunk=True) for k in (2, 3, 4)}
    try:
        found["PyCUDA, 3 buffers"] = process_pycuda(state, rounds, 3)
    except Unavailable as missing:
        print(missing)
    return [check(name, result, reference(state, rounds)) for name, result in found.items()]


def pipelines(stream, n):
    """A Pipeline of COUNT chunks of n elements, and one of a single chunk; smaller ones where memory is refused."""
    try:
        return Pipeline(stream, (COUNT, n), 1000, 4), Pipeline(stream, (1, COUNT * n), 1000, 1)
    except gpu.CUDAError as refused:  # containers and WSL allow only so much
        not_run(f"4 × {COUNT * n >> 18} MiB of page-locked memory: {refused}")
        return pipelines(stream, n // 2)


def benchmark() -> list[results.Row]:
    """The pipeline and its stages on 64 chunks of 8 MiB (less on a small GPU); then the rows of CASES."""
    device, stream = gpu.open_device()
    row = partial(results.Row.from_timing, section="1.3.4", dtype="u32", yardsticks=timing.yardsticks(device, stream))
    verify(100_003, 1000)
    pieces, whole = pipelines(stream, 1 << min(21, (gpu.free_memory() // 32 // COUNT).bit_length() - 1))
    pieces.numbers[:], size = random_state(*pieces.numbers.shape), f"{COUNT} × {pieces.d_chunks[0].size >> 20} MiB"
    whole.numbers[:] = pieces.numbers.reshape(1, -1)
    one = partial(overlapped, pipeline=pieces, buffers=4)
    alone = {k: partial(one, stages=(k,)) for k in STAGES} | {AT_ONCE: partial(one, stages=(COPY_IN, COPY_OUT))}
    for _ in range(2):  # make compute as long as the copies when both are under way
        times = timing.benchmark(alone, stream, samples=3)
        pieces.rounds = whole.rounds = int(pieces.rounds * times[AT_ONCE].seconds / times[COMPUTE].seconds)
    runs = {"serial, 1 chunk": (whole, 1, False), "serial": (pieces, 1, False)}
    runs |= {f"{k} streams": (pieces, k, True) for k in (2, 3, 4)}
    runs |= {f"a stream a stage, {k} buffers": (pieces, k, False) for k in (2, 3, 4)}
    calls = {name: partial(overlapped, pipeline=p, buffers=k, by_chunk=by) for name, (p, k, by) in runs.items()}
    times = timing.benchmark(alone | calls, stream)
    slowest = max((times[stage] for stage in STAGES), key=lambda taken: taken.seconds)
    all_three = sum(times[stage].seconds for stage in STAGES)
    at_least = max(times[name].seconds for name in (COMPUTE, AT_ONCE))
    figures = {name: {"GB/s": pieces.numbers.nbytes / taken.seconds / 1e9} for name, taken in times.items()}
    figures[COMPUTE]["rounds"] = pieces.rounds
    for name, (_, buffers, _) in runs.items():
        figures[name]["expected, ms"] = 1e3 * (all_three if buffers == 1 else max(all_three / buffers, at_least))
    peers = dict.fromkeys(runs, (SLOWEST, slowest))
    rows = [row(name=k, size=size, timing=times[k], figures=figures[k], peer=peers.get(k)) for k in times]
    return rows + late_comers(row)


# %% Show
def report(rows):
    """Print the pipeline with what bounds it, and who waited."""
    late = {size: [row for row in rows if row.size == size] for size in (MANY, ONE)}
    results.show([row for row in rows if row.size not in late], "Stages, and pipelines of all three")
    bounds = ", ".join(f"{row.name} {si(row.seconds, 's')}" for row in rows if row.name in (*STAGES, AT_ONCE))
    print(f"What bounds a pipeline: {bounds}")
    best = min((row for row in rows if row.peer == SLOWEST), key=lambda row: row.seconds, default=None)
    if best:
        print(f"The best, {best.name}: {si(best.seconds, 's')}, {best.of_peer:.1%} of the slowest stage's speed")
    for size, its_rows in late.items():
        results.show(its_rows, f"How long a short kernel takes behind {size}")


def plot():
    """The first chunks in three lanes, a colour for each buffer, as if all stages took equally long."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 8), layout="constrained")
    for buffers, axes in enumerate(figure.subplots(3, 1, sharex=True), 1):
        for i in range(12):
            for lane in range(3):
                step = i // buffers * 3 + i % buffers + lane
                axes.broken_barh([(step, 1)], (lane - 0.4, 0.8), color=f"C{i % buffers}", edgecolor="white")
        axes.set(title=f"{buffers} buffers", yticks=range(3), yticklabels=STAGES, ylim=(2.5, -0.5))
    axes.set_xlabel("steps, if each stage takes one")
    save_figure(figure, "s1_3_4_streams_and_events")


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=1_000_003, quick_size=100_003, plot=True).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    check_fits(8 * options.size)
    checks_table(verify(-(-options.size // 13), rounds=20 if gpu.SIMULATED else 1000))
    rows, _ = results.measured_or_recorded("1.3.4", benchmark, options.bench)
    if rows:
        report(rows)
    if options.plot:
        plot()
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
