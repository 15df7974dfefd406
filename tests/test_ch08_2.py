"""Sections 8.2.1 and 8.2.2, shared and constant memory: each kernel against NumPy, on whatever device is there."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from common import gpu, results
from common.cli import Unavailable
from common.verify import Mismatch, check
from tests.chapter import output_of, plots, recorded_as, section

# --- 8.2.1 ----------------------------------------------------------------------------------------------------


def numbered(height: int, width: int) -> np.ndarray:
    """No two elements are alike."""
    return np.arange(height * width, dtype=np.float32).reshape(height, width)


def test_821_by_hand() -> None:
    s = section("8.2.1")
    np.testing.assert_array_equal(s.transpose(numbered(2, 3)), [[0, 3], [1, 4], [2, 5]])
    keys = np.array([1, 3, 1, 4, 2**32 - 1], np.uint32)
    np.testing.assert_array_equal(s.histogram(keys, 4), [0, 2, 0, 1])


@pytest.mark.parametrize(
    ("height", "width"),
    [
        *((1, 1), (1, 31), (33, 1), (31, 33), (63, 65), (64, 64), (4, 132), (132, 4), (100, 68), (100, 67), (129, 31)),
        *((9, 3), (57, 130), (121, 65), (123, 67), (128, 5), (71, 9)),  # heights that leave 1, 3, 7 and 0 beyond an 8
    ],
)
def test_821_every_rung(height: int, width: int) -> None:
    s, matrix = section("8.2.1"), numbered(height, width)
    before = matrix.copy()
    for rung in s.rungs_for(height, width):
        out = s.transpose(matrix, rung)
        assert out.dtype == np.float32
        np.testing.assert_array_equal(out, matrix.T, err_msg=rung)
    np.testing.assert_array_equal(matrix, before)


@pytest.mark.parametrize("blocks", [1, 2, 3, 7])
def test_821_a_block_takes_many_tiles(blocks: int) -> None:
    s, (_, stream) = section("8.2.1"), gpu.open_device()
    matrix = numbered(130, 200)  # 12 tiles
    d_in, d_out = gpu.to_device(matrix, stream), gpu.empty((200, 130), np.float32, stream)
    arguments = d_in.buffer, d_out.buffer, np.int32(130), np.int32(200)
    config = gpu.LaunchConfig(grid=blocks, block=(32, 8))
    gpu.launch(stream, config, s.compiled().get_kernel("transpose_async"), *arguments)
    np.testing.assert_array_equal(d_out.to_host(stream), matrix.T)


def test_821_a_block_writes_its_own_tile_only() -> None:
    s, (_, stream) = section("8.2.1"), gpu.open_device()
    for rung in s.RUNGS[:-1]:  # the last one's blocks take many
        side = s.TILE[rung]
        matrix = numbered(2 * side, 2 * side)
        d_in, d_out = gpu.to_device(matrix, stream), gpu.to_device(-np.ones_like(matrix), stream)
        block = (16, 16) if rung == "transpose_float4" else (32, 8)
        arguments = d_in.buffer, d_out.buffer, np.int32(2 * side), np.int32(2 * side)
        gpu.launch(stream, gpu.LaunchConfig(grid=1, block=block), s.compiled().get_kernel(rung), *arguments)
        out = d_out.to_host(stream)
        np.testing.assert_array_equal(out[:side, :side], matrix.T[:side, :side], err_msg=rung)
        assert (out[side:] == -1).all() and (out[:, side:] == -1).all(), rung


def test_821_blocks_that_run_together_write_whole_rows() -> None:
    """Of 5 x 3 tiles the first 5 make 64 rows of the output whole, 7 blocks two tiles more of the next ones."""
    s, (_, stream) = section("8.2.1"), gpu.open_device()
    matrix = np.ones((5 * 64, 3 * 64), np.float32)
    d_in = gpu.to_device(matrix, stream)
    for rung, block in (("transpose_aligned", (32, 8)), ("transpose_float4", (16, 16))):
        d_out = gpu.zeros(matrix.shape[::-1], np.float32, stream)
        arguments = d_in.buffer, d_out.buffer, np.int32(5 * 64), np.int32(3 * 64)
        gpu.launch(stream, gpu.LaunchConfig(grid=7, block=block), s.compiled().get_kernel(rung), *arguments)
        done = d_out.to_host(stream)[::64, ::64]  # a mark for each tile
        np.testing.assert_array_equal(done, [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]], err_msg=rung)


@pytest.mark.simulator
def test_821_a_sector_is_written_by_one_warp_only() -> None:
    """Each sector of the output goes to memory once, wherever its row begins: their number is the least possible."""
    from common.simt.counters import counting

    s, matrix = section("8.2.1"), numbered(8 * 20 + 3, 64)
    with counting() as launches:
        s.transpose(matrix, "transpose_aligned")
    assert launches[0].total("global_store_sectors") <= -(-matrix.size // 8) + 64  # where one row ends, another begins


def test_821_a_matrix_too_high_for_a_grid_of_two_dimensions() -> None:
    s = section("8.2.1")
    assert s.rungs_for(32 * 65_535, 1)[0] == "transpose_naive"
    assert s.rungs_for(32 * 65_535 + 1, 1)[0] == "transpose_aligned"


@pytest.mark.simulator
@pytest.mark.parametrize("height", [64, 130])
def test_821_no_tile_is_read_before_it_is_whole(height: int) -> None:
    from common.simt.races import watching

    s, (_, stream) = section("8.2.1"), gpu.open_device()
    matrix = numbered(height, 200)
    d_in, d_out = gpu.to_device(matrix, stream), gpu.empty((200, height), np.float32, stream)
    keys = np.arange(3000, dtype=np.uint32) % 100
    with watching() as races:
        for rung in s.rungs_for(height, 200):
            s.transpose(matrix, rung)
        arguments = d_in.buffer, d_out.buffer, np.int32(height), np.int32(200)
        config = gpu.LaunchConfig(grid=2, block=(32, 8))  # several tiles a block
        gpu.launch(stream, config, s.compiled().get_kernel("transpose_async"), *arguments)
        s.histogram(keys, 100)
    assert not races


@pytest.mark.simulator
def test_821_counted_as_by_hand(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("8.2.1")
    for layout, rung in zip(("ROWS", "PADDED", "SWIZZLED"), s.TEMPLATES, strict=True):
        banks = s.banks(layout)
        for line in (*banks[:, :5].T, *banks[:5]):  # columns and rows
            ways = np.bincount(line).max()
            assert ways == (32 if layout == "ROWS" and line[0] == line[1] else 1)
        assert s.BY_HAND[rung][3] == np.bincount(banks[:, 0]).max()
    s.compare(64)
    assert "32 (32)" in capfd.readouterr().out
    monkeypatch.setitem(s.BY_HAND, s.PADDED, (4, 4, 1, 2))
    with pytest.raises(Mismatch, match=r"PADDED>: counted \[4.0, 4.0, 1.0, 1.0\], by hand \(4, 4, 1, 2\)"):
        s.compare(64)


@pytest.mark.parametrize("n", [1, 31, 33, 1023, 1025, 70_001])
def test_821_histograms(n: int) -> None:
    s = section("8.2.1")
    most = gpu.Device().properties.max_shared_memory_per_block_optin // 4
    for bins in (1, 100, 13_000, most):  # 13 000 need more than 48 KiB
        keys = np.random.default_rng(n).integers(0, bins + bins // 8, n, dtype=np.uint32)  # some are in no bin
        expected = np.bincount(keys[keys < bins], minlength=bins)
        for name in s.HISTOGRAMS:
            out = s.histogram(keys, bins, name)
            assert out.dtype == np.uint32
            np.testing.assert_array_equal(out, expected, err_msg=f"{name}, {bins}")


def test_821_all_keys_alike() -> None:
    s = section("8.2.1")
    for name in s.HISTOGRAMS:
        np.testing.assert_array_equal(s.histogram(np.full(20_000, 7, np.uint32), 9, name), 20_000 * np.eye(9)[7])


def test_821_bad_input() -> None:
    s, matrix, keys = section("8.2.1"), numbered(3, 4), np.arange(5, dtype=np.uint32)
    for bad in (matrix.astype(float), matrix[0], matrix[:0], matrix[None], matrix.T, matrix[:, ::2]):
        with pytest.raises(ValueError, match=rf"float32 \(height, width\), contiguous.*got {bad.dtype} "):
            s.transpose(bad)
    with pytest.raises(ValueError, match=r"'transpose_float4' does not take \(3, 4\) here; these do: transpose_naive"):
        s.transpose(matrix, "transpose_float4")
    with pytest.raises(ValueError, match="'no such' does not take"):
        s.transpose(matrix, "no such")
    for bad in (keys.astype(int), keys[:0], keys[None], keys[::2]):
        with pytest.raises(ValueError, match=rf"uint32 keys \(n,\), contiguous, n > 0; got {bad.dtype} "):
            s.histogram(bad, 5)
    for bins in (0, -1):
        with pytest.raises(ValueError, match=f"at least one bin, got {bins}"):
            s.histogram(keys, bins)
    most = gpu.Device().properties.max_shared_memory_per_block_optin
    with pytest.raises(ValueError, match=f"{most // 4 + 1:,} bins need {most + 4:,} bytes .* {most:,}: {most // 4:,}"):
        s.histogram(keys, most // 4 + 1)
    np.testing.assert_array_equal(s.histogram(keys, most // 4 + 1, "histogram_global")[:6], [1, 1, 1, 1, 1, 0])


def test_821_what_needs_a_newer_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("8.2.1")
    monkeypatch.setattr(s, "MIN_CC", {"transpose_async": (99, 0)})
    assert "transpose_async" not in s.rungs_for(4, 4) and "transpose_aligned" in s.rungs_for(4, 4)
    with pytest.raises(ValueError, match="does not take"):
        s.transpose(numbered(4, 4), "transpose_async")


def test_821_a_wrong_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("8.2.1")
    right = s.transpose

    def wrong(matrix: np.ndarray, rung: str) -> np.ndarray:
        out = right(matrix, rung)
        out[2, 1] = np.nan
        return out

    monkeypatch.setattr(s, "transpose", wrong)
    with pytest.raises(Mismatch, match=r"transpose_naive, 40 × 48: 1 of 1920 .*\n(.*\n)*.*NaN"):
        s.verify(40)
    monkeypatch.undo()
    counted = s.histogram
    monkeypatch.setattr(s, "histogram", lambda *arguments: counted(*arguments) + np.uint32(1))
    with pytest.raises(Mismatch, match="histogram_global"):
        s.verify(40)


def test_821_what_it_prints(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("8.2.1")
    monkeypatch.setattr(results, "recorded", lambda number: [])
    printed = output_of("8.2.1", "--size", "61", "--plot", "--no-bench", capfd=capfd)
    for rung in s.rungs_for(4, 4):
        assert f" {rung}, 64 × 72 " in printed
        assert (f" {rung}, 61 × 65 " in printed) is (rung != "transpose_float4")
    most = gpu.Device().properties.max_shared_memory_per_block_optin
    assert re.search(rf"a block, when the kernel's limit is raised +{most:,}", printed)
    assert "may have 49,152 bytes" in printed and "a launch with 49,156 is refused: CUDA_ERROR_INVALID_VALUE" in printed
    assert "allowed (cuKernelSetAttribute), the same launch runs" in printed
    assert ("as the simulator counts (by hand)" in printed) is gpu.SIMULATED
    assert len(plots(printed)) == 1


def test_821_recorded_figures(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row = {"section": "8.2.1", "size": "16384x16384", "dtype": "f32", "spread": 0.01, "bytes": 8 << 28}
    rows = [results.Row(name="transpose_float4", seconds=5e-4, of_copy=0.98, **row)]
    recorded_as(rows, tmp_path, monkeypatch)
    printed = output_of("8.2.1", "--size", "33", "--no-bench", capfd=capfd)
    assert "recorded on NVIDIA Test, 2031-02-03, not measured here" in printed and "98.0%" in printed


@pytest.mark.gpu
@pytest.mark.slow
def test_821_what_each_rung_buys() -> None:
    s = section("8.2.1")
    rows = {(row.name, row.size): row for row in s.benchmark()}
    (size,) = {size for name, size in rows if name == "transpose_float4"}
    share = [rows[rung, size].of_copy for rung in s.RUNGS]
    assert share[0] < share[1] < min(share[2:4]) < max(share[4:])
    assert max(share[4:]) > 0.9
    shared = next(row for (name, _), row in rows.items() if name == "histogram_shared")
    assert shared.of_peer > 1


# --- 8.2.2 ----------------------------------------------------------------------------------------------------


def whole_numbers(n: int) -> np.ndarray:
    """Small whole numbers as float32: sums of a few hundred of them are exact."""
    return np.random.default_rng(n).integers(-8, 9, n).astype(np.float32)


def test_822_references_by_hand() -> None:
    s = section("8.2.2")
    at = s.entries(40, 3, 4)
    np.testing.assert_array_equal(at[[0, 1, 3, 4, 33]], [[0, 1, 2], [8, 9, 10], [24, 25, 26], [0, 1, 2], [8, 9, 10]])
    assert s.entries(32, 10, 32)[31].tolist() == [248, 249, 250, 251, 252, 253, 254, 255, 0, 1]
    np.testing.assert_allclose(s.reference(np.float32([1, 2, 3]), np.float32([0, 2, -1])), [1, 17, 2])
    lanes = np.zeros((64, 2), int)
    lanes[:32, 0], lanes[5, 1] = np.arange(32) % 4, 9  # 4 and 2 in the first warp, 1 and 1 in the second
    assert s.addresses_of_a_warp(lanes) == (4 + 2 + 1 + 1) / 4


@pytest.mark.parametrize("n", [1, 31, 33, 256, 257, 1000])
def test_822_sums(n: int) -> None:
    s, numbers = section("8.2.2"), whole_numbers(256)
    for place in s.PLACES["sums"]:
        for reads, distinct in ((1, 1), (1, 32), (7, 2), (5, 4), (9, 8), (300, 16)):
            out = s.sums(numbers, n, reads, distinct, place)
            assert out.dtype == np.float32
            np.testing.assert_array_equal(out, numbers[s.entries(n, reads, distinct)].sum(axis=1), err_msg=place)


@pytest.mark.parametrize("n", [1, 31, 33, 255, 257, 1023, 1025, 5001])
def test_822_polynomial_and_lookup(n: int) -> None:
    s, numbers, coefficients = section("8.2.2"), whole_numbers(256), section("8.2.2").some_coefficients()
    x, image = np.linspace(-1, 1, n, dtype=np.float32), np.arange(n, dtype=np.uint8) * 77
    for place in s.PLACES["polynomial"]:
        out = s.polynomial(coefficients, x, place)
        check(place, out, s.reference(coefficients, x), **s.CLOSE)
        np.testing.assert_array_equal(s.polynomial(np.eye(128, dtype=np.float32)[127], x[-1:], place), x[-1:] ** 127)
    for place in s.PLACES["lookup"]:
        np.testing.assert_array_equal(s.lookup(numbers, image, place), numbers[image], err_msg=place)


def test_822_a_map_writes_its_own_elements_only() -> None:
    s, (_, stream) = section("8.2.2"), gpu.open_device()
    numbers, coefficients = whole_numbers(256), s.some_coefficients()
    for kind, values, x in (
        ("polynomial", coefficients, np.ones(9000, np.float32)),
        ("lookup", numbers, np.arange(9000).astype(np.uint8)),
    ):
        for place in s.PLACES[kind]:
            d_x = gpu.to_device(x, stream)
            d_y, d_values = gpu.to_device(np.full(9000, -99, np.float32), stream), gpu.to_device(values, stream)
            s.set_constant("numbers" if kind == "lookup" else "coefficients", values, stream)
            config, arguments = gpu.LaunchConfig(grid=1, block=256), (d_x.buffer, d_y.buffer, np.int64(8900))
            s.call_of(kind, place, values, d_values, config, *arguments)(stream)
            written = list(range(s.PER_BLOCK[kind]))
            assert np.flatnonzero(d_y.to_host(stream) != -99).tolist() == written, (kind, place)


@pytest.mark.simulator
def test_822_the_table_is_not_read_before_it_is_whole() -> None:
    from common.simt.races import watching

    with watching() as races:
        section("8.2.2").lookup(whole_numbers(256), np.arange(2000, 0, -1).astype(np.uint8), "shared")
    assert not races


def test_822_pycuda() -> None:
    s, coefficients = section("8.2.2"), section("8.2.2").some_coefficients()
    for n in (1, 33, 3000):
        x = np.linspace(-1, 1, n, dtype=np.float32)
        try:
            out = s.polynomial_pycuda(coefficients, x)
        except Unavailable as missing:
            pytest.skip(str(missing))
        check("PyCUDA", out, s.reference(coefficients, x), **s.CLOSE)


def test_822_constants_and_structs_count_for_the_launches_that_follow() -> None:
    s, (_, stream) = section("8.2.2"), gpu.open_device()
    first, second = whole_numbers(256), whole_numbers(512)[256:]
    image = np.arange(256, dtype=np.uint8)
    for numbers in (first, second, first):
        np.testing.assert_array_equal(s.lookup(numbers, image, "constant"), numbers)
    d_x, d_y = gpu.to_device(image, stream), gpu.empty(256, np.float32, stream)
    arguments = gpu.LaunchConfig(grid=1, block=256), d_x.buffer, d_y.buffer, np.int64(256)
    s.set_constant("coefficients", s.some_coefficients(), stream)  # another constant changes, not this one
    s.call_of("lookup", "constant", first, None, *arguments)(stream)
    np.testing.assert_array_equal(d_y.to_host(stream), first)
    passed = first.copy()
    d_out = gpu.empty(256, np.float32, stream)
    more = np.int64(256), np.int32(1), np.int32(1)
    call = s.call_of("sums", "parameter", passed, None, arguments[0], d_out.buffer, *more)
    call(stream)
    passed[:] = 0  # the launch has its own copy
    np.testing.assert_array_equal(d_out.to_host(stream), np.full(256, first[0]))


def test_822_bad_input() -> None:
    s, numbers, coefficients = section("8.2.2"), whole_numbers(256), section("8.2.2").some_coefficients()
    x, image = np.zeros(4, np.float32), np.zeros(4, np.uint8)
    for bad in (numbers.astype(float), numbers[:255], numbers[None], whole_numbers(512)[::2]):
        for call in (lambda bad=bad: s.sums(bad, 1, 1, 1), lambda bad=bad: s.lookup(bad, image)):
            with pytest.raises(ValueError, match=rf"contiguous float32 values \(256,\), got {bad.dtype} "):
                call()
    for n, reads, distinct in ((0, 1, 1), (-1, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 3), (1, 1, 64)):
        with pytest.raises(ValueError, match=rf"from 1 on.*got {n}, {reads}, {distinct}"):
            s.sums(numbers, n, reads, distinct)
    for call in (s.polynomial, s.polynomial_pycuda):
        with pytest.raises(ValueError, match=r"float32 values \(128,\), got float32 \(127,\)"):
            call(coefficients[1:], x)
        for bad in (x.astype(float), x[:0], x[None], x[::2]):
            with pytest.raises(ValueError, match=rf"contiguous float32 \(n,\), n > 0, got {bad.dtype} "):
                call(coefficients, bad)
    for bad in (x, image[:0], image[None], image[::2]):
        with pytest.raises(ValueError, match=rf"contiguous uint8 \(n,\), n > 0, got {bad.dtype} "):
            s.lookup(numbers, bad)


@pytest.mark.simulator
def test_822_counted_as_by_hand(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("8.2.2")
    s.compare(64, 5)
    printed = capfd.readouterr().out
    for distinct in s.DISTINCT:
        line = rf"^ +{distinct} +{distinct} +10 \(10\) +{distinct} \({distinct}\) *$"
        assert re.search(line, printed, flags=re.MULTILINE)
    assert "lookup of bands: a warp uses 1.0 addresses" in printed
    right = s.sums
    monkeypatch.setattr(s, "sums", lambda numbers, n, reads, distinct, place: right(numbers, n, reads, 1, place))
    with pytest.raises(Mismatch, match="32 addresses: 32 by NumPy, 10 requests, 10 sectors counted"):
        s.compare(64, 5)


@pytest.mark.parametrize(("name", "words"), [("sums", "sums_constant, 1"), ("lookup", "lookup_constant")])
def test_822_a_wrong_result_is_noticed(name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("8.2.2")
    right = getattr(s, name)

    def wrong(*arguments: object) -> np.ndarray:
        out = right(*arguments)
        out[-1] = np.nan
        return out

    monkeypatch.setattr(s, name, wrong)
    with pytest.raises(Mismatch, match=rf"{words}: 1 of 40 (.*\n)*.*NaN"):
        s.verify(40)


def test_822_what_it_prints(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("8.2.2")
    monkeypatch.setattr(results, "recorded", lambda number: [])
    printed = output_of("8.2.2", "--size", "99", "--plot", "--no-bench", capfd=capfd)
    for kind, places in s.PLACES.items():
        for place in places:
            assert f" {kind}_{place}" in printed
    assert "65,536 bytes: compiles" in printed and re.search(r"65,540 bytes: .*too much global constant data", printed)
    assert "not run: " in printed and not plots(printed)


def test_822_recorded_figures(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    s, row = section("8.2.2"), {"section": "8.2.2", "size": "2^22 x 64 reads", "dtype": "f32", "spread": 0.01}
    rows = [
        results.Row(name=f"sums_{place}, {n}", seconds=1e-5 * n, figures={s.ADDRESSES: n, s.TIMES: float(n)}, **row)
        for place in ("constant", "ldg")
        for n in (1, 32)
    ]
    recorded_as(rows, tmp_path, monkeypatch)
    printed = output_of("8.2.2", "--size", "33", "--no-bench", "--plot", capfd=capfd)
    assert "recorded on NVIDIA Test, 2031-02-03, not measured here" in printed and len(plots(printed)) == 1
    s.plot([results.Row(name="of old", seconds=1.0, **row)], "an older file")
    assert "no times over the number of addresses" in capfd.readouterr().out


@pytest.mark.gpu
@pytest.mark.slow
def test_822_time_grows_with_the_addresses() -> None:
    s = section("8.2.2")
    rows = {(row.name, row.size.rpartition(" ")[2]): row for row in s.benchmark()}
    constant = [rows[f"sums_constant, {n}", "reads"].seconds for n in s.DISTINCT]
    assert all(1.5 * a < b for a, b in pairwise(constant[1:]))  # 2, 4, … 32: twice the time
    assert rows["lookup_shared", "noise"].of_peer > 2
    assert rows["polynomial_constant", "numbers"].seconds < 1.02 * rows["polynomial_ldg", "numbers"].seconds
