"""Sections 1.3.3 and 1.3.4, near memory and streams: each kernel against NumPy, on whatever device is there."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from common import gpu, results, timing
from common.cli import Unavailable
from common.verify import Mismatch, check
from tests.chapter import assert_both_agree, on_the_simulator, output_of, plots, recorded_as, section

# --- 1.3.3 ----------------------------------------------------------------------------------------------------


def whole_numbers(*shape: int) -> np.ndarray:
    """Small whole numbers as float32: the sums of their products are exact, in whatever order."""
    return np.random.default_rng(sum(shape)).integers(-8, 9, shape).astype(np.float32)


def test_133_references_by_hand() -> None:
    s = section("1.3.3")
    image, filter_ = np.arange(1, 10, dtype=np.float32).reshape(3, 3), np.zeros((5, 5), np.float32)
    filter_[2, 2], filter_[1, 3], filter_[4, 0] = 1, 10, 100  # the pixel, the one above right, the one 2 below 2 left
    np.testing.assert_array_equal(s.reference(image, filter_), [[1, 2, 703], [24, 35, 6], [57, 68, 9]])
    table = np.array([0, 10, 20, 30], np.float32)
    np.testing.assert_array_equal(s.reference_table(table, 2, 3, 0), [30, 30])
    np.testing.assert_array_equal(s.reference_table(table, 34, 2, 1)[[0, 1, 2, 3, 33]], [10, 30, 50, 30, 30])


@pytest.mark.parametrize(
    ("height", "width"),
    [
        *((1, 1), (1, 2), (2, 3), (3, 5), (5, 4), (7, 31), (8, 33), (17, 122), (31, 123), (33, 129), (65, 260)),
        *((9, 119), (15, 120), (16, 121), (73, 6), (97, 131)),  # of the last rung a warp has 8 rows, a block 32
    ],
)
def test_133_every_rung(height: int, width: int) -> None:
    s, image, filter_ = section("1.3.3"), whole_numbers(height, width), whole_numbers(5, 5)
    before, expected = image.copy(), s.reference(image, filter_)
    for rung in s.RUNGS:
        out = s.convolve(image, filter_, rung)
        assert out.dtype == np.float32
        np.testing.assert_array_equal(out, expected, err_msg=rung)
    np.testing.assert_array_equal(image, before)


def test_133_pycuda() -> None:
    s, filter_ = section("1.3.3"), whole_numbers(5, 5)
    for image in (whole_numbers(1, 1), whole_numbers(9, 33), whole_numbers(40, 20).T, whole_numbers(9, 70)[:, ::-2]):
        try:
            out = s.convolve_pycuda(image, filter_)
        except Unavailable as missing:
            pytest.skip(str(missing))
        np.testing.assert_array_equal(out, s.reference(image, filter_))
        np.testing.assert_array_equal(s.convolve(image, filter_), out)  # which need not be contiguous either


@pytest.mark.parametrize("width", [1, 2, 3, 5, 120, 121, 122, 123])
def test_133_what_lies_between_the_rows_does_not_count(width: int) -> None:
    s, (_, stream) = section("1.3.3"), gpu.open_device()
    image, filter_ = whole_numbers(19, width), whole_numbers(5, 5)
    s.set_constant("taps", filter_, stream)
    for more in (0, 4):
        rows = np.pad(image, ((0, 0), (0, -width % 4 + more)), constant_values=np.nan)
        d_in, d_out = gpu.to_device(rows, stream), gpu.empty(rows.shape, np.float32, stream)
        s.call_of("conv_registers", image.shape, d_in, d_out, None)(stream)
        np.testing.assert_array_equal(d_out.to_host(stream)[:, :width], s.reference(image, filter_))


def test_133_a_block_writes_no_columns_but_its_own() -> None:
    s, (_, stream) = section("1.3.3"), gpu.open_device()
    image, filter_ = whole_numbers(30, 200), whole_numbers(5, 5)
    s.set_constant("taps", filter_, stream)
    d_in, d_out = gpu.to_device(image, stream), gpu.to_device(np.full(image.shape, 9999, np.float32), stream)
    sizes = np.int32(200), np.int32(30), np.int32(200)
    kernel, config = s.compiled().get_kernel("conv_registers"), gpu.LaunchConfig(grid=(1, 30), block=(32, 1))
    gpu.launch(stream, config, kernel, d_in.buffer, d_out.buffer, *sizes)
    out = d_out.to_host(stream)
    np.testing.assert_array_equal(out[:, :120], s.reference(image, filter_)[:, :120])
    assert (out[:, 120:] == 9999).all()


def test_133_a_tile_of_any_size_by_a_block_of_any_shape() -> None:
    s, (_, stream) = section("1.3.3"), gpu.open_device()
    image, filter_ = whole_numbers(37, 45), whole_numbers(5, 5)
    s.set_constant("taps", filter_, stream)
    d_in, kernel = gpu.to_device(image, stream), s.compiled().get_kernel("conv_tile")
    for block, (x, y) in (((32, 8), (1, 1)), ((7, 3), (10, 5)), ((64, 1), (45, 37)), ((1, 33), (20, 40))):
        d_out = gpu.empty(image.shape, np.float32, stream)
        config = gpu.LaunchConfig(grid=(-(-45 // x), -(-37 // y)), block=block, shmem_size=4 * (x + 4) * (y + 4))
        sizes = np.int32(45), np.int32(37), np.int32(x), np.int32(y)
        gpu.launch(stream, config, kernel, d_in.buffer, d_out.buffer, *sizes)
        np.testing.assert_array_equal(d_out.to_host(stream), s.reference(image, filter_), err_msg=f"{block} {x, y}")


@pytest.mark.simulator
def test_133_the_tile_is_not_read_before_it_is_whole() -> None:
    from common.simt.races import watching

    with watching() as races:
        section("1.3.3").convolve(whole_numbers(20, 40), whole_numbers(5, 5), "conv_tile")
    assert not races


def test_133_more_than_48_kib_must_be_asked_for() -> None:
    s, (_, stream) = section("1.3.3"), gpu.open_device()
    code = s.compiled.__wrapped__()
    kernel = code.get_kernel("conv_tile")  # as it is before anybody asked
    (x, y), a, b = s.LARGE, gpu.zeros(1, np.float32, stream), gpu.zeros(1, np.float32, stream)
    shared, sizes = 4 * (x + 4) * (y + 4), (np.int32(1), np.int32(1), np.int32(x), np.int32(y))
    assert shared > 48 << 10
    config = gpu.LaunchConfig(grid=1, block=(32, 8), shmem_size=shared)
    with pytest.raises(gpu.CUDAError):
        gpu.launch(stream, config, kernel, a.buffer, b.buffer, *sizes)
    gpu.allow_shared_memory(kernel, shared)
    gpu.launch(stream, config, kernel, a.buffer, b.buffer, *sizes)
    stream.sync()


def test_133_constants_count_for_the_launches_that_follow() -> None:
    s, image = section("1.3.3"), whole_numbers(20, 40)
    filters = whole_numbers(5, 5), np.zeros((5, 5), np.float32), whole_numbers(3, 5, 5)[1]
    for filter_ in (*filters, filters[0]):
        for rung in s.RUNGS:
            np.testing.assert_array_equal(s.convolve(image, filter_, rung), s.reference(image, filter_), err_msg=rung)
    _, stream = gpu.open_device()
    table = whole_numbers(1024)
    s.set_constant("taps", filters[0], stream)
    np.testing.assert_array_equal(s.table_sums(table, 40, 9, 1), s.reference_table(table, 40, 9, 1))
    d_in, d_out = gpu.to_device(image, stream), gpu.empty(image.shape, np.float32, stream)
    s.call_of("conv_constant", image.shape, d_in, d_out, None)(stream)  # another constant has changed, not this one
    np.testing.assert_array_equal(d_out.to_host(stream), s.reference(image, filters[0]))


@pytest.mark.parametrize("n", [1, 31, 33, 256, 257, 1000])
def test_133_table_sums(n: int) -> None:
    s, table = section("1.3.3"), whole_numbers(1024)
    for reads, spread in ((1, 0), (64, 0), (64, 1), (1100, 1), (3, 35)):
        np.testing.assert_array_equal(s.table_sums(table, n, reads, spread), s.reference_table(table, n, reads, spread))


def test_133_a_nan_reaches_its_neighbours_and_no_further() -> None:
    s, image = section("1.3.3"), whole_numbers(30, 140)
    image[[5, 20], [0, 121]] = np.nan
    expected = s.reference(image, np.ones((5, 5), np.float32))
    assert np.isnan(expected).sum() == 15 + 25
    for rung in s.RUNGS:
        out = s.convolve(image, np.ones((5, 5), np.float32), rung)
        np.testing.assert_array_equal(out, expected, err_msg=rung)
        with pytest.raises(Mismatch, match="NaN"):
            check(rung, out, expected, rtol=1)


def test_133_bad_input() -> None:
    s, image, filter_ = section("1.3.3"), whole_numbers(3, 4), whole_numbers(5, 5)
    for bad, words in (
        (image.astype(float), r"float64 \(3, 4\)"),
        (image[0], r"float32 \(4,\)"),
        (image[:0], r"float32 \(0, 4\)"),
        (image[None], r"float32 \(1, 3, 4\)"),
    ):
        for call in (s.convolve, s.convolve_pycuda):
            with pytest.raises(ValueError, match=rf"expected a float32 image of shape \(height, width\), got {words}"):
                call(bad, filter_)
    for bad in (filter_.astype(int), filter_[:3, :3], filter_.ravel()):
        for call in (s.convolve, s.convolve_pycuda):
            with pytest.raises(ValueError, match=rf"float32 filter of shape \(5, 5\), got {bad.dtype} "):
                call(image, bad)
    with pytest.raises(ValueError, match="size"):
        s.table_sums(whole_numbers(1023), 1, 1, 0)


@pytest.mark.parametrize("name", ["reference", "reference_table"])
def test_133_a_wrong_result_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.3.3")
    right = getattr(s, name)
    monkeypatch.setattr(s, name, lambda *arguments: right(*arguments) + 1e-3)
    with pytest.raises(Mismatch, match="conv_global" if name == "reference" else "table_sums, 1 address"):
        s.verify(40)


def test_133_what_it_prints(capfd: pytest.CaptureFixture[str]) -> None:
    printed = output_of("1.3.3", "--size", "59", "--no-bench", capfd=capfd)
    for name in section("1.3.3").RUNGS:
        assert re.search(rf"^ {re.escape(name)} +{59 * 64} ", printed, flags=re.MULTILINE)
    assert len(re.findall(r"^ table_sums, (1 address|32 addresses) +1000 ", printed, flags=re.MULTILINE)) == 2
    assert ("not run: times and rates" in printed) is gpu.SIMULATED
    if gpu.SIMULATED:  # each store is of 32 pixels, and a row of 64 takes two
        requests = re.findall(r"^ conv_(?:global|constant) .* (\d+) +\d+ \(4\) ", printed, flags=re.MULTILINE)
        assert requests == ["118", "118"]


def test_133_plot_shows_a_photograph(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    s, filters = section("1.3.3"), []
    if gpu.SIMULATED:  # which takes seconds for a photograph
        monkeypatch.setattr(s, "convolve", lambda image, filter_: filters.append(filter_) or image)
    s.plot()
    assert [filter_.sum() for filter_ in filters] == pytest.approx([1, 0][: len(filters)], abs=1e-6)
    assert len(plots(capfd.readouterr().out)) == 1


@pytest.mark.gpu
@pytest.mark.slow
def test_133_each_rung_buys_something() -> None:
    s = section("1.3.3")
    rows = {row.name: row for row in s.benchmark()}
    gain = {name: row.figures["× rung before"] for name, row in rows.items() if row.figures}
    assert tuple(gain) == s.RUNGS[1:]
    assert gain["conv_constant"] > 0.95  # of constant memory alone little is to be expected: the cache had them
    assert gain["conv_tile"] > 0.95 and rows["conv_tile"].seconds < rows["conv_constant"].seconds
    assert gain["conv_tile, large"] > 1 and gain["conv_registers"] > 1.3
    assert rows["conv_registers"].of_copy > 0.8 and rows["conv_registers"].of_peer > 5
    assert rows["constant, 32 addresses a warp"].of_peer < 0.1


# --- 1.3.4 ----------------------------------------------------------------------------------------------------


class Ordered:
    """A stream as far as order goes: an event is the set of all that is done before it, PyCUDA's events too."""

    def __init__(self) -> None:
        self.seen: frozenset = frozenset()

    def record(self, stream: Ordered | None = None, options: object = None) -> Ordered:
        event = Ordered()
        event.seen = (stream or self).seen
        return event

    def wait(self, event: Ordered) -> None:
        self.seen |= event.seen

    wait_for_event, synchronize = wait, lambda self: None

    def do(self, what: object) -> frozenset:
        """What precedes a piece of work in this stream."""
        before, self.seen = self.seen, self.seen | {what}
        return before


def assert_a_pipeline(before: dict[tuple[str, int], frozenset], chunks: int, buffers: int, end: frozenset) -> None:
    """Each stage of a chunk waits for the one before and for its buffer, and not for what need not be done."""
    for i in range(chunks):
        assert ("copy in", i) in before["compute", i] and ("compute", i) in before["copy out", i]
        if i >= buffers:
            assert ("copy out", i - buffers) in before["copy in", i]
        for j in range(max(i - buffers + 1, 0), i):
            assert not before["copy in", i] & {("compute", j), ("copy out", j)}
            assert ("copy out", j) not in before["compute", i]
    assert end >= {(stage, i) for stage in ("copy in", "compute", "copy out") for i in range(chunks)}


def test_134_reference_by_hand() -> None:
    s = section("1.3.4")
    state = np.array([0, 1, 2**32 - 1], np.uint32)
    np.testing.assert_array_equal(s.reference(state, 0), state)
    np.testing.assert_array_equal(s.reference(state, 1), [1013904223, 1015568748, 1012239698])
    np.testing.assert_array_equal(s.reference(state, 5), s.reference(s.reference(state, 2), 3))


@pytest.mark.parametrize(("chunks", "n"), [(1, 1), (2, 31), (3, 33), (5, 256), (7, 257), (13, 1), (4, 20_003)])
def test_134_pipelines(chunks: int, n: int) -> None:
    s = section("1.3.4")
    state = np.random.default_rng(n).integers(0, 2**32, (chunks, n), dtype=np.uint32)
    before, expected = state.copy(), s.reference(state, 7)
    for buffers in (1, 2, 3, 4):
        for by_chunk in (False, True):
            out = s.process(state, 7, buffers, by_chunk)
            assert out.dtype == np.uint32
            np.testing.assert_array_equal(out, expected, err_msg=f"{buffers} buffers, {by_chunk=}")
    np.testing.assert_array_equal(state, before)
    np.testing.assert_array_equal(s.process(state[::-1], 0, 2), state[::-1])


@pytest.mark.parametrize(("chunks", "n"), [(1, 1), (2, 31), (5, 257)])
def test_134_pycuda(chunks: int, n: int) -> None:
    s = section("1.3.4")
    state = np.random.default_rng(n).integers(0, 2**32, (chunks, n), dtype=np.uint32)
    for buffers in (1, 2, 3):
        try:
            out = s.process_pycuda(state, 7, buffers)
        except Unavailable as missing:
            pytest.skip(str(missing))
        np.testing.assert_array_equal(out, s.reference(state, 7), err_msg=f"{buffers} buffers")


def test_134_the_result_stays_when_the_pipeline_goes() -> None:
    s = section("1.3.4")
    state = s.random_state(3, 1000)
    first = s.process(state, 1, 2)
    s.process(state, 2, 2)  # may get the same memory
    np.testing.assert_array_equal(first, s.reference(state, 1))


@pytest.mark.parametrize("by_chunk", [False, True])
@pytest.mark.parametrize("buffers", [1, 2, 3, 4])
def test_134_events_order_what_has_to_be_ordered(buffers: int, by_chunk: bool) -> None:
    """The simulator does all work at once, so a wait that is missing changes no result there."""
    s, before, stream = section("1.3.4"), {}, Ordered()
    slots = {}

    def enqueue(stage: str, own: Ordered, i: int, slot: int) -> None:
        before[stage, i], slots[stage, i] = own.do((stage, i)), slot

    pipeline = SimpleNamespace(numbers=range(9), d_chunks=range(4), streams=[Ordered() for _ in range(4)])
    pipeline.enqueue = enqueue
    stream.do("what was there")
    s.overlapped(stream, pipeline, buffers, by_chunk=by_chunk)
    assert_a_pipeline(before, 9, buffers, stream.seen)
    assert all("what was there" in seen for seen in before.values())
    assert slots == {(stage, i): i % buffers for stage, i in before}
    assert len({own.seen for own in pipeline.streams if len(own.seen) > 0}) == (buffers if by_chunk else 3)


def test_134_a_stage_alone_waits_for_no_other() -> None:
    s, done, stream = section("1.3.4"), [], Ordered()
    pipeline = SimpleNamespace(numbers=range(5), d_chunks=range(4), streams=[Ordered() for _ in range(4)])
    pipeline.enqueue = lambda stage, own, i, slot: done.append((stage, i)) or own.do((stage, i))
    s.overlapped(stream, pipeline, 4, stages=("compute",))
    assert done == [("compute", i) for i in range(5)] and stream.seen == set(done)


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_134_pycudas_events_too(buffers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    s, before, out = section("1.3.4"), {}, []

    def of(number: np.ndarray) -> int:
        """Which chunk this row of the page-locked memory is."""
        return (number.ctypes.data - number.base.ctypes.data) // number.nbytes

    def copy_in(target: object, source: np.ndarray, stream: Ordered) -> None:
        before["copy in", of(source)] = stream.do(("copy in", of(source)))

    def compute(*arguments: object, stream: Ordered, block: object, grid: object) -> None:
        i = len([stage for stage, _ in before if stage == "compute"])
        before["compute", i] = stream.do(("compute", i))

    def copy_out(target: np.ndarray, source: object, stream: Ordered) -> None:
        before["copy out", of(target)] = stream.do(("copy out", of(target)))
        out[:] = [stream]

    driver = SimpleNamespace(Stream=Ordered, Event=Ordered, pagelocked_empty=np.empty, mem_alloc=lambda nbytes: nbytes)
    driver.memcpy_htod_async, driver.memcpy_dtoh_async = copy_in, copy_out
    module = SimpleNamespace(get_function=lambda name: compute)
    pycuda = SimpleNamespace(driver=driver, SourceModule=lambda *_, **__: module)
    monkeypatch.setattr(s, "load_pycuda", lambda: pycuda)
    s.process_pycuda(np.zeros((7, 40), np.uint32), 1, buffers)
    assert_a_pipeline(before, 7, buffers, out[0].seen)


def test_134_bad_input() -> None:
    s = section("1.3.4")
    for bad, words in (
        (np.zeros((2, 3)), r"float64 of shape \(2, 3\)"),
        (np.zeros(3, np.uint32), r"uint32 of shape \(3,\)"),
        (np.zeros((0, 3), np.uint32), r"uint32 of shape \(0, 3\)"),
        (np.zeros((2, 0), np.uint32), r"uint32 of shape \(2, 0\)"),
        ([[1, 2]], r"int64 of shape \(1, 2\)"),
    ):
        for call in (s.process, s.process_pycuda):
            with pytest.raises(ValueError, match=rf"expected uint32 .*\(chunks, n\), not empty, got {words}"):
                call(bad, 1, 2)
    state, (_, stream) = np.zeros((2, 3), np.uint32), gpu.open_device()
    for rounds, buffers in ((1, 0), (1, -1), (-1, 2), (2**31, 2)):
        for call in (s.process, s.process_pycuda):
            with pytest.raises(ValueError, match=f"at least 1 buffer, got {rounds} and {buffers}"):
                call(state, rounds, buffers)
    for buffers in (0, 3):
        with pytest.raises(ValueError, match=f"expected 1 to 2 buffers, got {buffers}"):
            s.overlapped(stream, s.Pipeline(stream, (2, 3), 1, 2), buffers)


def test_134_less_where_page_locked_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    s, (_, stream), real = section("1.3.4"), gpu.open_device(), section("1.3.4").Pipeline

    def refusing(stream: object, shape: tuple[int, int], *rest: object) -> object:
        if shape[0] * shape[1] > s.COUNT * 300:
            raise gpu.CUDAError("CUDA_ERROR_OUT_OF_MEMORY")
        return real(stream, shape, *rest)

    monkeypatch.setattr(s, "Pipeline", refusing)
    pieces, whole = s.pipelines(stream, 1000)
    assert pieces.numbers.shape == (s.COUNT, 250) and whole.numbers.shape == (1, s.COUNT * 250)
    said = re.findall(r"^not run: .*page-locked memory.*OUT_OF_MEMORY", capfd.readouterr().out, flags=re.MULTILINE)
    assert len(said) == 2


def test_134_a_wrong_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.3.4")
    monkeypatch.setattr(s, "reference", lambda state, rounds: state + np.uint32(rounds))
    with pytest.raises(Mismatch, match="1 buffers"):
        s.verify(40, 3)


def test_134_what_the_stages_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    s, real = section("1.3.4"), section("1.3.4").Pipeline
    ms = {s.COPY_IN: 9, s.COMPUTE: 10, s.COPY_OUT: 8, s.AT_ONCE: 12}  # all pipelines take 30
    monkeypatch.setattr(timing, "yardsticks", lambda *_: timing.Yardsticks(4000.0, 60.0, 1980, ()))
    monkeypatch.setattr(
        timing, "benchmark", lambda calls, *_, **__: {k: timing.Timing.of([ms.get(k, 30) / 1e3] * 3) for k in calls}
    )
    monkeypatch.setattr(
        s, "pipelines", lambda stream, n: (real(stream, (64, 8), 100, 4), real(stream, (1, 512), 100, 1))
    )
    monkeypatch.setattr(s, "late_comers", lambda row: [])
    monkeypatch.setattr(s, "verify", lambda n, rounds: [])
    rows = {row.name: row for row in s.benchmark()}
    expected = {"serial": 27, "serial, 1 chunk": 27, "2 streams": 13.5, "3 streams": 12, "4 streams": 12}
    expected |= {f"a stream a stage, {k} buffers": expected[f"{k} streams"] for k in (2, 3, 4)}
    assert rows.keys() == ms.keys() | expected.keys() and rows[s.COMPUTE].figures["rounds"] == 144
    for name, promised in expected.items():
        assert rows[name].figures["expected, ms"] == pytest.approx(promised), name
        assert (rows[name].peer, rows[name].of_peer) == (s.SLOWEST, pytest.approx(10 / 30))
    assert rows[s.COPY_IN].figures["GB/s"] == pytest.approx(64 * 8 * 4 / 9e-3 / 1e9) and rows[s.COPY_IN].peer is None


def pipeline_rows() -> list[results.Row]:
    """Figures as benchmark() of 1.3.4 gives them: stages of 9, 10 and 8 ms, both copies at once 12 ms."""
    s = section("1.3.4")
    row = partial(results.Row, "1.3.4", dtype="u32", spread=0.0)
    size, peer = "64 × 8 MiB", {"peer": s.SLOWEST}
    alone = {s.COPY_IN: 9, s.COMPUTE: 10, s.COPY_OUT: 8, s.AT_ONCE: 12}
    rows = [row(k, size, seconds=ms / 1e3, figures={"GB/s": 512 / ms, "rounds": 777}) for k, ms in alone.items()]
    runs = {"serial, 1 chunk": (28, 27), "serial": (30, 27), "2 streams": (16, 13.5), "3 streams": (12.5, 12)}
    for name, (ms, expected) in runs.items():
        figures = {"GB/s": 512 / ms, "expected, ms": expected}
        rows.append(row(name, size, seconds=ms / 1e3, of_peer=10 / ms, figures=figures, **peer))
    for case in (s.MANY, s.ONE):
        rows.append(row("the long kernel", case, seconds=20e-3))
    for (case, first, second), part in s.CASES.items():
        figures = {"expected, ms": 20 * part}
        name = f"{second}, behind {first}"
        rows.append(row(name, case, seconds=1e-4 + 20e-3 * part, peer="the long kernel", of_peer=1.0, figures=figures))
    return rows


def test_134_recorded_figures_are_shown_with_gpu_and_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recorded_as(pipeline_rows(), tmp_path, monkeypatch)
    printed = output_of("1.3.4", "--quick", "--plot", "--no-bench", capfd=capfd)
    assert "recorded on NVIDIA Test, 2031-02-03, not measured here" in printed
    # the best pipeline took 12.5 ms, the slowest stage 10 ms
    assert re.search(r"compute 10.0 ms.*copy in and out 12.0 ms\n.*3 streams: 12.5 ms.* 80.0% of the slowest", printed)
    assert re.search(r"^ *serial .*30.0 ms .* 27 ", printed, flags=re.MULTILINE)
    for _, first, second in section("1.3.4").CASES:
        assert re.search(rf"^ {second}, behind {first} ", printed, flags=re.MULTILINE)
    assert len(plots(printed)) == 1


def test_134_recorded_figures_may_be_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    s, rows = section("1.3.4"), pipeline_rows()
    for kept in ([row for row in rows if row.name != s.COMPUTE], [row for row in rows if row.size == s.ONE], rows[:1]):
        (tmp_path / "nvidia_test.json").unlink(missing_ok=True)
        recorded_as(kept, tmp_path, monkeypatch)
        printed = output_of("1.3.4", "--size", "1300", "--plot", "--no-bench", capfd=capfd)
        assert "compute 10.0 ms" not in printed and ("The best, " in printed) is any(r.peer == s.SLOWEST for r in kept)


def test_134_without_recorded_figures(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(results, "recorded", lambda number: [])
    printed = output_of("1.3.4", "--size", "1300", "--plot", "--no-bench", capfd=capfd)
    assert f"not run: {results.NOTHING}" in printed and "./run bench 1" in printed
    for k in (1, 2, 3, 4):
        assert re.search(rf"^ a stream a stage, {k} buffers +1300 ", printed, flags=re.MULTILINE)
    assert len(plots(printed)) == 1  # which needs none


@pytest.mark.gpu
@pytest.mark.slow
def test_134_stages_overlap_and_default_streams_keep_their_rules() -> None:
    s = section("1.3.4")
    rows = {(row.name, row.size): row for row in s.benchmark()}
    named = {row.name: row for row in rows.values() if row.size not in (s.MANY, s.ONE)}
    for how in ("a stream a stage, 3 buffers", "3 streams"):
        assert named[how].of_peer > 0.75 and named[how].seconds < 0.6 * named["serial"].seconds
    assert named["a stream a stage, 2 buffers"].seconds < 0.85 * named["serial"].seconds
    for (size, first, second), part in s.CASES.items():
        waited = rows[f"{second}, behind {first}", size].seconds / rows["the long kernel", size].seconds
        assert waited > 0.9 if part == 1 else waited < 0.4, (size, first, second, waited)


# --- on a GPU -------------------------------------------------------------------------------------------------


def outputs(number: str) -> list[np.ndarray]:
    """What the kernels of a section make of fixed inputs."""
    s = section(number)
    if number == "1.3.3":
        image, filter_, table = whole_numbers(67, 259), whole_numbers(5, 5), whole_numbers(1024)
        sums = [s.table_sums(table, 1000, 70, spread) for spread in (0, 1)]
        return [*(s.convolve(image, filter_, rung) for rung in s.RUNGS), *sums]
    if number == "1.3.4":
        return [s.process(s.random_state(7, 999), 50, buffers, by) for buffers in (1, 3) for by in (False, True)]
    raise ValueError(number)


@pytest.mark.gpu
@pytest.mark.parametrize("number", ["1.3.3", "1.3.4"])
def test_gpu_and_simulator_agree(number: str, tmp_path: Path) -> None:
    assert_both_agree(outputs(number), on_the_simulator(__name__, number, tmp_path))
