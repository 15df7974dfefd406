"""Section 1.4.2, blocks and grids: each kernel against NumPy, on whatever device is there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from common import gpu, results
from common.verify import Mismatch, check
from tests.chapter import assert_both_agree, on_the_simulator, output_of, plots, recorded_as, section


def test_142_reference_by_hand() -> None:
    s = section("1.4.2")
    plane = np.arange(12, dtype=np.float32).reshape(3, 4) ** 2
    expected = plane.astype(np.float64)
    expected[1, 1], expected[1, 2] = (1 + 81 + 16 + 36) / 4, (4 + 100 + 25 + 49) / 4
    np.testing.assert_array_equal(s.reference(plane), expected)
    cube = np.zeros((3, 3, 3), np.float32)
    cube[0, 1, 1], cube[1, 0, 1], cube[1, 1, 2], cube[2, 2, 2] = 6, 12, 24, 600
    expected = cube.astype(np.float64)
    expected[1, 1, 1] = 7
    np.testing.assert_array_equal(s.reference(cube), expected)
    for shape in ((1, 1), (2, 9), (9, 2), (5, 2, 5)):  # nothing but border
        values = s.random_values(shape)
        np.testing.assert_array_equal(s.reference(values), values)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 31, 33, 119, 120, 121, 129, 130, 131, 132, 260])
def test_142_two_dimensions(width: int) -> None:
    s = section("1.4.2")
    for height in (1, 2, 3, 7, 8, 9, 33, 65):
        values = s.random_values((height, width))
        before, expected = values.copy(), s.reference(values)
        for name, blocks in (("jacobi_2d", ((32, 8), (5, 7), (1, 64))), (s.FLOAT4, ((32, 1), (32, 4)))):
            for block in blocks:
                out = s.jacobi(values, block, name)
                assert out.dtype == np.float32
                check(f"{name} {block} {values.shape}", out, expected, **s.CLOSE)
        for grid in ((-(-width // 32), 1), (-(-width // 32), 3)):
            check("stride", s.jacobi(values, (32, 2), "jacobi_2d_stride", grid), expected, **s.CLOSE)
        np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize(
    "shape",
    [
        *((1, 1, 1), (3, 3, 1), (3, 3, 2), (3, 3, 3), (2, 5, 31), (5, 2, 9), (15, 4, 33), (16, 3, 129), (17, 5, 130)),
        *((18, 9, 5), (33, 4, 131), (31, 3, 4), (32, 5, 120), (4, 3, 121), (5, 3, 260)),
    ],
)
def test_142_three_dimensions(shape: tuple[int, int, int]) -> None:
    s, values = section("1.4.2"), section("1.4.2").random_values(shape)
    for name, blocks in (("jacobi_3d", ((32, 4, 2), (3, 5, 7))), (s.FLOAT4_3D, ((32, 1, 1), (32, 4, 1)))):
        for block in blocks:
            check(f"{name} {block}", s.jacobi(values, block, name), s.reference(values), **s.CLOSE)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 119, 120, 121, 122, 123, 124])
def test_142_what_lies_between_the_rows_does_not_count(width: int) -> None:
    s, (_, stream) = section("1.4.2"), gpu.open_device()
    for name, shape in ((s.FLOAT4, (10, width)), (s.FLOAT4_3D, (4, 3, width))):
        values = s.random_values(shape)
        for more in (0, 4, 8):
            widths = [(0, 0)] * (len(shape) - 1) + [(0, -width % 4 + more)]
            d_in = gpu.to_device(np.pad(values, widths, constant_values=np.nan), stream)
            d_out = gpu.empty(d_in.shape, np.float32, stream)
            s.start(stream, name, (32, 2, 1)[: len(shape)], shape, d_in, d_out)
            check(name, d_out.to_host(stream)[..., :width], s.reference(values), **s.CLOSE)


def test_142_a_block_writes_no_columns_but_its_own() -> None:
    s, (_, stream) = section("1.4.2"), gpu.open_device()
    for name, shape, grid in ((s.FLOAT4, (9, 200), (1, 9)), (s.FLOAT4_3D, (3, 4, 200), (1, 2, 1))):
        values, ours = s.random_values(shape), (..., slice(120))
        d_in, d_out = gpu.to_device(values, stream), gpu.to_device(np.full(shape, -7, np.float32), stream)
        s.start(stream, name, (32, 2, 1)[: len(shape)], shape, d_in, d_out, grid)
        out = d_out.to_host(stream)
        check(name, out[ours], s.reference(values)[ours], **s.CLOSE)
        assert (out[..., 120:] == -7).all()


def test_142_a_nan_reaches_its_neighbours_and_no_further() -> None:
    s, values = section("1.4.2"), section("1.4.2").random_values((40, 250))
    values[[7, 20], [119, 120]] = np.nan
    expected = s.reference(values)
    assert np.isnan(expected).sum() == 8  # whose own value does not count
    for name, block in (("jacobi_2d", (32, 8)), (s.FLOAT4, (32, 4))):
        out = s.jacobi(values, block, name)
        np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
        with pytest.raises(Mismatch, match="NaN"):
            check(name, out, expected, rtol=1)


def test_142_grids_by_hand() -> None:
    s = section("1.4.2")
    assert s.grid_for((61, 66), (32, 8), (1, 1)) == (3, 8)
    assert s.grid_for((70, 250), (32, 4), (3.75, 8)) == (3, 3)  # of 120 × 32 points
    assert s.grid_for((33, 9, 121), (32, 4, 1), (3.75, 1, 16)) == (2, 3, 3)  # of 120 × 4 × 16
    assert s.grid_for((16, 8, 120), (32, 8, 1), (3.75, 1, 16)) == (1, 1, 1)
    assert s.idle_threads((61, 66), (32, 8)) == 1 - 61 * 66 / (24 * 256)
    assert s.idle_threads((64, 64), (32, 8)) == 0
    assert len(s.SHAPES) == 45 and all(64 <= x * y <= 1024 for x, y in s.SHAPES) and len(s.SHOWN) == 12


def test_142_sectors_by_hand() -> None:
    s = section("1.4.2")
    by_hand = {(256, 1): 4, (32, 8): 4, (16, 16): 4, (8, 32): 4, (4, 64): 8, (2, 128): 16, (1, 256): 32}
    assert {block: s.sectors_per_request(64, block) for block in by_hand} == by_hand
    # rows of 65 begin at bytes 0, 260, 520 and 780: only the first 8 numbers lie in one sector
    assert s.sectors_per_request(65, (8, 32)) == 1 + 2 + 2 + 2
    assert s.sectors_per_request(64, (8, 1)) == 1 and s.sectors_per_request(7, (1, 64)) == 28


@pytest.mark.simulator
def test_142_sectors_by_hand_are_those_counted() -> None:
    from common.simt.counters import counting

    s, values = section("1.4.2"), section("1.4.2").random_values((256, 256))
    for block in s.SHOWN:
        with counting() as launches:
            s.jacobi(values, block)
        sectors, requests = (launches[0].total(f"global_store_{what}") for what in ("sectors", "requests"))
        assert sectors == requests * s.sectors_per_request(256, block)


def test_142_occupancy() -> None:
    s, of = section("1.4.2"), gpu.Device().properties
    most = of.max_threads_per_multiprocessor
    assert s.occupancy("jacobi_2d", (32, 1)) == min(32 * of.max_blocks_per_multiprocessor, most) / most
    assert s.occupancy("jacobi_2d", (32, 8)) == s.occupancy("jacobi_2d", (1, 256)) == most // 256 * 256 / most
    assert s.occupancy("jacobi_2d", (7, 100)) == most // 704 * 700 / most  # 22 warps, the last one of 28 threads


def test_142_bad_input() -> None:
    s, plane, cube = section("1.4.2"), np.zeros((3, 4), np.float32), np.zeros((3, 4, 5), np.float32)
    for values, block, words in (
        (np.zeros((3, 4)), (32, 8), r"float64 \(3, 4\)"),
        (plane[0], (32,), r"float32 \(4,\)"),
        (plane[:0], (32, 8), r"float32 \(0, 4\)"),
        (plane, (32, 8, 1), r"float32 \(3, 4\), \(32, 8, 1\)"),
        (cube, (32, 8), r"float32 \(3, 4, 5\), \(32, 8\)"),
        (cube[None], (32, 4, 2, 1), r"float32 \(1, 3, 4, 5\)"),
    ):
        with pytest.raises(ValueError, match=f"expected float32 and a block of 2 or 3 extents, got {words}"):
            s.jacobi(values, block)
    for values, block, name in ((plane, (16, 8), s.FLOAT4), (cube, (64, 2, 1), s.FLOAT4_3D)):
        with pytest.raises(ValueError, match=f"{name} needs blocks of 32 threads in x, got "):
            s.jacobi(values, block, name)
    for values, block in ((plane, (64, 32)), (cube, (4, 4, 128))):  # 2048 threads; 128 in z
        with pytest.raises(gpu.CUDAError):
            s.jacobi(values, block)


def test_142_a_grid_that_is_too_tall() -> None:
    s = section("1.4.2")
    error, cured = s.tall_grid()
    assert "INVALID_VALUE" in error and cured.count == 3 * s.TALL and s.TALL > 65_535


def test_142_a_tall_grid_that_is_accepted_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.4.2")
    monkeypatch.setattr(s, "TALL", 65_535)
    with pytest.raises(Mismatch, match="65535 blocks in y was accepted"):
        s.tall_grid()


def test_142_a_wrong_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.4.2")
    right = s.reference
    for ndim, name in ((2, "jacobi_2d"), (3, "jacobi_3d")):
        monkeypatch.setattr(s, "reference", lambda values, d=ndim: right(values) + 1e-6 * (values.ndim == d))
        with pytest.raises(Mismatch, match=f"{name}, block 32×"):
            s.verify(30)


def shape_rows() -> list[results.Row]:
    """Figures as benchmark() of 1.4.2 gives them: the wider the block, the faster, and 32×8 the fastest."""
    s, rows = section("1.4.2"), []
    for x, y in s.SHAPES:
        of_copy = 0.02 * (x.bit_length() + 1) + 0.5 * ((x, y) == (32, 8))
        figures = {"occupancy %": 100.0 if x * y > 64 else 50.0, "sectors/request": 4.0 if x >= 32 else 128 / x}
        rows.append(("jacobi_2d", (x, y), of_copy, figures))
    rows += [
        (name, (32, 4), of_copy, {"occupancy %": 75.0}) for name, of_copy in ((s.FLOAT4, 0.95), ("jacobi_3d", 0.6))
    ]
    return [
        results.Row("1.4.2", f"{name}, block {b[0]}×{b[1]}", "99x77", "f32", 1e-3 / c, 0.0, of_copy=c, figures=figures)
        for name, b, c, figures in rows
    ]


def test_142_recorded_figures_are_shown_with_gpu_and_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recorded_as(shape_rows(), tmp_path, monkeypatch)
    printed = output_of("1.4.2", "--quick", "--plot", "--no-bench", capfd=capfd)
    assert "recorded on NVIDIA Test, 2031-02-03, not measured here" in printed
    assert re.search(r"^ *16×16 +256 +100% +8 +12.0% ", printed, flags=re.MULTILINE)
    assert "fastest shape: 32×8, 64.0% of copy at 100% occupancy" in printed
    assert re.search(r"slowest shape: 1×\d+, 4.0% of copy at \d+% occupancy", printed)
    for name, of_copy in ((section("1.4.2").FLOAT4, "95.0%"), ("jacobi_3d", "60.0%")):
        assert re.search(rf"^ {name}, block 32×4 +99x77 +{of_copy} ", printed, flags=re.MULTILINE)
    assert len(plots(printed)) == 1


def test_142_without_recorded_figures(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(results, "recorded", lambda number: [])
    printed = output_of("1.4.2", "--size", "59", "--plot", "--no-bench", capfd=capfd)
    assert f"not run: {results.NOTHING}" in printed and "./run bench 1" in printed
    assert re.search(r"^a grid of 70001 blocks in y: \w*INVALID_VALUE", printed, flags=re.MULTILINE)
    # 64 × 59 points by blocks of 8 × 32: 8 blocks across, 2 down; four rows of 8 in four sectors
    assert re.search(r"^ *8×32 +100% +4 +7.8% ", printed, flags=re.MULTILINE)
    assert ("Counted" in printed) is gpu.SIMULATED


@pytest.mark.gpu
@pytest.mark.slow
def test_142_shapes_of_equal_occupancy_are_far_apart() -> None:
    s = section("1.4.2")
    rows = s.benchmark()
    shapes, best = s.times_by_shape(rows), {}
    assert shapes[1, 256].seconds > 3 * shapes[32, 8].seconds
    assert shapes[1, 256].figures["occupancy %"] == shapes[32, 8].figures["occupancy %"]
    for row in rows:
        name = row.name.partition(", block")[0]
        best[name] = max(best.get(name, 0), row.of_copy)
    assert best[s.FLOAT4] > 0.9 and best[s.FLOAT4] >= best["jacobi_2d"]
    assert best[s.FLOAT4_3D] > best["jacobi_3d"]


# --- on a GPU -------------------------------------------------------------------------------------------------


def outputs(number: str) -> list[np.ndarray]:
    """What the kernels of a section make of fixed inputs."""
    s = section(number)
    plane, cube = s.random_values((67, 259)), s.random_values((19, 20, 130))
    found = [s.jacobi(plane, (32, 8)), s.jacobi(plane, (32, 4), s.FLOAT4)]
    found.append(s.jacobi(plane, (32, 8), "jacobi_2d_stride", (9, 2)))
    return [*found, s.jacobi(cube, (8, 8, 4)), s.jacobi(cube, (32, 4, 1), s.FLOAT4_3D)]


@pytest.mark.gpu
def test_142_gpu_and_simulator_agree(tmp_path: Path) -> None:
    assert_both_agree(outputs("1.4.2"), on_the_simulator(__name__, "1.4.2", tmp_path))


def test_142_blocks_and_grids_that_would_leave_points_out() -> None:
    s = section("1.4.2")
    cube, plane = s.random_values((17, 5, 121)), s.random_values((90, 90))
    for block in ((32, 2, 2), (32, 1, 4)):
        with pytest.raises(ValueError, match="one in z"):
            s.jacobi(cube, block, s.FLOAT4_3D)
    with pytest.raises(ValueError, match="no other kernel takes one"):
        s.jacobi(plane, (32, 8), grid=(1, 1))
    for shape, grid in (((20, 33), 1), ((20, 33), (1, 4))):
        with pytest.raises(ValueError, match="do not cover"):
            s.jacobi(s.random_values(shape), (8, 8), "jacobi_2d_stride", grid)
    for values, block, name in ((plane, (0, 8), None), (cube, (8, 8, 2), "jacobi_2d")):
        with pytest.raises(ValueError, match="does not take"):
            s.jacobi(values, block, name)
    with pytest.raises(ValueError, match="needs a grid"):
        s.jacobi(plane, (32, 8), "jacobi_2d_stride")
