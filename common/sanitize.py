"""`./run sanitize SECTION`: faults and races of a section's kernels.

On the simulator every access is checked anyway; here races in shared memory are looked for as well (simt/races.py).
On a GPU the tools of compute-sanitizer check the same run.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence

from common.__main__ import load_module
from common.cli import FAILED, OK, Unavailable, exit_code
from common.doctor import PURPOSE, find_tool
from common.report import table
from common.sections import Section

TOOLS = ("memcheck", "initcheck", "racecheck", "synccheck")


def on_the_simulator(section: Section, options: Sequence[str]) -> int:
    """Run the section with its kernels watched; print each race. Exit code 1 for a race, or for what failed."""
    from common.simt.races import watching

    with watching() as races:
        code = exit_code(load_module(section).main, ["--quick", *options])
    for race in races:
        print(f"\n{race}")
    faults = "no fault" if code == OK else f"exit code {code}"
    print(f"\n{section.number} on the simulator: {faults}, {len(races) or 'no'} race{'s' * (len(races) != 1)}")
    return code or (FAILED if races else OK)


def on_the_gpu(section: Section, options: Sequence[str]) -> int:
    """Run the section under each tool of compute-sanitizer; print what they report. Raises Unavailable without it."""
    tool = find_tool("compute-sanitizer")
    if tool is None:
        raise Unavailable("compute-sanitizer", PURPOSE["compute-sanitizer"][1])
    rows, failed = [], False
    for name in TOOLS:
        # cuda.bindings asks the driver for functions that it may lack: that is no fault of the section
        check = [tool, "--tool", name, "--error-exitcode", "9", "--report-api-errors", "no"]
        program = [sys.executable, str(section.path), "--quick", *options]
        done = subprocess.run([*check, *program], capture_output=True, text=True)
        reported = [line.removeprefix("=========").strip() for line in done.stdout.splitlines() if line[:3] == "==="]
        summary = next((line for line in reversed(reported) if "SUMMARY" in line), "no summary")
        found = re.search(r"SUMMARY: (\d+) (error|hazard)", summary)
        if done.returncode != OK or found is None or int(found[1]):
            failed = True
            print("\n".join(reported[:40]) or done.stderr)
        rows.append((name, summary, f"exit code {done.returncode}"))
    table(f"{section.title}: compute-sanitizer", ("tool", "summary", "ended with"), rows)
    return FAILED if failed else OK


def report(section: Section, options: Sequence[str] = ()) -> int:
    """Check a section on whatever is there."""
    from common.gpu import SIMULATED

    return (on_the_simulator if SIMULATED else on_the_gpu)(section, options)
