"""What kernels ask of the memory: `./run profile SECTION` by kernel and source line, `show_counts` inside a script.

The kernels run on the simulator, which counts as Nsight Compute does (simt/counters.py).
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from common.cli import OK, ReaderError, Unavailable, exit_code
from common.report import table
from common.sections import Section
from common.simt.counters import Counts, counting

LINES = 12  # of a kernel's source that are shown
# columns of the tables: heading and the counters it adds up
COLUMNS = {
    "load requests": ("global_load_requests",),
    "load sectors": ("global_load_sectors",),
    "store requests": ("global_store_requests",),
    "store sectors": ("global_store_sectors",),
    "atomic sectors": ("global_atomic_sectors",),
    "shared wavefronts": ("shared_load_wavefronts", "shared_store_wavefronts", "shared_atomic_wavefronts"),
    "bank conflicts": ("shared_load_conflicts", "shared_store_conflicts", "shared_atomic_conflicts"),
    "local requests": ("local_load_requests", "local_store_requests"),
    "barriers": ("barriers",),
    "FLOP": ("flops",),
    "PTX instructions": ("instructions",),
}
# what a line costs, to order them: everything that occupies the memory pipes, and instructions where nothing does
COST = ("load sectors", "store sectors", "atomic sectors", "shared wavefronts", "local requests")


@dataclass
class Profile:
    """All launches of one kernel together."""

    launches: int = 0
    thread_instructions: int = 0
    source: str = ""
    lines: dict[int, Counter[str]] = field(default_factory=dict)  # source line -> column -> number

    def add(self, counts: Counts) -> None:
        """One more launch."""
        self.launches, self.source = self.launches + 1, counts.source
        self.thread_instructions += counts.total("thread_instructions")
        for line, found in counts.lines().items():
            mine = self.lines.setdefault(line, Counter())
            for column, names in COLUMNS.items():
                mine[column] += sum(found.get(name, 0) for name in names)

    def total(self) -> Counter[str]:
        """The columns, all lines together."""
        return sum(self.lines.values(), Counter())

    def costliest(self) -> list[tuple[int, Counter[str]]]:
        """The lines that occupy the memory most, most first; of equals, those of more instructions."""
        cost = {line: (sum(c[name] for name in COST), c["PTX instructions"]) for line, c in self.lines.items()}
        return [(line, self.lines[line]) for line in sorted(cost, key=cost.__getitem__, reverse=True)]


def collect(section: Section, options: Sequence[str]) -> dict[str, Profile]:
    """Kernel -> what it did in `main(["--quick", *options])` of a section. ReaderError if the section fails."""
    from common.__main__ import load_module

    module, printed = load_module(section), io.StringIO()
    with counting() as launches, contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = exit_code(module.main, ["--quick", *options])
    if code != OK:
        raise ReaderError(f"the section ended with exit code {code}:\n{printed.getvalue()}")
    return by_kernel(launches)


def by_kernel(launches: Sequence[Counts]) -> dict[str, Profile]:
    """The launches of each kernel together."""
    found: dict[str, Profile] = {}
    for counts in launches:
        found.setdefault(counts.kernel, Profile()).add(counts)
    return found


def numbers(counter: Counter[str], columns: Sequence[str]) -> list[str]:
    """The cells of a row; sectors also as sectors for each request."""
    cells = []
    for column in columns:
        kind, _, what = column.partition(" ")
        requests = counter[f"{kind} requests"] if what == "sectors" else 0
        each = f" ({counter[column] / requests:.3g} each)" if requests else ""
        cells.append(f"{counter[column]:,}{each}" if counter[column] else "")
    return cells


def show_totals(title: str, profiles: Mapping[str, Profile]) -> None:
    """A row for each profile, without the columns in which all are 0."""
    totals = {name: profile.total() for name, profile in profiles.items()}
    columns = [column for column in COLUMNS if any(total[column] for total in totals.values())]
    rows = []
    for name, profile in profiles.items():
        threads = profile.thread_instructions / max(totals[name]["PTX instructions"], 1)
        rows.append((name, profile.launches, f"≈{threads:.1f}", *numbers(totals[name], columns)))
    table(title, ("kernel", "launches", "threads/instruction", *columns), rows)


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


def report(section: Section, options: Sequence[str] = ()) -> int:
    """Print the table of all kernels, then each kernel's lines. Raises Unavailable where it launches nothing."""
    profiles = collect(section, options)
    if not profiles:
        raise Unavailable(f"profile: {section.number} launches no kernel")
    show_totals(f"{section.title}: simulated counters", profiles)
    for name, profile in profiles.items():
        text, total = ["", *profile.source.splitlines()], profile.total()
        shown = [column for column in COLUMNS if total[column]]
        lines = [
            (line or "-", *numbers(counter, shown), text[line].strip() if 0 < line < len(text) else "(headers)")
            for line, counter in profile.costliest()[:LINES]
        ]
        table(f"{name}: the lines that cost most", ("line", *shown, "source"), lines)
    return OK
