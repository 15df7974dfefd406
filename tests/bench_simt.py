"""How fast the simulator is: wall-clock seconds of single launches on this machine's processor, no GPU's time.

    python tests/bench_simt.py

Median of 5 launches after one that compiles and translates; "counting": how many times as long a launch takes whose
counters are wanted (./run profile), by the fastest of 5 each. Exit code 1 if a row misses a limit.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import common.simt.api as simulator
from common.simt.counters import counting
from tests.simt_cases import elementwise, linear, reductions, sorting, stencils
from tests.simt_cases.harness import Runner, blocks_for

MILLION = 1 << 20
REPEATS = 5


@dataclass(frozen=True)
class Row:
    name: str
    prepare: Callable[[Runner], Callable[[], None]]
    limit: float | None  # seconds; None: shown only
    counting: float | None = None  # how many times as long a launch may take whose counters are wanted


def random_floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def saxpy(gpu: Runner) -> Callable[[], None]:
    gpu.module = gpu.compile(elementwise.SAXPY, ("saxpy",))
    kernel, x, y = gpu.kernel("saxpy"), gpu.to_device(random_floats(MILLION)), gpu.zeros(MILLION, np.float32)
    return lambda: gpu.launch(kernel, MILLION // 256, 256, np.float32(2), x, y, np.int32(MILLION))


def matmul(kernel_name: str, n: int, tile: int, block: tuple[int, ...]) -> Callable[[Runner], Callable[[], None]]:
    def prepare(gpu: Runner) -> Callable[[], None]:
        gpu.module = gpu.compile(linear.MATMUL, (kernel_name,))
        kernel, size = gpu.kernel(kernel_name), np.int32(n)
        a, b, c = gpu.to_device(random_floats(n, n)), gpu.to_device(random_floats(n, n)), gpu.empty((n, n), np.float32)
        grid = blocks_for(n, tile), blocks_for(n, tile)
        return lambda: gpu.launch(kernel, grid, block, a, b, c, size, size, size)

    return prepare


def reduction(gpu: Runner) -> Callable[[], None]:
    gpu.module = gpu.compile(reductions.REDUCE, ("reduce_shuffle",))
    kernel, x, total = gpu.kernel("reduce_shuffle"), gpu.to_device(random_floats(MILLION)), gpu.zeros(1, np.float32)
    return lambda: gpu.launch(kernel, 64, 256, x, total, np.int32(MILLION))


def lookback(gpu: Runner) -> Callable[[], None]:
    gpu.module = gpu.compile(reductions.SCAN, ("scan_lookback",))
    kernel, n = gpu.kernel("scan_lookback"), 1 << 18
    x, out = gpu.full(n, 1, np.int32), gpu.empty(n, np.int32)
    tiles = n // 512
    state, ticket = gpu.zeros(tiles, np.uint64), gpu.zeros(1, np.uint32)
    clear_state, clear_ticket = np.zeros(tiles, np.uint64), np.zeros(1, np.uint32)

    def launch() -> None:
        gpu.copy_in(state.buffer, clear_state)
        gpu.copy_in(ticket.buffer, clear_ticket)
        gpu.launch(kernel, tiles, 512, x, out, state, ticket, np.int32(n))

    return launch


def blur(gpu: Runner) -> Callable[[], None]:
    gpu.module = gpu.compile(stencils.BLUR, ("blur",))
    gpu.copy_in(gpu.get_global("weights"), stencils.GAUSS)
    image = np.random.default_rng(0).integers(0, 256, (512, 512)).astype(np.uint8)
    kernel, source, out = gpu.kernel("blur"), gpu.to_device(image), gpu.empty((512, 512), np.uint8)
    return lambda: gpu.launch(kernel, (32, 32), (16, 16), source, out, np.int32(512), np.int32(512))


def histogram(gpu: Runner) -> Callable[[], None]:
    gpu.module = gpu.compile(sorting.HISTOGRAM, ("histogram",))
    data = np.random.default_rng(0).integers(0, 256, MILLION).astype(np.uint8)
    kernel, source, bins = gpu.kernel("histogram"), gpu.to_device(data), gpu.zeros(256, np.uint32)
    return lambda: gpu.launch(kernel, 64, 256, source, bins, np.int32(MILLION))


def bitonic(gpu: Runner) -> Callable[[], None]:
    gpu.module = gpu.compile(sorting.BITONIC, ("bitonic_shared", "bitonic_global"))
    keys = np.random.default_rng(0).permutation(1 << 16).astype(np.float32)

    def launch() -> None:
        sorting.launch_bitonic(gpu, keys.size, keys)

    return launch


ROWS = [
    Row("saxpy, 1M elements", saxpy, 0.1),
    Row("tiled matmul, 256³", matmul("matmul_tiled<16>", 256, 16, (16, 16)), 0.5, counting=4),
    Row("shuffle reduction, 1M elements", reduction, 0.05),
    Row("look-back scan, 256k elements", lookback, 0.3),
    Row("blur 5 x 5, 512² pixels", blur, None),
    Row("naive matmul, 256³", matmul("matmul_naive", 256, 16, (16, 16)), None),
    Row("register-blocked matmul, 256³", matmul("matmul_register", 256, 64, (256,)), None),
    Row("histogram, 1M bytes", histogram, None),
    Row("bitonic sort, 64k keys", bitonic, None),
]


def seconds(launch: Callable[[], None], gpu: Runner) -> float:
    began = time.perf_counter()
    launch()
    gpu.sync()
    return time.perf_counter() - began


def main() -> int:
    gpu, missed = Runner.of(simulator), []
    print(f"the simulator on {os.cpu_count()} CPU cores: seconds a launch takes here, median of {REPEATS}")
    print(f"{'kernel':<34}{'first':>9}{'median':>9}{'limit':>9}{'counting':>10}")
    for row in ROWS:
        began = time.perf_counter()
        launch = row.prepare(gpu)
        seconds(launch, gpu)
        first = time.perf_counter() - began
        times = [seconds(launch, gpu) for _ in range(REPEATS)]
        with counting():
            seconds(launch, gpu)  # which makes the functions that count
            ratio = min(seconds(launch, gpu) for _ in range(REPEATS)) / min(times)
        median = statistics.median(times)
        late = median >= (row.limit or math.inf) or ratio > (row.counting or math.inf)
        missed += [row.name] * late
        limit = f"{row.limit:9.3f}" if row.limit else f"{'-':>9}"
        print(f"{row.name:<34}{first:9.3f}{median:9.3f}{limit}{ratio:9.1f}×{'  MISSED' if late else ''}", flush=True)
    if missed:
        print("too slow:", ", ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
