"""One planted fault in a process of its own: python -m tests.faults NAME [--twin]; --all: the simulator's verdicts.

On a GPU this is what compute-sanitizer watches; it says "ran to its end" when it has. On the simulator it prints the
findings itself, and its exit code is 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from common import gpu
from tests.faults import FAULTS, findings_of, run


def on_the_gpu(name: str, twin: bool) -> None:
    """Run it, let the driver end the context (that is when a leak shows), and leave without Python's clean-up."""
    from cuda.bindings import driver

    try:
        run(FAULTS[name], twin)
        gpu.Device().sync()  # what was freed is free now
        driver.cuDevicePrimaryCtxReset(0)
    except gpu.CUDAError as error:  # what the fault did to the context
        print(error, file=sys.stderr)
    print("ran to its end", flush=True)
    os._exit(0)


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    options.add_argument("name", nargs="?", choices=FAULTS, metavar="NAME", help=", ".join(FAULTS))
    options.add_argument("--twin", action="store_true", help="the mended twin")
    options.add_argument("--all", action="store_true", help="print the simulator's verdict on each, as JSON")
    chosen = options.parse_args()
    if chosen.all:
        from common.sanitize import simulated_verdicts

        print(json.dumps(simulated_verdicts()))
        return 0
    if chosen.name is None:
        options.error("which fault?")
    if not gpu.SIMULATED:
        on_the_gpu(chosen.name, chosen.twin)
    found = findings_of(FAULTS[chosen.name], chosen.twin)
    print(*found or ["nothing found"], sep="\n\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
