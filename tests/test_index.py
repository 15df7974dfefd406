"""The index holds: sections.tsv, the files, their docstrings and the chapters' READMEs say the same, and each
section behaves on this machine as its `without_gpu` column says."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common import __main__ as commands
from common import gpu, results, sections
from common.cli import OK, UNAVAILABLE, exit_code
from common.sections import ROOT, Section
from tests.chapter import python_path

READY = [section for section in sections.load() if section.ready]
# Each section that is built, and each that a finished chapter should have.
EXPECTED = [s for s in sections.load() if s.ready or s.chapter in sections.finished_chapters()]
CHAPTERS = sorted({section.chapter for section in READY})


def each(members: list[Section]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("section", members, ids=[section.number for section in members])


# --- the table and the files ----------------------------------------------------------------------------------


def test_the_table_is_the_books() -> None:
    table = sections.load()
    numbers = [tuple(map(int, section.number.split("."))) for section in table]
    assert len(table) == 111 and list(sections.chapters()) == list(range(1, 11))
    assert numbers == sorted(set(numbers))
    assert [section.page for section in table] == sorted(section.page for section in table)
    assert {section.without_gpu for section in table} <= {"full", "counts", "stored", "part", "build", "gpu"}
    for section in table:
        prefix = f"ch{section.chapter:02}_[a-z0-9_]+/s{section.number.replace('.', '_')}_[a-z0-9_]+\\.py"
        assert re.fullmatch(prefix, section.file), section.file


def test_the_files_are_the_tables() -> None:
    found = {str(path.relative_to(ROOT)) for path in ROOT.glob("ch[0-9]*/s[0-9]*.py")}
    assert found == {section.file for section in READY}


@each(EXPECTED)
def test_first_line_of_the_docstring(section: Section) -> None:
    text = section.path.read_text(encoding="utf-8")
    docstring = re.search(r'^r?"""(.*)', text, flags=re.MULTILINE)
    assert docstring is not None
    assert docstring[1] == f"{section.number} {section.title_zh} — {section.title_en}"


@each(EXPECTED)
def test_the_chapters_readme_lists_it(section: Section) -> None:
    readme = (section.path.parent / "README.md").read_text(encoding="utf-8")
    for part in (section.number, section.path.name, section.title_zh, section.title_en):
        assert part in readme


def test_headlines_are_built() -> None:
    assert all(sections.find(number).chapter == chapter for chapter, number in commands.HEADLINES.items())
    built = {chapter for chapter, number in commands.HEADLINES.items() if sections.find(number).ready}
    assert built == set(CHAPTERS)


# --- what a section does here ---------------------------------------------------------------------------------

IMPORT_ALL = """
import importlib.util, json, os, sys, traceback
from cuda.bindings import nvrtc

def compiles(*arguments):
    raise AssertionError("a kernel is compiled at import")

nvrtc.nvrtcCreateProgram = nvrtc.nvrtcCompileProgram = compiles
failures = {}
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("section", path)
    module = sys.modules["section"] = importlib.util.module_from_spec(spec)
    printed = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        spec.loader.exec_module(module)
        assert callable(module.main) and isinstance(module.NEEDS, tuple)
    except BaseException:
        failures[path] = traceback.format_exc()
    os.dup2(printed, 1)
print(json.dumps(failures))
"""


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_imports_without_a_gpu_and_compiles_nothing(chapter: int) -> None:
    files = [str(section.path) for section in READY if section.chapter == chapter]
    environment = {**os.environ, "CUDA_BOOK_DEVICE": "simulator", "PYTHONPATH": python_path()}
    command = [sys.executable, "-c", IMPORT_ALL, *files]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    failures = json.loads(done.stdout)
    assert not failures, "\n".join(failures.values())


def gpus_of_the_driver() -> int:
    """How many devices libcuda counts: asked of the driver itself, not of common.gpu."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    good = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if good else 0


def is_missing(need: str) -> bool:
    """The independent look for one entry of NEEDS: "gpu", "multi_gpu", a module, or a command line tool."""
    if need in ("gpu", "multi_gpu"):
        simulated = os.environ.get("CUDA_BOOK_DEVICE") == "simulator"
        return simulated or gpus_of_the_driver() < (1 if need == "gpu" else 2)
    names = {"tensorrt": ("tensorrt", "tensorrt_rtx")}.get(need, (need,))
    return not any(importlib.util.find_spec(name) or shutil.which(name) for name in names)


@each(READY)
def test_main_quick(section: Section, capfd: pytest.CaptureFixture[str]) -> None:
    module = commands.load_module(section)
    code = exit_code(module.main, ["--quick"])
    output = capfd.readouterr().out
    if code == UNAVAILABLE:
        assert any(is_missing(need) for need in module.NEEDS), f"nothing of {module.NEEDS} is missing:\n{output}"
        assert len(re.findall(r"^not run: ", output, flags=re.MULTILINE)) == 1
        return
    assert code == OK, output
    assert not any(is_missing(need) for need in module.NEEDS), f"ran although something of {module.NEEDS} is missing"
    if gpu.SIMULATED:
        assert section.without_gpu != "gpu"
        if section.without_gpu == "part":
            assert re.search(r"^not run: ", output, flags=re.MULTILINE)
        if section.without_gpu == "stored" and results.recorded(section.number):
            assert re.search(r"recorded.*\d{4}-\d\d-\d\d", output, flags=re.DOTALL), "recorded figures, with their date"


@pytest.mark.gpu
@pytest.mark.slow
@each(READY)
def test_benchmark(section: Section) -> None:
    benchmark = getattr(commands.load_module(section), "benchmark", None)
    if benchmark is None:
        return
    rows = benchmark()
    assert rows and len({row.key for row in rows}) == len(rows)
    assert all(row.section == section.number and 0 < row.seconds < 10 for row in rows)
    assert all(0 < row.of_copy < 1.5 for row in rows if row.of_copy is not None)


# --- as a notebook --------------------------------------------------------------------------------------------


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """An IPython as a notebook has it, in a folder that is not the repository."""
    pytest.importorskip("IPython", reason="IPython is not installed")
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    main_module, hook = sys.modules["__main__"], sys.displayhook
    shell = InteractiveShell.instance()
    shell.history_manager.enabled = False
    yield shell
    InteractiveShell.clear_instance()
    sys.modules["__main__"], sys.displayhook = main_module, hook


@each(READY)
def test_cells_run_as_a_notebook(section: Section, shell: object) -> None:
    pytest.importorskip("nbformat", reason="nbformat, which jupytext needs, is not installed")
    import jupytext

    notebook = jupytext.read(section.path)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) > 2, "a script in percent format has cells"
    for source in cells:
        shell.run_cell(source, silent=False).raise_error()  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_section_runs_in_a_jupyter_kernel(chapter: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nbformat", "nbclient", "ipykernel"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    import jupytext
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", python_path())
    section = next(section for section in READY if section.chapter == chapter)
    notebook = jupytext.read(section.path)
    place = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(notebook, kernel_name="python3", timeout=150, resources=place)
    client.execute()
    printed = "".join(o.get("text", "") for cell in notebook.cells for o in cell.get("outputs", []))
    assert section.title_en in printed
