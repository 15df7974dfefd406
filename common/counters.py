"""`./run counters`: the simulator's counters beside a GPU's, on the same launches (tests/counter_kernels.py).

Where there is a GPU and Nsight Compute, its figures are taken and stored in results/counters_<gpu>.json; elsewhere the
stored ones are compared. "Equal" is to the digit, for atomics of global memory within 10%; counter_kernels.py lists the
kernels of which more is known to differ, and why.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common import ncu, results
from common.cli import FAILED, OK, ReaderError, Unavailable
from common.report import ROOT, table
from common.simt.counters import METRICS, Counts

REFERENCE = results.REFERENCE.with_name(f"counters_{results.REFERENCE.name}")
# counter -> heading of its column
COMPARED = {
    "global_load_requests": "ld req",
    "global_load_sectors": "ld sec",
    "global_store_requests": "st req",
    "global_store_sectors": "st sec",
    "global_atomic_sectors": "at sec",
    "shared_load_wavefronts": "sh ld",
    "shared_store_wavefronts": "sh st",
    "shared_atomic_wavefronts": "sh at",
    "shared_matrix_load_wavefronts": "sh mat",
}
LEGEND = (
    "ld, st, at: loads, stores, atomics of global memory; req: requests; sec: sectors of 32 bytes; sh: wavefronts of\n"
    "shared memory, mat: of ldmatrix. METRICS in common/simt/counters.py has Nsight Compute's name of each."
)
NEAR = 0.1  # how much more the hardware may count of atomics of global memory
_BLOCK = re.compile(r"(<!-- counters -->\n).*?(<!-- /counters -->)", re.DOTALL)

Figures = Mapping[str, Mapping[str, int]]  # kernel -> counter -> value


def _cases() -> Any:
    """tests/counter_kernels.py: no part of the package, but there where a reader has the repository."""
    return importlib.import_module("tests.counter_kernels")


def metrics(counters: Sequence[str]) -> list[str]:
    """What to ask ncu for; some counters are the sum of two."""
    return list(dict.fromkeys(metric for name in counters for metric in METRICS[name].split(" + ")))


def values(launched: ncu.Launch, counters: Sequence[str]) -> dict[str, int]:
    """Our counters of a launch that ncu watched."""
    return {name: int(sum(launched.metrics[metric] for metric in METRICS[name].split(" + "))) for name in counters}


def add_up(launches: Sequence[tuple[str, str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """(case, kernel, counters) of each launch -> kernel -> counters of all its launches in that case."""
    kernels = {case: {kernel for c, kernel, _ in launches if c == case} for case, _, _ in launches}
    found: dict[str, Counter[str]] = {}
    for case, kernel, counted in launches:
        name = case if len(kernels[case]) == 1 else f"{case}: {kernel}"
        found.setdefault(name, Counter()).update({c: counted[c] for c in COMPARED})
    return {name: dict(counter) for name, counter in found.items()}


def on_the_simulator() -> list[tuple[str, Counts]]:
    """(case, counts) of all launches."""
    return _cases().simulated()


def by_the_simulator(launches: Sequence[tuple[str, Counts]]) -> dict[str, dict[str, int]]:
    """Kernel -> counters."""
    return add_up([(case, counts.kernel, counts.totals()) for case, counts in launches])


def by_the_hardware(launches: Sequence[tuple[str, Counts]]) -> dict[str, dict[str, int]]:
    """Kernel -> counters, of the same launches on the GPU. Raises Unavailable without ncu or the right to use it."""
    watched = ncu.profile([sys.executable, "-m", "tests.counter_kernels"], metrics(tuple(COMPARED)), timeout=600)
    kernels = [[name.partition("<")[0] for name in names] for names in
               ([counts.kernel for _, counts in launches], [launch.kernel for launch in watched])]  # fmt: skip
    if kernels[0] != kernels[1]:
        raise ReaderError(f"the GPU launched {len(watched)} kernels, the simulator {len(launches)}, or others")
    cases = [case for case, _ in launches]
    return add_up(
        [(c, launch.kernel, values(launch, tuple(COMPARED))) for c, launch in zip(cases, watched, strict=True)]
    )


# ---- what is stored
def load(path: Path | None = None) -> dict[str, Any] | None:
    """A stored comparison; None if there is none."""
    path = path or REFERENCE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def record(hardware: Figures, simulator: Figures) -> Path:
    """Store what was just counted, and return where."""
    from common import gpu

    device, _ = gpu.open_device()
    data = {
        "gpu": device.name,
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "commit": results._commit(),
        "driver": results._driver_version(),
        "ncu": ncu.version(),
        "kernels": hardware,
        "simulator": simulator,
    }
    path = results.path_for(device.name)
    path = path.with_name(f"counters_{path.name}")
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return path


# ---- the comparison
def agree(counter: str, hardware: int, simulator: int) -> bool:
    """Whether they are equal, or near enough for an atomic of global memory."""
    if counter.startswith("global_atomic"):
        return simulator <= hardware <= (1 + NEAR) * simulator
    return hardware == simulator


def differing(hardware: Figures, simulator: Figures) -> dict[str, list[str]]:
    """Kernel -> the counters in which the two disagree, of the kernels and counters that both have."""
    found = {
        name: [c for c in COMPARED if c in figures and not agree(c, figures[c], simulator[name][c])]
        for name, figures in hardware.items()
        if name in simulator
    }
    return {name: counters for name, counters in found.items() if counters}


def unexplained(hardware: Figures, simulator: Figures) -> list[str]:
    """A line for each of the hardware's kernels that differs in other counters than counter_kernels.py explains."""
    known = {name: sorted(counters) for name, (_, *counters) in _cases().DIFFERENT.items() if name in hardware}
    found = {name: sorted(counters) for name, counters in differing(hardware, simulator).items()}
    return [
        f"{name}: {', '.join(found.get(name, ['nothing']))} differ, known: {', '.join(known.get(name, ['nothing']))}"
        for name in sorted(known.keys() | found.keys())
        if known.get(name) != found.get(name)
    ]


def all_rows(hardware: Figures, simulator: Figures) -> list[list[str]]:
    """A row for each kernel: what the hardware counted, marked where the simulator disagrees."""
    wrong = differing(hardware, simulator)
    return [
        [name, *(f"{figures[c]:,}{'≠' * (c in wrong.get(name, []))}" if figures.get(c) else "" for c in COMPARED)]
        for name, figures in hardware.items()
    ]


def different_rows(hardware: Figures, simulator: Figures) -> list[list[str]]:
    """A row for each counter in which the two disagree, with the reason where one is known."""
    why = {name: reason for name, (reason, *_) in _cases().DIFFERENT.items()}
    return [
        [name, COMPARED[c], f"{hardware[name][c]:,}", f"{simulator[name][c]:,}", why.get(name, "not known")]
        for name, counters in differing(hardware, simulator).items()
        for c in counters
    ]


def summary(hardware: Figures, simulator: Figures) -> str:
    """How many kernels agree, in one line."""
    shared = [name for name in hardware if name in simulator]
    wrong = differing(hardware, simulator)
    both = len({c for figures in hardware.values() for c in figures})
    return f"{len(shared) - len(wrong)} of {len(shared)} kernels agree in all of {both} counters"


def origin(data: Mapping[str, Any]) -> str:
    """GPU, date and versions of a stored comparison."""
    return (
        f"{data['gpu']}, {data['date'][:10]}, commit {data['commit'][:7]}, driver {data['driver']}, "
        f"Nsight Compute {data['ncu']}"
    )


def report() -> int:
    """Count on the simulator and, where there is one, on the GPU; print both. FAILED for a difference not known."""
    from common import gpu

    launches = on_the_simulator()
    simulator = by_the_simulator(launches)
    if not gpu.SIMULATED:
        try:
            path = record(by_the_hardware(launches), simulator)
            print(f"recorded in {path.relative_to(ROOT)}")
            for readme in update_readmes():
                print(f"updated {readme.relative_to(ROOT)}")
            return show(json.loads(path.read_text(encoding="utf-8")), simulator)
        except Unavailable as missing:
            print(missing)
    if (data := load()) is None:
        raise Unavailable("no figures of a GPU are stored", "./run counters, where there is a GPU with Nsight Compute")
    print("recorded, not counted here:")
    return show(data, simulator)


def show_table(hardware: Figures, simulator: Figures) -> None:
    """Print what the hardware counted, and the figures of both where the simulator counted others."""
    title = "Counted by the hardware; ≠: the simulator counts otherwise"
    table(title, ("kernel", *COMPARED.values()), all_rows(hardware, simulator))
    print(LEGEND)
    if differences := different_rows(hardware, simulator):
        table("Where they disagree", ("kernel", "counter", "hardware", "simulator", "why"), differences)


def show(data: Mapping[str, Any], simulator: Figures) -> int:
    """Print what the hardware counted beside the simulator's counts."""
    hardware = data["kernels"]
    print(origin(data))
    show_table(hardware, simulator)
    print(f"{summary(hardware, simulator)}; atomics of global memory within {NEAR:.0%}, all else to the digit")
    for what, names in (
        ("not counted by the hardware yet", simulator.keys() - hardware.keys()),
        ("no longer a case", hardware.keys() - simulator.keys()),
    ):
        if names:
            print(f"{what}: {'; '.join(sorted(names))}")
    lines = unexplained(hardware, simulator)
    print("\n".join(lines), end="\n" * bool(lines))
    return FAILED if lines else OK


# ---- the table in the README
def render(data: Mapping[str, Any] | None) -> str:
    """The Markdown between the marks of a README."""
    if data is None:
        return results.NOTHING + "\n"
    hardware, simulator = data["kernels"], data["simulator"]
    whole = _markdown(("kernel", *COMPARED.values()), all_rows(hardware, simulator))
    differences = _markdown(("kernel", "counter", "hardware", "simulator", "why"), different_rows(hardware, simulator))
    return (
        f"{summary(hardware, simulator)}; atomics of global memory within {NEAR:.0%}, all else to the digit. "
        f"The others and why:\n\n{differences}\n"
        f"<details><summary>全部核函数 · all kernels, as the hardware counts</summary>\n\n{LEGEND}\n\n{whole}\n"
        f"</details>\n\n<sub>{origin(data)}</sub>\n"
    )


def _markdown(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *cells]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def update_readme(readme: Path, *, write: bool = True, path: Path | None = None) -> bool:
    """Rewrite what stands between `<!-- counters -->` and `<!-- /counters -->`; True if that changed it."""
    old = readme.read_text(encoding="utf-8")
    new = _BLOCK.sub(lambda found: found[1] + render(load(path)) + found[2], old)
    if write and new != old:
        readme.write_text(new, encoding="utf-8")
    return new != old


def update_readmes(*, write: bool = True) -> list[Path]:
    """The READMEs whose comparison is not the reference file's; with `write` they are put right."""
    return [readme for readme in sorted(ROOT.glob("README*.md")) if update_readme(readme, write=write)]
