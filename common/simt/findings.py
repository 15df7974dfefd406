"""What the checks find, in one form for all of them, and who collects it.

    with watching() as found:
        launch(stream, config, kernel, ...)
    for finding in found: print(finding)

Inside the `with` generated code calls the functions of watched.py. A finding says what, then where: kernel, block,
thread and source line, for a race those of both threads. Each distinct one is kept once; a kernel that commits a fault
ends there, all others go on.
"""

import contextlib
import gc
import linecache
import re
import sys
import sysconfig
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from common.simt.errors import Deadlock, IllegalAddress, KernelFault, MisalignedAddress, UseAfterFree

if TYPE_CHECKING:
    from common.simt.memory import Allocation
    from common.simt.scheduler import Launch

NOT_THE_PROGRAM = (str(Path(__file__).resolve().parents[1]), sysconfig.get_path("stdlib"))  # `common`, libraries
# kind of a finding -> what was looked for; where a race may be is told apart by the kind
KINDS = {
    "out of bounds": "access outside of what is allocated",
    "misaligned": "misaligned access",
    "use after free": "access to freed memory",
    "uninitialized": "read of memory that nothing wrote",
    "shared race": "race in shared memory",
    "global race": "race in global memory",
    "barrier": "barrier that some threads miss",
    "leak": "leak",
    "invalid free": "invalid free",
}
OF_FAULT = {UseAfterFree: "use after free", IllegalAddress: "out of bounds", MisalignedAddress: "misaligned"}
OF_FAULT |= {Deadlock: "barrier"}


@dataclass(frozen=True)
class Finding:
    """One fault: its kind (KINDS, or "fault" for a trap), what happened, and where: a line for each thread."""

    kind: str
    what: str
    places: tuple[str, ...] = ()
    kernel: str = ""

    def __str__(self) -> str:
        return "\n  ".join([self.what, *self.places])


class Findings(list[Finding]):
    """What was found, in its order, and what was looked at."""

    def __init__(self, began: int = 0) -> None:
        super().__init__()
        self.began = began  # the serial number of the last allocation before
        self.launches = 0
        self.kernels: set[str] = set()
        # kernels whose threads signal each other through a memory: no races are sought there
        self.synchronising: dict[str, set[str]] = {"shared race": set(), "global race": set()}
        self._seen: set[Hashable] = set()

    def report(self, key: Hashable, make: Callable[[], Finding]) -> None:
        """Add what `make` returns, unless something with this key is there already."""
        if key not in self._seen:
            self._seen.add(key)
            self.append(make())

    def fault(self, error: KernelFault, kernel: str) -> None:
        """Add the fault that ended a kernel."""
        kind = next((OF_FAULT[c] for c in OF_FAULT if isinstance(error, c)), "fault")
        self.append(Finding(kind, str(error), kernel=kernel))

    def leaks(self) -> None:
        """Add the allocations made since the watching began that are still there. For inside the `with`."""
        from common.simt import api  # which imports this file

        gc.collect()
        arena = api.arena()
        arena.free_dropped()
        for allocation in arena.made_since(self.began):
            self.append(Finding("leak", f"leak: nothing freed {label(allocation)}"))


# ---- who watches
_listeners: list[Findings] = []


@contextlib.contextmanager
def watching() -> Iterator[Findings]:
    """Watch the launches, copies and allocations inside the `with`; a nested one keeps its findings for itself."""
    from common.simt import api

    arena = api.arena()
    found = Findings(arena.serial)
    with arena.watched():
        _listeners.append(found)
        try:
            yield found
        finally:
            _listeners.remove(found)


def listener() -> Findings | None:
    """Those of the innermost `watching()`; None where nobody watches."""
    return _listeners[-1] if _listeners else None


# ---- names
def host_line() -> str:
    """The line of the program that led here: 's1_1_2_threads.py, line 12: x = to_device(...)'."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(NOT_THE_PROGRAM):
        frame = frame.f_back
    path, line = frame.f_code.co_filename, frame.f_lineno
    return f"{Path(path).name}, line {line}: {linecache.getline(path, line).strip()}".removesuffix(": ")


def label(allocation: "Allocation", launch: "Launch | None" = None) -> str:
    """'x' (device buffer 3, 400 bytes at 0x100000, allocated by s.py, line 3: x = ...), x: the kernel's parameter."""
    parameter = "" if launch is None else _parameter(allocation, launch)
    size = f"{allocation.size} bytes at {allocation.start:#x}"
    if allocation.line:
        size += f", allocated by {allocation.line}"
    return f"'{parameter}' ({allocation.name}, {size})" if parameter else f"'{allocation.name}' ({size})"


def _parameter(allocation: "Allocation", launch: "Launch") -> str:
    """The parameter of a launch that points into an allocation, by its name in the source; '' if none does."""
    kernel = launch.program.kernel
    names = parameter_names(launch.source, kernel.name, len(kernel.function.params))
    for name, start, size in zip(names, launch.program.parameter_offsets, kernel.function.params, strict=False):
        value = int.from_bytes(launch.params[start : start + 8].tobytes(), "little")
        if size.size == 8 and allocation.start <= value < allocation.end:
            return name
    return ""


def parameter_names(source: str, kernel: str, count: int) -> list[str]:
    """The names of a kernel's parameters in CUDA C++; [] where they are not found, or not as many."""
    name = re.escape(re.split(r"[<(]", kernel)[0].split("::")[-1])
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.DOTALL)
    found = re.search(rf"__global__[^;{{}}]*?\b{name}\s*\(([^)]*)\)", text)
    names = re.findall(r"(\w+)\s*(?:,|$)", found[1].strip()) if found else []
    return names if len(names) == count else []


def global_name(launch: "Launch", address: int) -> str:
    """byte 8 of 'x' (...): what an address of the device's memory belongs to."""
    allocation = launch.arena.find(address, address + 1)
    assert allocation is not None
    return f"byte {address - allocation.start} of {label(allocation, launch)}"


def shared_name(launch: "Launch", offset: int) -> str:
    """byte 8 of 's': the shared variable that holds an offset of the block's shared memory."""
    program = launch.program
    variables = {a: n for n, a in program.symbols.items() if program.spaces.get(n) == "shared" and a <= offset}
    if not variables:
        return f"byte {offset} of the block's shared memory"
    start = max(variables)
    return f"byte {offset - start} of '{_plain(variables[start])}'"


def _plain(mangled: str) -> str:
    """The name of a variable inside a function: the last length-prefixed part of _ZZ6kernelPfE4tile."""
    for match in re.finditer(r"(?=E(\d+)([A-Za-z_]\w*)$)", mangled):
        if int(match[1]) == len(match[2]):
            return match[2]
    return mangled
