"""Planted faults: small kernels with one fault each, and mended twins that differ in a few characters.

The simulator has to find every fault, in the line that its source marks with `// fault`, and nothing in a twin
(tests/test_faults.py). `./run sanitize faults` runs the same under compute-sanitizer.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from common import gpu
from common.gpu import CUDAError, LaunchConfig, Stream, launch


@dataclass(frozen=True)
class Memory:
    """An argument: device memory of `count` elements, 0, 1, ..., 6, 0, 1, ... (or zeros, or unwritten)."""

    count: int
    dtype: str = "i4"
    fill: str = "ramp"  # "ramp", "zero", or "nothing"
    back: bool = False  # copied to the host at the end

    def make(self, stream: Stream) -> gpu.DeviceArray:
        if self.fill == "nothing":
            return gpu.empty(self.count, self.dtype, stream)
        ramp = np.arange(self.count) % (7 if self.fill == "ramp" else 1)
        return gpu.to_device(ramp.astype(self.dtype), stream)


@dataclass(frozen=True)
class Fault:
    """One fault and its twin.

    `mend` is a text of the source and what stands there in the twin; or `mended_args` are the twin's arguments. All
    kernels of the source are launched in their order, with the same geometry and arguments. Where the fault is the
    host's, `host` does everything: it gets a stream, the kernels' source, and whether to do it right.
    """

    name: str
    kind: str  # of common.simt.findings.KINDS
    source: str = ""
    mend: tuple[str, str] = ("", "")
    args: tuple[Any, ...] = ()
    mended_args: tuple[Any, ...] = ()
    grid: int | tuple[int, ...] = 1
    block: int | tuple[int, ...] = 64
    shared: int = 0
    buffer: str = ""  # the parameter or shared variable that the report must name
    mark: str = "// fault"  # is in the text of the line that the report must quote
    host: Callable[[Stream, str, bool], None] | None = None
    hangs: bool = False  # on a GPU

    def text(self, twin: bool) -> str:
        """The source of the fault, or of the twin."""
        old, new = self.mend
        if old:
            assert self.source.count(old) == 1, f"{self.name}: {old!r} occurs {self.source.count(old)} times"
        return self.source.replace(old, new) if twin and old else self.source

    def describes(self, finding: Any) -> bool:
        """Whether a finding of the simulator is this fault: of its kind, in its line, about its buffer."""
        text = str(finding)
        return finding.kind == self.kind and self.mark in text and (not self.buffer or f"'{self.buffer}'" in text)


def collect() -> dict[str, Fault]:
    """All planted faults by name."""
    modules = ("out_of_bounds", "unwritten", "shared_races", "global_races", "barriers", "host")
    faults = [fault for name in modules for fault in importlib.import_module(f"tests.faults.{name}").PLANTED]
    assert len({fault.name for fault in faults}) == len(faults)
    return {fault.name: fault for fault in faults}


def run(fault: Fault, twin: bool = False) -> None:
    """Run a fault, or its twin, on the device that there is. Raises what the device raises."""
    _, stream = gpu.open_device()
    source = fault.text(twin)
    if fault.host is not None:
        fault.host(stream, source, twin)
        return
    names = re.findall(r"__global__ void (\w+)\(", source)
    values = fault.mended_args if twin and fault.mended_args else fault.args
    arguments = [value.make(stream) if isinstance(value, Memory) else value for value in values]
    plain = [a.buffer if isinstance(a, gpu.DeviceArray) else np.int32(a) for a in arguments]
    for kernel in gpu.compile_kernels(source, *names):
        launch(stream, LaunchConfig(grid=fault.grid, block=fault.block, shmem_size=fault.shared), kernel, *plain)
    stream.sync()
    for value, array in zip(values, arguments, strict=True):
        if isinstance(value, Memory) and value.back:
            array.to_host(stream)  # the line of what a kernel left out
    for array in arguments:
        if isinstance(array, gpu.DeviceArray):
            array.buffer.close(stream)
    stream.sync()


def findings_of(fault: Fault, twin: bool = False) -> list[Any]:
    """What the simulator finds."""
    from common.simt import api
    from common.simt.findings import watching

    with watching() as found:
        try:
            run(fault, twin)
        except CUDAError:
            api.reset()  # which lets go of what the fault's traceback holds
        found.leaks()
    return list(found)


FAULTS = collect()  # whose files import the classes above
