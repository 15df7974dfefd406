"""Sections 1.3.1 and 1.3.2, memory and copies: each kind of memory and of copy against NumPy, on whatever is there."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from common import gpu, results
from common.cli import Unavailable
from common.timing import Timing
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

# --- 1.3.1 ----------------------------------------------------------------------------------------------------


def test_131_reference_by_hand() -> None:
    out = section("1.3.1").reference(np.array([0, 1, -0.5], np.float32))
    np.testing.assert_array_equal(out, [1, 4, -0.5])
    assert out.dtype == np.float64


@pytest.mark.parametrize("n", SIZES)
def test_131_every_kind(n: int) -> None:
    s = section("1.3.1")
    x = s.random_vector(n)
    before = x.copy()
    for name, kind in s.KINDS.items():
        try:
            out = s.three_x_plus_1(x, kind)
        except Unavailable as missing:
            assert gpu.SIMULATED and name in ("device", "managed"), missing
            continue
        assert out.dtype == np.float32
        np.testing.assert_allclose(out, s.reference(x), rtol=0, atol=8 * 2.0**-24, equal_nan=False, err_msg=name)
        np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("kind", ["device", "pooled", "managed"])
@pytest.mark.parametrize("n", SIZES)
def test_131_pycuda(n: int, kind: str) -> None:
    s = section("1.3.1")
    x = s.random_vector(n)
    try:
        out = s.three_x_plus_1_pycuda(x, kind)
    except Unavailable as missing:
        assert not gpu.SIMULATED or kind != "device"
        pytest.skip(str(missing))
    np.testing.assert_allclose(out, s.reference(x), rtol=0, atol=8 * 2.0**-24, equal_nan=False)


def test_131_bad_input() -> None:
    for x, words in bad_vectors(np.float32):
        for call in (section("1.3.1").three_x_plus_1, section("1.3.1").three_x_plus_1_pycuda):
            with pytest.raises(ValueError, match=f"expected a float32 vector.*{words}"):
                call(x)
    with pytest.raises(ValueError, match=r"expected a kind of memory out of .*, got 'poled'"):
        section("1.3.1").three_x_plus_1_pycuda(np.ones(3, np.float32), "poled")


@pytest.mark.parametrize("nbytes", [0, -4])
def test_131_no_memory_of_no_bytes(nbytes: int) -> None:
    s, _ = section("1.3.1"), gpu.open_device()
    for kind in s.KINDS.values():
        with (
            pytest.raises(ValueError, match=f"expected a positive number of bytes, got {nbytes}"),
            s.allocated(kind, nbytes),
        ):
            pass


def test_131_input_that_is_not_contiguous() -> None:
    s, (_, stream) = section("1.3.1"), gpu.open_device()
    x = s.random_vector(1000)
    for name, kind in s.KINDS.items():
        for part in (x[::2], x[::-1]):
            if not (gpu.SIMULATED and name in ("device", "managed")):
                out = s.three_x_plus_1(part, kind)
                np.testing.assert_allclose(out, s.reference(part), rtol=0, atol=8 * 2.0**-24, equal_nan=False)
    with pytest.raises(ValueError, match="not contiguous"):
        gpu.copy_to_buffer(gpu.empty(500, np.float32, stream).buffer, x[::2], stream)


def test_131_memory_is_given_back_even_after_an_error() -> None:
    s, _ = section("1.3.1"), gpu.open_device()
    s.three_x_plus_1(s.random_vector(10))  # what a first use keeps
    before = gpu.free_memory()
    for kind in (s.from_pool,) if gpu.SIMULATED else (s.from_driver, s.from_pool):
        with pytest.raises(RuntimeError, match="in between"), s.allocated(kind, 64 << 20):
            if kind is not s.from_pool or gpu.SIMULATED:  # the pool may have had it already
                assert gpu.free_memory() <= before - (64 << 20)
            raise RuntimeError("in between")
        if kind is not s.from_pool or gpu.SIMULATED:  # the pool keeps it for the next one
            assert gpu.free_memory() >= before - (2 << 20)


def test_131_pinned_memory_is_seen_by_host_and_device() -> None:
    s, (_, stream) = section("1.3.1"), gpu.open_device()
    with s.allocated(s.pinned, 4 * 1000) as memory, s.allocated(s.from_pool, 4 * 1000) as target:
        values = memory.host.view(np.float32)
        values[:] = np.arange(1000)
        s.start(stream, memory, target)
        np.testing.assert_array_equal(s.read(target, stream), 3 * np.arange(1000) + 1)
        values[:] = 0
        s.start(stream, target, memory)  # the kernel writes what the host then finds, without a copy
        stream.sync()
        np.testing.assert_array_equal(values, 9 * np.arange(1000) + 4)


def test_131_who_frees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.3.1")
    found = s.lifetimes(1 << 21)
    assert [held for _, held in found] == [1, 1, 0, 1, 0, 3, 2] and "is_closed is True" in found[4][0]
    forgotten = []

    class Leaky:
        """A pool of which somebody keeps every Buffer."""

        def __init__(self, device: object) -> None:
            self.pool = gpu.DeviceMemoryResource(device)

        @property
        def attributes(self) -> object:
            return self.pool.attributes

        def allocate(self, nbytes: int, stream: object) -> object:
            forgotten.append(self.pool.allocate(nbytes, stream=stream))
            return forgotten[-1]

    monkeypatch.setattr(s, "DeviceMemoryResource", Leaky)
    with pytest.raises(Mismatch, match="who frees it"):
        s.lifetimes(1 << 21)


def test_131_a_pool_knows_what_is_in_use_page_locked_memory_has_none() -> None:
    device, stream = gpu.open_device()
    pool = gpu.DeviceMemoryResource(device)
    device.sync()
    before = pool.attributes.used_mem_current
    buffer = pool.allocate(4 << 20, stream=stream)
    device.sync()
    assert pool.attributes.used_mem_current == before + (4 << 20) <= pool.attributes.reserved_mem_current
    buffer.close()
    device.sync()
    assert pool.attributes.used_mem_current == before
    with pytest.raises(AttributeError, match="attributes"):
        gpu.LegacyPinnedMemoryResource().attributes  # noqa: B018


def test_131_out_of_memory_leaves_the_device_working() -> None:
    s, _ = section("1.3.1"), gpu.open_device()
    s.three_x_plus_1(s.random_vector(10))  # what a first use keeps
    before, found = gpu.free_memory(), dict(s.out_of_memory())
    assert "CUDA_ERROR_OUT_OF_MEMORY" in found["the answer"] and gpu.free_memory() >= before - (64 << 20)
    wanted, free = (int(found[what].replace(",", "").removesuffix(" bytes")) for what in ("asked for", "free before"))
    assert wanted == free + free // 4 and abs(free - before) <= 64 << 20


def test_131_an_allocation_that_should_fail_and_does_not_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.3.1")
    freed: list[int] = []
    generous = SimpleNamespace(free=lambda: freed.append(1))
    monkeypatch.setattr(s, "from_pool" if gpu.SIMULATED else "from_driver", lambda nbytes: generous)
    with pytest.raises(Mismatch, match="were allocated where"):
        s.out_of_memory()
    assert freed == [1]


def test_131_refused_pinned_memory_is_halved_and_said(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    s, asked = section("1.3.1"), []

    def scarce(nbytes: int) -> SimpleNamespace:
        asked.append(nbytes)
        if nbytes > 300_000:
            raise gpu.CUDAError("CUDA_ERROR_OUT_OF_MEMORY")
        return SimpleNamespace(free=lambda: None)

    monkeypatch.setattr(s, "pinned", scarce)
    assert s.pinnable(1 << 20) == 1 << 18 and asked == [1 << 20, 1 << 19, 1 << 18]
    assert "1,048,576 bytes of pinned memory: CUDA_ERROR_OUT_OF_MEMORY; half of that is tried" in capfd.readouterr().out
    monkeypatch.setattr(s, "pinned", lambda nbytes: scarce(1 << 30))
    with pytest.raises(gpu.CUDAError):
        s.pinnable(1 << 20)


def test_131_what_it_prints(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "recorded", lambda number: [])
    printed = output_of("1.3.1", "--quick", capfd=capfd)
    assert "works on: verified" in printed and f"not run: {results.NOTHING}" in printed
    assert "CUDA_ERROR_OUT_OF_MEMORY" in printed and re.search(
        r"a list that nobody reads any more: a leak +3\b", printed
    )
    assert ("not run: cuMemAlloc and managed memory" in printed) == gpu.SIMULATED
    reasons = re.findall(r"^not run: .*", printed, flags=re.MULTILINE)
    assert len(reasons) == len(set(reasons))


def test_131_recorded_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ("allocate, free: device", "kernel reads: device")
    recorded_as([results.Row("1.3.1", name, "64 MiB", "f32", 1e-3, 0.0) for name in names], tmp_path, monkeypatch)
    printed = output_of("1.3.1", "--quick", capfd=capfd)
    assert "recorded on NVIDIA Test, 2031-02-03, not measured here" in printed
    assert all(name in printed for name in names)


# --- 1.3.2 ----------------------------------------------------------------------------------------------------


def test_132_reference_by_hand() -> None:
    s = section("1.3.2")
    np.testing.assert_array_equal(s.reference(np.array([5, 7, 11], np.uint32)), [23, 5 + 14 + 33])
    largest = np.full(3, 2**32 - 1, np.uint32)
    np.testing.assert_array_equal(s.reference(largest), [3 * (2**32 - 1), 6 * (2**32 - 1)])
    assert s.reference(largest).dtype == np.uint64


@pytest.mark.parametrize("n", [*SIZES, 300_001])
def test_132_there_and_back(n: int) -> None:
    s = section("1.3.2")
    words = s.random_words(n)
    for kind in (s.pageable, s.pinned):
        out, sums = s.there_and_back(words, kind)
        np.testing.assert_array_equal(out, words)
        np.testing.assert_array_equal(sums, s.reference(words))


def test_132_the_checksum_sees_words_that_changed_places() -> None:
    s = section("1.3.2")
    words = s.random_words(1000)
    swapped = words.copy()
    swapped[[3, 700]] = words[[700, 3]]
    one, other = (s.there_and_back(w)[1] for w in (words, swapped))
    assert one[0] == other[0] and one[1] != other[1]


def test_132_bad_input() -> None:
    s = section("1.3.2")
    for words in ([1, 2], np.zeros(3, np.int32), np.zeros(0, np.uint32), np.zeros((4, 4), np.uint32)[:, ::2]):
        for call in (s.there_and_back, s.there_and_back_pycuda):
            with pytest.raises(ValueError, match="expected contiguous uint32"):
                call(words)


def test_132_a_part_of_a_buffer_lies_where_the_buffer_does() -> None:
    s, (device, stream) = section("1.3.2"), gpu.open_device()
    words, d_words = s.random_words(100), device.allocate(400, stream=stream)
    gpu.copy_to_buffer(d_words, words, stream)
    for kind in (s.pageable, s.pinned):
        whole, out = kind(np.zeros_like(words))
        part = gpu.Buffer.from_handle(int(whole.handle) + 40, 80, owner=whole)
        part.copy_from(gpu.Buffer.from_handle(int(d_words.handle) + 40, 80, owner=d_words), stream=stream)
        stream.sync()
        np.testing.assert_array_equal(out, [*np.zeros(10), *words[10:30], *np.zeros(70)])


@pytest.mark.parametrize(
    ("top", "left", "shape"), [(0, 0, (1, 1)), (0, 0, (40, 70)), (39, 69, (1, 1)), (3, 5, (17, 33)), (20, 0, (20, 70))]
)
def test_132_rectangles(top: int, left: int, shape: tuple[int, int]) -> None:
    s = section("1.3.2")
    image = s.random_words(40, 70)
    part = np.ascontiguousarray(image[top : top + shape[0], left : left + shape[1]])
    shown = np.zeros_like(image)
    shown[top : top + shape[0], left : left + shape[1]] = part
    for how in (s.copy_rows, s.copy_2d):
        try:
            out, sums = s.rectangle(image, top, left, shape, how)
        except Unavailable:
            assert gpu.SIMULATED and how is s.copy_2d
            continue
        np.testing.assert_array_equal(sums, s.reference(part), err_msg=how.__name__)
        np.testing.assert_array_equal(out, shown, err_msg=how.__name__)
    try:
        np.testing.assert_array_equal(s.rectangle_pycuda(image, top, left, shape), part)
    except Unavailable as missing:
        assert "2D" in str(missing) if gpu.SIMULATED else "PyCUDA" in str(missing)


@pytest.mark.simulator
def test_132_the_sums_of_a_block_do_not_race() -> None:
    from common.simt.races import watching

    s = section("1.3.2")
    with watching() as races:
        s.there_and_back(s.random_words(5000))
    assert not races


def test_132_rectangles_that_cannot_be() -> None:
    s = section("1.3.2")
    image = s.random_words(40, 70)
    for bad in (image.T, image[:, ::2], image.view(np.uint8), image.view(np.float32), image[:0]):
        for call in (s.rectangle, s.rectangle_pycuda, lambda bad, *_: s.pitched_and_back(bad)):
            with pytest.raises(ValueError, match="expected contiguous uint32"):
                call(bad, 3, 4, (7, 9))
    for top, left, shape in (
        (3, 65, (7, 9)),
        (-3, 4, (7, 9)),
        (3, -4, (7, 9)),
        (-40, 4, (7, 9)),
        (35, 4, (7, 9)),
        (0, 0, (0, 3)),
    ):
        for call in (s.rectangle, s.rectangle_pycuda):
            with pytest.raises(ValueError, match="rectangle inside"):
                call(image, top, left, shape)
    for call in (partial(s.rectangle, image[0], 0, 0, (1, 5)), partial(s.pitched_and_back, image[0])):
        with pytest.raises(ValueError, match="rectangle inside"):
            call()


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 1), (33, 31), (40, 127), (5, 4096)])
def test_132_pitched_memory(shape: tuple[int, int]) -> None:
    s = section("1.3.2")
    image = s.random_words(*shape)
    back, pitch = s.pitched_and_back(image)
    np.testing.assert_array_equal(back, image)
    assert pitch >= 4 * shape[1] and pitch % 16 == 0


def test_132_pycuda() -> None:
    s = section("1.3.2")
    words = s.random_words(1000)
    try:
        np.testing.assert_array_equal(s.there_and_back_pycuda(words), words)
    except Unavailable as missing:
        pytest.skip(str(missing))


def made_up() -> list[results.Row]:
    """Copies that take 10 µs and 1 s for 50 GB, and the rows that stand below."""
    rows = []
    for name, t0, rate in (("pinned to device", 10e-6, 50e9), ("pageable to device", 20e-6, 5e9)):
        rows += [results.Row("1.3.2", name, f"2^{k}", "bytes", t0 + 2**k / rate, 0.0) for k in range(10, 29, 2)]
    figures = {"GB/s": 55.0}
    return [*rows, results.Row("1.3.2", "pinned to device", "2^28, events", "bytes", 5e-3, 0.0, figures=figures)]


def test_132_the_model_is_found() -> None:
    s = section("1.3.2")
    curves = s.curves(made_up())
    assert list(curves) == ["pinned to device", "pageable to device"] and len(curves["pinned to device"]) == 10
    np.testing.assert_allclose(s.fit(curves["pinned to device"]), (10e-6, 50e9), rtol=1e-9)
    np.testing.assert_allclose(s.fit(curves["pageable to device"]), (20e-6, 5e9), rtol=1e-9)


def test_132_recorded_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recorded_as(made_up(), tmp_path, monkeypatch)
    printed = output_of("1.3.2", "--quick", "--plot", capfd=capfd)
    assert "recorded on NVIDIA Test, 2031-02-03, not measured here" in printed
    assert re.search(r"pinned to device +10\.0 µs +50\.0 GB/s +500 kB", printed)
    assert re.search(r"2\^28, events", printed)
    assert len(plots(printed)) == 1


def test_132_what_it_prints_without_figures(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "recorded", lambda number: [])
    printed = output_of("1.3.2", "--quick", capfd=capfd)
    assert "rectangle, rows: arrived" in printed and f"not run: {results.NOTHING}" in printed
    assert printed.count("not run: 2D copies") == gpu.SIMULATED  # said once


def test_132_a_wrong_copy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.3.2")
    with monkeypatch.context() as patch:
        patch.setattr(s, "there_and_back_pycuda", lambda words: words[::-1])
        with pytest.raises(Mismatch, match="PyCUDA: back"):
            s.verify(1000)
    rectangle = s.rectangle  # one pixel too far to the right
    monkeypatch.setattr(s, "rectangle", lambda image, top, left, *more: rectangle(image, top, left + 1, *more))
    with pytest.raises(Mismatch, match="rectangle, rows: back"):
        s.verify(1000)


def test_132_rows_whose_peer_is_not_there() -> None:
    s = section("1.3.2")
    times = {"pinned": Timing.of([2.0]), "both at once": Timing.of([4.0]), "torch, pinned": Timing.of([1.0])}
    peers = {name: f"torch, {name}" for name in times}
    ours, both, torchs = s.as_rows(dict, times, "2^30", 10**9, peers=peers)
    assert ours["peer"] == ("torch, pinned", times["torch, pinned"]) and "peer" not in both and "peer" not in torchs
    assert [row["figures"]["GB/s"] for row in (ours, both, torchs)] == [0.5, 0.5, 1.0]  # both: twice the bytes
    assert all(row["figures"] is None for row in s.as_rows(dict, times, "2^30"))


def test_132_a_report_of_few_rows(capfd: pytest.CaptureFixture[str]) -> None:
    s = section("1.3.2")
    for rows in (made_up()[:1], made_up()[-1:]):
        s.report(rows)
        assert (rows[0].size in capfd.readouterr().out) == (rows[0].size not in s.SIZES)


@pytest.mark.gpu
def test_132_calls_with_pinned_memory_return_at_once() -> None:
    s, (_, stream) = section("1.3.2"), gpu.open_device()
    words = s.random_words(1 << 24)
    d_words = gpu.empty(words.size, np.uint32, stream).buffer
    taken: dict[str, Timing] = s.returns(stream, {"pinned": s.pinned(words)[0]}, d_words)
    done, returned = (taken[f"pinned: the {what}"].seconds for what in ("copy is done", "call has returned"))
    assert returned < 0.2 * done


# --- on a GPU -------------------------------------------------------------------------------------------------


def outputs(number: str) -> list[np.ndarray]:
    """What the kernels of a section make of fixed inputs."""
    s = section(number)
    if number == "1.3.1":
        return [s.three_x_plus_1(s.random_vector(n)) for n in (33, 20_003)]
    return [s.there_and_back(s.random_words(n))[1] for n in (33, 300_001)]


@pytest.mark.gpu
@pytest.mark.parametrize("number", ["1.3.1", "1.3.2"])
def test_gpu_and_simulator_agree(number: str, tmp_path: Path) -> None:
    assert_both_agree(outputs(number), on_the_simulator(__name__, number, tmp_path))
