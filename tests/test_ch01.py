"""Chapter 1, CUDA basics: each kernel against NumPy, on whatever device is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import jupytext
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common import gpu, sections
from common.__main__ import load_module
from common.cli import OK, USAGE, Unavailable, exit_code
from common.sections import ROOT
from common.verify import Mismatch, check

SIZES = (1, 31, 32, 33, 255, 256, 257, 1000, 20_003)


@cache
def section(number: str) -> ModuleType:
    """The script of a section, imported."""
    return load_module(sections.find(number))


def vectors(n: int, count: int = 2) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((count, n), dtype=np.float32)


def output_of(number: str, *options: str, capfd: pytest.CaptureFixture[str]) -> str:
    """What a section prints; it has to end well."""
    code = exit_code(section(number).main, list(options))
    done = capfd.readouterr()
    assert code == OK, done.out + done.err
    return done.out


# --- 1.1.1 ----------------------------------------------------------------------------------------------------

SAXPYS = ("saxpy", "saxpy_grid_stride", "saxpy_float4")
# float32: the product and the sum are rounded, each by at most 2^-24 of a number below 16
CLOSE = {"rtol": 1e-7, "atol": 1e-6, "equal_nan": False}


def test_111_references_by_hand() -> None:
    s = section("1.1.1")
    x, y = np.array([1, 2, 3], np.float32), np.array([10, 20, 30], np.float32)
    np.testing.assert_array_equal(s.reference_add(x, y), [11, 22, 33])
    np.testing.assert_array_equal(s.reference_saxpy(2, x, y), [12, 24, 36])
    assert s.reference_saxpy(2, x, y).dtype == np.float64


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
        out = getattr(s, variant)(-1.75, x, y)
    except Unavailable as missing:  # PyCUDA, on a GPU
        pytest.skip(str(missing))
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, s.reference_saxpy(-1.75, x, y), **CLOSE)
    np.testing.assert_array_equal(y, before)


@pytest.mark.parametrize("n", SIZES)
def test_111_copy(n: int) -> None:
    bits = np.random.default_rng(n).integers(0, 2**32, n, dtype=np.uint32)  # NaN and infinity are among them
    out = section("1.1.1").copy_float4(bits.view(np.float32))
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
        expected[y_off : y_off + n] = s.reference_saxpy(3, part, y[y_off : y_off + n]) if first else part
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
            check(variant, getattr(s, variant)(2, x, y), s.reference_saxpy(2, x, y), rtol=1)


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        (np.zeros(3), np.zeros(3, np.float32), TypeError, "float64"),
        (np.zeros(3, np.int32), np.zeros(3, np.float32), TypeError, "int32"),
        ([1.0, 2.0], np.zeros(2, np.float32), TypeError, "list"),
        (np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float32), ValueError, r"shape \(2, 2\)"),
        (np.zeros(0, np.float32), np.zeros(0, np.float32), ValueError, r"shape \(0,\)"),
        (np.zeros(3, np.float32), np.zeros(4, np.float32), ValueError, "3 and 4"),
    ],
)
def test_111_bad_input(x: np.ndarray, y: np.ndarray, error: type[Exception], message: str) -> None:
    s = section("1.1.1")
    for call in (s.vector_add, lambda x, y: s.saxpy(2, x, y), lambda x, y: s.saxpy_pycuda(2, x, y)):
        try:
            with pytest.raises(error, match=message):
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


# --- copying a snippet ----------------------------------------------------------------------------------------


def cell(number: str, title: str) -> str:
    """The source of the cell of that title."""
    cells = jupytext.read(sections.find(number).path).cells
    return next(c.source for c in cells if c.metadata.get("title") == title)


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
