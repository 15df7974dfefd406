"""benchmark() and the yardsticks it is read against: how fast this GPU copies memory and multiplies.

A time here is always a GPU's: on the simulator everything raises `Unavailable`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from tqdm import tqdm  # type: ignore[import-untyped]

from common import gpu
from common.cli import Unavailable

Variant = Callable[[Any], None]  # enqueues its work on the stream that it is given
Name = TypeVar("Name", bound=Hashable)

NOISY = 0.05  # a spread above this is flagged
SMALL = 20e-6  # seconds; a call below this is timed as a graph of many
GRAPH = 200e-6  # and that graph takes at least this long
WARM_UP = 0.1  # seconds of warm-up at least: an idle GPU takes some time to raise its clocks

_SOURCE = r"""
// Data that is not constant: a GPU can be faster on zeros.
extern "C" __global__ void scramble(unsigned* data, long long count) {
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        const unsigned h = (unsigned)i * 2654435761u;
        data[i] = (h ^ h >> 15) * 2246822519u;
    }
}

// Reads the buffer `passes` times, past L1, and so fills L2 with it. Reading leaves clean lines: what is
// timed next has nothing of ours to write back. The store keeps the compiler from dropping the loads.
extern "C" __global__ void sweep(const uint4* __restrict__ data, long long count, int passes, unsigned* out) {
    const long long stride = (long long)gridDim.x * blockDim.x;
    unsigned bits = 0;
    for (int pass = 0; pass < passes; ++pass)
        for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
            const uint4 v = __ldcg(data + i);
            bits += v.x ^ v.y ^ v.z ^ v.w;
        }
    if (bits == 0x5eed5eedu) *out = bits;
}

// Fused multiply-adds in registers: 8 independent chains a thread hide the latency of one.
extern "C" __global__ void fma_chains(float* out, float a, float b, int iterations) {
    float x[8];
    for (int k = 0; k < 8; ++k) x[k] = threadIdx.x + k;
    #pragma unroll 16
    for (int i = 0; i < iterations; ++i)
        for (int k = 0; k < 8; ++k) x[k] = fmaf(x[k], a, b);
    float sum = 0.0f;
    for (int k = 0; k < 8; ++k) sum += x[k];
    out[(long long)blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
"""
_BLOCK = 256


@dataclass(frozen=True)
class Timing:
    """The median of `samples` (seconds of one call each) and its spread.

    `spread` is (90th - 10th percentile) / median. `launches` is how many calls a sample is the mean of:
    1, or the length of the graph that timed calls below 20 µs: then L2 is `warm`, the data stay there as far as
    they fit.
    """

    seconds: float
    spread: float
    samples: tuple[float, ...]
    launches: int = 1
    warm: bool = False

    @classmethod
    def of(cls, samples: Sequence[float], launches: int = 1, warm: bool = False) -> Timing:
        low, median, high = np.percentile(samples, [10, 50, 90])
        return cls(float(median), float((high - low) / median), tuple(samples), launches, warm)

    @property
    def noisy(self) -> bool:
        """The samples lie more than 5% apart: read the median with care."""
        return self.spread > NOISY


def benchmark(
    variants: Mapping[str, Variant], stream: Any, *, samples: int = 20, warmup: int = 3, flush_l2: bool = True
) -> dict[str, Timing]:
    """Time `variants` (name -> function that enqueues on the stream it is given), after they were verified.

    CUDA events on `stream` around one call. Before them the GPU reads twice its L2 (unless `flush_l2` is
    False), which makes L2 cold, for as long as Python needs to enqueue the call, so that no launch latency
    is measured. Variants take turns, each round starting with the next one; median of `samples` rounds.

    If the fastest takes under 20 µs, all are timed again as CUDA graphs of as many calls as take 200 µs.
    Work that small is then measured with a warm L2. A variant that a graph cannot capture (it synchronises,
    or uses another stream) keeps its single timing, and a line says so.

    Raises Unavailable on the simulator, ValueError without variants or samples.
    """
    _require_gpu()
    if not variants or samples < 1:
        raise ValueError("benchmark needs at least one variant and one sample")
    return _measure(variants, _Rig(stream, flush_l2), samples, warmup)


def wall_clock(calls: Mapping[Name, Callable[[], object]], samples: int = 20, warmup: int = 2) -> dict[Name, Timing]:
    """Time `calls` (name -> function without arguments, which returns when its work is done) by the host's clock.

    For work of the host, or with the host in it: launching and waiting count. The calls take turns; median of
    `samples` rounds after `warmup` more. It runs without a GPU too, but the simulator's time says nothing.
    """
    taken: dict[Name, list[float]] = {name: [] for name in calls}
    for _ in tqdm(range(warmup + samples), desc="measuring", delay=5, leave=False):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - start)
    return {name: Timing.of(seconds[warmup:]) for name, seconds in taken.items()}


@contextlib.contextmanager
def torch_stream() -> Iterator[Any]:
    """torch's current stream inside the `with`, as cuda.core's: torch, our launches and events keep one order.

    Raises Unavailable on the simulator, and where torch is built without CUDA.
    """
    _require_gpu()
    import torch

    if not torch.cuda.is_available():
        raise Unavailable("the comparison with torch: this torch is built without CUDA", "./run setup")
    with torch.cuda.stream(torch.cuda.Stream()):
        yield gpu.Stream.from_handle(torch.cuda.current_stream().cuda_stream)


def _require_gpu() -> None:
    if gpu.SIMULATED:
        raise Unavailable("timing: the simulator has no time", "an NVIDIA GPU with its driver")


def _measure(variants: Mapping[str, Variant], rig: Any, samples: int, warmup: int) -> dict[str, Timing]:
    rig.warm_up(variants.values(), warmup)
    times = _take_turns(variants, rig, samples)
    result = {name: Timing.of(taken) for name, taken in times.items()}
    if min(timing.seconds for timing in result.values()) >= SMALL:
        return result
    graphs, launches = dict(variants), dict.fromkeys(variants, 1)
    for name, variant in variants.items():
        try:
            graphs[name], launches[name] = _graph(variant, result[name].seconds, rig)
        except Exception as error:  # whatever a library raises when it cannot be captured
            reason = " ".join(str(error).split())
            print(f"note: {name} is timed call by call, without a graph: {reason}", file=sys.stderr)
    times = _take_turns(graphs, rig, samples)
    return {name: Timing.of([t / n for t in times[name]], n, warm=n > 1) for name, n in launches.items()}


def _take_turns(variants: Mapping[str, Variant], rig: Any, samples: int) -> dict[str, list[float]]:
    names = list(variants)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in tqdm(range(samples), desc="measuring", delay=5, leave=False):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(rig.seconds(variants[name]))
    return times


def _graph(variant: Variant, seconds: float, rig: Any) -> tuple[Variant, int]:
    """A graph of as many calls as take 200 µs, and how many. A single call looks longer than it is (events
    cost something), so a first graph shows how long one really takes."""
    launches = math.ceil(GRAPH / seconds)
    graph = rig.capture(variant, launches)
    taken = min(rig.seconds(graph) for _ in range(3))
    if launches > 1 and taken < GRAPH:
        launches = min(math.ceil(1.1 * launches * GRAPH / taken), 4096)
        graph = rig.capture(variant, launches)
    return graph, launches


class _Rig:
    """What a measurement does to the GPU. Tests put a fake in its place."""

    def __init__(self, stream: Any, flush_l2: bool) -> None:
        self.stream, device = stream, stream.device
        timed = gpu.EventOptions(timing_enabled=True)
        self.start, self.stop = device.create_event(timed), device.create_event(timed)
        # Without the flush a few kilobytes are read instead: launch latency has to be hidden all the same.
        self.bytes = max(2 * device.properties.l2_cache_size >> 8 << 8, 1 << 20) if flush_l2 else 1 << 14
        self.buffer = device.allocate(self.bytes + 256, stream=stream)  # the last 256 bytes are the sink
        self.config = gpu.LaunchConfig(grid=device.properties.multiprocessor_count * 8, block=_BLOCK)
        scramble, self.kernel, _ = _kernels(device)
        gpu.launch(stream, self.config, scramble, self.buffer, np.int64(self.buffer.size // 4))
        self.passes = 1

    def sweep(self, stream: Any) -> None:
        count, sink = np.int64(self.bytes // 16), np.uint64(int(self.buffer.handle) + self.bytes)
        gpu.launch(stream, self.config, self.kernel, self.buffer, count, np.int32(self.passes), sink)

    def warm_up(self, variants: Iterable[Variant], rounds: int) -> None:
        """Call each `rounds` times and for 0.1 s together; then choose how long a sweep has to last."""
        begin, done, enqueue = time.perf_counter(), 0, 0.0
        while done < max(rounds, 1) or time.perf_counter() - begin < WARM_UP:
            done, enqueue = done + 1, 0.0
            for variant in variants:
                self.sweep(self.stream)
                before = time.perf_counter()
                variant(self.stream)
                enqueue = max(enqueue, time.perf_counter() - before)
                self.stream.sync()
        self.passes = 20
        one_pass = max(self.seconds(self.sweep) / self.passes, 1e-7)
        self.passes = math.ceil(min(2 * enqueue + 50e-6, 5e-3) / one_pass)

    def seconds(self, variant: Variant) -> float:
        """Seconds between an event before the call and one after it, behind a sweep."""
        self.sweep(self.stream)
        self.stream.record(self.start)
        variant(self.stream)
        self.stream.record(self.stop)
        self.stop.sync()
        return float(self.stop - self.start) / 1e3

    def capture(self, variant: Variant, launches: int) -> Variant:
        """A graph of `launches` calls. It is captured from the stream itself, so everything enqueued on that
        is in it, whether by cuda.core, by the driver's own functions or by a library."""
        builder = self.stream.create_graph_builder().begin_building()
        try:
            for _ in range(launches):
                variant(self.stream)
            builder.end_building()
            if len(builder.graph_definition.nodes()) < launches:
                raise RuntimeError("it enqueues nothing on the stream that it is given")
            graph = builder.complete()
        finally:
            with contextlib.suppress(Exception):  # a capture that failed has ended already
                builder.close()
        graph.launch(self.stream)  # the first launch uploads it
        self.stream.sync()
        return graph.launch  # type: ignore[no-any-return]


@functools.cache
def _kernels(device: Any) -> Any:
    return gpu.compile_kernels(_SOURCE, "scramble", "sweep", "fma_chains")


def clock_state(device: Any = None) -> tuple[int | None, tuple[str, ...] | None]:
    """The SM clock (MHz) of `device` (or of the first GPU) at this moment, and the reasons that hold it down
    (empty: none). None where NVML cannot say."""
    reasons = ("SwPowerCap", "HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        bus = getattr(device, "pci_bus_id", None)
        handle = nvml.nvmlDeviceGetHandleByPciBusId(bus) if bus else nvml.nvmlDeviceGetHandleByIndex(0)
        mhz = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
        mask = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    except Exception:  # no pynvml, no driver, a container that hides NVML, a GPU that does not tell
        return None, None
    return mhz, tuple(r for r in reasons if mask & getattr(nvml, f"nvmlClocksThrottleReason{r}"))


@dataclass(frozen=True)
class Yardsticks:
    """What this GPU did in this process: GB/s of a device copy (bytes read and written), TFLOP/s of float32
    fused multiply-adds, and `clock_state` meanwhile."""

    copy_gbps: float
    fma_tflops: float
    sm_clock_mhz: int | None
    throttled: tuple[str, ...] | None


_measured: dict[int, Yardsticks] = {}


def yardsticks(device: Any, stream: Any) -> Yardsticks:
    """Measure the yardsticks, once for each device and process. Raises Unavailable on the simulator.

    Copy: cuMemcpyDtoDAsync of min(2 GiB, a quarter of the free memory). FMA: a loop in registers.
    """
    _require_gpu()
    if device.device_id not in _measured:
        _measured[device.device_id] = _measure_yardsticks(device, stream)
    return _measured[device.device_id]


def _measure_yardsticks(device: Any, stream: Any) -> Yardsticks:
    from cuda.bindings import driver

    scramble, _, fma_chains = _kernels(device)
    sms, resident = device.properties.multiprocessor_count, device.properties.max_threads_per_multiprocessor
    config = gpu.LaunchConfig(grid=sms * (resident // _BLOCK), block=_BLOCK)
    iterations, threads = 16384, sms * (resident // _BLOCK) * _BLOCK
    nbytes = min(2 << 30, gpu.free_memory() // 4) >> 20 << 20
    held: list[int] = []  # from the driver, not from a pool: it has to be free again for torch and others
    try:
        for _ in range(2):
            held.append(int(gpu.checked(driver.cuMemAlloc(nbytes))))
        source, target = map(np.uint64, held)

        def copy(s: Any) -> None:
            gpu.checked(driver.cuMemcpyDtoDAsync(held[1], held[0], nbytes, int(s.handle)))

        def fma(s: Any) -> None:
            a, b = np.float32(0.999), np.float32(0.001)
            gpu.launch(s, config, fma_chains, target, a, b, np.int32(iterations))

        gpu.launch(stream, config, scramble, source, np.int64(nbytes // 4))
        times = benchmark({"copy": copy, "fma": fma}, stream)
        for _ in range(math.ceil(0.05 / times["fma"].seconds)):
            fma(stream)
        time.sleep(0.01)
        mhz, throttled = clock_state(device)  # while it works: the clock of an idle GPU says nothing
        stream.sync()
    finally:
        for address in held:
            gpu.checked(driver.cuMemFree(address))
    copy_gbps = 2 * nbytes / times["copy"].seconds / 1e9
    fma_tflops = 2 * 8 * threads * iterations / times["fma"].seconds / 1e12
    return Yardsticks(copy_gbps, fma_tflops, mhz, throttled)
