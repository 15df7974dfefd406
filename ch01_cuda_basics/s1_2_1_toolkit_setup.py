# %%
"""1.2.1 安装与配置CUDA工具包 — Installing and configuring the CUDA Toolkit

本节逐项检查一个 CUDA 环境：驱动、编译器、头文件、软件包的版本与来源、彼此是否匹配，最后真正编译并运行一个核函数。
A CUDA environment checked piece by piece: which driver, compiler, headers and packages there are, where they come
from, whether they go together; and at last a kernel is compiled, loaded, run and verified, step by step.

要点
  驱动要够新：CUDA 13.x 需要 580 以上，12.x 需要 525 以上；同一主版本之内，较旧的驱动也能运行较新工具包编译出的机器码。
  PTX 由驱动即时编译，所以 PTX 不能比驱动新；机器码（cubin）只能在同一主版本、不更旧的计算能力上运行。
  本书不需要系统安装的工具包：编译器与头文件都在 pip 的软件包里；系统的工具包由 CUDA_HOME、PATH 等环境变量指明。
Key idea
  Three versions have to go together: what the driver supports, what the toolkit makes, and what the GPU is. Ask each
  for its own, work out the verdict, and then believe only a kernel that has run.

Run:      ./run 1.2.1     or     python ch01_cuda_basics/s1_2_1_toolkit_setup.py
Look at:  the verdict, and which step of the smoke test fails if one does. ./run doctor checks all packages.
"""

import ctypes
import os
import platform
import sys
import time
from importlib import metadata
from pathlib import Path

import numpy as np

from common import gpu
from common.cli import ReaderError, header, parser, run_main
from common.doctor import PURPOSE, find_tool

# in your own code: from cuda.core import Buffer, Device, LaunchConfig, Program, ProgramOptions, launch
from common.gpu import Buffer, Device, LaunchConfig, Program, ProgramOptions, launch
from common.report import si, table
from common.verify import check, checks_table

NEEDS = ()

# %% The kernel
KERNEL = r"""
// The length of each vector of three numbers, and which of its components is the largest in absolute value.
extern "C" __global__ void lengths(const float* __restrict__ xyz, float* __restrict__ length, int* __restrict__ largest,
                                   long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float x = xyz[3 * i], y = xyz[3 * i + 1], z = xyz[3 * i + 2];
    length[i] = sqrtf(x * x + y * y + z * z);
    largest[i] = fabsf(x) >= fabsf(y) ? (fabsf(x) >= fabsf(z) ? 0 : 2) : (fabsf(y) >= fabsf(z) ? 1 : 2);
}
"""


# %% The reference
def reference(xyz):
    """(lengths in float64, indices of the largest components) of vectors, shape (n, 3)."""
    wide = xyz.astype(np.float64)
    return np.sqrt((wide**2).sum(axis=1)), np.abs(wide).argmax(axis=1).astype(np.int32)


# %% Ask the driver: a library, libcuda.so.1, that comes with the driver and with nothing else
def driver_version():
    """((major, minor) of the newest CUDA that the driver supports, the driver's own version); None without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    supported = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(supported)) != 0:
        return None
    return divmod(supported.value // 10, 100), kernel_module_version()


def kernel_module_version():
    """The version of the driver's half in the Linux kernel, such as "580.65.06"; "unknown" where it does not tell."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:  # WSL2 and some containers have no such file
        return "unknown"
    return next((word for word in words if word[:1].isdigit() and word.count(".") >= 1), "unknown")


# %% Ask the compiler
def compiler_version():
    """((major, minor) of NVRTC, the compute capabilities that it compiles for, such as [75, 80, ...])."""
    from cuda.bindings import nvrtc

    return gpu.checked(nvrtc.nvrtcVersion()), list(gpu.checked(nvrtc.nvrtcGetSupportedArchs()))


# %% Where things come from
def places():
    """[(what, where it was found or how to get it)] of compiler, tools and headers."""
    from cuda import pathfinder

    rows = []
    for library in ("nvrtc", "cudart"):
        try:
            rows.append((f"lib{library}", str(pathfinder.load_nvidia_dynamic_lib(library).abs_path)))
        except Exception as error:  # each version of the finder has its own
            rows.append((f"lib{library}", f"not found: {type(error).__name__} (./run setup)"))
    for tool in ("nvcc", "ptxas", "cuobjdump", "compute-sanitizer", "ncu", "nsys"):
        rows.append((tool, find_tool(tool) or f"not found ({PURPOSE.get(tool, PURPOSE['nvcc'])[1]})"))
    rows += [("headers", folder) for folder in gpu.include_folders()]
    return rows


VARIABLES = {
    "CUDA_HOME": "where an installed toolkit is; most build systems read it",
    "CUDA_PATH": "the same, by another name",
    "PATH": "where the shell finds nvcc",
    "LD_LIBRARY_PATH": "where the loader looks first for libcudart and its like: an old one here hides a new one",
    "CUDA_VISIBLE_DEVICES": "which GPUs a program may see",
}


def variables():
    """[(environment variable, what is in it that matters, what it is for)]."""
    rows = []
    for name, purpose in VARIABLES.items():
        value = os.environ.get(name)
        if value and name in ("PATH", "LD_LIBRARY_PATH"):  # only what has to do with CUDA
            value = (
                os.pathsep.join(part for part in value.split(os.pathsep) if "cuda" in part.lower()) or "nothing of CUDA"
            )
        rows.append((name, value or "not set", purpose))
    return rows


PACKAGES = (
    "cuda-core",
    "cuda-bindings",
    "cuda-pathfinder",
    "cuda-toolkit",
    "nvidia-cuda-nvrtc",
    "numpy",
    "torch",
    "pycuda",
)


def packages():
    """[(package, its version or "-")] and whether the bindings and NVRTC are of one major version."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "-"
    return list(found.items())


# %% What goes together
# The oldest driver branch for each major version of the toolkit, on Linux: "Minor Version Compatibility" in NVIDIA's
# CUDA Compatibility guide (docs.nvidia.com/deploy/cuda-compatibility).
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}


def verdict(driver, toolkit, capability, targets):
    """(what to compile to: "cubin", "PTX" or None; why).

    `driver`: (major, minor) of the newest CUDA the driver supports; `toolkit`: (major, minor) of the compiler;
    `capability`: of the GPU, as 90 for 9.0; `targets`: the capabilities the compiler knows, as numbers like that.
    """
    if driver[0] < toolkit[0]:
        branch = OLDEST_DRIVER.get(toolkit[0], "a newer one")
        return None, f"the driver supports CUDA {driver[0]}.x: toolkit {toolkit[0]}.x needs driver {branch} or newer"
    if capability < min(targets):
        return (
            None,
            f"the GPU ({capability / 10}) is older than anything toolkit {toolkit[0]}.{toolkit[1]} compiles for",
        )
    family = [target for target in targets if target // 10 == capability // 10 and target <= capability]
    if family:
        exact = max(family)
        same = "for this very GPU" if exact == capability else f"for {exact / 10}, which runs on {capability / 10} too"
        return "cubin", f"machine code {same}; it runs with any driver for CUDA {toolkit[0]}.0 or newer"
    if driver < toolkit:
        return None, "the GPU is newer than the compiler, and the driver is too old for the compiler's PTX"
    return "PTX", f"the GPU is newer than the compiler: PTX for {max(targets) / 10}, which the driver compiles"


def compatibility_table(toolkit, targets):
    """Which driver and which GPUs each toolkit wants; the last column only of the one that is here."""
    own = f"{min(targets) / 10} to {max(targets) / 10}, asked of NVRTC {toolkit[0]}.{toolkit[1]}"
    return [
        (f"CUDA {major}.x", f"{branch} or newer", own if major == toolkit[0] else "ask its NVRTC")
        for major, branch in OLDEST_DRIVER.items()
    ]


# %% The smoke test
def smoke_test(n):
    """([(step, what came out, seconds)], lengths, largest): a kernel from source to result. Any step may raise; the one
    behind the last that was printed is the one that failed."""
    steps, began = [], time.perf_counter()

    def done(step, result):
        nonlocal began
        steps.append((step, result, time.perf_counter() - began))
        print(f"  {step}: {result}", flush=True)
        began = time.perf_counter()

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    done("open the device", f"{device.name}, compute capability {'.'.join(map(str, device.compute_capability))}")
    options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
    code = Program(KERNEL, "c++", options).compile("cubin")
    done("compile", f"{len(code.code):,} bytes for sm_{device.arch}")
    kernel = code.get_kernel("lengths")
    done("load", "the kernel is found")
    xyz = np.random.default_rng(121).standard_normal((n, 3), dtype=np.float32)
    length, largest = np.empty(n, np.float32), np.empty(n, np.int32)
    host = [Buffer.from_handle(a.ctypes.data, a.nbytes, owner=a) for a in (xyz, length, largest)]
    d_xyz, d_length, d_largest = (device.allocate(buffer.size, stream=stream) for buffer in host)
    d_xyz.copy_from(host[0], stream=stream)
    stream.sync()
    done("allocate, copy in", f"{sum(b.size for b in host):,} bytes")
    launch(stream, LaunchConfig(grid=-(-n // 256), block=256), kernel, d_xyz, d_length, d_largest, np.int64(n))
    stream.sync()
    done("launch, wait", f"{n:,} threads asked for")
    d_length.copy_to(host[1], stream=stream)
    d_largest.copy_to(host[2], stream=stream)
    stream.sync()
    done("copy out", f"{length.nbytes + largest.nbytes:,} bytes")
    return steps, xyz, length, largest


def verify(n):
    """The checks of the smoke test's results. Raises Mismatch if one is wrong."""
    steps, xyz, length, largest = smoke_test(n)
    lengths, components = reference(xyz)
    # three products, two sums and a root, each rounded by at most 2^-24
    checks = [check("length", length, lengths, rtol=4 * 2.0**-24), check("largest", largest, components)]
    return steps, checks


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=100_003, quick_size=20_003, bench=False).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    toolkit, targets = compiler_version()
    driver = driver_version()
    system = [("system", f"{platform.system()} {platform.release()}, {platform.machine()}")]
    system += [("Python", f"{sys.version.split()[0]}, {sys.executable}")]
    said = (
        f"CUDA up to {'.'.join(map(str, driver[0]))}, version {driver[1]}"
        if driver
        else "none (libcuda.so.1 is not there)"
    )
    system += [
        ("driver", said),
        ("NVRTC", f"{'.'.join(map(str, toolkit))}, compiles for {', '.join(map(str, targets))}"),
    ]
    table("", ("what", "found"), system + packages())
    table("Where it comes from", ("what", "where"), places())
    table("Environment", ("variable", "value", "what it is for"), variables())
    table("What goes together", ("toolkit", "driver", "compute capability"), compatibility_table(toolkit, targets))

    capability = int(Device().arch.rstrip("af"))
    if driver and not gpu.SIMULATED:
        form, why = verdict(driver[0], toolkit, capability, targets)
        print(f"verdict: {form or 'does not go together'}: {why}\n")
        if form is None:
            raise ReaderError(f"{why}; ./run setup chooses packages that fit the driver")
    else:
        print("verdict: there is no GPU to compile for; the simulator runs the compiler's PTX, whatever the driver\n")
    print("The smoke test, step by step")
    steps, checks = verify(options.size)
    checks_table(checks)
    if not gpu.SIMULATED:
        table("", ("step", "time"), [(step, si(seconds, "s")) for step, _, seconds in steps])
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
