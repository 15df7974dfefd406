"""Figures measured on real GPUs: results/<gpu>.json, and the tables in the READMEs that come from it.

`python -m common.results` writes the tables again from the reference file, `--check` only compares them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from common.cli import ReaderError, exit_code, not_run
from common.report import ROOT, si, table
from common.timing import NOISY, Timing, Yardsticks

RESULTS = ROOT / "results"
REFERENCE = RESULTS / "nvidia_h200.json"  # the one file the READMEs are made from
OPTIONAL = {"figures", "warm"}  # fields that few rows have: left out of the file where there is nothing to say
WARM = "* 以 CUDA 图连续执行多次计时，数据留在 L2 · timed as a CUDA graph of many calls, with the data in L2"
NOTHING = "尚无记录的数据 · no figures recorded yet"
_BLOCK = re.compile(r"(<!-- results:([\d.]+) -->\n).*?(<!-- /results -->)", re.DOTALL)
_PACKAGES = re.compile(
    r"numpy|torch|cuda-(core|bindings)|nvidia-(cuda-nvrtc|cublas|cudnn|nccl|cufft|cusparse)(-cu\d+)?"
    r"|nvidia-cudnn-frontend|nvmath-python|nccl4py|cupy-cuda.*|pycuda|tensorrt(-rtx)?-cu\d+|triton"
)


class ResultsError(ReaderError):
    """A results file that cannot be read."""


@dataclass(frozen=True)
class Row:
    """One measurement. `seconds` of one call; `bytes` moved and `flops` done by it (None: does not apply).

    `of_copy`, `of_peak`: the share of the yardstick. `of_peer`: the peer's seconds over ours, above 1 is
    faster. `figures`: what else was found, such as hardware counters, by the name of its column. `warm`: timed as a
    graph of many calls, with the data in L2 as far as they fit. `run` names the entry in "runs" that says when and
    with what; `record` fills it in.
    """

    section: str
    name: str
    size: str
    dtype: str
    seconds: float
    spread: float
    bytes: int | None = None
    flops: int | None = None
    of_copy: float | None = None
    of_peak: float | None = None
    peer: str | None = None
    of_peer: float | None = None
    figures: dict[str, float] | None = None
    warm: bool = False
    run: str = ""

    @classmethod
    def from_timing(
        cls,
        *,
        section: str,
        name: str,
        size: str,
        dtype: str,
        timing: Timing,
        yardsticks: Yardsticks,
        bytes: int | None = None,
        flops: int | None = None,
        peer: tuple[str, Timing] | None = None,
        peak_tflops: float | None = None,
        figures: Mapping[str, float] | None = None,
    ) -> Row:
        """A row from what `benchmark` measured; `peer` is the library's name and its timing.

        The peak is `peak_tflops` where given (the library's matmul for tensor cores), else for "f32" the
        measured FMA rate; another dtype without `peak_tflops` has no share of a peak.
        """
        peak = peak_tflops or (yardsticks.fma_tflops if dtype == "f32" else None)
        return cls(
            section=section,
            name=name,
            size=str(size),
            dtype=dtype,
            seconds=timing.seconds,
            spread=timing.spread,
            bytes=int(bytes) if bytes else None,  # a NumPy integer would not go into JSON
            flops=int(flops) if flops else None,
            of_copy=bytes / timing.seconds / 1e9 / yardsticks.copy_gbps if bytes else None,
            of_peak=flops / timing.seconds / 1e12 / peak if flops and peak else None,
            peer=peer[0] if peer else None,
            of_peer=peer[1].seconds / timing.seconds if peer else None,
            figures={name: float(value) for name, value in figures.items()} if figures else None,
            warm=timing.warm,
        )

    @property
    def key(self) -> tuple[str, ...]:
        """What tells the rows of one run apart; a newer measurement replaces what shares the first four."""
        return (self.section, self.name, self.size, self.dtype, self.peer or "")


def path_for(gpu_name: str) -> Path:
    """results/nvidia_h200.json for "NVIDIA H200"."""
    return RESULTS / (re.sub(r"[^a-z0-9]+", "_", gpu_name.lower()).strip("_") + ".json")


def load(path: Path) -> dict[str, Any]:
    """The file as {"gpu": name, "runs": {id: {...}}, "rows": [Row]}; empty if there is none.

    Raises ResultsError if it is not a file that `record` wrote.
    """
    if not path.exists():
        return {"gpu": "", "runs": {}, "rows": []}
    known = {field.name for field in fields(Row)} - OPTIONAL
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        rows = [Row(**row) for row in data["rows"]]
        if missing := {row.run for row in rows} - set(data["runs"]):
            raise ValueError(f"no run {sorted(missing)[0]!r}")
        if any(set(row) - OPTIONAL != known for row in data["rows"]):
            raise ValueError("a row with missing fields")
        if not all("date" in run for run in data["runs"].values()):
            raise ValueError("a run without its date")
        if not all(isinstance(row.seconds, int | float) for row in rows):
            raise ValueError("a time that is no number")
        return {"gpu": str(data["gpu"]), "runs": dict(data["runs"]), "rows": rows}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ResultsError(f"{path} is not a results file ({reason}): repair or delete it") from error


def merge(path: Path, gpu_name: str, run_id: str, run: dict[str, Any], rows: Iterable[Row]) -> None:
    """Put `rows`, measured in `run`, into the file: they replace what it has of equal section, name, size and
    dtype, and runs that no row refers to any more are dropped. An interruption leaves the old file."""
    data, new = load(path), {row.key: replace(row, run=run_id) for row in rows}
    again = {key[:4] for key in new}  # a peer that changed must not leave the old row beside the new one
    merged = {row.key: row for row in data["rows"] if row.key[:4] not in again} | new
    # By section; within one, what was measured just now comes last, in the order in which its script gave it.
    ordered = sorted(merged.values(), key=lambda row: [int(part) for part in row.section.split(".")])
    runs = {**data["runs"], run_id: run}
    used = {row.run for row in ordered}
    data = {
        "gpu": gpu_name,
        "runs": {name: runs[name] for name in sorted(runs) if name in used},
        "rows": [_as_json(row) for row in ordered],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(path)


def _as_json(row: Row) -> dict[str, Any]:
    return {name: value for name, value in asdict(row).items() if value or name not in OPTIONAL}


def record(rows: Sequence[Row]) -> Path:
    """Merge what was just measured on the current GPU into its file, and return the file's path.

    One process is one run. Raises Unavailable on the simulator.
    """
    from common import gpu, timing

    device, stream = gpu.open_device()
    run_id, run = _run(timing.yardsticks(device, stream))
    path = path_for(device.name)
    merge(path, device.name, run_id, run, rows)
    return path


@functools.cache
def _run(yardsticks: Yardsticks) -> tuple[str, dict[str, Any]]:
    from cuda.bindings import nvrtc

    now, commit, installed = datetime.now(UTC), _commit(), metadata.distributions()
    return f"{now:%Y%m%dT%H%M%SZ}-{commit[:7]}", {
        "date": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "commit": commit,
        "driver": _driver_version(),
        "cpu": _cpu(),
        "cuda": ".".join(str(part) for part in nvrtc.nvrtcVersion()[1:]),  # the NVRTC behind the kernels
        "packages": dict(sorted((d.name, d.version) for d in installed if _PACKAGES.fullmatch(d.name or ""))),
        "copy_gbps": round(yardsticks.copy_gbps, 1),
        "fma_tflops": round(yardsticks.fma_tflops, 2),
        "sm_clock_mhz": yardsticks.sm_clock_mhz,
        "throttled": yardsticks.throttled,
    }


def _commit() -> str:
    """The commit, with -dirty where code differs from it; $CUDA_BOOK_COMMIT where that says it, for a copy without git
    or with another one's."""
    if stated := os.environ.get("CUDA_BOOK_COMMIT"):
        return stated

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        code = (".", ":(exclude)results", ":(exclude,glob)**/README*.md")  # a bench writes these itself
        dirty = git("status", "--porcelain", "--untracked-files=no", "--", *code)
        return git("rev-parse", "HEAD") + ("-dirty" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _driver_version() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # no pynvml, or a container that hides NVML
        return "unknown"


def recorded(number: str, path: Path = REFERENCE) -> list[Row]:
    """The rows of a section ("1.1.3") or of a chapter ("1") in a results file."""
    return [row for row in load(path)["rows"] if f"{row.section}.".startswith(f"{number}.")]


def _cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of a table of `rows`; columns in which nobody has anything to say are left out."""

    def rate(row: Row) -> str:
        if row.flops and (not row.bytes or (row.of_peak or 0) > (row.of_copy or 0)):
            return f"{row.flops / row.seconds / 1e12:.3g} TFLOP/s"
        return f"{row.bytes / row.seconds / 1e9:.0f} GB/s" if row.bytes else ""

    def share(value: float | None) -> str:
        return "" if value is None else f"{value:.1%}"

    def times(value: float) -> str:  # 0.80, 12.3, 1150: three digits at most
        return f"{value:.2f}" if value < 9.995 else f"{float(f'{value:.3g}'):g}"

    def figure(value: float | None) -> str:
        return "" if value is None else f"{value:,.0f}" if value == int(value) else f"{value:.3g}"

    peers = {row.peer for row in rows if row.of_peer is not None}
    versus = ["" if row.of_peer is None else f"{times(row.of_peer)}×" for row in rows]
    if len(peers) > 1:
        versus = [f"{cell} {row.peer}" if cell else "" for cell, row in zip(versus, rows, strict=True)]
    further = dict.fromkeys(name for row in rows for name in row.figures or {})  # in the order of their first row
    columns: dict[str, list[str]] = {
        "节 section": [row.section if len({r.section for r in rows}) > 1 else "" for row in rows],
        "实现 variant": [row.name for row in rows],
        "规模 size": [row.size for row in rows],
        "类型 dtype": [row.dtype for row in rows],
        "时间 time": [si(row.seconds, "s") + " *" * row.warm for row in rows],
        "速率 rate": [rate(row) for row in rows],
        "占拷贝 of copy": [share(row.of_copy) for row in rows],
        "占峰值 of peak": [share(row.of_peak) for row in rows],
        f"对比 vs {peers.pop()}" if len(peers) == 1 else "对比 vs peer": versus,
        **{name: [figure((row.figures or {}).get(name)) for row in rows] for name in further},
        "波动 spread > 5%": [f"{row.spread:.0%}" if row.spread > NOISY else "" for row in rows],
    }
    kept = {heading: cells for heading, cells in columns.items() if any(cells)}
    return list(kept), [list(cells) for cells in zip(*kept.values(), strict=True)]


def _cpu() -> str:
    """The host's processor and its threads: where a GPU is compared with NumPy, half of the comparison."""
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
        if found:
            return f"{found[1]}, {os.cpu_count()} threads"
    return f"{platform.machine()}, {os.cpu_count()} threads"


def _captions(rows: Sequence[Row], data: dict[str, Any]) -> list[str]:
    """Where the rows were measured: one line for each run."""
    lines = []
    for name in sorted({row.run for row in rows}):
        run = data["runs"][name]
        throttled = "" if not run["throttled"] else f", throttled: {', '.join(run['throttled'])}"
        commit, dash, dirty = run["commit"].partition("-")
        lines.append(
            f"{data['gpu']}, {run['date'][:10]}, commit {commit[:7]}{dash}{dirty}, driver {run['driver']}, "
            f"CUDA {run['cuda']}, {_versions(run['packages'])}: "
            f"copy {run['copy_gbps']:.0f} GB/s, FMA {run['fma_tflops']:.1f} TFLOP/s" + throttled
        )
    return [WARM] * any(row.warm for row in rows) + lines


def _versions(packages: dict[str, str]) -> str:
    """The libraries that the peers come from."""
    return ", ".join(f"{name} {packages[name]}" for name in ("torch", "numpy") if name in packages)


def source(rows: Sequence[Row], path: Path | None = None) -> str:
    """GPU and date of recorded rows, "NVIDIA H200, 2026-11-30"; "measured now" for rows of this process."""
    data = load(path or REFERENCE)
    found = {f"{data['gpu']}, {data['runs'][row.run]['date'][:10]}" if row.run else "measured now" for row in rows}
    return " and ".join(sorted(found))


def measure(benchmark: Callable[[], list[Row]], wanted: bool) -> list[Row]:
    """Where it is `wanted` (a script's options.bench): run a section's `benchmark` and print what it found. On the
    simulator say that there are no times. The rows; none where nothing was measured."""
    from common.gpu import SIMULATED

    rows = benchmark() if wanted else []
    if rows:
        show(rows)
    elif SIMULATED:
        not_run("times and rates: the simulator has no time; recorded ones are in the chapter's README.md")
    return rows


def measured_or_recorded(number: str, benchmark: Callable[[], list[Row]], wanted: bool) -> tuple[list[Row], str]:
    """The rows that a section explains, and their source: what its `benchmark` measures where that is `wanted` (a
    script's options.bench), else the reference file's. Prints the source; where there are no rows, how to get them."""
    rows = benchmark() if wanted else recorded(number)
    if not rows:
        not_run(f"{NOTHING}, so nothing to show", f"./run bench {number.split('.')[0]}, on a machine with a GPU")
        return [], ""
    origin = source(rows)
    print(origin if wanted else f"recorded on {origin}, not measured here")
    return rows, origin


def show(rows: Sequence[Row], title: str = "") -> None:
    """Print rows as a table; what all of them have in common stands above it."""
    headings, cells = _cells(rows)
    columns = dict(zip(headings, zip(*cells, strict=True), strict=True))
    alike = {name: column[0] for name, column in columns.items() if len(rows) > 1 and len(set(column)) == 1}
    left = {name: column for name, column in columns.items() if name not in alike}
    said = ", ".join(f"{name} {cell}" for name, cell in alike.items())
    table(": ".join(filter(None, (title, said))), list(left), list(zip(*left.values(), strict=True)))
    if any(row.warm for row in rows):
        print(WARM)


def show_recorded(number: str, path: Path = REFERENCE) -> None:
    """Print what a results file holds for a section, with GPU and date: it is another machine's work."""
    rows = recorded(number, path)
    for line in _captions(rows, load(path)) or [NOTHING]:
        print(f"recorded, not measured here: {line}" if rows else line)
    if rows:
        show(rows)


def render(number: str, path: Path = REFERENCE) -> str:
    """The Markdown table of a section or chapter, ending in a newline."""
    rows = recorded(number, path)
    if not rows:
        return NOTHING + "\n"
    headings, cells = _cells(rows)
    lines = [headings, ["---"] * len(headings), *cells]
    body = "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
    return body + "".join(f"\n<sub>{caption}</sub>\n" for caption in _captions(rows, load(path)))


def update_readme(readme: Path, *, write: bool = True, path: Path = REFERENCE) -> bool:
    """Rewrite what stands between `<!-- results:1.1.1 -->` and `<!-- /results -->`; True if that changed it.

    With `write=False` the file is left alone.
    """
    old = readme.read_text(encoding="utf-8")
    if old.count("<!-- results:") != len(_BLOCK.findall(old)):
        raise ResultsError(f"{readme}: a <!-- results:... --> without its <!-- /results -->")
    new = _BLOCK.sub(lambda found: found[1] + render(found[2], path) + found[3], old)
    if write and new != old:
        readme.write_text(new, encoding="utf-8")
    return new != old


def check_readmes(*, write: bool = False) -> list[Path]:
    """The READMEs whose tables are not what the reference file says; with `write` they are put right."""
    readmes = sorted([*ROOT.glob("README*.md"), *ROOT.glob("ch*/README*.md")])
    return [readme for readme in readmes if update_readme(readme, write=write)]


def main(argv: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="python -m common.results", description=__doc__)
    options.add_argument("--check", action="store_true", help="change nothing; exit 1 if a table is stale")
    check = options.parse_args(argv).check
    for readme in (changed := check_readmes(write=not check)):
        print(f"{'out of date' if check else 'updated'}: {readme.relative_to(ROOT)}")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
