"""Section 1.5.4, hardware counters: its kernels against NumPy; by hand, simulator and ncu against each other."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common import gpu, ncu, results, timing
from common.cli import Unavailable
from common.simt.counters import METRICS
from common.simt.races import watching
from common.verify import Mismatch
from tests.chapter import assert_both_agree, on_the_simulator, output_of, recorded_as, section

NAMES = [pattern.name for pattern in section("1.5.4").PATTERNS]
TRANSPOSES = [name for name in NAMES if name.startswith("transpose")]
simulated = pytest.mark.simulator


def pattern(name: str) -> Any:
    """The pattern of that name."""
    (found,) = (pattern for pattern in section("1.5.4").PATTERNS if pattern.name == name)
    return found


# --- the kernels ----------------------------------------------------------------------------------------------


def test_154_references_by_hand() -> None:
    s, values = section("1.5.4"), np.arange(1024, dtype=np.float32).reshape(32, 32)
    flat = {name: s.reference(pattern(name), values).ravel() for name in NAMES}
    np.testing.assert_array_equal(flat["copy"], np.arange(1024))
    np.testing.assert_array_equal(flat["copy float4"], np.arange(1024))
    np.testing.assert_array_equal(flat["copy, 1 float later"], [*range(1, 1024), 1023])
    assert list(flat["copy, every 2nd"][[0, 1, 511, 512, 1023]]) == [0, 2, 1022, 0, 1022]
    assert list(flat["copy, every 32nd"][[1, 31, 32, 33]]) == [32, 992, 0, 32]
    for name in TRANSPOSES:
        assert list(flat[name][[0, 1, 31, 32, 33]]) == [0, 32, 992, 1, 33]
    assert list(flat["shared, every 2nd word"][[1, 255, 256, 257]]) == [2, 510, 0, 2]
    assert list(flat["shared, every 32nd word"][[1, 31, 32, 33]]) == [32, 992, 0, 32]
    assert list(flat["shared, every 33rd word"][[1, 31, 32, 255]]) == [33, 1023, 32, 255 * 33 % 1024]


@pytest.mark.parametrize("side", [32, 64, 128])
@pytest.mark.parametrize("name", NAMES)
def test_154_every_pattern(name: str, side: int) -> None:
    s = section("1.5.4")
    values = s.random_values(side)
    before, out = values.copy(), s.run(pattern(name), values)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, s.reference(pattern(name), before))
    np.testing.assert_array_equal(values, before)


def launched(kernel: str, n: int, k: int, grid: tuple[int, ...], block: tuple[int, ...], size: int) -> np.ndarray:
    """What a kernel makes of 1, 2, ..., `size` in a buffer that was full of -1: sizes that no pattern has."""
    _, stream = gpu.open_device()
    d_in = gpu.to_device(np.arange(1, size + 1, dtype=np.float32), stream)
    d_out = gpu.to_device(np.full(size, -1, np.float32), stream)
    config = gpu.LaunchConfig(grid=grid, block=block)
    made = section("1.5.4").compiled().get_kernel(kernel)
    gpu.launch(stream, config, made, d_in.buffer, d_out.buffer, np.int32(n), np.int32(k))
    return d_out.to_host(stream)


@pytest.mark.parametrize("n", [1, 31, 32, 33, 255, 256, 257, 1000])
def test_154_ragged_vectors(n: int) -> None:
    """Nothing behind the n-th element is read or written."""
    values, blocks = np.arange(1, n + 1), (-(-n // 256),)
    np.testing.assert_array_equal(launched("copy", n, 0, blocks, (256,), n + 5), [*values, *[-1] * 5])
    later = [*values[3:], *[n] * min(3, n)]
    np.testing.assert_array_equal(launched("copy_offset", n, 3, blocks, (256,), n + 5), [*later, *[-1] * 5])
    quads = n // 4 * 4  # what does not fill a float4 is left alone
    np.testing.assert_array_equal(launched("copy_float4", n, 0, blocks, (256,), n + 5)[:quads], values[:quads])
    assert set(launched("copy_float4", n, 0, blocks, (256,), n + 5)[quads:]) == {-1}
    shared = launched("shared_strided", n, 5, blocks, (256,), 1024 + n)
    np.testing.assert_array_equal(shared[:n], 1 + np.arange(n) % 256 * 5 % 1024)
    assert set(shared[n:]) == {-1}


@pytest.mark.parametrize("n", [1, 2, 32, 512])
def test_154_strided_powers_of_two(n: int) -> None:
    out = launched("copy_strided", n, 3, (2,), (256,), 520)
    np.testing.assert_array_equal(out[:n], 1 + np.arange(n) * 3 % n)
    assert set(out[n:]) == {-1}


@pytest.mark.parametrize("side", [1, 31, 33, 70])
@pytest.mark.parametrize("name", TRANSPOSES)
def test_154_ragged_transposes(name: str, side: int) -> None:
    s, blocks, n = section("1.5.4"), -(-side // 32), side * side
    out = launched(pattern(name).kernel, n, side, (blocks, blocks), s.shape_of(pattern(name), 32)[1], n + 40)
    np.testing.assert_array_equal(out[:n].reshape(side, side), np.arange(1, n + 1).reshape(side, side).T)
    assert set(out[n:]) == {-1}


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((32, 32)),
        np.zeros((32, 64), "f4"),
        np.zeros((16, 16), "f4"),
        np.zeros((96, 96), "f4"),
        np.zeros(32, "f4"),
    ],
    ids=lambda values: f"{values.dtype}{values.shape}",
)
def test_154_bad_input(values: np.ndarray) -> None:
    with pytest.raises(ValueError, match=re.escape(f"got {values.dtype} {values.shape}")):
        section("1.5.4").run(pattern("copy"), values)


def test_154_a_wrong_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.5.4")
    monkeypatch.setattr(s, "run", lambda pattern, values, run=s.run: np.roll(run(pattern, values), 1))
    with pytest.raises(Mismatch, match="copy: 1024 of 1024 elements differ"):
        s.verify(32)


@simulated
def test_154_no_race() -> None:
    s = section("1.5.4")
    with watching() as races:
        for p in s.PATTERNS:
            s.run(p, s.random_values(64))
    assert races == []


# --- what they cost, by hand ----------------------------------------------------------------------------------

LANE = np.arange(32)


def test_154_rules_by_hand() -> None:
    s = section("1.5.4")
    warps = np.stack([LANE, LANE + 1, 2 * LANE, 8 * LANE, 0 * LANE, LANE // 8 * 8])
    assert [s.global_memory(warp[None])[1] for warp in warps] == [4, 5, 8, 32, 1, 4]
    assert s.global_memory(warps) == (6, 54)
    assert s.global_memory(LANE[None], 16) == (1, 16)
    words = np.stack([LANE, 2 * LANE, 32 * LANE, 33 * LANE, 0 * LANE, 16 * LANE, LANE % 2 * 32])
    assert [s.wavefronts(warp[None]) for warp in words] == [1, 2, 32, 1, 1, 16, 2]
    assert s.wavefronts(words) == 55
    assert s.wavefronts(words[:0]) == 0


COST_OF_1024 = {  # load and store requests and sectors, shared load and store wavefronts
    "copy": (32_768, 131_072, 32_768, 131_072, 0, 0),  # 2^20 / 32 requests, 4 sectors each
    "copy float4": (8192, 131_072, 8192, 131_072, 0, 0),  # 16 sectors each
    "copy, 1 float later": (32_768, 163_839, 32_768, 131_072, 0, 0),  # 5 each, but for the last warp: 4
    "copy, every 2nd": (32_768, 262_144, 32_768, 131_072, 0, 0),  # 8 each
    "copy, every 8th": (32_768, 1_048_576, 32_768, 131_072, 0, 0),  # one for each lane
    "copy, every 32nd": (32_768, 1_048_576, 32_768, 131_072, 0, 0),
    "transpose naive": (32_768, 131_072, 32_768, 1_048_576, 0, 0),  # each lane writes to a row of its own
    "transpose tiled": (32_768, 131_072, 32_768, 131_072, 1_048_576, 32_768),  # a column of the tile is one bank
    "transpose padded": (32_768, 131_072, 32_768, 131_072, 32_768, 32_768),
    "transpose 4 rows": (32_768, 131_072, 32_768, 131_072, 32_768, 32_768),
    "shared, every 2nd word": (131_072, 524_288, 32_768, 131_072, 65_536, 131_072),  # 4096 blocks load 32 × 32 words
    "shared, every 32nd word": (131_072, 524_288, 32_768, 131_072, 1_048_576, 131_072),
    "shared, every 33rd word": (131_072, 524_288, 32_768, 131_072, 32_768, 131_072),
}


@pytest.mark.parametrize("name", NAMES)
def test_154_by_hand(name: str) -> None:
    s = section("1.5.4")
    assert s.by_hand(pattern(name), 1024) == dict(zip(s.COUNTERS, COST_OF_1024[name], strict=True))


def as_counted(side: int) -> list[dict[str, int]]:
    """What by_hand says, as if it had been counted."""
    return [section("1.5.4").by_hand(p, side) for p in section("1.5.4").PATTERNS]


@simulated
@pytest.mark.parametrize("side", [32, 64, 128, 256])
def test_154_the_simulator_counts_what_is_worked_out(side: int) -> None:
    assert section("1.5.4").by_simulator(side) == as_counted(side)


def test_154_compare(capsys: pytest.CaptureFixture[str]) -> None:
    s = section("1.5.4")
    s.compare(64, as_counted(64), "us")
    printed = capsys.readouterr().out
    assert "64 × 64 floats, counted by us" in printed and printed.count("≠") == 1  # in the title
    assert re.search(r"transpose naive +128 +512 \(4 each\) +128 +4,096 \(32 each\) +0 +0 ", printed)
    assert re.search(r"transpose tiled +128 +512 \(4 each\) +128 +512 \(4 each\) +4,096 +128 ", printed)


@pytest.mark.parametrize("counter", range(6))
def test_154_a_count_that_differs_is_noticed(counter: int, capsys: pytest.CaptureFixture[str]) -> None:
    s, counted = section("1.5.4"), as_counted(64)
    name = s.COUNTERS[counter]
    counted[7][name] += 1
    with pytest.raises(Mismatch, match=f"^transpose tiled: {name} is [0-9,]+, by hand [0-9,]+$"):
        s.compare(64, counted, "us")
    assert capsys.readouterr().out.count("≠") == 2
    counted[0] = dict.fromkeys(s.COUNTERS, 0)
    with pytest.raises(Mismatch, match=r"copy: global_load_requests is 0, by hand 128\n"):
        s.compare(64, counted, "us")


# --- counted by ncu -------------------------------------------------------------------------------------------


def test_154_by_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    s, jobs = section("1.5.4"), []

    def profile(program: list[str], metrics: list[str], stdin: str) -> list[ncu.Launch]:
        jobs.append(json.loads(stdin))
        assert program == [sys.executable, "-c", s.PROGRAM]
        assert metrics == [METRICS[name] for name in s.COUNTERS]
        counted = as_counted(64)
        return [
            ncu.Launch(job[0], {METRICS[name]: float(number) for name, number in found.items()})
            for job, found in zip(jobs[-1]["launches"], counted, strict=True)
        ]

    monkeypatch.setattr(ncu, "profile", profile)
    found = s.by_hardware(64)
    assert found == as_counted(64) and all(type(number) is int for row in found for number in row.values())
    (job,) = jobs
    assert (
        job["source"] == s.KERNEL and job["names"] == [s.TILED, s.PADDED, s.FOUR_ROWS] and job["bytes"] == 4 * 64 * 64
    )
    assert job["launches"][1] == ["copy_float4", [4], [256], 4096, 0]
    assert job["launches"][5] == ["copy_strided", [16], [256], 4096, 32]
    assert job["launches"][8] == [s.PADDED, [2, 2], [32, 32], 4096, 64]
    assert job["launches"][9] == [s.FOUR_ROWS, [2, 2], [32, 8], 4096, 64]
    compile(s.PROGRAM, "PROGRAM", "exec")


def test_154_a_tool_that_counts_as_ncu_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a tool's CSV to the counters: two runs, for the shared memory's metrics patch the code."""
    s, path = section("1.5.4"), tmp_path / "ncu"
    counted = [{METRICS[name]: f"{number:,}" for name, number in row.items()} for row in as_counted(64)]
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        f"counted = {counted!r}\n"
        "option = dict(zip(sys.argv, sys.argv[1:]))\n"
        "kernels = [launch[0] for launch in json.load(sys.stdin)['launches']]\n"
        "metrics = option['--metrics'].split(',')\n"
        "rows = [['ID', 'Kernel Name', *metrics], ['', '', *metrics]]\n"
        "rows += [[n, k + '(int)', *(row[m] for m in metrics)] for n, (k, row) in enumerate(zip(kernels, counted))]\n"
        "with open(option['--log-file'], 'w') as log:\n"
        "    for row in rows: print(*(f'\"{cell}\"' for cell in row), sep=',', file=log)\n"
    )
    path.chmod(0o755)
    monkeypatch.setattr(ncu, "find_tool", lambda name: str(path))
    assert s.by_hardware(64) == as_counted(64)


@pytest.mark.gpu
def test_154_the_hardware_counts_what_is_worked_out() -> None:
    try:
        assert section("1.5.4").by_hardware(256) == as_counted(256)
    except Unavailable as missing:
        pytest.skip(str(missing))


# --- what it prints -------------------------------------------------------------------------------------------


def benchmark(monkeypatch: pytest.MonkeyPatch, counted: Any) -> list[results.Row]:
    """What benchmark() gives with little memory, if each pattern takes 1 ms, but the padded transpose 0.5 ms."""
    s = section("1.5.4")

    def measure(calls: dict[str, Any], stream: Any) -> dict[str, timing.Timing]:
        for call in calls.values():
            call(stream)
        return {name: timing.Timing.of([5e-4 if name == "transpose padded" else 1e-3]) for name in calls}

    monkeypatch.setattr(s, "by_hardware", counted)
    monkeypatch.setattr(gpu, "free_memory", lambda: 4 * 8 * 256 * 256)
    monkeypatch.setattr(timing, "yardsticks", lambda *_: timing.Yardsticks(4000.0, 60.0, 1980, ()))
    monkeypatch.setattr(timing, "benchmark", measure)
    return s.benchmark()


def test_154_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row.name: row for row in benchmark(monkeypatch, as_counted)}
    assert list(rows) == NAMES and {row.size for row in rows.values()} == {"256x256"}
    assert rows["transpose naive"].figures == {
        "load sectors/request": 4,
        "store sectors/request": 32,
        "load wavefronts, 1024²": 0,
        "store wavefronts, 1024²": 0,
    }
    assert rows["transpose tiled"].figures["load wavefronts, 1024²"] == 1_048_576
    assert Counter(row.bytes for row in rows.values()) == {8 * 65_536: 10, 4 * 65_536: 3}
    assert rows["copy"].of_copy == pytest.approx(8 * 65_536 / 1e-3 / 4e12)
    # each beside a better pattern; the best ones beside none
    compared = {name: (row.peer, row.of_peer) for name, row in rows.items()}
    assert compared["transpose naive"] == compared["transpose tiled"] == ("transpose padded", 0.5)
    assert compared["transpose padded"] == ("transpose 4 rows", 2)
    assert compared["copy, every 8th"] == ("copy", 1) and compared["copy"] == ("copy float4", 1)
    best = [name for name, (peer, _) in compared.items() if peer is None]
    assert best == ["copy float4", "transpose 4 rows", "shared, every 33rd word"]


def test_154_rows_without_ncu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(side: int) -> None:
        raise Unavailable("ncu", "a command")

    rows = benchmark(monkeypatch, missing)
    assert [row.name for row in rows] == NAMES and {row.figures for row in rows} == {None}
    assert "not run: ncu (install: a command)" in capsys.readouterr().out


@simulated
def test_154_recorded_figures_are_shown_with_gpu_and_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recorded_as(benchmark(monkeypatch, as_counted), tmp_path, monkeypatch)
    monkeypatch.setattr(timing, "yardsticks", None)  # nothing of this machine may be needed
    printed = output_of("1.5.4", "--quick", capfd=capfd)
    assert "256 × 256 floats, counted by the simulator" in printed
    assert "not run: ncu: hardware counters need a GPU" in printed
    assert "recorded on NVIDIA Test, 2031-02-03, not measured here" in printed
    assert re.search(r"transpose tiled +1\.00 ms .* 4 +4 +1,048,576 +32,768 ", printed)


def test_154_without_recorded_figures(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(results, "recorded", lambda number: [])
    printed = output_of("1.5.4", "--quick", "--no-bench", capfd=capfd)
    assert f"not run: {results.NOTHING}" in printed and "./run bench 1" in printed


def test_154_without_ncu(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """On a GPU without the tool the kernels are checked, and one line says what is missing."""
    monkeypatch.setattr(ncu, "find_tool", lambda name: None)
    monkeypatch.setattr(gpu, "SIMULATED", False)
    printed = output_of("1.5.4", "--quick", "--no-bench", capfd=capfd)
    assert re.search(r"transpose padded +65536 +0 +0 +exact", printed)
    assert re.search(r"not run: ncu, .* \(install: apt", printed) and "counted by" not in printed


# --- on a GPU -------------------------------------------------------------------------------------------------


def outputs(number: str) -> list[np.ndarray]:
    """What the kernels make of fixed inputs."""
    s = section(number)
    return [s.run(p, s.random_values(64)) for p in s.PATTERNS]


@pytest.mark.gpu
def test_gpu_and_simulator_agree(tmp_path: Path) -> None:
    assert_both_agree(outputs("1.5.4"), on_the_simulator(__name__, "1.5.4", tmp_path))
