# %%
"""1.2.1 安装与配置CUDA工具包 — Installing and configuring the CUDA Toolkit

本节逐项检查一个 CUDA 环境：驱动、编译器、头文件、软件包的版本与来源、彼此是否匹配，最后一步一步地编译并运行一个核函数。
A CUDA environment checked piece by piece: which driver, compiler, headers and packages there are, where they come
from, whether they go together; and at last a kernel is compiled, loaded, run and verified, step by step.

要点
  驱动要够新：CUDA 13.x 需要 580 以上，12.x 需要 525 以上；同一主版本之内，较旧的驱动也能运行较新工具包编译出的机器码。
  PTX 由驱动即时编译，所以 PTX 不能比驱动新；机器码（cubin）只能在主版本相同、次版本不更低的计算能力上运行。
  本书不需要系统安装的工具包：编译器与头文件都在 pip 的软件包里；系统的工具包由 CUDA_HOME、PATH 等环境变量指明。
Key idea
  Three versions have to go together: what the driver supports, what the toolkit makes, and what the GPU is. Ask each
  for its own, work out the verdict, and then believe only a kernel that has run.

Run:      ./run 1.2.1     or     python ch01_cuda_basics/s1_2_1_toolkit_setup.py
Look at:  the verdict; the steps of the smoke test. One that fails is named, with its remedy. ./run doctor is shorter.
"""

import contextlib
import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import numpy as np

from common import gpu
from common.cli import ReaderError, check_fits, header, parser, run_main
from common.doctor import PURPOSE, TOOLS, find_tool, pins

# in your own code: from cuda.core import Buffer, Device, LaunchConfig, Program, ProgramOptions, launch
from common.gpu import Buffer, Device, LaunchConfig, Program, ProgramOptions, launch
from common.report import brief, si, table
from common.verify import check, checks_table

NEEDS = ()

# %% The kernel of the smoke test
KERNEL = r"""
// The length of each vector of three numbers, and which of its components is the largest in absolute value.
extern "C" __global__ void lengths(const float* __restrict__ xyz, float* __restrict__ length, int* __restrict__ largest,
                                   long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float x = xyz[3 * i], y = xyz[3 * i + 1], z = xyz[3 * i + 2];
    length[i] = sqrtf(x * x + y * y + z * z);
    const int of_xy = fabsf(y) > fabsf(x);
    largest[i] = fabsf(z) > fmaxf(fabsf(x), fabsf(y)) ? 2 : of_xy;
}
"""
BLOCK = 256


# %% The reference
def reference(xyz):
    """(lengths in float64; indices of the largest components, the first of equal ones) of vectors, shape (n, 3)."""
    wide = xyz.astype(np.float64)
    return np.sqrt((wide**2).sum(axis=1)), np.abs(wide).argmax(axis=1).astype(np.int32)


# %% Ask the driver: libcuda.so.1 comes with the driver and with nothing else
def driver_version():
    """(major, minor) of the newest CUDA that the driver supports; None without a driver."""
    supported = ctypes.c_int()
    try:
        status = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(supported))
    except OSError:
        return None
    return divmod(supported.value // 10, 100) if status == 0 else None  # 13000 is 13.0


def driver_release():
    """The driver's own version, such as "580.65.06"; "unknown" where it does not tell, as on WSL2."""
    with contextlib.suppress(OSError, TypeError):  # no such file, or no number in it
        return re.search(r"\d{3}\.\d+(\.\d+)?", Path("/proc/driver/nvidia/version").read_text())[0]
    return "unknown"


# %% Ask the compilers
def compiler_version():
    """((major, minor) of NVRTC, the compute capabilities that it compiles for, such as [75, 80, ...])."""
    from cuda.bindings import nvrtc

    return gpu.checked(nvrtc.nvrtcVersion()), list(gpu.checked(nvrtc.nvrtcGetSupportedArchs()))


def versions():
    """{name: version} of what has CUDA's own version, where it is installed: packages, and nvcc as it says itself."""
    found = {}
    for name in ("cuda-bindings", "cuda-toolkit", "nvidia-cuda-nvrtc"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    if nvcc := find_tool("nvcc"):
        said = ""
        with contextlib.suppress(OSError):  # a file of that name that is no program
            said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, errors="replace").stdout
        found["nvcc"] = (re.findall(r"release ([\d.]+)", said) or ["no answer"])[0]
    return found


def built_for():
    """{package: the CUDA that its name says it is built for, as "13."}, of those installed, such as cupy-cuda13x."""
    names = (distribution.name or "" for distribution in metadata.distributions())
    return {name: f"{cuda[1]}." for name in names if (cuda := re.search(r"-cu(?:da)?(\d\d)x?$", name))}


def disagreements(toolkit, found):
    """A line for each of `found`, {name: version}, whose CUDA is of another major version than NVRTC, `toolkit`."""
    other = {name: has for name, has in found.items() if not has.startswith(f"{toolkit[0]}.")}
    return [f"{name} {has} does not go with NVRTC {dotted(toolkit)}" for name, has in other.items()]


def dotted(version):
    return ".".join(map(str, version))


# %% Where things come from
def places():
    """[(what, how it was found, where)] of libraries, headers and tools."""
    from cuda import pathfinder

    rows = []
    for name in ("cuda", "nvrtc", "cudart"):
        try:
            library = pathfinder.load_nvidia_dynamic_lib(name)
            rows.append((f"lib{name}", library.found_via, library.abs_path))
        except pathfinder.DynamicLibNotFoundError:
            rows.append((f"lib{name}", "not found", "the driver has it" if name == "cuda" else "./run setup"))
    for name in ("cudart", "cccl"):
        folder = pathfinder.locate_nvidia_header_directory(name)
        rows.append((f"headers, {name}", *((folder.found_via, folder.abs_path) if folder else ("not found", "-"))))
    for name in TOOLS:
        path = find_tool(name)
        how = "not found" if path is None else "PATH" if shutil.which(name) else "wheels or toolkit"
        rows.append((name, how, path or PURPOSE[name][1]))
    return rows


VARIABLES = {  # what each is for, and the files that make a folder in it matter
    "CUDA_HOME": ("an installed toolkit, such as /usr/local/cuda; build systems read it", ()),
    "CUDA_PATH": ("the same by another name", ()),
    "PATH": ("where nvcc is looked for ($CUDA_HOME/bin); the first one counts", ("nvcc",)),
    "LD_LIBRARY_PATH": (
        "searched before other folders: an old library in it hides a new one",
        ("libcuda*", "libnvrtc*"),
    ),
    "CUDA_VISIBLE_DEVICES": ("the GPUs that a program may see, in this order", ()),
}


def variables():
    """[(environment variable, its value, or the folders in it that matter, what it is for)]."""
    rows = []
    for name, (purpose, files) in VARIABLES.items():
        value = os.environ.get(name, "not set")
        if files:
            folders = [f for f in value.split(os.pathsep) if any(next(Path(f).glob(p), None) for p in files)]
            value = os.pathsep.join(folders) or "nothing of CUDA"
        rows.append((name, value, purpose))
    return rows


# %% What goes together
# The oldest driver for each major version of the toolkit, on Linux (NVIDIA's CUDA Compatibility guide, "Minor Version
# Compatibility", table 1: docs.nvidia.com/deploy/cuda-compatibility), and the packages that go with it here.
OLDEST_DRIVER = {11: (450, None), 12: (525, "requirements-cu12.txt"), 13: (580, "requirements.txt")}
PACKAGES = "cuda-core", "cuda-bindings", "torch", "numpy"


def verdict(driver, toolkit, capability, targets):
    """(what to compile for, "sm_90" for machine code or "compute_90" for PTX, or None; why).

    `driver`: (major, minor) of the newest CUDA the driver supports; `toolkit`: (major, minor) of the compiler;
    `capability`: of the GPU, as 90 for 9.0; `targets`: the capabilities the compiler knows, as numbers like that.
    """
    if driver[0] < toolkit[0]:
        needed = f" {OLDEST_DRIVER[toolkit[0]][0]} or newer" if toolkit[0] in OLDEST_DRIVER else " that is newer"
        return None, f"the driver knows CUDA up to {dotted(driver)}; toolkit {toolkit[0]}.x needs a driver{needed}"
    older = [target for target in targets if target <= capability]
    if not older:
        return None, f"the GPU is too old: toolkit {dotted(toolkit)} begins with compute capability {min(targets) / 10}"
    if max(older) // 10 == capability // 10:  # machine code runs on the same major capability, and not on a lower one
        minor = f"; it would refuse PTX of {dotted(toolkit)}, being for {dotted(driver)}" if driver < toolkit else ""
        return f"sm_{max(older)}", f"machine code, which every driver for CUDA {toolkit[0]}.x loads{minor}"
    if driver < toolkit:
        return None, f"the GPU is newer than the compiler, and PTX of {dotted(toolkit)} newer than the driver"
    return f"compute_{max(older)}", "the GPU is newer than the compiler: PTX, from which the driver makes machine code"


def compatibility_table(driver):
    """[(toolkit, oldest driver, packages, what of it runs with this `driver`, which may be None)]."""
    rows = []
    for major, (oldest, file) in OLDEST_DRIVER.items():
        packages = f"{file}: {', '.join(f'{name} {pins(file)[name]}' for name in PACKAGES)}" if file else "none here"
        runs = "-" if driver is None else "nothing" if driver[0] < major else "machine code, PTX"
        if driver and driver[0] == major:
            runs += f" up to {dotted(driver)}"
        rows.append((f"CUDA {major}.x", f"{oldest} or newer", packages, runs))
    return rows


# %% The smoke test: every step may fail, and each for a reason of its own
XID = "the device failed, or the kernel on it: the line with Xid in dmesg says how"
REMEDIES = {
    "open": "nvidia-smi has to answer; after an update of the driver, restart; a container needs --gpus all",
    "compile": "the compiler or its libraries are broken: ./run setup",
    "load": "the driver refuses what the compiler made: see the verdict",
    "allocate": "the device has no memory left: nvidia-smi shows who uses it",
    "copy in": XID,
    "launch": "this GPU cannot do that many threads in a block, or that much shared memory",
    "wait": XID,
    "copy out": XID,
}


@contextlib.contextmanager
def step(name):
    """Print the step's name, and its time on the host when it is done. ReaderError, with the remedy, if it fails."""
    print(f"  {name:<10}", end="", flush=True)
    began = time.perf_counter()
    try:
        yield
    except Exception as error:
        print("failed")
        raise ReaderError(f"{name} failed ({brief(error)}): {REMEDIES[name]}") from error
    print("done" if gpu.SIMULATED else si(time.perf_counter() - began, "s"))


def smoke_test(xyz, target):
    """(lengths, float32; indices of the largest components, int32) of vectors, float32, shape (n, 3), not empty.

    `target` as verdict() gives it. ValueError for other input; ReaderError names the step that failed.
    """
    if xyz.dtype != np.float32 or xyz.ndim != 2 or xyz.shape[1] != 3 or xyz.size == 0:
        raise ValueError(f"expected float32 vectors of shape (n, 3), got {xyz.dtype} of shape {xyz.shape}")
    n, xyz = len(xyz), np.ascontiguousarray(xyz)
    arrays = xyz, np.empty(n, np.float32), np.empty(n, np.int32)
    host = [Buffer.from_handle(array.ctypes.data, array.nbytes, owner=array) for array in arrays]
    with step("open"):
        device = Device(0)
        device.set_current()
        stream = device.create_stream()
    with step("compile"):
        program = Program(KERNEL, "c++", ProgramOptions(std="c++17", arch=target, no_cache=True))
        code = program.compile("cubin" if target.startswith("sm_") else "ptx")
    with step("load"):
        kernel = code.get_kernel("lengths")
    with step("allocate"):
        memory = [device.allocate(buffer.size, stream=stream) for buffer in host]
    with step("copy in"):
        memory[0].copy_from(host[0], stream=stream)
    with step("launch"):
        launch(stream, LaunchConfig(grid=-(-n // BLOCK), block=BLOCK), kernel, *memory, np.int64(n))
    with step("wait"):
        stream.sync()
    with step("copy out"):
        for on_device, on_host in zip(memory[1:], host[1:], strict=True):
            on_device.copy_to(on_host, stream=stream)
        stream.sync()
    return arrays[1:]


def verify(n, target):
    """The checks of the smoke test on n random vectors. Raises Mismatch if one is wrong."""
    xyz = np.random.default_rng(121).standard_normal((n, 3), dtype=np.float32)
    (length, largest), (lengths, components) = smoke_test(xyz, target), reference(xyz)
    # three products, two sums and a root, each rounded by at most 2^-24
    return [check("length", length, lengths, rtol=4 * 2.0**-24), check("largest", largest, components)]


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=100_003, quick_size=20_003, bench=False).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    check_fits(20 * options.size)
    (toolkit, targets), driver, found = compiler_version(), driver_version(), versions()
    rows = [("Python", f"{platform.python_version()}, {sys.executable}")]
    told = f"{driver_release()}, for CUDA up to {dotted(driver)}" if driver else "none: libcuda.so.1 is missing"
    rows += [("driver", told)]
    rows += [(f"GPU {d.device_id}", f"{d.name}, {dotted(d.compute_capability)}") for d in Device.get_all_devices()]
    rows += [("NVRTC", f"{dotted(toolkit)}, compiles for {', '.join(str(target / 10) for target in targets)}")]
    table("", ("what", "found"), [*rows, *found.items()])
    print("\n".join(disagreements(toolkit, found | built_for())) or f"all of major version {toolkit[0]}", end="\n\n")
    table("Where it comes from", ("what", "found by", "where"), places())
    table("Environment", ("variable", "value", "what it is for"), variables())
    columns = "toolkit", "driver", "packages", "runs with this driver"
    table("What goes together", columns, compatibility_table(driver))

    major, minor = Device(0).compute_capability
    target, why = verdict(driver or toolkit, toolkit, 10 * major + minor, targets)
    print(f"verdict{'' if driver else ', were the driver as new as the compiler'}: {target or 'impossible'} ({why})")
    if target is None:
        raise ReaderError(f"{why}; ./run setup chooses packages that fit the driver")
    print("\nsmoke test")
    checks_table(verify(options.size, target))
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
