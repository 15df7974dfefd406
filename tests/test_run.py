"""./run as a reader meets it: every command, and every way in which the set-up or a command line can fail.

The tests work in a small clone of the repository whose requirements are empty, so that nothing is downloaded.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from common import __main__ as commands
from common import doctor, environment
from common.cli import UsageError

ROOT = Path(__file__).resolve().parent.parent
HEADLINE = "ch01_cuda_basics/s1_1_2_threads_blocks_grids.py"
OTHER = "ch07_custom_ops/s7_1_1_what_is_a_custom_op.py"
ECHO = "import os, sys\nprint(sys.argv[1:], os.environ['PYTHONPATH'].split(':')[0])\nsys.exit({code})\n"
Done = subprocess.CompletedProcess[str]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What ./run needs of the repository, without any section, and with nothing to install."""
    root = tmp_path / "a clone"
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "common", root / "common", ignore=skip)
    for name in ("run", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    for name in ("requirements.txt", "requirements-cu12.txt", "requirements-gpu.txt"):
        (root / name).write_text("# nothing\n")
    return root


def add_section(root: Path, file: str, text: str) -> None:
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).write_text(text)


def run(root: Path, *arguments: str, cwd: Path | None = None, **env: str) -> Done:
    """./run with this test's interpreter as the prepared one; RUN_PYTHON="" makes it set up .venv."""
    environment = {**os.environ, "RUN_PYTHON": sys.executable, "PYTHONPATH": "", **env}
    command = [str(root / "run"), *arguments]
    return subprocess.run(command, cwd=cwd or root, env=environment, capture_output=True, text=True)


def fails_in_one_line(done: Done, code: int, text: str) -> None:
    assert done.returncode == code, done.stdout + done.stderr
    assert re.search(text, done.stderr), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


# --- the command line -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("1.1.9", "no section 1.1.9: did you mean 1.1.[1-4]"),
        ("1.1", r"1.1 is not one section: it has 1.1.1 to 1.1.4"),
        ("99.1.1", "no section 99.1.1"),
        ("7.1.2", "not built yet"),
        ("dmeo", "unknown command dmeo: did you mean demo?"),
        ("xyzzy", "unknown command xyzzy: see ./run help"),
        ("--quick", "unknown option --quick"),
        ("demo --fast", "demo: unknown option --fast"),
        ("demo 1", "demo does not take '1'"),
        ("list 11", "no chapter 11"),
        ("list x", "no chapter x"),
        ("list --all", "list: unknown option --all"),
        ("bench one", "no chapter one"),
        ("setup numpy", "setup does not take 'numpy'"),
        ("notebook 1.1.9", "no section 1.1.9"),
    ],
)
def test_wrong_usage_is_one_line_and_installs_nothing(clone: Path, arguments: str, text: str) -> None:
    fails_in_one_line(run(clone, *arguments.split(), RUN_PYTHON=""), 2, text)
    assert not (clone / ".venv").exists()


def test_help_and_list_need_no_environment(clone: Path) -> None:
    add_section(clone, OTHER, "")
    for arguments in ((), ("help",), ("--help",)):
        shown = run(clone, *arguments, RUN_PYTHON="")
        assert shown.returncode == 0
        assert all(f"./run {name}" in shown.stdout for name in commands.COMMANDS)
    shown = run(clone, "list", RUN_PYTHON="")
    assert shown.returncode == 0
    assert len(re.findall(r"^ +\d+\.\d+\.\d+ ", shown.stdout, flags=re.MULTILINE)) == 111
    assert re.search(r"7\.1\.1 +ready +full .*What a custom operator is", shown.stdout)
    assert "1.1.1" not in run(clone, "list", "7", RUN_PYTHON="").stdout
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize("code", [0, 1, 2, 77, 130])
def test_a_section_gets_its_options_and_its_exit_code_comes_back(clone: Path, code: int) -> None:
    add_section(clone, OTHER, ECHO.format(code=code))
    done = run(clone, "7.1.1", "--size", "64K", PYTHONPATH="/elsewhere")
    assert done.returncode == code
    assert done.stdout == f"['--size', '64K'] {clone}\n"


def test_it_works_from_any_directory_and_through_a_link(clone: Path, tmp_path: Path) -> None:
    add_section(clone, OTHER, ECHO.format(code=0))
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin" / "run"
    link.symlink_to(clone / "run")
    for root, cwd in ((clone, Path("/")), (clone, clone / "common"), (clone, ROOT), (link.parent, tmp_path)):
        done = run(root, "7.1.1", cwd=cwd)
        assert done.stdout == f"[] {clone}\n", done.stderr


def test_paths_for_pytest_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_x.py").touch()
    monkeypatch.chdir(tmp_path)
    assert commands.absolute("test_x.py::test_y") == f"{tmp_path}/test_x.py::test_y"
    assert commands.absolute("-k") == "-k"
    assert commands.absolute("tests/test_nowhere.py") == "tests/test_nowhere.py"


def test_test_runs_pytest(clone: Path) -> None:
    (clone / "tests").mkdir()
    (clone / "pyproject.toml").unlink()  # its options belong to plugins, which take seconds to load
    (clone / "tests" / "test_x.py").write_text("def test_one(): pass\ndef test_two(): assert False\n")
    fast = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    assert run(clone, "test", "-k", "one", **fast).returncode == 0
    assert run(clone, "test", "test_x.py::test_one", cwd=clone / "tests", **fast).returncode == 0
    assert run(clone, "test", **fast).returncode == 1


# --- demo, bench, notebook, doctor --------------------------------------------------------------------------------

DRAWS = "import sys\nassert sys.argv[1:] == ['--quick', '--plot']\nprint('plot: out/crossing.png')\nsys.exit({code})\n"


def test_demo_ends_with_the_plot(clone: Path) -> None:
    add_section(clone, HEADLINE, DRAWS.format(code=0))
    add_section(clone, OTHER, ECHO.format(code=77))
    done = run(clone, "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"1\.1\.2 .* verified", done.stdout)
    assert re.search(r"7\.1\.1 .* not run", done.stdout)
    assert done.stdout.endswith("plot: out/crossing.png\n")


@pytest.mark.parametrize("text", [DRAWS.format(code=1), "print('no plot drawn')", "raise ValueError"])
def test_demo_fails_when_a_headline_fails(clone: Path, text: str) -> None:
    add_section(clone, HEADLINE, text)
    done = run(clone, "demo")
    assert done.returncode == 1
    assert re.search(r"1\.1\.2 .* FAILED", done.stdout)


def test_demo_without_sections_says_so(clone: Path) -> None:
    done = run(clone, "demo")
    assert (done.returncode, done.stdout) == (1, "nothing to show: no section is built yet\n")


def test_bench_needs_a_gpu() -> None:
    done = run(ROOT, "bench", "1", CUDA_BOOK_DEVICE="simulator")
    assert done.returncode == 77
    assert done.stdout.startswith("not run: bench measures a GPU") and done.stdout.count("\n") == 1


def test_notebook_converts_the_section_and_keeps_what_the_reader_wrote(clone: Path) -> None:
    for name in ("jupyterlab", "nbformat"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    add_section(clone, OTHER, "# %%\nanswer = 42\n")
    copy = clone / "out" / "notebooks" / "s7_1_1_what_is_a_custom_op.ipynb"
    assert run(clone, "notebook", "7.1.1", "--version").returncode == 0  # JupyterLab prints its version and ends
    assert "answer = 42" in copy.read_text()
    copy.write_text(copy.read_text().replace("42", "43"))
    assert run(clone, "notebook", "7.1.1", "--version").returncode == 0
    assert "answer = 43" in copy.read_text()


def test_doctor_is_content_here() -> None:
    done = run(ROOT, "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("device", "driver", "CUDA toolkit", "NVRTC", "nvcc", "ncu", "numpy", "torch", "free disk"):
        assert re.search(rf"^ *{word} ", done.stdout, flags=re.MULTILINE), word


def test_doctor_fails_for_a_common_from_elsewhere(clone: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(clone), "CUDA_BOOK_ROOT": str(ROOT)}
    command = [sys.executable, "-P", "-m", "common", "doctor"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.search(r"^BROKEN: .*common", done.stdout, flags=re.MULTILINE)


def test_doctor_survives_whatever_a_probe_raises() -> None:
    def look() -> list[doctor.Row]:
        raise SystemExit("a library that exits")

    assert "cannot tell" in doctor.probe("x", look)[0].found


def test_doctor_shows_driver_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    answers = {
        "nvmlInit": None,
        "nvmlSystemGetCudaDriverVersion_v2": 13000,
        "nvmlSystemGetDriverVersion": "580.159.03",
        "nvmlDeviceGetCount": 2,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=141 * 2**30, free=140 * 2**30),
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlDeviceGetName": "NVIDIA H200",
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, lambda *_, answer=answer: answer)  # the name must exist
    driver, first, second = doctor.probe("gpus", doctor.gpus)
    assert driver.found == "580.159.03, for CUDA up to 13.0"
    assert first.found == "NVIDIA H200, 141.0 GiB (140.0 free), compute capability 9.0"
    assert (first.what, second.what) == ("GPU 0", "GPU 1")


# --- which Python ---------------------------------------------------------------------------------------------------


@pytest.fixture
def only_on_path(tmp_path: Path) -> Callable[..., str]:
    """A PATH with the few tools of ./run and with scripts made from the arguments."""

    def make(**scripts: str) -> str:
        folder = tmp_path / "path"
        folder.mkdir()
        for tool in ("bash", "env", "uname", "readlink", "dirname"):
            if tool not in scripts:
                (folder / tool).symlink_to(shutil.which(tool) or "")
        for name, text in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)
        return str(folder)

    return make


def test_python_too_old(clone: Path, only_on_path: Callable[..., str]) -> None:
    path = only_on_path(python3="echo 3.9.18")
    fails_in_one_line(run(clone, "demo", RUN_PYTHON="", PATH=path), 1, r"3\.11, 3\.12 or 3\.13; found 3\.9\.18")


def test_no_python(clone: Path, only_on_path: Callable[..., str]) -> None:
    fails_in_one_line(run(clone, "demo", RUN_PYTHON="", PATH=only_on_path()), 1, "found none")


def test_a_later_candidate_is_taken(clone: Path, only_on_path: Callable[..., str]) -> None:
    path = only_on_path(python3="echo 3.14.0", python3_12="exit 1", python=f'exec "{sys.executable}" "$@"')
    assert run(clone, "list", RUN_PYTHON="", PATH=path).returncode == 0


def test_native_windows(clone: Path, only_on_path: Callable[..., str]) -> None:
    path = only_on_path(uname="echo MINGW64_NT-10.0")
    fails_in_one_line(run(clone, "demo", PATH=path), 1, "native Windows is not supported.*WSL2")


def test_run_python(clone: Path, only_on_path: Callable[..., str]) -> None:
    fails_in_one_line(run(clone, "demo", RUN_PYTHON="/no/python"), 1, "RUN_PYTHON=/no/python is not a Python")
    path = only_on_path(old="echo 3.10.1")
    fails_in_one_line(run(clone, "demo", RUN_PYTHON=f"{path}/old"), 1, r"is Python 3\.10\.1")
    fails_in_one_line(run(clone, "setup"), 2, "nothing is installed into it")
    assert not (clone / ".venv").exists()


# --- the set-up -----------------------------------------------------------------------------------------------------

OFFLINE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull, "RUN_PYTHON": ""}


def test_set_up_once_refresh_when_stale_repair_when_broken(clone: Path) -> None:
    add_section(clone, OTHER, "import sys\nprint(sys.prefix)\n")
    first = run(clone, "7.1.1", **OFFLINE)
    assert first.returncode == 0, first.stderr
    assert re.search(r"requirements.txt: about 2.7 GB.* GB free", first.stdout)
    assert first.stdout.endswith(f"{clone}/.venv\n")
    assert run(clone, "7.1.1", **OFFLINE).stdout == f"{clone}/.venv\n"

    (clone / "requirements.txt").write_text("# still nothing\n")
    assert "Refreshing" in run(clone, "7.1.1", **OFFLINE).stdout
    assert run(clone, "7.1.1", **OFFLINE).stdout == f"{clone}/.venv\n"

    bare = run(clone, "doctor", **OFFLINE)  # an environment without a single package
    assert bare.returncode == 1 and "BROKEN:" in bare.stdout and not bare.stderr

    # an interrupted set-up, in which pip itself is half installed
    (clone / ".venv" / "stamp").write_text("requirements.txt unfinished\n")
    shutil.rmtree(next((clone / ".venv").glob("lib/*/site-packages/pip/_internal")))
    again = run(clone, "7.1.1", **OFFLINE)
    assert "Setting up" in again.stdout and again.stdout.endswith(f"{clone}/.venv\n")


def test_two_at_once_set_up_once(clone: Path) -> None:
    add_section(clone, OTHER, "print('ran')\n")
    environment = {**os.environ, **OFFLINE}
    command = [str(clone / "run"), "7.1.1"]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate()[0] for process in both]
    assert all(process.returncode == 0 and text.endswith("ran\n") for process, text in zip(both, outputs, strict=True))
    assert sum("Setting up" in text for text in outputs) == 1
    assert sum("waiting for it" in text for text in outputs) == 1


def test_interrupted_set_up_can_be_resumed(clone: Path) -> None:
    add_section(clone, OTHER, "print('ran')\n")
    process = subprocess.Popen(
        [str(clone / "run"), "7.1.1"],
        env={**os.environ, **OFFLINE},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and "Setting up" in process.stdout.readline()
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does on Ctrl-C
    assert process.communicate()[1].splitlines()[-1] == "interrupted"
    assert process.returncode == 130
    assert run(clone, "7.1.1", **OFFLINE).stdout.endswith("ran\n")


def test_no_network(clone: Path) -> None:
    (clone / "requirements.txt").write_text("numpy==2.4.6\n")
    done = run(clone, "doctor", **OFFLINE)
    fails_in_one_line(done, 1, r"pip found no numpy==2\.4\.6: no network, or .* log is .*out/setup\.log")
    assert "numpy==2.4.6" in (clone / "out" / "setup.log").read_text()
    assert (clone / ".venv" / "stamp").read_text() == "requirements.txt unfinished\n"


def test_no_venv_module(clone: Path, tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "__init__.py").write_text("raise SystemExit('No module named venv')")
    done = run(clone, "demo", **OFFLINE, PYTHONPATH=str(tmp_path))
    fails_in_one_line(done, 1, r"cannot make a virtual environment.*apt install python3\.\d+-venv")


def test_a_folder_that_cannot_be_written(clone: Path) -> None:
    (clone / "out").touch()  # a file where the folder should be fails for root, too
    fails_in_one_line(run(clone, "demo", **OFFLINE), 1, "cannot set up .venv: File exists: .*out")


def test_too_little_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "free_gb", lambda: 1.5)
    environment.check_disk(1.4)
    with pytest.raises(environment.SetupError, match=r"not enough disk: 4\.0 GB needed, 1\.5 GB free"):
        environment.check_disk(4.0)


@pytest.mark.parametrize(
    ("log", "text"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("WARNING: Retrying ... NewConnectionError('...: Connection refused')\nERROR: x", "no network: pip could"),
        ("ReadTimeoutError: HTTPSConnectionPool", "no network"),
        ("ERROR: No matching distribution found for torch==2.13.0", "pip found no torch==2.13.0: no network, or"),
        ("ERROR: Cannot install a and b\nERROR: ResolutionImpossible", "pip failed: ResolutionImpossible"),
        ("", "pip failed"),
    ],
)
def test_pips_failure_becomes_one_line(log: str, text: str) -> None:
    assert environment.explain(log).startswith(text) or text in environment.explain(log)
    assert "\n" not in environment.explain(log)


def test_one_gpu_extra_that_fails_does_not_stop_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = []

    def pip(venv: Path, *arguments: str) -> None:
        tried.append(arguments[-1])
        if "tensorrt" in arguments[-1] or "cudnn" in arguments[-1]:
            raise environment.SetupError("pip failed")

    monkeypatch.setattr(environment, "pip", pip)
    environment.install_gpu_extras(Path("unused"), "requirements.txt")
    assert tried == [f"{name}=={version}" for name, version in doctor.pins("requirements-gpu.txt").items()]
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 2 and all(line.startswith("not installed: ") for line in told)
    tried.clear()
    environment.install_gpu_extras(Path("unused"), "requirements-cu12.txt")
    assert not [name for name in tried if "13" in name.partition("==")[0]]


@pytest.mark.parametrize(
    ("driver", "file"),
    [(None, "requirements.txt"), (580, "requirements.txt"), (595, "requirements.txt"), (579, "requirements-cu12.txt")],
)
def test_the_driver_chooses_the_requirements(driver: int | None, file: str) -> None:
    assert environment.requirements_for(driver) == file


@pytest.mark.parametrize(("answer", "major"), [("580.159.03\n580.159.03\n", 580), ("no devices were found", None)])
def test_the_driver_is_what_nvidia_smi_says(
    answer: str, major: int | None, only_on_path: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", only_on_path(**{"nvidia-smi": f"echo '{answer}'"}))
    assert environment.gpu_driver() == major


def test_no_driver(only_on_path: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", only_on_path())
    assert environment.gpu_driver() is None


# --- the requirements files -----------------------------------------------------------------------------------------


def lines(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [line.partition("#")[0].strip() for line in text if line.partition("#")[0].strip()]


@pytest.mark.parametrize("path", sorted(ROOT.glob("requirements*.txt")), ids=lambda path: path.name)
def test_every_requirement_is_pinned_and_names_no_host(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "://" not in text and "--" not in text
    assert all(re.fullmatch(r"[\w-]+(\[[\w,-]+\])?==[\d.]+", line) for line in lines(path.name) if line != "-e .")
    if path.name != "requirements-gpu.txt":
        assert lines(path.name)[-1] == "-e ."


def test_the_cuda_12_set_differs_in_cuda_only() -> None:
    ours, older = set(lines("requirements.txt")), set(lines("requirements-cu12.txt"))
    cuda = re.compile(r"torch|cuda|cupy|nccl|tensorrt")
    assert not [line for line in ours ^ older if not cuda.search(line)]
    assert not [line for line in older if "cu13" in line]


def test_wrong_usage_in_process() -> None:
    with pytest.raises(UsageError, match="not built yet"):
        commands.built("9.1.1")
