"""The book's table of contents (sections.tsv): which sections there are, and which of them are built."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from common.cli import UsageError

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Section:
    """One row of sections.tsv; the file's header explains the values of `without_gpu`."""

    number: str
    page: int
    file: str
    without_gpu: str
    title_zh: str
    title_en: str

    @property
    def chapter(self) -> int:
        return int(self.number.partition(".")[0])

    @property
    def path(self) -> Path:
        return ROOT / self.file

    @property
    def ready(self) -> bool:
        """A section is built when its file is there; nothing else records it."""
        return self.path.is_file()

    @property
    def title(self) -> str:
        """The first line of the script's docstring."""
        return f"{self.number} {self.title_zh} — {self.title_en}"


@cache
def load() -> tuple[Section, ...]:
    """All sections, in the book's order."""
    lines = (Path(__file__).parent / "sections.tsv").read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines if line and not line.startswith("#"))
    return tuple(Section(number, int(page), *rest) for number, page, *rest in rows)


def chapters() -> dict[int, list[Section]]:
    """Chapter number -> its sections."""
    result: dict[int, list[Section]] = {}
    for section in load():
        result.setdefault(section.chapter, []).append(section)
    return result


def finished_chapters() -> list[int]:
    """The chapters whose sections are all built."""
    return [number for number, members in chapters().items() if all(s.ready for s in members)]


def find(number: str) -> Section:
    """The section called `number`, such as "3.3.1"; UsageError names what the reader may have meant."""
    by_number = {section.number: section for section in load()}
    if number in by_number:
        return by_number[number]
    inside = [n for n in by_number if n.startswith(number.rstrip(".") + ".")]
    if inside:
        raise UsageError(f"{number} is not one section: it has {inside[0]} to {inside[-1]} (./run list)")
    close = difflib.get_close_matches(number, by_number, n=3, cutoff=0.6)
    hint = f"did you mean {', '.join(close)}?" if close else "it has 1.1.1 to 10.4.4"
    raise UsageError(f"the book has no section {number}: {hint} (./run list)")
