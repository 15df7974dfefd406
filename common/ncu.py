"""Hardware counters of another program's kernels, through Nsight Compute's command line.

    launches = profile([sys.executable, "program.py"], ["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"])

The program says what is counted: what it launches between cuProfilerStart and cuProfilerStop.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.cli import ReaderError, Unavailable
from common.doctor import PURPOSE, find_tool

Extent = tuple[int, ...]


@dataclass(frozen=True)
class Launch:
    """One launch: its kernel as a program names it (`tiled<0, 1>`), the value of each metric, its grid and block."""

    kernel: str
    metrics: dict[str, float]
    grid: Extent = (1, 1, 1)
    block: Extent = (1, 1, 1)


def command(tool: str, program: Sequence[str], metrics: Sequence[str], log: str) -> list[str]:
    """The command line that counts `metrics` for `program` and writes them as CSV to `log`."""
    options = ["--clock-control", "none", "--profile-from-start", "off"]  # leave the clocks; wait for cuProfilerStart
    options += ["--csv", "--page", "raw", "--print-units", "base"]  # a row for each launch, no kilo or mega
    return [tool, *options, "--metrics", ",".join(metrics), "--log-file", log, *program]


def read_csv(text: str) -> list[Launch]:
    """The launches in what `command` logged. Messages (==PROF== …) come before the table, its second row has units."""
    rows = list(csv.DictReader(line for line in text.splitlines() if line.startswith('"')))
    launches = []
    for row in rows:
        if row["ID"]:  # the row of units has none
            cells = {name: _number(value) for name, value in row.items() if "__" in name}
            values = {name: value for name, value in cells.items() if value is not None}
            grid, block = (_extent(row.get(f"{what} Size", "")) for what in ("Grid", "Block"))
            launches.append(Launch(_name(row["Kernel Name"]), values, grid, block))
    return launches


def _number(text: str) -> float | None:
    """A cell; None for "n/a" and for words, of which ncu adds some ("No-CC")."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _name(kernel: str) -> str:
    """`scale<2, true>` of `void scale<(int)2, (bool)1>(float *, int)`; a parenthesis before a number is a cast."""
    named = re.sub(r"^void |\((?![\w ]+\)-?\d).*", "", kernel)
    named = re.sub(r"\(bool\)(\d)", lambda found: "true" if found[1] == "1" else "false", named)
    return re.sub(r"\([\w ]+\)(?=-?\d)", "", named)


def _extent(text: str) -> Extent:
    """(32, 8, 1) of "(32, 8, 1)"; () of nothing."""
    return tuple(int(number) for number in re.findall(r"\d+", text))


def version() -> str:
    """Of the ncu that is here, "2025.3.1.0"."""
    done = subprocess.run([str(find_tool("ncu")), "--version"], capture_output=True, text=True)
    found = re.search(r"\d+\.\d+[\d.]*", done.stdout)
    return found[0] if found else "unknown"


def profile(program: Sequence[str], metrics: Sequence[str], stdin: str = "", timeout: float = 120) -> list[Launch]:
    """Run a program under ncu and return its launches in their order.

    Metrics that ncu gets by patching the code (smsp__sass_…) would add memory accesses to the others: they have a run
    of their own. Raises Unavailable where ncu is missing or counters are not permitted, ReaderError for a program that
    fails, takes longer than `timeout` seconds, or for a metric that this GPU lacks.
    """
    tool = find_tool("ncu")
    if tool is None:
        raise Unavailable("ncu, Nsight Compute's command line", PURPOSE["ncu"][1])
    patched = [name for name in metrics if name.startswith("smsp__sass_")]
    groups = [group for group in ([name for name in metrics if name not in patched], patched) if group]
    runs = [_run(tool, program, group, stdin, timeout) for group in groups]
    if len({tuple(launch.kernel for launch in run) for run in runs}) != 1:
        raise ReaderError(f"ncu saw different launches in two runs of {' '.join(program)[:80]}")
    return [
        replace(same[0], metrics={name: value for launch in same for name, value in launch.metrics.items()})
        for same in zip(*runs, strict=True)
    ]


def _run(tool: str, program: Sequence[str], metrics: Sequence[str], stdin: str, timeout: float) -> list[Launch]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # finds what this process finds
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "counters.csv")
        try:
            called = command(tool, program, metrics, str(log))
            done = subprocess.run(called, input=stdin, env=environment, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise ReaderError(f"ncu took longer than {timeout:.0f} s") from error
        text = log.read_text(encoding="utf-8") if log.exists() else ""
    said = text + done.stdout + done.stderr
    if "ERR_NVGPUCTRPERM" in said:
        raise Unavailable("hardware counters: only the administrator may read them here (ERR_NVGPUCTRPERM)")
    launches = read_csv(text)
    if done.returncode or not launches:
        raise ReaderError(f"ncu ended with exit code {done.returncode} and {len(launches)} launches:\n{said[-2000:]}")
    if missing := [name for name in metrics if any(name not in launch.metrics for launch in launches)]:
        raise ReaderError(f"ncu did not count {', '.join(missing)}")
    return launches
