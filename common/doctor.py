"""`./run doctor`: what is here, what is missing, what that would unlock, and the command that installs it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from common import environment
from common.cli import FAILED, OK
from common.sections import ROOT

ON_GPU = "./run setup, on a machine with a GPU"
TOOLKIT = "apt install cuda-toolkit-13-0, from NVIDIA's apt repository"
# What a piece is for and what installs it, for those whose absence leaves something out.
PURPOSE = {
    "torch": ("chapters 2, 4 to 7 and 10", "./run setup"),
    "onnxruntime": ("numerics of exported models", "./run setup"),
    "jupyter": ("./run notebook", "./run setup"),
    "jupytext": ("./run notebook", "./run setup"),
    "tensorrt-rtx-cu13": ("building TensorRT engines", "./run setup"),
    "nvidia-cudnn-frontend": ("the cuDNN sections on a GPU", ON_GPU),
    "cupy-cuda13x": ("CuPy beside our kernels on a GPU", ON_GPU),
    "tensorrt-cu13": ("the TensorRT sections on a GPU", ON_GPU),
    "pycuda": ("the PyCUDA half of chapters 1 and 8 on a GPU", "./run setup pycuda"),
    "tensorflow-cpu": ("sections 7.2.1 to 7.2.3, in an environment of its own", "./run setup tensorflow"),
    "nvcc": ("the nvcc sections", "./run setup"),
    "ncu": ("the Nsight Compute sections on a GPU", TOOLKIT),
    "nsys": ("the Nsight Systems sections on a GPU", TOOLKIT),
    "compute-sanitizer": (
        "checking memory accesses on a GPU",
        ".venv/bin/pip install nvidia-cuda-sanitizer-api==13.0.85",
    ),
    "g++": ("./run setup pycuda, C++ extensions", "apt install g++"),
}
TOOLS = ("nvcc", "ncu", "nsys", "compute-sanitizer", "g++")
REQUIRED = ("numpy", "cuda-core", "cuda-bindings", "rich")
ELSEWHERE = ("pycuda", "tensorflow-cpu")  # in no requirements file that .venv is made from


class Row(NamedTuple):
    """One line of the table; `broken` makes doctor fail."""

    what: str
    found: str
    unlocks: str = ""
    install: str = ""
    broken: bool = False


def one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:120]


def probe(what: str, look: Callable[[], Iterable[Row]]) -> list[Row]:
    """The rows that `look` gives. Doctor is for machines on which things are broken: nothing may stop it."""
    try:
        return list(look())
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return [Row(what, f"cannot tell: {one_line(error)}")]


def device() -> Iterable[Row]:
    try:
        from common import gpu

        chosen = gpu.describe_device(gpu.open_device()[0])
    except (Exception, SystemExit) as error:  # SystemExit: CUDA_BOOK_DEVICE asks for what is not here
        return [Row("device", one_line(error), "every section", "./run setup", broken=True)]
    missing = ("times and GPU speed", "a machine with an NVIDIA GPU") if gpu.SIMULATED else ("", "")
    return [Row("device", chosen, *missing)]


def python() -> Iterable[Row]:
    version = ".".join(map(str, sys.version_info[:3]))
    good = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return [Row("Python", f"{version}  {sys.executable}", "", "" if good else "Python 3.11 to 3.13", not good)]


def this_repository() -> Iterable[Row]:
    """`common` from elsewhere, such as another clone's installation, would test and run other code."""
    expected = Path(os.environ.get("CUDA_BOOK_ROOT", ROOT)).resolve()
    inside = expected == ROOT and (ROOT / "run").is_file()
    fix = "" if inside else f"run it as {expected}/run, with no other `common` on PYTHONPATH"
    return [Row("common", str(ROOT / "common"), "", fix, not inside)]


def disk() -> Iterable[Row]:
    return [Row("free disk", f"{environment.free_gb():.1f} GB")]


def gpus() -> Iterable[Row]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield Row("driver", f"- ({error})", "running on a GPU", "apt install nvidia-driver-580 (WSL2: Windows' driver)")
        return
    cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    driver = pynvml.nvmlSystemGetDriverVersion()
    yield Row("driver", f"{driver}, for CUDA up to {cuda // 1000}.{cuda % 1000 // 10}")
    for i in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(i)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        yield Row(
            f"GPU {i}",
            f"{pynvml.nvmlDeviceGetName(handle)}, {memory.total / 2**30:.1f} GiB"
            f" ({memory.free / 2**30:.1f} free), compute capability {major}.{minor}",
        )


def toolkit() -> Iterable[Row]:
    wheels = version("cuda-toolkit")
    installed = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    system = Path(installed).resolve() if Path(installed).exists() else None
    found = [f"wheels {wheels}"] * bool(wheels) + [str(system)] * bool(system)
    missing = ("nvcc and headers", "./run setup") if not found else ("", "")
    yield Row("CUDA toolkit", ", ".join(found) or "-", *missing)


def nvrtc() -> Iterable[Row]:
    try:
        from cuda.bindings import nvrtc as binding

        status, major, minor = binding.nvrtcVersion()
        if int(status) == 0:
            return [Row("NVRTC", f"{major}.{minor}")]
        return [Row("NVRTC", str(status), "every kernel", "./run setup", broken=True)]
    except Exception as error:
        return [Row("NVRTC", one_line(error), "every kernel", "./run setup", broken=True)]


def find_tool(name: str) -> str | None:
    """Where a command line tool is: on PATH, in the CUDA wheels or in an installed toolkit."""
    if path := shutil.which(name):
        return path
    try:
        from cuda import pathfinder

        return pathfinder.find_nvidia_binary_utility(name)
    except Exception:  # not installed, or a tool that it does not know
        return None


def tools() -> Iterable[Row]:
    for name in TOOLS:
        path = find_tool(name)
        if path is None:
            yield Row(name, "-", *PURPOSE[name])
            continue
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
        numbers = re.findall(r"\d+\.\d+[\d.]*", done.stdout)
        yield Row(name, f"{numbers[0] if numbers else 'no answer'}  {path}")


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def pins(name: str) -> dict[str, str]:
    """Package -> version in a requirements file, in its order."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w-]+)(?:\[[\w,-]+\])?==([^\s#]+)", text, flags=re.MULTILINE))


def packages() -> Iterable[Row]:
    chosen = environment.requirements_for(environment.gpu_driver())
    wanted = pins(chosen) | pins("requirements-gpu.txt") | dict.fromkeys(ELSEWHERE, "")
    for name, pinned in wanted.items():
        has = version(name)
        if name == "tensorflow-cpu" and has is None:
            has = version("tensorflow") or (".venv-tensorflow" if environment.TENSORFLOW_VENV.exists() else None)
        if has is None:
            unlocks, install = PURPOSE.get(name, ("", "./run setup"))
            broken = name in REQUIRED
            yield Row(name, "-", "every section" if broken else unlocks, install, broken)
        else:
            same = f"{has.partition('+')[0]}.".startswith(f"{pinned}.") or not pinned
            yield Row(name, has if same else f"{has} (tested with {pinned})")


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table, or plain lines where there is no rich."""
    try:
        from common.report import table
    except ImportError:
        print("\n".join([title, *(" | ".join(row) for row in rows)]))
    else:
        table(title, columns, rows)


def report() -> int:
    """Print what is here and what is missing. Exit code 1 if something that every section needs is broken."""
    looks = (device, python, this_repository, disk, gpus, toolkit, nvrtc, tools, packages)
    rows = [row for look in looks for row in probe(look.__name__, look)]
    show("", ("what", "found"), [(row.what, row.found) for row in rows])
    lacking = [(row.what, row.unlocks, row.install) for row in rows if row.unlocks or row.install]
    if lacking:
        show("Missing", ("what", "would unlock", "install"), lacking)
    broken = [row.what for row in rows if row.broken]
    print(f"BROKEN: {', '.join(broken)}" if broken else "All that every section needs is here.")
    return FAILED if broken else OK
