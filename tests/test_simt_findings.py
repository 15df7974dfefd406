"""What watching sees besides the planted faults: copies, pinned memory, leaks, names; and that it changes no result."""

from __future__ import annotations

import numpy as np
import pytest

import common.simt.api as simulator
from common.simt import findings
from common.simt.counters import counting
from common.simt.errors import InvalidFree
from common.simt.findings import Findings, watching

pytestmark = pytest.mark.simulator
COPY = r"""__device__ int table[4];
extern "C" __global__ void copy(const int* x, int* y, int n)
{
    __shared__ int s[64];
    if (threadIdx.x < n) s[threadIdx.x] = x[threadIdx.x] + table[0];
    __syncthreads();
    if (threadIdx.x < n) y[threadIdx.x] = s[threadIdx.x];
}"""


class Bench:
    """A stream, buffers of 64 integers, and kernels of one block of 64 threads."""

    def __init__(self) -> None:
        self.device = simulator.Device()
        self.stream = self.device.create_stream()

    def buffer(self, *, written: bool) -> simulator.Buffer:
        buffer = self.device.allocate(256, stream=self.stream)
        if written:
            buffer.fill(0, stream=self.stream)
        return buffer

    def launch(self, source: str, name: str, *arguments: object, grid: int = 1) -> None:
        code = simulator.Program(source, "c++", simulator.ProgramOptions(std="c++17")).compile("ptx")
        config = simulator.LaunchConfig(grid=grid, block=64)
        simulator.launch(self.stream, config, code.get_kernel(name), *arguments)
        self.stream.sync()

    def to_host(self, buffer: simulator.Buffer) -> np.ndarray:
        out = np.empty(64, np.int32)
        buffer.copy_to(simulator.Buffer.from_handle(out.ctypes.data, 256, owner=out), stream=self.stream)
        return out


@pytest.fixture
def bench() -> Bench:
    return Bench()


def kinds(found: Findings) -> list[str]:
    return [finding.kind for finding in found]


def test_copies_carry_over_what_was_written(bench: Bench) -> None:
    with watching() as found:
        x, y, z = bench.buffer(written=False), bench.buffer(written=False), bench.buffer(written=False)
        bench.launch(COPY, "copy", bench.buffer(written=True), x, np.int32(10))
        y.copy_from(x, stream=bench.stream)
        bench.launch(COPY, "copy", y, z, np.int32(10))
        assert found == []
        bench.to_host(y)
    (finding,) = found
    assert finding.kind == "uninitialized"
    assert finding.what == "copy to the host of 256 bytes, 216 of which nothing wrote"
    assert finding.places[1].startswith("first at byte 40 of 'device buffer")
    assert finding.places[0].startswith("by test_simt_findings.py, line ") and "buffer.copy_to(" in finding.places[0]


def test_what_was_there_before_the_watching_counts_as_written(bench: Bench) -> None:
    x, y = bench.buffer(written=False), bench.buffer(written=False)
    with watching() as found:
        bench.launch(COPY, "copy", x, y, np.int32(64))
        bench.to_host(y)
    assert found == []


def test_pinned_memory_that_the_host_sees_may_be_written_by_it(bench: Bench) -> None:
    with watching() as found:
        pinned = simulator.LegacyPinnedMemoryResource()
        seen, unseen = pinned.allocate(256), pinned.allocate(256)
        np.from_dlpack(seen)[:] = 1
        bench.launch(COPY, "copy", seen, bench.buffer(written=False), np.int32(64))
        assert found == []
        bench.launch(COPY, "copy", unseen, bench.buffer(written=False), np.int32(64))
    assert kinds(found) == ["uninitialized"] and "pinned buffer" in str(found[0])


def test_what_an_exchange_finds_matters_only_where_it_is_used(bench: Bench) -> None:
    source = (
        r"""extern "C" __global__ void swap(int* x, int* y, int n) { if (threadIdx.x < n) RESULT atomicExch(x, 1); }"""
    )
    for result, found_there in (("", []), ("y[0] = ", ["uninitialized"])):
        with watching() as found:
            x, y = bench.buffer(written=False), bench.buffer(written=False)
            bench.launch(source.replace("RESULT", result), "swap", x, y, np.int32(1))
        assert kinds(found) == found_there


def test_readers_of_many_blocks_before_a_write(bench: Bench) -> None:
    source = r"""extern "C" __global__ void kernel(int* x, int* y, int n)
{
    const int first = x[0];
    __syncthreads();
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) x[0] = first + n;  // its own block has read by now
    if (blockIdx.x == 0) y[threadIdx.x] = first;
}"""
    for grid, expected in ((1, []), (3, ["global race"])):
        with watching() as found:
            x, y = bench.buffer(written=True), bench.buffer(written=True)
            bench.launch(source, "kernel", x, y, np.int32(1), grid=grid)
        assert kinds(found) == expected


def test_one_thing_is_said_once(bench: Bench) -> None:
    with watching() as found:
        y = bench.buffer(written=True)
        for _ in range(3):
            bench.launch(COPY, "copy", bench.buffer(written=False), y, np.int32(64))
    assert kinds(found) == ["uninitialized"] and (found.launches, found.kernels) == (3, {"copy"})


def test_a_nested_watch_keeps_its_findings(bench: Bench) -> None:
    with watching() as outer:
        x, y = bench.buffer(written=False), bench.buffer(written=True)
        with watching() as inner:
            bench.launch(COPY, "copy", x, y, np.int32(64))
    assert kinds(inner) == ["uninitialized"] and outer == []


def test_counting_and_watching_at_once(bench: Bench) -> None:
    x, y = bench.buffer(written=True), bench.buffer(written=True)
    with counting() as alone:
        bench.launch(COPY, "copy", x, y, np.int32(64))
    with watching() as found, counting() as together:
        bench.launch(COPY, "copy", bench.buffer(written=False), y, np.int32(64))
    assert kinds(found) == ["uninitialized"]
    assert alone[0].totals() == together[0].totals()


def test_variables_of_a_module_are_no_leak(bench: Bench) -> None:
    with watching() as found:
        code = simulator.Program(COPY, "c++", simulator.ProgramOptions(std="c++17")).compile("ptx")
        simulator.get_global(code, "table")
        kept = bench.buffer(written=False)
        found.leaks()
        assert kinds(found) == ["leak"] and "bench.buffer" not in str(found[0])
        assert "256 bytes" in str(found[0]) and "self.device.allocate(256" in str(found[0])
    assert not kept.is_closed


def test_what_was_there_before_is_no_leak(bench: Bench) -> None:
    kept = bench.buffer(written=False)
    with watching() as found:
        del bench
        found.leaks()
    assert found == [] and not kept.is_closed


def test_invalid_frees_are_errors_that_say_what(bench: Bench) -> None:
    resource = simulator.DeviceMemoryResource()
    x, y = resource.allocate(400), resource.allocate(400)
    address = int(x.handle)
    with pytest.raises(
        InvalidFree, match=r"free of 0x[0-9a-f]+, 8 bytes behind the start of 'device buffer \d+' \(400 by"
    ):
        resource.deallocate(address + 8, 392)
    x.close()
    with pytest.raises(InvalidFree, match=r"double free of 'device buffer \d+' \(400 bytes at 0x"):
        resource.deallocate(address, 400)
    with pytest.raises(InvalidFree, match="nothing was allocated at 0x10"):
        resource.deallocate(16, 400)
    with pytest.raises(
        simulator.SimulatorError, match=r"400 bytes at 0x\w+ are of 'device buffer \d+' .*, which is freed"
    ):
        simulator.Buffer.from_handle(address, 400).copy_to(y, stream=bench.stream)


def test_names_of_variables_inside_functions() -> None:
    names = {
        "_ZZ6kernelPfE4tile": "tile",
        "_ZZ1qIiEvPT_E3buf": "buf",
        "dynamic": "dynamic",
        "_ZZ1kvE2E4x": "_ZZ1kvE2E4x",
    }
    assert {mangled: findings._plain(mangled) for mangled in names} == names


def test_names_of_parameters_in_the_source() -> None:
    source = r"""__device__ void helper(int a) {}
template <typename T> __global__ void __launch_bounds__(256)
kernel(const T* __restrict__ x,  // the input, (all of it)
       T* /* result */ y, const int n)
{ }
extern "C" __global__ void empty() { kernel_like(1, 2); }"""
    names = findings.parameter_names
    assert names(source, "kernel<float>", 3) == ["x", "y", "n"]
    assert names(source, "kernel<float>", 4) == names(source, "helper", 1) == names(source, "other", 1) == []
    assert names(source, "empty", 0) == []
