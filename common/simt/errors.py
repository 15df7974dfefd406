"""What can go wrong in the simulator, under one base class.

All of them are `cuda.core` CUDAErrors, so that `except CUDAError` catches a fault on a GPU and here alike.
The names and texts in capitals are the CUDA driver's.
"""

from cuda.core._utils.cuda_utils import CUDAError


class SimulatorError(CUDAError):
    """Base of everything the simulator raises."""


class SimulatorUnsupported(SimulatorError):
    """The simulator does not do this (an opcode, a texture, time, ...); the message names it."""


class UnknownForm(SimulatorUnsupported):
    """A form of an instruction without a translation; the writer catches it to add the instruction and its line."""


class LaunchError(SimulatorError):
    """The launch configuration or the kernel's arguments cannot be right. Raised by launch() itself."""


class InvalidFree(SimulatorError):
    """Something was freed that is not allocated: freed twice, or never allocated at that address."""


class KernelFault(SimulatorError):
    """A kernel broke a rule while it ran. Surfaces at the next synchronisation and sticks, as on a GPU."""

    code = "CUDA_ERROR_LAUNCH_FAILED"


class IllegalAddress(KernelFault):
    """A load, store or atomic touched bytes outside every live allocation of its memory space."""

    code = "CUDA_ERROR_ILLEGAL_ADDRESS"


class UseAfterFree(IllegalAddress):
    """An access to what was allocated once and is freed."""


class MisalignedAddress(KernelFault):
    """An access of N bytes at an address that N does not divide."""

    code = "CUDA_ERROR_MISALIGNED_ADDRESS"


class Deadlock(KernelFault):
    """Threads wait for something that cannot come: a barrier others never reach, a flag nobody sets."""

    code = "CUDA_ERROR_LAUNCH_TIMEOUT"


class Trap(KernelFault):
    """The kernel executed a trap (a failed device assertion, grid.sync() without a cooperative launch)."""

    code = "CUDA_ERROR_LAUNCH_FAILED"
