"""What every script shares on the command line: options, exit codes, one-line errors.

Exit codes: 0 verified, 1 mismatch or fault, 2 wrong usage, 77 something needed is missing, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

OK, FAILED, USAGE, UNAVAILABLE, INTERRUPTED = 0, 1, 2, 77, 130
Main = Callable[..., "int | None"]


class ReaderError(Exception):
    """An error the reader can act on: shown as one line (exit 1), with a traceback only under --debug."""


class UsageError(ReaderError, ValueError):
    """An argument that cannot work, such as a size that is not a multiple of 32 (exit 2)."""


class Unavailable(ReaderError):
    """Something the script needs is not on this machine (exit 77).

    `what` names the missing piece and `fix` is the command that installs it (None where nothing installs it).
    """

    def __init__(self, what: str, fix: str | None = None) -> None:
        self.what, self.fix = what, fix
        super().__init__(f"not run: {what}" + (f" (install: {fix})" if fix else ""))


def not_run(what: str, fix: str | None = None) -> None:
    """Say in one line that a part of a section cannot run here, and go on."""
    print(Unavailable(what, fix))


def positive_size(text: str) -> int:
    """'1000', '64K' or '2M' as an integer (K = 1024, M = 1024²); an argparse error for anything else."""
    digits, factor = text.strip(), 1
    if digits[-1:].upper() in ("K", "M"):
        digits, factor = digits[:-1], 1024 if digits[-1].upper() == "K" else 1024**2
    if not (digits.isascii() and digits.isdigit() and int(digits) > 0):
        raise argparse.ArgumentTypeError(f"expected a positive integer such as 1000, 64K or 2M, got {text!r}")
    return int(digits) * factor


class _Parser(argparse.ArgumentParser):
    sizes: tuple[int | None, int | None] = (None, None)  # --size when it is not given: full, --quick

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: error: {message} (--help lists the options)\n")

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:  # fills in what depends on --quick
        options, rest = super().parse_known_args(*args, **kwargs)
        if getattr(options, "size", 0) is None:
            full, quick = self.sizes
            options.size = quick if options.quick and quick else full
        if getattr(options, "bench", False) is None:
            from common.gpu import SIMULATED

            options.bench = not (SIMULATED or options.quick)
        return options, rest


def parser(
    doc: str | None,
    *,
    size: int | None = None,
    quick_size: int | None = None,
    plot: bool = False,
    bench: bool = True,
) -> argparse.ArgumentParser:
    """A parser with the options of every section; a script adds its own to it.

    --size (where `size`, the default, is given; under --quick the default is `quick_size`), --quick,
    --plot (where asked for), --bench/--no-bench and --debug. The parsed `bench` is a bool: as the reader
    said, else True on a GPU without --quick. The name --profile is kept for the chapter on Nsight.
    """
    number = re.match(r"[\d.]+", doc or "")  # under profile and sanitize the program has another name
    result = _Parser(
        prog=f"./run {number[0]}" if number else None,
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    result.sizes = (size, quick_size)
    if size is not None:
        text = f"problem size; suffixes K and M (default {size}" + (
            f", {quick_size} with --quick)" if quick_size else ")"
        )
        result.add_argument("--size", type=positive_size, metavar="N", help=text)
    result.add_argument("--quick", action="store_true", help="a small, fast run")
    if plot:
        on = in_ipython()  # a notebook passes no options, and is where people look at plots
        result.add_argument("--plot", action=argparse.BooleanOptionalAction, default=on, help="draw a plot into out/")
    if bench:
        action = argparse.BooleanOptionalAction
        result.add_argument("--bench", action=action, help="measure as well (default: on a GPU, not --quick)")
    result.add_argument("--debug", action="store_true", help="show tracebacks")
    return result


def header(title: str | None, device: Any) -> None:
    """Print the section's title (the first line of `title`: pass `__doc__`), the device and why."""
    from common.gpu import describe_device

    print((title or "").strip().partition("\n")[0])
    print(describe_device(device), flush=True)


def check_fits(nbytes: int) -> None:
    """Raise UsageError unless the current device has `nbytes` of free memory, which the chosen --size needs."""
    from common.gpu import free_memory

    if nbytes > (free := free_memory()):
        raise UsageError(f"--size is too large: it needs {nbytes:,} bytes on the device, {free:,} are free")


def in_ipython() -> bool:
    """True inside IPython or a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def _explain(error: Exception) -> tuple[int, str]:
    """Exit code and text of an error that the reader can act on; no text for a bug: it needs a traceback."""
    if isinstance(error, Unavailable):
        return UNAVAILABLE, str(error)
    if isinstance(error, ReaderError):
        return USAGE if isinstance(error, UsageError) else FAILED, f"error: {error}"
    if isinstance(error, ModuleNotFoundError) and not (error.name or "common").startswith("common"):
        return UNAVAILABLE, str(Unavailable(f"the package {error.name}", "./run setup"))
    if isinstance(error, OSError) and error.strerror:  # a full disk, a folder that may not be written
        return FAILED, f"error: {error.strerror}" + (f": {error.filename}" if error.filename else "")
    gpu = sys.modules.get("common.gpu")  # without it there is no CUDA error either
    if gpu is not None and isinstance(error, gpu.CUDAError):  # which a simulator fault is too
        log = type(error).__name__ == "NVRTCError"  # the compiler's messages keep their lines
        text = str(error) if log else " ".join(str(error).split())
        return FAILED, f"error: {type(error).__name__}: {text}"
    return FAILED, ""


def exit_code(main: Main, argv: Sequence[str] | None = None) -> int:
    """Run `main(argv)`, print its errors as the reader should see them, and return the exit code."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows '?' for it
    try:
        code = int(main(argv) or OK)
        sys.stdout.flush()
        return code
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or OK
        print(stop.code, file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output (head, less) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        code, text = _explain(error)
        if not text or "--debug" in (sys.argv[1:] if argv is None else argv):
            traceback.print_exc()
        if text:
            print(text, file=sys.stdout if code == UNAVAILABLE else sys.stderr)
        return code


def run_main(main: Main) -> None:
    """Last line of every script: `if __name__ == "__main__": run_main(main)`.

    As a script: runs `main()` and exits with its code. In IPython or a notebook: runs `main([])`, prints
    what is missing without failing, and raises only when the section failed.
    """
    if not in_ipython():
        sys.exit(exit_code(main))
    try:
        code = main([])
    except Unavailable as missing:
        print(missing)
        return
    if code not in (None, OK, UNAVAILABLE):
        raise RuntimeError(f"the section failed: exit code {code}")
