"""The front: CUDA C++ -> PTX by the real NVRTC, which needs no driver and no GPU. Results are kept in out/cache."""

import contextlib
import hashlib
import json
import os
import re
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from cuda.bindings import nvrtc
from cuda.core import ProgramOptions

from common.simt.errors import SimulatorError

ARCHITECTURE = "compute_90"  # of the PTX that is run
MACHINE = "sm_90"  # of the machine code whose registers count


def cache_folder() -> Path:
    return Path(os.environ.get("CUDA_BOOK_CACHE") or Path(__file__).resolve().parents[2] / "out" / "cache")


def compile_ptx(source: str, options: ProgramOptions, names: tuple[str, ...]) -> tuple[str, dict[str, str], str]:
    """Compile CUDA C++.

    Returns the PTX, a dict from each name expression to its mangled name, and the compiler's log.
    Raises SimulatorError with the log when the source does not compile.
    """
    debug = (b"--device-debug", b"-G", b"--generate-line-info", b"-lineinfo")
    flags = [f for f in flags_of(options) if f not in debug]
    flags = [f for f in flags if not f.startswith(b"--ptxas-options")]
    return _compile(source, [*flags, f"-arch={ARCHITECTURE}".encode(), b"-lineinfo"], names)


def ptxas_log(source: str, options: ProgramOptions, names: tuple[str, ...]) -> str:
    """What ptxas -v says of each kernel when the same source becomes machine code for `MACHINE`."""
    return _compile(source, [*flags_of(options), f"-arch={MACHINE}".encode(), b"--ptxas-options=-v"], names)[2]


def flags_of(options: ProgramOptions) -> list[bytes]:
    """NVRTC's flags for these options, but for the architecture."""
    return [f for f in options.as_bytes("nvrtc") if not f.startswith((b"-arch", b"--gpu-architecture"))]


def _compile(source: str, flags: list[bytes], names: tuple[str, ...]) -> tuple[str, dict[str, str], str]:
    """PTX, mangled names and log, from the cache where they are there."""
    key = json.dumps([source, [f.decode() for f in flags], names, _check(nvrtc.nvrtcVersion())])
    own_headers = _reads_own_headers(source, flags)
    path = cache_folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        kept = {} if own_headers else json.loads(path.read_text())
        if kept["key"] == key and isinstance(kept["ptx"], str) and isinstance(kept["names"], dict):
            return kept["ptx"], kept["names"], kept["log"]
    ptx, mangled, log = _run_nvrtc(source, flags, names)
    if not own_headers:
        _keep(path, {"key": key, "ptx": ptx, "names": mangled, "log": log})
    return ptx, mangled, log


def _reads_own_headers(source: str, flags: list[bytes]) -> bool:
    """Whether the text may include a header that is not the toolkit's: it may change, and the cache would not know."""
    if re.search(r'#\s*include\s*"', source) or any(flag.startswith(b"--pre-include") for flag in flags):
        return True
    folders = [Path(flag.split(b"=", 1)[1].decode()) for flag in flags if flag.startswith(b"--include-path=")]
    own = [f for f in folders if f.name != "cccl" and not (f / "cuda_fp16.h").exists()]
    return any((folder / name).exists() for name in re.findall(r"#\s*include\s*<([^>]+)>", source) for folder in own)


def _run_nvrtc(source: str, flags: list[bytes], names: tuple[str, ...]) -> tuple[str, dict[str, str], str]:
    program = _check(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    try:
        for name in names:
            _check(nvrtc.nvrtcAddNameExpression(program, name.encode()))
        if _check(nvrtc.nvrtcVersion()) >= (12, 9):
            # where there is a driver, NVRTC keeps what it compiled: without a log, and without regard to fast math
            flags = [*flags, b"--no-cache"]
        with _without_interrupts():
            (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        log = _room(_check(nvrtc.nvrtcGetProgramLogSize(program)))
        _check(nvrtc.nvrtcGetProgramLog(program, log))
        text = log.rstrip(b"\0").decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise SimulatorError(f"{status.name}:\n{text}")
        mangled = {n: _check(nvrtc.nvrtcGetLoweredName(program, n.encode())).decode() for n in names}
        ptx = _room(_check(nvrtc.nvrtcGetPTXSize(program)))
        _check(nvrtc.nvrtcGetPTX(program, ptx))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return ptx.rstrip(b"\0").decode(), mangled, text


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C does nothing meanwhile: NVRTC's own handler would end the process, silently, with exit code 4."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _room(size: int) -> bytes:
    """Bytes for NVRTC to write into. Never of length 1: Python shares those, and an empty log has one byte."""
    return bytes(size + 1)


def _keep(path: Path, content: dict) -> None:
    """Write the cache entry in one step; a read-only or full disk only costs the time to compile again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w") as file:
                json.dump(content, file)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise


def _check(result):
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise SimulatorError(f"NVRTC: {status.name}")
    return values[0] if len(values) == 1 else tuple(values)
