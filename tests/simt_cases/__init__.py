"""The corpus of kernels that proves the simulator: each file holds the kernels of one theme."""

import importlib
import pkgutil

from .harness import Case

CASES: list[Case] = []
for _module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
    CASES += getattr(importlib.import_module(f"{__name__}.{_module.name}"), "CASES", [])
