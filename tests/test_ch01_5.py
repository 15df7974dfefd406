"""Sections 1.5.1 to 1.5.4, performance: each kernel against NumPy, on whatever device is there."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common import gpu, results, timing
from common.cli import USAGE, exit_code
from common.verify import Mismatch
from tests.chapter import assert_both_agree, on_the_simulator, output_of, plots, recorded_as, section, vectors

# --- 1.5.1 ----------------------------------------------------------------------------------------------------

RTOL = {"float32": 4e-7, "float16": 5e-4}  # 2^-24 for each operation, of which the last few weigh fully; 2^-11


def jobs_151(n: int) -> dict[str, Any]:
    """The jobs for n elements, by name and dtype."""
    return {f"{job.name}, {job.y.dtype}": job for jobs in section("1.5.1").jobs_for(n) for job in jobs}


def test_151_references_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.5.1")
    np.testing.assert_array_equal(s.reference(np.float32([0, 1, -1, 0.5]), 3), [1, 4, 0, 1.875])
    nodes = np.zeros(64, [("value", np.float32), ("next", np.int32)])
    nodes["value"], nodes["next"] = np.arange(64), (np.arange(64) + 5) % 64
    monkeypatch.setattr(s, "HOPS", 3)
    first = 2 * np.arange(32)  # each list begins two nodes behind the one before
    np.testing.assert_array_equal(s.reference_lists(nodes), first + (first + 5) % 64 + (first + 10) % 64)


@pytest.mark.parametrize("n", [1, 33, 4099])
def test_151_every_job(n: int) -> None:
    s = section("1.5.1")
    for name, job in jobs_151(n).items():
        expected, out = job.expected(), s.run(job)
        assert out.shape == expected.shape
        np.testing.assert_allclose(out, expected, rtol=RTOL[out.dtype.name], equal_nan=False, err_msg=name)


@pytest.mark.parametrize("n", [1, 3, 31, 32, 1030])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_151_all_degrees_of_one(n: int, dtype: type) -> None:
    """1 + 1 + ... + 1, exact in both types; the grid does not matter, and nothing behind the end is touched."""
    s = section("1.5.1")
    for degree in s.DEGREES if n < 32 else (1, 2, 8):
        for blocks in (1, 2):
            job = s.geometric(np.ones(n + 4, dtype), np.full(n + 4, 7, dtype), degree, blocks)._replace(n=n)
            np.testing.assert_array_equal(s.run(job), [degree + 1] * n + [7] * 4)


def test_151_lists_that_differ() -> None:
    """Each of the 32 lists has its own sum; after HOPS nodes it ends."""
    s = section("1.5.1")
    nodes = np.zeros(4096, [("value", np.float32), ("next", np.int32)])
    nodes["next"] = (np.arange(4096) + 3) % 4096
    nodes["value"] = np.arange(4096) // 8 % 7
    (job,) = (job for job in s.jobs_for(1)[0] if job.name == "linked lists")
    out = s.run(job._replace(x=nodes, n=4096))
    expected = s.reference_lists(nodes)
    assert len(set(expected)) > 8
    np.testing.assert_array_equal(out, expected)


def test_151_counted_by_hand() -> None:
    jobs = {name: (job.flops, job.bytes, job.useful) for name, job in jobs_151(8000).items()}
    assert jobs["degree 1, float32"] == (8000, 64_000, None)  # one addition; 4 bytes in, 4 out
    assert jobs["degree 512, float32"] == (1023 * 8000, 64_000, None)
    assert jobs["degree 8, float16"] == (15 * 8000, 32_000, None)
    assert jobs["degree 8, 1 block, float32"] == (15 * 63, 8 * 63, None)
    assert jobs["field of records, float32"] == (1000, 36_000, 8000)
    assert jobs["linked lists, float32"] == (32 * 1024, 32 * 32 * 1024, 8 * 32 * 1024)
    assert jobs["atomics, float32"] == (250, 1000, None)


def test_151_arrays_are_shared() -> None:
    """A quarter of the free memory is for all: 18 bytes an element, as benchmark() reckons."""
    arrays = {
        id(array): array.nbytes for jobs in section("1.5.1").jobs_for(1 << 16) for j in jobs for array in (j.x, j.y)
    }
    assert sum(arrays.values()) < 18 * (1 << 16)


CEILINGS = 4e12, 60e12, 1e-6  # byte/s, FLOP/s, seconds: the ridge is at 15 FLOP/byte


@pytest.mark.parametrize(
    ("moved", "flops", "seconds", "expected"),
    [
        (4e9, 4e9, 1.25e-3, ("memory", 0.8)),
        (4e9, 120e9, 2.5e-3, ("compute", 0.8)),
        (4e9, 60e9, 1.25e-3, ("memory", 0.8)),  # at the ridge both say the same
        (4e9, 4e9, 1.6e-3, ("memory", 0.625)),
        (4e9, 4e9, 1.7e-3, ("latency", 0.588)),
        (4e3, 32e9, 1e-3, ("latency", 0.533)),
        (4e6, 4e6, 2.9e-6, ("launch", 0.345)),
        (11.2e6, 4e6, 2.9e-6, ("launch", 0.966)),  # so short that it could not be told from the launch
        (11.2e6, 4e6, 3.1e-6, ("memory", 0.903)),
    ],
)
def test_151_what_binds(moved: float, flops: float, seconds: float, expected: tuple[str, float]) -> None:
    row = results.Row("1.5.1", "made up", "1", "f32", seconds, 0.0, bytes=int(moved), flops=int(flops))
    verdict, share = section("1.5.1").bound(row, CEILINGS)
    assert (verdict, round(share, 3)) == expected
    assert verdict in section("1.5.1").NEXT


def test_151_one_change_at_a_time() -> None:
    s = section("1.5.1")
    seconds = {  # as the base, half the FLOPs, half the bytes, twice the threads
        "degree 8": (1.0, 0.95, 0.5, 1.0),
        "degree 512": (4.0, 2.0, 3.9, 4.0),
        "degree 8, 1 block": (2.0, 1.9, 1.8, 1.0),
    }
    rows = []
    for base, times in seconds.items():
        less = base.replace("512", "256").replace("degree 8", "degree 4")
        names = (base, "f32"), (less, "f32"), (base, "f16"), (base + s.TWICE, "f32")
        rows += [results.Row("1.5.1", name, "1", dtype, t, 0.0) for (name, dtype), t in zip(names, times, strict=True)]
    found = s.gains(rows)
    assert [max(gains, key=gains.get) for gains in found.values()] == ["memory", "compute", "latency"]
    assert found["degree 512"] == pytest.approx({"compute": 2, "memory": 4 / 3.9, "latency": 1})


@pytest.fixture
def measured_151(monkeypatch: pytest.MonkeyPatch) -> list[results.Row]:
    """What benchmark() gives if a job takes 1 ms, what the experiments halve 0.5 ms, and a small launch 1 or 2 µs."""
    s = section("1.5.1")
    halved = [("degree 8", "f16"), ("degree 256", "f32"), ("degree 8" + s.FEW + s.TWICE, "f32")]
    small = {s.NOTHING: 1e-6, "degree 8, 1024 elements": 2e-6}

    def benchmark(calls: dict[tuple[str, str], Any], stream: Any) -> dict[tuple[str, str], timing.Timing]:
        for call in calls.values():
            call(stream)
        return {key: timing.Timing.of([small.get(key[0], 5e-4 if key in halved else 1e-3)]) for key in calls}

    monkeypatch.setattr(s, "LOG", 10)
    monkeypatch.setattr(timing, "yardsticks", lambda *_: timing.Yardsticks(4000.0, 60.0, 1980, ()))
    monkeypatch.setattr(timing, "benchmark", benchmark)
    return s.benchmark()


def test_151_rows(measured_151: list[results.Row]) -> None:
    rows = {(row.name, row.dtype): row for row in measured_151}
    assert len(rows) == len(measured_151) == 23
    assert rows["degree 8", "f32"].size == "2^10" and rows["degree 8, 1 block", "f32"].size == "2^3"
    assert rows["degree 8", "f16"].of_peak == pytest.approx(15 * 1024 / 5e-4 / 60e12)
    assert rows["nothing", "f32"].size == "0" and rows["nothing", "f32"].flops is None


def test_151_recorded_figures_are_shown_with_gpu_and_date(
    measured_151: list[results.Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recorded_as(measured_151, tmp_path, monkeypatch)
    monkeypatch.setattr(timing, "yardsticks", None)  # nothing of this machine may be needed
    printed = output_of("1.5.1", "--size", "1000", "--plot", "--no-bench", capfd=capfd)
    assert "recorded on NVIDIA Test, 2031-02-03, not measured here" in printed
    assert "copy 4.00 TB/s, FMA 60.0 TFLOP/s, so the ridge is at 15.0 FLOP/byte" in printed
    assert "a launch that does nothing takes 1.00 µs" in printed
    assert re.search(r"degree 512 +f32 +1\.05 M +8\.19 k +128 +1\.00 ms +8\.19 M +1\.05 G +0\.0% +latency", printed)
    assert re.search(r"degree 8, 1024 elements .* launch", printed)
    assert "degrees 1 and 512, far from the ridge: 0% and 0% (expected: 100%)" in printed
    assert "field of records: 0.125 FLOP for each byte that it asks for, 0.0278 for each that is moved" in printed
    assert re.search(r"degree 8 +1\.00× +2\.00× +1\.00× +memory +latency", printed)
    assert re.search(r"degree 512 +2\.00× +1\.00× +1\.00× +compute", printed)
    assert re.search(r"degree 8, 1 block +1\.00× +1\.00× +2\.00× +latency", printed)
    assert len(plots(printed)) == 1


def test_151_without_recorded_figures(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(results, "recorded", lambda number: [])
    printed = output_of("1.5.1", "--size", "33", "--plot", "--no-bench", capfd=capfd)
    assert f"not run: {results.NOTHING}" in printed and "./run bench 1" in printed


def test_151_a_wrong_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.5.1")
    monkeypatch.setattr(s, "run", lambda job, run=s.run: run(job) * job.y.dtype.type(1.001))
    with pytest.raises(Mismatch, match="degree 1: 33 of 33 elements differ"):
        s.verify(33)


@pytest.mark.parametrize(("size", "message"), [("0", "positive integer"), ("900000M", "are free")])
def test_151_sizes_that_cannot_be(size: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code(section("1.5.1").main, ["--size", size]) == USAGE
    assert message in capfd.readouterr().err


# --- 1.5.2 ----------------------------------------------------------------------------------------------------


def test_152_peaks_by_hand() -> None:
    s = section("1.5.2")
    # an H200: 6016 bits at 3.201 GHz, twice in a clock; 132 SMs of 128 lanes at 1.98 GHz, 2 FLOP each
    gbps, tflops = s.theoretical_peaks(132, (9, 0), 1_980_000, 3_201_000, 6016)
    assert gbps == pytest.approx(4814.3, abs=0.1) and tflops == pytest.approx(66.91, abs=0.01)
    # a T4: 256 bits at 5.001 GHz, 40 SMs of 64 lanes at 1.59 GHz
    gbps, tflops = s.theoretical_peaks(40, (7, 5), 1_590_000, 5_001_000, 256)
    assert gbps == pytest.approx(320.06, abs=0.01) and tflops == pytest.approx(8.14, abs=0.01)


def test_152_littles_law_by_hand() -> None:
    law = section("1.5.2").littles_law
    assert law(1000, 500e-9, 4e12) == pytest.approx(2e9)  # 1000 bytes every 500 ns
    assert law(2_000_000, 500e-9, 4e12) == pytest.approx(4e12)  # which is 500 ns × 4 TB/s
    assert law(3_000_000, 500e-9, 4e12) == 4e12


QUADS = (1, 31, 33, 128, 385, 1000)


@pytest.mark.parametrize("quads", QUADS)
def test_152_copy_and_saxpy(quads: int) -> None:
    s, (x, y) = section("1.5.2"), vectors(4 * quads + 8)
    for name, numbers, expected in (("copy", (), x), ("saxpy", (np.float32(-1.75),), -1.75 * x.astype(np.float64) + y)):
        kernel, grid, block, *arrays, _ = s.vectors(name, x, y)
        out = s.run((kernel, grid, block, *arrays, np.int64(quads), *numbers))  # the last two are not to be touched
        np.testing.assert_allclose(out[:-8], expected[:-8], rtol=0, atol=1e-6 * (name == "saxpy"), equal_nan=False)
        np.testing.assert_array_equal(out[-8:], y[-8:])


@pytest.mark.parametrize("quads", QUADS)
@pytest.mark.parametrize("blocks", [1, 3])
def test_152_partial_sums(quads: int, blocks: int) -> None:
    s, (x, _) = section("1.5.2"), vectors(4 * quads)
    threads = blocks * s.BLOCK
    parts = x.reshape(quads, 4).sum(axis=1, dtype=np.float64)
    expected = [parts[thread::threads].sum() for thread in range(threads)]
    for loads in s.LOADS:
        out = s.run(s.partial_sums(x, np.full(threads, np.nan, np.float32), loads))
        np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5, equal_nan=False)


@pytest.mark.parametrize("n", [1, 31, 32, 33, 70])
def test_152_matmul(n: int) -> None:
    a, b = vectors(n * n).reshape(2, n, n)
    s = section("1.5.2")
    out = s.run(s.matmul(a, b, np.full((n, n), np.nan, np.float32)))
    # n products below 20, each of which is rounded by 2^-24 and so is each sum
    np.testing.assert_allclose(out, a.astype(np.float64) @ b, rtol=0, atol=1e-6 * n, equal_nan=False)


def test_152_chase() -> None:
    s = section("1.5.2")
    ring = s.scattered_ring(6)
    way = [0]
    for _ in range(63):
        way.append(int(ring[way[-1]]))
    assert sorted(way) == list(range(64)), "one ring through all"
    assert np.abs(np.diff(way)).mean() > 16, "scattered"
    for hops in (0, 1, 7, 63, 64):
        *call, _ = s.chase(ring, np.full(1, -1, np.int32))
        assert s.run((*call, np.int32(hops))) == [way[hops % 64]]


def test_152_ballast_dials_the_occupancy() -> None:
    """The shared memory lets as many blocks in as asked for, and the result stays what it was."""
    s, (device, stream) = section("1.5.2"), gpu.open_device()
    limits, x = device.properties, vectors(4000)[0]
    expected = s.run(s.partial_sums(x, np.zeros(256, np.float32), 2))
    for blocks in (1, 2, 4):
        shared, threads = s.with_ballast("partial_sums<2>", blocks)
        assert threads == blocks * s.BLOCK
        assert (shared + 1024) * blocks <= limits.max_shared_memory_per_multiprocessor < (shared + 1024) * (blocks + 1)
        d_sums = gpu.empty(256, np.float32, stream)
        s.start(s.partial_sums(gpu.to_device(x, stream), d_sums, 2), stream, shared)
        np.testing.assert_array_equal(d_sums.to_host(stream), expected)
    for loads in s.LOADS:  # more than threads and registers admit cannot be had
        kernel = s.compiled().get_kernel(f"partial_sums<{loads}>")
        most = kernel.occupancy.max_active_blocks_per_multiprocessor(s.BLOCK, 0)
        assert s.with_ballast(f"partial_sums<{loads}>", 16)[1] == min(16, most) * s.BLOCK


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros(4), np.zeros(4, np.float32), "float64"),
        (np.zeros(4, np.float32), np.zeros(8, np.float32), r"\(4,\), float32 \(8,\)"),
        (np.zeros(6, np.float32), np.zeros(6, np.float32), r"\(6,\)"),
        (np.zeros(0, np.float32), np.zeros(0, np.float32), r"\(0,\)"),
        (np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float32), r"\(2, 2\)"),
    ],
)
def test_152_bad_input(x: np.ndarray, y: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=f"not float32 vectors.*{message}"):
        section("1.5.2").vectors("copy", x, y)


def test_151_bad_vectors() -> None:
    s, x = section("1.5.1"), np.zeros(8, np.float32)
    for a, b, degree in ((x.astype(float), x.astype(float), 8), (x, x.astype(float), 8), (x, x[:4], 8), (x, x, 3)):
        with pytest.raises(ValueError, match="float32 or float16 alike"):
            s.geometric(a, b, degree, 1)


def test_152_bad_matrices_and_sums() -> None:
    s, x, sums = section("1.5.2"), np.zeros(8, np.float32), np.zeros(128, np.float32)
    for a, b in (((2, 3), (2, 3)), ((3, 3), (2, 2)), ((0, 0), (0, 0)), ((9,), (9,))):
        with pytest.raises(ValueError, match="not square float32 matrices of one size"):
            s.matmul(np.zeros(a, np.float32), np.zeros(b, np.float32), np.zeros(a, np.float32))
    with pytest.raises(ValueError, match="not square float32 matrices of one size"):
        s.matmul(*[np.zeros((2, 2))] * 3)
    for bad in (x[:6], x[:0], x.astype(np.float64), x.reshape(2, 4)):
        with pytest.raises(ValueError, match="not a float32 vector of 4, 8"):
            s.partial_sums(bad, sums, 1)
    for bad_sums, loads in ((sums[:100], 1), (sums[:0], 1), (sums, 3), (sums.astype(np.float64), 1)):
        with pytest.raises(ValueError, match="not float32 sums of whole blocks"):
            s.partial_sums(x, bad_sums, loads)


@pytest.fixture
def measured_152(monkeypatch: pytest.MonkeyPatch) -> list[results.Row]:
    """What benchmark() gives with 2^10 elements, if a hop takes 500 ns and everything else 1 ms and 2 W."""
    s = section("1.5.2")

    def benchmark(calls: dict[tuple[str, str], Any], stream: Any) -> dict[tuple[str, str], timing.Timing]:
        for call in calls.values():
            call(stream)
        return {key: timing.Timing.of([5e-7 * s.HOPS if "dependent" in key[0] else 1e-3]) for key in calls}

    facts = {"cycles": 990.0, "SMs": 100, "peak GB/s": 5000.0, "peak TFLOP/s": 80.0}
    for name, made_up in (("LOG", 10), ("SIDE", 32), ("HOPS", 100), ("facts", lambda *_: facts)):
        monkeypatch.setattr(s, name, made_up)
    monkeypatch.setattr(s, "energy", lambda call, stream, moved, flops: {"W": 2.0, "GB/J": moved / 2e-3 / 1e9})
    monkeypatch.setattr(timing, "yardsticks", lambda *_: timing.Yardsticks(4000.0, 60.0, 1980, ()))
    monkeypatch.setattr(timing, "benchmark", benchmark)
    return s.benchmark()


def test_152_rows(measured_152: list[results.Row]) -> None:
    s, sms = section("1.5.2"), gpu.Device().properties.multiprocessor_count
    most = gpu.Device().properties.max_threads_per_multiprocessor
    assert len({row.key for row in measured_152}) == len(measured_152)
    dialled = [row for row in measured_152 if "bytes in flight" in row.figures]
    assert len(dialled) == 20
    for row in dialled:
        loads = int(row.name.split()[1])
        assert row.figures["bytes in flight"] == row.figures["occupancy"] * most * loads * 16
        law = min(4e12, sms * row.figures["bytes in flight"] / 5e-7)
        assert row.figures["law, GB/s"] == round(law / 1e9) and row.figures["of law"] == pytest.approx(4096e3 / law)
    fewest = next(row for row in dialled if row.figures["occupancy"] == s.BLOCK / most)
    assert fewest.figures["bytes in flight"] == 16 * s.BLOCK
    metrics = {row.name: row for row in measured_152[-4:]}
    assert metrics["saxpy"].bytes == 12 * 1024 and metrics["saxpy"].flops == 2 * 1024
    assert metrics["saxpy"].figures["FLOP/byte"] == pytest.approx(1 / 6)
    assert metrics["matmul"].flops == 2 * 32**3 and metrics["matmul"].figures["G elements/s"] == pytest.approx(1.02e-3)
    assert metrics["copy"].flops is None and metrics["sum"].bytes == 4 * 1024


def test_152_recorded_figures_are_shown_with_gpu_and_date(
    measured_152: list[results.Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recorded_as(measured_152, tmp_path, monkeypatch)
    printed = output_of("1.5.2", "--size", "100", "--plot", "--no-bench", capfd=capfd)
    assert "recorded on NVIDIA Test, 2031-02-03, not measured here" in printed
    assert re.search(r"GB/s +5000 +4000 +device copy +80\.0%", printed)
    assert re.search(r"TFLOP/s +80 +60 +FMA in registers +75\.0%", printed)
    # 500 ns × 4000 GB/s = 2 MB, on each of 100 SMs 20 kB
    assert "500 ns (990 cycles) × 4000 GB/s = 2.00 MB in flight" in printed
    assert "on each of 100 SMs 20.0 kB, or 1250 loads of 16 bytes" in printed
    assert len(re.findall(r"^ *sum, [1248] × 16 B a thread ", printed, flags=re.MULTILINE)) == 20
    assert re.search(r"^ *saxpy +2\^10 ", printed, flags=re.MULTILINE) and "1.00 ms" in printed
    assert "GB/J" in printed and "not run" not in printed
    assert len(plots(printed)) == 2


def test_152_without_energy(
    measured_152: list[results.Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for row in measured_152[-4:]:
        del row.figures["W"], row.figures["GB/J"]
    recorded_as(measured_152, tmp_path, monkeypatch)
    printed = output_of("1.5.2", "--size", "1", "--no-bench", capfd=capfd)
    assert len(re.findall(r"^not run: energy: NVML", printed, flags=re.MULTILINE)) == 1 and "GB/J" not in printed


def test_152_nvml_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it raises
    _, stream = gpu.open_device()
    assert section("1.5.2").energy(None, stream, 1, 1) == {}


def test_152_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a counter that says 10 mJ for each launch: 100 bytes and 5 FLOP for 0.01 J."""
    s, (_, stream), launches = section("1.5.2"), gpu.open_device(), []
    nvml = SimpleNamespace(nvmlInit=lambda: None, nvmlDeviceGetHandleByPciBusId=lambda bus: bus)
    nvml.nvmlDeviceGetTotalEnergyConsumption = lambda handle: 1000 + 10 * len(launches)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(s, "start", lambda call, stream: launches.append(call))
    monkeypatch.setattr(s, "SECONDS", 0.01)
    found = s.energy("call", stream, 100, 5)
    assert found["GB/J"] == pytest.approx(1e-5) and found["GFLOP/J"] == pytest.approx(5e-7)
    assert 0 < found["W"] <= 0.01 * len(launches) / 0.01


def test_152_without_recorded_figures(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(results, "recorded", lambda number: [])
    printed = output_of("1.5.2", "--size", "33", "--plot", "--no-bench", capfd=capfd)
    assert f"not run: {results.NOTHING}" in printed and "./run bench 1" in printed


def test_152_a_wrong_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.5.2")
    monkeypatch.setattr(s, "run", lambda call, run=s.run: run(call) + 1)
    with pytest.raises(Mismatch, match="copy: 132 of 132 elements differ"):
        s.verify(33)


@pytest.mark.parametrize(("size", "message"), [("0", "positive integer"), ("900000M", "are free")])
def test_152_sizes_that_cannot_be(size: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code(section("1.5.2").main, ["--size", size]) == USAGE
    assert message in capfd.readouterr().err


@pytest.mark.gpu
def test_152_a_latency_in_cycles() -> None:
    s, (_, stream) = section("1.5.2"), gpu.open_device()
    cycles = s.facts(gpu.to_device(s.scattered_ring(24), stream), stream)["cycles"]
    assert 150 < cycles < 3000  # from L2 at its fastest to a slow memory


# --- 1.5.3 ----------------------------------------------------------------------------------------------------


def test_153_reference_by_hand() -> None:
    """A step of 60 is blurred to 0 0 15 45 60 60; 4 × the differences are 0 60 180 180 60 0, and 128 the threshold."""
    s, image = section("1.5.3"), np.zeros((2, 5, 6), np.uint8)
    image[0, :, 3:] = 60
    image[1, 2:] = 60  # the same downwards, in five rows
    out = s.reference(image)
    assert out.dtype == np.uint8
    np.testing.assert_array_equal(out[0], [[0, 0, 255, 255, 0, 0]] * 5)
    np.testing.assert_array_equal(out[1], [[255 * (row in (1, 2))] * 6 for row in range(5)])


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 31), (1, 33, 1), (3, 8, 32), (2, 9, 33), (5, 67, 129)])
def test_153_every_variant(shape: tuple[int, int, int]) -> None:
    s = section("1.5.3")
    images = np.random.default_rng(sum(shape)).integers(0, 256, shape, dtype=np.uint8)
    before, expected = images.copy(), s.reference(images)
    assert images.size < 2000 or 0.1 < np.mean(expected == 255) < 0.9
    for name in s.VARIANTS:
        edges, _ = s.run(images, name)
        np.testing.assert_array_equal(edges, expected, err_msg=name)
    np.testing.assert_array_equal(images, before)


def test_153_bad_input() -> None:
    s = section("1.5.3")
    for images in (np.zeros((2, 3, 4)), np.zeros((3, 4), np.uint8), np.zeros((2, 0, 4), np.uint8), [[[0.0]]]):
        with pytest.raises(ValueError, match=f"expected uint8 images .*got {np.asarray(images).dtype}"):
            s.EdgeJob(images)
    for streams in (0, -1):
        with pytest.raises(ValueError, match=rf"at least one stream, got uint8 \(1, 2, 3\) and {streams}"):
            s.EdgeJob(np.zeros((1, 2, 3), np.uint8), streams)
    with pytest.raises(ValueError, match="the timeline is empty"):
        s.busy_and_gaps([])


def test_153_strided_images() -> None:
    s, images = section("1.5.3"), section("1.5.3").random_images(4, 40)[::2, ::-1, ::3]
    edges, _ = s.run(images, s.AFTER)
    np.testing.assert_array_equal(edges, s.reference(images))


@pytest.mark.simulator
def test_153_logical_time() -> None:
    s, steps = section("1.5.3"), ("copy in", "blur", "gradient", "threshold", "copy out")
    images = np.zeros((3, 4, 4), np.uint8)
    lanes = "stream 0", "stream 1", "stream 0"
    _, spans = s.run(images, s.BEFORE)  # one step at a time
    expected = [(5 * i + k, 5 * i + k + 1, lane, step) for i, lane in enumerate(lanes) for k, step in enumerate(steps)]
    assert spans == expected
    _, spans = s.run(images, s.AFTER)  # the second image beside the first, the third one behind it
    starts = 0, 0, 5
    parts = zip(starts, lanes, strict=True)
    assert spans == sorted((at + k, at + k + 1, lane, step) for at, lane in parts for k, step in enumerate(steps))


def test_153_busy_and_gaps_by_hand() -> None:
    s = section("1.5.3")
    bars = [(0, 4, "one", "copy"), (4, 6, "one", "blur"), (9, 10, "one", "copy")]  # 4 to 6 follows at once
    bars += [(2, 8, "two", "blur"), (3, 5, "two", "inner")]  # the second lies within the first
    found = s.busy_and_gaps([s.Span(*bar) for bar in bars])
    assert found["window"] == 10 and found["idle"] == 0.1  # from 8 to 9
    assert found["lanes"] == {"one": (7, [3]), "two": (6, [])} and found["overlap"] == 0.4  # from 2 to 6
    assert [(name, sorted(taken)) for name, taken in found["top"].items()] == [
        ("blur", [2, 6]), ("copy", [1, 4]), ("inner", [2]),
    ]  # fmt: skip


def test_153_a_trace_is_what_perfetto_expects(tmp_path: Path) -> None:
    s, path = section("1.5.3"), tmp_path / "trace.json"
    spans = [s.Span(2.5, 3.0, "b", "späť"), s.Span(0.0, 2.0, "a", "first"), s.Span(1.0, 4.0, "b", "long")]
    s.write_trace(spans, path, "a process")
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    named = {e["name"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    assert named == {"process_name": "a process"}
    bars = [e for e in events if e["ph"] == "X"]
    assert [(e["ts"], e["dur"], e["name"]) for e in bars] == [(0, 2, "first"), (1, 3, "long"), (2.5, 0.5, "späť")]
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert [threads[e["tid"]] for e in bars] == ["a", "b", "b"] and {e["pid"] for e in events} == {0}
    assert s.load_trace(path) == sorted(spans)
    with pytest.raises(ValueError, match="JSON compliant"):
        s.write_trace([s.Span(0.0, float("nan"), "a", "b")], path, "")


def test_153_load_trace_of_another_program(tmp_path: Path) -> None:
    s, path = section("1.5.3"), tmp_path / "trace.json"
    bar = {"ph": "X", "pid": 0, "tid": 7, "dur": 2, "args": {}}
    events = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7 "}},
        {"ph": "M", "name": "thread_name", "pid": 99, "tid": 7, "args": {"name": "a thread of the host"}},
        {**bar, "name": "second", "cat": "kernel", "ts": 20},
        {**bar, "name": "first", "cat": "gpu_memcpy", "ts": 10, "tid": 8},
        {**bar, "name": "operator", "cat": "cpu_op", "ts": 5, "pid": 99},
        {**bar, "name": "no category", "ts": 5},
        {"ph": "i", "name": "a mark", "cat": "kernel", "ts": 1, "pid": 0, "tid": 7},
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    assert s.load_trace(path) == [(10, 12, "8", "first"), (20, 22, "stream 7", "second")]
    assert s.load_trace(path, ("cpu_op",)) == [(5, 7, "a thread of the host", "operator")]


def test_153_torch_is_profiled(tmp_path: Path) -> None:
    s, path, jobs = section("1.5.3"), tmp_path / "torch.json", []
    s.profile_torch(path, lambda: jobs.append(1))
    for name in ("aten::linear", "aten::addmm"):  # two layers, three steps
        operators = [span for span in s.load_trace(path, ("cpu_op",)) if span.name == name]
        assert len(operators) == 6 and all(span.end > span.begin for span in operators)
    assert bool(s.load_trace(path)) is not gpu.SIMULATED and bool(jobs) is not gpu.SIMULATED


def test_153_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    s, random_images = section("1.5.3"), section("1.5.3").random_images
    monkeypatch.setattr(s, "random_images", lambda frames, side: random_images(min(frames, 4), min(side, 20)))
    monkeypatch.setattr(timing, "yardsticks", lambda *_: timing.Yardsticks(4000.0, 60.0, 1980, ()))
    rows = {row.name: row for row in s.benchmark()}
    assert list(rows) == list(s.VARIANTS) and {row.size for row in rows.values()} == {"4x20x25"}
    before = rows[s.BEFORE]
    for row in rows.values():
        assert row.peer == s.BEFORE and row.of_peer == pytest.approx(before.seconds / row.seconds)
        assert row.figures["GB/s each way"] == pytest.approx(2000 / row.seconds / 1e9)
        assert 0 <= row.figures["idle"] < 1 and 0 <= row.figures["overlap"] <= 1
    if gpu.SIMULATED:
        overlaps = {name: row.figures["overlap"] for name, row in rows.items()}
        assert overlaps == {s.BEFORE: 0, "pinned, waits": 0, "pinned, 1 stream": 0, s.AFTER: 1}


def test_153_what_it_prints(capfd: pytest.CaptureFixture[str]) -> None:
    printed = output_of("1.5.3", "--size", "33", "--plot", "--no-bench", capfd=capfd)
    for tool in ("Nsight Systems", "Nsight Compute", "torch.profiler", "Perfetto"):
        assert tool in printed
    for name in section("1.5.3").VARIANTS:
        assert re.search(rf"^ {name} +3762 +0 ", printed, flags=re.MULTILINE)
    if gpu.SIMULATED:
        assert "pageable, waits: 20 ticks, idle 0%, overlap 0%" in printed
        assert "pinned, 2 streams: 10 ticks, idle 0%, overlap 100%" in printed
        assert re.search(r"^ stream 1 +10 +50% +1 +5", printed, flags=re.MULTILINE)
        assert re.search(r"^ aten::addmm +6 ", printed, flags=re.MULTILINE)  # on a GPU: the kernels behind it
    (folder,) = re.findall(r"^traces, for .*: (.*)/\*\.json$", printed, flags=re.MULTILINE)
    assert {path.name for path in Path(folder).iterdir()} == {
        "pageable_waits.json", "pinned_2_streams.json", "torch.json",
    }  # fmt: skip
    assert len(plots(printed)) == 1


def test_153_a_wrong_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.5.3")
    monkeypatch.setattr(s, "run", lambda images, name, run=s.run: (255 - run(images, name)[0], []))
    with pytest.raises(Mismatch, match="pageable, waits: 798 of 798 elements differ"):
        s.verify(14)


@pytest.mark.gpu
def test_153_the_timeline_shows_problem_and_cure() -> None:
    s = section("1.5.3")
    images = s.random_images(8, 2048)
    before, after = (s.busy_and_gaps(s.run(images, name)[1]) for name in (s.BEFORE, s.AFTER))
    assert before["overlap"] == 0 and after["overlap"] > 0.3
    assert after["window"] < 0.6 * before["window"]


# --- on a GPU -------------------------------------------------------------------------------------------------


def outputs(number: str) -> list[np.ndarray]:
    """What the kernels of a section make of fixed inputs."""
    s = section(number)
    if number == "1.5.3":
        return [s.run(s.random_images(3, 67), name)[0] for name in s.VARIANTS]
    if number == "1.5.1":
        return [s.run(job) for jobs in s.jobs_for(4099) for job in jobs]
    x, y = vectors(4 * 1001)
    a, b = vectors(70 * 70).reshape(2, 70, 70)
    sums, last = np.zeros(3 * s.BLOCK, np.float32), np.zeros(1, np.int32)
    calls = [s.vectors("copy", x, y), s.vectors("saxpy", x, y, s.A), s.matmul(a, b, np.zeros_like(a))]
    calls += [s.partial_sums(x, sums, loads) for loads in s.LOADS]
    return [s.run(call) for call in (*calls, s.chase(s.scattered_ring(12), last))]


@pytest.mark.gpu
@pytest.mark.parametrize("number", ["1.5.1", "1.5.2", "1.5.3"])
def test_gpu_and_simulator_agree(number: str, tmp_path: Path) -> None:
    assert_both_agree(outputs(number), on_the_simulator(__name__, number, tmp_path))
