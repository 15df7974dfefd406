"""common.timing: decisions, with a fake GPU; the kernels; and the whole of it where there is a GPU."""

import sys
import types

import numpy as np
import pytest

from common import gpu, timing
from common.cli import Unavailable
from common.timing import Timing

US = 1e-6


def test_median_spread_and_flag():
    steady = Timing.of([10.0] * 18 + [1.0, 99.0])
    assert (steady.seconds, steady.launches, len(steady.samples)) == (10.0, 1, 20)
    assert steady.spread == 0 and not steady.noisy, "one outlier at each end does not count"
    wide = Timing.of([float(t) for t in range(1, 12)], launches=7)
    assert wide.seconds == 6 and wide.spread == pytest.approx(8 / 6) and wide.noisy and wide.launches == 7
    assert not Timing.of([1.0, 1.0, 1.05, 1.05]).noisy and Timing.of([1.0, 1.0, 1.06, 1.06]).noisy


class FakeRig:
    """A GPU on which a call of `name` takes cost[name] seconds, and events add `event_cost`."""

    def __init__(self, cost, event_cost=0.0, uncapturable=()):
        self.cost, self.event_cost, self.uncapturable = cost, event_cost, uncapturable
        self.calls, self.captured = [], {}

    def warm_up(self, variants, rounds):
        self.calls += [f"warm {name}" for name in variants] * rounds

    def seconds(self, variant):
        self.calls.append(variant)
        name, _, launches = variant.partition("*")
        return self.event_cost + self.cost[name] * int(launches or 1)

    def capture(self, variant, launches):
        if variant in self.uncapturable:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.captured[variant] = launches
        return f"{variant}*{launches}"


def measure(rig, samples=3):
    return timing._measure({name: name for name in rig.cost}, rig, samples, 2)


def test_variants_take_turns_after_the_warm_up():
    rig = FakeRig({"a": 1e-3, "b": 2e-3, "c": 3e-3})
    result = measure(rig)
    assert rig.calls[:6] == ["warm a", "warm b", "warm c"] * 2
    assert rig.calls[6:] == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert {name: t.seconds for name, t in result.items()} == rig.cost
    assert all(t.launches == 1 and len(t.samples) == 3 for t in result.values()) and not rig.captured


def test_20_microseconds_are_not_small():
    rig = FakeRig({"a": timing.SMALL})
    measure(rig)
    assert not rig.captured


def test_small_work_is_timed_as_a_graph_of_at_least_200_microseconds():
    rig = FakeRig({"fast": 2 * US, "near": 25 * US, "slow": 1e-3}, event_cost=3 * US)
    result = measure(rig)
    assert all(rig.cost[name] * n + 3 * US >= timing.GRAPH for name, n in rig.captured.items())
    assert rig.captured["slow"] == 1 and rig.captured["fast"] < 150
    for name, t in result.items():  # the peers are timed in the same way, and the events' cost is divided
        assert t.launches == rig.captured[name]
        assert t.seconds == pytest.approx(rig.cost[name], rel=0.02)
    assert result["fast"].launches > result["near"].launches > 1


def test_a_graph_is_not_endless():
    rig = FakeRig({"empty": 1e-9}, event_cost=1 * US)
    measure(rig)
    assert rig.captured["empty"] == 4096


def test_what_cannot_be_captured_keeps_its_single_timing(capsys):
    rig = FakeRig({"ours": 5 * US, "library": 6 * US}, uncapturable=("library",))
    result = measure(rig)
    assert result["library"].launches == 1 and result["library"].seconds == 6 * US
    assert result["ours"].launches > 1
    note = capsys.readouterr().err
    assert "note: library is timed call by call, without a graph: operation not permitted" in note


def test_no_time_on_the_simulator(monkeypatch):
    monkeypatch.setattr(gpu, "SIMULATED", True)
    for call in (lambda: timing.benchmark({"a": print}, None), lambda: timing.yardsticks(None, None)):
        with pytest.raises(Unavailable, match="the simulator has no time"):
            call()


def test_the_clock_of_the_host_takes_turns_and_leaves_the_warm_up_out(monkeypatch):
    now, calls = [0.0], []

    def call(name, seconds):
        calls.append(name)
        now[0] += seconds if len(calls) > 4 else 100.0

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    times = timing.wall_clock({"a": lambda: call("a", 1.0), 2: lambda: call(2, 3.0)}, samples=5)
    assert calls == ["a", 2] * 7
    assert times["a"].samples == (1.0,) * 5 and times[2].seconds == 3.0


def test_no_stream_of_torch_on_the_simulator(monkeypatch):
    monkeypatch.setattr(gpu, "SIMULATED", True)
    with pytest.raises(Unavailable, match="the simulator has no time"), timing.torch_stream():
        pass


def test_nothing_to_measure_is_an_error(monkeypatch):
    monkeypatch.setattr(gpu, "SIMULATED", False)
    for arguments in ({"variants": {}}, {"variants": {"a": print}, "samples": 0}):
        with pytest.raises(ValueError, match="at least one"):
            timing.benchmark(stream=None, **arguments)


class FakeStream:
    """Records what reaches it, in order; `now` advances by 40 µs with every pass of a sweep."""

    def __init__(self, l2=50 << 20):
        self.log, self.now, self.nodes, self.closed = [], 0.0, 0, 0
        properties = types.SimpleNamespace(l2_cache_size=l2, multiprocessor_count=2)
        self.device = types.SimpleNamespace(
            properties=properties, create_event=lambda options: Event(options), allocate=self.allocate
        )

    def allocate(self, size, *, stream):
        self.allocated = size
        return types.SimpleNamespace(size=size, handle=1 << 32)

    def record(self, event):
        self.log.append("event")
        event.time = self.now

    def sync(self):
        pass

    def create_graph_builder(self):
        return self

    begin_building = create_graph_builder

    def end_building(self):
        self.graph_definition = types.SimpleNamespace(nodes=lambda: range(self.nodes))

    def complete(self):
        return types.SimpleNamespace(launch=lambda stream: self.log.append("graph"))

    def close(self):
        self.closed += 1
        raise gpu.CUDAError("nothing to end")


class Event:
    def __init__(self, options):
        assert options.timing_enabled

    def sync(self):
        pass

    def __sub__(self, other):
        return (self.time - other.time) * 1e3  # events count milliseconds


@pytest.fixture
def fake_gpu(monkeypatch):
    def launch(stream, config, kernel, *arguments):
        stream.log.append((kernel, *arguments[1:]))
        stream.now += 40 * US * int(arguments[2]) if kernel == "sweep" else 0

    monkeypatch.setattr(timing, "_kernels", lambda device: ("scramble", "sweep", "fma_chains"))
    monkeypatch.setattr(gpu, "launch", launch)
    monkeypatch.setattr(timing, "WARM_UP", 0)


def test_the_cache_is_flushed_before_the_events(fake_gpu):
    stream = FakeStream()
    rig = timing._Rig(stream, flush_l2=True)
    assert rig.bytes >= 2 * (50 << 20) and stream.allocated == rig.bytes + 256
    calls = []

    def variant(s):
        calls.append(s)
        s.log.append("call")
        s.now += 30 * US

    rig.warm_up([variant], 3)
    assert calls == [stream] * 3
    assert 1 < rig.passes < 100, "a sweep of 40 µs is repeated until it hides the time to enqueue"
    stream.log.clear()
    assert rig.seconds(variant) == pytest.approx(30 * US)
    (kernel, count, passes, sink), *rest = stream.log
    assert (kernel, count * 16, passes) == ("sweep", rig.bytes, rig.passes) and sink == (1 << 32) + rig.bytes
    assert rest == ["event", "call", "event"]


def test_without_the_flush_the_sweep_is_small(fake_gpu):
    assert timing._Rig(FakeStream(), flush_l2=False).bytes <= 1 << 14
    assert timing._Rig(FakeStream(l2=0), flush_l2=True).bytes >= 1 << 20


def test_a_graph_is_captured_launched_once_and_must_not_be_empty(fake_gpu):
    stream = FakeStream()
    rig = timing._Rig(stream, flush_l2=True)

    def variant(s):
        s.nodes += 1

    graph = rig.capture(variant, 7)
    assert stream.nodes == 7 and stream.log[-1] == "graph" and stream.closed == 1
    graph(stream)
    assert stream.log[-2:] == ["graph", "graph"]
    with pytest.raises(RuntimeError, match="enqueues nothing"):
        timing._Rig(FakeStream(), flush_l2=True).capture(lambda s: None, 3)
    stream.closed = 0
    with pytest.raises(ZeroDivisionError):  # the reason, not the error from closing
        rig.capture(lambda s: 1 / 0, 3)
    assert stream.closed == 1


def fake_nvml(monkeypatch, mask):
    class NVMLError(Exception):
        pass

    def clock(handle, which):
        if mask is None:
            raise NVMLError("not supported")
        return 1980

    import pynvml

    names = {n: getattr(pynvml, n) for n in dir(pynvml) if n.startswith("nvmlClocksThrottleReason")}
    fake = types.SimpleNamespace(
        **names,
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByPciBusId=lambda bus: bus,
        nvmlDeviceGetClockInfo=clock,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: mask,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)


def test_clocks_and_throttle_reasons(monkeypatch):
    fake_nvml(monkeypatch, 4 | 64 | 1)
    assert timing.clock_state() == (1980, ("SwPowerCap", "HwThermalSlowdown"))
    fake_nvml(monkeypatch, 1)  # idle: no reason to worry
    assert timing.clock_state(types.SimpleNamespace(pci_bus_id="0000:01:00.0")) == (1980, ())
    fake_nvml(monkeypatch, None)
    assert timing.clock_state() == (None, None)
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert timing.clock_state() == (None, None)


def test_yardsticks_are_measured_once(monkeypatch):
    monkeypatch.setattr(gpu, "SIMULATED", False)
    monkeypatch.setattr(timing, "_measured", {})
    runs = []
    monkeypatch.setattr(timing, "_measure_yardsticks", lambda device, stream: runs.append(stream) or len(runs))
    first, second = types.SimpleNamespace(device_id=0), types.SimpleNamespace(device_id=1)
    assert [timing.yardsticks(device, "s") for device in (first, first, second)] == [1, 1, 2]


def test_the_kernels_do_what_they_say():
    _, stream = gpu.open_device()
    scramble, sweep, fma_chains = gpu.compile_kernels(timing._SOURCE, "scramble", "sweep", "fma_chains")
    config = gpu.LaunchConfig(grid=2, block=64)
    n = 1000
    data = gpu.zeros((n,), np.uint32, stream)
    gpu.launch(stream, config, scramble, data.buffer, np.int64(n))
    h = np.arange(n, dtype=np.uint32) * np.uint32(2654435761)
    expected = (h ^ h >> np.uint32(15)) * np.uint32(2246822519)
    assert np.array_equal(data.to_host(stream), expected) and len(set(expected.tolist())) == n

    sink = gpu.zeros((1,), np.uint32, stream)
    gpu.launch(stream, config, sweep, data.buffer, np.int64(n // 4), np.int32(2), sink.buffer)
    assert np.array_equal(data.to_host(stream), expected)

    out = gpu.empty((128,), np.float32, stream)
    a, b = np.float32(0.999), np.float32(0.001)
    gpu.launch(stream, config, fma_chains, out.buffer, a, b, np.int32(20))
    x = (np.arange(128) % 64)[:, None] + np.arange(8.0)
    for _ in range(20):
        x = x * float(a) + float(b)
    np.testing.assert_allclose(out.to_host(stream), x.sum(axis=1), rtol=1e-6, equal_nan=False)


@pytest.mark.gpu
def test_on_a_gpu():
    device, stream = gpu.open_device()
    yard = timing.yardsticks(device, stream)
    assert timing.yardsticks(device, stream) is yard
    assert yard.copy_gbps > 10 and yard.fma_tflops > 0.1
    kernels = gpu.compile_kernels(timing._SOURCE, "scramble", "sweep", "fma_chains")
    data = gpu.empty((64 << 20,), np.uint32, stream)

    def fill(elements):
        config = gpu.LaunchConfig(grid=device.properties.multiprocessor_count * 8, block=256)
        return lambda s: gpu.launch(s, config, kernels[0], data.buffer, np.int64(elements))

    large = timing.benchmark({"all": fill(data.size), "half": fill(data.size // 2)}, stream)
    assert large["all"].launches == 1 and 1.5 < large["all"].seconds / large["half"].seconds < 2.5
    assert data.nbytes / large["all"].seconds / 1e9 < 2 * yard.copy_gbps, "faster than memory: not measured right"
    small = timing.benchmark({"small": fill(1000)}, stream)["small"]
    assert small.launches > 10 and small.seconds < timing.SMALL
    assert small.launches * small.seconds > 0.8 * timing.GRAPH
