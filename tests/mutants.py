"""Break each kernel on purpose: a test has to see it. `./run test --mutants [words]` runs them.

A mutant replaces one text in one file of a copy of the repository and runs the tests named for it there. It is
killed only when an assertion fails or the simulator's memory checks fault. A test that breaks in any other way
(a syntax error, a kernel that does not compile, a time-out) says nothing about the kernel: an error here, and
so is a text that does not occur exactly once.

The mutants stand in tests/mutants_*.py, each with a list MUTANTS. Words given keep the mutants whose file or
new text contains one of them.
"""

from __future__ import annotations

import importlib
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORKERS = 2
TIMEOUT = 300  # seconds for the tests of one mutant
REPORT = "MUTANTS_REPORT"  # in a child: the file into which pytest_runtest_makereport writes


@dataclass(frozen=True)
class Mutant:
    """`old` becomes `new` in `file`; `test` is the pytest node id (or ids, space-separated) that must fail."""

    file: str
    old: str
    new: str
    test: str

    def apply(self, root: Path) -> None:
        """Change the file below `root`. Raises ValueError unless `old` occurs exactly once."""
        text = (root / self.file).read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.old!r} occurs {count} times in {self.file}")
        (root / self.file).write_text(text.replace(self.old, self.new), encoding="utf-8")


def faults(file: str, tests: str, *changes: tuple[str, str, str]) -> list[Mutant]:
    """Mutants of one file: (old text, new text, the test's name behind "test_") each, the tests in one file too."""
    return [Mutant(file, old, new, f"{tests}::test_{test}") for old, new, test in changes]


def load() -> list[Mutant]:
    """The mutants of all tests/mutants_*.py."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("mutants_*.py"))
    return [mutant for name in names for mutant in importlib.import_module(f"tests.{name}").MUTANTS]


def noticed(error: BaseException) -> bool:
    """True for an exception that means: the result was seen to be wrong."""
    import pytest

    from common.simt import errors

    if isinstance(error, BaseExceptionGroup):  # hypothesis found several
        return all(noticed(inner) for inner in error.exceptions)
    if isinstance(error, pytest.fail.Exception):
        return not str(error).startswith("Timeout")
    return isinstance(error, AssertionError | errors.KernelFault)


def pytest_runtest_makereport(item: Any, call: Any) -> None:
    """In the child (`pytest -p tests.mutants`): note how each test ended."""
    del item
    if REPORT not in os.environ or (call.excinfo is None and call.when != "call"):
        return
    import pytest

    error = call.excinfo and call.excinfo.value
    if error is None:
        verdict = "passed"
    elif isinstance(error, pytest.skip.Exception):
        verdict = f"skipped: {error}"
    elif call.when == "call" and noticed(error):
        verdict = "killed"
    else:
        verdict = f"{type(error).__name__} in {call.when}: {error}"
    with open(os.environ[REPORT], "a", encoding="utf-8") as report:
        report.write(" ".join(verdict.split())[:200] + "\n")


def run_tests(root: Path, tests: Iterable[str], timeout: float = TIMEOUT) -> str:
    """ "survived", "killed", or "error: " and what kept the tests in `root` from telling."""
    report = root / "out" / "mutants-report.txt"
    report.parent.mkdir(exist_ok=True)
    report.write_text("")
    environment = {
        **os.environ,
        REPORT: str(report),
        "PYTHONPATH": str(root),  # the copy, not the repository that is installed
        "CUDA_BOOK_ROOT": str(root),
        "CUDA_BOOK_DEVICE": "simulator",  # a kernel that is out of bounds on a GPU may well go unnoticed
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the notebook plugin alone takes seconds to import
        "PYTHONDONTWRITEBYTECODE": "1",  # a stale .pyc would hide a change within the same second
    }
    plugins = [word for name in ("tests.mutants", "pytest_timeout", "no:cacheprovider") for word in ("-p", name)]
    command = [sys.executable, "-m", "pytest", "-x", "-q", *plugins]
    options: dict[str, Any] = {"cwd": root, "env": environment, "capture_output": True, "text": True}
    try:
        done = subprocess.run([*command, *tests], timeout=timeout, **options)
    except subprocess.TimeoutExpired:
        return f"error: no end after {timeout:.0f} s"
    verdicts = report.read_text().splitlines() or ["no test ran"]
    if done.returncode == 0 and "passed" in verdicts:
        return "survived"
    if done.returncode == 1 and verdicts[-1] == "killed":
        return "killed"
    if verdicts[-1] in ("passed", "no test ran"):  # it did not come as far as a test: pytest says why
        verdicts = re.findall(r"\w*(?:Error|ERROR): .*", done.stdout + done.stderr)[:1] or verdicts
    return f"error: {verdicts[-1]}"


def try_mutant(mutant: Mutant, root: Path) -> str:
    """Apply the mutant in the copy at `root`, run its tests, and put the file back."""
    original = (root / mutant.file).read_bytes()
    try:
        mutant.apply(root)
        return run_tests(root, mutant.test.split())
    except ValueError as error:
        return f"error: {error}"
    finally:
        (root / mutant.file).write_bytes(original)


def copy_repository(target: Path) -> None:
    """The working tree without what is built or cached in it."""
    ignore = shutil.ignore_patterns(".git", ".venv*", "out", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info")
    shutil.copytree(ROOT, target, ignore=ignore)


def main(words: list[str]) -> int:
    mutants = [m for m in load() if not words or any(word in m.file or word in m.new for word in words)]
    if not mutants:
        print("no mutant matches", *words)
        return 1
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        roots: queue.Queue[Path] = queue.Queue()
        for i in range(WORKERS):
            copy_repository(Path(scratch, str(i)))
            roots.put(Path(scratch, str(i)))

        def at_work(task: Any) -> tuple[str, float]:
            """Run task(root) in a copy that nobody else uses."""
            root, began = roots.get(), time.monotonic()
            try:
                return task(root), time.monotonic() - began
            finally:
                roots.put(root)

        # The tests must pass before anything is broken, or their failing would mean nothing.
        print(f"{len(mutants)} mutants; first the tests on the unbroken code ...", flush=True)
        tests = sorted({test for mutant in mutants for test in mutant.test.split()})
        before, seconds = at_work(lambda root: run_tests(root, tests, 10 * TIMEOUT))
        if before != "survived":
            print(f"the unbroken code does not pass: {before}")
            return 1
        print(f"passed in {seconds:.0f} s", flush=True)
        with ThreadPoolExecutor(WORKERS) as pool:
            jobs = [pool.submit(at_work, lambda root, m=m: try_mutant(m, root)) for m in mutants]
            verdicts = []
            for mutant, job in zip(mutants, jobs, strict=True):
                verdict, seconds = job.result()
                verdicts.append(verdict)
                change = f"{' '.join(mutant.old.split())[:45]} → {' '.join(mutant.new.split())[:45]}"
                print(f"{verdict.upper():<9}{seconds:5.1f} s  {mutant.file}  {change}", flush=True)
    killed = verdicts.count("killed")
    print(f"\n{killed} of {len(mutants)} mutants killed, {verdicts.count('survived')} survived")
    return 0 if killed == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
