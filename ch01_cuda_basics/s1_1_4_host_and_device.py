# %%
"""1.1.4 CUDA主机与设备之间的协作 — Host and device at work together

本节展示主机与设备如何协作：异步启动、主机同时做自己的工作、事件、跨流依赖，以及错误在哪里出现、怎样捕获。
Asynchronous launches, host work that overlaps with a kernel, events between streams, and where errors surface.

要点
  启动只是把工作放进流里，主机立即继续；要用结果，先在流或事件上同步。
  拷贝要异步，主机内存必须是锁页内存；同一个流中的工作按顺序执行，跨流的先后要用事件规定。
  启动配置的错误当场报告；核函数运行中的错误要到之后的某次 CUDA 调用才出现，最迟在同步时；上下文从此报废，只能结束进程。
Key idea
  A launch puts work into a stream and returns; the host is free until it needs the result. So a wrong launch is
  reported at once, but what a kernel does wrong surfaces at some later call, at the latest at a synchronisation, and
  ends the context.

Run:      ./run 1.1.4     or     python ch01_cuda_basics/s1_1_4_host_and_device.py [--size N] [--quick]
Look at:  which call reports which error; on a GPU, that launch and host work take no time beside the kernel's.
"""

import functools
import os
import subprocess
import sys
import time

import numpy as np

from common import gpu, timing
from common.cli import Unavailable, check_fits, header, parser, run_main

# in your own code: from cuda.core import LaunchConfig, LegacyPinnedMemoryResource, Program, ProgramOptions, launch
from common.gpu import LaunchConfig, LegacyPinnedMemoryResource, Program, ProgramOptions, launch
from common.pycuda import load as load_pycuda
from common.report import brief, table
from common.results import Row, measure
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
compiled = functools.cache(lambda: gpu.compile_module(KERNEL))


# %% The reference
def reference(state, rounds):
    """`rounds` steps for each element: their composition is one step with another factor and another summand."""
    factor, summand = 1, 0
    for _ in range(rounds):
        factor, summand = 1664525 * factor % 2**32, (1664525 * summand + 1013904223) % 2**32
    return np.uint32(factor) * state + np.uint32(summand)


# %% The host works while the kernel runs
def checked(state):
    """The array. ValueError unless it is 1-D, uint32 and not empty."""
    if (state := np.asarray(state)).dtype != np.uint32 or state.ndim != 1 or state.size == 0:
        raise ValueError(f"expected a uint32 vector that is not empty, got {state.dtype} of shape {state.shape}")
    return state


def pinned_copy(state):
    """`state` in page-locked memory: as a Buffer, and as a NumPy array, which needs the Buffer alive."""
    buffer = LegacyPinnedMemoryResource().allocate(checked(state).nbytes)
    numbers = np.from_dlpack(buffer).view(np.uint32)
    numbers[:] = state
    return buffer, numbers


def advance(state, rounds, meanwhile=lambda: None):
    """(`rounds` steps of state, uint32, shape (n,); what `meanwhile()` returned, which ran while the GPU worked)."""
    device, stream = gpu.open_device()
    buffer, numbers = pinned_copy(state)
    n, d_state = np.int64(numbers.size), device.allocate(buffer.size, stream=stream)
    config = LaunchConfig(grid=-(-numbers.size // BLOCK), block=BLOCK)

    d_state.copy_from(buffer, stream=stream)  # three entries into the stream: they run in this order,
    launch(stream, config, compiled().get_kernel("advance"), d_state, n, np.int32(rounds))
    d_state.copy_to(buffer, stream=stream)
    done = stream.record()  # and this event is reached after them
    by_host = meanwhile()  # nothing has waited so far
    done.sync()
    return numbers.copy(), by_host


def advance_on_two_streams(state, first, second):
    """`first` steps on one stream, then `second` on another, which waits for an event of the first one."""
    device, one = gpu.open_device()
    other = device.create_stream()
    buffer, numbers = pinned_copy(state)
    n, d_state = np.int64(numbers.size), device.allocate(buffer.size, stream=one)
    config, kernel = LaunchConfig(grid=-(-numbers.size // BLOCK), block=BLOCK), compiled().get_kernel("advance")
    d_state.copy_from(buffer, stream=one)
    launch(one, config, kernel, d_state, n, np.int32(first))
    other.wait(one.record())  # the host goes on; without this line the kernels might run at the same time
    launch(other, config, kernel, d_state, n, np.int32(second))
    d_state.copy_to(buffer, stream=other)
    other.sync()
    return numbers.copy()


# %% The same through PyCUDA
def advance_pycuda(state, rounds, meanwhile=lambda: None):
    """As `advance`; Unavailable without PyCUDA."""
    # in your own code: import pycuda.autoprimaryctx, pycuda.driver as cuda; from pycuda.compiler import SourceModule
    pycuda, n = load_pycuda(), checked(state).size
    kernel = pycuda.SourceModule(KERNEL, no_extern_c=True).get_function("advance")
    cuda, stream, done = pycuda.driver, pycuda.driver.Stream(), pycuda.driver.Event()
    numbers, d_state = cuda.pagelocked_empty(n, np.uint32), cuda.mem_alloc(4 * n)
    numbers[:] = state
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
    (device, stream), module = gpu.open_device(), compiled()
    options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
    call = module.get_kernel("advance"), device.allocate(4, stream=stream), np.int64(1), np.int32(1)
    large, greedy = LaunchConfig(grid=1, block=2048), LaunchConfig(grid=1, block=32, shmem_size=1 << 20)
    attempts = {
        ("no semicolon", "Program.compile"): lambda: Program("__device__ int i", "c++", options).compile("cubin"),
        ("no kernel of that name", "get_kernel"): lambda: module.get_kernel("advanced"),
        ("a block of 2048 threads", "launch"): lambda: launch(stream, large, *call),
        ("1 MiB of shared memory", "launch"): lambda: launch(stream, greedy, *call),
    }
    found = []
    for (what, function), attempt in attempts.items():
        try:
            attempt()
            raise Mismatch(f"{what}: {function} reported no error")
        except gpu.CUDAError as error:
            found.append((what, function, brief(error)))
    return found


# %% An error that surfaces later: in a program of its own, for an illegal access ends what a process does on the GPU
FAULTY_PROGRAM = r"""
import sys
import numpy as np
from common.gpu import CUDAError, Device, LaunchConfig, Program, ProgramOptions, launch  # from cuda.core, as above;
# CUDAError has no public name there yet: from cuda.core._utils.cuda_utils import CUDAError

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
report("launch, later", launch, stream, LaunchConfig(grid=1, block=32), kernel, nowhere, np.int64(0), np.int32(1))
report("device.sync, later", device.sync)
"""


def delayed_error():
    """[(call, what it reported)] of FAULTY_PROGRAM, run in a child process."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", FAULTY_PROGRAM], input=KERNEL, env=env, capture_output=True, text=True)
    calls = [(call, brief(text)) for call, _, text in (line.partition("\t") for line in done.stdout.splitlines())]
    # the driver says CUDA_ERROR_ILLEGAL_ADDRESS, the runtime library cudaErrorIllegalAddress
    reported = ["illegaladdress" in text.lower().replace("_", "") for _, text in calls]
    if reported != [False, True, True, True] or calls[0][1] != "no error":
        raise Mismatch(f"expected an error from the second call on, got {calls}\n{done.stderr}")
    return calls


# %% Verify and measure
def random_state(n):
    return np.random.default_rng(114).integers(0, 2**32, n, dtype=np.uint32)


def host_work():  # what it has to do anyway, such as preparing the next input
    return float(np.random.default_rng(1).random(1_000_000).sum())


def verify(n, rounds):
    """The checks of all variants on n random elements. Raises Mismatch if one is wrong."""
    state = random_state(n)
    result, by_host = advance(state, rounds, host_work)
    results = {"advance": result, "advance_on_two_streams": advance_on_two_streams(state, rounds - 3, 3)}
    try:
        results["advance_pycuda"], _ = advance_pycuda(state, rounds)
    except Unavailable as missing:
        print(missing)
    own = check("the host's own work", by_host, host_work())
    return [own, *(check(name, result, reference(state, rounds)) for name, result in results.items())]


def benchmark() -> list[Row]:
    """When a launch returns, and how long kernel and host work take alone and at once."""
    device, stream = gpu.open_device()
    what = {"section": "1.1.4", "size": "2^16", "dtype": "u32", "yardsticks": timing.yardsticks(device, stream)}
    verify(100_003, 100)
    n, rounds, returned, d_state = 1 << 16, 100_000, [], gpu.zeros(1 << 16, np.uint32, stream).buffer
    arguments = LaunchConfig(grid=n // BLOCK, block=BLOCK), compiled().get_kernel("advance"), d_state, np.int64(n)

    def start(stream):
        launch(stream, *arguments, np.int32(rounds))

    def both():
        began = time.perf_counter()
        start(stream)
        returned.append(time.perf_counter() - began)
        host_work()
        stream.sync()

    rounds = int(rounds * 0.02 / timing.benchmark({"": start}, stream, samples=3)[""].seconds)  # 20 ms
    times = timing.benchmark({"kernel alone": start}, stream)  # by events on the stream
    times |= timing.wall_clock({"host work alone": host_work, "both at once": both})
    times["launch has returned"] = timing.Timing.of(returned[2:])  # without the warm-up
    return [Row.from_timing(name=name, timing=taken, **what) for name, taken in times.items()]


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=100_003, quick_size=20_003).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    check_fits(8 * options.size)
    checks_table(verify(options.size, rounds=20 if gpu.SIMULATED else 20_000))
    table("Reported at once", ("what is wrong", "call", "error"), immediate_errors())
    table("Surfaces later: a kernel that writes to address 0", ("call", "error"), delayed_error())
    measure(benchmark, options.bench)
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
