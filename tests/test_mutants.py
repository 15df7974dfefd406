"""The mutants fit the code: each applies, and each kernel of each section has one. (`./run test --mutants`
runs them; that takes minutes.)"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from common import sections
from common.sections import ROOT, Section
from tests import mutants
from tests.mutants import Mutant

ALL = mutants.load()
READY = [section for section in sections.load() if section.ready]
KERNEL = re.compile(r"__global__\s[^;{}()]*?(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(")


def kernel_texts(section: Section) -> dict[str, list[str]]:
    """File -> the CUDA C++ in it: the constants KERNEL… of the script, and .cu files of the same name."""
    tree = ast.parse(section.path.read_text(encoding="utf-8"))
    texts = [
        node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and any(isinstance(name, ast.Name) and name.id.startswith("KERNEL") for name in node.targets)
    ]
    extern = section.path.parent.glob(f"{section.path.stem}*.cu")
    return {section.file: texts} | {str(p.relative_to(ROOT)): [p.read_text(encoding="utf-8")] for p in extern}


def kernels(text: str) -> dict[str, tuple[int, int]]:
    """Kernel name -> where its definition begins and ends in `text`."""
    found = {}
    for match in KERNEL.finditer(text):
        depth = 0
        for brace in re.finditer(r"[{}]", text[match.end() :]):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                found[match[1]] = (match.start(), match.end() + brace.end())
                break
    return found


def without_mutant(file: str, text: str) -> list[str]:
    """The kernels in `text`, a part of `file`, into which no mutant of that file reaches."""
    places = [text.find(mutant.old) for mutant in ALL if mutant.file == file]
    return [name for name, (begin, end) in kernels(text).items() if not any(begin <= p < end for p in places)]


@pytest.mark.parametrize("section", READY, ids=[section.number for section in READY])
def test_every_kernel_has_a_mutant(section: Section) -> None:
    missing = [
        name for file, texts in kernel_texts(section).items() for text in texts for name in without_mutant(file, text)
    ]
    assert not missing, f"no mutant in tests/mutants_ch{section.chapter:02}_*.py breaks {', '.join(missing)}"


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: f"{Path(mutant.file).stem}: {mutant.new.strip()[:40]}")
def test_every_mutant_applies(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
    assert mutant.old != mutant.new
    for test in mutant.test.split():
        file, _, name = test.partition("::")
        assert re.search(rf"\b{re.escape(name.partition('[')[0].rpartition('::')[2])}\b", (ROOT / file).read_text())


def test_kernels_are_found() -> None:
    text = """
    template <class T> __global__ void __launch_bounds__(256, 2) first(T* x) { if (x) { *x = 1; } }
    __device__ int helper() { return 1; }
    extern "C" __global__ void second() {}
    """
    found = kernels(text)
    assert list(found) == ["first", "second"]
    assert text[slice(*found["first"])].endswith("{ if (x) { *x = 1; } }")


# --- the runner itself, on a small repository -----------------------------------------------------------------------

CODE = "def double(x):\n    return 2 * x\n"
TESTS = """
import pytest
from code_under_test import double

def test_double():
    assert double(4) == 8

def test_weak():
    assert double(0) == 0

def test_skipped():
    pytest.skip("no reason")
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of what the runner needs, with code of its own."""
    mutants.copy_repository(tmp_path / "copy")
    (tmp_path / "copy" / "tests" / "conftest.py").write_text("")  # ours imports much
    (tmp_path / "copy" / "code_under_test.py").write_text(CODE)
    (tmp_path / "copy" / "tests" / "test_code.py").write_text(TESTS)
    return tmp_path / "copy"


@pytest.mark.parametrize(
    ("old", "new", "test", "verdict"),
    [
        ("2 * x", "3 * x", "test_double", "killed"),
        ("2 * x", "3 * x", "test_weak", "survived"),
        ("2 * x", "2 * y", "test_double", "error: NameError in call"),
        ("2 * x", "2 * (x", "test_double", "error: SyntaxError: "),
        ("2 * x", "3 * x", "test_skipped", "error: skipped: no reason"),
        ("2 * x", "3 * x", "test_gone", "error: ERROR: .*test_gone"),
        ("5 * x", "3 * x", "test_double", "error: '5 \\* x' occurs 0 times"),
        ("e", "f", "test_double", "error: 'e' occurs 3 times"),
    ],
)
def test_the_verdicts(repository: Path, old: str, new: str, test: str, verdict: str) -> None:
    mutant = Mutant("code_under_test.py", old, new, f"tests/test_code.py::{test}")
    assert re.match(verdict, mutants.try_mutant(mutant, repository))
    assert (repository / "code_under_test.py").read_text() == CODE  # put back
