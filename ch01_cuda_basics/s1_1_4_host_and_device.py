# %%
"""1.1.4 CUDA主机与设备之间的协作 — Host and device at work together

本节展示主机与设备如何协作：异步启动、主机同时做自己的工作、事件、跨流依赖，以及错误在哪里出现、怎样捕获。
Asynchronous launches, host work that overlaps with a kernel, events between streams, and where errors surface.

要点
  启动只是把工作放进流里，主机立即继续；要用结果，先在流或事件上同步。
  拷贝要异步，主机内存必须是锁页内存；同一个流中的工作按顺序执行，跨流的先后要用事件规定。
  启动配置的错误当场报告；内核运行中的错误要到下一次同步才出现，而且上下文从此报废，只能结束进程。
Key idea
  A launch puts work into a stream and returns; the host is free until it needs the result. So a wrong launch is
  reported at once, but what a kernel does wrong surfaces at a later synchronisation, and ends the context.

Run:      ./run 1.1.4     or     python ch01_cuda_basics/s1_1_4_host_and_device.py [--size N] [--quick]
Look at:  which call reports which error; that after an illegal access nothing works any more; on a GPU, when the
          launch returned, when the host's own work was done, and when the kernel.
"""

import functools
import os
import subprocess
import sys
import time

import numpy as np

from common import gpu, timing
from common.cli import Unavailable, UsageError, header, not_run, parser, run_main

# in your own code: from cuda.core import Device, EventOptions, LaunchConfig, LegacyPinnedMemoryResource, Program, ...
from common.gpu import Device, EventOptions, LaunchConfig, LegacyPinnedMemoryResource, Program, ProgramOptions, launch
from common.pycuda import load as load_pycuda
from common.report import si, table
from common.results import Row, show
from common.verify import Mismatch, check, checks_table

NEEDS = ()

# %% The kernel
KERNEL = r"""
// A linear congruential generator: `rounds` steps of s = 1664525 s + 1013904223 for each element. Work that takes
// as long as one asks for, with a result that is known exactly.
extern "C" __global__ void advance(unsigned* __restrict__ state, long long n, int rounds)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned s = state[i];
    for (int r = 0; r < rounds; ++r) s = 1664525u * s + 1013904223u;
    state[i] = s;
}
"""
BLOCK = 256


# %% The reference
def reference(state, rounds):
    """`rounds` steps for each element: their composition is one step with another factor and another summand."""
    factor, summand = 1, 0
    for _ in range(rounds):
        factor, summand = 1664525 * factor % 2**32, (1664525 * summand + 1013904223) % 2**32
    return np.uint32(factor) * state + np.uint32(summand)


# %% The host works while the kernel runs
@functools.cache
def compiled():
    """KERNEL, compiled once for the current device."""
    return Program(KERNEL, "c++", ProgramOptions(std="c++17", arch=f"sm_{Device().arch}")).compile("cubin")


def checked(state):
    """The array. TypeError or ValueError unless it is 1-D, uint32 and not empty."""
    if not isinstance(state, np.ndarray) or state.dtype != np.uint32:
        raise TypeError(f"expected a uint32 array, got {getattr(state, 'dtype', type(state).__name__)}")
    if state.ndim != 1 or state.size == 0:
        raise ValueError(f"expected a 1-D array with at least one element, got shape {state.shape}")
    return state


def config_for(n):
    return LaunchConfig(grid=-(-n // BLOCK), block=BLOCK)


def pinned(n):
    """Page-locked memory for n uint32, as a cuda.core Buffer and as a NumPy array, which needs the Buffer alive."""
    buffer = LegacyPinnedMemoryResource().allocate(4 * n)
    return buffer, np.from_dlpack(buffer).view(np.uint32)


def advance(state, rounds, meanwhile=lambda: None):
    """(state after `rounds` steps, as uint32; what `meanwhile()` returned, which ran while the GPU worked)."""
    n = checked(state).size
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    buffer, numbers = pinned(n)
    numbers[:] = state
    d_state = device.allocate(state.nbytes, stream=stream)

    d_state.copy_from(buffer, stream=stream)  # three entries into the stream: they run in this order,
    launch(stream, config_for(n), compiled().get_kernel("advance"), d_state, np.int64(n), np.int32(rounds))
    d_state.copy_to(buffer, stream=stream)
    done = stream.record()  # and this event is reached after them

    by_host = meanwhile()  # nothing has waited so far
    done.sync()
    return numbers.copy(), by_host


def advance_on_two_streams(state, first, second):
    """`first` steps on one stream, then `second` on another, which waits for an event of the first one."""
    n = checked(state).size
    device = Device(0)
    device.set_current()
    one, other = device.create_stream(), device.create_stream()
    buffer, numbers = pinned(n)
    numbers[:] = state
    d_state = device.allocate(state.nbytes, stream=one)
    kernel = compiled().get_kernel("advance")

    d_state.copy_from(buffer, stream=one)
    launch(one, config_for(n), kernel, d_state, np.int64(n), np.int32(first))
    other.wait(one.record())  # the host goes on; without this line the kernels might run at the same time
    launch(other, config_for(n), kernel, d_state, np.int64(n), np.int32(second))
    d_state.copy_to(buffer, stream=other)
    other.sync()
    return numbers.copy()


# %% The same through PyCUDA
def advance_pycuda(state, rounds, meanwhile=lambda: None):
    """As `advance`."""
    # in your own code: import pycuda.autoprimaryctx, pycuda.driver as cuda; from pycuda.compiler import SourceModule
    pycuda = load_pycuda()
    cuda = pycuda.driver
    n = checked(state).size
    kernel = pycuda.SourceModule(KERNEL, no_extern_c=True).get_function("advance")
    stream, done = cuda.Stream(), cuda.Event()
    numbers = cuda.pagelocked_empty(n, np.uint32)
    numbers[:] = state
    d_state = cuda.mem_alloc(numbers.nbytes)

    cuda.memcpy_htod_async(d_state, numbers, stream)
    kernel(d_state, np.int64(n), np.int32(rounds), block=(BLOCK, 1, 1), grid=(-(-n // BLOCK), 1), stream=stream)
    cuda.memcpy_dtoh_async(numbers, d_state, stream)
    done.record(stream)

    by_host = meanwhile()
    done.synchronize()
    return numbers.copy(), by_host


# %% Errors that are reported at once
def immediate_errors():
    """[(what was wrong, which call said so, what it said)]. None of these harms the device: it works on."""
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    module, options = compiled(), ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
    d_state = device.allocate(4, stream=stream)

    def start(config):
        launch(stream, config, module.get_kernel("advance"), d_state, np.int64(1), np.int32(1))

    attempts = {
        ("no semicolon", "Program.compile"): lambda: Program("__device__ int i", "c++", options).compile("cubin"),
        ("no kernel of that name", "get_kernel"): lambda: module.get_kernel("advanced"),
        ("a block of 2048 threads", "launch"): lambda: start(LaunchConfig(grid=1, block=2048)),
        ("1 MiB of shared memory", "launch"): lambda: start(LaunchConfig(grid=1, block=32, shmem_size=1 << 20)),
    }
    found = []
    for (what, call), attempt in attempts.items():
        try:
            attempt()
        except gpu.CUDAError as error:
            lines = str(error).splitlines()
            found.append((what, call, next((line for line in lines if "error:" in line), lines[0])))
        else:
            raise Mismatch(f"{what}: {call} reported no error")
    return found


# %% An error that surfaces later
# A program of its own: an illegal access ends the CUDA context, and with it all that this process does on the GPU.
FAULTY_PROGRAM = r"""
import sys
import numpy as np
from common.gpu import CUDAError, Device, LaunchConfig, Program, ProgramOptions, launch  # as above

device = Device(0)
device.set_current()
stream = device.create_stream()
program = Program(sys.stdin.read(), "c++", ProgramOptions(std="c++17", arch=f"sm_{device.arch}"))
kernel = program.compile("cubin").get_kernel("advance")
nowhere = np.uint64(0)  # the address of memory that nobody allocated

def report(call, function, *arguments):
    try:
        function(*arguments)
        print(call, "no error", sep="\t")
    except CUDAError as error:
        print(call, " ".join(str(error).split()), sep="\t")

report("launch", launch, stream, LaunchConfig(grid=1, block=32), kernel, nowhere, np.int64(32), np.int32(1))
report("stream.sync", stream.sync)
report("device.sync, later", device.sync)
"""


def delayed_error():
    """[(call, what it reported)] of FAULTY_PROGRAM, run in a child process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", FAULTY_PROGRAM]
    done = subprocess.run(command, input=KERNEL, env=environment, capture_output=True, text=True)
    calls = [tuple(line.split("\t")) for line in done.stdout.splitlines() if "\t" in line]
    # the driver says CUDA_ERROR_ILLEGAL_ADDRESS, the runtime library cudaErrorIllegalAddress
    reported = ["illegaladdress" in text.lower().replace("_", "") for _, text in calls]
    if reported != [False, True, True] or calls[0][1] != "no error":
        raise Mismatch(f"expected an error from the second call on, got {calls}\n{done.stderr}")
    return calls


# %% Verify and measure
def random_state(n):
    return np.random.default_rng(114).integers(0, 2**32, n, dtype=np.uint32)


def host_work():
    """What the host has to do anyway, such as preparing the next input. Returns its sum."""
    return float(np.random.default_rng(1).random(1_000_000).sum())


def verify(n, rounds):
    """The checks of the cuda.core variants on n random elements. Raises Mismatch if one is wrong."""
    state, expected, by_hand = random_state(n), reference(random_state(n), rounds), host_work()
    result, by_host = advance(state, rounds, host_work)
    checks = [check("advance", result, expected), check("the host's own work", by_host, by_hand)]
    return [*checks, check("advance_on_two_streams", advance_on_two_streams(state, rounds - 3, 3), expected)]


def benchmark() -> list[Row]:
    """When a launch returns, and how long kernel and host work take alone and at once."""
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    yardsticks = timing.yardsticks(device, stream)
    verify(100_003, 100)
    n, timed = 1 << 16, EventOptions(timing_enabled=True)
    d_state = device.allocate(4 * n, stream=stream)
    d_state.fill(1, stream=stream)
    kernel, taken = compiled().get_kernel("advance"), {}

    def measure(rounds, work):
        """Seconds until the launch returned, until all was done, and those of the kernel by events."""
        config = config_for(n)
        before = stream.record(options=timed)
        start = time.perf_counter()
        launch(stream, config, kernel, d_state, np.int64(n), np.int32(rounds))
        returned = time.perf_counter() - start
        after = stream.record(options=timed)
        work()
        after.sync()
        return returned, time.perf_counter() - start, (after - before) / 1e3

    measure(1000, host_work)
    rounds = int(100_000 * 0.02 / measure(100_000, lambda: None)[2])  # so many that the kernel takes 20 ms
    for _ in range(20):
        start = time.perf_counter()
        host_work()
        taken.setdefault("host work alone", []).append(time.perf_counter() - start)
        taken.setdefault("kernel alone", []).append(measure(rounds, lambda: None)[2])
        returned, total, _ = measure(rounds, host_work)
        taken.setdefault("launch has returned", []).append(returned)
        taken.setdefault("both at once", []).append(total)
    what = {"section": "1.1.4", "size": "2^16", "dtype": "u32", "yardsticks": yardsticks}
    return [Row.from_timing(name=k, timing=timing.Timing.of(v), **what) for k, v in taken.items()]


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=100_003, quick_size=20_003).parse_args(argv)
    device = Device(0)
    device.set_current()
    header(__doc__, device)
    if 8 * options.size > gpu.free_memory():
        raise UsageError(f"--size {options.size} needs more than the {gpu.free_memory():,} bytes that are free")
    rounds = 20 if gpu.SIMULATED else 20_000
    checks = verify(options.size, rounds)
    state = random_state(options.size)
    try:
        checks.append(check("advance_pycuda", advance_pycuda(state, rounds)[0], reference(state, rounds)))
    except Unavailable as missing:
        print(missing)
    checks_table(checks)
    table("Reported at once", ("what is wrong", "call", "error"), immediate_errors())
    table("Surfaces later: a kernel that writes to address 0", ("call", "error"), delayed_error())
    if options.bench:
        rows = benchmark()
        show(rows)
        seconds = {row.name: row.seconds for row in rows}
        apart = si(seconds["host work alone"] + seconds["kernel alone"], "s")
        print(f"one after the other they would take {apart}, at once they take {si(seconds['both at once'], 's')}")
    elif gpu.SIMULATED:
        not_run("times: the simulator has none, and finishes a kernel at its launch", "an NVIDIA GPU with its driver")
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
