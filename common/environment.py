"""Prepare .venv, then run a command in it; `./run` starts here. Standard library only.

Nothing is installed where RUN_PYTHON names a prepared interpreter, and nothing by the commands that need
no packages. One line on the terminal for each failure; pip's own log is out/setup.log.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from common.cli import ReaderError, UsageError, exit_code
from common.sections import ROOT

OUT = ROOT / "out"
LOG = OUT / "setup.log"
VENV = ROOT / ".venv"
TENSORFLOW_VENV = ROOT / ".venv-tensorflow"
SIZE_GB = 2.7  # of a finished .venv with a CPU build of torch; the smallest that can come out
HEADROOM_GB = 1.3  # the downloads, which pip holds until it has all of them

Command = Sequence[str | Path]
PYCUDA = "pycuda==2026.1"
PYCUDA_BUILD = ("nvidia-curand==10.4.0.35", "nvidia-cuda-profiler-api==13.0.85", "setuptools", "wheel")
UNFINISHED = "unfinished"
DISK_FULL = f"the disk is full where {ROOT} lies; free some space and run it again"


class SetupError(ReaderError):
    """The set-up cannot go on; the message says why and what helps."""


def gpu_driver() -> int | None:
    """Major version of the NVIDIA driver, as nvidia-smi gives it; None where that does not answer."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"(\d+)\.", answer.strip())
    return int(found[1]) if found else None


def requirements_for(driver: int | None) -> str:
    """CUDA 13 needs driver 580; an older one gets the CUDA 12 set. Without a driver the newer set."""
    return "requirements-cu12.txt" if driver is not None and driver < 580 else "requirements.txt"


def stamp_for(requirements: str) -> str:
    """What .venv must have been made from to be up to date."""
    has_gpu = shutil.which("nvidia-smi") is not None  # a GPU that appears later brings requirements-gpu.txt
    names = [requirements, *(["requirements-gpu.txt"] if has_gpu else [])]
    digest = hashlib.sha256()
    for name in names:
        digest.update((ROOT / name).read_bytes())
    digest.update(str(sys.version_info[:2]).encode())
    return f"{requirements} {digest.hexdigest()}\n"


def read_stamp() -> list[str]:
    """[requirements file, digest] of .venv, where "unfinished" is no digest; [] where there is no stamp."""
    try:
        return (VENV / "stamp").read_text().split()
    except OSError:
        return []


def is_current() -> bool:
    """True when .venv was made from the requirements as they are now."""
    stamp = read_stamp()
    return len(stamp) == 2 and python_in(VENV).exists() and stamp == stamp_for(stamp[0]).split()


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """One set-up at a time; a second ./run waits for the first."""
    OUT.mkdir(exist_ok=True)
    with open(OUT / "setup.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another ./run is setting up .venv; waiting for it ...", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def python_in(venv: Path) -> Path:
    return venv / "bin" / "python"


def size_gb(folder: Path) -> float:
    """Gigabytes that the files under `folder` take; 0 where there is none."""
    return sum(f.lstat().st_size for f in folder.rglob("*") if not f.is_dir()) / 1e9


def free_gb() -> float:
    return shutil.disk_usage(ROOT).free / 1e9


def check_disk(needed_gb: float) -> None:
    """SetupError unless that much is free where the repository lies."""
    if free_gb() < needed_gb:
        raise SetupError(f"not enough disk: {needed_gb:.1f} GB needed, {free_gb():.1f} GB free where {ROOT} lies")


def is_disk_full(text: str) -> bool:
    return re.search(r"No space left on device|Errno 28|Disk quota exceeded", text) is not None


def explain(log: str) -> str:
    """One line on why pip failed, out of its log."""
    if is_disk_full(log):
        return DISK_FULL
    errors = re.findall(r"ERROR: (.+)", log)
    missing = re.search(r"(?:No matching distribution found for|satisfies the requirement) ([^\s;(]+)", log)
    if re.search(
        r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|ConnectionError"
        r"|Network is unreachable|SSLError",
        log,
    ):
        return "no network: pip could not reach its package index (behind a proxy or mirror, configure pip)"
    if "Python.h: No such file" in log:
        return "Python's headers are missing (Debian, Ubuntu: apt install python3-dev)"
    if missing:
        return f"pip found no {missing[1]}: no network, or the package index that pip uses lacks it"
    return "pip failed" + (f": {errors[-1].strip()}" if errors else "")


def call(command: Command, *, show: bool = False, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str | None:
    """Run a command; None if it succeeded, else what it wrote to stderr (it may be empty).

    Its output goes into the log; with `show` its stdout, such as pip's progress, to the terminal.
    """
    with open(LOG, "ab") as log:
        stdout = None if show else log
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, cwd=cwd, env=env)
        with contextlib.suppress(OSError):  # on a full disk the log may be lost, but not the message
            log.write(done.stderr)
            log.flush()
    return None if done.returncode == 0 else done.stderr.decode(errors="replace")


def create_venv(venv: Path) -> None:
    """Make sure there is an environment whose pip works; one that is half made or broken is made anew."""
    python = python_in(venv)
    if python.exists() and call([python, "-m", "pip", "--version"]) is None:
        return
    base = getattr(sys, "_base_executable", sys.executable)  # not the .venv that is being replaced
    problem = call([base, "-m", "venv", "--clear", venv])
    if problem is not None:
        if is_disk_full(problem + LOG.read_text(errors="replace")):
            raise SetupError(DISK_FULL)
        raise SetupError(
            f"{base} cannot make a virtual environment: its venv module is missing or broken (on Debian and"
            f" Ubuntu: apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv); the log is {LOG}"
        )


def pip(venv: Path, *arguments: str | Path, show: bool = True, env: Mapping[str, str] | None = None) -> None:
    """pip in that environment; SetupError with one line when it fails. pip's configuration holds."""
    # pip unpacks gigabytes in the temporary folder, and /tmp is often a small one in memory
    scratch = venv / "tmp"
    scratch.mkdir(exist_ok=True)
    environment = {**os.environ, **(env or {}), "TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    start = LOG.stat().st_size if LOG.exists() else 0
    command = [python_in(venv), "-m", "pip", "--log", LOG, *arguments]
    try:
        problem = call(command, show=show, env=environment)
        if problem is not None:
            with open(LOG, errors="replace") as log:
                log.seek(start)
                raise SetupError(f"{explain(problem + log.read())}; pip's log is {LOG}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def install_gpu_extras(venv: Path, requirements: str) -> None:
    """requirements-gpu.txt line by line: a wheel that cannot be had here must not cost the others."""
    for line in (ROOT / "requirements-gpu.txt").read_text().splitlines():
        package, _, why = (part.strip() for part in line.partition("#"))
        if not package:
            continue
        if requirements == "requirements-cu12.txt":
            package = package.replace("cu13", "cu12").replace("cuda13x", "cuda12x")
        try:
            pip(venv, "install", package)
        except SetupError as error:
            print(f"not installed: {package}{f' ({why})' if why else ''}: {error}", flush=True)


def ensure(*, force: bool = False) -> None:
    """Bring .venv up to date, resuming what was interrupted; `force` looks at driver and GPU again."""
    if is_current() and not force:
        return
    with locked():
        if is_current() and not force:  # the ./run that we waited for did it
            return
        began = time.monotonic()
        LOG.write_text("")
        driver = gpu_driver()
        requirements = requirements_for(driver)
        before = read_stamp()
        if before and before[0] != requirements:  # never CUDA 12 and CUDA 13 wheels in one environment
            shutil.rmtree(VENV)
        refresh = before[:1] == [requirements] and before[1:] != [UNFINISHED]
        if refresh:
            print(f"Refreshing .venv: {requirements} has changed, or you asked for it.", flush=True)
        else:
            print(
                f"Setting up .venv from {requirements}: about {SIZE_GB} GB, several GB more where pip takes a CUDA"
                f" build of torch; {free_gb():.1f} GB free. This happens once and takes a few minutes.",
                flush=True,
            )
            check_disk(max(SIZE_GB + HEADROOM_GB - size_gb(VENV), 0.3))
        create_venv(VENV)
        (VENV / "stamp").write_text(f"{requirements} {UNFINISHED}\n")
        # a refresh finds most of it there, and pip has a line to say about each
        pip(VENV, "install", "-r", requirements, *(["--quiet"] if refresh else []))
        if driver is not None:
            install_gpu_extras(VENV, requirements)
        (VENV / "stamp").write_text(stamp_for(requirements))
        print(f"Ready in {time.monotonic() - began:.0f} s.\n", flush=True)


def setup_tensorflow() -> None:
    """.venv-tensorflow: TensorFlow and what `common` needs, apart from torch's CUDA libraries."""
    with locked():
        print(
            f"Setting up .venv-tensorflow: about 2.4 GB, several more with CUDA; {free_gb():.1f} GB free.", flush=True
        )
        check_disk(max(3.2 - size_gb(TENSORFLOW_VENV), 0.3))
        LOG.write_text("")
        create_venv(TENSORFLOW_VENV)
        requirements = (ROOT / "requirements-tensorflow.txt").read_text()
        if gpu_driver() is not None:
            requirements = requirements.replace("tensorflow-cpu==", "tensorflow[and-cuda]==")
        chosen = OUT / "requirements-tensorflow.txt"
        chosen.write_text(requirements)
        pip(TENSORFLOW_VENV, "install", "-r", chosen)
        print("Ready. The TensorFlow sections run with RUN_PYTHON=.venv-tensorflow/bin/python ./run 7.2.1")


def setup_pycuda() -> None:
    """Build PyCUDA from its source against the CUDA wheels in .venv: it has no wheel of its own."""
    ensure()
    where: Command = [python_in(VENV), "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"]
    cuda = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip(), "nvidia", "cu13")
    if not cuda.is_dir():
        raise SetupError("PyCUDA is built against the CUDA 13 wheels, and .venv has the CUDA 12 set")
    if shutil.which("g++") is None:
        raise SetupError("PyCUDA is built from its source and needs a C++ compiler (Debian, Ubuntu: apt install g++)")
    work = VENV / "pycuda"
    with locked():
        began = time.monotonic()
        print(f"Building {PYCUDA}: one or two minutes.", flush=True)
        LOG.write_text("")
        shutil.rmtree(work, ignore_errors=True)
        (work / "lib").mkdir(parents=True)
        try:
            build_pycuda(work, cuda)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        print(f"PyCUDA is ready ({time.monotonic() - began:.0f} s).")


def build_pycuda(work: Path, cuda: Path) -> None:
    """Download, configure and install PyCUDA; `cuda` is the folder of the wheels, nvidia/cu13."""
    pip(VENV, "install", *PYCUDA_BUILD)
    options: Command = ["--no-deps", "--no-build-isolation", "--no-binary", "pycuda", "--dest", work]
    pip(VENV, "download", *options, PYCUDA, show=False)
    # The linker asks for libcurand.so, and the wheel has libcurand.so.10 only. It asks for libcuda.so, too, which a
    # machine without a driver lacks: an empty library under the driver's name will do for linking.
    lib = work / "lib"
    (lib / "libcurand.so").symlink_to(cuda / "lib" / "libcurand.so.10")
    (lib / "empty.c").touch()
    folders = [f"--{name}-lib-dir={lib}" for name in ("cudadrv", "cudart", "curand")]
    source = work / PYCUDA.replace("==", "-")
    steps: list[tuple[Path, Command]] = [
        (work, ["tar", "xf", f"{source}.tar.gz"]),
        (work, ["gcc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", lib / "libcuda.so", lib / "empty.c"]),
        (source, [python_in(VENV), "configure.py", f"--cuda-root={cuda}", *folders]),
    ]
    for folder, command in steps:
        if call(command, cwd=folder) is not None:
            raise SetupError(f"PyCUDA could not be prepared ({command[0]} failed); the log is {LOG}")
    # $ORIGIN, for the loader, is the folder of the extension: site-packages/pycuda
    flags = "-s -Wl,--no-as-needed -Wl,-rpath,$ORIGIN/../nvidia/cu13/lib"
    build = {"LDFLAGS": flags, "CFLAGS": "-g0", "CXXFLAGS": "-g0"}
    pip(VENV, "install", "--no-build-isolation", "--no-cache-dir", source, env=build)


def setup_again() -> None:
    """Install whatever is missing or out of date, after a fresh look at driver and GPU."""
    ensure(force=True)


def setup(what: str = "") -> int:
    """`./run setup [pycuda|tensorflow]`."""
    {"": setup_again, "pycuda": setup_pycuda, "tensorflow": setup_tensorflow}[what]()
    return 0


def start(argv: list[str]) -> int:
    """Check the command line, prepare what its command needs, and run it there."""
    from common.__main__ import parse

    command = parse(argv)
    if prepared := os.environ.get("RUN_PYTHON"):
        if command.installs:
            raise UsageError(f"RUN_PYTHON={prepared} is a prepared interpreter: nothing is installed into it")
        return command.run()
    try:
        if command.installs:
            return command.run()
        if not command.bare:
            ensure()
    except OSError as error:
        raise SetupError(f"cannot set up .venv: {error.strerror}: {error.filename or ROOT}") from error
    if command.bare:
        return command.run()
    os.environ["PATH"] = f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"  # ninja, jupyter
    if Path(sys.prefix) == VENV:
        return command.run()
    sys.stdout.flush()
    python = str(python_in(VENV))
    os.execv(python, [python, "-P", "-m", "common", *argv])  # -P: the current folder may hold another `common`


if __name__ == "__main__":
    sys.exit(exit_code(start, sys.argv[1:]))
