"""`./run profile`: the counts of a section's kernels, by kernel and by source line."""

import re

import numpy as np
import pytest

from common import __main__ as commands
from common import profile, sections
from common.__main__ import load_module
from common.cli import OK, UNAVAILABLE, USAGE, ReaderError, exit_code

pytestmark = pytest.mark.simulator


def test_the_kernels_of_a_section(capsys):
    profiles = profile.collect(sections.find("1.1.2"), ["--size", "64"])
    assert {"who_1d", "who_2d", "who_3d", "gray", "gray_by_16"} <= profiles.keys()
    gray = profiles["gray"]
    line, counter = gray.costliest()[0]
    assert gray.source.splitlines()[line - 1].strip().startswith("out[i] = (77 * rgb")
    assert counter["load requests"] == 3 * counter["store requests"] == gray.total()["load requests"]
    by_16 = profiles["gray_by_16"].total()
    assert by_16["load sectors"] < gray.total()["load sectors"]


def test_what_it_prints(capsys):
    assert profile.report(sections.find("1.1.1"), ["--size", "1024"]) == OK
    printed = capsys.readouterr().out
    # copy_float4: 1024 floats are 8 requests of 16 bytes a lane, 16 sectors each
    assert re.search(r"copy_float4 +1 +≈32.0 +8 +128 \(16 each\) +8 +128 \(16 each\)", printed)
    assert re.search(r"copy_float4: the lines that cost most.*\n(?:.*\n){3,5} +\d+ .*y4\[q\] = x4\[q\];", printed)


def test_a_section_that_fails_is_an_error_with_its_output():
    with pytest.raises(ReaderError, match=r"exit code 2:\n.*positive integer"):
        profile.collect(sections.find("1.1.2"), ["--size", "0"])


def test_nothing_to_count(monkeypatch):
    monkeypatch.setattr(profile, "collect", lambda section, options: {})
    assert exit_code(lambda _: profile.report(sections.find("1.1.1")), []) == UNAVAILABLE


def test_the_command_line():
    assert exit_code(lambda _: commands.parse(["profile"]).run(), []) == USAGE
    assert exit_code(lambda _: commands.parse(["profile", "9.9.9"]).run(), []) == USAGE


def test_counts_inside_a_script(capsys):
    s = load_module(sections.find("1.1.1"))
    x, y = np.ones((2, 1024), np.float32)
    calls = {"plain": lambda: s.saxpy(2, x, y, "saxpy"), "both": lambda: [s.saxpy(2, x, y), s.vector_add(x, y)]}
    profile.show_counts("What they count", calls)
    printed = capsys.readouterr().out
    assert printed.startswith("What they count")
    # a warp of 32 floats is 4 sectors: 2 x 32 requests to load, 32 to store
    assert re.search(r"plain +1 +≈32.0 +64 +256 \(4 each\) +32 +128 \(4 each\) +2,048", printed)
    assert re.search(r"both +2 ", printed)
