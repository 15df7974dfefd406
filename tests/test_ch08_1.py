"""Sections 8.1.1 and 8.1.2, the memory hierarchy, allocation and bandwidth, on whatever device is there."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import gpu, results
from common.cli import USAGE, Unavailable, exit_code
from common.verify import Mismatch
from tests.chapter import bad_vectors, output_of, plots, recorded_as, section

# --- 8.1.1 ----------------------------------------------------------------------------------------------------

PATHS = ("ca", "cg", "shared")


def test_811_references_by_hand() -> None:
    s = section("8.1.1")
    order = np.array([2, 0, 1], np.int32)  # 0 leads to 1, 1 to 2, 2 to 0
    assert [s.reference_chase(order, hops) for hops in range(5)] == [0, 1, 2, 0, 1]
    words = np.array([[1, 0, 0, 0], [0, 10, 0, 0], [2**32 - 1, 0, 0, 1]], np.uint32)
    np.testing.assert_array_equal(s.reference_read(words, 2, 2, 3), [1 + 0 + 10, 10 + 1 + 0])


@pytest.mark.parametrize("cells", [1, 2, 31, 33, 513])
def test_811_chases(cells: int) -> None:
    """Along each path, cell after cell: the ring is walked in Python too."""
    s = section("8.1.1")
    order = np.random.default_rng(cells).permutation(cells).astype(np.int32)
    after = dict(zip(order.tolist(), np.roll(order, -1).tolist(), strict=True))
    for hops, warm in ((1, 0), (7, 3), (cells, 0), (cells + 8, 17)):
        for path in PATHS:
            at = 0
            for _ in range(hops + (0 if path == "shared" else warm)):
                at = after[at]
            assert s.last_cell(path, order, hops, warm) == at, (path, hops, warm)


@pytest.mark.parametrize("cells", [1, 33, 700])
def test_811_a_ring_links_every_cell_and_nothing_else(cells: int) -> None:
    s, (_, stream) = section("8.1.1"), gpu.open_device()
    order = np.random.default_rng(cells).permutation(cells).astype(np.int32)
    ring = gpu.to_device(np.full((cells + 1, s.LINE // 8), 7, np.uint64), stream)
    s.link(order, ring.buffer, stream)
    made = ring.to_host(stream)
    expected = np.full_like(made, 7)
    expected[order, 0] = int(ring.buffer.handle) + s.LINE * np.roll(order, -1).astype(np.uint64)
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("count", [1, 31, 33, 512, 513, 1500])
@pytest.mark.parametrize("loads", [1, 7, 20])
def test_811_reads(count: int, loads: int) -> None:
    s = section("8.1.1")
    words = np.random.default_rng(count).integers(0, 2**32, (count, 4), dtype=np.uint32)
    for path in PATHS:
        for grid in (1, 3):
            step = s.BLOCK * (grid if path == "cg" else 1)
            expected = s.reference_read(words, grid * s.BLOCK, step, loads)
            np.testing.assert_array_equal(s.read(path, words, loads, grid), expected, err_msg=f"{path}, {grid}")


@pytest.mark.simulator
def test_811_a_set_is_not_read_before_it_is_whole() -> None:
    from common.simt.races import watching

    with watching() as races:
        section("8.1.1").read("shared", np.ones((700, 4), np.uint32), 5)
    assert not races


def test_811_more_than_48_kib_of_shared_memory() -> None:
    s = section("8.1.1")
    order = s.random_order(1000)
    assert order.size * s.LINE > 48 << 10
    assert s.last_cell("shared", order, 41) == s.reference_chase(order, 41)


def test_811_bad_input() -> None:
    s, order = section("8.1.1"), np.arange(4, dtype=np.int32)
    for bad, hops, warm in (
        (order.astype(np.int64), 1, 0),
        (order[:0], 1, 0),
        (order[None], 1, 0),
        (np.array([0, 1, 1], np.int32), 1, 0),
        (order[1:], 1, 0),
        (order, 0, 0),
        (order, -1, 0),
        (order, 1, -1),
        (order, 1 << 31, 0),
        (order, 1, 1 << 31),
        (list(range(4)), 1, 0),
    ):
        with pytest.raises(ValueError, match=r"expected int32, each cell once, hops > 0, got int"):
            s.last_cell("ca", bad, hops, warm)
    words = np.ones((4, 4), np.uint32)
    for bad, loads, grid in (
        (words.astype(int), 1, 1),
        (words[0], 1, 1),
        (words[:, :3], 1, 1),
        (words[:0], 1, 1),
        (words, 0, 1),
        (words, 1, 0),
        (words, 1 << 31, 1),
        (words, 1, 1 << 20),
        (words.tolist(), 1, 1),
    ):
        with pytest.raises(ValueError, match=r"expected uint32 \(count, 4\), loads and blocks, got u?int"):
            s.read("ca", bad, loads, grid)


@pytest.mark.parametrize(("name", "words"), [("reference_chase", "chase, "), ("reference_read", "read_set, ")])
def test_811_a_wrong_result_is_noticed(name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("8.1.1")
    right = getattr(s, name)
    monkeypatch.setattr(s, name, lambda *arguments: right(*arguments) + 1)
    with pytest.raises(Mismatch, match=words):
        s.verify(40)


def measured_rows() -> list[results.Row]:
    """What the hierarchy of a made-up GPU would give: 10 SMs at 2 GHz, an L1 of 128 KiB, an L2 of 8 MiB."""

    def row(name: str, size: str, taken: float, **figures: float) -> results.Row:
        return results.Row("8.1.1", name, size, "", taken / 2e9, 0.01, figures=figures, run="run")

    facts = {
        "SMs": 10,
        "G FMA/s": 1000,
        "registers, bytes": 256 << 10,
        "shared, bytes": 100 << 10,
        "L2, bytes": 8 << 20,
    }
    rows = [row("shared memory", "32 KiB", 24, cycles=24, **facts, **{"memory, bytes": 16 << 30})]
    rows += [row(f"L2, {k} line", "of 64", c, cycles=c) for k, c in (("nearest", 190), ("farthest", 260))]
    for log in range(12, 26):
        nbytes = 1 << log
        near, far = 32 if nbytes <= 128 << 10 else 220, 220 if nbytes <= 8 << 20 else 600
        figures = {"cycles, cg": far, "cycles, ca": near, "GB/s, ca": 2560.0 if near == 32 else 900}
        figures["GB/s, cg"] = 1000.0 if far == 220 else 300.0
        if nbytes <= 64 << 10:
            figures["GB/s, shared"] = 2500.0
        rows.append(row("working set", f"{nbytes >> 10} KiB", far, **figures))
    return rows


def test_811_where_a_curve_steps() -> None:
    s = section("8.1.1")
    assert s.step({1: 10, 2: 10.5, 4: 15, 8: 15.1, 16: 20}, 15) == (4, 8)
    assert s.step({1: 10, 2: 10.5, 4: 14.9}, 11) == (2, 4)
    for never in ({1: 10, 2: 10}, {}):
        with pytest.raises(IndexError):
            s.step(never, 15)


def test_811_levels() -> None:
    found = section("8.1.1").levels(measured_rows())
    assert found == {
        "registers": ("256 KiB an SM", None, None, 8000),  # 8 bytes for each of 10^12 FMA
        "shared memory": ("100 KiB an SM", None, 24, 2500),
        "L1": ("none", (128 << 10, 256 << 10), 32, 2560),
        "L2": ("8 MiB", (8 << 20, 16 << 20), 220, 1000),
        "device memory": ("16 GiB", None, 600, 300),
    }


def test_811_recorded_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recorded_as(measured_rows(), tmp_path, monkeypatch)
    printed = output_of("8.1.1", "--quick", "--plot", "--no-bench", capfd=capfd)
    assert "recorded on NVIDIA Test, 2031-02-03" in printed
    for level in (
        "registers +256 KiB an SM +— +— +— +400 +8.00 TB/s",
        "shared memory +100 KiB an SM +— +24.0 +12.0 +125 +2.50 TB/s",
        "L1 +none +128 KiB and 256 KiB +32.0 +16.0 +128 +2.56 TB/s",
        "L2 +8 MiB +8 MiB and 16 MiB +220.0 +110.0 +50 +1.00 TB/s",
        "device memory +16 GiB +— +600.0 +300.0 +15 +300 GB/s",
    ):
        assert re.search(rf"^ {level} *$", printed, re.MULTILINE), level
    assert "nearest 190, farthest 260" in printed
    assert len(plots(printed)) == 1


@pytest.mark.parametrize("kept", ["working set", "shared memory", "L2, nearest line"])
def test_811_rows_of_another_version(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recorded_as([row for row in measured_rows() if row.name == kept], tmp_path, monkeypatch)
    printed = output_of("8.1.1", "--quick", "--plot", "--no-bench", capfd=capfd)
    assert "not run: the table of the levels: these figures are of another version" in printed


def test_811_what_it_prints(capfd: pytest.CaptureFixture[str]) -> None:
    printed = output_of("8.1.1", "--size", "99", "--no-bench", capfd=capfd)
    for path in PATHS:
        assert re.search(rf"^ chase, {path} +1 +0 .* exact", printed, re.MULTILINE)
        assert re.search(rf"^ read_set, {path} +1024 +0 .* exact", printed, re.MULTILINE)
    assert ("not run: cycles and bandwidths" in printed) is gpu.SIMULATED


def test_811_too_much_for_shared_memory(capfd: pytest.CaptureFixture[str]) -> None:
    s, most = section("8.1.1"), gpu.Device().properties.max_shared_memory_per_block_optin
    for call in (
        lambda: s.last_cell("shared", s.random_order(most // s.LINE + 1), 1),
        lambda: s.read("shared", np.ones((most // 16 + 1, 4), np.uint32), 1),
    ):
        with pytest.raises(ValueError, match=f"in shared memory {most} bytes at most"):
            call()
    assert exit_code(section("8.1.1").main, ["--size", "1M"]) == USAGE
    assert "--size is the cells of a ring" in capfd.readouterr().err


@pytest.mark.gpu
@pytest.mark.slow
def test_811_each_level_is_farther_and_slower() -> None:
    s = section("8.1.1")
    rows = s.benchmark()
    _, ends, cycles, rates = zip(*s.levels(rows).values(), strict=True)
    assert cycles[1] <= 1.2 * cycles[2] and cycles[2] < cycles[3] / 3 and cycles[3] < cycles[4] / 1.5
    assert rates[0] > rates[1] > 1.5 * rates[3] and rates[2] > rates[3] > rates[4]
    assert ends[3][0] < 1.1 * rows[0].figures["L2, bytes"] and ends[3][1] > rows[0].figures["L2, bytes"] / 4


# --- 8.1.2: allocators ----------------------------------------------------------------------------------------


class Upstream:
    """Hands out addresses without memory behind them, at most `limit` bytes at a time, each right behind another."""

    def __init__(self, limit: int = 1 << 60) -> None:
        self.limit, self.next, self.taken, self.calls = limit, 1 << 20, {}, 0

    def allocate(self, nbytes: int, *, stream: object) -> SimpleNamespace:
        if sum(self.taken.values()) + nbytes > self.limit:
            raise MemoryError
        address, self.next = self.next, self.next + nbytes
        self.taken[address], self.calls = nbytes, self.calls + 1
        return SimpleNamespace(handle=address, size=nbytes, close=lambda: self.free(address))

    def free(self, address: int) -> None:
        assert address in self.taken, "not the start of what was taken"
        del self.taken[address]


STREAMS = SimpleNamespace(handle=1), SimpleNamespace(handle=2)


def assert_sound(allocator: Any, upstream: Upstream, live: dict[int, tuple[int, Any]]) -> None:
    """The blocks tile the segments, none overlaps, no two free neighbours, and the free lists have what is free."""
    blocks = sorted(allocator.blocks.values())
    for start, nbytes in upstream.taken.items():
        own = [block for block in blocks if (block.segment.handle, block.segment.size) == (start, nbytes)]
        edges = [start, *(block.address + block.size for block in own)]
        assert [block.address for block in own] == edges[:-1] and edges[-1] == start + nbytes
        assert len({block.pool for block in own}) == 1
        assert not any(a.free and b.free for a, b in pairwise(own))
    assert sum(block.size for block in blocks) == sum(upstream.taken.values())
    assert {block.address + block.size: block for block in blocks} == allocator.ends
    used = {block.address: block for block in blocks if not block.free}
    assert used.keys() == live.keys()
    for address, (nbytes, stream) in live.items():
        assert address % 512 == 0 and 0 <= used[address].size - nbytes < 512
        assert used[address].pool == (stream.handle, nbytes <= 1 << 20)
    listed = [(*entry, pool) for pool, entries in allocator.free_lists.items() for entry in entries]
    assert sorted(listed) == sorted((b.size, b.address, b.pool) for b in blocks if b.free)
    assert all(entries == sorted(entries) for entries in allocator.free_lists.values())


requests = st.one_of(st.integers(1, 3000), st.integers(1, 1 << 20), st.integers(1 << 20, 7 << 20))
steps = st.lists(st.one_of(st.tuples(requests, st.integers(0, 1)), st.integers(0, 99), st.just("release")), max_size=60)


@given(steps)
@settings(max_examples=80)
def test_812_no_overlap_nothing_lost_all_merged(steps: list[Any]) -> None:
    upstream = Upstream()
    allocator, live = section("8.1.2").CachingAllocator(upstream), {}
    for step in steps:
        if step == "release":
            allocator.release()
            used = {block.segment.handle for block in allocator.blocks.values() if not block.free}
            assert used == upstream.taken.keys()
        elif isinstance(step, tuple):
            nbytes, stream = step[0], STREAMS[step[1]]
            live[allocator.allocate(nbytes, stream)] = nbytes, stream
        elif live:
            address = sorted(live)[step % len(live)]
            allocator.free(address)
            del live[address]
        assert_sound(allocator, upstream, live)
    for address in live:
        allocator.free(address)
    assert_sound(allocator, upstream, {})
    for block in allocator.blocks.values():
        assert (block.address, block.size) == (block.segment.handle, block.segment.size)
    allocator.release()
    assert not upstream.taken and not allocator.blocks and not allocator.ends


def test_812_best_fit_and_splitting() -> None:
    s, upstream, (stream, _) = section("8.1.2"), Upstream(), STREAMS
    allocator, kib = s.CachingAllocator(upstream), 1 << 10
    first, *held = [allocator.allocate(nbytes * kib, stream) for nbytes in (100, 1, 20, 1, 50, 1)]
    assert np.diff([first, *held]).tolist() == [100 * kib, kib, 20 * kib, kib, 50 * kib]  # one after the other
    for address in (first, held[1], held[3]):
        allocator.free(address)
    assert (
        allocator.allocate(20 * kib, stream) == held[1]
    )  # the hole of that size, and not the first that is large enough
    assert allocator.allocate(21 * kib, stream) == held[3]
    assert allocator.allocate(29 * kib, stream) == held[3] + 21 * kib  # what was cut off
    assert allocator.allocate(1, stream) == first and allocator.allocate(513, stream) == first + 512
    assert upstream.calls == 1


def test_812_what_a_pool_is_for() -> None:
    s, upstream, (one, two) = section("8.1.2"), Upstream(), STREAMS
    allocator = s.CachingAllocator(upstream)
    address = allocator.allocate(1000, one)
    allocator.free(address)
    assert allocator.allocate(1000, two) != address, "another stream must not get it: nothing orders the two"
    large = allocator.allocate((1 << 20) + 1, one)
    assert large != address, "a large request does not come out of a segment for small ones, though it would fit"
    assert upstream.calls == 3
    assert allocator.allocate(1 << 20, one) == address, "a small request of the same stream gets it at once"
    assert upstream.taken[large] == 2 << 20 and upstream.taken[allocator.allocate(5 << 20, one)] == 6 << 20


def test_812_segments_that_touch_do_not_merge() -> None:
    s, upstream, (stream, _) = section("8.1.2"), Upstream(), STREAMS
    allocator = s.CachingAllocator(upstream)
    a, b = (allocator.allocate(2 << 20, stream) for _ in range(2))
    assert b == a + (2 << 20)
    for address in (b, a):
        allocator.free(address)
    assert {(block.address, block.size) for block in allocator.blocks.values()} == {(a, 2 << 20), (b, 2 << 20)}
    allocator.release()
    assert not upstream.taken


def test_812_out_of_memory_gives_back_what_is_only_kept() -> None:
    s, upstream, (stream, _) = section("8.1.2"), Upstream(limit=8 << 20), STREAMS
    allocator = s.CachingAllocator(upstream)
    small, large = allocator.allocate(100, stream), allocator.allocate(6 << 20, stream)
    with pytest.raises(MemoryError):
        allocator.allocate(2 << 20, stream)
    assert_sound(allocator, upstream, {small: (100, stream), large: (6 << 20, stream)})
    allocator.free(large)
    with pytest.raises(MemoryError):
        allocator.allocate(7 << 20, stream)  # 6 MiB have gone back, but 2 are in use
    assert upstream.taken.keys() == {small}
    allocator.free(small)
    assert upstream.taken[allocator.allocate(7 << 20, STREAMS[1])] == 8 << 20
    assert len(upstream.taken) == 1


def test_812_bad_frees_and_sizes() -> None:
    s, (stream, _) = section("8.1.2"), STREAMS
    allocator = s.CachingAllocator(Upstream())
    address = allocator.allocate(1000, stream)
    allocator.free(address)
    for wrong in (address, address + 512, 0):
        with pytest.raises(ValueError, match=f"no block in use begins at {wrong:#x}"):
            allocator.free(wrong)
    for nbytes in (0, -1, 1.5, float("nan")):
        with pytest.raises(ValueError, match=f"expected a positive whole number of bytes, got {nbytes}"):
            allocator.allocate(nbytes, stream)
    assert isinstance(allocator.allocate(1e6, stream), int)


def test_812_threads_may_share_an_allocator() -> None:
    from concurrent.futures import ThreadPoolExecutor

    upstream = Upstream()
    allocator = section("8.1.2").CachingAllocator(upstream)

    def work(seed: int) -> None:
        generator, mine = np.random.default_rng(seed), []
        for _ in range(300):
            if mine and generator.random() < 0.5:
                allocator.free(mine.pop(generator.integers(len(mine))))
            else:
                mine.append(allocator.allocate(int(generator.integers(1, 2 << 20)), STREAMS[0]))
        for address in mine:
            allocator.free(address)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert_sound(allocator, upstream, {})
    allocator.release()
    assert not upstream.taken


def test_812_an_allocator_holds_its_lock() -> None:
    allocator = section("8.1.2").CachingAllocator(Upstream())
    address, held = allocator.allocate(1, STREAMS[0]), []

    class Lock:
        def __enter__(self) -> None:
            held.append(True)

        def __exit__(self, *error: object) -> None:
            held.pop()

    add, allocator.lock, seen = allocator._add, Lock(), []
    allocator._add = lambda block: seen.append(bool(held)) or add(block)
    allocator.free(address)
    allocator.allocate(1, STREAMS[0])
    assert seen and all(seen)


def test_812_the_picture_of_fragmentation() -> None:
    s, allocator = section("8.1.2"), section("8.1.2").CachingAllocator(Upstream())
    seen = [s.state(allocator) for _ in s.fragment(allocator, STREAMS[0])]
    holes, kib = "..##" * 8, 1 << 10
    assert seen == [
        ("#" * 32, 2048 * kib, 0, 0),
        (holes, 1024 * kib, 1024 * kib, 128 * kib),
        (f"{holes}\n####{'.' * 28}", 1280 * kib, 2816 * kib, 1792 * kib),
        (f"{'.' * 16}{holes[16:]}\n####{'.' * 28}", 768 * kib, 3328 * kib, 1792 * kib),
        (f"{'.' * 32}\n{'.' * 32}", 0, 4096 * kib, 2048 * kib),
    ]
    assert s.state(allocator, 1 << 20) == ("..\n..", 0, 4096 * kib, 2048 * kib)
    allocator.allocate(1, STREAMS[0])
    assert s.state(allocator, 1 << 20)[0] == "#.\n.."


# --- 8.1.2: memory on the device ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 31, 33, 300_001])
def test_812_copies_in_memory_of_every_allocator(n: int, capfd: pytest.CaptureFixture[str]) -> None:
    s, x = section("8.1.2"), np.random.default_rng(n).standard_normal(n, dtype=np.float32)
    _, stream = gpu.open_device()
    ways = s.allocators(stream)
    assert list(ways) == ["cuMemAlloc"] * (not gpu.SIMULATED) + ["driver's pool", "ours"]
    assert ("not run: cuMemAlloc" in capfd.readouterr().out) is gpu.SIMULATED
    for way in ways.values():
        np.testing.assert_array_equal(s.relay(x, stream, *way), x)
    allocator = ways["ours"][1].__self__
    assert s.state(allocator)[1] == 0
    allocator.release()
    assert not allocator.blocks
    try:
        np.testing.assert_array_equal(s.copy_pycuda(x), x)
    except Unavailable as missing:
        pytest.skip(str(missing))


def test_812_a_freed_block_is_used_again_at_once() -> None:
    s, (device, stream), addresses = section("8.1.2"), gpu.open_device(), []
    allocator = s.CachingAllocator(device.memory_resource)

    def allocate(nbytes: int) -> int:
        addresses.append(allocator.allocate(nbytes, stream))
        return addresses[-1]

    s.relay(np.ones(1000, np.float32), stream, allocate, allocator.free)
    assert addresses[2] == addresses[0] != addresses[1]


def test_812_all_is_given_back() -> None:
    s, (device, stream) = section("8.1.2"), gpu.open_device()
    for allocate, free in s.allocators(stream).values():
        memory = allocate(1 << 20)
        view = gpu.Buffer.from_handle(int(getattr(memory, "handle", memory)), 1 << 20, owner=memory)
        view.fill(7, stream=stream)
        stream.sync()
        free(memory)
    if gpu.SIMULATED:
        before, allocator = gpu.free_memory(), s.CachingAllocator(device.memory_resource)
        address = allocator.allocate(100, stream)
        assert gpu.free_memory() == before - (2 << 20)
        allocator.free(address)
        assert gpu.free_memory() == before - (2 << 20)
        allocator.release()
        assert gpu.free_memory() == before


# --- 8.1.2: patterns ------------------------------------------------------------------------------------------


def numbers(n: int) -> np.ndarray:
    """Small whole numbers: what a move makes of them is exact."""
    return np.random.default_rng(n).integers(-999, 999, n).astype(np.float32)


def pattern(name: str) -> Any:
    return next(p for p in section("8.1.2").PATTERNS if p.name == name)


def test_812_references_by_hand() -> None:
    s, x = section("8.1.2"), np.arange(16, dtype=np.float32)
    np.testing.assert_array_equal(s.reference(pattern("copy"), x), x)
    np.testing.assert_array_equal(s.reference(pattern("copy, 1 float later"), x), x[1:])
    np.testing.assert_array_equal(s.reference(pattern("copy, stride 8"), x)[:4], [0, 8, 1, 9])
    aos = s.reference(pattern("move_aos"), x)  # DT is 1/4: x += vx / 4
    np.testing.assert_array_equal(aos[:8], [0 + 1, 1 + 1.25, 2 + 1.5, 3, 4, 5, 6, 7])
    soa = s.reference(pattern("move_soa"), x)  # two particles: their x, y, z, mass, vx, ...
    np.testing.assert_array_equal(soa[:8], [0 + 2, 1 + 2.25, 2 + 2.5, 3 + 2.75, 4 + 3, 5 + 3.25, 6, 7])
    np.testing.assert_array_equal(np.concatenate([aos[3:8], soa[8:]]), [*range(3, 8), *range(8, 16)])


@pytest.mark.parametrize("n", [1, 31, 33, 255, 1000, 4097, 10_007, 16_384])
def test_812_every_pattern(n: int) -> None:
    s = section("8.1.2")
    for p in s.PATTERNS:
        x = numbers(-(-n // p.multiple) * p.multiple + p.k * (p.kernel == "copy_shifted"))
        before, out = x.copy(), s.run(p, x)
        assert out.dtype == np.float32
        np.testing.assert_array_equal(out, s.reference(p, x), err_msg=p.name)
        np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("shift", [0, 1, 3])
def test_812_vectors_in_memory_that_16_does_not_divide(shift: int) -> None:
    s, (_, stream) = section("8.1.2"), gpu.open_device()
    for n in (1, 1000, 9001):
        x = numbers(n + 8)
        d_x, d_y = gpu.to_device(x, stream), gpu.to_device(np.full_like(x, 7777), stream)
        views = []
        for array, at in ((d_x, shift), (d_y, 1)):
            address = int(array.buffer.handle) + 4 * at
            views.append(gpu.DeviceArray(gpu.Buffer.from_handle(address, 4 * n, owner=array), n, np.float32))
        s.start(stream, pattern("copy_float4"), *views)
        expected = np.full_like(x, 7777)
        expected[1 : 1 + n] = x[shift : shift + n]
        np.testing.assert_array_equal(d_y.to_host(stream), expected, err_msg=str(n))


@pytest.mark.parametrize("n", [1, 31, 1000, 4096, 10_007])
def test_812_a_copy_writes_its_own_elements_only(n: int) -> None:
    s, (_, stream) = section("8.1.2"), gpu.open_device()
    x = numbers(n + 1)
    for p in (p for p in s.PATTERNS if p.kernel in ("copy", "copy_shifted", "copy_float4")):
        d_x, d_all = gpu.to_device(x, stream), gpu.to_device(np.full(n + 40, 7777, np.float32), stream)
        d_y = gpu.DeviceArray(gpu.Buffer.from_handle(int(d_all.buffer.handle), 4 * n, owner=d_all), n, np.float32)
        s.start(stream, p, d_x, d_y)
        out = d_all.to_host(stream)
        shift = p.k * (p.kernel == "copy_shifted")
        np.testing.assert_array_equal(out[:n], x[shift : shift + n], err_msg=p.name)
        assert (out[n:] == 7777).all(), p.name


def test_812_bad_input() -> None:
    s, words, (_, stream) = section("8.1.2"), "expected contiguous float32", gpu.open_device()
    way = s.allocators(stream)["ours"]
    for bad in (*(bad for bad, _ in bad_vectors(np.float32)), np.ones(10, np.float32)[::2], np.float32(1)):
        for call in (lambda x: s.relay(x, stream, *way), s.copy_pycuda, lambda x: s.run(s.PATTERNS[0], x)):
            with pytest.raises(ValueError, match=words):
                call(bad)
    assert not way[1].__self__.blocks
    for p in (p for p in s.PATTERNS if p.multiple > 1):
        with pytest.raises(ValueError, match=f"n > 0 and a multiple of {p.multiple}, got float32"):
            s.run(p, np.ones(p.multiple + 1, np.float32))
    with pytest.raises(ValueError, match=words):
        s.run(pattern("copy, 1 float later"), np.ones(1, np.float32))  # nothing is left of it


@pytest.mark.parametrize("name", ["copy", "copy_float4", "move_aos_float4"])
def test_812_a_wrong_result_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("8.1.2")
    right = s.reference
    monkeypatch.setattr(s, "reference", lambda p, x: right(p, x) + 1e-3 * (p.name == name))
    with pytest.raises(Mismatch, match=rf"^{re.escape(name)}: "):
        s.verify(1000)


@pytest.mark.simulator
def test_812_a_count_that_is_not_what_was_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("8.1.2")
    s.compare(1 << 13)
    monkeypatch.setattr(s, "PATTERNS", [s.PATTERNS[1]._replace(loads=4)])
    with pytest.raises(Mismatch, match="copy, 1 float later: 5 sectors a load, by hand 4"):
        s.compare(1 << 13)


def test_812_what_it_prints(capfd: pytest.CaptureFixture[str]) -> None:
    printed = output_of("8.1.2", "--size", "3001", "--plot", "--no-bench", capfd=capfd)
    for name in ("driver's pool", "ours", "PyCUDA's mem_alloc"):
        assert re.search(rf"^ copy in memory of {name} +3001 +0 ", printed, re.MULTILINE)
    assert re.search(r"^ every second one is freed +(\.\.##){8} +1024 KiB +1024 KiB +128 KiB *$", printed, re.MULTILINE)
    assert len(plots(printed)) == 1
    assert ("not run: PyTorch's allocator" in printed) is gpu.SIMULATED
    if gpu.SIMULATED:
        assert re.search(r"^ move_aos +768 +32 +32 +384 +32 +32 +8 *$", printed, re.MULTILINE)
        assert re.search(r"^ move_soa +768 +4 +4 +384 +4 +4 +1 *$", printed, re.MULTILINE)


def test_812_recorded_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [
        results.Row("8.1.2", "allocate, free: ours", "1 MiB", "", 1e-6, 0.01, peer="cuMemAlloc", of_peer=99, run="run"),
        results.Row("8.1.2", "copy", "2^28", "f32", 1e-3, 0.01, bytes=8 << 28, of_copy=0.5, run="run"),
    ]
    recorded_as(rows, tmp_path, monkeypatch)
    printed = output_of("8.1.2", "--quick", "--no-bench", capfd=capfd)
    assert "recorded on NVIDIA Test, 2031-02-03" in printed
    assert re.search(r"^ allocate, free: ours +1 MiB .*99×", printed, re.MULTILINE)
    assert re.search(r"^ copy +2\^28 .* 2147 GB/s +50\.0%", printed, re.MULTILINE)
    recorded_as([], tmp_path / "none", monkeypatch)
    assert "nothing to show" in output_of("8.1.2", "--quick", "--no-bench", capfd=capfd)


@pytest.mark.gpu
@pytest.mark.slow
def test_812_figures() -> None:
    rows = {(row.name, row.size): row for row in section("8.1.2").benchmark()}
    named = {name: row for (name, _), row in rows.items()}
    assert named["copy_float4"].of_peer > 0.98, "a vectorised copy is as fast as the driver's"
    assert named["move_soa_float4"].of_copy > 2 * named["move_aos"].of_copy
    assert named["copy, stride 8"].of_copy < 0.5 * named["copy"].of_copy
    for size in ("1 MiB", "64 MiB"):  # of small ones the driver keeps some itself
        assert rows["allocate, free: ours", size].of_peer > 2
