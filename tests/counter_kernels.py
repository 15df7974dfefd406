"""The kernels on which the simulator's counters and a GPU's are compared: `./run counters` (common/counters.py).

A case is a launch that is the same on both: a kernel of a section, a grid, a block and arguments (to add one is to add
a line to CASES), or a case of the simulator's corpus at its largest size. Left out are kernels whose threads wait for
each other in a loop or race for a place (locks, grid.sync, look-back, a counting sort by atomics): what they count
depends on time. And wmma, whose fragments have a layout of the hardware's own.

`python -m tests.counter_kernels` launches them all on the GPU; ncu watches that.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy import float32 as f32
from numpy import int32 as i32
from numpy import int64 as i64
from numpy import uint32 as u32
from numpy import uint64 as u64

from common.__main__ import load_module
from common.sections import find
from common.simt.counters import Counts, counting
from tests.simt_cases import CASES as CORPUS
from tests.simt_cases.harness import Runner


def random(*shape: int) -> np.ndarray:
    """Normally distributed float32, the same in every run."""
    return np.random.default_rng(154).standard_normal(shape, dtype=f32)


def below(bound: int, *shape: int, dtype: Any = i32) -> np.ndarray:
    """Random integers from 0 to bound - 1, the same in every run."""
    return np.random.default_rng(143).integers(0, bound, shape, dtype=dtype)


class Case(NamedTuple):
    """A launch of a section's kernel. Arrays among the arguments become device memory; `shared`: bytes of dynamic
    shared memory; `note` tells the launches of one kernel apart."""

    section: str
    kernel: str
    grid: int | tuple[int, ...]
    block: int | tuple[int, ...]
    arguments: tuple[Any, ...]
    shared: int = 0
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.section} {self.kernel}{self.note and f', {self.note}'}"

    def launch(self, gpu: Runner) -> None:
        gpu.module = gpu.compile(*program(self.section))
        on_device = [gpu.to_device(a) if isinstance(a, np.ndarray) else a for a in self.arguments]
        gpu.launch(self.kernel, self.grid, self.block, *on_device, shmem=self.shared)


@functools.cache
def program(section: str) -> tuple[str, tuple[str, ...]]:
    """The source of a section's kernels, and which of them are launched here: they are compiled together."""
    kernels = {case.kernel: None for case in CASES if case.section == section}
    return load_module(find(section)).KERNEL, tuple(kernels)


N = 10_007  # elements: neither a multiple of 32 nor of the 4 of a float4
WIDTH, HEIGHT, DEPTH, PITCH = 150, 77, 13, 152
X, Y, WORDS = random(N), random(N), below(1 << 30, N, dtype=u32)
QUADS = random(4 * N)
IMAGE, VOLUME = random(HEIGHT, PITCH), random(DEPTH, HEIGHT, PITCH)
RGB, GRAY = below(256, 3 * WIDTH * HEIGHT, dtype=np.uint8), below(256, WIDTH * HEIGHT, dtype=np.uint8)
VALUES, COUNTS, BINS = below(260, N), np.zeros(256, u32), np.zeros((256, 24), u32)  # 4 of the values are no bin
SIDE = 128
SQUARE, TURNED = random(SIDE, SIDE), np.zeros((SIDE, SIDE), f32)
LIST = np.stack([below(9, N).astype(f32).view(i32), np.roll(np.arange(N, dtype=i32), -1)], axis=1)  # (value, next)
RAGGED, KEYS = random(HEIGHT, WIDTH), below(1000, N, dtype=u32)
SIZE = i32(WIDTH), i32(HEIGHT)


def pattern(kernel: str, grid: int | tuple[int, ...], block: int | tuple[int, ...], k: int = 0, note: str = "") -> Case:
    """A pattern of 1.5.4 on SIDE x SIDE floats."""
    return Case("1.5.4", kernel, grid, block, (SQUARE, TURNED, i32(SIDE * SIDE), i32(k)), note=note)


CASES = (
    Case("1.1.1", "vector_add", 40, 256, (X, Y, np.zeros(N, f32), i64(N))),
    Case("1.1.1", "saxpy", 40, 256, (i64(N), f32(2), X, Y)),
    Case("1.1.1", "saxpy_grid_stride", 8, 256, (i64(N), f32(2), X, Y)),
    Case("1.1.1", "saxpy_float4", 8, 256, (i64(N), f32(2), X, Y)),
    Case("1.1.1", "copy_float4", 8, 256, (i64(N), X, Y)),
    Case("1.1.2", "who_1d", 5, 256, (np.zeros((1200, 5), i32), i32(1200))),
    Case("1.1.2", "who_2d", (5, 10), (32, 8), (np.zeros((HEIGHT, WIDTH, 5), i32), *SIZE)),
    Case("1.1.2", "who_3d", (3, 2, 4), (8, 8, 4), (np.zeros((15, 11, 20, 5), i32), i32(20), i32(11), i32(15))),
    Case("1.1.2", "gray", (5, 10), (32, 8), (RGB, GRAY, *SIZE)),
    Case("1.1.2", "gray", (19, 3), (8, 32), (RGB, GRAY, *SIZE), note="blocks 8 x 32"),
    Case("1.1.2", "gray_by_16", 3, 128, (RGB, GRAY, i64(GRAY.size))),
    Case("1.1.3", "polynomial", 8, 256, (X, Y, i64(N))),
    Case("1.1.4", "advance", 40, 256, (WORDS, i64(N), i32(3))),
    Case("1.2.1", "lengths", 40, 256, (random(N, 3), Y, np.zeros(N, i32), i64(N))),
    Case("1.2.2", "clipped_update", 40, 256, (f32(2), X, Y, f32(-1), f32(1), i64(N))),
    Case("1.2.3", "smooth", 40, 256, (X, Y, i64(N))),
    Case("1.2.4", "cluster", 8, 128, (random(36, 1000), i64(1000), i32(2), f32(0.01))),
    Case("1.2.4", "cluster_rsqrt", 8, 128, (random(36, 1000), i64(1000), i32(2), f32(0.01))),
    Case("1.3.1", "three_x_plus_1", 10, 256, (X, Y, i64(N))),
    Case("1.3.2", "checksum", 8, 256, (WORDS, i64(N), np.zeros(2, u64))),
    Case("1.3.3", "conv_global", (5, 10), (32, 8), (IMAGE, np.zeros_like(IMAGE), *SIZE, random(25))),
    Case("1.3.3", "conv_constant", (5, 10), (32, 8), (IMAGE, np.zeros_like(IMAGE), *SIZE)),
    Case("1.3.3", "conv_tile", (5, 10), (32, 8), (IMAGE, np.zeros_like(IMAGE), *SIZE, i32(32), i32(8)), 4 * 36 * 12),
    Case("1.3.3", "conv_tile", (3, 3), (32, 8), (IMAGE, np.zeros_like(IMAGE), *SIZE, i32(64), i32(32)), 4 * 68 * 36,
         note="tiles 64 x 32"),
    Case("1.3.3", "conv_registers", (2, 3), (32, 4), (IMAGE, np.zeros_like(IMAGE), *SIZE, i32(PITCH))),
    Case("1.3.3", "table_sums", 40, 256, (Y, i64(N), i32(8), i32(1))),
    Case("1.3.4", "advance", 40, 256, (WORDS, i64(N), i32(3))),
    Case("1.4.1", "one_chain", 40, 256, (WORDS, i64(N), np.zeros((40, 6), u32), i32(3))),
    Case("1.4.1", "many_chains", 40, 256, (WORDS, i64(N), np.zeros((40, 6), u32), i32(3))),
    Case("1.4.2", "jacobi_2d", (5, 10), (32, 8), (IMAGE, np.zeros_like(IMAGE), *SIZE)),
    Case("1.4.2", "jacobi_2d", (19, 3), (8, 32), (IMAGE, np.zeros_like(IMAGE), *SIZE), note="blocks 8 x 32"),
    Case("1.4.2", "jacobi_2d_stride", (2, 3), (128, 2), (IMAGE, np.zeros_like(IMAGE), *SIZE)),
    Case("1.4.2", "jacobi_2d_float4<4>", (2, 5), (32, 4), (IMAGE, np.zeros_like(IMAGE), *SIZE, i32(PITCH))),
    Case("1.4.2", "jacobi_3d", (5, 10, 13), (32, 8), (VOLUME, np.zeros_like(VOLUME), *SIZE, i32(DEPTH))),
    Case("1.4.2", "jacobi_3d_float4<2,4>", (2, 10, 4), (32, 4),
         (VOLUME, np.zeros_like(VOLUME), *SIZE, i32(DEPTH), i32(PITCH))),
    Case("1.4.3", "block_scan", 40, 256, (VALUES, np.zeros(N, i32), i64(N))),
    Case("1.4.3", "warp_scan", 40, 256, (VALUES, np.zeros(N, i32), i64(N))),
    Case("1.4.3", "block_count", 40, 256, (VALUES, np.zeros(40, i32), i64(N))),
    Case("1.4.3", "histogram_race", 40, 256, (VALUES, COUNTS, i64(N))),
    Case("1.4.3", "histogram_global", 40, 256, (VALUES, COUNTS, i64(N))),
    Case("1.4.3", "histogram_aggregated", 40, 256, (VALUES, COUNTS, i64(N))),
    Case("1.4.3", "histogram_shared", 8, 256, (VALUES, COUNTS, i64(N))),
    Case("1.4.3", "histogram_vectorized", 8, 256, (VALUES, COUNTS, i64(N))),
    Case("1.4.3", "histogram_private", 24, 32, (VALUES, BINS, i64(N))),
    Case("1.4.3", "sum_rows", 32, 256, (BINS, COUNTS, i32(256), i32(24))),
    Case("1.4.3", "best_atomic", 40, 256, (WORDS, VALUES, np.zeros(256, u64), u32(N))),
    Case("1.4.3", "smooth_step", 8, 256, (VALUES, np.zeros(N, i32), i64(N))),
    Case("1.4.4", "by_lane", 40, 256, (WORDS, np.zeros(N, u32), i64(N), i32(5))),
    Case("1.4.4", "by_warp", 40, 256, (WORDS, np.zeros(N, u32), i64(N), i32(5))),
    Case("1.4.4", "by_select", 40, 256, (WORDS, np.zeros(N, u32), i64(N), i32(5))),
    Case("1.4.4", "by_kind", 40, 256, (WORDS, below(4, N), np.zeros(N, u32), i64(N), i32(5))),
    Case("1.4.4", "series<1>", 40, 256, (X, Y, i64(N), i32(16))),
    Case("1.4.4", "series<8>", 40, 256, (X, Y, i64(N), i32(16))),
    Case("1.4.4", "geometric<1>", 40, 256, (X, Y, i64(N), i32(8))),
    Case("1.4.4", "geometric<8>", 40, 256, (X, Y, i64(N), i32(8))),
    Case("1.4.4", "scale<1>", 4, 256, (X, Y, f32(3), i64(N))),
    Case("1.4.4", "scale<8>", 1, 256, (X, Y, f32(3), i64(N))),
    Case("1.4.4", "tiles_static", 7, 128, (WORDS, np.zeros(N, u32), below(5, 39), i32(39), i32(2))),
    Case("1.4.4", "tiles_queue", 7, 128, (WORDS, np.zeros(N, u32), below(5, 39), i32(39), i32(2), np.zeros(1, i32))),
    Case("1.5.1", "geometric<float, 8>", 8, 256, (X, Y, i64(N))),
    Case("1.5.1", "geometric<__half, 8>", 8, 256, (X.astype("f2"), Y.astype("f2"), i64(N))),
    Case("1.5.1", "field_of_records", 5, 256, (random(1200, 8), Y, i64(1200))),
    Case("1.5.1", "sums_of_lists<64>", 1, 64, (LIST, Y, i64(N))),
    Case("1.5.1", "sum_by_atomics", 40, 256, (X, np.zeros(1, f32), i64(N))),
    Case("1.5.2", "copy", 40, 256, (QUADS, np.zeros_like(QUADS), i64(N))),
    Case("1.5.2", "saxpy", 40, 256, (QUADS, np.zeros_like(QUADS), i64(N), f32(2))),
    Case("1.5.2", "partial_sums<4>", 4, 256, (QUADS, np.zeros(1024, f32), i64(N))),
    Case("1.5.2", "matmul", (4, 4), (32, 32), (IMAGE, IMAGE, np.zeros((100, 100), f32), i32(100))),
    Case("1.5.2", "chase", 1, 1, (np.roll(np.arange(N, dtype=i32), 7), np.zeros(1, i32), i32(64))),
    Case("1.5.3", "blur", (5, 10), (32, 8), (GRAY, np.zeros_like(GRAY), *SIZE)),
    Case("1.5.3", "gradient", (5, 10), (32, 8), (GRAY, np.zeros_like(GRAY), *SIZE)),
    Case("1.5.3", "threshold", (5, 10), (32, 8), (GRAY, np.zeros_like(GRAY), *SIZE)),
    pattern("copy", 64, 256),
    pattern("copy_float4", 16, 256),
    pattern("copy_offset", 64, 256, 1, "1 float later"),
    pattern("copy_strided", 64, 256, 2, "every 2nd"),
    pattern("copy_strided", 64, 256, 8, "every 8th"),
    pattern("copy_strided", 64, 256, 32, "every 32nd"),
    pattern("transpose_naive", (4, 4), (32, 32), SIDE),
    pattern("transpose_tiled<0, 1>", (4, 4), (32, 32), SIDE),
    pattern("transpose_tiled<1, 1>", (4, 4), (32, 32), SIDE),
    pattern("transpose_tiled<1, 4>", (4, 4), (32, 8), SIDE),
    pattern("shared_strided", 64, 256, 2, "2nd word"),
    pattern("shared_strided", 64, 256, 32, "32nd word"),
    pattern("shared_strided", 64, 256, 33, "33rd word"),
    Case("8.1.2", "copy", 40, 256, (X, np.zeros(N, f32), i64(N))),
    Case("8.1.2", "copy_shifted", 40, 256, (X, np.zeros(N, f32), i64(N - 1), i32(1))),
    Case("8.1.2", "copy_strided", (5, 8), 256, (X, np.zeros(N, f32), i64(N // 8), i32(8))),
    Case("8.1.2", "copy_float4", 10, 256, (X, np.zeros(N, f32), i64(N))),
    Case("8.1.2", "move_aos", 4, 256, (X, f32(0.1), i64(1000))),
    Case("8.1.2", "move_aos_float4", 4, 256, (X, f32(0.1), i64(1000))),
    Case("8.1.2", "move_soa", 4, 256, (X, f32(0.1), i64(1000))),
    Case("8.1.2", "move_soa_float4", 1, 256, (X, f32(0.1), i64(1000))),
    Case("8.2.1", "transpose_naive", (4, 4), (32, 8), (SQUARE, TURNED, i32(SIDE), i32(SIDE))),
    Case("8.2.1", "transpose_tiled<ROWS>", (4, 4), (32, 8), (SQUARE, TURNED, i32(SIDE), i32(SIDE))),
    Case("8.2.1", "transpose_tiled<PADDED>", (4, 4), (32, 8), (SQUARE, TURNED, i32(SIDE), i32(SIDE))),
    Case("8.2.1", "transpose_tiled<SWIZZLED>", (4, 4), (32, 8), (SQUARE, TURNED, i32(SIDE), i32(SIDE))),
    Case("8.2.1", "transpose_aligned", 4, (32, 8), (SQUARE, TURNED, i32(SIDE), i32(SIDE))),
    Case("8.2.1", "transpose_aligned", 6, (32, 8), (RAGGED, np.zeros_like(RAGGED), i32(HEIGHT), i32(WIDTH)),
         note="77 x 150"),
    Case("8.2.1", "transpose_float4", 4, (16, 16), (SQUARE, TURNED, i32(SIDE), i32(SIDE))),
    Case("8.2.1", "transpose_async", 2, (32, 8), (SQUARE, TURNED, i32(SIDE), i32(SIDE))),
    Case("8.2.1", "histogram_global", 4, 1024, (KEYS, np.zeros(1000, u32), i64(N), i32(1000))),
    Case("8.2.1", "histogram_shared", 4, 1024, (KEYS, np.zeros(1000, u32), i64(N), i32(1000)), 4000),
    Case("8.2.2", "sums_ldg", 40, 256, (np.zeros(N, f32), i64(N), i32(8), i32(32), random(1024))),
    Case("8.2.2", "polynomial_ldg", 10, 256, (X, np.zeros(N, f32), i64(N), random(1024))),
)  # fmt: skip

# cases of tests/simt_cases
OF_CORPUS = (
    *("matmul_naive", "matmul_tiled", "matmul_register", "transpose_tiled", "transpose_padded"),
    *("spmv_scalar", "spmv_vector", "vector_types", "bytes_shorts_bools", "shared_memory", "pointers", "local_arrays"),
    *("reduce", "block_scan", "softmax", "layer_norm", "half2_axpy", "bf16_axpy"),
    *("histogram", "bitonic_sort", "radix_pass", "blur_constant", "conv2d", "stencil3d", "nbody", "lattice_boltzmann"),
    *("mma_ldmatrix", "cp_async", "warp_shuffles"),
)

MERGED = "ptxas makes one wide load of several narrow ones"
SUNK = "ptxas moves a load behind the condition under which its value is needed"
UNROLLED = "ptxas unrolls the loop further: lanes whose rows have other lengths load apart"
# what the hardware counts otherwise: case -> (why, the counters that differ)
DIFFERENT = {
    "1.4.2 jacobi_2d_float4<4>": (SUNK, "global_load_sectors"),
    "1.4.3 smooth_step": (
        "ptxas makes one load of those in the two branches (if-conversion)",
        "global_load_requests",
        "global_load_sectors",
    ),
    "1.5.2 matmul": (MERGED, "shared_load_wavefronts"),
    "matmul_tiled": (MERGED, "shared_load_wavefronts"),
    "spmv_scalar": (UNROLLED, "global_load_requests", "global_load_sectors"),
    "pointers: generic": (
        "one pointer into global, shared and local memory: how the hardware divides such a load is not known",
        "global_load_requests",
        "global_load_sectors",
        "global_store_sectors",
    ),
    "pointers: walk": (SUNK, "global_load_requests", "global_load_sectors"),
}


def launches() -> dict[str, Callable[[Runner], object]]:
    """Case -> what launches it."""
    corpus = {case.name: case for case in CORPUS}
    return {case.name: case.launch for case in CASES} | {
        name: lambda gpu, case=corpus[name]: case.run(gpu.backend, case.sizes[-1]) for name in OF_CORPUS
    }


def simulated() -> list[tuple[str, Counts]]:
    """(case, what its launch counted) of all launches on the simulator, in their order."""
    import common.simt.api as simulator

    gpu, found = Runner.of(simulator), []
    for name, launch in launches().items():
        with counting() as counted:
            launch(gpu)
            gpu.sync()
        found += [(name, counts) for counts in counted]
    return found


def main() -> int:
    """Launch all of them on the GPU, for ncu."""
    import cuda.core
    from cuda.bindings import driver

    gpu = Runner.of(cuda.core)
    programs: dict[Any, dict[str, Any]] = {program(case.section): {} for case in CASES}
    programs |= {(case.source, case.kernels): case.options for case in CORPUS if case.name in OF_CORPUS}
    with ThreadPoolExecutor() as pool:  # which takes most of the time
        list(pool.map(lambda key: gpu.compile(*key, **programs[key]), programs))
    driver.cuProfilerStart()
    for launch in launches().values():
        launch(gpu)
        gpu.sync()
    driver.cuProfilerStop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
