"""`./run sanitize [SECTION]`: faults and races of a section's kernels, or of all sections; `./run sanitize faults`.

On the simulator its own checks look on (simt/findings.py says what for). On a GPU the tools of compute-sanitizer check
the same run. `faults` runs the planted faults of tests/faults under them and keeps what they say in results/, beside
which it prints the simulator's verdict.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from common import results, sections
from common.__main__ import load_module
from common.cli import FAILED, INTERRUPTED, OK, UNAVAILABLE, USAGE, Unavailable, exit_code, not_run
from common.doctor import PURPOSE, find_tool
from common.report import table
from common.sections import Section

TOOLS = ("memcheck", "initcheck", "racecheck", "synccheck")
ON_PURPOSE = ("histogram_race",)  # kernels of the book that show a fault: 1.4.3
# cuda.bindings asks the driver for functions that it may lack: that is no fault of the program
OPTIONS = ("--error-exitcode", "9", "--report-api-errors", "no")
# the tool for a kind of planted fault (simt/findings.py), and its options where they are others
TOOL_FOR = {
    "out of bounds": "memcheck", "misaligned": "memcheck", "use after free": "memcheck", "leak": "memcheck",
    "invalid free": "memcheck", "uninitialized": "initcheck", "shared race": "racecheck", "global race": "racecheck",
    "barrier": "synccheck",
}  # fmt: skip
OPTIONS_FOR = {
    "leak": (*OPTIONS, "--leak-check", "full"),
    "invalid free": ("--error-exitcode", "9", "--ignore-getprocaddress-notfound"),
}
EVIDENCE = {"leak": r"Leaked ", "invalid free": r"hit .*Free"}  # where the number of errors does not tell
AT_ONCE = 10  # child processes


# ---- the simulator
def check(section: Section, options: Sequence[str]) -> tuple[int, Any]:
    """Run the section with its kernels watched: its exit code, and the Findings."""
    from common.simt.findings import watching

    with watching() as found:
        code = exit_code(load_module(section).main, ["--quick", *options])
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if code == OK:  # after an error its traceback keeps buffers alive
            found.leaks()
    return code, found


def in_words(found: Any) -> list[str]:
    """What was looked for, and how often it was found; kernels that are wrong on purpose aside."""
    from common.simt.findings import KINDS

    numbers = Counter(finding.kind for finding in found if finding.kernel not in ON_PURPOSE)
    words = [f"{KINDS.get(kind, kind)}: {numbers[kind]}" if numbers[kind] else f"no {KINDS[kind]}" for kind in KINDS]
    words += [f"{kind}: {number}" for kind, number in numbers.items() if kind not in KINDS]
    for kind, kernels in found.synchronising.items():
        if kernels:
            place = list(KINDS).index(kind)
            words[place] += f" (not looked for in {', '.join(sorted(kernels))}: threads signal each other there)"
    return words


def on_purpose(found: Any) -> list[str]:
    """The kernels with findings that the book shows, in a line."""
    names = sorted({finding.kernel for finding in found if finding.kernel in ON_PURPOSE})
    return [f"some on purpose, in {', '.join(names)}"] if names else []


def amiss(found: Any) -> list[str]:
    """The words for what was found only; [] where nothing was."""
    return [words for words in in_words(found) if re.search(r": \d+", words)]


def on_the_simulator(section: Section, options: Sequence[str]) -> int:
    """Print each finding, and what was looked for. Exit code 1 for a finding, or that of what failed."""
    code, found = check(section, options)
    if code in (USAGE, UNAVAILABLE) or not (code or found.launches):  # it has said why, or was --help
        return code
    for finding in found:
        print(f"\n{finding}{' (on purpose)' if finding.kernel in ON_PURPOSE else ''}")
    kernels, launches = len(found.kernels), found.launches
    looked = f"{launches} launch{'es' * (launches != 1)} of {kernels} kernel{'s' * (kernels != 1)}"
    ended = "" if code == OK else f"exit code {code}; "
    said = f"{section.number} on the simulator, {looked}: {ended}{', '.join(in_words(found) + on_purpose(found))}"
    print("\n" + textwrap.fill(said, 118, subsequent_indent="  "))
    return code or (FAILED if amiss(found) else OK)


def all_on_the_simulator() -> int:
    """A table of all sections that launch kernels. Exit code 1 if anything was found or failed."""
    rows, failed = [], False
    for section in (s for s in sections.load() if s.ready):
        print(f"{section.number} ...", flush=True)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code, found = check(section, [])
        words = amiss(found) + ([] if code in (OK, UNAVAILABLE) else [f"exit code {code}"])
        failed = failed or bool(words)
        if found.launches or words:
            faults = "; ".join([*words, *on_purpose(found)]) or "none"
            rows.append((section.number, section.title_en, len(found.kernels), found.launches, faults))
    table("Sections on the simulator", ("section", "title", "kernels", "launches", "faults"), rows)
    looked = ", ".join(words.removeprefix("no ") for words in in_words(type(found)()))
    print(textwrap.fill(f"looked for: {looked}", 118, subsequent_indent="  "))
    return FAILED if failed else OK


# ---- compute-sanitizer
def find_sanitizer() -> str:
    """The path of compute-sanitizer. Raises Unavailable without it."""
    tool = find_tool("compute-sanitizer")
    if tool is None:
        raise Unavailable("compute-sanitizer", PURPOSE["compute-sanitizer"][1])
    return tool


def run_tool(
    name: str, program: Sequence[str], options: Sequence[str] = OPTIONS, seconds: float = 900
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run a program under a tool of compute-sanitizer, at most so long: how it ended, and the tool's report."""
    command = [find_sanitizer(), "--tool", name, "--max-connections", "100", *options, *program]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as child:
        try:
            said = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # with the program, which holds the pipes
            said = child.communicate()
            said = (said[0], f"no end after {seconds:.0f} s")
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
    done = subprocess.CompletedProcess(command, child.returncode, *said)
    return done, [line.removeprefix("=========").strip() for line in done.stdout.splitlines() if line[:3] == "==="]


def summary_of(reported: Sequence[str]) -> tuple[str, int]:
    """The last summary in a tool's report, and the number of errors or hazards in it (-1 where there is none)."""
    summary = next((line for line in reversed(reported) if "SUMMARY" in line), "no summary")
    found = re.search(r"SUMMARY: (\d+) (error|hazard)", summary)
    return summary, int(found[1]) if found else -1


def on_the_gpu(section: Section, options: Sequence[str]) -> int:
    """Run the section under each tool of compute-sanitizer; print what they report. Raises Unavailable without it."""
    find_sanitizer()
    rows, failed = [], False
    program = [sys.executable, str(section.path), "--quick", *options]
    with ThreadPoolExecutor(len(TOOLS)) as pool:
        runs = list(pool.map(lambda name: run_tool(name, program), TOOLS))
    for name, (done, reported) in zip(TOOLS, runs, strict=True):
        summary, number = summary_of(reported)
        if done.returncode != OK or number != 0:
            failed = True
            print("\n".join(reported[:40]) or done.stderr)
        rows.append((name, summary, f"exit code {done.returncode}"))
    table(f"{section.title}: compute-sanitizer", ("tool", "summary", "ended with"), rows)
    return FAILED if failed else OK


def report(section: Section | None, options: Sequence[str] = ()) -> int:
    """Check a section, or all of them, on whatever is there."""
    from common.gpu import SIMULATED

    if section is not None:
        return (on_the_simulator if SIMULATED else on_the_gpu)(section, options)
    if SIMULATED:
        return all_on_the_simulator()
    return FAILED if any([on_the_gpu(section, []) for section in sections.load() if section.ready]) else OK


# ---- planted faults
def verdict(kind: str, name: str, twin: bool) -> dict[str, Any]:
    """What the tool for this kind says about a planted fault, or about its mended twin, in a process of its own:
    {"tool", "found": True, False, or None where the program did not run to its end, "report": its first line}."""
    tool, options = TOOL_FOR[kind], OPTIONS_FOR.get(kind, OPTIONS)
    program = [sys.executable, "-m", "tests.faults", name, *(["--twin"] if twin else [])]
    done, reported = run_tool(tool, program, options, seconds=120)
    lines = [line for line in reported if line and "COMPUTE-SANITIZER" not in line and "SUMMARY" not in line]
    lines = [line for line in lines if re.search(EVIDENCE.get(kind, ""), line)]
    found = bool(lines) and (kind in EVIDENCE or summary_of(reported)[1] > 0)
    if not found and "ran to its end" not in done.stdout:
        said = (done.stderr.strip().splitlines() or done.stdout.strip().splitlines() or ["nothing"])[-1]
        return {"tool": tool, "found": None, "report": f"exit code {done.returncode}: {said}"}
    return {"tool": tool, "found": found, "report": lines[0] if found and lines else ""}


def stored_verdicts() -> Path:
    """The file with the reference GPU's verdicts."""
    return results.REFERENCE.with_name(f"sanitizer_{results.REFERENCE.name}")


def record_verdicts() -> Path:
    """Run every planted fault and its twin under compute-sanitizer, and write what it said into results/."""
    from common import gpu
    from tests.faults import FAULTS

    device, _ = gpu.open_device()
    version = subprocess.run([find_sanitizer(), "--version"], capture_output=True, text=True).stdout
    jobs = [(fault, twin) for fault in FAULTS.values() if not fault.hangs for twin in (False, True)]
    with ThreadPoolExecutor(min(AT_ONCE, os.cpu_count() or 1)) as pool:
        runs = pool.map(lambda job: verdict(job[0].kind, job[0].name, job[1]), jobs)
        said = list(tqdm(runs, desc="compute-sanitizer", total=len(jobs), delay=5))
    # once more, alone, what did not run to its end
    said = [
        verdict(f.kind, f.name, twin) if one["found"] is None else one
        for (f, twin), one in zip(jobs, said, strict=True)
    ]
    verdicts: dict[str, dict[str, Any]] = {"faults": {}, "twins": {}}
    for (fault, twin), one in zip(jobs, said, strict=True):
        verdicts["twins" if twin else "faults"][fault.name] = one
    path = results.path_for(device.name)
    path = path.with_name(f"sanitizer_{path.name}")
    data = {
        "gpu": device.name,
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "commit": results._commit(),
        "driver": results._driver_version(),
        "sanitizer": next(iter(re.findall(r"Version ([\d.]+)", version)), "unknown"),
        **verdicts,
    }
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def show_faults() -> int:
    """The planted faults: what compute-sanitizer says on this GPU, or said on the recorded one, and the simulator.

    Exit code 1 where the simulator misses a fault or reports a twin, or where a program did not run to its end.
    """
    from common.gpu import SIMULATED

    path = stored_verdicts() if SIMULATED else record_verdicts()
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"faults": {}, "twins": {}}
    if SIMULATED:
        simulated = simulated_verdicts()
    else:  # the simulator cannot be had in this process
        command = [sys.executable, "-m", "tests.faults", "--all"]
        child = {**os.environ, "CUDA_BOOK_DEVICE": "simulator"}
        done = subprocess.run(command, env=child, capture_output=True, text=True, check=True)
        simulated = json.loads(done.stdout.splitlines()[-1])
    from tests.faults import FAULTS

    rows = []
    for fault in FAULTS.values():
        mine = simulated[fault.name]
        theirs = [_short(stored[part].get(fault.name), fault.hangs) for part in ("faults", "twins")]
        tool = TOOL_FOR[fault.kind]
        rows.append((fault.name, fault.kind, mine["found"], mine["twin"], tool, *theirs))
    heads = ("planted fault", "kind", "simulator", "its twin", "compute-sanitizer", "says", "of the twin")
    table("Planted faults and their mended twins: what is found", heads, rows)
    if stored["faults"]:
        print(f"compute-sanitizer {stored['sanitizer']} on {stored['gpu']}, {stored['date'][:10]}, {path.name}")
    else:
        not_run("no verdict of compute-sanitizer is recorded", "./run sanitize faults, on a machine with a GPU")
    wrong = [row[0] for row in rows if row[2:4] != ("found", "nothing") or "did not run" in row[5:7]]
    print(f"{len(rows)} faults; " + (f"the simulator is wrong about {', '.join(wrong)}" if wrong else "all found here"))
    return FAILED if wrong else OK


def _short(said: dict[str, Any] | None, hangs: bool) -> str:
    if said is None:
        return "not run: it hangs" if hangs else "not recorded"
    return {True: "found", False: "nothing", None: "did not run"}[said["found"]]


def simulated_verdicts() -> dict[str, dict[str, str]]:
    """Planted fault -> what the simulator says of it and of its twin: "found" the fault, "nothing", or "another"."""
    from tests.faults import FAULTS, findings_of

    verdicts = {}
    for fault in FAULTS.values():
        of_fault, of_twin = findings_of(fault), findings_of(fault, twin=True)
        right = bool(of_fault) and fault.describes(of_fault[0])
        verdicts[fault.name] = {
            "found": "found" if right else "another" if of_fault else "nothing",
            "twin": "another" if of_twin else "nothing",
        }
    return verdicts
