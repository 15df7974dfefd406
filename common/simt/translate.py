"""Translator: a kernel's basic blocks become Python functions of NumPy expressions, compiled once.

`python -m common.simt.translate file.ptx [kernel]` prints the generated code of the kernels in a PTX file.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from common.simt import atomics, instructions, instructions_memory, instructions_warp, matrix, memory, ops, warp
from common.simt.cfg import Kernel
from common.simt.errors import SimulatorError
from common.simt.writer import SIZE, UNSIGNED, BlockWriter

# importing them fills writer.HANDLERS (instructions.py imports instructions_float.py itself)
INSTRUCTION_FILES = (instructions, instructions_memory, instructions_warp)


class Program:
    """All blocks of a kernel as Python functions block_N(R, g), and the tables they use."""

    def __init__(self, kernel: Kernel, symbols: dict[str, int], spaces: dict[str, str]):
        self.kernel = kernel
        self.symbols = symbols  # variable -> address within its space
        self.spaces = spaces  # variable -> space
        self.parameter_offsets = [symbols[p.name] for p in kernel.function.params]
        modules = {"np": np, "ops": ops, "memory": memory, "warp": warp, "matrix": matrix}
        self.namespace: dict = {**modules, "atomic": atomics.atomic}
        self.namespace |= {t: np.dtype(t) for t in SIZE if t != "?"}
        self.constants: dict[tuple, str] = {}  # (value, dtype) -> name in the namespace
        self.lines: list[tuple[int, int]] = []  # `where` -> (file, line)
        writers = [BlockWriter(self, i, block) for i, block in enumerate(kernel.blocks)]
        self.source = "\n".join(writer.text() for writer in writers)
        self._variants = {(False, False): self._functions(self.namespace)}  # (counting, watching) -> functions
        # registers that some path reads before any write (the compiler knows it never matters), and their dtypes
        self.undefined = [(r, writers[0].home(r)) for r in sorted(kernel.blocks[0].live_in)]

    def _functions(self, namespace: dict) -> list[Callable]:
        exec(compile(self.source, f"<simulated {self.kernel.name}>", "exec"), namespace)
        return [namespace[f"block_{i}"] for i in range(len(self.kernel.blocks))]

    def functions_for(self, counting: bool, watching: bool) -> list[Callable]:
        """The blocks' functions, with their accesses counted, or watched, or both."""
        if (counting, watching) not in self._variants:
            from common.simt import counters, watched  # which import the modules that they stand in for

            namespace = {**self.namespace, **(counters.NAMESPACE if counting else {})}
            self._variants[counting, watching] = self._functions(
                watched.namespace(namespace) if watching else namespace
            )
        return self._variants[counting, watching]

    def constant(self, value: int | float | bool, dtype: str) -> str:
        """The name under which the generated code finds this value as an array of one element."""
        key = (repr(value), dtype)
        if key not in self.constants:
            name = f"c{len(self.constants)}"
            if dtype == "?":
                array = np.array([bool(value)])
            elif dtype[0] == "f":
                array = np.array([value], dtype)
            else:
                bits = 8 * SIZE[dtype]
                array = np.array([int(value) & ((1 << bits) - 1)], UNSIGNED[SIZE[dtype]]).view(dtype)
            array.flags.writeable = False
            self.constants[key] = name
            self.namespace[name] = array
        return self.constants[key]

    def where(self, loc: tuple[int, int]) -> int:
        """A number for a source position, small enough to pass along with every access."""
        if not self.lines or self.lines[-1] != loc:
            self.lines.append(loc)
        return len(self.lines) - 1


def translate(kernel: Kernel, symbols: dict[str, int], spaces: dict[str, str]) -> Program:
    """Translate a kernel. Raises SimulatorUnsupported naming the first instruction that has no translation."""
    return Program(kernel, symbols, spaces)


def main() -> int:
    """Print the Python of the kernels in a PTX file."""
    from common.simt.module import LoadedModule  # which gives the variables addresses; it imports this file

    parser = argparse.ArgumentParser(prog="python -m common.simt.translate", description=main.__doc__)
    parser.add_argument("file", type=Path, help="PTX, e.g. from nvcc -ptx -lineinfo")
    parser.add_argument("kernel", nargs="?", help="its name as in the PTX; every kernel if not given")
    arguments = parser.parse_args()
    try:
        module = LoadedModule(arguments.file.read_text(), "", memory.Arena())
        entries = [f.name for f in module.module.functions.values() if f.is_entry]
        for name in [arguments.kernel] if arguments.kernel else entries:
            print(f"# kernel {name}\n{module.kernel(name).program.source}")
    except (OSError, SimulatorError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
