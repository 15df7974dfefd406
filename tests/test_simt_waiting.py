"""Threads that wait for each other in unusual ways, and accesses that only look aligned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import common.simt.api as simulator
from common.simt import errors, ops, scheduler
from tests.simt_cases.harness import DeviceArray, Runner

pytestmark = pytest.mark.timeout(60)

SOURCE = r"""
__global__ void named_barrier(int* out)      // PTX: a barrier with a count counts warps, as 32 threads each
{
    asm volatile("bar.sync 1, 64;" ::: "memory");
    out[threadIdx.x] = 1;
}

__global__ void named_after_exit(int* out)
{
    if (threadIdx.x % 32 >= 20) return;
    asm volatile("bar.sync 1, 64;" ::: "memory");
    out[threadIdx.x] = 1;
}

__global__ void producer_consumer(int* out, int rounds)
{
    // Warp 0 fills, warp 1 empties one slot; barrier 1 says "full", barrier 2 "empty".
    __shared__ int slot[32];
    int lane = threadIdx.x % 32, sum = 0;
    for (int r = 0; r < rounds; ++r) {
        if (threadIdx.x < 32) {
            if (r > 0) asm volatile("bar.sync 2, 64;" ::: "memory");
            slot[lane] = 100 * r + lane;
            asm volatile("bar.arrive 1, 64;" ::: "memory");
        } else {
            asm volatile("bar.sync 1, 64;" ::: "memory");
            sum += slot[lane];
            if (r + 1 < rounds) asm volatile("bar.arrive 2, 64;" ::: "memory");
        }
    }
    if (threadIdx.x >= 32) out[lane] = sum;
}

__global__ void arrivals_alone(int* out)
{
    // Two arrivals fill the barrier; the sync that follows needs two more.
    asm volatile("bar.arrive 1, 64;" ::: "memory");
    __syncthreads();
    __shared__ int s;
    if (threadIdx.x == 0) s = 1;
    __syncthreads();
    if (threadIdx.x < 32) {
        for (int i = 0; i < 100; ++i) out[0] = i;
        s = 2;
        asm volatile("bar.sync 1, 64;" ::: "memory");
    } else {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        out[threadIdx.x] = s;
    }
}

__global__ void two_phases(int* out)
{
    // Odd and even lanes talk through shared memory, each in its own branch, with a barrier of the warp between.
    __shared__ volatile int s[32], r[32];
    int l = threadIdx.x, a, b;
    s[l] = r[l] = 0;
    __syncwarp();
    if (l % 2) {
        s[l] = 1; __syncwarp(); a = s[l - 1]; __syncwarp(); r[l] = 2; __syncwarp(); b = r[l - 1];
    } else {
        s[l] = 1; __syncwarp(); a = s[l + 1]; __syncwarp(); r[l] = 2; __syncwarp(); b = r[l + 1];
    }
    out[l] = 10 * a + b;
}

__device__ bool ready(int* flag, int how, int* tries)
{
    int v;
    if (how == 0) return atomicAdd(flag, 0) != 0;
    if (how == 1) return atomicExch(flag, 0) != 0;
    if (how == 2) { atomicAdd(tries, 1); return *(volatile int*)flag != 0; }
    if (how == 3) asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");
    else asm volatile("ld.global.cv.s32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");
    return v != 0;
}

__global__ void poll(int* flag, int* out, int* tries, int how)
{
    // Each block waits for the one behind it, which on the simulator starts later.
    int b = blockIdx.x;
    if (threadIdx.x != 0) return;
    if (b != gridDim.x - 1)
        while (!ready(&flag[b + 1], how, tries)) { }
    out[b] = 1;
    __threadfence();
    atomicExch(&flag[b], 1);
}

__global__ void never(int* lock) { while (atomicExch(lock, 1) != 0) { } }

__global__ void tickets(int* counter, int* out) { out[threadIdx.x] = atomicAdd(counter, 1); }

__global__ void last_wins(int* out) { out[0] = threadIdx.x; }

__global__ void half_warps(const int* x, int* out)
{
    unsigned mask = threadIdx.x < 16 ? 0x0000ffffu : 0xffff0000u;
    out[threadIdx.x] = __reduce_add_sync(mask, x[threadIdx.x]);
    out[32 + threadIdx.x] = __ballot_sync(mask, x[threadIdx.x] % 3 == 0);
}

__global__ void bounded(unsigned* counter, unsigned* out)
{
    out[threadIdx.x] = atomicInc(&counter[0], 4);
    out[32 + threadIdx.x] = atomicDec(&counter[1], 4);
}

__global__ void partial_copy(const unsigned char* x, unsigned char* out, int bytes)
{
    __shared__ __align__(16) unsigned char s[16];
    unsigned to = (unsigned)__cvta_generic_to_shared(s);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2; cp.async.wait_all;" ::"r"(to), "l"(x), "r"(bytes));
    for (int i = 0; i < 16; ++i) out[i] = s[i];
}

__global__ void row_of_matrix(unsigned* out, int shift)
{
    __shared__ __align__(16) unsigned short s[512];
    for (int i = threadIdx.x; i < 512; i += 32) s[i] = i;
    __syncwarp();
    unsigned from = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x % 8 * 8 + shift]), r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r) : "r"(from));
    out[threadIdx.x] = r;
}

__global__ void copy_16(const float* x, float* out, int shift)
{
    __shared__ __align__(16) float s[256];
    unsigned to = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x * 4 + shift]);
    const float* from = x + threadIdx.x * 4 + shift;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16; cp.async.wait_all;" ::"r"(to), "l"(from));
    out[threadIdx.x] = s[threadIdx.x * 4 + shift];
}
"""


def run(name: str, *args: Any, grid: int = 1, block: int = 32) -> None:
    gpu = Runner.of(simulator)
    gpu.module = gpu.compile(SOURCE, (name,))
    gpu.launch(name, grid, block, *args)
    gpu.sync()


def ints(count: int) -> DeviceArray:
    return Runner.of(simulator).zeros(count, np.int32)


def to_device(array: np.ndarray) -> DeviceArray:
    return Runner.of(simulator).to_device(array)


def host(array: DeviceArray) -> np.ndarray:
    return Runner.of(simulator).to_host(array)


@pytest.mark.parametrize(("name", "block", "passed"), [("named_barrier", 48, 48), ("named_after_exit", 64, 40)])
def test_a_barrier_with_a_count_counts_warps(name: str, block: int, passed: int) -> None:
    out = ints(block)
    run(name, out, block=block)
    assert host(out).sum() == passed


def test_a_named_barrier_serves_round_after_round() -> None:
    out = ints(32)
    run("producer_consumer", out, np.int32(7), block=64)
    assert host(out).tolist() == [100 * sum(range(7)) + 7 * lane for lane in range(32)]


def test_arrivals_that_fill_a_barrier_start_it_anew() -> None:
    out = ints(64)
    run("arrivals_alone", out, block=64)
    assert host(out)[32:].tolist() == [2] * 32


def test_branches_of_a_warp_keep_step() -> None:
    out = ints(32)
    run("two_phases", out)
    assert host(out).tolist() == [12] * 32


@pytest.mark.parametrize("how", range(5))
@pytest.mark.parametrize(("grid", "block"), [(20, 32), (150, 512)])
def test_any_way_to_poll_lets_other_blocks_run(
    how: int, grid: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "TIME_LIMIT", 15.0)
    out = ints(grid)
    run("poll", ints(grid + 1), out, ints(1), np.int32(how), grid=grid, block=block)
    assert host(out).sum() == grid


@pytest.mark.parametrize("text", ["", "abc", "0", "-1", "nan"])
def test_a_time_limit_that_is_none_is_refused_in_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        scheduler._time_limit(text)
    assert capsys.readouterr().err.count("\n") == 1
    assert scheduler._time_limit("0.5") == 0.5


def test_an_exchange_that_changes_nothing_is_a_wait() -> None:
    with pytest.raises(errors.Deadlock, match="wait in a loop"):
        run("never", to_device(np.ones(1, np.int32)))


def test_of_threads_that_write_one_address_the_highest_wins() -> None:
    out = ints(1)
    run("last_wins", out, block=77)
    assert host(out)[0] == 76


def test_half_warps_reduce_and_vote_apart() -> None:
    x, out = np.arange(32, dtype=np.int32) * 5 - 40, ints(64)
    run("half_warps", to_device(x), out)
    ballot = sum(1 << i for i in range(32) if x[i] % 3 == 0)
    halves = [(int(x[:16].sum()), ballot & 0xFFFF), (int(x[16:].sum()), ballot & 0xFFFF0000)]
    got = host(out).view(np.uint32).astype(np.int64)
    for half, (total, votes) in enumerate(halves):
        lanes = slice(16 * half, 16 * half + 16)
        assert (got[:32][lanes] == total % 2**32).all() and (got[32:][lanes] == votes).all()


def test_bounded_counters_wrap_above_their_bound_too() -> None:
    out = Runner.of(simulator).zeros(64, np.uint32)
    run("bounded", to_device(np.array([9, 9], np.uint32)), out)
    up, down = [9, *(i % 5 for i in range(31))], [9, *((4 - i) % 5 for i in range(31))]
    assert sorted(host(out)[:32]) == sorted(up) and sorted(host(out)[32:]) == sorted(down)


@pytest.mark.parametrize("count", [0, 6, 8, 13, 16])
def test_an_asynchronous_copy_fills_up_with_zeros(count: int) -> None:
    x, out = np.arange(1, 17, dtype=np.uint8), Runner.of(simulator).full(16, 255, np.uint8)
    run("partial_copy", to_device(x), out, np.int32(count), block=1)
    assert host(out).tolist() == [*x[:count], *[0] * (16 - count)]


@pytest.mark.parametrize("shift", [0, 2, 4])
def test_rows_of_matrices_and_16_byte_copies_are_aligned_to_16(shift: int) -> None:
    def both() -> None:
        run("row_of_matrix", Runner.of(simulator).zeros(32, np.uint32), np.int32(2 * shift))
        run(
            "copy_16", to_device(np.zeros(300, np.float32)), Runner.of(simulator).zeros(32, np.float32), np.int32(shift)
        )

    if shift % 4 == 0:
        both()
        return
    with pytest.raises(errors.MisalignedAddress, match="ldmatrix of 16 bytes"):
        run("row_of_matrix", Runner.of(simulator).zeros(32, np.uint32), np.int32(2 * shift))
    simulator.reset()
    with pytest.raises(errors.MisalignedAddress, match=r"cp\.async of 16 bytes"):
        run(
            "copy_16", to_device(np.zeros(300, np.float32)), Runner.of(simulator).zeros(32, np.float32), np.int32(shift)
        )


def test_fma_rounds_once_among_the_subnormals_too() -> None:
    from fractions import Fraction

    rng = np.random.default_rng(8)
    a, b = (rng.standard_normal((2, 4000)) * 1e-20).astype(np.float32)
    c = (rng.standard_normal(4000) * 1e-41).astype(np.float32)
    unit = Fraction(2) ** -149  # of the subnormals; round() goes to the nearest, ties to even
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    small = np.array([abs(e) < Fraction(2) ** -126 for e in exact])
    expected = np.array([float(round(e / unit) * unit) for e in exact], np.float32)
    assert small.sum() > 3000
    np.testing.assert_array_equal(ops.fma32(a, b, c)[small], expected[small])


def test_tf32_keeps_nan_and_infinity() -> None:
    x = np.array([0x7FFFFFFF, 0x7F800000, 0xFF800000, 0x3F800FFF, 0x3F801000], np.uint32).view(np.float32)
    rounded = ops.tf32(x)
    assert np.isnan(rounded[0]) and rounded[1:3].tolist() == [np.inf, -np.inf]
    assert rounded[3:].view(np.uint32).tolist() == [0x3F800000, 0x3F802000]


def test_python_threads_may_launch_at_the_same_time() -> None:
    """Allocations, copies and launches of several Python threads do not get in each other's way."""
    from concurrent.futures import ThreadPoolExecutor

    gpu = Runner.of(simulator)
    gpu.module = gpu.compile(SOURCE, ("tickets",))
    kernel, counter = gpu.kernel("tickets"), ints(1)

    def work(_: int) -> list[int]:
        out = ints(64)
        gpu.launch(kernel, 1, 64, counter, out)
        return host(out).tolist()

    with ThreadPoolExecutor(8) as pool:
        found = [ticket for some in pool.map(work, range(64)) for ticket in some]
    assert sorted(found) == list(range(64 * 64))


COMPUTING = r"""
#include <cuda_fp16.h>

__global__ void reduce_after_volatile(const int* p, int* out, int n)
{
    int sum = 0;
    if (threadIdx.x < 16)
        for (int i = 0; i < n; ++i) sum += ((volatile const int*)p)[threadIdx.x];
    out[threadIdx.x] = __reduce_add_sync(0xffffffffu, sum);
}

__global__ void long_loop(const int* p, int* out, int n)
{
    int sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += __ldcg(p + i);
    atomicAdd(out, sum);
}

__global__ void plain_poll(int* flag, int* out)
{
    int b = blockIdx.x;
    if (threadIdx.x != 0) return;
    if (b != gridDim.x - 1)
        while (flag[b + 1] == 0) __threadfence();
    out[b] = 1;
    __threadfence();
    flag[b] = 1;
}

__global__ void half_math(const half* x, half* out) { out[threadIdx.x] = hsqrt(x[threadIdx.x]); }

__device__ int v = 5;
__global__ void bump(int* out) { out[0] = v++; }

__global__ void says(int* out) { out[threadIdx.x] = printf("%hd %hhx|", 70000, 0x1ff); }
"""


def compiled(name: str) -> Any:
    gpu = Runner.of(simulator)
    gpu.module = gpu.compile(COMPUTING, (name,))
    return gpu.kernel(name)


@pytest.mark.parametrize("n", [100, 800, 3000])
def test_a_loop_that_computes_without_writing_is_no_wait(n: int) -> None:
    """Lanes at a warp operation wait for those in a long loop of volatile loads."""
    out = ints(32)
    Runner.of(simulator).launch(
        compiled("reduce_after_volatile"), 1, 32, to_device(np.ones(64, np.int32)), out, np.int32(n)
    )
    assert host(out).tolist() == [16 * n] * 32


def test_a_long_loop_of_cached_loads_is_no_deadlock() -> None:
    n, out = 20_000 * 32, ints(1)
    Runner.of(simulator).launch(compiled("long_loop"), 1, 32, to_device(np.ones(n, np.int32)), out, np.int32(n))
    assert host(out)[0] == n


def test_a_plain_load_and_a_fence_are_a_way_to_poll() -> None:
    out = ints(150)
    Runner.of(simulator).launch(compiled("plain_poll"), 150, 512, ints(151), out)
    assert host(out).sum() == 150


def test_half_precision_mathematics() -> None:
    x, out = np.linspace(0, 9, 32).astype(np.float16), Runner.of(simulator).zeros(32, np.float16)
    Runner.of(simulator).launch(compiled("half_math"), 1, 32, to_device(x), out)
    np.testing.assert_array_equal(host(out), np.sqrt(x))


def test_printf_truncates_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    out = ints(2)
    Runner.of(simulator).launch(compiled("says"), 1, 2, out)
    assert host(out).tolist() == [2, 2] and capsys.readouterr().out == "4464 ff|" * 2


def fresh_module() -> Any:
    options = simulator.ProgramOptions(std="c++17")
    source = '__device__ int v = 5;\nextern "C" __global__ void bump(int* out) { out[0] = v++; }'
    return simulator.Program(source, "c++", options).compile("cubin")


def test_a_variable_keeps_its_module_alive() -> None:
    import gc

    stream = Runner.of(simulator).stream
    variable = simulator.get_global(fresh_module(), "v")
    gc.collect()
    others = [to_device(np.full(64, 42, np.int32)) for _ in range(20)]
    variable.fill(7, stream=stream)
    assert all((host(other) == 42).all() for other in others)


def test_a_graph_keeps_its_kernels_modules_alive() -> None:
    import gc

    stream, out = Runner.of(simulator).stream, ints(1)
    builder = stream.create_graph_builder().begin_building()
    simulator.launch(builder, simulator.LaunchConfig(grid=1, block=1), fresh_module().get_kernel("bump"), out.buffer)
    graph = builder.end_building().complete()
    gc.collect()
    others = [to_device(np.full(64, 99, np.int32)) for _ in range(20)]
    found = []
    for _ in range(3):
        graph.launch(stream)
        found.append(int(host(out)[0]))
    assert found == [5, 6, 7] and all((host(other) == 99).all() for other in others)


def test_a_changed_header_is_compiled_again(tmp_path: Any) -> None:
    found = []
    for include in ('#include "mine.cuh"', "#include <mine.cuh>"):
        for number in (1, 2):
            (tmp_path / "mine.cuh").write_text(f"#define NUMBER {number}\n")
            source = f'{include}\nextern "C" __global__ void f(int* out) {{ out[0] = NUMBER; }}'
            options = simulator.ProgramOptions(std="c++17", include_path=[str(tmp_path)])
            out = ints(1)
            kernel = simulator.Program(source, "c++", options).compile("cubin").get_kernel("f")
            Runner.of(simulator).launch(kernel, 1, 1, out)
            found.append(int(host(out)[0]))
    assert found == [1, 2, 1, 2]


def test_a_size_that_is_no_integer_harms_nothing() -> None:
    device, stream = Runner.of(simulator).device, Runner.of(simulator).stream
    with pytest.raises(TypeError):
        device.allocate(1000 / 2, stream=stream)
    assert device.allocate(500, stream=stream).size == 500


@pytest.mark.simulator
@pytest.mark.parametrize(("shape", "error"), [((2**32, 2**32), errors.SimulatorError), ((-2, -3), ValueError)])
def test_impossible_shapes_are_refused(shape: tuple[int, int], error: type[Exception]) -> None:
    from common import gpu

    with pytest.raises(error):
        gpu.empty(shape, np.float32, Runner.of(simulator).stream)


ROUNDING = r"""
#include <cuda_bf16.h>
__global__ void f32(const float* x, float* o) { o[0] = __fadd_rd(x[0], -x[0]); o[1] = __fadd_rn(x[0], -x[0]);
    o[2] = __fmaf_rd(x[1], x[2], x[3]); }
__global__ void f64(const double* x, double* o) { o[0] = __dmul_rz(x[0], x[0]); o[1] = __dmul_ru(x[1], x[1]);
    o[2] = __dadd_rz(x[2], x[2]); o[3] = __dmul_ru(x[0], x[0]); o[4] = __dadd_rd(x[3], -x[3]);
    o[5] = __fma_rn(x[4], x[3], x[4]); o[6] = __fma_rz(1.0, x[5], x[6]); o[7] = __dmul_rd(x[1], x[1]);
    o[8] = __dmul_rd(x[4] * x[4], x[2]); }
__global__ void bf16(const __nv_bfloat16* x, __nv_bfloat16* o) { o[0] = __hfma(x[0], x[1], x[2]); }
"""


def rounded(name: str, x: np.ndarray, count: int) -> np.ndarray:
    gpu = Runner.of(simulator)
    gpu.module = gpu.compile(ROUNDING, (name,))
    out = gpu.zeros(count, x.dtype)
    gpu.launch(name, 1, 1, to_device(x), out)
    return host(out)


def test_directed_rounding_at_the_ends_of_the_range() -> None:
    single = rounded("f32", np.array([1.5, 1e-30, 2e-30, -1e-45], np.float32), 3)
    assert single[0] == 0 and np.signbit(single[0]) and not np.signbit(single[1])
    assert single[2] == np.float32(-1e-45) and single[2] < 0  # 2e-60 - 1.4e-45, rounded down
    largest, least = np.finfo(np.float64).max, 5e-324
    double = rounded("f64", np.array([1e200, 1e-200, largest, 3.0, -0.0, -1e301, 0.68]), 9)
    assert double[:4].tolist() == [largest, least, largest, np.inf]
    assert double[4] == 0 and np.signbit(double[4]) and double[5] == 0 and np.signbit(double[5])
    assert double[6] == np.nextafter(-1e301, 0) and double[7] == 0
    assert double[8] == 0 and not np.signbit(double[8])


def test_bf16_rounds_once() -> None:
    from common.verify import bf16_to_float32, float32_to_bf16

    x = float32_to_bf16(np.array([1.015625, 1.25, 2.0**-100], np.float32))
    assert bf16_to_float32(rounded("bf16", x, 1))[0] == 1.2734375  # just above the tie


def test_too_much_static_shared_memory_is_refused() -> None:
    gpu = Runner.of(simulator)
    source = "__global__ void f(int* o) { __shared__ int s[15000]; s[threadIdx.x] = *o; __syncthreads(); *o = s[0]; }"
    gpu.module = gpu.compile(source, ("f",))
    with pytest.raises(errors.SimulatorError, match="60000 bytes of static shared memory"):
        gpu.kernel("f")
