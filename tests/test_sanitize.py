"""`./run sanitize`: races and faults of a section's kernels, on the simulator and through compute-sanitizer."""

import shutil
import stat
from pathlib import Path

import pytest

from common import __main__ as commands
from common import sanitize, sections
from common.cli import FAILED, OK, UNAVAILABLE, USAGE, exit_code

simulated = pytest.mark.simulator
SECTION = """
import numpy as np
from common import gpu
from common.gpu import LaunchConfig, launch

KERNEL = r\"\"\"extern "C" __global__ void reverse(int* x)
{
    __shared__ int s[64];
    s[threadIdx.x] = x[threadIdx.x];
    BARRIER
    x[threadIdx.x] = s[63 - threadIdx.x];
}\"\"\"

def main(argv=None):
    _, stream = gpu.open_device()
    x = gpu.to_device(np.arange(64, dtype=np.int32), stream)
    (kernel,) = gpu.compile_kernels(KERNEL, "reverse")
    launch(stream, LaunchConfig(grid=1, block=BLOCK), kernel, x.buffer)
    stream.sync()
"""


def planted(folder: Path, barrier: str, block: int = 64) -> sections.Section:
    """A section of its own, with or without a fault."""
    path = folder / "s1_1_1_planted.py"
    path.write_text(SECTION.replace("BARRIER", barrier).replace("BLOCK", str(block)))
    return sections.Section("1.1.1", 1, str(path), "full", "标题", "Title")


@simulated
def test_a_race_is_reported(tmp_path, capsys):
    assert sanitize.report(planted(tmp_path, "")) == FAILED
    printed = capsys.readouterr().out
    assert "race in shared memory, read after write: kernel reverse" in printed
    assert "line 6: x[threadIdx.x] = s[63 - threadIdx.x];" in printed
    assert "1.1.1 on the simulator: no fault, 1 race\n" in printed


@simulated
def test_the_mended_twin_is_clean(tmp_path, capsys):
    assert sanitize.report(planted(tmp_path, "__syncthreads();")) == OK
    assert "no fault, no races\n" in capsys.readouterr().out


@simulated
def test_a_fault_is_reported(tmp_path, capsys):
    assert sanitize.report(planted(tmp_path, "__syncthreads();", block=128)) == FAILED
    captured = capsys.readouterr()
    assert "out of bounds" in captured.err and "exit code 1, no races" in captured.out


@simulated
@pytest.mark.parametrize("section", [s for s in sections.load() if s.ready], ids=lambda section: section.number)
def test_the_sections_have_no_race(section, capsys):
    assert sanitize.report(section) == OK
    assert "no fault, no races\n" in capsys.readouterr().out


FAKE = """#!/bin/sh
echo "========= COMPUTE-SANITIZER"
echo "========= $SAID"
exit ${CODE:-0}
"""


@pytest.mark.parametrize(
    ("said", "code", "outcome"),
    [
        ("ERROR SUMMARY: 0 errors", 0, OK),
        ("RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", 0, OK),
        ("ERROR SUMMARY: 2 errors", 9, FAILED),
        ("RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)", 0, FAILED),
        ("Target application terminated", 0, FAILED),
        ("ERROR SUMMARY: 0 errors", 1, FAILED),
    ],
)
def test_what_compute_sanitizer_says(said, code, outcome, tmp_path, monkeypatch, capsys):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(FAKE)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sanitize, "find_tool", lambda name: str(tool))
    monkeypatch.setenv("SAID", said)
    monkeypatch.setenv("CODE", str(code))
    assert sanitize.on_the_gpu(sections.find("1.1.1"), []) == outcome
    printed = capsys.readouterr().out
    assert all(name in printed for name in sanitize.TOOLS)
    assert (said in printed) == ("SUMMARY" in said or outcome == FAILED)


def test_without_the_tool(monkeypatch):
    monkeypatch.setattr(sanitize, "find_tool", lambda name: None)
    assert exit_code(lambda _: sanitize.on_the_gpu(sections.find("1.1.1"), []), []) == UNAVAILABLE


def test_the_command_line():
    assert exit_code(lambda _: commands.parse(["sanitize"]).run(), []) == USAGE
    assert exit_code(lambda _: commands.parse(["sanitize", "9.9.9"]).run(), []) == USAGE


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(("barrier", "outcome"), [("", FAILED), ("__syncthreads();", OK)])
def test_on_a_gpu(barrier, outcome, tmp_path, capsys):
    if shutil.which("compute-sanitizer") is None:
        pytest.skip("needs compute-sanitizer")
    section = planted(tmp_path, barrier)
    section.path.write_text(section.path.read_text() + "\nmain()\n")
    assert sanitize.on_the_gpu(section, []) == outcome
