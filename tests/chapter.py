"""What the tests of the chapters share: a section as a module, what it prints, its cells, both devices compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from common import results, sections
from common.__main__ import load_module
from common.cli import OK, exit_code
from common.sections import ROOT
from common.verify import ulp_distance

SIZES = (1, 31, 32, 33, 255, 256, 257, 1000, 20_003)


@cache
def section(number: str) -> ModuleType:
    """The script of a section, imported."""
    return load_module(sections.find(number))


def vectors(n: int, count: int = 2) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((count, n), dtype=np.float32)


def bad_vectors(dtype: type) -> list[tuple[Any, str]]:
    """What a function of one non-empty vector of that dtype has to refuse, and the words for it."""
    wrong_shape = [(np.zeros(shape, dtype), f"{dtype.__name__} of shape") for shape in ((2, 2), 0)]
    return [*wrong_shape, (np.zeros(3), "got float64"), ([1, 2], "got int64")]


def output_of(number: str, *options: str, capfd: pytest.CaptureFixture[str]) -> str:
    """What a section prints; it has to end well."""
    code = exit_code(section(number).main, list(options))
    done = capfd.readouterr()
    assert code == OK, done.out + done.err
    return done.out


def plots(printed: str) -> list[Path]:
    """The plots that a section says it drew; each is there."""
    paths = [Path(name) for name in re.findall(r"^plot: (.*)$", printed, flags=re.MULTILINE)]
    assert all(path.stat().st_size > 10_000 for path in paths)
    return paths


def recorded_as(rows: list[results.Row], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `rows` what was recorded, on another GPU."""
    path = folder / "nvidia_test.json"
    run = {"date": "2031-02-03T00:00:00Z", "copy_gbps": 4000.0, "fma_tflops": 60.0}
    results.merge(path, "NVIDIA Test", "run", run, rows)
    monkeypatch.setattr(results, "REFERENCE", path)
    monkeypatch.setattr(results, "recorded", lambda number: results.load(path)["rows"])


def cell(number: str, title: str) -> str:
    """The source of the cell of that title."""
    text = sections.find(number).path.read_text(encoding="utf-8")
    (source,) = re.findall(rf"^# %% {re.escape(title)}\n(.*?)(?=^# %%)", text, flags=re.DOTALL | re.MULTILINE)
    return source


def python_path() -> str:
    """A PYTHONPATH for child processes: the repository, and what is on it already."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def on_the_simulator(module: str, number: str, folder: Path) -> list[np.ndarray]:
    """What `outputs(number)` of a test module gives in a process that is told to use the simulator."""
    code = (
        "import importlib, sys, numpy; outputs = importlib.import_module(sys.argv[1]).outputs;"
        "numpy.savez(sys.argv[3], *outputs(sys.argv[2]))"
    )
    environment = {**os.environ, "CUDA_BOOK_DEVICE": "simulator", "PYTHONPATH": python_path()}
    command = [sys.executable, "-c", code, f"tests.{module.rpartition('.')[2]}", number, str(folder / "outputs.npz")]
    subprocess.run(command, env=environment, check=True)
    with np.load(folder / "outputs.npz", allow_pickle=False) as made:
        return list(made.values())


def assert_both_agree(ours: Sequence[np.ndarray], simulated: Sequence[np.ndarray], ulp: int = 1) -> None:
    """Integers bit for bit; floats to `ulp` units in the last place, for the compiler may fuse a x + y in either."""
    for a, b in zip(ours, simulated, strict=True):
        assert a.dtype == b.dtype
        if a.dtype.kind == "f":
            assert ulp_distance(a, b).max() <= ulp
        else:
            np.testing.assert_array_equal(a, b)
