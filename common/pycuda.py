"""The seam for PyCUDA: the real one on a GPU, stand-ins under the same names on the simulator.

pycuda = load()
# in your own code:
# import pycuda.autoprimaryctx, pycuda.driver, pycuda.gpuarray
# from pycuda.compiler import SourceModule
# from pycuda.elementwise import ElementwiseKernel
"""

from __future__ import annotations

import importlib
import os
import shutil
from types import SimpleNamespace

from common.cli import Unavailable
from common.gpu import SIMULATED

_NAMES = ("driver", "gpuarray", "SourceModule", "ElementwiseKernel")


def load() -> SimpleNamespace:
    """PyCUDA's driver, gpuarray, SourceModule and ElementwiseKernel, in the context that cuda.core and torch use too.

    On a GPU raises Unavailable where PyCUDA is not installed, or a compiler that its SourceModule needs.
    """
    if SIMULATED:
        from common.simt import pycuda as stand_in

        return SimpleNamespace(**{name: getattr(stand_in, name) for name in _NAMES})
    try:
        importlib.import_module("pycuda.autoprimaryctx")  # autoinit would make a context that others do not see
        from pycuda import driver, gpuarray
        from pycuda.compiler import SourceModule
        from pycuda.elementwise import ElementwiseKernel
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        raise Unavailable("PyCUDA" if missing else f"PyCUDA ({error})", "./run setup pycuda") from error
    _find_compilers()
    found = (driver, gpuarray, SourceModule, ElementwiseKernel)
    return SimpleNamespace(**dict(zip(_NAMES, found, strict=True)))


def _find_compilers() -> None:
    """Put nvcc on PATH, where SourceModule looks for it; nvcc looks there for the C++ compiler."""
    if shutil.which("nvcc") is None:
        from cuda import pathfinder

        nvcc = pathfinder.find_nvidia_binary_utility("nvcc")
        if nvcc is None:
            raise Unavailable("PyCUDA: its SourceModule needs nvcc", "./run setup")
        os.environ["PATH"] = os.pathsep.join([os.path.dirname(nvcc), os.environ.get("PATH", "")])
    if shutil.which("g++") is None:
        raise Unavailable("PyCUDA: its SourceModule needs a C++ compiler for nvcc", "apt install g++")
