# %%
"""1.2.4 CUDA编译器nvcc的使用 — Using the nvcc compiler

本节用 nvcc 与 NVRTC 把同一个核函数编译成 PTX、cubin、fatbin 与 LTO-IR，比较各编译选项的寄存器、SASS 指令、结果与速度。
One kernel on its way from source to PTX, cubin and SASS: what each option of nvcc does to code, result and speed.

要点
  源码经 cicc 变成 PTX（虚拟指令集），再由 ptxas 变成 cubin（某一代 GPU 的机器码 SASS）；fatbin 把几份装在一起。
  -gencode 决定装哪些：机器码只能在主版本相同、次版本不更低的 GPU 上运行；再新的 GPU 靠驱动即时编译 PTX。
  nvcc 的 -O 只管主机代码；设备代码的优化级别由 -Xptxas -O0 … -O3 决定，默认 -O3。
  默认把乘加合并成一次舍入的 FMA，-fmad=false 则与 NumPy 逐位相同；限制寄存器会溢出，也能驻留更多线程束，要测才知道。
Key idea
  PTX is portable and machine code is not: ship machine code for the GPUs you know, and PTX for those to come. Options
  change more than speed: the default fuses a multiplication and an addition into one rounding, so bits differ. And
  nvcc's -O is for the host's code: that of device code is -Xptxas -O0 to -O3, of which -O3 is the default.

Run:      ./run 1.2.4     or     python ch01_cuda_basics/s1_2_4_nvcc.py [--size N] [--quick]
Look at:  which programs nvcc calls; how many instructions a precise division costs; spilled bytes, and on a GPU whether
          they cost time; whose bits are NumPy's. Open what the tools made: it stays in out/s1_2_4_nvcc.
"""

import re
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import combinations

import numpy as np

from common import gpu, report, timing
from common.cli import ReaderError, check_fits, header, not_run, parser, run_main
from common.doctor import PURPOSE, find_tool

# in your own code: from cuda.core import Device, LaunchConfig, ObjectCode, Program, ProgramOptions, launch
from common.gpu import Device, LaunchConfig, ObjectCode, Program, ProgramOptions, launch
from common.results import Row, measure
from common.verify import check, checks_table

NEEDS = ()

# %% The kernels
KERNEL = r"""
constexpr int BODIES = 6;

// 1 / d^3 from the square of d: as the formula says, and from the hardware's reciprocal square root (MUFU.RSQ).
struct Divide {
    static __device__ __forceinline__ float inverse_cube(float d2) { return 1.0f / (d2 * sqrtf(d2)); }
};
struct Rsqrt {
    static __device__ __forceinline__ float inverse_cube(float d2) { const float r = rsqrtf(d2); return r * r * r; }
};

// Small star clusters, one a thread: 6 bodies of mass 1 attract each other, `steps` steps of length dt of the
// symplectic Euler method. All loops over bodies are unrolled, so that the 36 numbers of a cluster stay in registers.
// Number c of body b (position 0 to 2, velocity 3 to 5) of cluster i is state[(6 b + c) n + i].
template <typename Method>
__device__ __forceinline__ void integrate(float* __restrict__ state, long long n, int steps, float dt)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float position[BODIES][3], velocity[BODIES][3];
    #pragma unroll
    for (int b = 0; b < BODIES; ++b)
        #pragma unroll
        for (int c = 0; c < 3; ++c) {
            position[b][c] = state[(6 * b + c) * n + i];
            velocity[b][c] = state[(6 * b + 3 + c) * n + i];
        }
    #pragma unroll 1
    for (int s = 0; s < steps; ++s) {
        #pragma unroll
        for (int a = 0; a < BODIES; ++a)
            #pragma unroll
            for (int b = a + 1; b < BODIES; ++b) {
                const float x = position[b][0] - position[a][0];
                const float y = position[b][1] - position[a][1];
                const float z = position[b][2] - position[a][2];
                const float w = dt * Method::inverse_cube(x * x + y * y + z * z + 0.01f);  // softened: never 1 / 0
                velocity[a][0] += w * x;
                velocity[a][1] += w * y;
                velocity[a][2] += w * z;
                velocity[b][0] -= w * x;
                velocity[b][1] -= w * y;
                velocity[b][2] -= w * z;
            }
        #pragma unroll
        for (int b = 0; b < BODIES; ++b)
            #pragma unroll
            for (int c = 0; c < 3; ++c) position[b][c] += dt * velocity[b][c];
    }
    #pragma unroll
    for (int b = 0; b < BODIES; ++b)
        #pragma unroll
        for (int c = 0; c < 3; ++c) {
            state[(6 * b + c) * n + i] = position[b][c];
            state[(6 * b + 3 + c) * n + i] = velocity[b][c];
        }
}

extern "C" __global__ void cluster(float* __restrict__ state, long long n, int steps, float dt)
{
    integrate<Divide>(state, n, steps, dt);
}

// The version to ship: fast by its source, whatever the options, and only where it is meant to be.
extern "C" __global__ void cluster_rsqrt(float* __restrict__ state, long long n, int steps, float dt)
{
    integrate<Rsqrt>(state, n, steps, dt);
}
"""
KERNELS = ("cluster", "cluster_rsqrt")
BODIES, BLOCK, DT = 6, 128, np.float32(0.01)


# %% The reference, and a launch
def reference(state, steps, dtype=np.float64):
    """`steps` steps of state, shape (6, 6, n), in the kernel's order: in float32 the bits of a kernel without FMA."""
    position, velocity = state[:, :3].astype(dtype), state[:, 3:].astype(dtype)
    for _ in range(steps):
        for a, b in combinations(range(BODIES), 2):
            x, y, z = way = position[b] - position[a]
            d2 = x * x + y * y + z * z + dtype(np.float32(0.01))
            w = dtype(DT) * (dtype(1) / (d2 * np.sqrt(d2)))
            velocity[a] += w * way
            velocity[b] -= w * way
        position += dtype(DT) * velocity
    return np.concatenate([position, velocity], axis=1)


def integrate(kernel, state, steps):
    """`steps` steps of state, float32, shape (6, 6, n), by a loaded kernel. ValueError for another state."""
    if state.dtype != np.float32 or state.ndim != 3 or state.shape[:2] != (BODIES, 6) or state.size == 0:
        raise ValueError(f"expected float32 of shape (6, 6, n) that is not empty, got {state.dtype} {state.shape}")
    _, stream = gpu.open_device()
    n, d_state = state.shape[2], gpu.to_device(state, stream)
    config = LaunchConfig(grid=-(-n // BLOCK), block=BLOCK)
    launch(stream, config, kernel, d_state.buffer, np.int64(n), np.int32(steps), DT)
    return d_state.to_host(stream)


# %% The compilers: NVRTC is a library in this process; nvcc is a program that calls others, ptxas the last of them
def nvrtc(target="cubin", **options):
    """KERNEL compiled by NVRTC. `fma=False`, `use_fast_math=True` are nvcc's -fmad=false and --use_fast_math."""
    # without NVRTC's own cache, which (in 13.0) gives code of other precise or fast arithmetic than was asked for
    options |= {"std": "c++17", "arch": f"sm_{Device().arch}", "no_cache": True}
    return Program(KERNEL, "c++", ProgramOptions(**options)).compile(target)


@cache
def folder():
    """Where the tools run and what they make stays; KERNEL is cluster.cu in it."""
    path = report.OUT / "s1_2_4_nvcc"
    path.mkdir(parents=True, exist_ok=True)
    (path / "cluster.cu").write_text(KERNEL, encoding="utf-8")
    return path


def run(command):
    """What a command prints. ReaderError, with that, if it fails."""
    name, *arguments = command.split()
    done = subprocess.run([find_tool(name), *arguments], cwd=folder(), capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise ReaderError(f"{command}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


# %% The forms of a kernel
def show_forms(n):
    """Which programs nvcc calls; then make each form, load and run it where the device takes it. Same bits always."""
    from cuda.core import Linker, LinkerOptions

    arch, rows = Device().arch, [("NVRTC", "none, and no host compiler")]
    for options in ("-ptx", "-cubin", "-fatbin", "-o program"):
        log = run(f"nvcc --dryrun -arch=sm_{arch} {options} cluster.cu")
        calls = r'^#\$ "?(?:\$CICC_PATH/)?(gcc|g\+\+|cicc|cudafe\+\+|ptxas|fatbinary|nvlink)["\s]'
        rows.append((f"nvcc {options}", " → ".join(re.findall(calls, log, re.MULTILINE))))
    report.table("Who does the work (nvcc --dryrun)", ("command", "programs"), rows)

    def link(code):  # LTO-IR becomes machine code when it is linked, and is inlined across files
        options = LinkerOptions(arch=f"sm_{arch}", link_time_optimization=True)
        return Linker(ObjectCode.from_ltoir(code), options=options).link("cubin")

    listed = run("nvcc --list-gpu-arch")
    if not (known := re.findall(r"compute_(\d+)", listed)):
        raise ReaderError(
            f"{find_tool('nvcc')} lists no architecture: not an nvcc of CUDA 11 or newer ({listed[:60]!r})"
        )
    oldest = min(map(int, known))
    gencode = f"-gencode arch=compute_{oldest},code=sm_{oldest} -gencode arch=compute_{arch},code="
    state, rows, outcome = random_state(n), [], {True: "loaded, result as NVRTC's", False: "not loaded: not PTX"}
    expected = integrate(nvrtc().get_kernel("cluster"), state, 20)
    forms = (
        ("cluster.ptx", f"nvcc -ptx -arch=compute_{arch} cluster.cu", ObjectCode.from_ptx),
        ("cluster.fatbin", f"nvcc -fatbin {gencode}[sm_{arch},compute_{arch}] cluster.cu", ObjectCode.from_fatbin),
        ("cluster.ltoir", f"nvcc -ltoir -dlto -arch=sm_{arch} cluster.cu", link),
        ("cluster.cubin", f"ptxas -arch=sm_{arch} cluster.ptx", ObjectCode.from_cubin),
    )
    for group in (forms[:3], forms[3:]):  # side by side; ptxas needs the PTX
        list(ThreadPoolExecutor().map(lambda form: run(f"{form[1]} -o {form[0]}"), group))
    for file, command, load in forms:
        code = (folder() / file).read_bytes()
        if loads := not gpu.SIMULATED or file == "cluster.ptx":
            check(file, integrate(load(code).get_kernel("cluster"), state, 20), expected)
        rows.append((file, f"{len(code):,}", outcome[loads], command))
    report.table("The forms of one kernel", ("file", "bytes", "on this device", "made by"), rows)
    listed = re.findall(r"(\w+) file +\d+: \S*?(sm_\w+)\.", run("cuobjdump --list-elf --list-ptx cluster.fatbin"))
    print("in the fatbin:", ", ".join(" for ".join(found) for found in listed))


# %% What the options do to the code
DEFAULT, FAST = "-Xptxas -O3", "--use_fast_math"
VARIANTS = (DEFAULT, "-Xptxas -O1", "-Xptxas -O0", "-G", "-maxrregcount=32", "-maxrregcount=64", FAST, "-fmad=false")
CLASSES = {"float32": "FADD FMUL FFMA", "special": "MUFU", "local": "LDL STL LD ST", "jumps": "BRA CALL RET BSSY BSYNC"}


def make_variant(options):
    """(name of the cubin that nvcc makes with these options, {kernel: figures by ptxas -v and cuobjdump -sass})."""
    name, found = re.sub(r"\W+", "_", options).strip("_") + ".cubin", {}
    log = run(f"nvcc -cubin -arch=sm_{Device().arch} -Xptxas -v -lineinfo {options} cluster.cu -o {name}")
    dump = run(f"cuobjdump -sass {name}")
    used = r"entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers"
    for kernel, stores, loads, registers in re.findall(used, log, re.DOTALL):
        body = dump.partition(f"Function : {kernel}\n")[2].partition("Function : ")[0]
        opcodes = Counter(re.findall(r"^ +/\*[0-9a-f]{4,}\*/ +(?:@!?U?P\w+ +)?([A-Z]\w*)", body, re.MULTILINE))
        del opcodes["NOP"]  # fills the end up
        classes = {name: sum(opcodes[opcode] for opcode in members.split()) for name, members in CLASSES.items()}
        figures = {"registers": int(registers), "spilled bytes": int(stores) + int(loads), "SASS": opcodes.total()}
        found[kernel] = figures | classes
    return name, found


def show_options(variants):
    """The figures of each variant, and the lines of the source that become most instructions."""
    made = dict(zip(variants, ThreadPoolExecutor().map(make_variant, variants), strict=True))
    rows = [(kernel, variant, *made[variant][1][kernel].values()) for kernel in KERNELS for variant in variants]
    columns = ("kernel", "options", "registers", "spilled bytes", "SASS", *CLASSES)
    report.table("What the options do to the code (ptxas -v, cuobjdump -sass)", columns, rows)
    dump = run(f"nvdisasm -g -c {made[DEFAULT][0]}").partition("\n.text.cluster:\n")[2].partition(".weak")[0]
    lines, source = Counter(), KERNEL.splitlines()
    for line, instructions in re.findall(r'", line (\d+)([^"]*)', dump):
        lines[int(line)] += len(re.findall(r"/\*[0-9a-f]{4,}\*/", instructions))
    rows = [(line, count, source[line - 1].strip()) for line, count in lines.most_common(4)]
    report.table("Lines that become most instructions (-lineinfo, nvdisasm -g)", ("line", "SASS", "source"), rows)


# %% Verify and measure
def random_state(n):
    """n clusters: positions and velocities in [-1, 1), float32, shape (6, 6, n)."""
    return np.random.default_rng(124).uniform(-1, 1, (BODIES, 6, n)).astype(np.float32)


def verify(n, steps=20):
    """The checks of NVRTC's kernels on n random clusters. Raises Mismatch if one is wrong. (Approximate instructions
    err on a GPU only: the simulator rounds them correctly.)"""
    state, checks = random_state(n), []
    single, exact = reference(state, steps, np.float32), reference(state, steps)
    # close encounters magnify each rounding; 8 times what that does to NumPy's float32 is as good as float32 gets
    atol = 8 * float(np.abs(single - exact).max())
    for variant, options in {DEFAULT: {}, "-fmad=false": {"fma": False}, FAST: {"use_fast_math": True}}.items():
        module = nvrtc(**options)
        for kernel in KERNELS:
            out = integrate(module.get_kernel(kernel), state, steps)
            name = f"{kernel} {variant}: {np.mean(out != single):.1%} have other bits than NumPy's float32"
            checks.append(check(name, out, exact, atol=atol))
            if (kernel, variant) == ("cluster", "-fmad=false"):
                checks.append(check("the same with NumPy's float32", out, single))
    return checks


def benchmark() -> list[Row]:
    """How long it takes to compile and to load, and how fast the kernels are that the options make."""
    (device, stream), n, steps, numbers = gpu.open_device(), 1 << 18, 100, iter(range(10**6))
    row = partial(Row.from_timing, section="1.2.4", dtype="f32", yardsticks=timing.yardsticks(device, stream))
    verify(1003)
    ptx, cubin = nvrtc("ptx").code.rstrip(b"\0"), nvrtc().code
    by_nvcc = {
        "nvcc: source to PTX": partial(run, f"nvcc -ptx -arch=compute_{device.arch} cluster.cu -o timed.ptx"),
        "nvcc: source to cubin": partial(run, f"nvcc -cubin -arch=sm_{device.arch} cluster.cu -o timed.cubin"),
    }
    calls = {
        "NVRTC: source to PTX": partial(nvrtc, "ptx"),
        "NVRTC: source to cubin": nvrtc,
        # text that is new each time: the driver keeps what it compiled
        "driver: load PTX": lambda: ObjectCode.from_ptx(ptx + b"// %d\n" % next(numbers)).get_kernel("cluster"),
        "driver: load cubin": lambda: ObjectCode.from_cubin(cubin).get_kernel("cluster"),
    }
    times = timing.wall_clock(by_nvcc, samples=5, warmup=1) | timing.wall_clock(calls, warmup=1)  # nvcc takes seconds
    rows = [row(name=k, size="", dtype="", timing=t) for k, t in times.items()]

    config, d_state = LaunchConfig(grid=n // BLOCK, block=BLOCK), gpu.to_device(random_state(n), stream)
    arguments, runs, found = (d_state.buffer, np.int64(n), np.int32(steps), DT), {}, {}
    for variant, (file, figures) in zip(VARIANTS, ThreadPoolExecutor().map(make_variant, VARIANTS), strict=True):
        module = ObjectCode.from_cubin((folder() / file).read_bytes())
        for kernel in KERNELS if variant in (DEFAULT, FAST) else KERNELS[:1]:
            name, loaded = f"{kernel} {variant}", module.get_kernel(kernel)
            runs[name] = partial(lambda k, s: launch(s, config, k, *arguments), loaded)
            found[name] = {k: v for k, v in figures[kernel].items() if k not in CLASSES}
            found[name]["blocks per SM"] = loaded.occupancy.max_active_blocks_per_multiprocessor(BLOCK, 0)
    flops, times = n * steps * (25 * 15 + 2 * 18), timing.benchmark(runs, stream)  # of 15 pairs and 18 coordinates
    return rows + [row(name=k, size=f"2^18 x {steps}", timing=times[k], flops=flops, figures=found[k]) for k in runs]


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=2051, quick_size=259).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    check_fits(4 * BODIES * 6 * options.size)
    checks_table(verify(options.size))
    tools = ("g++", "nvcc", "ptxas", "cuobjdump", "nvdisasm")
    for tool in (missing := [tool for tool in tools if find_tool(tool) is None]):
        not_run(f"what {tool} makes or shows", PURPOSE.get(tool, PURPOSE["nvcc"])[1])
    if not missing:
        show_forms(options.size)
        show_options(VARIANTS[:2] if options.quick else VARIANTS)
        print(f"files: {folder()}")
    measure(benchmark, options.bench and not missing)
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
