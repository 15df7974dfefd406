"""Sections 8.3.1 and 8.3.2, host memory and links: each way and each path against NumPy, on whatever is there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from common import gpu, results
from common.cli import UNAVAILABLE, Unavailable, exit_code
from common.verify import Mismatch
from tests.chapter import assert_both_agree, on_the_simulator, output_of, plots, recorded_as, section

SIZES = (1, 31, 33, 127, 128, 1000, 8 * 64 * 32 + 5, 100_003)  # in words; a line has 32


def needs_managed(name: str) -> bool:
    """Whether that way is not on the simulator."""
    return gpu.SIMULATED and name.startswith("managed")


# --- 8.3.1 ----------------------------------------------------------------------------------------------------


def test_831_references_by_hand() -> None:
    s = section("8.3.1")
    words = np.arange(3 * 32 + 2, dtype=np.uint32)  # lines 0 to 3, the last one of 2 words
    assert s.reference(words) == 97 * 98 // 2 and s.reference(words, 1, 3) == 3 * 97 * 98 // 2
    of_line = [sum(range(32 * k, min(32 * k + 32, 98))) for k in range(4)]
    # groups of 3 lines: lines 0 to 2, of which mix(0) % 3 = 0 chooses the first, and line 3 alone
    assert s.reference(words, 3) == of_line[0] + of_line[3]
    assert s.reference(np.full(2, 2**32 - 1, np.uint32), 1, 2**10) == 2**11 * (2**32 - 1)
    zero, one = (int(s.mix(np.array([x], np.uint32))[0]) for x in (0, 1))
    x = 0x7FEB352D
    x = (x ^ x >> 15) * 0x846CA68B % 2**32
    assert zero == 0 and one == x ^ x >> 16
    np.testing.assert_array_equal(s.reference_results(3, 1), s.mix(np.array([1, 2, 3], np.uint32)))


@pytest.mark.parametrize("n", SIZES)
def test_831_every_way_of_reading(n: int) -> None:
    s = section("8.3.1")
    words = s.random_words(n)
    before = words.copy()
    for name in s.WAYS:
        if needs_managed(name):
            continue
        for every, uses in ((1, 1), (1, 3), (2, 5), (64, 7), (10_000, 2)):
            assert s.sum_lines(words, name, every, uses) == s.reference(words, every, uses), (name, every, uses)
        assert s.sum_lines(words, name, turns=3) == 3 * s.reference(words) % 2**64
    np.testing.assert_array_equal(words, before)


@pytest.mark.parametrize("n", SIZES)
def test_831_every_way_of_results(n: int) -> None:
    s = section("8.3.1")
    for name in s.WAYS:
        if not needs_managed(name):
            for seed in (1, 2**32 - 3):
                np.testing.assert_array_equal(s.results_of(n, name, seed), s.reference_results(n, seed), err_msg=name)


def test_831_uses_read_other_lines() -> None:
    s = section("8.3.1")
    words = np.repeat(np.arange(1, 65, dtype=np.uint32) ** 3, 32)  # 64 lines, told apart by their sums
    sums = [s.reference(words, 64, k) for k in range(5)]
    assert len(set(np.diff(sums))) > 1
    assert s.sum_lines(words, s.MAPPED, 64, 4) == sums[4]


def test_831_a_grid_smaller_than_the_data() -> None:
    s, (_, stream) = section("8.3.1"), gpu.open_device()
    words = s.random_words(32 * 700 + 3)
    d_words = gpu.to_device(words, stream)
    for blocks, block in ((1, 32), (3, 64), (2, 1024)):
        d_sum = gpu.zeros(1, np.uint64, stream)
        config = gpu.LaunchConfig(grid=(blocks, 2), block=block)
        arguments = d_words.buffer, np.int64(words.size), np.int32(3), d_sum.buffer
        gpu.launch(stream, config, s.compiled().get_kernel("sum_lines"), *arguments)
        assert int(d_sum.to_host(stream)[0]) == s.reference(words, 3, 2), (blocks, block)
    d_out = gpu.empty(999, np.uint32, stream)
    kernel = s.compiled().get_kernel("write_results")
    gpu.launch(stream, gpu.LaunchConfig(grid=1, block=32), kernel, d_out.buffer, np.int64(999), np.uint32(5))
    np.testing.assert_array_equal(d_out.to_host(stream), s.reference_results(999, 5))


@pytest.mark.simulator
def test_831_no_races() -> None:
    from common.simt.races import watching

    s = section("8.3.1")
    with watching() as races:
        s.sum_lines(s.random_words(5000), s.MAPPED)
    assert not races


@pytest.mark.simulator
def test_831_managed_memory_says_why_it_is_not_here() -> None:
    s = section("8.3.1")
    for call in (lambda words: s.sum_lines(words, "managed"), lambda words: s.sum_pycuda(words, managed=True)):
        with pytest.raises(Unavailable, match=r"^not run: managed memory, .* the simulator"):
            call(s.random_words(10))


@pytest.mark.gpu
def test_831_advice_is_given() -> None:
    s, (device, stream) = section("8.3.1"), gpu.open_device()
    from cuda.core import Host

    if not s.managed_here():
        pytest.skip(s.NO_MANAGED)
    assert s.opened("managed, read-mostly", 1 << 20, stream).memory.read_mostly
    buffer = s.opened("managed, stays on host", 1 << 20, stream).memory
    assert buffer.preferred_location == Host() and device in buffer.accessed_by


@pytest.mark.gpu
def test_831_managed_memory_is_given_back_with_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    s, (_, stream) = section("8.3.1"), gpu.open_device()
    if not s.managed_here():
        pytest.skip(s.NO_MANAGED)
    from cuda.bindings import driver

    free, freed = driver.cuMemFree, []
    monkeypatch.setattr(driver, "cuMemFree", lambda address: freed.append((int(address), free(address))))
    way = s.opened("managed, prefetched", 1000, stream)
    address = way.address
    s.write(way, stream)
    assert not freed
    del way
    assert [(at, int(status)) for at, (status,) in freed] == [(address, 0)]


@pytest.mark.parametrize("n", [1, 33, 20_003])
def test_831_pycuda(n: int) -> None:
    s = section("8.3.1")
    words = s.random_words(n)
    for managed in (False, True):
        try:
            assert s.sum_pycuda(words, managed) == s.reference(words)
        except Unavailable as missing:
            if not managed:
                pytest.skip(str(missing))


def test_831_bad_input() -> None:
    s = section("8.3.1")
    wrong = np.zeros(3, np.int32), np.zeros(0, np.uint32), np.zeros((2, 2), np.uint32), s.random_words(9)[::2], [1, 2]
    for words in wrong:
        for call in (s.sum_lines, s.sum_pycuda):
            with pytest.raises(ValueError, match="expected a contiguous uint32 vector"):
                call(words)
    words = s.random_words(10)
    with pytest.raises(ValueError, match=r"expected one of pageable, copied; .*, got 'floppy'"):
        s.sum_lines(words, "floppy")
    for every, uses, turns in ((0, 1, 1), (-1, 1, 1), (1, 0, 1), (1, 65536, 1), (1, 1, 0), (1, 1, -1), (2**31, 1, 1)):
        with pytest.raises(ValueError, match="1 to 65535 uses"):
            s.sum_lines(words, s.COPIED, every, uses, turns)
    for n in (0, -5):
        with pytest.raises(ValueError, match="positive n"):
            s.results_of(n)
    for seed in (-1, 2**32):
        with pytest.raises(ValueError, match="expected a seed"):
            s.results_of(5, seed=seed)


def made_up_uses(here: float = 1e-6, there: float = 7e-6) -> list[results.Row]:
    """A copy of 300 µs, after which a use costs 1 µs; over the bus it costs 7 µs: they meet after 50 uses."""
    s = section("8.3.1")

    def row(name: str, size: str, seconds: float) -> results.Row:
        return results.Row("8.3.1", name, size, "u32", seconds, 0.0, figures={"GB/s": 1.0})

    rows = [row(f"once: {way}", size, (k + 1) * 1e-4) for size in s.SIZES for k, way in enumerate(s.WAYS)]
    rows += [row(f"16 times: {way}", s.SIZE, (9 - k) * 1e-4) for k, way in enumerate(s.WAYS)]
    for k in s.TIMES:
        rows += [row(f"sparse × {k}: {s.COPIED}", s.SIZE, 300e-6 + k * here)]
        rows += [row(f"sparse × {k}: {s.MAPPED}", s.SIZE, k * there)]
    return rows


def test_831_recorded_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recorded_as(made_up_uses(), tmp_path, monkeypatch)
    printed = output_of("8.3.1", "--quick", "--plot", capfd=capfd)
    assert "recorded on NVIDIA Test, 2031-02-03, not measured here" in printed
    assert "by counting bytes: 64," in printed and "measured: 50.0, where" in printed
    assert re.search(r"pageable, copied +100 µs \* +100 µs \* +900 µs", printed)  # * is the fastest
    assert re.search(r"managed, stays on host +700 µs +700 µs +300 µs \*", printed)
    assert "pinned, copied: 300 µs, and 1.00 µs for each use" in printed
    assert len(plots(printed)) == 1
    assert max(map(len, printed.splitlines())) <= 120


def test_831_figures_of_an_older_file(capfd: pytest.CaptureFixture[str]) -> None:
    s = section("8.3.1")
    assert s.report([results.Row("8.3.1", "something else", "1", "u32", 1.0, 0.0)]) == {}
    assert s.report([row for row in made_up_uses() if row.name != f"sparse × {s.TIMES[-1]}: {s.MAPPED}"]) == {}
    assert "From how many" not in capfd.readouterr().out


def test_831_a_copy_that_never_pays(capfd: pytest.CaptureFixture[str]) -> None:
    section("8.3.1").report(made_up_uses(here=1e-6, there=0.5e-6))
    assert "measured: none: these straight lines do not meet" in capfd.readouterr().out


def test_831_what_it_prints(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "recorded", lambda number: [])
    printed = output_of("8.3.1", "--size", "5003", "--no-bench", capfd=capfd)
    assert f"not run: {results.NOTHING}" in printed
    assert ("not run: managed memory, used by both sides at once" in printed) == gpu.SIMULATED
    assert len(re.findall(r": results +5003 ", printed)) == (3 if gpu.SIMULATED else 7)


@pytest.mark.parametrize("name", ["reference", "reference_results"])
def test_831_a_wrong_result_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("8.3.1")
    right = getattr(s, name)
    monkeypatch.setattr(s, name, lambda *arguments: right(*arguments) ^ 1)
    with pytest.raises(Mismatch, match="pageable, copied: " + ("all" if name == "reference" else "results")):
        s.verify(1000)


def test_831_the_host_writes_before_each_call_and_only_the_call_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    s, (_, stream) = section("8.3.1"), gpu.open_device()
    words, seen = s.random_words(100), []

    def call(way: object) -> None:
        seen.append(np.array_equal(way.host, words))  # type: ignore[attr-defined]
        way.host[:] = 0  # type: ignore[attr-defined]

    clock = iter(range(1000))
    monkeypatch.setattr(s, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    taken = s.from_host_to_host([s.COPIED, s.MAPPED], call, words, stream, samples=3, warmup=1)
    assert seen == [True] * 8
    assert {name: t.samples for name, t in taken.items()} == dict.fromkeys((s.COPIED, s.MAPPED), (1.0, 1.0, 1.0))


@pytest.mark.gpu
@pytest.mark.slow
def test_831_which_one_when() -> None:
    s = section("8.3.1")
    rows = s.benchmark()
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.size == s.SIZE:
            use, _, way = row.name.partition(": ")
            found.setdefault(use, {})[way] = row.seconds
    assert found["once"][s.COPIED] < found["once"]["pageable, copied"]
    assert found["sparse × 1"][s.MAPPED] < 0.5 * found["sparse × 1"][s.COPIED]
    assert found["16 times"][s.COPIED] < 0.5 * found["16 times"][s.MAPPED]
    lines = [np.polyfit(s.TIMES, [found[f"sparse × {k}"][way] for k in s.TIMES], 1) for way in (s.COPIED, s.MAPPED)]
    (here, copy), (there, start) = lines
    assert (copy - start) / (there - here) == pytest.approx(s.EVERY, rel=0.5)


# --- 8.3.2 ----------------------------------------------------------------------------------------------------


def test_832_rates_by_hand() -> None:
    s = section("8.3.2")
    assert s.link_rate("PCIe 1", 1) == 250e6 and s.link_rate("PCIe 2", 16) == 8e9
    assert s.link_rate("PCIe 3", 16) == pytest.approx(15.754e9, rel=1e-4)
    assert s.link_rate("PCIe 5", 16) == pytest.approx(63.015e9, rel=1e-4)
    assert s.link_rate("NVLink 1", 4 * 8) == 80e9 and s.link_rate("NVLink 4", 18 * 2) == 450e9
    for link, lanes in (("PCIe 9", 16), ("PCIe 5", 0), ("NVLink 0", 4), ("NVLink 4", -1)):
        with pytest.raises(ValueError, match=r"expected some lanes of PCIe 1, .*, got .* of "):
            s.link_rate(link, lanes)


def test_832_references_by_hand() -> None:
    s = section("8.3.2")
    words, others, none = np.array([1, 2], np.uint32), np.array([3, 4], np.uint32), np.zeros(2, np.uint32)
    for how in s.HOWS:
        expected = {s.READS: (none, others), s.BOTH: (words, others)}.get(how, (words, none))
        np.testing.assert_array_equal(s.reference(words, others, how), expected)
    assert [s.reference_follow(4, k) for k in range(5)] == [0, 1, 2, 3, 0]  # 1021 is 1 modulo 4
    assert [s.reference_follow(2000, k) for k in range(4)] == [0, 1021, 42, 1063]


@pytest.mark.parametrize("n", [1, 3, 31, 33, 64, 1000, 100_003])
def test_832_every_path_on_one_gpu(n: int) -> None:
    s = section("8.3.2")
    words, others = s.random_words(n), s.random_words(n, 833)
    for how in s.HOWS:
        arrived, expected = s.across(words, others, 0, 0, how), s.reference(words, others, how)
        for at, should in zip(arrived, expected, strict=True):
            np.testing.assert_array_equal(at, should, err_msg=how)


@pytest.mark.gpu
@pytest.mark.multi_gpu
@pytest.mark.parametrize("n", [1, 33, 100_003, (8 << 20) + 1])
def test_832_every_path_between_gpus(n: int) -> None:
    s = section("8.3.2")
    words, others = s.random_words(n), s.random_words(n, 833)
    for a, b in s.pairs(s.device_count()):
        for how in s.possible(a, b):
            arrived, expected = s.across(words, others, a, b, how), s.reference(words, others, how)
            for at, should in zip(arrived, expected, strict=True):
                np.testing.assert_array_equal(at, should, err_msg=f"{how}, {a}, {b}")
        if s.direct(a, b):
            assert s.last_cell(300, 123, a, b) == s.reference_follow(300, 123)
    assert gpu.Device().device_id == 0


def test_832_a_grid_smaller_than_the_data() -> None:
    s, (_, stream) = section("8.3.2"), gpu.open_device()
    words = s.random_words(999)
    d_words, d_out = gpu.to_device(words, stream), gpu.zeros(1000, np.uint32, stream)
    kernel = s.compiled(0).get_kernel("copy_words")
    gpu.launch(stream, gpu.LaunchConfig(grid=2, block=32), kernel, d_words.buffer, d_out.buffer, np.int64(999))
    out = d_out.to_host(stream)
    np.testing.assert_array_equal(out[:999], words)
    assert out[999] == 0


@pytest.mark.parametrize("cells", [1, 2, 33, 1000])
def test_832_rings(cells: int) -> None:
    s = section("8.3.2")
    on_the_way = [s.reference_follow(cells, k) for k in range(min(cells, 40))]
    assert len(set(on_the_way)) == len(on_the_way) and s.reference_follow(cells, cells) == 0
    for place in ("host", 0):
        for steps in (0, 1, 5, cells + 3):
            assert s.last_cell(cells, steps, 0, place) == s.reference_follow(cells, steps)


def test_832_bad_input() -> None:
    s = section("8.3.2")
    words = s.random_words(10)
    for bad in (words.astype(int), words[:0], words.reshape(2, 5), words[::2], [1, 2]):
        with pytest.raises(ValueError, match="expected a contiguous uint32 vector"):
            s.across(bad, bad, 0, 0)
    with pytest.raises(ValueError, match="one length, got 10 and 9"):
        s.across(words, words[:9], 0, 0)
    with pytest.raises(ValueError, match=r"expected one of peer copy; .*, got 'pigeon'"):
        s.across(words, words, 0, 0, "pigeon")
    for a, b in ((0, 99), (-1, 0), (0, "host")):
        with pytest.raises(ValueError, match=rf"expected GPUs of \[0.*\], got {a} and {b}"):
            s.across(words, words, a, b)
    for cells, steps in ((0, 1), (-4, 1), (4, -1), (4, 2**31)):
        with pytest.raises(ValueError, match="expected some cells and no negative steps"):
            s.last_cell(cells, steps, 0, "host")
    for a, place in ((99, "host"), (0, "moon"), (0, 99)):
        with pytest.raises(ValueError, match=r"expected GPUs of \[0.*\] or host"):
            s.last_cell(4, 1, a, place)


def test_832_without_peer_access(monkeypatch: pytest.MonkeyPatch) -> None:
    s, words = section("8.3.2"), section("8.3.2").random_words(10)
    monkeypatch.setattr(s, "direct", lambda a, b: False)
    assert s.possible(0, 1) == [s.COPY, s.BOTH, s.HOST]
    with pytest.raises(Unavailable, match="kernel reads: GPU 0 cannot use the memory of GPU 0"):
        s.across(words, words, 0, 0, s.READS)
    with pytest.raises(Unavailable, match="loads from a peer"):
        s.last_cell(3, 1, 0, 0)


@pytest.mark.parametrize(("name", "words"), [("reference", "peer copy"), ("reference_follow", "follows a ring")])
def test_832_a_wrong_result_is_noticed(name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("8.3.2")
    right = getattr(s, name)
    monkeypatch.setattr(s, name, lambda *a: right(*a)[::-1] if name == "reference" else right(*a) + 1)
    with pytest.raises(Mismatch, match=words):
        s.verify(1000)


class Recorder:
    """A stream that notes what is enqueued, in order; its Buffers and events are names."""

    def __init__(self, name: str, log: list[str]):
        self.name, self.log, self.events = name, log, 0

    def record(self, event: str = "") -> str:
        self.events += not event
        event = event or f"{self.name}{self.events}"
        self.log.append(f"{self.name} records {event}")
        return event

    def wait(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")


def recorded_side(name: str, log: list[str]) -> SimpleNamespace:
    def buffer(what: str) -> SimpleNamespace:
        return SimpleNamespace(copy_from=lambda source, stream: log.append(f"{stream.name}: {name}.{what}"))

    return SimpleNamespace(out=None, into=buffer("into"), stream=Recorder(name, log), done=f"{name}'s own")


def test_832_both_directions_are_ordered_by_events() -> None:
    s, log = section("8.3.2"), []
    s.both_directions(recorded_side("a", log), recorded_side("b", log), None)
    assert {"a records a1", "b waits for a1", "b records b's own", "a waits for b's own"} <= set(log)
    begin, end = log.index("b waits for a1"), log.index("a waits for b's own")
    assert log.index("a records a1") < begin < log.index("b: a.into") < log.index("b records b's own") < end
    assert log.index("a: b.into") < end  # on a's stream, so not after b's work


def test_832_a_chunk_goes_up_when_it_has_come_down(monkeypatch: pytest.MonkeyPatch) -> None:
    s, log = section("8.3.2"), []

    class Part:
        def __init__(self, handle: int, size: int, owner: object):
            self.first, self.size = handle - owner.handle, size  # type: ignore[attr-defined]

        def copy_to(self, target: Part, stream: Recorder) -> None:
            log.append(f"{stream.name} down {self.first} {self.size}")

        def copy_from(self, source: Part, stream: Recorder) -> None:
            log.append(f"{stream.name} up {source.first} {source.size}")

    monkeypatch.setattr(s, "Buffer", SimpleNamespace(from_handle=Part))
    memory = [SimpleNamespace(handle=1000 * k, size=100) for k in (1, 2, 3)]
    a = SimpleNamespace(out=memory[0], stream=Recorder("a", log))
    b = SimpleNamespace(into=memory[2], stream=Recorder("b", log), done="b's own")
    s.through_host(a, b, memory[1])
    down = [entry for entry in log if "down" in entry]
    assert sum(int(entry.split()[-1]) for entry in down) == 100 and len(down) == 7  # of 16 bytes, the last of 4
    for k, entry in enumerate(down, 1):
        up = entry.replace("a down", "b up")
        assert f"b waits for a{k}" in log
        order = [log.index(x) for x in (entry, f"a records a{k}", f"b waits for a{k}", up)]
        assert order == sorted(order)
    assert log[-2:] == ["b records b's own", "a waits for b's own"]


def fake(a: int, b: int) -> list[results.Row]:
    """Made-up rows of a pair: 100 a + b GB/s, a load of 1 µs."""
    what = {"section": "8.3.2", "size": f"GPU {a} → {b}", "spread": 0.0}
    rate = {"GB/s": 100.0 * a + b + 300, "% of link": 50.0}
    copy = results.Row(name="peer copy", dtype="bytes", seconds=1e-3, figures=rate, **what)
    return [copy, results.Row(name="one load: peer's memory", dtype="u32", seconds=1e-6, **what)]


def made_up_links(count: int) -> list[results.Row]:
    figures = {"GB/s": 55.0, "% of link": 87.3}
    host = results.Row("8.3.2", "pinned to device", "256 MiB", "bytes", 5e-3, 0.0, figures=figures)
    return [host, *(row for a, b in section("8.3.2").pairs(count) for row in fake(a, b))]


def test_832_matrices_of_any_number_of_gpus(capfd: pytest.CaptureFixture[str]) -> None:
    s = section("8.3.2")
    assert s.pairs(1) == [] and s.pairs(3) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    for count in (1, 2, 3, 8):
        rows = made_up_links(count)
        assert len({row.key for row in rows}) == len(rows) == 1 + 2 * count * (count - 1)
        s.report(rows)
        printed = capfd.readouterr().out
        assert "pinned to device" in printed and ("pairs of GPUs: none" in printed) == (count == 1)
        for a in range(count if count > 1 else 0):
            row = [f"{100 * a + b + 300}" if a != b else "—" for b in range(count)]
            assert re.search(rf"^ GPU {a} +{' +'.join(row)} *$", printed, flags=re.MULTILINE)
        assert ("peer copy, GB/s: by the row's GPU" in printed) == (count > 1)
        assert ("one load: peer's memory, time: by" in printed) == (count > 1)
        assert printed.count("1.00 µs") == count * (count - 1)
        assert max(map(len, printed.splitlines())) <= 120


def run_832(*options: str, capfd: pytest.CaptureFixture[str]) -> str:
    """What it prints; without a GPU it has to end with exit code 77 and one line that says why."""
    if not gpu.SIMULATED:
        return output_of("8.3.2", *options, capfd=capfd)
    assert exit_code(section("8.3.2").main, list(options)) == UNAVAILABLE
    printed = capfd.readouterr().out
    assert re.findall(r"^not run: .*", printed, flags=re.MULTILINE) == [printed.splitlines()[-1]]
    return printed


def test_832_what_it_prints(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "recorded", lambda number: [])
    printed = run_832("--quick", capfd=capfd)
    assert re.search(r"PCIe 5 +32 +98\.5% +16 +×16 +1 +63\.0 +57\.6", printed)
    assert re.search(r"NVLink 4 +100 +2 +H100, H200 +18 +450\.0", printed)
    assert results.NOTHING in printed
    assert max(map(len, printed.splitlines())) <= 120 or not gpu.SIMULATED
    if not gpu.SIMULATED and section("8.3.2").device_count() == 1:
        assert "not run: peer to peer: it needs two GPUs, here is one" in printed


@pytest.mark.parametrize("count", [1, 4])
def test_832_recorded_figures(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recorded_as(made_up_links(count), tmp_path, monkeypatch)
    printed = run_832("--quick", capfd=capfd)
    assert "recorded on NVIDIA Test, 2031-02-03, not measured here" in printed
    assert re.search(r"pinned to device .* 55 +87\.3", printed)
    assert "leave 91% of it" in printed


def nvml(**answers: object) -> SimpleNamespace:
    """A pynvml that knows these answers only."""

    def refuse(*arguments: object) -> None:
        raise RuntimeError("Not Supported")

    names = ("CurrPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkGeneration", "MaxPcieLinkWidth")
    names += ("NvLinkState", "NvLinkVersion", "HandleByPciBusId", "TopologyCommonAncestor", "P2PStatus")
    known = {f"nvmlDeviceGet{name}": answers.get(name, refuse) for name in names}
    return SimpleNamespace(nvmlInit=lambda: None, **known)


def test_832_links_as_nvml_tells_them(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("8.3.2")
    facts = {"CurrPcieLinkGeneration": 5, "CurrPcieLinkWidth": 16, "MaxPcieLinkGeneration": 5, "MaxPcieLinkWidth": 16}
    answers: dict[str, object] = {name: lambda handle, value=value: value for name, value in facts.items()}
    answers["HandleByPciBusId"] = lambda bus: "handle"
    monkeypatch.setitem(sys.modules, "pynvml", nvml(**answers))
    assert s.links_at_work(0) == {
        "PCIe": ("PCIe 5 ×16 while it copies, at most 5 ×16", s.link_rate("PCIe 5", 16)),
        "NVLink": ("no NVLink", None),
    }
    answers["NvLinkState"] = lambda handle, link: int(link < 18)
    answers["NvLinkVersion"] = lambda handle, link: 6  # NVML's code for 4.0
    monkeypatch.setitem(sys.modules, "pynvml", nvml(**answers))
    assert s.links_at_work(0)["NVLink"] == ("NVLink 4, 18 links", 450e9)
    answers["NvLinkVersion"] = lambda handle, link: 99
    monkeypatch.setitem(sys.modules, "pynvml", nvml(**answers))
    assert s.links_at_work(0)["NVLink"] == ("NVLink not told, 18 links", None)


@pytest.mark.parametrize("installed", [True, False])
def test_832_links_that_nvml_does_not_tell(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("8.3.2")
    monkeypatch.setitem(sys.modules, "pynvml", nvml() if installed else None)
    links = s.links_at_work(0)
    assert links["PCIe"][0].count("not told (") == 4 and links["PCIe"][1] is None
    assert links["NVLink"] == ("no NVLink", None)


def test_832_the_codes_are_nvmls() -> None:
    pynvml = pytest.importorskip("pynvml")
    for name in dir(pynvml):
        if number := re.fullmatch(r"NVML_NVLINK_VERSION_(\d)_\d", name):
            assert section("8.3.2").NVLINK_CODES[getattr(pynvml, name)] == int(number[1])


def test_832_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("8.3.2")
    pynvml = pytest.importorskip("pynvml")
    assert set(s.LEVELS) == {getattr(pynvml, n) for n in dir(pynvml) if n.startswith("NVML_TOPOLOGY_")}
    monkeypatch.setattr(s, "nvml_handle", lambda index: index)
    monkeypatch.setattr(s, "direct", lambda a, b: b == 1)
    answers = {
        "TopologyCommonAncestor": lambda a, b: 50,
        "P2PStatus": lambda a, b, what: int((b, what) != (1, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)),
    }
    monkeypatch.setitem(sys.modules, "pynvml", nvml(**answers))
    assert s.connection(0, 1) == "NVLink, direct" and s.connection(0, 2) == "CPU to CPU, through the host"


@pytest.mark.gpu
@pytest.mark.slow
def test_832_pinned_copies_are_as_fast_as_torchs() -> None:
    rows = {(row.name, row.size): row for row in section("8.3.2").benchmark()}
    for (name, _), row in rows.items():
        if name in ("pinned to device", "device to pinned"):
            assert row.of_peer > 0.98
        if row.figures and "% of link" in row.figures:
            assert row.figures["% of link"] < (205 if "both" in name else 101)
    loads = {name: row.seconds for (name, size), row in rows.items() if size == "GPU 0"}
    assert loads["one load: pinned host memory"] > loads["one load: own memory"] > 1e-7


@pytest.mark.gpu
@pytest.mark.multi_gpu
@pytest.mark.slow
def test_832_the_direct_way_is_the_faster_one() -> None:
    s = section("8.3.2")
    rows = {(row.name, row.size): row for row in s.benchmark()}
    for a, b in s.pairs(s.device_count()):
        if s.direct(a, b):
            assert rows[s.COPY, f"GPU {a} → {b}"].of_peer > 1
    assert gpu.Device().device_id == 0


# --- on a GPU -------------------------------------------------------------------------------------------------


def outputs(number: str) -> list[np.ndarray]:
    """What the kernels of a section make of fixed inputs."""
    s = section(number)
    if number == "8.3.1":
        words = s.random_words(20_003)
        sums = [s.sum_lines(words, s.COPIED, every, uses) for every, uses in ((1, 1), (64, 9))]
        return [np.array(sums, np.uint64), s.results_of(20_003, s.MAPPED, 3)]
    words = s.random_words(20_003)
    return [*s.across(words, words, 0, 0, s.WRITES), np.array([s.last_cell(500, 77, 0, "host")])]


@pytest.mark.gpu
@pytest.mark.parametrize("number", ["8.3.1", "8.3.2"])
def test_83_gpu_and_simulator_agree(number: str, tmp_path: Path) -> None:
    assert_both_agree(outputs(number), on_the_simulator(__name__, number, tmp_path))
