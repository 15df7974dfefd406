"""`./run profile`: the counts of a section's kernels, by kernel and by source line."""

import os
import re
from types import SimpleNamespace

import numpy as np
import pytest

from common import __main__ as commands
from common import profile, sanitize, sections
from common.__main__ import load_module
from common.cli import (
    FAILED,
    INTERRUPTED,
    OK,
    UNAVAILABLE,
    USAGE,
    ReaderError,
    Unavailable,
    UsageError,
    exit_code,
)
from common.ncu import Launch
from common.simt.counters import CLASSES, METRICS

pytestmark = pytest.mark.simulator


def profiles_of(number, *options):
    return profile.by_kernel(profile.collect(sections.find(number), options))


def printed_by(capsys, number, *options):
    assert profile.report(sections.find(number), options, hardware=False) == OK
    printed = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in printed.splitlines()) <= profile.WIDTH
    return printed


def test_the_kernels_of_a_section():
    profiles = profiles_of("1.1.2", "--size", "64")
    assert {"who_1d", "who_2d", "who_3d", "gray", "gray_by_16"} <= profiles.keys()
    gray = profiles["gray"]
    line = gray.costliest()[0]
    assert gray.source.splitlines()[line - 1].strip().startswith("out[i] = (77 * rgb")
    counter = gray.lines[line]
    assert counter["ld req"] == 3 * counter["st req"] == gray.total()["ld req"]
    assert profiles["gray_by_16"].total()["ld sec"] < gray.total()["ld sec"]
    assert sum(gray.shares().values()) == pytest.approx(1)
    assert sum(gray.classes.values()) == gray.total()["instr"]


def test_the_table(capsys):
    printed = printed_by(capsys, "1.1.1", "--size", "1024")
    # copy_float4: 1024 floats are 8 requests of 16 bytes a lane, 16 sectors each
    assert re.search(r"copy_float4 +1 +8 +128 \(16\) +8 +128 \(16\) .*≈32.0", printed)
    for word in ("ld, st, at: loads", "sec: sectors", "threads: active threads"):
        assert f"\n{word}" in printed
    assert "\nconflict:" not in printed and "\nbarrier:" not in printed  # no such column
    assert re.search(r"^ copy_float4 .*\d+\.\d%", printed, flags=re.MULTILINE)  # classes of instructions
    assert f"\nglobal: {CLASSES['global']}" in printed


def test_the_annotated_source(capsys):
    printed = printed_by(capsys, "1.1.1", "--size", "1024").split("copy_float4: the lines that cost most")[1]
    assert re.match(r", by their share of its sectors and wavefronts\n  ★ line \d+: 100%  for .* y4\[q\] = x4", printed)
    (marked,) = re.findall(r"^★ +(\d+) +(\d+) +(\d+) +(\d+) +≈32.0  │ +for \(long", printed, flags=re.MULTILINE)
    assert marked[1:3] == ("128", "128")
    shown = [int(number) for number in re.findall(r"^[★ ] +(\d+) .*│", printed, flags=re.MULTILINE)]
    assert int(marked[0]) in shown and len(shown) > 10
    assert re.search(r"^ +\d+ +│ \{$", printed, flags=re.MULTILINE)  # lines without counts stand there, too


def test_a_line_of_shared_memory_shows_its_conflicts(capsys):
    marked, printed = printed_by(capsys, "1.5.4").split("\ntranspose_tiled<0, 1>: the lines")[1].split("\n\n")[:2]
    first, second = map(int, re.findall(r"★ line \d+: +(\d+)%", marked))
    assert first > 80 and second < 20 and first + second == 100
    header, *lines = printed.splitlines()
    assert header.split()[:8] == ["line", "ld", "sec", "st", "sec", "sh", "wave", "conflict"]
    (stored,) = [line for line in lines if "if (left + row" in line]
    # twice 2048 warps: 4 sectors each, 32 wavefronts each of which 31 are conflicts
    assert stored.split()[2:5] == ["16,384", "131,072", "126,976"]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([3], [range(3, 4)]),
        ([3, 4, 6], [range(3, 7)]),
        ([3, 9], [range(3, 10)]),  # five lines between
        ([3, 10, 12], [range(3, 4), range(10, 13)]),
        ([], []),
    ],
)
def test_pieces_of_a_source(lines, found):
    assert profile.pieces(lines) == found


def test_a_wide_table_drops_what_matters_least():
    headings = ["kernel", "launches", *profile.COLUMNS]
    rows = [["k" * 30, "1", *["1,234,567"] * len(profile.COLUMNS)]]
    kept = profile.fitting(headings, rows)
    assert "sh req" not in kept and {"kernel", "ld sec", "st sec", "sh wave", "conflict", "threads"} <= set(kept)
    assert profile.fitting(["kernel", "ld req"], [["k", "1"]]) == ["kernel", "ld req"]


def test_kernels_of_one_name_from_two_sources():
    sources = ("one", "two", "one")  # as where NVRTC compiled a kernel, and nvcc too
    launches = [SimpleNamespace(kernel="copy", source=source, lines=lambda: {}) for source in sources]
    profiles = profile.by_kernel(launches)
    assert {name: (p.source, p.launches) for name, p in profiles.items()} == {
        "copy": ("one", 2),
        "copy (2)": ("two", 1),
    }


def test_a_source_that_is_not_known(capsys):
    profile.show_source("cluster", profile.Profile(1, "", lines={7: profile.Counter({"instr": 3})}))
    assert "its source is not known" in capsys.readouterr().out


def test_a_section_that_fails_is_an_error_with_its_output(monkeypatch):
    with pytest.raises(UsageError, match="positive integer"):
        profile.collect(sections.find("1.1.2"), ["--size", "0"])
    module = SimpleNamespace(main=lambda argv: print("a line") or FAILED)
    monkeypatch.setattr("common.__main__.load_module", lambda section: module)
    with pytest.raises(ReaderError, match=r"exit code 1:\na line"):
        profile.collect(sections.find("1.1.2"), [])


def test_help_and_an_interruption_are_handed_on(monkeypatch, capsys):
    assert exit_code(lambda _: profile.report(sections.find("1.1.2"), ["--help"]), []) == OK
    assert "usage: ./run 1.1.2" in capsys.readouterr().out

    def interrupted(argv):
        raise KeyboardInterrupt

    for module in ("common.__main__", "common.sanitize"):
        monkeypatch.setattr(f"{module}.load_module", lambda section: SimpleNamespace(main=interrupted))
    for report in (profile.report, sanitize.report):
        assert exit_code(lambda _, report=report: report(sections.find("1.1.2"), []), []) == INTERRUPTED


def test_nothing_to_count(monkeypatch, capsys):
    monkeypatch.setattr(profile, "collect", lambda section, options: [])
    assert exit_code(lambda _: profile.report(sections.find("1.1.1")), []) == UNAVAILABLE
    assert "1.1.1 launches no kernel" in capsys.readouterr().out


def test_the_command_line(monkeypatch, capsys):
    assert exit_code(lambda _: commands.parse(["profile"]).run(), []) == USAGE
    assert "needs a section, such as 1.1.2" in capsys.readouterr().err
    assert exit_code(lambda _: commands.parse(["profile", "9.9.9"]).run(), []) == USAGE
    for device, hardware in (("simulator", False), (None, True)):
        monkeypatch.delenv("CUDA_BOOK_DEVICE", raising=False)
        if device:
            monkeypatch.setenv("CUDA_BOOK_DEVICE", device)
        asked = []
        monkeypatch.setattr(profile, "report", lambda *arguments, asked=asked: asked.append(arguments) or OK)
        assert commands.parse(["profile", "1.1.1", "--size", "64"]).run() == OK
        assert asked == [(sections.find("1.1.1"), ["--size", "64"], hardware)]
        assert os.environ["CUDA_BOOK_DEVICE"] == "simulator"


# --- beside the hardware's figures ----------------------------------------------------------------------------


def seen(counts, **more):
    """The launch as ncu would have seen it, with `more` of some counters."""
    values = dict.fromkeys(profile.counters.metrics(tuple(profile.counters.COMPARED)), 0.0)
    for name in profile.counters.COMPARED:
        values[METRICS[name].split(" + ")[-1]] = float(counts.total(name) + more.get(name, 0))
    return Launch(counts.kernel, values, *counts.shape)


def test_beside_the_hardware(capsys):
    launches = profile.collect(sections.find("1.1.1"), ["--size", "1024"])
    one = {counts.kernel: counts for counts in launches}  # of each kernel
    add, saxpy, unseen = one["vector_add"], one["saxpy"], one["copy_float4"]
    profile.show_beside([add, saxpy, unseen], [seen(add), seen(saxpy, global_load_sectors=8)])
    printed = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in printed.splitlines()) <= profile.WIDTH
    assert re.search(rf"^ {add.kernel} +64 +256 +32 +128 *$", printed, flags=re.MULTILINE)
    assert re.search(rf"^ {saxpy.kernel} +64 +264≠ +32 +128 *$", printed, flags=re.MULTILINE)
    assert re.search(rf"{saxpy.kernel} +ld sec +264 +256 +not known", printed)
    assert f"{unseen.kernel}: 0 launches compared, of 1 on the simulator, 0 on the GPU" in printed


def test_launches_are_matched_by_grid_and_block():
    launches = profile.collect(sections.find("1.1.1"), ["--size", "1024"])
    other = Launch(launches[0].kernel, {}, (99, 1, 1), launches[0].shape[1])
    same = seen(launches[0])
    assert profile.matched(launches, [other]) == []
    assert profile.matched(launches, [other, same]) == [(launches[0], same)]


@pytest.mark.parametrize("error", [Unavailable("ncu"), ReaderError("ncu ended with exit code 1")])
def test_without_the_hardware_the_rest_is_there(monkeypatch, capsys, error):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(profile, "watched", fail)
    assert exit_code(lambda _: profile.report(sections.find("1.1.1"), ["--size", "64"])) == OK
    printed = capsys.readouterr().out
    assert printed.rstrip().endswith(str(error)) and "the lines that cost most" in printed


def test_no_gpu_answers(monkeypatch):
    monkeypatch.setattr(profile.environment, "gpu_driver", lambda: None)
    with pytest.raises(Unavailable, match="no GPU answers"):
        profile.watched(sections.find("1.1.1"), [])


# --- inside a script ------------------------------------------------------------------------------------------


def test_counts_inside_a_script(capsys):
    s = load_module(sections.find("1.1.1"))
    x, y = np.ones((2, 1024), np.float32)
    calls = {"plain": lambda: s.saxpy(2, x, y, "saxpy"), "both": lambda: [s.saxpy(2, x, y), s.vector_add(x, y)]}
    profile.show_counts("What they count", calls)
    printed = capsys.readouterr().out
    assert printed.startswith("What they count")
    # a warp of 32 floats is 4 sectors: 2 x 32 requests to load, 32 to store
    assert re.search(r"plain +1 +64 +256 \(4\) +32 +128 \(4\) +2,048 .*≈32.0", printed)
    assert re.search(r"both +2 ", printed)
