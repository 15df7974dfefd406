"""Tables and units on the terminal, plots in out/."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from common.cli import in_ipython

_HOME = Path(__file__).resolve().parent.parent
ROOT = _HOME if (_HOME / "pyproject.toml").is_file() else Path.cwd()  # the repository, else where we are
OUT = ROOT / "out"  # where plots go
WIDTH = 100  # of a table, before its headings are broken
# a number, perhaps with a unit or a sign behind it ("923 µs", "99.2%", "0.80× torch"), or nothing
_NUMBER = re.compile(r"[-+±~<>]?(0x)?[\d.][\d.,]*(e[-+]?\d+)?\s?([%×].*|[µmkMGT]?\S{0,7})?$|[-—]?$|nan|inf|-inf")
# Okabe and Ito's colours can be told apart by everybody; the marker says the same again.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table; columns that hold numbers are flush right, and headings take two lines or more where the table
    would be wider than 100 columns. Piped, it has no colour and is never cut."""
    cells = [[str(cell) for cell in row] for row in rows]
    console = Console(markup=False, highlight=False, emoji=False)
    wide = console.options.update(max_width=10_000)
    grid = _grid(columns, cells)
    if Measurement.get(console, wide, grid).maximum > WIDTH:
        grid = _grid([_stacked(name, [row[i] for row in cells]) for i, name in enumerate(columns)], cells)
    if not (console.is_terminal or console.is_jupyter):
        console.width = max(WIDTH, Measurement.get(console, wide, grid).maximum)
    if title:
        print(title)
    console.print(grid)


def _grid(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        numbers = bool(cells) and all(_NUMBER.match(row[i]) for row in cells)
        grid.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in cells:
        grid.add_row(*row)
    return grid


def _stacked(heading: str, cells: Sequence[str]) -> str:
    """A heading broken between words, so that it is hardly wider than its column; what is Chinese has its own line."""
    first, _, rest = heading.partition(" ")
    if rest and not first.isascii():
        return f"{first}\n{_stacked(rest, cells)}"
    width = max(map(len, [*cells, *heading.split(), "-"]))
    return textwrap.fill(heading, width, break_long_words=False)


def si(value: float, unit: str = "") -> str:
    """Three digits and a prefix: si(4.25e12, "B/s") is "4.25 TB/s", si(1.3e-6, "s") is "1.30 µs"."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}".rstrip()
    rounded = float(f"{value:.2e}")  # 999.9 is 1.00 k
    step = min(max(math.floor(math.log10(abs(rounded)) / 3 + 1e-12), -4), 5)
    prefix = "pnµm kMGTP"[step + 4].strip()
    return f"{f'{rounded / 1000.0**step:#.3g}'.rstrip('.')} {prefix}{unit}".rstrip()


def brief(error: object, width: int = 90) -> str:
    """The first sentence of an error (of a compiler's log, its first error), or as much of it as `width` allows."""
    line = next((line for line in str(error).splitlines() if "error:" in line), str(error))
    return textwrap.shorten(line.split(". ")[0], width, placeholder=" …")


def new_figure(title: str, xlabel: str, ylabel: str, *, size: tuple[float, float] = (7, 4.5)) -> Any:
    """`(figure, axes)` of matplotlib, labels in English, with colours and markers anybody can tell apart."""
    from cycler import cycler
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)  # draws into a file: needs no display
    axes = figure.add_subplot(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.set_prop_cycle(cycler(color=_COLOURS) + cycler(marker=_MARKERS))
    axes.grid(alpha=0.3)
    return figure, axes


def plot_curves(curves: Mapping[str, Mapping[float, float]], title: str, xlabel: str, ylabel: str, name: str) -> Path:
    """Draw {label: {x: y}} as lines, both axes logarithmic, into `out/<name>.png`; the path."""
    figure, axes = new_figure(title, xlabel, ylabel)
    for label, points in curves.items():
        axes.loglog(list(points), list(points.values()), label=label)
    axes.legend()
    return save_figure(figure, name)


def save_figure(figure: Any, name: str) -> Path:
    """Write the figure to `out/<name>.png` (150 dpi), say where, show it inline in a notebook; the path."""
    path = OUT / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f"plot: {path}")
    if in_ipython():
        from IPython.display import Image, display

        display(Image(filename=str(path)))  # type: ignore[no-untyped-call]
    return path
