"""Sections 1.4.1, 1.4.3 and 1.4.4, threads and scheduling: each kernel against NumPy, on whatever device is there."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from common import gpu, results
from common.verify import Mismatch
from tests.chapter import (
    SIZES,
    assert_both_agree,
    bad_vectors,
    on_the_simulator,
    output_of,
    plots,
    recorded_as,
    section,
)

# --- 1.4.1 ----------------------------------------------------------------------------------------------------


H200 = SimpleNamespace(
    max_blocks_per_multiprocessor=32,
    max_threads_per_multiprocessor=2048,
    max_registers_per_multiprocessor=65536,
    max_shared_memory_per_multiprocessor=228 << 10,
    reserved_shared_memory_per_block=1024,
)


def test_141_reference_by_hand() -> None:
    s = section("1.4.1")
    state = np.array([0, 1, 2**32 - 1], np.uint32)
    np.testing.assert_array_equal(s.reference(state, 1, 0), state)
    np.testing.assert_array_equal(s.reference(state, 1, 1), [1013904223, 1015568748, 1012239698])
    np.testing.assert_array_equal(s.reference(state, 3, 0), [3, 6, 0])  # s, s + 1 and s + 2
    # two chains, one step: of 0 and 1
    assert s.reference(state, 2, 1)[0] == 1013904223 + 1015568748
    by_steps = s.reference(s.reference(state, 1, 2), 1, 3)
    np.testing.assert_array_equal(s.reference(state, 1, 5), by_steps)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "expected"),
    [
        (32, 10, 0, (32, 64, 128, 228)),
        (1024, 32, 0, (32, 2, 2, 228)),
        (96, 33, 0, (32, 21, 16, 228)),  # 1056 registers become 1280 for a warp: 12 warps in each quarter
        (256, 74, 0, (32, 8, 3, 228)),
        (33, 255, 0, (32, 32, 4, 228)),  # 2 warps a block; 8160 registers become 8192: 2 warps in each quarter
        (128, 10, 100 << 10, (32, 16, 32, 2)),
        (128, 10, 1, (32, 16, 32, 202)),  # 1025 bytes become 1152
    ],
)
def test_141_limits_by_hand(threads: int, registers: int, shared: int, expected: tuple[int, ...]) -> None:
    assert tuple(section("1.4.1").limits(H200, threads, registers, shared).values()) == expected


@pytest.mark.parametrize("case", ["blocks", "threads", "registers", "shared memory"])
def test_141_each_case_is_limited_by_what_it_says(case: str) -> None:
    registers, by_hand, answer = section("1.4.1").resident(case)
    assert 0 < registers <= 255 and by_hand.pop(case) == answer < min(by_hand.values())


@pytest.mark.parametrize("blocks", [1, 2, 31, 33, 100])
@pytest.mark.parametrize("case", ["blocks", "threads", "registers", "shared memory"])
def test_141_every_block_runs_once(case: str, blocks: int) -> None:
    s = section("1.4.1")
    name, threads, _ = s.CASES[case]
    state = s.random_state(blocks * threads)
    before = state.copy()
    out, records = s.run(case, state, 3)
    np.testing.assert_array_equal(out, s.reference(before, s.CHAINS[name], 3))
    np.testing.assert_array_equal(state, before)
    sms = gpu.Device().properties.multiprocessor_count
    assert len(records) == blocks and (records["sm"] < sms).all() and (records["slot"] < 64).all()
    if gpu.SIMULATED:  # which deals blocks out in turn, and has no clock
        np.testing.assert_array_equal(records["sm"], np.arange(blocks) % sms)
        assert not records["slot"].any() and not records["start"].any() and not records["stop"].any()
    else:
        assert (records["start"] < records["stop"]).all()


@pytest.mark.parametrize("rounds", [0, 1, 20])
def test_141_any_number_of_rounds(rounds: int) -> None:
    s = section("1.4.1")
    state = s.random_state(512)
    for case in ("blocks", "registers"):
        chains = s.CHAINS[s.CASES[case][0]]
        np.testing.assert_array_equal(s.run(case, state, rounds)[0], s.reference(state, chains, rounds))


def test_141_most_at_once_by_hand() -> None:
    s = section("1.4.1")
    # on SM 0 three blocks overlap at 4, on SM 1 one ends when the next begins; all at once would be five
    spans = [(0, 0, 5), (0, 2, 9), (0, 4, 6), (0, 9, 10), (1, 0, 4), (1, 4, 8), (1, 8, 9), (1, 3, 5)]
    records = np.array([(sm, 0, start, stop) for sm, start, stop in spans], s.RECORD)
    assert s.most_at_once(records) == 3
    assert s.most_at_once(records[4:]) == 2
    assert s.most_at_once(records[4:7]) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["blocks", "threads", "registers", "shared memory"])
def test_141_as_many_run_at_once_as_predicted(case: str) -> None:
    s, sms = section("1.4.1"), gpu.Device().properties.multiprocessor_count
    name, threads, _ = s.CASES[case]
    answer = s.resident(case)[2]
    _, records = s.run(case, s.random_state(3 * answer * sms * threads), 200_000 // s.CHAINS[name])
    assert s.most_at_once(records) == answer


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (np.zeros(32), r"got float64 \(32,\)"),
        (np.zeros((2, 32), np.uint32), r"got uint32 \(2, 32\)"),
        (np.zeros(0, np.uint32), r"got uint32 \(0,\)"),
    ],
)
def test_141_bad_input(state: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        section("1.4.1").run("blocks", state, 1)


@pytest.mark.parametrize("n", SIZES)
def test_141_a_last_block_that_is_not_full(n: int) -> None:
    s = section("1.4.1")
    for case, (name, threads, _) in s.CASES.items():
        out, records = s.run(case, s.random_state(n), 3)
        np.testing.assert_array_equal(out, s.reference(s.random_state(n), s.CHAINS[name], 3))
        assert len(records) == -(-n // threads)


def test_141_a_wrong_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.4.1")
    monkeypatch.setattr(s, "limits", lambda *_: {"blocks": 31})
    with pytest.raises(Mismatch, match="resident blocks"):
        s.verify(2, 1)
    monkeypatch.setattr(s, "reference", lambda state, chains, rounds: state)
    with pytest.raises(Mismatch, match="each ran once"):
        s.verify(2, 1)


def staircase_rows() -> list[results.Row]:
    """Figures as benchmark() gives them, of a GPU of 10 SMs."""
    rows = []
    for stairs, step, wave in (("latency-bound", 20, 20), ("throughput-bound", 10, 30)):
        for n in (k * step + extra for k in range(4) for extra in (1, step // 2, step)):
            steps, waves = -(-n // step), -(-n // wave)
            numbers = {"waves": waves, "efficiency": n / (waves * wave), "predicted": steps, "measured": 1.01 * steps}
            rows.append(results.Row("1.4.1", stairs, f"{n} blocks", "u32", 50e-6 * steps, 0.0, figures=numbers))
    return rows


def test_141_recorded_figures_are_shown_with_gpu_and_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recorded_as(staircase_rows(), tmp_path, monkeypatch)
    printed = output_of("1.4.1", "--quick", "--plot", "--no-bench", capfd=capfd)
    assert "recorded on NVIDIA Test, 2031-02-03, not measured here" in printed
    predicted = r"\(predicted 2.00×, 1.50×, 1.33×\)"
    assert re.search(rf"latency-bound, .*: 20 → 21 blocks 2.00×, 40 → 41 blocks 1.50×, .*{predicted}", printed)
    assert re.search(rf"throughput-bound, .*: 10 → 11 blocks 2.00×, 20 → 21 blocks 1.50×, .*{predicted}", printed)
    assert re.search(r"^ *21 +100 µs +2 +0.525 +2 +2.02 ", printed, flags=re.MULTILINE)
    assert len(plots(printed)) == (1 if gpu.SIMULATED else 2)


def test_141_without_recorded_figures(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(results, "recorded", lambda number: [])
    printed = output_of("1.4.1", "--quick", "--plot", "--no-bench", capfd=capfd)
    assert f"not run: {results.NOTHING}" in printed and "./run bench 1" in printed
    assert re.search(r"^ *shared memory +128 +\d+ +102400 +32 +16 +32 +2 +2 ", printed, flags=re.MULTILINE)
    assert ("not run: when each block ran" in printed) is gpu.SIMULATED


@pytest.mark.gpu
@pytest.mark.slow
def test_141_the_staircase_is_there() -> None:
    """A block more than fits costs a step; less than a step costs nothing."""
    for row in section("1.4.1").benchmark():
        _, _, predicted, measured = row.figures.values()
        assert abs(measured - predicted) < 0.25, (row.name, row.size, predicted, measured)


# --- 1.4.3 ----------------------------------------------------------------------------------------------------


def bins(n: int) -> np.ndarray:
    """Values for a histogram, many of them equal, and some beside its range."""
    x = np.random.default_rng(n).integers(-9, 300, n).astype(np.int32)
    x[::3] = 200
    x[5::7] = np.iinfo(np.int32).min
    return x


def test_143_references_by_hand() -> None:
    s = section("1.4.3")
    np.testing.assert_array_equal(s.reference_scan(np.array([1, 2, 3, 4, 5], np.int32), 2), [1, 3, 3, 7, 5])
    counts = s.reference_histogram(np.array([0, 255, 256, 7, -1, 7], np.int32))
    assert counts.dtype == np.uint32 and counts[[0, 7, 255]].tolist() == [1, 2, 1] and counts.sum() == 4
    index, value = s.reference_best(np.array([4, 9, 9, 0], np.uint32), np.array([1, 3, 3, 0], np.int32), 5)
    assert index.tolist() == [3, 0, -1, 1, -1] and value.tolist() == [0, 4, 0, 9, 0]
    x = np.array([8, 0, 4, 20], np.int32)
    np.testing.assert_array_equal(s.reference_smooth(x, 1), [8, 3, 7, 20])
    np.testing.assert_array_equal(s.reference_smooth(x, 2), [8, 5, 9, 20])  # (8 + 6 + 7) / 4 and (3 + 14 + 20) / 4
    np.testing.assert_array_equal(s.reference_smooth(x[:1], 3), [8])


@pytest.mark.parametrize("n", [*SIZES[:-1], 3001])
def test_143_barriers(n: int) -> None:
    s = section("1.4.3")
    x = np.random.default_rng(n).integers(-(2**31), 2**31, n).astype(np.int32)  # sums wrap around
    for name, width in (("block_scan", 256), ("warp_scan", 32)):
        np.testing.assert_array_equal(s.run(s.by_block, x, name), s.reference_scan(x, width), err_msg=name)
    x[::5] = 0
    counts = [np.count_nonzero(x[i : i + 256] > 0) for i in range(0, n, 256)]
    np.testing.assert_array_equal(s.run(s.by_block, x, "block_count"), counts)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", ["global", "aggregated", "shared", "vectorized", "private", "locked"])
def test_143_histogram(kind: str, n: int) -> None:
    s, x = section("1.4.3"), bins(n)[: 1000 if kind == "locked" else n]
    counts = s.run(s.histogram, x, kind)
    assert counts.dtype == np.uint32
    np.testing.assert_array_equal(counts, s.reference_histogram(x))


@pytest.mark.parametrize("offset", range(5))
@pytest.mark.parametrize("name", ["histogram_shared", "histogram_vectorized"])
def test_143_any_alignment_and_grid(name: str, offset: int) -> None:
    s, (_, stream) = section("1.4.3"), gpu.open_device()
    x = bins(3009)
    d_x = gpu.to_device(x, stream)
    for n, blocks, threads in ((1, 1, 32), (3001, 1, 64), (3001, 3, 256), (2999, 7, 96), (777, 5, 256)):
        counts = gpu.zeros(256, np.uint32, stream)
        config, at = gpu.LaunchConfig(grid=blocks, block=threads), np.uint64(int(d_x.buffer.handle) + 4 * offset)
        gpu.launch(stream, config, s.get_kernel(name), at, counts.buffer, np.int64(n))
        expected = s.reference_histogram(x[offset : offset + n])
        np.testing.assert_array_equal(counts.to_host(stream), expected, err_msg=f"{n} by {blocks} × {threads}")


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 31), (8, 32), (9, 33), (33, 100), (256, 7)])
def test_143_sum_rows(rows: int, columns: int) -> None:
    s, (_, stream) = section("1.4.3"), gpu.open_device()
    x = np.random.default_rng(rows).integers(0, 2**32, (rows, columns), dtype=np.uint32)
    d_x, sums = gpu.to_device(x, stream), gpu.empty(rows, np.uint32, stream)
    config = gpu.LaunchConfig(grid=-(-rows // 8), block=256)
    gpu.launch(stream, config, s.get_kernel("sum_rows"), d_x.buffer, sums.buffer, np.int32(rows), np.int32(columns))
    np.testing.assert_array_equal(sums.to_host(stream), x.sum(axis=1, dtype=np.uint32))


@pytest.mark.simulator
def test_143_every_barrier_is_there() -> None:
    from common.simt.races import watching

    s, x = section("1.4.3"), bins(1500)
    with watching() as races:
        for name in ("block_scan", "warp_scan"):
            s.run(s.by_block, x, name)
        for kind in ("shared", "vectorized", "private"):
            s.run(s.histogram, x, kind)
    assert not races, races[0]


@pytest.mark.parametrize("data", ["uniform", "skewed"])
def test_143_the_race_loses_updates(data: str) -> None:
    s = section("1.4.3")
    x = s.random_bins(100_003, data)
    counts, right = s.run(s.histogram, x, "race"), s.reference_histogram(x)
    assert (counts <= right).all() and counts.sum() < right.sum()
    assert ((counts > 0) == (right > 0)).all()  # a value that occurs is counted at least once
    lone = np.arange(200, dtype=np.int32)  # where nobody else writes, nothing is lost
    np.testing.assert_array_equal(s.run(s.histogram, lone, "race"), s.reference_histogram(lone))


@pytest.mark.parametrize("n", [1, 31, 33, 300])
@pytest.mark.parametrize("name", ["best_lock", "best_look_first", "best_atomic"])
def test_143_best(name: str, n: int) -> None:
    s, rng = section("1.4.3"), np.random.default_rng(n)
    for value, bucket in (
        (rng.integers(0, 2**32, n, dtype=np.uint32), rng.integers(0, 256, n)),
        (rng.integers(0, 4, n, dtype=np.uint32), rng.integers(-3, 20, n)),  # equal values, buckets that are not there
        (np.full(n, 2**32 - 1, np.uint32)[:40], np.full(n, 255)[:40]),
        (np.zeros(n, np.uint32)[:40], np.zeros(n)[:40]),
        (np.arange(n, dtype=np.uint32), np.arange(n) % 3 * 100),  # each better than those before it
    ):
        bucket = bucket.astype(np.int32)
        found = s.unpacked(s.run(s.best, value, bucket, name))
        for part, expected in zip(found, s.reference_best(value, bucket, 256), strict=True):
            assert part.dtype == expected.dtype
            np.testing.assert_array_equal(part, expected)


def test_143_locks_are_free_afterwards() -> None:
    s = section("1.4.3")
    value, bucket = np.arange(100, dtype=np.uint32), (np.arange(100) % 5).astype(np.int32)
    for name in ("best_lock", "best_look_first"):
        found = s.run(s.best, value, bucket, name)
        assert not found["lock"].any() and found["place"][:6].tolist() == [96, 97, 98, 99, 100, 0]


@pytest.mark.parametrize("cooperative", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 33, 1000, 20_003])
def test_143_smooth(n: int, cooperative: bool) -> None:
    s = section("1.4.3")
    x = np.random.default_rng(n).integers(0, 2**29, n).astype(np.int32)
    before = x.copy()
    for steps in (0, 1, 2, 5):
        out = s.run(s.smooth, x, steps, cooperative)
        assert out.dtype == np.int32
        np.testing.assert_array_equal(out, s.reference_smooth(x, steps), err_msg=f"{steps} steps")
    np.testing.assert_array_equal(x, before)


def test_143_a_cooperative_grid_is_as_large_as_fits() -> None:
    s, (device, stream) = section("1.4.3"), gpu.open_device()
    kernel = s.get_kernel("smooth_cooperative")
    most = kernel.occupancy.max_active_blocks_per_multiprocessor(256, 0) * device.properties.multiprocessor_count
    assert s.blocks_for("smooth_cooperative", 2**40) == most and s.blocks_for("smooth_cooperative", 257) == 2
    assert s.blocks_for("smooth_step", 2**20 + 1) == 4097
    a, b = gpu.zeros(64, np.int32, stream), gpu.zeros(64, np.int32, stream)
    config = gpu.LaunchConfig(grid=2 * most, block=1024, is_cooperative=True)
    with pytest.raises((gpu.CUDAError, ValueError), match=r"COOPERATIVE_LAUNCH_TOO_LARGE|exceeds the limit"):
        gpu.launch(stream, config, kernel, a.buffer, b.buffer, np.int64(64), np.int32(1))


def test_143_bad_input() -> None:
    s, good = section("1.4.3"), np.zeros(3, np.int32)
    unsigned = np.zeros(3, np.uint32), "got uint32"
    for bad, words in (*bad_vectors(np.int32)[:3], unsigned):
        for call in ((s.by_block, bad, "warp_scan"), (s.histogram, bad), (s.smooth, bad, 1)):
            with pytest.raises(ValueError, match=rf"expected int32 of shape \(n,\), not empty, .*{words}"):
                s.run(*call)
    with pytest.raises(ValueError, match=r"expected uint32 .* got int32"):
        s.run(s.best, good, good, "best_lock")
    with pytest.raises(ValueError, match=r"a bucket for each value, got \(3,\) and \(2,\)"):
        s.run(s.best, np.zeros(2, np.uint32), good, "best_lock")
    for cooperative in (True, False):
        with pytest.raises(ValueError, match="0 steps or more, got -1"):
            s.run(s.smooth, good, -1, cooperative)


def test_143_prints_what_the_race_lost(capfd: pytest.CaptureFixture[str]) -> None:
    printed = output_of("1.4.3", "--quick", "--no-bench", capfd=capfd)
    found = re.findall(r"^ (uniform|skewed) +([\d,]+) +([\d,]+) +([\d,]+) +([\d,]+) ", printed, flags=re.MULTILINE)
    for _, updates, by_race, *by_cures in found:
        assert 0 < int(by_race.replace(",", "")) < int(updates.replace(",", "")) == 20_003
        assert by_cures == ["0", "0"]
    assert len(found) == 2
    assert ("The simulator runs its threads in step" in printed) is gpu.SIMULATED


@pytest.mark.parametrize("name", ["scan", "histogram", "best", "smooth"])
def test_143_a_wrong_result_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.4.3")
    right = getattr(s, f"reference_{name}")

    def wrong(*arguments: object) -> object:
        found = right(*arguments)
        (found[1] if name == "best" else found)[7] += 1
        return found

    monkeypatch.setattr(s, f"reference_{name}", wrong)
    with pytest.raises(Mismatch, match=name):
        s.verify(300)


@pytest.mark.gpu
@pytest.mark.slow
def test_143_each_cure_has_its_price() -> None:
    rows = {(row.name, row.size): row for row in section("1.4.3").benchmark()}
    for data in ("uniform", "skewed"):
        (vectorized,) = [r for (name, size), r in rows.items() if name == "histogram_vectorized" and data in size]
        (atomics,) = [r for (name, size), r in rows.items() if name == "histogram_global" and data in size]
        assert vectorized.of_copy > 0.85 and vectorized.of_copy > 10 * atomics.of_copy
    assert rows["best_atomic", "2^16"].of_peer > 10 and rows["best_look_first", "2^16"].of_peer > 2


# --- 1.4.4 ----------------------------------------------------------------------------------------------------


def test_144_references_by_hand() -> None:
    s = section("1.4.4")
    state = np.array([0, 1 << 15, 3], np.uint32)
    by_hand = [1013904223, ((1 << 15 | 1) * 1664525 + 1013904223) % 2**32, 3 * 22695477 + 1]
    np.testing.assert_array_equal(s.reference(state, s.PARITY, np.array([0, 0, 1]), 1), by_hand)
    np.testing.assert_array_equal(s.reference(state, s.PARITY, 0, np.array([0, 1, 0])), [0, by_hand[1], 3])
    one = np.array([1], np.uint32)
    kinds = [
        1664525 + 1013904223,
        (1 << 7 ^ 1013904223) * 1664525,
        (1 ^ 4097) * 22695477 + 1,
        (1 << 19 ^ 1) * 2654435769 + 12345,
    ]
    for kind, expected in enumerate(kinds):
        assert s.reference(one, s.KINDS, kind, 1)[0] == expected % 2**32
    np.testing.assert_array_equal(s.reference_series(np.array([2.0, 0.5]), 3, [1, 3]), [1 + 3 * 2 + 4, 1 + 1.5 + 0.25])


def test_144_passes_and_active_lanes_by_hand() -> None:
    s = section("1.4.4")
    assert s.passes(np.zeros(1, int)) == 1 and s.passes(np.zeros(33, int)) == 2
    assert s.passes(np.arange(64) % 2) == 4 and s.passes(np.arange(64) // 32) == 2
    assert s.passes(np.array([0] * 31 + [3] + [2] * 5 + [1])) == 4  # two ways in the first warp, two in the second
    ways = s.ways(2050, s.random_integers(2050, 4, np.int32))
    assert [s.passes(ways[name]) for name in ("by_lane", "by_warp", "by_select")] == [130, 65, 65]
    # three borders between kinds in each of two full blocks, which may fall on those of warps; two more numbers
    assert s.passes(ways["by_kind"]) > 240 and 65 <= s.passes(ways["grouped"]) <= 64 + 6 + 2


def test_144_the_last_block_by_hand() -> None:
    s, costs = section("1.4.4"), np.array([5, 1, 1, 1, 5, 1])
    assert s.longest(costs, 2, queue=False) == 5 + 1 + 5
    assert s.longest(costs, 2, queue=True) == 3 + 5  # 5 and 1 by the first block, 1, 1, 1 and 5 by the second
    assert s.longest(costs, 6, queue=True) == s.longest(costs, 9, queue=False) == 5


@pytest.mark.parametrize("n", [1, 31, 32, 33, 255, 257, 1023, 1024, 1025, 3001])
def test_144_every_kernel_of_every_group(n: int) -> None:
    s, (_, stream) = section("1.4.4"), gpu.open_device()
    checks = s.verify(s.groups(stream, n), stream)
    assert len(checks) == 20 and checks[0].count == n


@pytest.mark.parametrize("rounds", [0, 1, 5, 33])
def test_144_any_number_of_rounds(rounds: int) -> None:
    s, (_, stream) = section("1.4.4"), gpu.open_device()
    for names, steps in ((("by_lane", "by_warp", "by_select"), s.PARITY), (("by_kind", "grouped"), s.KINDS)):
        s.verify([s.branches(stream, names, steps, 1500, rounds)], stream)


@pytest.mark.parametrize("terms", [8, 40, 104])
def test_144_any_number_of_terms(terms: int) -> None:
    s, (_, stream) = section("1.4.4"), gpu.open_device()
    group = s.polynomials(stream, dict.fromkeys(s.CHAINS, 1), s.COEFFICIENTS, 300, terms)
    others = s.polynomials(stream, dict.fromkeys(s.UNROLLS, 1), [1], 300, terms - 3)
    assert max(check.max_rel for check in s.verify([group, others], stream)) < group.rtol


@pytest.mark.parametrize("kind", range(4))
def test_144_blocks_of_one_kind(kind: int) -> None:
    s, (_, stream) = section("1.4.4"), gpu.open_device()
    state, kinds = s.random_integers(1100), np.full(1100, kind, np.int32)
    kinds[1050] = 3 - kind
    d_state, d_kind, out = gpu.to_device(state, stream), gpu.to_device(kinds, stream), gpu.empty(1100, "u4", stream)
    for name, block in (("by_kind", 96), ("grouped", 1024), ("grouped", 96)):
        out.buffer.fill(0xFF, stream=stream)
        last = out.buffer, np.int64(1100), np.int32(3)
        s.launcher(name, -(-1100 // block), block, d_state.buffer, d_kind.buffer, *last)(stream)
        np.testing.assert_array_equal(out.to_host(stream), s.reference(state, s.KINDS, kinds, 3))


@pytest.mark.parametrize("name", ["scale<1>", "scale<8>"])
def test_144_any_alignment_and_grid(name: str) -> None:
    """Vectors that begin anywhere, grids of any size; nothing beside them is touched; y may be x."""
    s, (_, stream) = section("1.4.4"), gpu.open_device()
    x = np.random.default_rng(1).standard_normal(5010).astype(np.float32)
    for n, x_off, y_off, blocks, threads in (
        (1, 0, 0, 1, 32),
        (5003, 0, 0, 3, 64),
        (5003, 0, 4, 1, 128),
        (5001, 4, 0, 2, 32),
        (4999, 1, 1, 2, 96),
        (5000, 0, 3, 5, 256),
    ):
        d_x, d_y = gpu.to_device(x, stream), gpu.to_device(x, stream)
        at_x, at_y = (np.uint64(int(d.buffer.handle) + 4 * off) for d, off in ((d_x, x_off), (d_y, y_off)))
        s.launcher(name, blocks, threads, at_x, at_y, np.float32(-2), np.int64(n))(stream)
        expected = x.copy()
        expected[y_off : y_off + n] = -2 * x[x_off : x_off + n]
        np.testing.assert_array_equal(d_y.to_host(stream), expected)
        s.launcher(name, blocks, threads, at_x, at_x, np.float32(-2), np.int64(n))(stream)
        expected = x.copy()
        expected[x_off : x_off + n] *= -2
        np.testing.assert_array_equal(d_x.to_host(stream), expected)


@pytest.mark.parametrize("kernel", ["tiles_static", "tiles_queue"])
def test_144_tiles(kernel: str) -> None:
    s, (_, stream) = section("1.4.4"), gpu.open_device()
    costs = np.random.default_rng(3).integers(0, 9, 23).astype(np.int32)
    shapes = {f"{blocks} blocks": (kernel, blocks, 23, 1) for blocks in (1, 2, 7, 23, 40)}
    s.verify([s.tiles(stream, costs, shapes)], stream)
    even = np.full(24, 4, np.int32)
    shapes = {f"{pieces} pieces": (kernel, 5, 24 // pieces, pieces) for pieces in (1, 2, 3, 8)}
    s.verify([s.tiles(stream, even, shapes)], stream)


def test_144_each_tile_is_taken_once() -> None:
    """tiles_queue counts on from what it finds: a queue that begins at 3 leaves out tiles 0, 1 and 2, and no others."""
    s, (_, stream) = section("1.4.4"), gpu.open_device()
    state, costs = s.random_integers(10 * 32), np.full(10, 2, np.int32)
    d_state, d_costs, taken = (gpu.to_device(a, stream) for a in (state, costs, np.array([3], np.int32)))
    out = gpu.zeros(320, np.uint32, stream)
    last = np.int32(10), np.int32(1), taken.buffer
    s.launcher("tiles_queue", 4, 32, d_state.buffer, out.buffer, d_costs.buffer, *last)(stream)
    expected = s.reference(state, s.PARITY, 0, 2)
    np.testing.assert_array_equal(out.to_host(stream), np.where(np.arange(320) < 96, 0, expected))
    assert taken.to_host(stream)[0] == 10 + 4  # each block asked once in vain


@pytest.mark.simulator
def test_144_every_barrier_is_there() -> None:
    from common.simt.races import watching

    s, (_, stream) = section("1.4.4"), gpu.open_device()
    shapes = {"queue": ("tiles_queue", 2, 9, 1)}
    with watching() as races:
        s.branches(stream, ("grouped",), s.KINDS, 1500, 2).calls["grouped"](stream)
        s.tiles(stream, np.full(9, 2, np.int32), shapes).calls["queue"](stream)
    assert not races, races[0]


def test_144_gains_by_hand() -> None:
    s, (device, stream) = section("1.4.4"), gpu.open_device()
    sms, gains = device.properties.multiprocessor_count, {}
    for group in s.groups(stream, 4096):
        assert next(iter(group.gains.values())) == 1 and group.gains.keys() == group.calls.keys()
        gains |= group.gains
    assert gains["by_warp"] == gains["by_select"] == 2 and 3 < gains["grouped"] < 4
    assert [gains[name] for name in s.CHAINS] == [1, 2, 4, 4] and gains["geometric<8>"] == 4 / 1.375
    assert gains["small tiles"] == 8 / -(-4 * (sms + 1) // sms)
    assert gains["queue"] == gains["a block for each tile"] > 1.2


@pytest.mark.simulator
def test_144_active_lanes_by_hand_are_those_counted() -> None:
    from common.simt.counters import counting

    s, (_, stream), n = section("1.4.4"), gpu.open_device(), 2048
    expected = {name: 32 * n / (32 * s.passes(way)) for name, way in s.ways(n, s.random_integers(n, 4, "i4")).items()}
    for names, steps in ((("by_lane", "by_warp", "by_select"), s.PARITY), (("by_kind", "grouped"), s.KINDS)):
        group = s.branches(stream, names, steps, n, 400)  # so many that what stands beside the branch does not count
        for name, call in group.calls.items():
            with counting() as launches:
                call(stream)
            assert launches[0].active_threads == pytest.approx(expected[name], rel=0.08), name


def test_144_says_what_is_not_there_and_shows_what_was_recorded(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    s = section("1.4.4")
    monkeypatch.setattr(s.results, "show_recorded", lambda number: print(f"recorded for {number}"))
    printed = output_of("1.4.4", "--quick", "--no-bench", capfd=capfd)
    assert ("recorded for 1.4.4" in printed) is gpu.SIMULATED
    assert len(re.findall("^not run: ", printed, flags=re.MULTILINE)) == gpu.SIMULATED
    assert re.search(r"^ by_lane +157 +314 +49.8% ", printed, flags=re.MULTILINE)
    assert re.search(r"^ series<1> +series<8> +4.00× ", printed, flags=re.MULTILINE)


@pytest.mark.parametrize("group", range(7))
def test_144_a_wrong_result_is_noticed(group: int) -> None:
    s, (_, stream) = section("1.4.4"), gpu.open_device()
    some = list(s.groups(stream, 333))[group]
    expected = some.reference()
    expected[100] += 1
    with pytest.raises(Mismatch, match=re.escape(next(iter(some.calls)))):
        s.verify([some._replace(reference=lambda: expected)], stream)


@pytest.mark.gpu
@pytest.mark.slow
def test_144_the_gains_are_there() -> None:
    for row in section("1.4.4").benchmark():
        by_hand = row.figures["手算 by hand"]
        assert 0.7 < row.of_peer / by_hand < 1.4, (row.name, row.of_peer, by_hand)


# --- on a GPU -------------------------------------------------------------------------------------------------


def outputs(number: str) -> list[np.ndarray]:
    """What the kernels of a section make of fixed inputs."""
    s = section(number)
    if number == "1.4.1":
        return [s.run(case, s.random_state(7 * threads), 9)[0] for case, (_, threads, _) in s.CASES.items()]
    if number == "1.4.3":
        x, value = bins(5003), np.random.default_rng(1).integers(0, 99, 600, dtype=np.uint32)
        scans = [s.run(s.by_block, x, name) for name in ("block_scan", "warp_scan", "block_count")]
        counts = [s.run(s.histogram, x[: 500 if kind == "locked" else 5003], kind) for kind in s.CURES]
        found = [part for name in s.BESTS for part in s.unpacked(s.run(s.best, value, x[:600], name))]
        return [*scans, *counts, *found, *(s.run(s.smooth, x & 0xFFFF, 5, how) for how in (False, True))]
    if number == "1.4.4":
        _, stream = gpu.open_device()
        groups = [s.branches(stream, ("by_lane", "by_warp", "by_select"), s.PARITY, 1500, 30)]
        groups.append(s.branches(stream, ("by_kind", "grouped"), s.KINDS, 1500, 30))
        shapes = {"": ("tiles_static", 5, 20, 1), "queue": ("tiles_queue", 5, 20, 1)}
        groups.append(s.tiles(stream, np.arange(20, dtype=np.int32), shapes))
        found = []
        for group in groups:
            for call in group.calls.values():
                call(stream)
                found.append(group.out.to_host(stream))
        return found
    raise ValueError(number)


@pytest.mark.gpu
@pytest.mark.parametrize("number", ["1.4.1", "1.4.3", "1.4.4"])
def test_gpu_and_simulator_agree(number: str, tmp_path: Path) -> None:
    assert_both_agree(outputs(number), on_the_simulator(__name__, number, tmp_path))
