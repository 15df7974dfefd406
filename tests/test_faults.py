"""The planted faults of tests/faults: the simulator finds each, in its line, and nothing in the mended twins."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from common import gpu, sanitize
from common.report import ROOT
from common.simt.findings import KINDS
from tests.faults import FAULTS, Fault, findings_of

simulated = pytest.mark.simulator
NAMES = sorted(FAULTS)


def one_line_apart(fault: Fault) -> bool:
    """Whether the twin's source differs in one line at most (a barrier in an empty one counts)."""
    pairs = zip(fault.text(False).splitlines(), fault.text(True).splitlines(), strict=True)
    return sum(a != b for a, b in pairs) <= 1


@simulated
@pytest.mark.parametrize("name", NAMES)
def test_the_simulator_finds_it(name: str) -> None:
    found = findings_of(FAULTS[name])
    assert found, "nothing was found"
    assert FAULTS[name].describes(found[0]), str(found[0])
    assert {finding.kind for finding in found} == {FAULTS[name].kind}  # what follows from it is of its kind


@simulated
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_found_in_the_twin(name: str) -> None:
    found = findings_of(FAULTS[name], twin=True)
    assert not found, str(found[0])


def test_there_are_faults_of_every_kind() -> None:
    numbers = Counter(fault.kind for fault in FAULTS.values())
    assert len(FAULTS) >= 40 and set(numbers) == set(KINDS) and set(sanitize.TOOL_FOR) == set(KINDS)
    for fault in FAULTS.values():
        assert one_line_apart(fault)
        assert fault.mark in ("", "array.to_host", "# fault") or fault.source.count("// fault") == 1


@simulated
def test_wherever_compute_sanitizer_finds_a_fault_so_does_the_simulator() -> None:
    if not sanitize.stored_verdicts().exists():
        pytest.skip("no verdict of compute-sanitizer is recorded")
    stored = json.loads(sanitize.stored_verdicts().read_text(encoding="utf-8"))
    assert stored["gpu"] and stored["sanitizer"] and set(stored["faults"]) == set(stored["twins"])
    unknown = [name for part in ("faults", "twins") for name, said in stored[part].items() if said["found"] is None]
    assert not unknown, f"did not run to the end: {unknown}"
    for name, said in stored["faults"].items():
        assert not said["found"] or findings_of(FAULTS[name]), f"{name}: {said['report']}"
    # the tool that a kind is for finds most of that kind; no tool looks for races in global memory
    found = [name for name, said in stored["faults"].items() if said["found"]]
    assert len(found) >= len(FAULTS) // 3


@simulated
def test_a_child_process_says_what_is_found(capfd: pytest.CaptureFixture[str]) -> None:
    import subprocess
    import sys

    for options, code, text in (([], 1, "out of bounds"), (["--twin"], 0, "nothing found")):
        command = [sys.executable, "-m", "tests.faults", "guard_off_by_one", *options]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        assert (done.returncode, text in done.stdout) == (code, True), done.stderr


@pytest.mark.gpu
def test_on_a_gpu_a_child_runs_to_its_end() -> None:
    assert not gpu.SIMULATED
    if sanitize.find_tool("compute-sanitizer") is None:
        pytest.skip("needs compute-sanitizer")
    said = [sanitize.verdict("out of bounds", "guard_off_by_one", twin) for twin in (False, True)]
    assert [one["found"] for one in said] == [True, False] and "Invalid" in said[0]["report"]
