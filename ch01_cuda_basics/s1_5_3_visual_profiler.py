# %%
"""1.5.3 使用NVIDIA Visual Profiler进行性能分析 — Profiling (Visual Profiler and its successors)

Visual Profiler 已退役；本节自己录制时间线并读懂它：流何时忙、何时闲、有无重叠，再据此找出并消除一个性能问题。
The Visual Profiler is gone. Here we record a timeline, read off it what it tells, find a planted problem and cure it.

要点
  时间线先看空隙：GPU 空闲的时间比任何核函数都值得优化；再看重叠：拷贝与计算是否同时进行；最后才看最长的核函数。
  两个事件夹住一段工作，就是时间线上的一条；torch.profiler 通过 CUPTI 记录同样的内容，连我们自己的核函数也看得到。
  两种时间线都写成 Chrome trace（JSON），在 https://ui.perfetto.dev 打开。
Key idea
  Read a timeline for its gaps first, then for overlap, then for the longest bars. A host that waits after each step
  leaves gaps in every stream and no overlap; copies from pageable memory are the longest bars.

Run:      ./run 1.5.3     or     python ch01_cuda_basics/s1_5_3_visual_profiler.py [--size N] [--quick] [--plot]
Look at:  idle and overlap before and after the cure, and the traces in Perfetto. Without a GPU the time of our own
          trace is logical: a step takes one tick and begins when nothing keeps it any more. torch's is the CPU's.
"""

import json
from collections import defaultdict, namedtuple
from contextlib import contextmanager, nullcontext
from functools import cache, partial

import numpy as np
from scipy.ndimage import correlate

from common import gpu, timing
from common.cli import check_fits, header, parser, run_main

# in your own code: from cuda.core import Buffer, EventOptions, LaunchConfig, LegacyPinnedMemoryResource, launch
from common.gpu import Buffer, EventOptions, LaunchConfig, LegacyPinnedMemoryResource, launch
from common.report import OUT, save_figure, table
from common.results import Row, measure
from common.verify import check, checks_table

NEEDS = ()

# %% The kernels
KERNEL = r"""
// Three steps of an edge detector on gray images of 8 bits. At the border the nearest pixel stands for the missing one.
struct Neighbours { const unsigned char *up, *row, *down; int left, right; };

__device__ Neighbours around(const unsigned char* in, int x, int y, int width, int height)
{
    return {in + (long long)max(y - 1, 0) * width, in + (long long)y * width,
            in + (long long)min(y + 1, height - 1) * width, max(x - 1, 0), min(x + 1, width - 1)};
}

// Weights 1 2 1 along x times 1 2 1 along y, which make 16; rounded.
extern "C" __global__ void blur(const unsigned char* __restrict__ in, unsigned char* __restrict__ out,
                                int width, int height)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const auto [up, row, down, l, r] = around(in, x, y, width, height);
    const int sum = up[l] + 2 * up[x] + up[r] + 2 * (row[l] + 2 * row[x] + row[r]) + down[l] + 2 * down[x] + down[r];
    out[(long long)y * width + x] = (sum + 8) >> 4;
}

// Sobel: |difference along x| + |difference along y|, at most 255.
extern "C" __global__ void gradient(const unsigned char* __restrict__ in, unsigned char* __restrict__ out,
                                    int width, int height)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const auto [up, row, down, l, r] = around(in, x, y, width, height);
    const int along_x = up[r] + 2 * row[r] + down[r] - up[l] - 2 * row[l] - down[l];
    const int along_y = down[l] + 2 * down[x] + down[r] - up[l] - 2 * up[x] - up[r];
    out[(long long)y * width + x] = min(abs(along_x) + abs(along_y), 255);
}

// White where the gradient is at least 128, black elsewhere.
extern "C" __global__ void threshold(const unsigned char* __restrict__ in, unsigned char* __restrict__ out,
                                     int width, int height)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    out[(long long)y * width + x] = in[(long long)y * width + x] >= 128 ? 255 : 0;
}
"""
STEPS = "blur", "gradient", "threshold"
BLOCK = 32, 8
TIMED = EventOptions(timing_enabled=True)
compiled = cache(lambda: dict(zip(STEPS, gpu.compile_kernels(KERNEL, *STEPS), strict=True)))


# %% The reference
def reference(images):
    """uint8 (frames, height, width) to the same: blur, gradient and threshold, in integers; "nearest" is the border."""
    smooth, step = np.outer([1, 2, 1], [1, 2, 1]), np.outer([1, 2, 1], [-1, 0, 1])
    blurred = (correlate(images.astype(np.int32), smooth[None], mode="nearest") + 8) // 16
    gradient = sum(abs(correlate(blurred, weights[None], mode="nearest")) for weights in (step, step.T))
    return np.where(gradient >= 128, 255, 0).astype(np.uint8)


# %% A recorder
Span = namedtuple("Span", "begin end lane name")  # a bar of a timeline; begin and end in µs, or in ticks


class Timeline:
    """What streams do: ranges of work, each between two events; on the simulator, which has no time, one tick each."""

    def __init__(self):
        self.ranges, self.ticks, self.host = [], defaultdict(int), 0

    @contextmanager
    def range(self, name, lane, stream, waits):
        """Record what is enqueued inside the `with` as a range of that name; `waits`: then the host waits for it."""
        tick, begin = max(self.ticks[lane], self.host), stream.record(options=TIMED)
        yield
        end, self.ticks[lane] = stream.record(options=TIMED), tick + 1
        self.ranges.append((tick, tick + 1, lane, name) if gpu.SIMULATED else (begin, end, lane, name))
        self.host = tick + 1 if waits else self.host  # all that the host enqueues from now on comes later

    def spans(self):
        """The ranges as Spans, sorted, once all streams are done."""
        zero, unit = (0, 1) if gpu.SIMULATED else (self.ranges[0][0], 1e3)  # events give milliseconds
        return sorted(Span((b - zero) * unit, (e - zero) * unit, lane, name) for b, e, lane, name in self.ranges)


# %% The job: images through the GPU, in turn through several streams
class EdgeJob:
    """`job = EdgeJob(images)` allocates; `job()` copies each image in, finds its edges, and copies them to job.edges.

    ValueError unless images are uint8, (frames, height, width). `pinned`: the host's memory is page-locked.
    """

    def __init__(self, images, streams=2, pinned=True):
        if (images := np.asarray(images)).dtype != np.uint8 or images.ndim != 3 or images.size == 0 or streams < 1:
            given = f"{images.dtype} {images.shape} and {streams}"
            raise ValueError(f"expected uint8 images (frames, height, width) and at least one stream, got {given}")
        device, stream = gpu.open_device()
        self.streams = [device.create_stream() for _ in range(streams)]
        self.device = [[device.allocate(images[0].nbytes, stream=stream) for _ in range(2)] for _ in range(streams)]
        stream.sync()  # so that the memory is there for all streams
        allocate = LegacyPinnedMemoryResource().allocate if pinned else partial(np.empty, dtype=np.uint8)
        memory = np.from_dlpack(allocate(2 * images.nbytes)).view(np.uint8).reshape(2, *images.shape)
        memory[0], self.edges = images, memory[1]
        pairs = zip(*memory, strict=True)  # of an image and its edges, which keep the memory alive
        self.host = [[Buffer.from_handle(a.ctypes.data, a.nbytes, owner=a) for a in pair] for pair in pairs]

    def __call__(self, waits=False, timeline=None):
        """`waits`: the host waits after each step, though nothing needs it. A Timeline records the steps."""
        height, width = map(np.int32, self.edges.shape[1:])
        config = LaunchConfig(grid=(-(-int(width) // BLOCK[0]), -(-int(height) // BLOCK[1])), block=BLOCK)
        for i, (source, target) in enumerate(self.host):
            k = i % len(self.streams)
            stream, (a, b) = self.streams[k], self.device[k]
            steps = {"copy in": partial(a.copy_from, source, stream=stream)}
            for name, buffers in zip(STEPS, ((a, b), (b, a), (a, b)), strict=True):
                steps[name] = partial(launch, stream, config, compiled()[name], *buffers, width, height)
            steps["copy out"] = partial(b.copy_to, target, stream=stream)
            for name, enqueue in steps.items():
                with timeline.range(name, f"stream {k}", stream, waits) if timeline else nullcontext():
                    enqueue()
                if waits:
                    stream.sync()
        for stream in self.streams:
            stream.sync()


# %% Traces: what Perfetto opens, and what a profiler's window shows of it
def write_trace(spans, path, process):
    """Chrome's trace format: "M" names processes and threads, "X" is a bar, with ts and dur in µs."""
    lanes = sorted({span.lane for span in spans})
    named = [("process_name", 0, process), *(("thread_name", k, lane) for k, lane in enumerate(lanes))]
    events = [{"ph": "M", "name": what, "pid": 0, "tid": k, "args": {"name": name}} for what, k, name in named]
    for begin, end, lane, name in sorted(spans):
        bar = {"ph": "X", "name": name, "cat": "kernel", "pid": 0, "tid": lanes.index(lane)}
        events.append({**bar, "ts": begin, "dur": end - begin})
    path.write_text(json.dumps({"traceEvents": events}, allow_nan=False), encoding="utf-8")


def load_trace(path, categories=("kernel", "gpu_memcpy", "gpu_memset")):
    """The bars of these categories in a Chrome trace as sorted Spans; a lane has the name of its thread."""
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    lanes = {(e["pid"], e["tid"]): e["args"]["name"].strip() for e in events if e.get("name") == "thread_name"}
    bars = [e for e in events if e["ph"] == "X" and e.get("cat") in categories]
    placed = [(e, lanes.get((e["pid"], e["tid"]), str(e["tid"]))) for e in bars]
    return sorted(Span(e["ts"], e["ts"] + e["dur"], lane, e["name"]) for e, lane in placed)


def union(spans):
    """The times at which at least one of the spans is there, in order: an array of rows [begin, end]."""
    result = []
    for begin, end, *_ in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1][1] = max(result[-1][1], end)
        else:
            result.append([begin, end])
    return np.array(result)


def busy_and_gaps(spans):
    """What a timeline shows, in its unit of time: {"window", "idle", "overlap", "lanes", "top"}. ValueError if empty.

    window: from the first begin to the last end. Parts of it: idle, while nothing worked; overlap, saved by lanes that
    work at the same time. lanes: {name: (time at work, [length of each gap])}. top: {name: durations}, by their sum.
    """
    if not spans:
        raise ValueError("the timeline is empty")
    lanes, names, times = {}, defaultdict(list), union(spans)
    window, work = np.ptp(times), np.diff(times).sum()
    for lane in sorted({span.lane for span in spans}):
        times = union(span for span in spans if span.lane == lane)
        lanes[lane] = np.diff(times).sum(), (times[1:, 0] - times[:-1, 1]).tolist()
    for span in spans:
        names[span.name].append(span.end - span.begin)
    idle, overlap = window - work, sum(busy for busy, _ in lanes.values()) - work
    top = dict(sorted(names.items(), key=lambda item: -sum(item[1])))
    return {"window": window, "idle": idle / window, "overlap": overlap / window, "lanes": lanes, "top": top}


# %% torch.profiler
def profile_torch(path, job):
    """Three training steps of a small network, and on a GPU `job()`, under torch.profiler; the trace goes to `path`."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_gpu = not gpu.SIMULATED and torch.cuda.is_available()
    with timing.torch_stream() if on_gpu else nullcontext(), torch.device("cuda" if on_gpu else "cpu"):
        network = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512))
        batch = torch.rand(256, 512)
        network(batch).mean().backward()  # what happens the first time only is not what one wants to see
        with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu, acc_events=True) as profiler:
            for _ in range(3):
                network(batch).mean().backward()
            if on_gpu:
                torch.cuda.synchronize()
                job()  # CUPTI sees all kernels of the process, ours too
    profiler.export_chrome_trace(str(path))


# %% Verify and measure
BEFORE, AFTER, TORCH = "pageable, waits", "pinned, 2 streams", "torch.profiler"
VARIANTS = {  # (streams, pinned, waits): one cure after the other
    BEFORE: (2, False, True),
    "pinned, waits": (2, True, True),
    "pinned, 1 stream": (1, True, False),
    AFTER: (2, True, False),
}


def random_images(frames, side):
    return np.random.default_rng(153).integers(0, 256, (frames, side, side + 5), dtype=np.uint8)


def run(images, name):
    """A variant's edges and Spans."""
    (streams, pinned, waits), timeline = VARIANTS[name], Timeline()
    job = EdgeJob(images, streams, pinned)
    job(waits, timeline)
    return job.edges.copy(), timeline.spans()


def verify(n):
    """The checks of all variants on images of about n x n. Raises Mismatch if one is wrong."""
    images = random_images(3, n)
    return [check(name, run(images, name)[0], reference(images)) for name in VARIANTS]


def benchmark() -> list[Row]:
    """The job with the planted problem and one cure after the other. idle, overlap: parts of the window."""
    verify(251)
    images, rows, yardsticks = random_images(32, 2048), [], timing.yardsticks(*gpu.open_device())
    what = {"section": "1.5.3", "size": "x".join(map(str, images.shape)), "dtype": "u8", "yardsticks": yardsticks}
    times = timing.wall_clock({name: partial(EdgeJob(images, *how[:2]), how[2]) for name, how in VARIANTS.items()})
    for name, taken in times.items():
        found = busy_and_gaps(run(images, name)[1])
        figures = {"GB/s each way": images.nbytes / taken.seconds / 1e9} | {k: found[k] for k in ("idle", "overlap")}
        rows.append(Row.from_timing(name=name, timing=taken, peer=(BEFORE, times[BEFORE]), figures=figures, **what))
    return rows


# %% Show
SUCCESSORS = (
    ("a program's timeline: CPU, GPU, copies", "Nsight Systems", "nsys profile -o report python program.py"),
    ("one kernel: counters, advice, source lines", "Nsight Compute", "ncu --set full -o report python program.py"),
    ("the operators of a torch model", "torch.profiler", "profiler.key_averages().table(), .export_chrome_trace(path)"),
    ("a trace, whoever wrote it", "Perfetto", "https://ui.perfetto.dev"),
)


def show(title, spans, unit):
    """Print what the timeline shows."""
    found = busy_and_gaps(spans)
    window, lines = found["window"], []
    for lane, (busy, gaps) in found["lanes"].items():
        lines.append((lane, f"{busy:,.0f}", f"{busy / window:.0%}", len(gaps), f"{max(gaps, default=0):,.0f}"))
    headings = "lane", f"busy, {unit}", "of the window", "gaps", f"longest gap, {unit}"
    table(f"{title}: {window:,.0f} {unit}, idle {found['idle']:.0%}, overlap {found['overlap']:.0%}", headings, lines)
    longest = [(name[:60], len(taken), f"{sum(taken):,.0f}") for name, taken in [*found["top"].items()][:8]]
    table("", ("longest", "number", unit), longest)


def plot(timelines):
    """A panel for each {title: (spans, unit)}: a row for each lane, a colour for each of the eight longest names."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3 * len(timelines)), layout="constrained")
    for axes, (title, (spans, unit)) in zip(figure.subplots(len(timelines), 1), timelines.items(), strict=True):
        for k, name in enumerate(busy_and_gaps(spans)["top"]):
            begin, end, lane, _ = zip(*(span for span in spans if span.name == name), strict=True)
            bars = {"left": np.subtract(begin, spans[0].begin), "width": np.subtract(end, begin)}
            look = {"color": f"C{k}", "label": name[:40]} if k < 8 else {"color": "0.8"}
            axes.barh(lane, **bars, **look, edgecolor="w", linewidth=0.3)
        axes.set(title=title, xlabel=unit)
        axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    save_figure(figure, "s1_5_3_visual_profiler")


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=509 if gpu.SIMULATED else 2048, quick_size=125, plot=True).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    check_fits(8 * options.size**2)
    checks_table(verify(options.size))
    table("What took over from the Visual Profiler (nvvp) and nvprof", ("to see", "tool", "how"), SUCCESSORS)
    images, unit, timelines = random_images(4, options.size), "ticks" if gpu.SIMULATED else "µs", {}
    folder = OUT / "s1_5_3_visual_profiler"
    folder.mkdir(parents=True, exist_ok=True)
    for name in (BEFORE, AFTER):
        timelines[name] = run(images, name)[1], unit
        file = folder / f"{name.replace(', ', '_').replace(' ', '_')}.json"
        write_trace(timelines[name][0], file, f"{name}, in {unit}")
    profile_torch(folder / "torch.json", EdgeJob(images))
    timelines[TORCH] = load_trace(folder / "torch.json") or load_trace(folder / "torch.json", ("cpu_op",)), "µs"
    for title, timeline in timelines.items():
        show(title, *timeline)
    print(f"traces, for https://ui.perfetto.dev: {folder}/*.json")
    if options.plot:
        plot(timelines)
    measure(benchmark, options.bench)
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
