"""common.report: tables that line up, units, plots in out/."""

import re
import sys
import types
from unicodedata import east_asian_width

import numpy as np
import pytest

from common import report


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (4.25e12, "B/s", "4.25 TB/s"),
        (1.3e-6, "s", "1.30 µs"),
        (0, "s", "0 s"),
        (999.9, "", "1.00 k"),
        (999.4, "B", "999 B"),
        (1000, "B", "1.00 kB"),
        (0.001, "s", "1.00 ms"),
        (12.34e-3, "s", "12.3 ms"),
        (1e-12, "s", "1.00 ps"),
        (1e-15, "s", "0.00100 ps"),
        (-2.5e9, "FLOP", "-2.50 GFLOP"),
        (float("nan"), "s", "nan s"),
        (float("inf"), "s", "inf s"),
        (np.float32(2), "m", "2.00 m"),
    ],
)
def test_si(value, unit, text):
    assert report.si(value, unit) == text


def width(line):
    return sum(2 if east_asian_width(c) in "WF" else 1 for c in line)


def test_a_piped_table_has_no_colour_and_lines_up(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("归约 reduction", 1.5, "x" * 120), ("scan [bold]", 22.25, "y")]
    report.table("标题 title", ("实现 variant", "时间 time", "note"), rows)
    out = capsys.readouterr().out
    assert "\x1b" not in out and "x" * 120 in out and "scan [bold]" in out and "标题 title" in out
    lines = [line.rstrip() for line in out.splitlines()]
    ends = [
        width(line[: line.index(number) + len(number)])
        for line in lines
        for number in ("1.5", "22.25")
        if number in line
    ]
    assert len(ends) == 2 and ends[0] == ends[1], "numbers are flush right, however wide the Chinese before them"


def test_headings_of_a_wide_table_are_broken_between_words(capsys):
    columns = ("实现 variant", "store sectors for each request", "unbreakable", "n")
    report.table("", columns, [("x" * 60, 4, 1, 2), ("y", 8, 1, 2)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["实现", "for"] in [line[:2] for line in lines] or ["实现", "each"] in [line[:2] for line in lines]
    assert [line for line in lines if "unbreakable" in line] and all("variant" not in line for line in lines[:3])
    report.table("", columns, [("x", 4, 1, 2)])
    assert "实现 variant   store sectors for each request" in capsys.readouterr().out


def test_an_empty_table_is_no_error(capsys):
    report.table("", ("a", "b"), [])
    assert "a" in capsys.readouterr().out


@pytest.fixture
def out(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "OUT", tmp_path / "out")
    return tmp_path / "out"


def test_a_figure_goes_to_out_with_markers_and_safe_colours(out, capsys):
    figure, axes = report.new_figure("Crossing", "elements", "time (s)")
    for k in range(8):
        axes.plot([1, 2], [k, k + 1], label=str(k))
    lines = axes.get_lines()
    assert len({line.get_color() for line in lines}) == 8 and len({line.get_marker() for line in lines}) == 8
    path = report.save_figure(figure, "crossing")
    assert path == out / "crossing.png" and path.read_bytes().startswith(b"\x89PNG")
    assert int.from_bytes(path.read_bytes()[16:20], "big") == 7 * 150
    assert capsys.readouterr().out == f"plot: {path}\n"
    assert "matplotlib.pyplot" not in sys.modules or re.match("agg", sys.modules["matplotlib"].get_backend(), re.I)


def test_a_figure_is_shown_in_a_notebook(out, monkeypatch):
    shown = []
    fake = types.SimpleNamespace(get_ipython=lambda: object())
    display = types.SimpleNamespace(Image=lambda filename: filename, display=shown.append)
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    path = report.save_figure(report.new_figure("t", "x", "y")[0], "inline")
    assert shown == [str(path)]


def test_a_long_error_is_cut_to_its_first_sentence():
    assert report.brief(ValueError("It failed. For many reasons.")) == "It failed"
    assert report.brief('log:\n  x.cu(1): error: expected a ";"\n1 error') == 'x.cu(1): error: expected a ";"'
    assert len(report.brief("word " * 100)) <= 90
