"""The READMEs keep their word: links lead somewhere, commands exist, the snippet runs, the chapters are counted."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from common import gpu, sections
from common.__main__ import parse
from common.sections import ROOT

READMES = ["README.md", "README.zh-CN.md"]


def blocks(name: str, language: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.S | re.M)


@pytest.mark.parametrize("name", [*READMES, "CONTRIBUTING.md", "TERMS.md", "CHANGELOG.md", "common/simt/README.md"])
def test_links_lead_somewhere(name):
    page = ROOT / name
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{name} links to {target}"


@pytest.mark.parametrize("name", READMES)
def test_commands_exist(name):
    commands = re.findall(r"^\./run ([^#\n]*)", "\n".join(blocks(name, "bash")), flags=re.M)
    assert len(commands) >= 6
    for command in commands:
        parse(command.split())  # a UsageError fails the test


@pytest.mark.parametrize("name", READMES)
def test_chapters_are_counted(name):
    table = re.search(r"<!-- chapters -->(.*?)<!-- /chapters -->", (ROOT / name).read_text(encoding="utf-8"), re.S)[1]
    rows = re.findall(r"^\| (\d+) \|.*\| (\d+) (?:of|/) (\d+) \|$", table, flags=re.M)
    built = {n: (sum(s.ready for s in members), len(members)) for n, members in sections.chapters().items()}
    assert {int(n): (int(ready), int(total)) for n, ready, total in rows} == built


def test_the_snippet_is_the_same_in_both():
    assert blocks(READMES[0], "python") == blocks(READMES[1], "python")


def run_alone(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that is the only file of its folder."""
    (folder / "mine.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "mine.py"], cwd=folder, capture_output=True, text=True, env=environment)


def test_the_snippet_runs_from_an_empty_folder(tmp_path: Path):
    (code,) = blocks("README.md", "python")
    if gpu.SIMULATED:
        assert code.count("from cuda.core import") == 1
        code = code.replace("from cuda.core import", "from common.gpu import")
    done = run_alone(code, tmp_path)
    assert done.returncode == 0, done.stderr
    broken = code.replace("a * x[i] + y[i]", "a * x[i] - y[i]")
    assert broken != code
    done = run_alone(broken, tmp_path)
    assert done.returncode != 0 and "Mismatched elements" in done.stderr
