"""The commands behind ./run. Standard library only until a command has to run in the environment."""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, NoReturn

from common import environment, sections
from common.cli import FAILED, OK, UNAVAILABLE, Unavailable, UsageError, exit_code
from common.sections import ROOT, Section

HELP = """\
Code of 《大模型训练与推理加速实战：基于CUDA计算平台（Python版）》: one script per section of the book.

  ./run demo                    a tour: one headline script per chapter, a summary, a plot
  ./run test [pytest options]   all tests on whatever is here (--mutants: break each kernel, a test must see it)

  ./run 1.1.1 [options]         run a section; --help lists its options, --quick is a small run
  ./run list [chapter]          the sections: which are built, what each does without a GPU
  ./run profile section         what its kernels ask of the memory, by source line; on a GPU, the hardware's figures too
  ./run counters                the simulator's counters beside a GPU's; on a GPU with Nsight Compute, counts anew
  ./run sanitize [section]      look for faults and races: compute-sanitizer, or the simulator (no section: in all)
  ./run sanitize faults         planted faults: what compute-sanitizer finds of them, and what the simulator
  ./run notebook [section]      JupyterLab, on a section if one is named
  ./run doctor                  what is installed, what is missing, what that would unlock
  ./run bench [chapter|simt]    measure on a GPU into results/; simt: the simulator's own speed
  ./run setup [pycuda|tensorflow]   set up again, or add what a requirements file cannot
  ./run lint                    ruff and mypy
  ./run help                    this text

The first command that needs it makes .venv (RUN_PYTHON=/path/to/python uses a prepared interpreter instead).
CUDA_BOOK_DEVICE=simulator runs on the simulator although there is a GPU.
Exit codes: 0 verified, 1 failed, 2 wrong usage, 77 something it needs is missing, 130 interrupted."""

COMMANDS = (
    "demo",
    "test",
    "list",
    "profile",
    "counters",
    "sanitize",
    "notebook",
    "doctor",
    "bench",
    "setup",
    "lint",
    "help",
)

# The script that shows a chapter at its best; it must accept --quick and --plot.
HEADLINES = {1: "1.1.2", 8: "8.1.2"}


class Command(NamedTuple):
    """What a command line asks for. `bare`: it needs no packages; `installs`: it changes the environment."""

    run: Callable[[], int]
    bare: bool = False
    installs: bool = False


def script(section: Section, *options: str) -> list[str]:
    """The command that runs a section with this interpreter."""
    return [sys.executable, str(section.path), *options]


def built(number: str) -> Section:
    """The section of that number; UsageError when the book has none or it is not built."""
    section = sections.find(number)
    if not section.ready:
        raise UsageError(f"{section.title}: not built yet (./run list shows what is)")
    return section


def chapter_number(text: str) -> int:
    """'1' as a chapter of the book."""
    if not (text.isascii() and text.isdigit()) or int(text) not in sections.chapters():
        raise UsageError(f"the book has no chapter {text}: it has 1 to {max(sections.chapters())}")
    return int(text)


def show_help() -> int:
    print(HELP)
    return OK


def doctor() -> int:
    from common.doctor import report

    return report()


def show_list(chapter: int | None) -> int:
    """Print the table of contents; no column after the titles, whose width no terminal agrees on."""
    for number, members in sections.chapters().items():
        if chapter not in (None, number):
            continue
        ready = sum(section.ready for section in members)
        print(f"\n{members[0].path.parent.name}: {ready} of {len(members)} sections built")
        for s in members:
            print(f"  {s.number:<7}{'ready' if s.ready else '-':<7}{s.without_gpu:<8}{s.title_zh} — {s.title_en}")
    print("\nThe third column is what a section does without a GPU:")
    header = (ROOT / "common" / "sections.tsv").read_text(encoding="utf-8").splitlines()
    print("\n".join(line[1:] for line in header if line.startswith("#   ")))
    return OK


def demo() -> int:
    """One headline script per chapter that has something to show, then a summary and the plots."""
    from common.report import table

    rows: list[tuple[str, ...]] = []
    plots: list[str] = []
    for chapter, members in sections.chapters().items():
        ready = [section for section in members if section.ready]
        if not ready:
            continue
        headline = next((s for s in ready if s.number == HEADLINES.get(chapter)), None)
        section, options = (headline, ["--quick", "--plot"]) if headline else (ready[0], ["--quick"])
        print(f"\n━━ ./run {section.number} {' '.join(options)}", flush=True)
        began = time.monotonic()
        code, output = run_and_show(script(section, *options))
        seconds = time.monotonic() - began
        drawn = re.findall(r"^plot: (.+)$", output, flags=re.MULTILINE)
        state = {OK: "verified", UNAVAILABLE: "not run"}.get(code, f"FAILED, exit code {code}")
        if headline and code == OK and not drawn:
            state = "FAILED, no plot"
        rows.append((section.number, section.title_en, state, f"{seconds:.1f}"))
        plots += drawn
    if not rows:
        print("nothing to show: no section is built yet")
        return FAILED
    print()
    table("", ("section", "title", "result", "seconds"), rows)
    for plot in plots:
        print(f"plot: {plot}")
    return FAILED if any(row[2].startswith("FAILED") for row in rows) else OK


def run_and_show(command: list[str]) -> tuple[int, str]:
    """Run a command, pass its output on line by line, and return its exit code and that output."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        for line in child.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return child.returncode, "".join(lines)


def bench(chapter: int | None) -> int:
    """Run benchmark() of each section that has one, and merge the rows into results/."""
    from common import gpu, results

    if gpu.SIMULATED:
        raise Unavailable(f"bench measures a GPU, and the simulator has no time ({gpu.DEVICE_REASON})")
    failed = False
    for section in sections.load():
        if not section.ready or chapter not in (None, section.chapter):
            continue
        print(f"\n━━ {section.title}", flush=True)
        try:
            benchmark = getattr(load_module(section), "benchmark", None)
            if benchmark is None:
                print("nothing to measure")
                continue
            rows = benchmark()
            results.show(rows)
            print(f"recorded in {results.record(rows).relative_to(ROOT)}")
        except Unavailable as missing:
            print(missing)
        except Exception:  # one section that fails must not cost the figures of the others
            traceback.print_exc()
            failed = True
    for readme in results.check_readmes(write=True):
        print(f"updated {readme.relative_to(ROOT)}")
    return FAILED if failed else OK


def load_module(section: Section) -> ModuleType:
    """A section's script as a module."""
    spec = importlib.util.spec_from_file_location(section.path.stem, section.path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[section.path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def notebook(section: Section | None, options: list[str]) -> int:
    """JupyterLab in the repository, opened on a section's script as a notebook if one is named."""
    opened = []
    if section is not None:
        copy = ROOT / "out" / "notebooks" / f"{section.path.stem}.ipynb"
        if copy.exists():
            print(f"opening {copy} as it is; delete it to start again from the script")
        else:
            copy.parent.mkdir(parents=True, exist_ok=True)
            convert = ["jupytext", "--quiet", "--to", "ipynb", "--output", str(copy), str(section.path)]
            subprocess.run([sys.executable, "-m", *convert], check=True)
        opened = [str(copy.relative_to(ROOT))]
    as_root = ["--allow-root"] if os.geteuid() == 0 else []  # in a container everybody is root
    os.chdir(ROOT)
    replace_process(sys.executable, "-m", "jupyterlab", *opened, *as_root, *options)


def profile(section: Section, options: list[str]) -> int:
    """Count what a section's kernels do, on the simulator whatever device there is; on a GPU that is there too."""
    hardware = os.environ.get("CUDA_BOOK_DEVICE") != "simulator"
    if (choice := os.environ.get("CUDA_BOOK_DEVICE", "")) not in ("", "gpu", "simulator"):
        raise UsageError(f"CUDA_BOOK_DEVICE is {choice!r}; it may be 'gpu' or 'simulator'")
    os.environ["CUDA_BOOK_DEVICE"] = "simulator"  # before common.gpu looks
    from common.profile import report

    return report(section, options, hardware)


def counters() -> int:
    """Compare the simulator's counters with a GPU's: counted now, or stored."""
    from common.counters import report

    return report()


def sanitize(section: Section | None, options: list[str]) -> int:
    """Look for faults and races in the kernels of a section, or of all, on whatever is there."""
    from common.sanitize import report

    return report(section, options)


def sanitize_faults() -> int:
    """What is found of the planted faults in tests/faults."""
    from common.sanitize import show_faults

    return show_faults()


def lint() -> int:
    """ruff check, ruff format --check, mypy on `common`; all three, whatever the first says."""
    checks = (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy", "common"])
    codes = [subprocess.run([sys.executable, "-m", *check], cwd=ROOT).returncode for check in checks]
    return FAILED if any(codes) else OK


def test(options: list[str]) -> int:
    """pytest, or the mutants, from the repository's root; paths may be relative to where the reader is."""
    options = [absolute(option) for option in options]
    os.chdir(ROOT)
    if "--mutants" in options:
        options.remove("--mutants")
        replace_process(sys.executable, "-m", "tests.mutants", *options)
    replace_process(sys.executable, "-m", "pytest", *options)


def absolute(option: str) -> str:
    """A path (or path::test) below the current folder made absolute; anything else as it is."""
    path, mark, rest = option.partition("::")
    return f"{Path(path).resolve()}{mark}{rest}" if path and Path(path).exists() else option


def replace_process(*command: str) -> NoReturn:
    """Become that command: its exit code and its signals are then ours."""
    sys.stdout.flush()
    os.execv(command[0], command)


def parse(arguments: list[str]) -> Command:
    """The command that a command line asks for. Raises UsageError before anything is installed or run."""
    match arguments:
        case [] | ["help" | "-h" | "--help"]:
            return Command(show_help, bare=True)
        case ["test", *options]:
            return Command(lambda: test(options))
        case ["notebook", number, *options] if not number.startswith("-"):
            section = built(number)
            return Command(lambda: notebook(section, options))
        case ["notebook", *options]:
            return Command(lambda: notebook(None, options))
        case ["profile"]:
            raise UsageError("profile needs a section, such as 1.1.2 (./run list)")
        case ["sanitize"]:
            return Command(lambda: sanitize(None, []))
        case ["sanitize", "faults"]:
            return Command(sanitize_faults)
        case ["sanitize", number, *options] if not number.startswith("-"):
            section = built(number)
            return Command(lambda: sanitize(section, options))
        case ["profile", number, *options] if not number.startswith("-"):
            section = built(number)
            return Command(lambda: profile(section, options))
        case [number, *options] if number[:1].isdigit():
            section = built(number)
            return Command(lambda: replace_process(*script(section, *options)))
        case [name, *rest] if name in COMMANDS and any(word.startswith("-") for word in rest):
            raise UsageError(f"{name}: unknown option {next(word for word in rest if word.startswith('-'))}")
        case ["list"]:
            return Command(lambda: show_list(None), bare=True)
        case ["list", text]:
            chapter = chapter_number(text)
            return Command(lambda: show_list(chapter), bare=True)
        case ["bench", "simt"]:
            return Command(lambda: replace_process(sys.executable, str(ROOT / "tests" / "bench_simt.py")))
        case ["bench"]:
            return Command(lambda: bench(None))
        case ["bench", text]:
            chapter = chapter_number(text)
            return Command(lambda: bench(chapter))
        case ["counters"]:
            return Command(counters)
        case ["demo"]:
            return Command(demo)
        case ["doctor"]:
            return Command(doctor)
        case ["lint"]:
            return Command(lint)
        case ["setup", *what] if what in ([], ["pycuda"], ["tensorflow"]):
            return Command(lambda: environment.setup("".join(what)), bare=True, installs=True)
        case [name, *rest] if name in COMMANDS:
            raise UsageError(f"{name} does not take {' '.join(rest)!r} (see ./run help)")
    close = difflib.get_close_matches(arguments[0], COMMANDS, n=1)
    kind = "option" if arguments[0].startswith("-") else "command"
    raise UsageError(f"unknown {kind} {arguments[0]}: {f'did you mean {close[0]}?' if close else 'see ./run help'}")


def main(argv: list[str] | None = None) -> int:
    """Run a command with this interpreter; `./run` comes here once .venv is ready."""
    return exit_code(lambda arguments: parse(arguments).run(), sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
