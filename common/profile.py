"""What kernels ask of the memory: `./run profile SECTION` by kernel and source line, `show_counts` inside a script.

The kernels run on the simulator, which counts as Nsight Compute does (simt/counters.py). Where there are a GPU and
Nsight Compute, the section runs there too, in a process of its own, and the hardware's figures stand beside.
"""

from __future__ import annotations

import contextlib
import io
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from common import counters, environment, ncu
from common.cli import INTERRUPTED, OK, UNAVAILABLE, USAGE, ReaderError, Unavailable, UsageError, exit_code
from common.report import table
from common.sections import Section
from common.simt.counters import CLASSES, Counts, counting

WIDTH = 120  # of what is printed
COSTLIEST = 3  # lines of a kernel that are marked and listed first
GAP = 5  # so many lines without counts may lie between two that are shown as one piece
SHARED = ("load", "store", "atomic", "matrix_load", "matrix_store")  # what is done to shared memory
# heading -> the counters that the column adds up
COLUMNS = {
    "ld req": ("global_load_requests",),
    "ld sec": ("global_load_sectors",),
    "st req": ("global_store_requests",),
    "st sec": ("global_store_sectors",),
    "at req": ("global_atomic_requests",),
    "at sec": ("global_atomic_sectors",),
    "sh req": tuple(f"shared_{kind}_requests" for kind in SHARED),
    "sh wave": tuple(f"shared_{kind}_wavefronts" for kind in SHARED),
    "conflict": tuple(f"shared_{kind}_conflicts" for kind in SHARED),
    "local": ("local_load_sectors", "local_store_sectors"),
    "barrier": ("barriers",),
    "FLOP": ("flops",),
    "instr": ("instructions",),
    "threads": ("thread_instructions",),
}
LEGEND = {  # by the first word of a heading
    "ld": "ld, st, at: loads, stores, atomics of global memory; req: requests of a warp",
    "sec": "sec: sectors of 32 bytes, in brackets how many a request",
    "sh": "sh: shared memory; req: requests of a warp; wave: wavefronts",
    "conflict": "conflict: bank conflicts, the wavefronts of shared memory beyond those that it takes without any",
    "local": "local: sectors of local memory",
    "barrier": "barrier: barriers that a warp came to",
    "FLOP": "FLOP: floating-point operations, of which a multiply-add is two",
    "instr": "instr: PTX instructions of a warp; the hardware's own (SASS) are others",
    "threads": "threads: active threads for each instruction of a warp, approximate; 32 where nothing diverges",
}
# what a line costs, to order them: all that occupies the memory pipes
COST = ("ld sec", "st sec", "at sec", "sh wave", "local")
EXPENDABLE = ("sh req", "at req", "FLOP", "barrier", "st req", "ld req", "instr")  # what goes first from a wide table
BESIDE = ("ld sec", "st sec", "at sec", "sh wave", "conflict", "local", "FLOP", "instr", "threads")  # the source


@dataclass
class Profile:
    """All launches of one kernel together."""

    launches: int = 0
    source: str = ""
    classes: Counter[str] = field(default_factory=Counter)  # class of instructions -> number
    lines: dict[int, Counter[str]] = field(default_factory=dict)  # source line -> column -> number

    def add(self, counts: Counts) -> None:
        """One more launch."""
        self.launches, self.source = self.launches + 1, counts.source
        for line, found in counts.lines().items():
            mine = self.lines.setdefault(line, Counter())
            for column, names in COLUMNS.items():
                mine[column] += sum(found.get(name, 0) for name in names)
            for kind in CLASSES:
                self.classes[kind] += found.get(f"{kind}_instructions", 0)

    def total(self) -> Counter[str]:
        """The columns, all lines together."""
        return sum(self.lines.values(), Counter())

    def shares(self) -> dict[int, float]:
        """Source line -> its share of what occupies the memory pipes, or of the instructions where nothing does; the
        largest first."""
        columns = COST if any(c[name] for c in self.lines.values() for name in COST) else ("instr",)
        cost = {line: sum(c[name] for name in columns) for line, c in self.lines.items()}
        whole = max(sum(cost.values()), 1)
        return {line: cost[line] / whole for line in sorted(cost, key=lambda line: (-cost[line], line))}

    def costliest(self) -> list[int]:
        """The lines that are marked: the first few that cost anything, of the kernel's own source."""
        last = len(self.source.splitlines())
        return [line for line, share in self.shares().items() if share > 0 and 0 < line <= last][:COSTLIEST]


def collect(section: Section, options: Sequence[str]) -> list[Counts]:
    """What each launch in `main(["--quick", *options])` of a section counted. ReaderError if the section fails."""
    from common.__main__ import load_module

    module, printed = load_module(section), io.StringIO()
    with counting() as launches, contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = exit_code(module.main, ["--quick", *options])
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code == USAGE:
        raise UsageError(printed.getvalue().strip().rpartition("\n")[2].rpartition("error: ")[2])
    if code == OK and {"-h", "--help"} & {*options}:
        print(printed.getvalue(), end="")
        raise SystemExit(OK)
    if code == UNAVAILABLE:
        raise Unavailable(f"profile: {section.number} does not run on the simulator:\n{printed.getvalue()}")
    if code != OK:
        raise ReaderError(f"the section ended with exit code {code}:\n{printed.getvalue()}")
    return launches


def by_kernel(launches: Sequence[Counts]) -> dict[str, Profile]:
    """The launches of each kernel together; a kernel of the same name from another source is `name (2)`."""
    sources: dict[str, list[str]] = {}
    found: dict[str, Profile] = {}
    for counts in launches:
        mine = sources.setdefault(counts.kernel, [])
        if counts.source not in mine:
            mine.append(counts.source)
        number = mine.index(counts.source) + 1
        name = counts.kernel if number == 1 else f"{counts.kernel} ({number})"
        found.setdefault(name, Profile()).add(counts)
    return found


# ---- tables
def cell(counter: Mapping[str, int], column: str) -> str:
    """A cell: sectors also for each request, threads for each instruction; empty for 0."""
    number = counter[column]
    if column == "threads":
        return f"≈{number / max(counter['instr'], 1):.1f}"
    requests = counter[column.replace("sec", "req")] if column.endswith("sec") else 0
    each = f" ({number / requests:.3g})" if requests else ""
    return f"{number:,}{each}" if number else ""


def fitting(headings: list[str], rows: list[list[str]]) -> list[str]:
    """The headings that go into WIDTH: without as many of the EXPENDABLE ones as it takes."""
    width = {h: max(len(h), *(len(row[i]) for row in rows)) + 3 for i, h in enumerate(headings)}
    dropped = [heading for heading in EXPENDABLE if heading in width]
    while sum(width.values()) > WIDTH and dropped:
        del width[dropped.pop(0)]
    return list(width)


def show_legend(columns: Sequence[str]) -> None:
    """Print what the columns of a table mean, a line each."""
    words = {word for column in columns for word in column.split()}
    if words & {"st", "at"}:
        words.add("ld")
    print("\n".join(text for word, text in LEGEND.items() if word in words))


def show_totals(title: str, profiles: Mapping[str, Profile]) -> None:
    """A row for each profile, without the columns in which all are 0, and what the columns mean."""
    totals = {name: profile.total() for name, profile in profiles.items()}
    columns = [column for column in COLUMNS if any(total[column] for total in totals.values())]
    rows = [
        [name, str(profile.launches), *(cell(totals[name], column) for column in columns)]
        for name, profile in profiles.items()
    ]
    headings = ["kernel", "launches", *columns]
    kept = fitting(headings, rows)
    table(title, kept, [[row[headings.index(heading)] for heading in kept] for row in rows])
    show_legend(kept)
    if dropped := [heading for heading in headings if heading not in kept]:
        print(f"not shown, for want of width: {', '.join(dropped)}")


def show_classes(profiles: Mapping[str, Profile]) -> None:
    """The classes of each kernel's instructions, in percent."""
    kinds = [kind for kind in CLASSES if any(profile.classes[kind] for profile in profiles.values())]
    rows = []
    for name, profile in profiles.items():
        whole = max(sum(profile.classes.values()), 1)
        rows.append([name, *(f"{profile.classes[k] / whole:.1%}" if profile.classes[k] else "" for k in kinds)])
    print()
    table("PTX instructions of warps, by class", ("kernel", *(kind.replace("_", " ") for kind in kinds)), rows)
    print("\n".join(f"{kind.replace('_', ' ')}: {CLASSES[kind]}" for kind in kinds))


def show_counts(title: str, calls: Mapping[str, Callable[[], object]]) -> None:
    """Make each call (name -> function without arguments that launches kernels) and print what its kernels counted.

    For the simulator only: it is what a section shows where a GPU shows times. On a GPU nothing is counted.
    """
    profiles = {}
    for name, call in calls.items():
        profiles[name] = Profile()
        with counting() as launches:
            call()
        for counts in launches:
            profiles[name].add(counts)
    show_totals(title, profiles)


# ---- the source
def pieces(lines: Sequence[int]) -> list[range]:
    """Ranges of line numbers that hold `lines` (ascending), cut where more than GAP others lie between two."""
    found: list[range] = []
    for line in lines:
        if found and line - found[-1].stop <= GAP:
            found[-1] = range(found[-1].start, line + 1)
        else:
            found.append(range(line, line + 1))
    return found


def show_source(name: str, profile: Profile) -> None:
    """A kernel's lines: the costliest first, then all of them with their counts beside."""
    text, shares, marked = ["", *profile.source.splitlines()], profile.shares(), profile.costliest()
    if not marked:
        print(f"\n{name}: no lines to show: its source is not known (PTX or machine code that was loaded)")
        return
    total = profile.total()
    of = "sectors and wavefronts" if any(total[column] for column in COST) else "PTX instructions"
    print(f"\n{name}: the lines that cost most, by their share of its {of}")
    for line in marked:
        print(shortened(f"  ★ line {line}: {shares[line]:4.0%}  {text[line].strip()}"))
    columns = [column for column in BESIDE if total[column]]
    cells = {line: [cell(counter, column).partition(" (")[0] for column in columns] for line, counter in
             profile.lines.items()}  # fmt: skip
    width = [max(len(column), *(len(row[i]) for row in cells.values())) for i, column in enumerate(columns)]

    def show(mark: str, line: str, row: Sequence[str], code: str) -> None:
        numbers = "  ".join(f"{number:>{w}}" for number, w in zip(row, width, strict=True))
        print(shortened(f"{mark:1} {line:>4}  {numbers}  │ {code}").rstrip())

    print()
    show("", "line", columns, "source")
    nothing = [""] * len(columns)
    shown = pieces(sorted(line for line in profile.lines if 0 < line < len(text)))
    for i, piece in enumerate(shown):
        if i:
            show("", "⋮", nothing, "")
        code = textwrap.dedent("\n".join(text[line] for line in piece)).split("\n")
        for line, words in zip(piece, code, strict=True):
            show("★" * (line in marked), str(line), cells.get(line, nothing), words)
    if 0 in cells:
        show("", "-", cells[0], "(from headers, or from no line)")


def shortened(text: str) -> str:
    """Cut to WIDTH, with … for what is missing."""
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


# ---- beside the hardware's figures
# What ncu watches: the section on the GPU. It must not start ncu itself.
PROGRAM = """
import os, sys
os.environ["CUDA_BOOK_DEVICE"] = "gpu"
from cuda.bindings import driver
from common import gpu, ncu, sections
from common.__main__ import load_module
from common.cli import exit_code

ncu.find_tool = lambda name: None
gpu.open_device()
module = load_module(sections.find(sys.argv[1]))
driver.cuProfilerStart()
code = exit_code(module.main, ["--quick", *sys.argv[2:]])
driver.cuProfilerStop()
sys.exit(code)
"""


def watched(section: Section, options: Sequence[str]) -> list[ncu.Launch]:
    """The same on the GPU, watched by ncu. Unavailable without GPU, ncu or permission, ReaderError if it fails."""
    if environment.gpu_driver() is None:
        raise Unavailable("the hardware's figures: no GPU answers (nvidia-smi)")
    program = [sys.executable, "-c", PROGRAM, section.number, *options]
    return ncu.profile(program, counters.metrics(tuple(counters.COMPARED)), timeout=600)


def matched(launches: Sequence[Counts], on_gpu: Sequence[ncu.Launch]) -> list[tuple[Counts, ncu.Launch]]:
    """The launches that both had: the same kernel, grid and block, in their order."""
    waiting: dict[tuple, list[ncu.Launch]] = {}
    for launch in on_gpu:
        waiting.setdefault((launch.kernel, launch.grid, launch.block), []).append(launch)
    pairs = []
    for counts in launches:
        if there := waiting.get((counts.kernel, *counts.shape)):
            pairs.append((counts, there.pop(0)))
    return pairs


def show_beside(launches: Sequence[Counts], on_gpu: Sequence[ncu.Launch]) -> None:
    """Print the hardware's figures of each kernel, marked where the simulator counted others, and which launches are
    not compared: those of another size or number on the two."""
    pairs, names = matched(launches, on_gpu), tuple(counters.COMPARED)
    simulator = counters.add_up([(counts.kernel, "", counts.totals()) for counts, _ in pairs])
    hardware = counters.add_up([(launch.kernel, "", counters.values(launch, names)) for _, launch in pairs])
    print()
    if pairs:
        counters.show_table(hardware, simulator)
    print("compared: launches of the same kernel, grid and block on both, in their order")
    here, there = Counter(c.kernel for c in launches), Counter(launch.kernel for launch in on_gpu)
    both = Counter(counts.kernel for counts, _ in pairs)
    for name in here:
        if both[name] < max(here[name], there[name]):
            print(f"{name}: {both[name]} launches compared, of {here[name]} on the simulator, {there[name]} on the GPU")
    if others := sorted(there.keys() - here.keys()):
        print(f"on the GPU only: {len(others)} other kernels")


def report(section: Section, options: Sequence[str] = (), hardware: bool = True) -> int:
    """Print the tables of all kernels, then each kernel's source, then the hardware's figures where they can be had.

    Raises Unavailable where the section launches nothing.
    """
    launches = collect(section, options)
    if not launches:
        raise Unavailable(f"profile: {section.number} launches no kernel")
    profiles = by_kernel(launches)
    show_totals(f"{section.title}: simulated counters", profiles)
    show_classes(profiles)
    for name, profile in profiles.items():
        show_source(name, profile)
    if hardware:
        try:
            show_beside(launches, watched(section, options))
        except ReaderError as error:  # Unavailable is one
            print(f"\n{error}")
    return OK
