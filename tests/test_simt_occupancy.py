"""Registers and occupancy on the simulator: by hand, as ptxas says them, and as the driver of a GPU does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from common import gpu
from common.simt import api, occupancy
from common.simt.errors import SimulatorError, SimulatorUnsupported
from common.simt.occupancy import Resources, limits, resources_in

SOURCE = r"""
template <typename T> __global__ void scale(T* data) { data[threadIdx.x] *= 3; }

extern "C" __global__ void through_shared(float* data)
{
    __shared__ float kept[1000];
    extern __shared__ float more[];
    kept[threadIdx.x] = more[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    data[threadIdx.x] = kept[threadIdx.x ^ 1] + more[threadIdx.x ^ 2];
}

// 4 named barriers, so that barriers are what limits blocks of 32 threads
extern "C" __global__ void barriers(float* data)
{
    const float mine = data[threadIdx.x];
    asm volatile("bar.sync 0;");
    asm volatile("bar.sync 1;");
    asm volatile("bar.sync 2;");
    asm volatile("bar.sync 3;");
    data[threadIdx.x ^ 1] = mine;
}

// as many registers as it is allowed
extern "C" __global__ void greedy(float* data, int rounds)
{
    float v[200];
    for (int k = 0; k < 200; ++k) v[k] = data[k * 32 + threadIdx.x];
    for (int r = 0; r < rounds; ++r)
        #pragma unroll
        for (int k = 0; k < 200; ++k) v[k] = v[k] * v[(k * 7 + 1) % 200] + 1.0f;
    for (int k = 0; k < 200; ++k) data[k * 32 + threadIdx.x] = v[k];
}

extern "C" __global__ void __launch_bounds__(96) bounded(float* data) { data[threadIdx.x] += 1; }
"""
NAMES = ("scale<float>", "scale<double>", "through_shared", "barriers", "greedy", "bounded")
THREADS = (1, 31, 32, 33, 64, 95, 96, 97, 128, 160, 192, 224, 256, 288, 320, 384, 480, 512, 640, 672, 768, 896, 1000)
THREADS += (1023, 1024)
SHARED = (0, 1, 127, 128, 896, 897, 1024, 4000, 6144, 6145, 8192, 10_000, 16_384, 24_576, 32_768, 45_152, 49_152)

on_the_simulator = pytest.mark.simulator


# --- the arithmetic, by hand ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "barriers", "limit", "blocks"),
    [
        (256, 32, 0, 1, "registers", 8),  # 65,536 / (32 * 256)
        (256, 33, 0, 1, "registers", 6),  # 33 * 32 = 1056 becomes 1280: 12 warps in each quarter, 48 in all
        (96, 33, 0, 1, "registers", 16),  # 48 warps, where the 51 of an undivided file would be 17 blocks
        (1024, 64, 0, 1, "registers", 1),
        (1024, 65, 0, 1, "registers", 0),
        (256, 255, 0, 1, "registers", 1),  # 8160 becomes 8192 a warp: 2 in each quarter
        (288, 255, 0, 1, "registers", 0),
        (32, 8, 0, 1, "registers", 256),
        (256, 32, 0, 1, "warps", 8),
        (96, 32, 0, 1, "warps", 21),
        (1, 32, 0, 1, "warps", 64),
        (1025, 32, 0, 1, "warps", 0),
        (32, 32, 0, 1, "blocks", 32),
        (32, 32, 0, 1, "shared memory", 228),
        (32, 32, 1, 1, "shared memory", 202),  # 1025 become 1152 bytes
        (32, 32, 48 << 10, 1, "shared memory", 4),
        (32, 32, 227 << 10, 1, "shared memory", 1),
        (32, 32, 0, 4, "barriers", 16),
        (32, 32, 0, 16, "barriers", 4),
    ],
)
def test_limits(threads: int, registers: int, shared: int, barriers: int, limit: str, blocks: int) -> None:
    assert limits(threads, registers, shared, barriers)[limit] == blocks


def test_resources_of_a_log() -> None:
    log = """ptxas info    : 400 bytes gmem
ptxas info    : Compiling entry function '_Z1fILi128EEvPf' for 'sm_90'
ptxas info    : Function properties for _Z1fILi128EEvPf
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 512 bytes smem
ptxas info    : Compiling entry function 'g' for 'sm_90'
ptxas info    : Function properties for g
ptxas         .     8 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 255 registers, 8 bytes cumulative stack size"""
    assert resources_in(log) == {"_Z1fILi128EEvPf": Resources(32, 1), "g": Resources(255, 0)}


# --- the stand-ins --------------------------------------------------------------------------------------------


def kernels(**options: object) -> dict[str, gpu.Kernel]:
    gpu.open_device()
    module = gpu.compile_module(SOURCE, NAMES[:2], **options)
    return {name: module.get_kernel(name) for name in NAMES}


def test_registers_are_those_of_the_machine_code() -> None:
    free, bound = kernels(), kernels(max_register_count=64)
    assert all(6 <= k.attributes.num_regs <= 255 for k in free.values())
    assert free["greedy"].attributes.num_regs > 200 and bound["greedy"].attributes.num_regs == 64
    assert free["through_shared"].attributes.shared_size_bytes == 4000


@on_the_simulator
def test_registers_with_debug_information() -> None:
    """The same flags as on a GPU: without optimisation a kernel takes other registers."""
    program = gpu.Program(SOURCE, "c++", gpu.ProgramOptions(device_code_optimize=False, debug=True))
    assert program.compile("cubin").get_kernel("bounded").attributes.num_regs >= 8


def test_occupancy_of_a_kernel() -> None:
    some = {name: kernel.occupancy for name, kernel in kernels().items()}
    assert some["scale<float>"].max_active_blocks_per_multiprocessor(256, 0) == 8
    assert some["scale<double>"].max_active_blocks_per_multiprocessor(1, 0) == 32
    assert some["barriers"].max_active_blocks_per_multiprocessor(32, 0) == 16
    assert some["greedy"].max_active_blocks_per_multiprocessor(1024, 0) == 0
    # (4000 + 40,000 + 1024) bytes become 45,056
    assert some["through_shared"].max_active_blocks_per_multiprocessor(64, 40_000) == 5
    assert some["through_shared"].max_active_blocks_per_multiprocessor(64, 48 << 10) == 0
    with pytest.raises(gpu.CUDAError, match="CUDA_ERROR_INVALID_VALUE"):
        some["barriers"].max_active_blocks_per_multiprocessor(0, 0)


def test_potential_block_size() -> None:
    some, sms = kernels(), gpu.Device().properties.multiprocessor_count
    assert tuple(some["scale<float>"].occupancy.max_potential_block_size(0, 0)) == (2 * sms, 1024)
    assert tuple(some["scale<float>"].occupancy.max_potential_block_size(0, 500)) == (8 * sms, 256)
    assert tuple(some["bounded"].occupancy.max_potential_block_size(0, 0)) == (32 * sms, 64)
    assert tuple(some["greedy"].occupancy.max_potential_block_size(0, 0)) == (sms, 256)


def test_available_shared_memory() -> None:
    some = kernels()["through_shared"]
    gpu.allow_shared_memory(some, 100_000)
    # 4000 bytes are static; the KiB that is reserved for each block is forgotten, so that the last block does not fit
    for blocks, expected in ((1, 100_000), (2, 100_000), (3, 73_824), (7, 29_280)):
        assert some.occupancy.available_dynamic_shared_memory_per_block(blocks, 64) == expected
    assert some.occupancy.max_active_blocks_per_multiprocessor(64, 73_824) == 2
    assert some.occupancy.max_active_blocks_per_multiprocessor(64, 73_824 - 1024) == 3
    with pytest.raises(gpu.CUDAError, match="CUDA_ERROR_INVALID_VALUE"):
        some.occupancy.available_dynamic_shared_memory_per_block(33, 64)


def test_more_shared_memory_than_48_kib_when_allowed() -> None:
    kernel = kernels()["barriers"]
    assert kernel.occupancy.max_active_blocks_per_multiprocessor(32, 100_000) == 0
    gpu.allow_shared_memory(kernel, 100_000)
    assert kernel.occupancy.max_active_blocks_per_multiprocessor(32, 100_000) == 2


@on_the_simulator
def test_registers_of_ptx_without_source(monkeypatch: pytest.MonkeyPatch) -> None:
    module = gpu.compile_module(SOURCE, NAMES[:2])
    again = gpu.ObjectCode.from_ptx(module.code, symbol_mapping=module.symbol_mapping)
    for name in NAMES:
        assert again.get_kernel(name).attributes.num_regs == module.get_kernel(name).attributes.num_regs
    monkeypatch.setattr(occupancy, "find_tool", lambda name: None)
    with pytest.raises(SimulatorUnsupported, match="ptxas"):
        gpu.ObjectCode.from_ptx(module.code).get_kernel("bounded").attributes.num_regs  # noqa: B018


@on_the_simulator
def test_ptx_that_ptxas_refuses() -> None:
    with pytest.raises(SimulatorError, match="ptxas"):
        occupancy.log_of_ptx(".version 8.0\n.target sm_90\nnonsense")


@on_the_simulator
def test_machine_code_is_refused() -> None:
    for load in (gpu.ObjectCode.from_cubin, gpu.ObjectCode.from_fatbin, gpu.ObjectCode.from_ltoir):
        with pytest.raises(SimulatorUnsupported, match="machine code"):
            load(b"ELF", name="code")


@on_the_simulator
def test_clusters_are_refused() -> None:
    with pytest.raises(SimulatorUnsupported, match="max_active_clusters"):
        kernels()["bounded"].occupancy.max_active_clusters(None, stream=None)


# --- against the driver ---------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("registers", [24, 32, 33, 40, 41, 48, 56, 64, 65, 72, 80, 96, 104, 128, 168, 200, 255])
def test_the_driver_counts_as_we_do(registers: int) -> None:
    """Every answer of the driver for compute capability 9.0; registers, static shared memory and barriers vary."""
    if gpu.Device().compute_capability != (9, 0):
        pytest.skip("the arithmetic is that of compute capability 9.0")
    some = kernels(max_register_count=registers)
    assert some["greedy"].attributes.num_regs > min(registers - 8, 200)
    for name, (threads, shared) in itertools.product(NAMES, itertools.product(THREADS, SHARED)):
        kernel, attributes = some[name], some[name].attributes
        static = attributes.shared_size_bytes
        fits = shared <= attributes.max_dynamic_shared_size_bytes
        expected = limits(threads, attributes.num_regs, static + shared, 4 if name == "barriers" else 1)
        found = kernel.occupancy.max_active_blocks_per_multiprocessor(threads, shared)
        assert found == (min(expected.values()) if fits else 0), (name, threads, shared, attributes.num_regs)


@pytest.mark.gpu
def test_the_driver_agrees_with_the_stand_ins() -> None:
    """The same source through both: registers, resident blocks, block sizes and shared memory."""
    if gpu.Device().compute_capability != (9, 0):
        pytest.skip("the stand-in is of compute capability 9.0")
    sms, real = gpu.Device().properties.multiprocessor_count, kernels(lineinfo=False)
    options = api.ProgramOptions(std="c++17", include_path=gpu.include_folders())
    module = api.Program(SOURCE, "c++", options).compile("cubin", name_expressions=NAMES[:2])
    for name in NAMES:
        ours, drivers = module.get_kernel(name), real[name]
        assert ours.attributes.num_regs == drivers.attributes.num_regs
        gpu.allow_shared_memory(drivers, 150_000)
        api.set_max_dynamic_shared(ours, 150_000)
        for threads, shared in itertools.product(THREADS, (*SHARED, 60_000, 116_736, 150_000, 150_001)):
            call = "max_active_blocks_per_multiprocessor", (threads, shared)
            a, b = (getattr(k.occupancy, call[0])(*call[1]) for k in (ours, drivers))
            assert a == b, (name, threads, shared)
        for shared, limit in itertools.product((0, 10_000, 60_000), (0, 33, 500, 1024)):
            a, b = (k.occupancy.max_potential_block_size(shared, limit) for k in (ours, drivers))
            assert (a[0] // api.SMS, a[1]) == (b[0] // sms, b[1]), (name, shared, limit)
        for blocks, threads in itertools.product((1, 2, 3, 4, 7, 8, 16), (32, 64, 96)):
            try:
                b = drivers.occupancy.available_dynamic_shared_memory_per_block(blocks, threads)
            except gpu.CUDAError:
                with pytest.raises(SimulatorError):
                    ours.occupancy.available_dynamic_shared_memory_per_block(blocks, threads)
            else:
                assert ours.occupancy.available_dynamic_shared_memory_per_block(blocks, threads) == b, (name, blocks)


def test_what_is_counted_is_what_runs() -> None:
    """A kernel that was asked for its registers still runs."""
    _, stream = gpu.open_device()
    kernel = kernels()["scale<double>"]
    assert kernel.attributes.num_regs > 0
    data = gpu.to_device(np.arange(64.0), stream)
    gpu.launch(stream, gpu.LaunchConfig(grid=1, block=64), kernel, data.buffer)
    np.testing.assert_array_equal(data.to_host(stream), 3 * np.arange(64.0))
