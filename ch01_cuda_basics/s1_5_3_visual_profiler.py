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
import shutil
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

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
    """uint8 (frames, height, width) to the same: blur, gradient and threshold, in integers."""

    def around(a):  # above, beside and below each pixel: three rows of three
        padded, (height, width) = np.pad(a, ((0, 0), (1, 1), (1, 1)), mode="edge"), a.shape[1:]
        return [[padded[:, y : y + height, x : x + width] for x in range(3)] for y in range(3)]

    (a, b, c), (d, e, f), (g, h, i) = around(images.astype(np.int32))
    blurred = (a + 2 * b + c + 2 * (d + 2 * e + f) + g + 2 * h + i + 8) // 16
    (a, b, c), (d, _, f), (g, h, i) = around(blurred)
    gradient = abs(c + 2 * f + i - a - 2 * d - g) + abs(g + 2 * h + i - a - 2 * b - c)
    return np.where(gradient >= 128, 255, 0).astype(np.uint8)


# %% A recorder
class Span(NamedTuple):
    """A bar of a timeline; begin and end in µs, or in ticks."""

    begin: float
    end: float
    lane: str
    name: str


class Timeline:
    """What streams do: ranges of work, each between two events; on the simulator, which has no time, in logical ticks.

    A range takes one tick. It begins when the one before it in its lane has ended, and what the host has waited for.
    """

    def __init__(self):
        self.ranges, self.ticks, self.host = [], defaultdict(int), 0

    @contextmanager
    def range(self, name, lane, stream):
        """Record what is enqueued inside the `with` as a range of that name."""
        tick, begin = max(self.ticks[lane], self.host), stream.record(options=TIMED)
        yield
        end, self.ticks[lane] = stream.record(options=TIMED), tick + 1
        self.ranges.append((tick, tick + 1, lane, name) if gpu.SIMULATED else (begin, end, lane, name))

    def host_waited(self, lane):
        """All that the host enqueues from now on comes after what is in that lane."""
        self.host = self.ticks[lane]

    def spans(self):
        """The ranges as Spans, sorted, once all streams are done."""
        zero, unit = (0, 1) if gpu.SIMULATED else (self.ranges[0][0], 1e3)  # events give milliseconds
        return sorted(Span((b - zero) * unit, (e - zero) * unit, lane, name) for b, e, lane, name in self.ranges)


# %% The job: images through the GPU, in turn through several streams
class EdgeJob:
    """`job = EdgeJob(images)` allocates; `job()` copies each image in, finds its edges, and copies them to job.edges.

    images: uint8, (frames, height, width), else ValueError. `pinned`: the host's memory is page-locked.
    """

    def __init__(self, images, streams=2, pinned=True):
        if images.dtype != np.uint8 or images.ndim != 3 or images.size == 0:
            raise ValueError(f"expected uint8 images (frames, height, width), got {images.dtype} {images.shape}")
        device, stream = gpu.open_device()
        self.streams = [device.create_stream() for _ in range(streams)]
        nbytes, (frames, self.height, self.width) = images[0].nbytes, images.shape
        self.device = [[device.allocate(nbytes, stream=stream) for _ in range(2)] for _ in range(streams)]
        stream.sync()  # so that the memory is there for all streams
        allocate = LegacyPinnedMemoryResource().allocate if pinned else partial(np.empty, dtype=np.uint8)
        owners = allocate(images.nbytes), allocate(images.nbytes)
        source, self.edges = (np.from_dlpack(owner).view(np.uint8).reshape(images.shape) for owner in owners)
        source[:], starts = images, [int(owner.handle) if pinned else owner.ctypes.data for owner in owners]
        self.host = [
            [Buffer.from_handle(start + i * nbytes, nbytes, owner=o) for start, o in zip(starts, owners, strict=True)]
            for i in range(frames)
        ]

    def __call__(self, waits=False, timeline=None):
        """`waits`: the host waits after each step, though nothing needs it. A Timeline records the steps."""
        config = LaunchConfig(grid=(-(-self.width // BLOCK[0]), -(-self.height // BLOCK[1])), block=BLOCK)
        size = np.int32(self.width), np.int32(self.height)
        for i, (source, target) in enumerate(self.host):
            k = i % len(self.streams)
            stream, (a, b) = self.streams[k], self.device[k]
            steps = {"copy in": partial(a.copy_from, source, stream=stream)}
            for name, buffers in zip(STEPS, ((a, b), (b, a), (a, b)), strict=True):
                steps[name] = partial(launch, stream, config, compiled()[name], *buffers, *size)
            steps["copy out"] = partial(b.copy_to, target, stream=stream)
            for name, enqueue in steps.items():
                with timeline.range(name, f"stream {k}", stream) if timeline else nullcontext():
                    enqueue()
                if waits:
                    stream.sync()
                    if timeline:
                        timeline.host_waited(f"stream {k}")
        for stream in self.streams:
            stream.sync()


# %% Traces: what Perfetto opens, and what a profiler's window shows of it
def write_trace(spans, path, process):
    """Chrome's trace format: "M" names processes and threads, "X" is a bar, with ts and dur in µs."""
    lanes = sorted({span.lane for span in spans})
    events = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": process}}]
    events += [{"ph": "M", "name": "thread_name", "pid": 0, "tid": k, "args": {"name": n}} for k, n in enumerate(lanes)]
    for begin, end, lane, name in sorted(spans):
        place = {"pid": 0, "tid": lanes.index(lane), "ts": begin, "dur": end - begin}
        events.append({"ph": "X", "name": name, "cat": "kernel", **place})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"traceEvents": events}, allow_nan=False), encoding="utf-8")


def load_trace(path, categories=("kernel", "gpu_memcpy", "gpu_memset")):
    """The bars of these categories in a Chrome trace as sorted Spans; a lane has the name of its thread."""
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    spans = []
    for e in events:
        if e["ph"] == "X" and e.get("cat") in categories:
            lane = names.get((e["pid"], e["tid"]), str(e["tid"])).strip()
            spans.append(Span(e["ts"], e["ts"] + e["dur"], lane, e["name"]))
    return sorted(spans)


def union(spans):
    """[[begin, end], ...] of the times at which at least one of the spans is there, in order."""
    result = []
    for begin, end, *_ in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1][1] = max(result[-1][1], end)
        else:
            result.append([begin, end])
    return result


def busy_and_gaps(spans):
    """What a timeline shows, in its unit of time: {"window", "idle", "overlap", "busy", "gaps", "top"}.

    window: from the first begin to the last end. idle: while nothing worked. overlap: saved by lanes that work at the
    same time. busy: {lane: time}. gaps: {lane: [(from, to)]}. top: {name: durations}, the longest sum first.
    """
    lanes, names, working = defaultdict(list), defaultdict(list), union(spans)
    for span in spans:
        lanes[span.lane].append(span)
        names[span.name].append(span.end - span.begin)
    unions = {lane: union(lanes[lane]) for lane in sorted(lanes)}
    busy = {lane: sum(end - begin for begin, end in times) for lane, times in unions.items()}
    gaps = {lane: [(a[1], b[0]) for a, b in pairwise(times)] for lane, times in unions.items()}
    top = dict(sorted(names.items(), key=lambda item: -sum(item[1])))
    window, work = working[-1][1] - working[0][0], sum(end - begin for begin, end in working)
    shares = {"window": window, "idle": window - work, "overlap": sum(busy.values()) - work}
    return {**shares, "busy": busy, "gaps": gaps, "top": top}


# %% torch.profiler
def profile_torch(path, job):
    """Three training steps of a small network under torch.profiler, and on a GPU `job()`; the trace goes to `path`.

    Returns the operators as (name, calls, µs of their own), longest first.
    """
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
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(path))
    own = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    operators = [(o.key, o.count, getattr(o, own)) for o in profiler.key_averages() if o.key.startswith("aten::")]
    return sorted(operators, key=lambda operator: -operator[2])


# %% Verify and measure
BEFORE, AFTER, TORCH = "pageable, waits", "pinned, 2 streams", "torch.profiler"
VARIANTS = {  # (streams, pinned, waits): one cure after the other
    BEFORE: (2, False, True),
    "pinned, waits": (2, True, True),
    "pinned, 1 stream": (1, True, False),
    AFTER: (2, True, False),
}


def random_images(frames, side):
    """uint8 (frames, side, side + 5)."""
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
    images, rows = random_images(32, 2048), []
    what = {"section": "1.5.3", "size": "x".join(map(str, images.shape)), "dtype": "u8"}
    what["yardsticks"] = timing.yardsticks(*gpu.open_device())
    times = timing.wall_clock({name: partial(EdgeJob(images, *how[:2]), how[2]) for name, how in VARIANTS.items()})
    for name, taken in times.items():
        found = busy_and_gaps(run(images, name)[1])
        figures = {"GB/s each way": images.nbytes / taken.seconds / 1e9}
        figures |= {key: found[key] / found["window"] for key in ("idle", "overlap")}
        rows.append(Row.from_timing(name=name, timing=taken, peer=(BEFORE, times[BEFORE]), figures=figures, **what))
    return rows


# %% Show
SUCCESSORS = (
    ("a program's timeline: CPU, GPU, copies", "Nsight Systems", "nsys profile -o report python program.py"),
    ("one kernel: counters, advice, source lines", "Nsight Compute", "ncu --set full -o report python program.py"),
    ("the operators of a torch model", "torch.profiler", "profiler.export_chrome_trace(path)"),
    ("a trace, whoever wrote it", "Perfetto", "https://ui.perfetto.dev"),
)


def show(title, spans, unit):
    """Print what the timeline shows."""
    found, lines = busy_and_gaps(spans), []
    for lane, busy in found["busy"].items():
        gaps = [end - begin for begin, end in found["gaps"][lane]]
        lines.append((lane, f"{busy:,.0f}", f"{busy / found['window']:.0%}", len(gaps), f"{max(gaps, default=0):,.0f}"))
    shares = ", ".join(f"{key} {found[key] / found['window']:.0%}" for key in ("idle", "overlap"))
    headings = "lane", f"busy, {unit}", "of the window", "gaps", f"longest gap, {unit}"
    table(f"{title}: {found['window']:,.0f} {unit}, {shares}", headings, lines)
    longest = [(name[:60], len(taken), f"{sum(taken):,.0f}") for name, taken in [*found["top"].items()][:5]]
    table("", ("longest", "number", unit), longest)


def compare(timelines):
    """Print what two streams can save at best, and on a GPU what CUPTI says of our kernels, beside the events."""
    (spans, unit), (by_cupti, _) = timelines[AFTER], timelines[TORCH]
    found, seen = busy_and_gaps(spans), busy_and_gaps(by_cupti)["top"]
    half = sum(sum(taken) for taken in found["top"].values()) / 2
    print(f"{AFTER}: no less than half of all steps, {half:,.0f} {unit}; it took {found['window']:,.0f} {unit}")
    medians = [(k, *(f"{np.median(top[k]):.1f}" for top in (found["top"], seen))) for k in STEPS if k in seen]
    if medians:
        table("One launch of each kernel, µs", ("kernel", "by events", "by CUPTI"), medians)


def plot(timelines):
    """A panel for each {title: (spans, unit)}: a row for each lane, a colour for each of the longest names."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3 * len(timelines)), layout="constrained")
    for axes, (title, (spans, unit)) in zip(figure.subplots(len(timelines), 1), timelines.items(), strict=True):
        colours = {name: f"C{k}" for k, name in enumerate([*busy_and_gaps(spans)["top"]][:8])}
        for begin, end, lane, name in spans:
            colour = colours.get(name, "0.8")
            axes.barh(lane, end - begin, left=begin - spans[0].begin, color=colour, edgecolor="w", linewidth=0.3)
        for name, colour in colours.items():
            axes.plot([], [], "s", color=colour, label=name[:40])
        axes.set(title=title, xlabel=unit)
        axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    save_figure(figure, "s1_5_3_visual_profiler")


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=509, quick_size=125, plot=True).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    check_fits(8 * options.size**2)
    checks_table(verify(options.size))
    lines = [(what, tool, how, shutil.which(how.split()[0]) or "") for what, tool, how in SUCCESSORS]
    table("What took over from the Visual Profiler (nvvp) and nvprof", ("to see", "tool", "how", "found here"), lines)
    images = random_images(4, options.size if gpu.SIMULATED or options.quick else max(options.size, 2048))
    unit, timelines, folder = "ticks" if gpu.SIMULATED else "µs", {}, OUT / "s1_5_3_visual_profiler"
    for name in (BEFORE, AFTER):
        path = folder / f"{name.replace(', ', '_').replace(' ', '_')}.json"
        write_trace(run(images, name)[1], path, f"{name}, in {unit}")
        timelines[name] = load_trace(path), unit
    operators, path = profile_torch(folder / "torch.json", EdgeJob(images)), folder / "torch.json"
    timelines[TORCH] = load_trace(path) or load_trace(path, ("cpu_op",)), "µs"
    for title, timeline in timelines.items():
        show(title, *timeline)
    compare(timelines)
    lines = [(name[:70], calls, f"{us:,.0f}") for name, calls, us in operators[:8]]
    table("torch.profiler by operator", ("operator", "calls", "its own µs"), lines)
    print(f"traces, for https://ui.perfetto.dev: {folder}/*.json")
    if options.plot:
        plot(timelines)
    measure(benchmark, options.bench)
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
