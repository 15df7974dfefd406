"""The traps that a SIMT simulator falls into, and what it must say when a kernel breaks a rule."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import common.simt.api as simulator
from common.simt import compiler, errors, scheduler
from tests.simt_cases.harness import DeviceArray, Runner

# The errors expected here, in one place.
OUT_OF_BOUNDS = errors.IllegalAddress
MISALIGNED = errors.MisalignedAddress
HANG = errors.Deadlock
BAD_LAUNCH = errors.LaunchError
UNSUPPORTED = errors.SimulatorUnsupported
ANY = errors.SimulatorError

pytestmark = pytest.mark.timeout(60)


def run(source: str, name: str, *args: Any, grid: Any = 1, block: Any = 64, **options: Any) -> Runner:
    """Compile, launch and synchronise; an int array argument becomes device memory."""
    gpu = Runner.of(simulator)
    gpu.module = gpu.compile(source, (name,))
    gpu.launch(name, grid, block, *args, **options)
    gpu.sync()
    return gpu


def ints(count: int, value: int = 0) -> DeviceArray:
    return Runner.of(simulator).full(count, value, np.int32)


def host(array: DeviceArray) -> np.ndarray:
    return Runner.of(simulator).to_host(array)


def line_of(source: str, mark: str) -> int:
    return next(i for i, line in enumerate(source.splitlines(), 1) if mark in line)


# ------------------------------------------------------- 1. locks, flags; and converged warps stay together
LOCKS = r"""
__global__ void naive_lock(int* mutex, volatile int* count)
{
    // All lanes of a warp compete, the winner is not at the loop's end: lock step would never let it on.
    while (atomicCAS(mutex, 0, 1) != 0) { }
    __threadfence();
    *count = *count + 1;
    __threadfence();
    atomicExch(mutex, 0);
}

__global__ void wait_for_lane(volatile int* flag, int* out)
{
    // Lane 0 stands behind the loop in which the others wait for it.
    if (threadIdx.x != 0)
        while (flag[blockIdx.x] == 0) { }
    else {
        int sum = 0;
        for (int i = 0; i < 500; ++i) sum += i ^ blockIdx.x;
        out[blockIdx.x] = sum;
        __threadfence();
        flag[blockIdx.x] = 1;
    }
}

__global__ void ping_pong(volatile int* turn, int rounds)
{
    // Two blocks take turns through one flag.
    for (int i = 0; i < rounds; ++i) {
        while (*turn % 2 != (int)blockIdx.x) { }
        *turn = *turn + 1;
        __threadfence();
    }
}
"""


@pytest.mark.parametrize(("grid", "block"), [(1, 32), (4, 40)])
def test_lock_taken_by_every_lane(grid: int, block: int) -> None:
    mutex, count = ints(1), ints(1)
    run(LOCKS, "naive_lock", mutex, count, grid=grid, block=block)
    assert host(count)[0] == grid * block and host(mutex)[0] == 0


def test_lanes_wait_for_a_lane_of_their_warp() -> None:
    flag, out = ints(3), ints(3)
    run(LOCKS, "wait_for_lane", flag, out, grid=3, block=64)
    assert host(out).tolist() == [sum(i ^ b for i in range(500)) for b in range(3)]


def test_blocks_take_turns() -> None:
    turn = ints(1)
    run(LOCKS, "ping_pong", turn, np.int32(50), grid=2, block=1)
    assert host(turn)[0] == 100


CONVERGED = r"""
__global__ void long_loops(const int* __restrict__ trips, int* __restrict__ lanes, int* __restrict__ sums)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, sum = 0;
    for (int k = 0; k < trips[i]; ++k) sum += k & 3;
    lanes[i] = __popc(__activemask());         // all lanes that left the loop, at whatever time
    sums[i] = sum;
}
"""


def test_rotation_does_not_split_warps_without_a_spin_loop() -> None:
    gpu = Runner.of(simulator)
    trips = np.random.default_rng(1).integers(0, 300, 256).astype(np.int32)
    lanes, sums = ints(256), ints(256)
    run(CONVERGED, "long_loops", gpu.to_device(trips), lanes, sums, grid=4, block=64)
    assert host(lanes).tolist() == [32] * 256
    assert host(sums).tolist() == [sum(k & 3 for k in range(t)) for t in trips]


# -------------------------------------------------------------- 2. a block may wait for one that starts later
LATER = r"""
__global__ void last_block_first(volatile int* flag, int* out)
{
    int b = blockIdx.x;
    if (threadIdx.x == 0) {
        if (b != (int)gridDim.x - 1)
            while (flag[b + 1] == 0) { }
        out[b] = b == (int)gridDim.x - 1 ? 1 : out[b + 1] + 1;
        __threadfence();
        flag[b] = 1;
    }
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) atomicAdd(&out[gridDim.x], 1);
}
"""


def test_block_waits_for_a_later_block() -> None:
    """150 blocks of 512: more threads than one chunk of the simulator, few enough for a GPU to hold at once."""
    blocks = 150
    flag, out = ints(blocks), ints(blocks + 1)
    run(LATER, "last_block_first", flag, out, grid=blocks, block=512)
    assert host(out).tolist() == [*range(blocks, 0, -1), blocks]


# ------------------------------------------------------------------- 3. warp operations wait for their lanes
WARP = r"""
#define FULL 0xffffffffu

__global__ void late_lanes(int* out)
{
    int lane = threadIdx.x % 32, v = lane;
    if (lane < 20)
        for (int k = 0; k < 100 + lane; ++k) v = (v * 5 + 1) & 1023;
    int sum = __reduce_add_sync(FULL, v);      // nobody may go ahead of those 20
    int next = __shfl_sync(FULL, v, lane + 1);
    out[threadIdx.x] = sum * 2048 + next;
}

__global__ void exchange_through_memory(int* out)
{
    __shared__ volatile int s[64];
    int t = threadIdx.x, lane = t % 32;
    if (lane < 16) {
        for (int k = 0; k < 10 * lane; ++k) s[t] = k;
        s[t] = t + 1;
    } else {
        s[t] = 100 * t;
    }
    __syncwarp();
    out[t] = s[t ^ 31];
}

__global__ void sync_on_both_sides(int* out)
{
    __shared__ volatile int s[32];
    int lane = threadIdx.x;
    s[lane] = 0;
    if (lane % 2) {
        s[lane] = lane * 3;
        __syncwarp();
        out[lane] = s[lane - 1];
    } else {
        for (int k = 0; k < 70; ++k) s[lane] = k + lane;
        __syncwarp();
        out[lane] = s[lane + 1];
    }
}

__global__ void some_have_left(unsigned* out)
{
    int lane = threadIdx.x % 32;
    if (lane >= 20) return;
    // The mask names lanes that have left: the hardware does not wait for them, nor may the simulator.
    out[threadIdx.x] = __ballot_sync(FULL, lane % 2);
}

__global__ void loop_with_shuffle(const int* __restrict__ trips, int* out)
{
    int lane = threadIdx.x % 32, v = lane;
    for (int k = 0; k < trips[threadIdx.x / 32]; ++k) v += __shfl_xor_sync(FULL, v, 1 << (k % 5));
    out[threadIdx.x] = v;
}
"""


def test_warp_operation_waits_for_late_lanes() -> None:
    out = ints(64)
    run(WARP, "late_lanes", out)
    values = []
    for lane in range(32):
        v = lane
        for _ in range(100 + lane if lane < 20 else 0):
            v = (v * 5 + 1) & 1023
        values.append(v)
    assert host(out).tolist() == [sum(values) * 2048 + values[(lane + 1) % 32] for lane in range(32)] * 2


def test_syncwarp_orders_shared_memory() -> None:
    out = ints(64)
    run(WARP, "exchange_through_memory", out)
    stored = [t + 1 if t % 32 < 16 else 100 * t for t in range(64)]
    assert host(out).tolist() == [stored[t ^ 31] for t in range(64)]


def test_syncwarp_at_two_places() -> None:
    out = ints(32)
    run(WARP, "sync_on_both_sides", out, block=32)
    stored = [lane * 3 if lane % 2 else 69 + lane for lane in range(32)]
    assert host(out).tolist() == [stored[lane ^ 1] for lane in range(32)]


def test_ballot_after_lanes_have_left() -> None:
    out = ints(64, -1)
    run(WARP, "some_have_left", out)
    assert host(out).tolist() == ([0xAAAAA] * 20 + [-1] * 12) * 2


def test_shuffle_in_loops_of_different_length() -> None:
    gpu, trips = Runner.of(simulator), np.array([3, 0, 7, 1], np.int32)
    out = ints(128)
    run(WARP, "loop_with_shuffle", gpu.to_device(trips), out, block=128)
    expected = []
    for count in trips:
        v = np.arange(32)
        for k in range(count):
            v = v + v[np.arange(32) ^ (1 << (k % 5))]
        expected += v.tolist()
    assert host(out).tolist() == expected


# ---------------------------------------------------------------- 4. barriers and threads that have left
BARRIER = r"""
__global__ void leave_late(int* out)
{
    __shared__ volatile int mark;
    int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) mark = 5;
    if (warp == 2) {
        for (int k = 0; k < 400; ++k) mark = 6 + k % 2;
        return;                                // the others are waiting already
    }
    __syncthreads();
    out[threadIdx.x] = mark;
}

__global__ void again_and_again(int* out, int rounds)
{
    __shared__ int s[96];
    int t = threadIdx.x;
    s[t] = t;
    for (int k = 0; k < rounds; ++k) {
        __syncthreads();
        int v = s[(t + 1) % 96];
        __syncthreads();
        s[t] = v;
    }
    out[t] = s[t];
}
"""


def test_barrier_is_rechecked_when_threads_leave() -> None:
    out = ints(96, -1)
    run(BARRIER, "leave_late", out, block=96)
    assert host(out).tolist() == [7] * 64 + [-1] * 32


def test_many_barriers_rotate_an_array() -> None:
    out = ints(96)
    run(BARRIER, "again_and_again", out, np.int32(130), block=96)
    assert host(out).tolist() == [(t + 130) % 96 for t in range(96)]


# ----------------------------------------------------------- 5. masked writes must not alias rotated registers
ROTATE = r"""
__global__ void fibonacci(unsigned* out)
{
    unsigned a = 0, b = 1;
    for (int k = 0; k < (int)threadIdx.x; ++k) { unsigned next = a + b; a = b; b = next; }
    out[threadIdx.x] = a;
}

__global__ void three_ways(int* out)
{
    int a = threadIdx.x, b = 100, c = 1000;
    for (int k = 0; k < (int)(threadIdx.x * 7) % 13; ++k) {
        int t = a;
        a = b; b = c; c = t;
        if (k % 3 == (int)threadIdx.x % 3) a += 1;
    }
    out[threadIdx.x] = a * 3 + b * 5 + c * 7;
}
"""


def test_rotating_registers() -> None:
    out, other = ints(64), ints(64)
    run(ROTATE, "fibonacci", out)
    run(ROTATE, "three_ways", other)
    series = [0, 1]
    while len(series) < 64:
        series.append((series[-1] + series[-2]) % 2**32)
    assert host(out).view(np.uint32).tolist() == series
    expected = []
    for t in range(64):
        a, b, c = t, 100, 1000
        for k in range(t * 7 % 13):
            a, b, c = b + (k % 3 == t % 3), c, a
        expected.append(a * 3 + b * 5 + c * 7)
    assert host(other).tolist() == expected


# --------------------------------------------------------------- 6. a contended compare-and-swap in good time
CONTENDED = r"""
__global__ void multiply(unsigned* product, unsigned* tries)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, seen = *product, assumed, count = 0;
    do {
        assumed = seen;
        seen = atomicCAS(product, assumed, assumed * (2 * i + 1));
        ++count;
    } while (seen != assumed);
    atomicAdd(tries, count);
}

__global__ void one_address(unsigned long long* sum, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(sum, (unsigned long long)i);
}
"""


@pytest.mark.timeout(20)
def test_contended_compare_and_swap() -> None:
    product, tries = ints(1, 1), ints(1)
    run(CONTENDED, "multiply", product, tries, grid=8, block=128)
    expected = 1
    for i in range(1024):
        expected = expected * (2 * i + 1) % 2**32
    assert int(host(product).view(np.uint32)[0]) == expected
    assert host(tries)[0] >= 1024


@pytest.mark.timeout(20)
def test_every_thread_adds_to_one_address() -> None:
    total, n = Runner.of(simulator).zeros(1, np.uint64), 200_000
    run(CONTENDED, "one_address", total, np.int32(n), grid=(n + 255) // 256, block=256)
    assert int(host(total)[0]) == n * (n - 1) // 2


# ------------------------------------------------------------------------------------ 7. the watchdog
SPIN = r"""
__global__ void wait_forever(volatile int* flag)
{
    while (*flag == 0) { }                     // SPIN
}

__global__ void lock_never_freed(int* mutex, int* out)
{
    while (atomicCAS(mutex, 0, 1) != 0) { }
    out[threadIdx.x] = 1;
}

__global__ void barrier_not_reached(int* out)
{
    if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory");
    else asm volatile("bar.sync 2, 64;" ::: "memory");
    out[threadIdx.x] = 1;
}

__global__ void one_waits_for_the_other(volatile int* flag)
{
    if (threadIdx.x < 32) {
        __syncthreads();
        *flag = 1;
    } else {
        while (*flag == 0) { }                 // set behind a barrier that this warp does not reach
        __syncthreads();
    }
}

__global__ void half_a_warp_at_the_barrier(volatile int* flag)
{
    __shared__ volatile int ready;
    ready = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        while (ready == 0) { }
    } else if (threadIdx.x == 1) {
        __syncthreads();
        ready = 1;
    }
}
"""


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wait_forever", ["wait_forever"]),
        ("lock_never_freed", ["lock_never_freed"]),
        ("barrier_not_reached", ["barrier_not_reached", "barrier"]),
        ("one_waits_for_the_other", ["one_waits_for_the_other"]),
        ("half_a_warp_at_the_barrier", ["half_a_warp_at_the_barrier"]),
    ],
)
def test_hang_becomes_an_error(name: str, words: list[str]) -> None:
    arguments = [ints(1)] + ([ints(64)] if name == "lock_never_freed" else [])
    if name == "barrier_not_reached":
        arguments = [ints(64)]
    with pytest.raises(HANG) as caught:
        run(SPIN, name, *arguments, grid=2, block=64)
    for word in words:
        assert word in str(caught.value)


def test_spin_error_names_the_line() -> None:
    with pytest.raises(HANG, match=rf"line {line_of(SPIN, '// SPIN')}\b"):
        run(SPIN, "wait_forever", ints(1))


# ---------------------------------------------------------------------- 8. reconvergence at post-dominators
JOIN = r"""
// In each kernel every lane reaches the end: 32 must be active there, however the compiler laid the blocks out.
__device__ __noinline__ int step(int v) { return v % 3 ? (v * 5 + 1) & 0xFFFF : v / 3 + 7; }

__global__ void if_else_chain(int* out)
{
    int t = threadIdx.x, v = t;
    if (t % 5 == 0) { for (int k = 0; k < t; ++k) v = step(v); }
    else if (t % 5 == 1) v = step(v) - 1;
    else if (t % 5 == 2) { v = t * t; if (t > 20) v = step(step(v)); }
    out[t] = v;
    out[64 + t] = __popc(__activemask());
}

__global__ void leave_from_the_middle(int* out)
{
    int t = threadIdx.x, v = t, k = 0;
    while (true) {
        v = step(v);
        if (v % 7 == t % 7) { v += 1000; break; }
        if (++k > t) { v -= 50; break; }
        if (v & 1) continue;
        v += 2;
    }
    out[t] = v;
    out[64 + t] = __popc(__activemask());
}

__global__ void error_path(int* out)
{
    int t = threadIdx.x, v = t, bad = 0;
    for (int k = 0; k < 5; ++k) {
        if ((t ^ k) % 6 == 5) { bad = k + 1; goto failed; }
        v += step(k + t);
    }
    v = -v;
    goto done;
failed:
    v = bad * 10000 + v;
done:
    out[t] = v;
    out[64 + t] = __popc(__activemask());
}
"""


def step(v: int) -> int:
    return (v * 5 + 1) & 0xFFFF if v % 3 else v // 3 + 7


def if_else_chain(t: int) -> int:
    v = t
    if t % 5 == 0:
        for _ in range(t):
            v = step(v)
    elif t % 5 == 1:
        v = step(v) - 1
    elif t % 5 == 2:
        v = step(step(t * t)) if t > 20 else t * t
    return v


def leave_from_the_middle(t: int) -> int:
    v, k = t, 0
    while True:
        v = step(v)
        if v % 7 == t % 7:
            return v + 1000
        k += 1
        if k > t:
            return v - 50
        if v & 1:
            continue
        v += 2


def error_path(t: int) -> int:
    v = t
    for k in range(5):
        if (t ^ k) % 6 == 5:
            return (k + 1) * 10000 + v
        v += step(k + t)
    return -v


@pytest.mark.parametrize("model", [if_else_chain, leave_from_the_middle, error_path])
def test_warps_come_together_again(model: Callable[[int], int]) -> None:
    out = ints(128)
    run(JOIN, model.__name__, out)
    got = host(out)
    assert got[:64].tolist() == [model(t) for t in range(64)]
    assert got[64:].tolist() == [32] * 64


# ------------------------------------------------------------------------------------------- memory faults
MEMORY = r"""
__global__ void copy(const int* x, int* y, int shift)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int v = x[i + shift];                      // LOAD
    y[i] = v;                                  // STORE
}

__global__ void add(int* y, int index) { atomicAdd(&y[index], 1); }    // ATOMIC

__global__ void misaligned(const char* x, int* y)
{
    y[threadIdx.x] = *(const int*)(x + threadIdx.x);
}

__global__ void misaligned_vector(const float* x, float* y)
{
    *(float4*)(y + threadIdx.x) = *(const float4*)x;
}

__global__ void shared_static(int* y, int scale)
{
    __shared__ int s[64];
    s[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x * scale];   // SHARED
}

__global__ void shared_dynamic(int* y, int scale)
{
    extern __shared__ int d[];
    d[threadIdx.x * scale] = threadIdx.x;      // DYNAMIC
    __syncthreads();
    y[threadIdx.x] = d[0];
}

__device__ int table[4] = {1, 2, 3, 4};
__global__ void device_variable(int* y, int index) { y[0] = table[index]; }

__global__ void fine(int* y) { y[threadIdx.x] = 7; }
"""


def fault(kind: type[Exception], name: str, *args: Any, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        run(MEMORY, name, *args, **options)
    return str(caught.value)


def names_place(text: str, kernel: str, mark: str, block: int, thread: int) -> None:
    line = line_of(MEMORY, mark)
    assert kernel in text and re.search(rf"\bline {line}\b", text), text
    assert re.search(rf"block \({block}, ?0, ?0\)", text) and re.search(rf"thread \({thread}, ?0, ?0\)", text), text


@pytest.mark.parametrize(("size_x", "size_y", "mark"), [(100, 192, "// LOAD"), (192, 100, "// STORE")])
def test_out_of_bounds_names_everything(size_x: int, size_y: int, mark: str) -> None:
    text = fault(OUT_OF_BOUNDS, "copy", ints(size_x), ints(size_y), np.int32(0), grid=3)
    names_place(text, "copy", mark, 1, 36)
    assert "400 bytes" in text and ("read" if "LOAD" in mark else "write") in text


def test_out_of_bounds_before_the_start() -> None:
    keep = ints(1), ints(64), ints(1)
    text = fault(OUT_OF_BOUNDS, "copy", keep[1], ints(64), np.int32(-1))
    names_place(text, "copy", "// LOAD", 0, 0)


def test_one_element_past_the_end_is_noticed() -> None:
    """Also where another allocation follows closely."""
    first, second = ints(64), ints(64)
    text = fault(OUT_OF_BOUNDS, "copy", first, second, np.int32(1))
    names_place(text, "copy", "// LOAD", 0, 63)


def test_atomic_out_of_bounds() -> None:
    names_place(fault(OUT_OF_BOUNDS, "add", ints(8), np.int32(8), block=1), "add", "// ATOMIC", 0, 0)


def test_null_pointer_and_freed_memory() -> None:
    assert "0x0" in fault(OUT_OF_BOUNDS, "fine", np.uint64(0))
    simulator.reset()
    freed = ints(64)
    address = int(freed.buffer.handle)
    freed.buffer.close()
    fault(OUT_OF_BOUNDS, "fine", np.uint64(address))


def test_device_variable_out_of_bounds_is_named() -> None:
    assert "table" in fault(OUT_OF_BOUNDS, "device_variable", ints(4), np.int32(4), block=1)


def test_misaligned() -> None:
    text = fault(MISALIGNED, "misaligned", ints(64), ints(64), block=32)
    assert "misaligned" in text and re.search(r"thread \(1, ?0, ?0\)", text)
    simulator.reset()
    fault(MISALIGNED, "misaligned_vector", ints(64), ints(64), block=2)


def test_shared_memory_out_of_bounds() -> None:
    text = fault(OUT_OF_BOUNDS, "shared_static", ints(64), np.int32(3))
    names_place(text, "shared_static", "// SHARED", 0, 22)
    assert "shared" in text and "256 bytes" in text
    simulator.reset()
    text = fault(OUT_OF_BOUNDS, "shared_dynamic", ints(64), np.int32(2), shmem=256)
    names_place(text, "shared_dynamic", "// DYNAMIC", 0, 32)


def test_fault_surfaces_at_the_synchronisation_and_sticks() -> None:
    gpu = Runner.of(simulator)
    small, good = ints(8), ints(64)
    gpu.module = gpu.compile(MEMORY, ("fine",))
    kernel = gpu.kernel("fine")
    gpu.launch(kernel, 1, 64, small)  # does not raise
    with pytest.raises(OUT_OF_BOUNDS):
        gpu.sync()
    for again in (gpu.sync, lambda: gpu.launch(kernel, 1, 64, good), lambda: gpu.to_host(good), gpu.device.sync):
        with pytest.raises(OUT_OF_BOUNDS):
            again()
    simulator.reset()
    gpu.launch(kernel, 1, 64, good)
    assert gpu.to_host(good).tolist() == [7] * 64


def test_faults_are_cuda_errors() -> None:
    from cuda.core._utils.cuda_utils import CUDAError

    for kind in (OUT_OF_BOUNDS, MISALIGNED, HANG, BAD_LAUNCH, UNSUPPORTED):
        assert issubclass(kind, ANY) and issubclass(kind, CUDAError)


# ---------------------------------------------------------------------------------------- bad launches
LAUNCH = r"""
__global__ void one(int* y) { y[threadIdx.x + blockDim.x * threadIdx.y] = 1; }
__global__ void three(int* y, float a, long long n) { if (threadIdx.x < n) y[threadIdx.x] = (int)a; }
__global__ void __launch_bounds__(128) bounded(int* y) { y[threadIdx.x] = 1; }
__global__ void large(int* y) { __shared__ int s[10000]; s[threadIdx.x] = 1; y[threadIdx.x] = s[threadIdx.x]; }
"""


@pytest.mark.parametrize(
    ("name", "grid", "block", "shmem"),
    [
        ("one", 1, 1025, 0),
        ("one", 1, (32, 33), 0),
        ("one", 1, (1, 1, 65), 0),
        ("one", (1, 65536), 1, 0),
        ("one", (1, 1, 65536), 1, 0),
        ("one", 1, 1, 48 * 1024 + 1),
        ("one", 1, 1, 1 << 20),
        ("large", 1, 1, 9200),
        ("bounded", 1, 256, 0),
    ],
)
def test_bad_launch_raises_at_once(name: str, grid: Any, block: Any, shmem: int) -> None:
    gpu = Runner.of(simulator)
    gpu.module = gpu.compile(LAUNCH, (name,))
    with pytest.raises(BAD_LAUNCH):
        gpu.launch(name, grid, block, ints(256), shmem=shmem)
    gpu.sync()  # a refused launch is no fault: the device is well


@pytest.mark.parametrize(("grid", "block"), [(1, 0), (0, 1), (1, (1, 0))])
def test_no_threads(grid: Any, block: Any) -> None:
    gpu = Runner.of(simulator)
    gpu.module = gpu.compile(LAUNCH, ("one",))
    with pytest.raises((BAD_LAUNCH, ValueError)):  # cuda.core's LaunchConfig refuses it itself
        gpu.launch("one", grid, block, ints(256))


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("y", np.float32(1)),
        ("y", np.float32(1), np.int64(4), np.int32(1)),
        ("y", np.float64(1), np.int64(4)),
        ("y", np.float32(1), np.int32(4)),
        (np.int32(0), np.float32(1), np.int64(4)),
    ],
    ids=["none", "one missing", "one too many", "float64 for float", "int32 for long long", "int32 for a pointer"],
)
def test_wrong_arguments(arguments: tuple[Any, ...]) -> None:
    gpu = Runner.of(simulator)
    gpu.module = gpu.compile(LAUNCH, ("three",))
    plain = [ints(64) if value == "y" else value for value in arguments]
    with pytest.raises(BAD_LAUNCH, match="three"):
        gpu.launch("three", 1, 32, *plain)


@pytest.mark.parametrize("value", [np.zeros(3), "text", None, [1, 2]])
def test_argument_of_no_use(value: Any) -> None:
    gpu = Runner.of(simulator)
    gpu.module = gpu.compile(LAUNCH, ("one",))
    with pytest.raises(TypeError):
        gpu.launch("one", 1, 32, value)


def test_cooperative_grid_too_large() -> None:
    gpu = Runner.of(simulator)
    gpu.module = gpu.compile(LAUNCH, ("one",))
    with pytest.raises(
        ValueError, match=r"grid size \(1000000 \* 1 \* 1\) exceeds the limit \(32\)"
    ):  # as cuda.core says
        gpu.launch("one", 1_000_000, 1024, ints(1024), cooperative=True)


# ------------------------------------------------------------------------- what the simulator does not do
STRANGE = r"""
__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
__global__ void recursive(int* y) { y[0] = fibonacci(y[1]); }

__global__ void texture(float* y, unsigned long long handle)
{
    float a, b, c, d;
    asm volatile("tex.1d.v4.f32.s32 {%0, %1, %2, %3}, [%4, {%5}];"
                 : "=f"(a), "=f"(b), "=f"(c), "=f"(d)
                 : "l"(handle), "r"(3));                                       // TEXTURE
    y[0] = a + b + c + d;
}

__global__ void no_such_opcode(int* y)
{
    int v;
    asm volatile("frobnicate.sync.b32 %0, %1;" : "=r"(v) : "r"(3));    // OPCODE
    y[0] = v;
}

__global__ void clocks(long long* y) { y[0] = clock64(); }

__global__ void plain(int* y) { y[0] = 42; }
"""


@pytest.mark.parametrize(
    ("name", "words", "mark"),
    [
        ("texture", "tex.1d", "// TEXTURE"),
        ("no_such_opcode", "frobnicate", "// OPCODE"),
        ("clocks", "time", None),
        ("recursive", "recursion", None),
    ],
)
def test_unsupported_says_what(name: str, words: str, mark: str | None) -> None:
    arguments = [ints(64)] + ([np.uint64(0)] if name == "texture" else [])
    with pytest.raises(UNSUPPORTED) as caught:
        run(STRANGE, name, *arguments, block=1)
    text = str(caught.value)
    assert words in text, text
    if mark:
        assert re.search(rf"\bline {line_of(STRANGE, mark)}\b", text), text
    if name == "recursive":
        assert "fibonacci" in text, text


def test_other_kernels_of_such_a_module_run() -> None:
    out = ints(1)
    run(STRANGE, "plain", out, block=1)
    assert host(out)[0] == 42


def test_compile_error_shows_nvrtcs_text() -> None:
    gpu = Runner.of(simulator)
    with pytest.raises(Exception, match="undefined_name") as caught:
        gpu.compile("__global__ void broken(int* y) { y[0] = undefined_name; }", ("broken",))
    assert "\0" not in str(caught.value)


def test_unknown_kernel_name() -> None:
    gpu = Runner.of(simulator)
    module = gpu.compile(LAUNCH, ("one",))
    with pytest.raises(ANY, match="missing"):
        module.get_kernel("missing")


def test_garbage_never_disturbs_an_allocation() -> None:
    """Buffers that die while the table of allocations is being changed are given back afterwards."""
    arena = simulator.arena()
    kept = arena.allocate(64)
    arena.free_later(kept.start)
    assert arena.find(kept.start, kept.end) is not None  # nothing happens behind the arena's back
    again = arena.allocate(64)
    assert again.start == kept.start  # the next allocation found the gap
    arena.free(again.start)


def test_a_numpy_view_keeps_pinned_memory_alive() -> None:
    view = np.from_dlpack(simulator.LegacyPinnedMemoryResource().allocate(256))
    view[:] = 7
    other = np.from_dlpack(simulator.LegacyPinnedMemoryResource().allocate(256))
    assert (view == 7).all() and not np.shares_memory(view, other)


MEETING = r"""
__global__ void lock_then_shuffle(int* mutex, int* order, int* out)
{
    // The lanes leave the lock one after the other; the shuffle behind it has to wait for all of them.
    while (atomicCAS(mutex, 0, 1) != 0) { }
    int mine = *(volatile int*)order;
    *(volatile int*)order = mine + 1;
    __threadfence();
    atomicExch(mutex, 0);
    int other = __shfl_xor_sync(0xffffffffu, mine, 1);
    out[threadIdx.x] = mine + other;
}

__global__ void two_barriers(int* out)
{
    // One thread takes another way to the barrier; the barrier counts threads, not places.
    __shared__ int s;
    if (threadIdx.x == 0) s = 1;
    __syncthreads();
    if (threadIdx.x != blockDim.x - 1) {
        asm volatile("bar.sync 0;");
        out[threadIdx.x] = s;
    } else {
        s = 42;
        asm volatile("bar.sync 0;");
        out[threadIdx.x] = -s;
    }
}

__global__ void odd_and_even(const int* x, int* out)
{
    // Neighbouring lanes part and meet again: each must find its own registers.
    int v = x[threadIdx.x], r = 0;
    if (v % 2)
        for (int i = 0; i < v; ++i) r += x[i] ^ i;
    else
        for (int i = v; i > 0; --i) r -= x[i] | i;
    __syncthreads();
    out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, r, 1) + threadIdx.x;
}

__global__ void tickets(const int* take, int* counter, int* out)
{
    out[threadIdx.x] = atomicAdd(&counter[threadIdx.x % 3], take[threadIdx.x]);
}

__global__ void mixed_parameters(char a, double b, short c, int* out, bool d, float e)
{
    out[0] = a; out[1] = (int)(b * 4); out[2] = c; out[3] = d; out[4] = (int)(e * 8);
}
"""


def test_shuffle_waits_for_lanes_that_leave_a_lock_one_by_one() -> None:
    out = ints(32)
    run(MEETING, "lock_then_shuffle", ints(1), ints(1), out, block=32)
    sums = host(out)
    assert (sums[0::2] == sums[1::2]).all() and sums[0::2].sum() == 31 * 32 // 2


def test_barrier_counts_threads_not_places() -> None:
    out = ints(70)
    run(MEETING, "two_barriers", out, block=70)
    assert host(out).tolist() == [42] * 69 + [-42]


def test_neighbours_that_part_find_their_registers_again() -> None:
    x = np.arange(64, dtype=np.int32) * 7 % 61
    out = ints(64)
    run(MEETING, "odd_and_even", Runner.of(simulator).to_device(x), out, block=64)
    odd = [sum(int(x[i]) ^ i for i in range(v)) for v in x]
    even = [-sum(int(x[i]) | i for i in range(1, v + 1)) for v in x]
    assert host(out).tolist() == [(odd if x[t ^ 1] % 2 else even)[t ^ 1] + t for t in range(64)]


def test_atomics_return_what_was_there_before() -> None:
    take = np.random.default_rng(5).integers(-9, 9, 96).astype(np.int32)
    counter, out = ints(3), ints(96)
    run(MEETING, "tickets", Runner.of(simulator).to_device(take), counter, out, block=96)
    got = host(out).reshape(-1, 3)
    expected = np.cumsum(take.reshape(-1, 3), axis=0) - take.reshape(-1, 3)
    assert (got == expected).all() and (host(counter) == take.reshape(-1, 3).sum(0)).all()


def test_parameters_are_aligned_to_their_size() -> None:
    out = ints(5)
    run(
        MEETING, "mixed_parameters", np.int8(-7), np.float64(2.75), np.int16(-300), out, np.bool_(True), np.float32(1.5)
    )
    assert host(out).tolist() == [-7, 11, -300, 1, 12]


def test_shared_memory_one_element_past_the_end() -> None:
    text = fault(OUT_OF_BOUNDS, "shared_static", ints(64), np.int32(2), block=33)
    names_place(text, "shared_static", "// SHARED", 0, 32)


def test_a_handle_that_something_else_owns() -> None:
    """from_handle() tells host memory from device memory whatever keeps it alive."""
    array = ints(4, 7)
    stream = Runner.of(simulator).stream
    again = simulator.Buffer.from_handle(int(array.buffer.handle), 16, owner=array)
    out = np.zeros(4, np.int32)
    again.copy_to(simulator.Buffer.from_handle(out.ctypes.data, 16, owner=out), stream=stream)
    assert again.is_device_accessible and out.tolist() == [7] * 4


def test_compiling_leaves_pythons_own_bytes_alone() -> None:
    """NVRTC writes into the bytes it is given; `b" " * 1` would be an object that all of Python shares."""
    room = compiler._room(1)  # an empty log has one byte
    assert len(room) > 1 and room is not compiler._room(1)


ENDLESS = r"""
__global__ void endless(unsigned* out)
{
    for (unsigned i = 1; i != 0; i = i * 3 | 1) out[threadIdx.x] = i;
}
"""


def test_endless_loop_ends_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "TIME_LIMIT", 1.0)
    with pytest.raises(errors.Deadlock, match=r"kernel endless has run for 1 s, and 64 threads are still at line 4"):
        run(ENDLESS, "endless", ints(64))
