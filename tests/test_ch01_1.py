"""Sections 1.1.1 to 1.1.4, the programming model: each kernel against NumPy, on whatever device is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common import gpu, results, timing
from common.cli import OK, USAGE, Unavailable, exit_code
from common.sections import ROOT
from common.verify import Mismatch, check
from tests.chapter import (
    SIZES,
    assert_both_agree,
    bad_vectors,
    cell,
    on_the_simulator,
    output_of,
    plots,
    recorded_as,
    section,
    vectors,
)

# --- 1.1.1 ----------------------------------------------------------------------------------------------------

SAXPYS = ("saxpy", "saxpy_grid_stride", "saxpy_float4")
# float32: the product and the sum are rounded, each by at most 2^-24 of a number below 16
CLOSE = {"rtol": 1e-7, "atol": 1e-6, "equal_nan": False}


def test_111_reference_by_hand() -> None:
    s = section("1.1.1")
    x, y = np.array([1, 2, 3], np.float32), np.array([10, 20, 30], np.float32)
    np.testing.assert_array_equal(s.reference(2, x, y), [12, 24, 36])
    assert s.reference(2, x, y).dtype == np.float64


@pytest.mark.parametrize("n", SIZES)
def test_111_vector_add(n: int) -> None:
    x, y = vectors(n)
    out = section("1.1.1").vector_add(x, y)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, x + y)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("variant", [*SAXPYS, "saxpy_pycuda"])
def test_111_saxpy(variant: str, n: int) -> None:
    s, (x, y) = section("1.1.1"), vectors(n)
    before = y.copy()
    try:
        out = s.saxpy_pycuda(-1.75, x, y) if variant == "saxpy_pycuda" else s.saxpy(-1.75, x, y, variant)
    except Unavailable as missing:  # PyCUDA, on a GPU
        pytest.skip(str(missing))
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, s.reference(-1.75, x, y), **CLOSE)
    np.testing.assert_array_equal(y, before)


@pytest.mark.parametrize("n", SIZES)
def test_111_copy(n: int) -> None:
    bits = np.random.default_rng(n).integers(0, 2**32, n, dtype=np.uint32)  # NaN and infinity are among them
    out = section("1.1.1").run("copy_float4", bits.view(np.float32), np.zeros(n, np.float32))
    np.testing.assert_array_equal(out.view(np.uint32), bits)


def test_111_strided_input_is_made_contiguous() -> None:
    s, (x, y) = section("1.1.1"), vectors(2000)
    np.testing.assert_array_equal(s.vector_add(x[::2], y[1::2]), x[::2] + y[1::2])


@settings(max_examples=60)
@given(st.integers(1, 700), st.integers(0, 3), st.integers(0, 3), st.integers(1, 3), st.sampled_from([32, 64, 96]))
@example(2, 1, 1, 1, 32)  # shorter than the way to the first float4
@example(3, 1, 1, 1, 32)
@example(7, 3, 3, 2, 32)
@example(8, 0, 2, 1, 64)
def test_111_any_alignment_and_grid(n: int, x_off: int, y_off: int, blocks: int, threads: int) -> None:
    """Vectors that begin anywhere, grids of any size; nothing beside them is touched."""
    s, (x, y) = section("1.1.1"), vectors(n + 8)
    _, stream = gpu.open_device()
    config = gpu.LaunchConfig(grid=blocks, block=threads)
    for name, first in (("saxpy_grid_stride", [np.float32(3)]), ("saxpy_float4", [np.float32(3)]), ("copy_float4", [])):
        d_x, d_y = gpu.to_device(x, stream), gpu.to_device(y, stream)
        at_x, at_y = (np.uint64(int(d.buffer.handle) + 4 * off) for d, off in ((d_x, x_off), (d_y, y_off)))
        gpu.launch(stream, config, s.compiled().get_kernel(name), np.int64(n), *first, at_x, at_y)
        expected = y.astype(np.float64)
        part = x[x_off : x_off + n]
        expected[y_off : y_off + n] = s.reference(3, part, y[y_off : y_off + n]) if first else part
        np.testing.assert_allclose(d_y.to_host(stream), expected, err_msg=name, **CLOSE)


def test_111_grid_stride_walks() -> None:
    """The grid does not grow with n: it is as large as what the device holds at a time."""
    s = section("1.1.1")
    assert s.blocks_for("saxpy_grid_stride", 2**40) == s.blocks_for("saxpy_grid_stride", 2**41)
    assert s.blocks_for("saxpy", 257) == 2 and s.blocks_for("saxpy_float4", 1025) == 2


@pytest.mark.parametrize("n", [1, 300])
def test_111_nan_never_passes(n: int) -> None:
    s, (x, y) = section("1.1.1"), vectors(n)
    x[-1] = np.nan
    for variant in SAXPYS:
        with pytest.raises(Mismatch, match="NaN"):
            check(variant, s.saxpy(2, x, y, variant), s.reference(2, x, y), rtol=1)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros(3), np.zeros(3, np.float32), "float64"),
        (np.zeros(3, np.int32), np.zeros(3, np.float32), "int32"),
        ([1.0, 2.0], np.zeros(2, np.float32), "float64"),
        (np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float32), r"\(2, 2\)"),
        (np.zeros(0, np.float32), np.zeros(0, np.float32), r"\(0,\)"),
        (np.zeros(3, np.float32), np.zeros(4, np.float32), r"\(3,\), float32 \(4,\)"),
    ],
)
def test_111_bad_input(x: np.ndarray, y: np.ndarray, message: str) -> None:
    s = section("1.1.1")
    for call in (s.vector_add, lambda x, y: s.saxpy(2, x, y), lambda x, y: s.saxpy_pycuda(2, x, y)):
        try:
            with pytest.raises(ValueError, match=f"expected two float32 vectors.*{message}"):
                call(x, y)
        except Unavailable as missing:
            pytest.skip(str(missing))


def test_111_quick_shows_the_life_of_a_call(capfd: pytest.CaptureFixture[str]) -> None:
    printed = output_of("1.1.1", "--size", "1000", capfd=capfd)
    words = ("compile", "load", "allocate", "copy in", "launch", "wait", "copy out", "free")
    positions = [printed.index(f"\n {word} ") for word in words]
    assert positions == sorted(positions)
    assert "4 blocks × 256 threads, 24 of them to spare" in printed and "3 × 4,000 bytes" in printed
    assert re.search(r"999 +3 +231 +3 \* 256 \+ 231", printed)
    for kernel in ("vector_add", *SAXPYS, "copy_float4"):
        assert re.search(rf"{kernel} +1000 ", printed)


def test_111_sizes_that_cannot_be(capfd: pytest.CaptureFixture[str]) -> None:
    s = section("1.1.1")
    for size, message in (("0", "positive integer"), ("-5", "positive integer"), ("900000M", "are free")):
        assert exit_code(s.main, ["--size", size]) == USAGE
        assert message in capfd.readouterr().err
    assert exit_code(s.main, ["--size", "1"]) == OK


# --- 1.1.2 ----------------------------------------------------------------------------------------------------


def test_112_references_by_hand() -> None:
    s = section("1.1.2")
    # two blocks of 4 x 2 threads for 5 x 2 elements: the last column belongs to the second block
    number, block, thread, warp, lane = np.moveaxis(s.reference_who((2, 5), (4, 2)), -1, 0)
    np.testing.assert_array_equal(number, [[0, 1, 2, 3, 8], [4, 5, 6, 7, 12]])
    np.testing.assert_array_equal(block, [[0, 0, 0, 0, 1], [0, 0, 0, 0, 1]])
    np.testing.assert_array_equal(thread, [[0, 1, 2, 3, 0], [4, 5, 6, 7, 4]])
    assert not warp.any()
    np.testing.assert_array_equal(lane, thread)
    # the last element of 3 x 5 x 9 in blocks of 4 x 2 x 2: block (2, 2, 1) of a grid of 3 x 3 x 2, thread (0, 0, 0)
    np.testing.assert_array_equal(s.reference_who((3, 5, 9), (4, 2, 2))[-1, -1, -1], [17 * 16, 17, 0, 0, 0])
    rgb = np.array([[[255, 255, 255], [0, 0, 0], [255, 0, 0]], [[0, 255, 0], [0, 0, 255], [10, 20, 30]]], np.uint8)
    np.testing.assert_array_equal(s.reference_gray(rgb), [[255, 0, 77], [149, 29, 18]])


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        *(((n,), (64,)) for n in (1, 31, 33, 1000)),
        ((1000,), (1024,)),
        *((shape, (16, 16)) for shape in ((1, 1), (31, 33), (16, 16), (50, 3))),
        ((70, 45), (3, 5)),
        *((shape, (8, 4, 4)) for shape in ((1, 1, 1), (4, 4, 8), (5, 9, 17))),
        ((9, 10, 11), (2, 3, 5)),
    ],
)
def test_112_who(shape: tuple[int, ...], block: tuple[int, ...]) -> None:
    s = section("1.1.2")
    out = s.who(shape, block)
    assert out.dtype == np.int32
    np.testing.assert_array_equal(out, s.reference_who(shape, block))


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 24), st.integers(1, 8)), min_size=1, max_size=3))
def test_112_who_of_any_shape(extents: list[tuple[int, int]]) -> None:
    s, shape, block = section("1.1.2"), tuple(e for e, _ in extents), tuple(b for _, b in extents)
    np.testing.assert_array_equal(s.who(shape, block), s.reference_who(shape, block))


@pytest.mark.parametrize("size", [(1, 1), (1, 31), (33, 1), (8, 32), (9, 33), (67, 129)])
def test_112_gray(size: tuple[int, int]) -> None:
    s = section("1.1.2")
    image = s.random_image(*size)
    expected = s.reference_gray(image)
    for block in ((32, 8), (8, 32), (1, 64), (17, 3)):
        np.testing.assert_array_equal(s.gray(image, block), expected)
    np.testing.assert_array_equal(s.gray_by_16(image), expected)
    np.testing.assert_array_equal(s.gray(image[::-1, ::-1]), expected[::-1, ::-1])


def test_112_gray_of_extremes() -> None:
    s = section("1.1.2")
    corners = np.array([0, 1, 254, 255], np.uint8)
    image = np.stack(np.meshgrid(corners, corners, corners), axis=-1).reshape(4, 16, 3)
    for made in (s.gray(image), s.gray_by_16(image)):
        np.testing.assert_array_equal(made, s.reference_gray(image))


@settings(max_examples=25)
@given(st.integers(1, 2000), st.sampled_from([0, 0, 4, 16, 17]), st.sampled_from([0, 0, 1, 16]), st.integers(1, 3))
def test_112_gray_by_16_of_any_alignment_and_grid(pixels: int, in_off: int, out_off: int, blocks: int) -> None:
    s, (_, stream) = section("1.1.2"), gpu.open_device()
    rgb = np.random.default_rng(pixels).integers(0, 256, 3 * pixels + 32, dtype=np.uint8)
    d_rgb, d_out = gpu.to_device(rgb, stream), gpu.to_device(np.full(pixels + 32, 7, np.uint8), stream)
    addresses = np.uint64(int(d_rgb.buffer.handle) + in_off), np.uint64(int(d_out.buffer.handle) + out_off)
    config = gpu.LaunchConfig(grid=blocks, block=32)
    gpu.launch(stream, config, s.compiled().get_kernel("gray_by_16"), *addresses, np.int64(pixels))
    expected = np.full(pixels + 32, 7, np.uint8)  # what lies beside the pixels is not touched
    image = rgb[in_off : in_off + 3 * pixels].reshape(1, pixels, 3)
    expected[out_off : out_off + pixels] = s.reference_gray(image)[0]
    np.testing.assert_array_equal(d_out.to_host(stream), expected)


def test_112_bad_input() -> None:
    s = section("1.1.2")
    for shape, block in (((0,), (32,)), ((3, 3), (32,)), ((3,), (0,)), ((), ()), ((2, 2, 2, 2), (1, 1, 1, 1))):
        with pytest.raises(ValueError, match="positive extents"):
            s.who(shape, block)
    with pytest.raises(ValueError, match=r"fewer than 2\^31"):
        s.who((2**16, 2**15), (32, 8))
    with pytest.raises(gpu.CUDAError):
        s.who((5000,), (2048,))  # more threads than a block may have
    for shape, dtype in (((4, 4, 3), float), ((4, 4), np.uint8), ((4, 4, 4), np.uint8), ((0, 4, 3), np.uint8)):
        for kernel in (s.gray, s.gray_by_16):
            with pytest.raises(ValueError, match="uint8 image"):
                kernel(np.zeros(shape, dtype))

    for block in ((0, 8), (32,), (32, 8, 1)):
        with pytest.raises(ValueError, match="a block of 2 positive extents"):
            s.gray(np.zeros((4, 4, 3), np.uint8), block)


def test_112_what_it_prints(capfd: pytest.CaptureFixture[str]) -> None:
    printed = output_of("1.1.2", "--size", "33", "--plot", capfd=capfd)
    assert "11111111 11111111 1111\n\n00000000 00000000 0000\n00000000 00000000 0000\n" in printed
    assert re.search(r"\[9, 19\] of \[10, 20\] +8×8 +331 +5 +11 +0 +11", printed)
    assert len(plots(printed)) == 1


# --- 1.1.3 ----------------------------------------------------------------------------------------------------


def test_113_reference_by_hand() -> None:
    s = section("1.1.3")
    x = np.array([0, 1, -1], np.float32)
    # the sum of 1 / k! for k = 0 ... 8 is 109601 / 40320, with alternating signs 14833 / 40320
    np.testing.assert_allclose(s.reference(x), [1, 109601 / 40320, 14833 / 40320], rtol=1e-15)
    np.testing.assert_allclose(s.reference(np.float32([0.1])), np.exp(np.float64(np.float32(0.1))), rtol=1e-14)


@pytest.mark.parametrize("n", SIZES)
def test_113_every_variant(n: int) -> None:
    s = section("1.1.3")
    x = s.random_vector(n)
    outcomes = [s.Polynomial(x)(), s.Polynomial(x, pinned=True)()]
    outcomes += [s.polynomial_numpy(x, np.empty_like(x), threads) for threads in (1, s.THREADS)]
    for out in outcomes:
        assert out.dtype == np.float32
        # 16 operations, each rounded by at most 2^-24, of which the last few weigh fully
        np.testing.assert_allclose(out, s.reference(x), rtol=5e-7, equal_nan=False)


def test_113_numpy_in_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.1.3")
    monkeypatch.setattr(s, "PIECE", 64)
    monkeypatch.setattr(s, "SHARE", (100, 150))
    monkeypatch.setattr(s, "horner", lambda x, y, horner=s.horner: horner(x, y) or sizes.append(x.size))
    x = s.random_vector(1001)
    for threads, piece in ((1, 64), (2, 150), (9, 111), (99, 100)):
        sizes: list[int] = []
        out = s.polynomial_numpy(x, np.full_like(x, np.nan), threads)
        np.testing.assert_allclose(out, s.reference(x), rtol=5e-7, equal_nan=False)
        assert max(sizes) == piece and sum(sizes) == x.size
    sizes = []
    s.polynomial_numpy(x[:199], np.empty_like(x[:199]), 2)
    assert max(sizes) == 64, "too little for two threads"


def test_113_few_blocks_walk_through_all() -> None:
    """As Amdahl's law is measured: the grid has one block for each of k SMs, whatever n."""
    s = section("1.1.3")
    x = s.random_vector(20_003)
    call = s.Polynomial(x)
    for blocks in (1, 3):
        call.d_y.fill(0xFF, stream=call.stream)  # what an earlier call left must not count
        call(blocks=blocks)
        np.testing.assert_allclose(call.y, s.reference(x), rtol=5e-7, equal_nan=False)


def test_113_nan_never_passes() -> None:
    s = section("1.1.3")
    x = s.random_vector(100)
    x[50] = np.nan
    with pytest.raises(Mismatch, match="NaN"):
        check("polynomial", s.Polynomial(x)(), s.reference(x), rtol=1)


def test_113_bad_input() -> None:
    for x, words in bad_vectors(np.float32):
        with pytest.raises(ValueError, match=f"expected a float32 vector.*{words}"):
            section("1.1.3").Polynomial(x)


def test_113_where_the_gpu_is_faster() -> None:
    s = section("1.1.3")
    cpu = {k: 2.0**k for k in (10, 12, 14)}  # seconds that grow with n

    def flat(where: list[tuple[float, float]]) -> list[float]:
        return [end for ends in where for end in ends]

    assert flat(s.faster(cpu, dict.fromkeys(cpu, 2.0**11))) == pytest.approx([11, 14])
    assert flat(s.faster(cpu, dict.fromkeys(cpu, 2.0**12.5))) == pytest.approx([12.5, 14])
    assert s.faster(cpu, dict.fromkeys(cpu, 1.0)) == [(10, 14)]
    assert s.faster(cpu, dict.fromkeys(cpu, 2.0**20)) == []
    # faster, slower, faster
    assert flat(s.faster(cpu, {10: 2.0**9, 12: 2.0**13, 14: 2.0**13})) == pytest.approx([10, 11, 13, 14])
    assert flat(s.faster(cpu, {10: 2.0**9, 12: 2.0**13})) == pytest.approx([10, 11])  # pinned memory ended at 2^12
    assert flat(s.faster(cpu, {10: 2.0**11, 12: 2.0, 14: 2.0**15}))[1] == pytest.approx(12 + 2 * 11 / 12)


def test_113_amdahl() -> None:
    s = section("1.1.3")
    # copies take 1 s, the kernel 4 s on one SM: f = 1/5, and on 4 SMs 1 / (1/5 + 4/5 / 4) = 2.5
    figures = [("copies", "2^24", 1.0), ("kernel", "2^24 on 1 SMs", 4.0)]
    figures += [("whole call", "2^24 on 1 SMs", 5.2), ("whole call", "2^24 on 4 SMs", 2.0)]
    rows = [results.Row("1.1.3", f"Amdahl, {name}", size, "f32", seconds, 0.0) for name, size, seconds in figures]
    share, parts = s.amdahl(rows)
    assert share == pytest.approx(0.2)
    np.testing.assert_allclose(parts, [(1, 5.2, 1, 1), (4, 2, 2.6, 2.5)])


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[results.Row]:
    """What benchmark() of 1.1.3 gives, over few sizes; without a GPU it times the simulator."""
    s = section("1.1.3")
    monkeypatch.setattr(s, "LOGS", range(10, 15, 2))
    if gpu.SIMULATED:
        monkeypatch.setattr(timing, "yardsticks", lambda *_: timing.Yardsticks(4000.0, 60.0, 1980, ()))
    return s.benchmark()


def test_113_the_peer_is_the_faster_numpy(measured: list[results.Row]) -> None:
    s = section("1.1.3")
    seconds = {(row.name, row.size): row.seconds for row in measured}
    compared = [row for row in measured if row.name.startswith("GPU")]
    assert len(compared) == 9 and all(row.peer is None for row in measured if row not in compared)
    for row in compared:
        best = min((s.ONE, s.ALL), key=lambda name: seconds[name, row.size])
        assert row.peer == best and row.of_peer == pytest.approx(seconds[best, row.size] / row.seconds)


def test_113_recorded_figures_are_shown_with_gpu_and_date(
    measured: list[results.Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recorded_as(measured, tmp_path, monkeypatch)
    printed = output_of("1.1.3", "--quick", "--plot", "--no-bench", capfd=capfd)
    assert "recorded on NVIDIA Test, 2031-02-03, not measured here" in printed
    assert re.search(r"NumPy, .*GPU, ", printed)  # headings, one below the other
    assert len(re.findall(r"^ *2\^1[024] ", printed, flags=re.MULTILINE)) == 3
    assert len(re.findall(r"^GPU, .*: faster than NumPy ", printed, flags=re.MULTILINE)) == 3
    assert "by Amdahl's law" in printed and "of the call on one SM are copies" in printed
    assert len(plots(printed)) == 1


def test_113_without_recorded_figures(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(results, "recorded", lambda number: [])
    printed = output_of("1.1.3", "--quick", "--plot", "--no-bench", capfd=capfd)
    assert f"not run: {results.NOTHING}" in printed and "./run bench 1" in printed


# --- 1.1.4 ----------------------------------------------------------------------------------------------------


def test_114_reference_by_hand() -> None:
    s = section("1.1.4")
    state = np.array([0, 1, 2**32 - 1], np.uint32)
    np.testing.assert_array_equal(s.reference(state, 0), state)
    np.testing.assert_array_equal(s.reference(state, 1), [1013904223, 1015568748, 1012239698])
    np.testing.assert_array_equal(s.reference(state, 5), s.reference(s.reference(state, 2), 3))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("variant", ["advance", "advance_pycuda"])
def test_114_advance(variant: str, n: int) -> None:
    s = section("1.1.4")
    state = s.random_state(n)
    before = state.copy()
    try:
        out, by_host = getattr(s, variant)(state, 7, lambda: "done meanwhile")
    except Unavailable as missing:
        pytest.skip(str(missing))
    assert out.dtype == np.uint32 and by_host == "done meanwhile"
    np.testing.assert_array_equal(out, s.reference(before, 7))
    np.testing.assert_array_equal(state, before)


@pytest.mark.parametrize("n", SIZES)
def test_114_streams_keep_the_order(n: int) -> None:
    s = section("1.1.4")
    state = s.random_state(n)
    np.testing.assert_array_equal(s.advance_on_two_streams(state, 5, 2), s.reference(state, 7))


def test_114_result_stays_when_the_pinned_memory_goes() -> None:
    s = section("1.1.4")
    state = s.random_state(1000)
    first, _ = s.advance(state, 1)
    s.advance(state, 2)  # may get the same memory
    np.testing.assert_array_equal(first, s.reference(state, 1))


def test_114_bad_input() -> None:
    s = section("1.1.4")
    for state, words in bad_vectors(np.uint32):
        for variant, steps in ((s.advance, (1,)), (s.advance_on_two_streams, (1, 1)), (s.advance_pycuda, (1,))):
            try:
                with pytest.raises(ValueError, match=f"expected a uint32 vector.*{words}"):
                    variant(state, *steps)
            except Unavailable as missing:
                pytest.skip(str(missing))


def test_114_errors_at_once_leave_the_device_working() -> None:
    s = section("1.1.4")
    found = {what: (call, text) for what, call, text in s.immediate_errors()}
    assert found["no semicolon"][0] == "Program.compile" and "expected a" in found["no semicolon"][1]
    assert "CUDA_ERROR_NOT_FOUND" in found["no kernel of that name"][1]
    for what in ("a block of 2048 threads", "1 MiB of shared memory"):
        assert found[what][0] == "launch" and "CUDA_ERROR_INVALID_VALUE" in found[what][1]
    state = s.random_state(100)
    np.testing.assert_array_equal(s.advance(state, 1)[0], s.reference(state, 1))


def test_114_errors_of_a_kernel_surface_later() -> None:
    calls = section("1.1.4").delayed_error()
    assert [call for call, _ in calls] == ["launch", "stream.sync", "launch, later", "device.sync, later"]
    assert calls[0][1] == "no error"
    # as the driver spells it, or the runtime library
    assert all(re.match("CUDA_ERROR_ILLEGAL_ADDRESS|cudaErrorIllegalAddress", text) for _, text in calls[1:])


def test_114_its_tables_are_not_wide(capfd: pytest.CaptureFixture[str]) -> None:
    printed = output_of("1.1.4", "--quick", capfd=capfd)
    assert max(map(len, printed.splitlines())) < 145
    assert "Reported at once" in printed and "Surfaces later" in printed


def test_114_an_error_that_does_not_come_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.1.4")
    harmless = s.FAULTY_PROGRAM.replace("np.int64(32)", "np.int64(0)")
    assert harmless != s.FAULTY_PROGRAM
    monkeypatch.setattr(s, "FAULTY_PROGRAM", harmless)
    with pytest.raises(Mismatch, match="expected an error from the second call on"):
        s.delayed_error()


# --- copying a snippet ----------------------------------------------------------------------------------------


def recipe() -> str:
    """The program that the chapter's README describes: its code, with the cells it names put in."""
    readme = (ROOT / "ch01_cuda_basics" / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", readme, flags=re.DOTALL | re.MULTILINE)
    code, pasted = re.subn(r'^# ← ([\d.]+) "(.*)"$', lambda m: cell(m[1], m[2]), code, flags=re.MULTILINE)
    assert pasted == 2
    return code if not gpu.SIMULATED else code.replace("from cuda.core import", "from common.gpu import")


@pytest.mark.parametrize("broken", [False, True])
def test_the_recipe_of_the_readme_runs_from_an_empty_folder(broken: bool, tmp_path: Path) -> None:
    code = recipe()
    if broken:
        code = code.replace("out[i] = x[i] + y[i]", "out[i] = x[i] - y[i]")
        assert code != recipe()
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} if gpu.SIMULATED else dict(os.environ)
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode == 0) is not broken, done.stderr
    assert not broken or "AssertionError" in done.stderr


# --- on a GPU -------------------------------------------------------------------------------------------------


def outputs(number: str) -> list[np.ndarray]:
    """What the kernels of a section make of fixed inputs."""
    s, (x, y) = section(number), vectors(20_003)
    if number == "1.1.1":
        return [s.vector_add(x, y), *(s.saxpy(2.5, x, y, variant) for variant in SAXPYS), s.run("copy_float4", x, y)]
    if number == "1.1.2":
        shapes = (((1000,), (256,)), ((50, 33), (16, 16)), ((5, 9, 17), (8, 4, 4)))
        image = s.random_image(67, 129)
        return [*(s.who(*case) for case in shapes), s.gray(image), s.gray_by_16(image)]
    if number == "1.1.3":
        return [s.Polynomial(s.random_vector(20_003))()]
    return [s.advance(s.random_state(20_003), 50)[0], s.advance_on_two_streams(s.random_state(333), 20, 30)]


@pytest.mark.gpu
@pytest.mark.parametrize("number", ["1.1.1", "1.1.2", "1.1.3", "1.1.4"])
def test_gpu_and_simulator_agree(number: str, tmp_path: Path) -> None:
    assert_both_agree(outputs(number), on_the_simulator(__name__, number, tmp_path))


@pytest.mark.gpu
def test_111_more_than_2_to_the_31_elements() -> None:
    s, (_, stream) = section("1.1.1"), gpu.open_device()
    n = 2**31 + 5
    if gpu.free_memory() < 9 * n:
        pytest.skip(f"needs {9 * n / 1e9:.0f} GB of free device memory")
    x, y = gpu.empty(n, np.float32, stream), gpu.empty(n, np.float32, stream)
    x.buffer.fill(np.float32(1).tobytes(), stream=stream)
    y.buffer.fill(np.float32(2).tobytes(), stream=stream)

    def ends() -> np.ndarray:
        """The first 1005 elements of y and the last ones, which lie on both sides of element 2^31."""
        host = np.empty((2, 1005), np.float32)
        for part, start in zip(host, (0, n - 1005), strict=True):
            there = gpu.Buffer.from_handle(int(y.buffer.handle) + 4 * start, part.nbytes, owner=y.buffer)
            there.copy_to(gpu.Buffer.from_handle(part.ctypes.data, part.nbytes, owner=part), stream=stream)
        stream.sync()
        return host

    size, a = np.int64(n), np.float32(3)
    for name, arguments, expected in (
        ("saxpy", (size, a, x.buffer, y.buffer), 5),
        ("saxpy_grid_stride", (size, a, x.buffer, y.buffer), 8),
        ("saxpy_float4", (size, a, x.buffer, y.buffer), 11),
        ("copy_float4", (size, x.buffer, y.buffer), 1),
        ("vector_add", (x.buffer, x.buffer, y.buffer, size), 2),
    ):
        config = gpu.LaunchConfig(grid=s.blocks_for(name, n), block=s.BLOCK)
        gpu.launch(stream, config, s.compiled().get_kernel(name), *arguments)
        np.testing.assert_array_equal(ends(), expected, err_msg=name)


@pytest.mark.gpu
@pytest.mark.slow
def test_114_the_host_is_free_meanwhile() -> None:
    seconds = {row.name: row.seconds for row in section("1.1.4").benchmark()}
    assert seconds["launch has returned"] < 0.1 * seconds["kernel alone"]
    assert seconds["both at once"] < 0.9 * (seconds["kernel alone"] + seconds["host work alone"])
