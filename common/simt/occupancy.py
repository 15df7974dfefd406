"""How many blocks of a kernel a multiprocessor holds at a time, as the driver says it for compute capability 9.0.

Registers are those of machine code that ptxas makes for sm_90; the rules are those of the toolkit's cuda_occupancy.h.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from common.doctor import find_tool
from common.simt.compiler import MACHINE
from common.simt.errors import SimulatorError, SimulatorUnsupported
from common.simt.group import SMS
from common.simt.module import MAX_THREADS, THREADS_PER_SM, LoadedKernel

WARP = 32
BLOCKS_PER_SM = 32
BARRIERS_PER_SM = 2 * BLOCKS_PER_SM
REGISTERS_PER_SM = 65536
REGISTER_UNIT = 256  # registers are given to a warp in units of this
PARTITIONS = 4  # of a multiprocessor: each has a quarter of its warps and registers
SHARED_PER_SM = 228 << 10
SHARED_RESERVED = 1 << 10  # of each block, by the driver
SHARED_UNIT = 128  # bytes; shared memory is given to a block in units of this


class Resources(NamedTuple):
    """What ptxas says a kernel needs: registers of a thread, barriers of a block."""

    registers: int
    barriers: int


class BlockSize(NamedTuple):
    """The answer of max_potential_block_size()."""

    min_grid_size: int
    max_block_size: int


def resources_in(log: str) -> dict[str, Resources]:
    """What ptxas -v says of each kernel, by its mangled name."""
    entry = r"Compiling entry function '([^']+)'.*?Used (\d+) registers(?:, used (\d+) barriers)?"
    found = re.findall(entry, log, flags=re.DOTALL)
    return {name: Resources(int(registers), int(barriers or 0)) for name, registers, barriers in found}


def log_of_ptx(ptx: str) -> str:
    """What ptxas -v says of PTX that did not come from our compiler. Raises SimulatorUnsupported without ptxas."""
    tool = find_tool("ptxas")
    if tool is None:
        raise SimulatorUnsupported("registers of PTX without its source: there is no ptxas (./run setup)")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "module.ptx")
        path.write_text(ptx)
        command = [tool, "-v", f"-arch={MACHINE}", str(path), "-o", str(path.with_suffix(".cubin"))]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SimulatorError(f"ptxas: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def limits(threads: int, registers: int, shared: int, barriers: int = 1) -> dict[str, int]:
    """How many blocks a multiprocessor can hold by each of its resources.

    `threads` a block, `registers` a thread, `shared` bytes a block (static and dynamic, without what is reserved).
    """
    warps = -(-threads // WARP)
    of_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    of_block = -(-(shared + SHARED_RESERVED) // SHARED_UNIT) * SHARED_UNIT
    return {
        "blocks": BLOCKS_PER_SM,
        "warps": THREADS_PER_SM // WARP // warps if threads <= MAX_THREADS else 0,
        "registers": REGISTERS_PER_SM // PARTITIONS // of_warp * PARTITIONS // warps,
        "shared memory": SHARED_PER_SM // of_block,
        "barriers": BARRIERS_PER_SM // barriers if barriers else BLOCKS_PER_SM,
    }


@dataclass(frozen=True)
class Occupancy:
    """cuda.core's KernelOccupancy, for one kernel. What is not here raises SimulatorUnsupported."""

    kernel: LoadedKernel
    resources: Callable[[], Resources]

    def max_active_blocks_per_multiprocessor(self, block_size: int, dynamic_shared_memory_size: int) -> int:
        """Blocks that are resident at the same time; 0 where a block does not fit at all."""
        if block_size < 1 or dynamic_shared_memory_size < 0:
            raise SimulatorError(f"CUDA_ERROR_INVALID_VALUE: blocks of {block_size} threads")
        if dynamic_shared_memory_size > self.kernel.max_dynamic_shared:
            return 0
        registers, barriers = self.resources()
        shared = self.kernel.static_shared + dynamic_shared_memory_size
        return min(limits(block_size, registers, shared, barriers).values())

    def max_potential_block_size(self, dynamic_shared_memory_needed: int, block_size_limit: int) -> BlockSize:
        """The largest block with which most threads are resident, and the blocks that fill the device with it."""
        if not isinstance(dynamic_shared_memory_needed, int):
            raise SimulatorUnsupported("max_potential_block_size with a function of the block size")
        limit = min(block_size_limit or MAX_THREADS, self.kernel.max_threads, MAX_THREADS)
        sizes = [min(limit, s) for s in range(-(-limit // WARP) * WARP, 0, -WARP)]
        blocks = {s: self.max_active_blocks_per_multiprocessor(s, dynamic_shared_memory_needed) for s in sizes}
        best = max(sizes, key=lambda s: s * blocks[s])  # the first, so the largest, of equals
        return BlockSize(blocks[best] * SMS, best if blocks[best] else 0)

    def available_dynamic_shared_memory_per_block(self, num_blocks_per_multiprocessor: int, block_size: int) -> int:
        """Bytes of dynamic shared memory for each of so many resident blocks. As the driver says it: what it reserves
        for each block is not taken off, so that of several blocks with all of these bytes one may not fit."""
        blocks = num_blocks_per_multiprocessor
        if not 0 < blocks <= self.max_active_blocks_per_multiprocessor(block_size, 0):
            raise SimulatorError(f"CUDA_ERROR_INVALID_VALUE: {blocks} resident blocks of {block_size} threads")
        share = SHARED_PER_SM // blocks // SHARED_UNIT * SHARED_UNIT
        return min(share - self.kernel.static_shared, self.kernel.max_dynamic_shared)

    def __getattr__(self, name: str) -> NoReturn:
        raise SimulatorUnsupported(f"Kernel.occupancy.{name}")
