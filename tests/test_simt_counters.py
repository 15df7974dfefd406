"""The simulator's counters: the hardware's rules on cases worked out by hand, and whole kernels with known counts."""

from __future__ import annotations

import numpy as np
import pytest

import common.simt.api as simulator
from common.simt import access
from common.simt.counters import BYTES, CLASSES, METRICS, Counts, class_of, counting
from tests.simt_cases import linear
from tests.simt_cases.harness import Runner

LANE = np.arange(32)


def one(pattern: np.ndarray) -> np.ndarray:
    return np.asarray(pattern, np.int64).reshape(1, 32)


def only(pattern: np.ndarray, active: np.ndarray) -> np.ndarray:
    """The pattern with some lanes inactive."""
    return one(np.where(active, pattern, access.INACTIVE))


# --- global memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "sectors"),
    [
        (4 * LANE, 4),
        (4 * LANE + 4, 5),
        (16 * LANE, 16),
        (128 * LANE, 32),
        (0 * LANE, 1),
        (LANE, 1),
        (4 * (LANE // 2), 2),
    ],
)
def test_sectors(pattern: np.ndarray, sectors: int) -> None:
    assert access.sectors(one(pattern)) == sectors


def test_inactive_lanes_do_not_exist() -> None:
    assert access.sectors(only(128 * LANE, LANE < 3)) == 3
    assert access.shared_load(only(128 * LANE, LANE < 3), 4) == (3, 2)
    assert access.sectors(only(LANE, LANE < 0)) == 0


def test_atomics_of_one_sector_count_by_the_most_frequent_address() -> None:
    assert access.atomic_sectors(one(0 * LANE)) == 32
    assert access.atomic_sectors(one(4 * LANE)) == 4
    assert access.atomic_sectors(one(4 * (LANE % 8))) == 4  # 8 addresses of one sector, each 4 times
    assert access.atomic_sectors(one(np.where(LANE < 5, 0, 32))) == 32  # 5 in one sector, 27 in another
    several = np.concatenate([one(0 * LANE), one(4 * LANE), only(0 * LANE, LANE < 0)])
    np.testing.assert_array_equal(access.atomic_sectors(several), [32, 4, 0])


# --- shared memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 8, 16, 31, 32, 33])
def test_a_stride_conflicts_as_often_as_it_shares_a_factor_with_32(stride: int) -> None:
    ways = np.gcd(stride, 32)
    assert access.shared_load(one(4 * stride * LANE), 4) == (ways, ways - 1)
    assert access.shared_store(one(4 * stride * LANE), 4) == (ways, ways - 1)


def test_equal_words_do_not_conflict() -> None:
    assert access.shared_load(one(0 * LANE), 4) == (1, 0)
    assert access.shared_store(one(0 * LANE), 4) == (1, 0)
    assert access.shared_load(one(LANE), 1) == (1, 0)
    assert access.shared_load(one(128 * (LANE % 2)), 4) == (2, 1)


def test_wide_accesses_go_in_groups() -> None:
    assert access.shared_load(one(8 * LANE), 8) == (2, 0)  # two half-warps
    assert access.shared_load(one(16 * LANE), 16) == (4, 0)
    assert access.shared_store(one(16 * LANE), 16) == (4, 0)
    assert access.shared_store(one(32 * LANE), 16) == (8, 4)  # every other 16 bytes: each quarter needs two


def test_loads_of_a_neighbours_address_merge_groups() -> None:
    assert access.shared_load(one(8 * (LANE // 2)), 8) == (1, 0)
    assert access.shared_load(one(16 * (LANE // 2)), 16) == (2, 0)
    assert access.shared_store(one(8 * (LANE // 2)), 8) == (2, 0)  # stores never do
    assert access.shared_load(only(16 * LANE, LANE % 2 == 0), 16) == (4, 2)  # a neighbour that is not there counts too


def test_atomics_take_turns() -> None:
    assert access.shared_atomic(one(0 * LANE), "add", False) == (32, 31)
    assert access.shared_atomic(one(0 * LANE), "add", True) == (1, 0)  # adding 1: together
    assert access.shared_atomic(one(4 * LANE), "exch", False) == (1, 0)
    assert access.shared_atomic(one(4 * (LANE // 2)), "cas", False) == (4, 1)
    assert access.shared_float_add(one(4 * LANE)) == (1, 0, 2)
    assert access.shared_float_add(one(0 * LANE)) == (32, 0, 64)
    assert access.shared_float_add(one(128 * (LANE % 2))) == (2 * 31 + 1, 31, 64)  # two words of a bank, then one


def test_matrices() -> None:
    assert access.matrices(one(16 * LANE), 4) == (4, 0)
    assert access.matrices(one(128 * LANE), 4) == (32, 28)
    assert access.matrices(one(128 * LANE), 1) == (8, 7)


def test_collapse_finds_the_different_patterns() -> None:
    rng = np.random.default_rng(0)
    few = [4 * LANE, 8 * LANE, 4 * LANE + 4, np.where(LANE < 7, 64 * LANE, access.INACTIVE)]
    which = rng.integers(0, 4, 500)
    lanes = np.stack([few[k] for k in which])
    moved = np.where(lanes >= 0, lanes + 32 * rng.integers(0, 1000, (500, 1)), access.INACTIVE)
    patterns, times = access.collapse(moved, 32)
    assert len(patterns) == 4 and sorted(times) == sorted(np.bincount(which))
    assert access.sectors(patterns) @ times == access.sectors(lanes).sum()
    patterns, times = access.collapse(moved[which == 1], 32)
    np.testing.assert_array_equal(patterns, [few[1]])
    assert times == [(which == 1).sum()]


# --- whole kernels --------------------------------------------------------------------------------------------


def counts_of(source: str, kernel: str, grid: int, block: int, *arguments: object, shared: int = 0) -> Counts:
    device = simulator.Device()
    stream = device.create_stream()
    code = simulator.Program(source, "c++", simulator.ProgramOptions(std="c++17")).compile("ptx")
    config = simulator.LaunchConfig(grid=grid, block=block, shmem_size=shared)
    with counting() as launches:
        simulator.launch(stream, config, code.get_kernel(kernel), *arguments)
        stream.sync()
    assert [launch.kernel for launch in launches] == [kernel]
    return launches[0]


def buffer(nbytes: int) -> simulator.Buffer:
    stream = simulator.Device().create_stream()
    made = simulator.Device().allocate(nbytes, stream=stream)
    made.fill(0, stream=stream)
    return made


@pytest.mark.parametrize(
    ("name", "stores", "conflicts"),
    [("transpose_naive", 1_048_576, 0), ("transpose_tiled", 131_072, 1_015_808), ("transpose_padded", 131_072, 0)],
)
def test_the_transposes_as_an_h200_counts_them(name: str, stores: int, conflicts: int) -> None:
    (case,) = (case for case in linear.CASES if case.name == name)
    gpu = Runner.of(simulator)
    gpu.module = gpu.compile(case.source, case.kernels)
    with counting() as launches:
        case.launch(gpu, (1024, 1024), **case.make_inputs((1024, 1024)))
    (counts,) = launches
    assert counts.total("global_load_requests") == counts.total("global_store_requests") == 32_768
    assert counts.total("global_load_sectors") == 131_072
    assert counts.total("global_store_sectors") == stores
    assert counts.total("shared_load_conflicts") == conflicts
    assert counts.total("shared_load_wavefronts") == (32_768 + conflicts if "naive" not in name else 0)
    assert counts.total("shared_store_conflicts") == 0


STRIDED = r"""
extern "C" __global__ void strided(const float* x, float* y, int n, int stride)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = x[i * stride] * 2.0f + 1.0f;
}
"""


def test_lines_of_the_source_and_a_last_warp_that_is_not_full() -> None:
    counts = counts_of(STRIDED, "strided", 2, 64, buffer(4 * 400), buffer(400), np.int32(100), np.int32(4))
    assert counts.total("global_load_requests") == 4
    assert counts.total("global_load_sectors") == 3 * 16 + 2  # 16 bytes apart: two of a sector; 4 lanes remain
    assert counts.total("global_store_sectors") == 3 * 4 + 1
    assert counts.total("flops") == 200
    lines = counts.lines()
    assert lines[6]["global_load_sectors"] == 50 and lines[6]["flops"] == 200
    assert lines[6]["global_load_bytes"] == counts.total("global_load_bytes") == 50 * 32
    assert counts.shape == ((2, 1, 1), (64, 1, 1))
    assert "global_load_sectors" not in lines.get(5, {})
    assert sum(line.get("instructions", 0) for line in lines.values()) == counts.total("instructions")


DIVERGENT = r"""
extern "C" __global__ void divergent(int* out)
{
    int v = threadIdx.x;
    if (threadIdx.x % 2)
        for (int i = 0; i < 100; ++i) v = v * 1664525 + out[0];
    out[threadIdx.x + 1] = v;
}
"""


def test_divergence_lowers_the_active_threads() -> None:
    counts = counts_of(DIVERGENT, "divergent", 1, 64, buffer(4 * 65))
    assert 16 < counts.active_threads < 20
    assert counts.total("global_store_requests") == 2


CONSTANT = r"""
__constant__ float weights[64];
extern "C" __global__ void constant(float* out) { out[threadIdx.x] = weights[threadIdx.x]; }
"""


def test_constant_memory_is_no_global_load() -> None:
    counts = counts_of(CONSTANT, "constant", 1, 64, buffer(256))
    assert counts.total("global_load_requests") == 0 and counts.total("global_store_requests") == 2


MIXED = r"""
__constant__ float weights[64];
extern "C" __global__ void mixed(float* out, int* total)
{
    __shared__ float tile[64];
    float many[40];
    for (int i = 0; i < 40; ++i) many[i] = i * out[i];
    tile[threadIdx.x] = many[(int)out[0]] + weights[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = tile[63 - threadIdx.x];
    atomicAdd(total, 2);
}
"""


def test_local_memory_and_atomics() -> None:
    counts = counts_of(MIXED, "mixed", 3, 64, buffer(256), buffer(4))
    assert counts.total("barriers") == 6  # one for each warp
    assert counts.total("shared_store_wavefronts") == counts.total("shared_load_wavefronts") == 6
    assert counts.total("global_atomic_requests") == 6 and counts.total("global_atomic_sectors") == 6 * 32
    assert counts.total("local_store_requests") > 0 and counts.total("local_load_requests") > 0


@pytest.mark.parametrize(
    ("instruction", "kind"),
    [
        ("fma.rn.f32", "float"),
        ("setp.lt.f64", "float"),
        ("add.rn.bf16x2", "float"),
        ("mad.lo.s32", "integer"),
        ("setp.ge.s64", "integer"),
        ("shl.b64", "integer"),
        ("cvt.rn.f32.s32", "move"),
        ("cvta.to.global.u64", "move"),
        ("ld.global.nc.v4.f32", "global"),
        ("red.global.add.u32", "global"),
        ("cp.async.cg.shared.global", "global"),
        ("ld.shared.v2.f32", "shared"),
        ("st.shared__cta.u8", "shared"),
        ("ld.param.u64", "other_memory"),
        ("st.local.f32", "other_memory"),
        ("ld.u32", "other_memory"),
        ("bra", "control"),
        ("bar.sync", "barrier"),
        ("membar.gl", "barrier"),
        ("shfl.sync.down.b32", "warp"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "matrix"),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "matrix"),
    ],
)
def test_classes_of_instructions(instruction: str, kind: str) -> None:
    opcode, *modifiers = instruction.split(".")
    assert class_of(opcode, modifiers) == kind and kind in CLASSES


def test_each_instruction_has_one_class() -> None:
    counts = counts_of(MIXED, "mixed", 3, 64, buffer(256), buffer(4))
    totals = counts.totals()
    assert sum(totals[f"{kind}_instructions"] for kind in CLASSES) == totals["instructions"]
    # two warps in each of three blocks: a barrier, an access of shared memory before it and one behind
    assert totals["barrier_instructions"] == 6 and totals["shared_instructions"] == 12
    assert totals["shared_load_requests"] == totals["shared_store_requests"] == 6
    assert set(BYTES) < set(METRICS)


def test_nobody_counts_outside() -> None:
    with counting() as outer:
        counts_of(STRIDED, "strided", 1, 32, buffer(400), buffer(400), np.int32(32), np.int32(1))
    counts_of(STRIDED, "strided", 1, 32, buffer(400), buffer(400), np.int32(32), np.int32(1))
    assert len(outer) == 1
    assert set(outer[0].totals()) == {*METRICS, *(f"{kind}_instructions" for kind in CLASSES)}


def test_an_address_that_is_used_again_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps counting cheap: a thread of the tiled matmul reads 32 words beside each other for each tile, and what
    the first and the unaligned ones cost is known for the others. tests/bench_simt.py shows the time."""
    looked: list[int] = []
    collapse = access.collapse
    monkeypatch.setattr(access, "collapse", lambda lanes, unit: looked.append(len(lanes)) or collapse(lanes, unit))
    (case,) = (case for case in linear.CASES if case.name == "matmul_tiled")
    gpu = Runner.of(simulator)
    gpu.module = gpu.compile(case.source, case.kernels)
    with counting() as launches:
        case.launch(gpu, (64, 64, 64), **case.make_inputs((64, 64, 64)))
    kinds = ("global_load", "global_store", "shared_load", "shared_store")
    requests = [launches[0].total(f"{kind}_requests") for kind in kinds]
    assert requests == [2 * 4 * 128, 128, 32 * 4 * 128, 2 * 4 * 128]  # 4 steps of 16, 128 warps
    assert sum(looked) * 4 < sum(requests)


def test_a_graph_counts_each_of_its_launches() -> None:
    device = simulator.Device()
    stream = device.create_stream()
    code = simulator.Program(STRIDED, "c++", simulator.ProgramOptions(std="c++17")).compile("ptx")
    kernel, x, y = code.get_kernel("strided"), buffer(400), buffer(400)
    builder = stream.create_graph_builder().begin_building()
    simulator.launch(builder, simulator.LaunchConfig(grid=1, block=32), kernel, x, y, np.int32(32), np.int32(1))
    graph = builder.end_building().complete()
    with counting() as launches:
        graph.launch(stream)
        graph.launch(stream)
    graph.launch(stream)
    assert [launch.total("global_load_sectors") for launch in launches] == [4, 4]
