# %%
"""1.2.3 使用NVIDIA Nsight调试与优化工具 — Debugging and tuning with Nsight

本节给一个小任务加上 NVTX 区间，写出 nsys、ncu、compute-sanitizer 的命令行并运行；再从核函数里去掉一行，看工具怎样报错。
NVTX ranges around a small job; the command lines of nsys, ncu and compute-sanitizer, built and run; then a line is
taken out of the kernel, and the tools say what is wrong.

要点
  nsys 看整体：什么时候在等、拷贝与核函数是否重叠；ncu 看一个核函数内部：扇区、占用率、瓶颈；先用 nsys，再用 ncu。
  compute-sanitizer 的 memcheck 找越界与未对齐，racecheck 找共享内存的竞争；编译时加 -lineinfo，才能指出源代码行。
  NVTX 区间只是给时间线加名字：没有工具在看时什么也不记录，可以留在代码里。
Key idea
  Name the phases of your program, look at the whole time line first, then at one kernel's counters; and run the
  sanitizer before you believe a result. Without a GPU the simulator finds the same two faults.

Run:      ./run 1.2.3     or     python ch01_cuda_basics/s1_2_3_nsight.py [--quick]
Look at:  the command lines, to copy; what each planted fault is reported as, with its source line; that the mended
          kernel passes.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import namedtuple

import numpy as np
import nvtx

from common import gpu, ncu
from common.cli import ReaderError, Unavailable, check_fits, header, not_run, parser, run_main
from common.doctor import PURPOSE, find_tool

# in your own code: from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
from common.gpu import Device, LaunchConfig, Program, ProgramOptions, launch
from common.report import table
from common.verify import Mismatch, check, checks_table

NEEDS = ()

# %% The kernel
KERNEL = r"""
// The mean of three neighbours, through a tile in shared memory; beyond the ends of x count its ends. Blocks of 256.
extern "C" __global__ void smooth(const float* __restrict__ x, float* __restrict__ y, long long n)
{
    __shared__ float tile[256 + 2];
    const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    const int t = threadIdx.x + 1;
    tile[t] = x[min(i, n - 1)];
    if (threadIdx.x == 0) tile[0] = x[max(i - 1, 0LL)];
    if (threadIdx.x == 255) tile[257] = x[min(i + 1, n - 1)];
    __syncthreads();  // the tile is whole
    if (i < n)
        y[i] = (tile[t - 1] + tile[t] + tile[t + 1]) / 3.0f;
}
"""
# what is taken out of the kernel, and the tool that has to see it
FAULTS = {
    "out of bounds: no guard": ("    if (i < n)\n", "\n", "memcheck"),
    "race: no barrier": ("    __syncthreads();  // the tile is whole\n", "\n", "racecheck"),
}


# %% The reference
def reference(x):
    """The means of three neighbours, in float64."""
    wide = np.pad(x.astype(np.float64), 1, mode="edge")
    return (wide[:-2] + wide[1:-1] + wide[2:]) / 3


# %% The job, its phases named for the tools
def smooth(x, source=KERNEL):
    """The means of three neighbours of float32 x, shape (n,), by the kernel in `source`; ValueError for other x."""
    if x.dtype != np.float32 or x.ndim != 1 or x.size == 0:
        raise ValueError(f"expected a float32 vector that is not empty, got {x.dtype} of shape {x.shape}")
    _, stream = gpu.open_device()
    with nvtx.annotate("smooth", color="blue", domain="book"):  # ranges nest
        with nvtx.annotate("compile", color="orange", domain="book"):
            options = ProgramOptions(std="c++17", arch=f"sm_{Device().arch}", lineinfo=True)
            kernel = Program(source, "c++", options).compile("cubin").get_kernel("smooth")
        with nvtx.annotate("copy in", color="green", domain="book"):
            d_x, d_y = gpu.to_device(x, stream), gpu.empty(x.size, np.float32, stream)
        with nvtx.annotate("kernel", color="red", domain="book"):
            config = LaunchConfig(grid=-(-x.size // 256), block=256)
            launch(stream, config, kernel, d_x.buffer, d_y.buffer, np.int64(x.size))
            stream.sync()  # else the range ends when the launch has been enqueued
        with nvtx.annotate("copy out", color="green", domain="book"):
            return d_y.to_host(stream)


# %% The same as a program that the tools can start
PROGRAM = r"""
import json, sys
import numpy as np
import nvtx
from cuda.bindings import driver
from cuda.core import Buffer, Device, LaunchConfig, Program, ProgramOptions, launch

job = json.load(sys.stdin)
device = Device(0)
device.set_current()
stream = device.create_stream()
x = np.random.default_rng(123).standard_normal(job["n"], dtype=np.float32)
with nvtx.annotate("compile", domain="book"):
    options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}", lineinfo=True)
    kernel = Program(job["source"], "c++", options).compile("cubin").get_kernel("smooth")
with nvtx.annotate("copy in", domain="book"):
    d_x, d_y = (device.allocate(x.nbytes, stream=stream) for _ in range(2))
    d_x.copy_from(Buffer.from_handle(x.ctypes.data, x.nbytes, owner=x), stream=stream)
driver.cuProfilerStart()
with nvtx.annotate("kernel", domain="book"):
    launch(stream, LaunchConfig(grid=-(-x.size // 256), block=256), kernel, d_x, d_y, np.int64(x.size))
    stream.sync()
driver.cuProfilerStop()
"""
CHILD = [sys.executable, "-c", PROGRAM]


def job_for(n, source=KERNEL):
    """What PROGRAM reads from its standard input."""
    return json.dumps({"n": n, "source": source})


def run(command, job=""):
    """What subprocess.run gives for a command line; the program that it starts finds what this process finds."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(command, input=job, env=environment, capture_output=True, text=True)


def tool(name):
    """Where a command line tool is; Unavailable if it is not there, with what installs it."""
    if path := find_tool(name):
        return path
    raise Unavailable(name, PURPOSE[name][1])


# %% The command lines
def nsys_commands(nsys, program, report):
    """Record a time line of CUDA calls and NVTX ranges into `report`.nsys-rep; sum it up."""
    record = [nsys, "profile", "--trace=cuda,nvtx", "--force-overwrite=true", f"--output={report}", *program]
    sums = [nsys, "stats", "--report=cuda_gpu_kern_sum,nvtx_sum", "--force-export=true", f"{report}.nsys-rep"]
    return record, sums


def sanitizer_command(sanitizer, kind, program):
    """Check a program: memcheck, racecheck, initcheck or synccheck. Exit code 9 if only the tool finds something.

    Calls of the driver that fail are not reported: cuda.bindings asks it for functions that it may lack.
    """
    return [sanitizer, f"--tool={kind}", "--error-exitcode=9", "--report-api-errors=no", *program]


METRICS = {
    "kernel time, ns": "gpu__time_duration.sum",
    "DRAM bytes": "dram__bytes.sum",
    "load sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "occupancy %": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
}


def show_commands():
    """The command lines for `python program.py`, under the question that each answers."""
    program = ["python", "program.py"]
    count = ncu.command("ncu", program, list(METRICS.values())[:2], "counters.csv")
    memcheck, racecheck = (sanitizer_command("compute-sanitizer", k, program) for k in ("memcheck", "racecheck"))
    questions = {
        "when is what done? the whole time line, and its sums": nsys_commands("nsys", program, "timeline"),
        "how does a kernel use the hardware? those between cuProfilerStart and cuProfilerStop": [count],
        "does it touch memory that is not its own?": [memcheck],
        "do threads of a block race?": [racecheck],
    }
    print("\nThe command lines")
    for question, commands in questions.items():
        print(f"  {question}", *map(" ".join, commands), sep="\n      ")
    print()


# %% Run them
def show_nsys(n):
    """Print what nsys sums up of PROGRAM. Raises Unavailable without nsys."""
    nsys = tool("nsys")
    with tempfile.TemporaryDirectory() as folder:
        for command in nsys_commands(nsys, CHILD, f"{folder}/timeline"):
            done = run(command, job_for(n))  # the second reads nothing
            if done.returncode:
                raise ReaderError(f"nsys {command[1]}: exit code {done.returncode}\n{done.stderr[-1000:]}")
    print(done.stdout)


def show_ncu(n):
    """Print METRICS of the kernel of PROGRAM. Raises Unavailable without ncu or the permission to count."""
    (launched,) = ncu.profile(CHILD, list(METRICS.values()), stdin=job_for(n))
    rows = [(name, f"{launched.metrics[metric]:,.6g}") for name, metric in METRICS.items()]
    table(f"ncu on {launched.kernel}", ("metric", "value"), rows)


# %% Faults: what the sanitizer says on a GPU, and the simulator without one
Finding = namedtuple("Finding", "what kernel line thread block")


def read_sanitizer(text):
    """The reports in compute-sanitizer's output as Finding: no line without -lineinfo; racecheck names no thread."""
    found = []
    lines = [line.removeprefix("=========").strip() for line in text.splitlines() if line.startswith("=========")]
    for number, line in enumerate(lines):
        if re.match(r"Invalid|(Error|Warning): Race|Uninitialized|Barrier error|Program hit", line):
            report = " ".join(lines[number : number + 3])
            kernel = re.search(r"at (\w+)\S*\+0x", report)
            at = re.search(r" in \S+?:(\d+)", report)
            who = re.search(r"by thread (\([\d,]+\)) in block (\([\d,]+\))", report) or ("", "", "")
            found.append(Finding(line.partition(" at ")[0], kernel and kernel[1], at and int(at[1]), who[1], who[2]))
    return found


def sanitize(n, source, kind):
    """[Finding] of compute-sanitizer's tool `kind` in PROGRAM with this kernel. Raises Unavailable without it."""
    done = run(sanitizer_command(tool("compute-sanitizer"), kind, CHILD), job_for(n, source))
    found = read_sanitizer(done.stdout)
    if "SUMMARY" not in done.stdout or (done.returncode and not found):
        said = f"{done.stdout[-800:]}{done.stderr[-800:]}"
        raise ReaderError(f"compute-sanitizer ended with exit code {done.returncode}\n{said}")
    return found


def simulate(n, source, kind):
    """The same from the simulator, which needs no `kind`: its fault, or its races."""
    from common.simt import api
    from common.simt.races import watching

    with watching() as races:
        try:
            smooth(np.ones(n, np.float32), source)
        except gpu.CUDAError as fault:
            api.reset()  # a fault sticks to the device; a GPU would need a new process
            return [read_simulator(str(fault))]
    return [read_simulator(str(race)) for race in races]


def read_simulator(text):
    """A fault or a race of the simulator as Finding."""
    what, kernel = re.match(r"(.+?)(?:: |\n  in )kernel (\w+)", text).groups()
    block, thread, line = re.search(r"block (\([\d,]+\)) thread (\([\d,]+\)), line (\d+)", text).groups()
    return Finding(what, kernel, int(line), thread, block)


def diagnose(n):
    """[(fault, tool, Finding)]; each planted fault must be found, and the whole kernel must pass both tools. Raises
    Mismatch if not, Unavailable without compute-sanitizer on a GPU."""
    examine, rows = simulate if gpu.SIMULATED else sanitize, []
    for name, (old, new, kind) in FAULTS.items():
        found = examine(n, KERNEL.replace(old, new), kind)
        if not found:
            raise Mismatch(f"{name}: {kind} found nothing")
        rows.append((name, kind, found[0]))
        if clean := examine(n, KERNEL, kind):
            raise Mismatch(f"the whole kernel: {kind} found {clean[0].what}")
    return rows


def show_faults(_):
    """Print what is found of the planted faults; a small vector will do."""
    rows = diagnose(1000)
    title = f"Planted faults, as {'the simulator' if gpu.SIMULATED else 'compute-sanitizer'} reports them"
    columns = ("fault", "tool", *Finding._fields)
    table(
        f"{title}; the whole kernel passes", columns, [(*row, *(cell or "" for cell in found)) for *row, found in rows]
    )
    for line in sorted({found.line for *_, found in rows if found.line}):
        print(f"line {line}: {KERNEL.splitlines()[line - 1].strip()}")


# %% Verify
def random_vector(n):
    return np.random.default_rng(123).standard_normal(n, dtype=np.float32)


def verify(n):
    """The check of the job on n random elements. Raises Mismatch if it is wrong."""
    x = random_vector(n)
    # two sums and a division, each rounded by at most 2^-24 of a number below 16
    return [check("smooth", smooth(x), reference(x), atol=3 * 16 * 2.0**-24)]


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=1_000_003, quick_size=20_003, bench=False).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    check_fits(8 * options.size)
    checks_table(verify(options.size))
    show_commands()
    if gpu.SIMULATED:
        not_run("nsys and ncu: they need a GPU")
    for show in (show_faults,) if gpu.SIMULATED else (show_nsys, show_ncu, show_faults):
        try:
            show(options.size)
        except Unavailable as missing:
            print(missing)
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
