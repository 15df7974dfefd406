"""`./run sanitize`: races and faults of a section's kernels, on the simulator and through compute-sanitizer."""

import json
import shutil
import stat
from pathlib import Path

import pytest

from common import __main__ as commands
from common import sanitize, sections
from common.cli import FAILED, OK, UNAVAILABLE, USAGE, exit_code
from tests.faults import FAULTS

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


def words(capsys) -> str:
    """What was printed, as one line."""
    return " ".join(capsys.readouterr().out.split())


def planted(folder: Path, barrier: str, block: int = 64) -> sections.Section:
    """A section of its own, with or without a fault."""
    path = folder / "s1_1_1_planted.py"
    path.write_text(SECTION.replace("BARRIER", barrier).replace("BLOCK", str(block)))
    return sections.Section("1.1.1", 1, str(path), "full", "标题", "Title")


NOTHING = (
    "no access outside of what is allocated, no misaligned access, no access to freed memory, no read of memory that "
    "nothing wrote, no race in shared memory, no race in global memory, no barrier that some threads miss, no leak, "
    "no invalid free"
)


@simulated
def test_a_race_is_reported(tmp_path, capsys):
    assert sanitize.report(planted(tmp_path, "")) == FAILED
    printed = words(capsys)
    assert "race in shared memory, read after write in kernel reverse, block (0,0,0)" in printed
    assert "line 6: x[threadIdx.x] = s[63 - threadIdx.x]; at byte 252 of 's'" in printed
    said = NOTHING.replace("no race in shared memory", "race in shared memory: 1")
    assert printed.endswith(f"1.1.1 on the simulator, 1 launch of 1 kernel: {said}")


@simulated
def test_the_mended_twin_is_clean(tmp_path, capsys):
    assert sanitize.report(planted(tmp_path, "__syncthreads();")) == OK
    assert words(capsys).endswith(f"1.1.1 on the simulator, 1 launch of 1 kernel: {NOTHING}")


@simulated
def test_a_fault_is_reported(tmp_path, capsys):
    assert sanitize.report(planted(tmp_path, "__syncthreads();", block=128)) == FAILED
    captured = capsys.readouterr()
    printed = " ".join(captured.out.split())
    assert "out of bounds" in captured.err and "exit code 1; access outside of what is allocated: 1" in printed
    assert "past the end of 'x' (device buffer" in printed
    assert "allocated by s1_1_1_planted.py, line 16: x = gpu.to_device" in printed


@simulated
def test_a_leak_is_reported(tmp_path, capsys):
    section = planted(tmp_path, "__syncthreads();")
    text = section.path.read_text().replace("    stream.sync()\n", "    stream.sync()\n    KEPT.append(x)\nKEPT = []\n")
    section.path.write_text(text)
    assert sanitize.report(section) == FAILED
    assert "leak: nothing freed 'device buffer" in (printed := words(capsys)) and "leak: 1, no inv" in printed


@simulated
def test_what_is_shown_on_purpose_is_no_failure(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sanitize, "ON_PURPOSE", ("reverse",))
    assert sanitize.report(planted(tmp_path, "")) == OK
    printed = words(capsys)
    assert "(on purpose) 1.1.1 on" in printed and printed.endswith(f"{NOTHING}, some on purpose, in reverse")


@simulated
def test_kernels_that_signal_each_other_are_named(tmp_path, capsys):
    assert sanitize.report(planted(tmp_path, "__syncthreads(); __threadfence();")) == OK
    assert "no race in global memory (not looked for in reverse: threads" in words(capsys)


@simulated
def test_all_sections_in_a_table(tmp_path, capsys, monkeypatch):
    idle = sections.Section("1.1.3", 1, str(tmp_path / "idle.py"), "full", "标题", "Without kernels")
    idle.path.write_text("def main(argv=None):\n    return 0\n")
    monkeypatch.setattr(sections, "load", lambda: (planted(tmp_path, ""), idle))
    assert commands.parse(["sanitize"]).run() == FAILED
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if "race in shared memory: 1" in line)
    assert row.split()[:4] == ["1.1.1", "Title", "1", "1"] and "Without kernels" not in printed
    assert "looked for: access outside of what is allocated, " in printed
    monkeypatch.setattr(sections, "load", lambda: (planted(tmp_path, "__syncthreads();"),))
    assert commands.parse(["sanitize"]).run() == OK


@simulated
@pytest.mark.parametrize("section", [s for s in sections.load() if s.ready], ids=lambda section: section.number)
def test_nothing_is_found_in_the_sections(section, capsys):
    code, found = sanitize.check(section, [])
    assert code in (OK, UNAVAILABLE)
    assert not [str(finding) for finding in found if finding.kernel not in sanitize.ON_PURPOSE]


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
    assert exit_code(lambda _: commands.parse(["sanitize", "9.9.9"]).run(), []) == USAGE
    assert exit_code(lambda _: commands.parse(["sanitize", "--all"]).run(), []) == USAGE


# ---- planted faults
@pytest.mark.parametrize(
    ("kind", "said", "code", "found", "text"),
    [  # the kind of fault, what the tool says, its exit code, and the verdict
        ("misaligned", "Invalid __global__ read\nERROR SUMMARY: 1 error", 9, True, "Invalid __global__ read"),
        ("misaligned", "ERROR SUMMARY: 0 errors\nran to its end", 0, False, ""),
        ("misaligned", "ERROR SUMMARY: 0 errors", 1, None, "exit code 1: it broke"),
        ("shared race", "Error: Race reported\nRACECHECK SUMMARY: 1 hazard displayed", 9, True, "Error: Race reported"),
        ("invalid free", "Program hit X in cuCtxGetDevice\nERROR SUMMARY: 1 error\nran to its end", 9, False, ""),
        ("invalid free", "Program hit X in cuMemFreeAsync\nERROR SUMMARY: 1 error", 9, True, "Program hit X in cuM"),
    ],
)  # fmt: skip
def test_a_verdict_of_compute_sanitizer(kind, said, code, found, text, tmp_path, monkeypatch):
    tool = tmp_path / "compute-sanitizer"
    lines = "\n".join(f'echo "{"" if "ran to" in line else "========= "}{line}"' for line in said.splitlines())
    tool.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\n{lines}\necho "it broke" >&2\nexit {code}\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sanitize, "find_tool", lambda name: str(tool))
    verdict = sanitize.verdict(kind, "some_name", twin=True)
    assert (
        verdict["found"] is found and verdict["report"].startswith(text) and verdict["tool"] == sanitize.TOOL_FOR[kind]
    )
    called = (tmp_path / "called").read_text()
    assert f"--tool {sanitize.TOOL_FOR[kind]}" in called and called.endswith("-m tests.faults some_name --twin\n")


def test_a_tool_that_does_not_end_is_stopped(tmp_path, monkeypatch):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text("#!/bin/sh\necho started\nsleep 60 &\nwait\n")  # the child holds the pipes, as a program would
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sanitize, "find_tool", lambda name: str(tool))
    done, reported = sanitize.run_tool("memcheck", [], seconds=0.5)
    assert (done.stdout, done.stderr, reported) == ("started\n", "no end after 0 s", [])
    assert done.returncode != OK


@simulated
def test_the_stored_verdicts_stand_beside_the_simulators(tmp_path, capsys, monkeypatch):
    few = {name: FAULTS[name] for name in ("guard_off_by_one", "named_barrier_for_too_many", "result_kept")}
    monkeypatch.setattr("tests.faults.FAULTS", few)
    monkeypatch.setattr(sanitize, "stored_verdicts", lambda: tmp_path / "sanitizer_x.json")
    assert commands.parse(["sanitize", "faults"]).run() == OK
    printed = capsys.readouterr().out
    assert "not run: no verdict of compute-sanitizer is recorded" in printed and "3 faults; all found here" in printed
    said = {"tool": "memcheck", "found": True, "report": "Invalid"}
    parts = {"faults": {"guard_off_by_one": said}, "twins": {"guard_off_by_one": {**said, "found": None}}}
    stored = {"gpu": "NVIDIA X", "date": "2026-01-02T03:04:05Z", "sanitizer": "2025.3", **parts}
    (tmp_path / "sanitizer_x.json").write_text(json.dumps(stored))
    assert sanitize.show_faults() == FAILED  # a program that did not run to its end
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if "guard_off_by_one" in line)
    assert row.split()[-6:] == ["nothing", "memcheck", "found", "did", "not", "run"]
    assert "compute-sanitizer 2025.3 on NVIDIA X, 2026-01-02" in printed


@simulated
def test_a_fault_that_the_simulator_misses_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sanitize, "stored_verdicts", lambda: tmp_path / "none.json")
    verdicts = {name: {"found": "found", "twin": "nothing"} for name in FAULTS} | {
        "guard_off_by_one": {"found": "nothing", "twin": "nothing"}
    }
    monkeypatch.setattr(sanitize, "simulated_verdicts", lambda: verdicts)
    assert sanitize.show_faults() == FAILED
    assert "the simulator is wrong about guard_off_by_one" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(("barrier", "outcome"), [("", FAILED), ("__syncthreads();", OK)])
def test_on_a_gpu(barrier, outcome, tmp_path, capsys):
    if shutil.which("compute-sanitizer") is None:
        pytest.skip("needs compute-sanitizer")
    section = planted(tmp_path, barrier)
    section.path.write_text(section.path.read_text() + "\nmain()\n")
    assert sanitize.on_the_gpu(section, []) == outcome
