"""common/ncu.py: the command line, ncu's CSV, and what may go wrong with the tool; the real one on a GPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from common import ncu
from common.cli import ReaderError, Unavailable
from common.ncu import Launch, command, profile, read_csv

SECTORS, WAVEFRONTS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "smsp__sass_l1tex_wavefronts_shared.sum"
HEADER = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","CC"'


SHAPE = (4, 2, 3), (32, 8, 1)  # grid and block of every row


def row(number: str, kernel: str, *values: str) -> str:
    """A row of the table as ncu --csv --page raw writes it."""
    cells = [number, "4711", "python3", "127.0.0.1", kernel, "1", "13", "(32, 8, 1)", "(4, 2, 3)", "9.0", *values]
    return ",".join(f'"{cell}"' for cell in cells)


def log(metrics: list[str], *rows: str, units: str = "") -> str:
    """All that ncu logs: messages, the heading, the row of units, a row for each launch."""
    before = ["==PROF== Connected to process 4711 (/usr/bin/python3)", '==PROF== Profiling "smooth": 100%']
    table = [HEADER + "".join(f',"{name}"' for name in metrics), units or row("", "", *([""] * len(metrics))), *rows]
    return "\n".join([*before, "==PROF== Disconnected from process 4711", *table, ""])


def test_the_command_line() -> None:
    made = command("/opt/ncu", ["python", "x.py", "--quick"], [SECTORS, "launch__registers_per_thread"], "a b.csv")
    assert made[0] == "/opt/ncu" and made[-3:] == ["python", "x.py", "--quick"]
    options = made[1:-3]
    assert "--csv" in options
    for name, value in {
        "--clock-control": "none",  # the clocks stay as they are
        "--profile-from-start": "off",  # the program says what is counted
        "--page": "raw",
        "--print-units": "base",
        "--metrics": f"{SECTORS},launch__registers_per_thread",
        "--log-file": "a b.csv",
    }.items():
        assert options[options.index(name) + 1] == value


def test_csv() -> None:
    metrics = [SECTORS, "sm__warps_active.avg.pct_of_peak_sustained_active", "launch__registers_per_thread"]
    units = row("", "", "sector", "%", "register/thread")
    found = read_csv(
        log(
            metrics,
            row("0", "smooth(const float *, float *, long long)", "1,048,576", "91.25", "16"),
            row("1", "void tiled<(int)0>(const float *, float *, int, int)", "0", "50", "32"),
            units=units,
        )
    )
    assert found == [
        Launch("smooth", dict(zip(metrics, (1_048_576, 91.25, 16), strict=True)), *SHAPE),
        Launch("tiled<0>", dict(zip(metrics, (0, 50, 32), strict=True)), *SHAPE),
    ]


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("copy", "copy"),
        ("copy()", "copy"),
        ("copy(int)", "copy"),
        ("void tiled<1>(const float *, float *, int, int)", "tiled<1>"),
        ("void tiled<(int)0, (bool)1>(vec<float> *)", "tiled<0, true>"),
        ("void tiled<(bool)0>(vec<float> *)", "tiled<false>"),
        ("void tiled<(unsigned int)4>(int)", "tiled<4>"),
        ("void scale<float, (int)-1>(T1 *)", "scale<float, -1>"),
    ],
)
def test_the_name_of_a_kernel(kernel: str, name: str) -> None:
    assert [launch.kernel for launch in read_csv(log([SECTORS], row("0", kernel, "1")))] == [name]


def test_a_metric_that_the_gpu_lacks_has_no_value() -> None:
    (launch,) = read_csv(log([SECTORS, WAVEFRONTS], row("0", "copy(int)", "n/a", "")))
    assert launch.metrics == {}


@pytest.mark.parametrize("text", ["", "==ERROR== Failed to profile", log([SECTORS])])
def test_no_launches(text: str) -> None:
    assert read_csv(text) == []


# --- a tool that is not ncu -----------------------------------------------------------------------------------

FAKE = f"""#!{sys.executable}
import os, sys
from pathlib import Path
option = dict(zip(sys.argv, sys.argv[1:]))
folder = Path(__file__).parent
run = len(list(folder.glob("run*")))
folder.joinpath(f"run{{run}}").write_text("\\n".join([option["--metrics"], os.environ["PYTHONPATH"], sys.stdin.read()]))
answer = folder / f"answer{{run}}.csv"
if answer.exists():
    Path(option["--log-file"]).write_text(answer.read_text())
print(os.environ.get("SAYS", ""), file=sys.stderr)
sys.exit(int(os.environ.get("CODE", 0)))
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a tool that writes answer0.csv in its first run, answer1.csv in its second, and notes how it was
    called in run0 and run1."""
    path = tmp_path / "ncu"
    path.write_text(FAKE)
    path.chmod(0o755)
    monkeypatch.setattr(ncu, "find_tool", lambda name: str(path) if name == "ncu" else None)
    return tmp_path


def test_one_run_for_metrics_of_one_kind(fake: Path) -> None:
    (fake / "answer0.csv").write_text(log([SECTORS], row("0", "copy(int)", "12"), row("1", "copy(int)", "13")))
    assert profile(["program"], [SECTORS], stdin="a job") == [
        Launch("copy", {SECTORS: 12}, *SHAPE),
        Launch("copy", {SECTORS: 13}, *SHAPE),
    ]
    metrics, path, job = (fake / "run0").read_text().split("\n")
    assert (metrics, job) == (SECTORS, "a job")
    assert path.split(os.pathsep) == [folder for folder in sys.path if folder], "it finds what this process finds"
    assert not (fake / "run1").exists()


def test_patched_metrics_have_a_run_of_their_own(fake: Path) -> None:
    (fake / "answer0.csv").write_text(log([SECTORS], row("0", "copy(int)", "4"), row("1", "scale(int)", "5")))
    (fake / "answer1.csv").write_text(log([WAVEFRONTS], row("0", "copy(int)", "6"), row("1", "scale(int)", "7")))
    assert profile(["program"], [WAVEFRONTS, SECTORS], stdin="job") == [
        Launch("copy", {SECTORS: 4, WAVEFRONTS: 6}, *SHAPE),
        Launch("scale", {SECTORS: 5, WAVEFRONTS: 7}, *SHAPE),
    ]
    asked = [(fake / f"run{number}").read_text().split("\n") for number in (0, 1)]
    assert [lines[0] for lines in asked] == [SECTORS, WAVEFRONTS] and asked[0][-1] == asked[1][-1] == "job"


@pytest.mark.parametrize("second", [["copy(int)"], ["scale(int)", "copy(int)"], ["copy(int)", "scale(int)", "copy()"]])
def test_runs_that_launch_different_kernels(second: list[str], fake: Path) -> None:
    (fake / "answer0.csv").write_text(log([SECTORS], row("0", "copy(int)", "4"), row("1", "scale(int)", "5")))
    rows = [row(str(number), kernel, "1") for number, kernel in enumerate(second)]
    (fake / "answer1.csv").write_text(log([WAVEFRONTS], *rows))
    with pytest.raises(ReaderError, match=r"different launches in two runs of python program\.py"):
        profile(["python", "program.py"], [SECTORS, WAVEFRONTS])


def test_a_program_that_fails_although_it_was_counted(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fake / "answer0.csv").write_text(log([SECTORS], row("0", "copy(int)", "4")))
    monkeypatch.setenv("CODE", "3")
    monkeypatch.setenv("SAYS", "Traceback: it is broken")
    with pytest.raises(ReaderError, match=r"(?s)exit code 3 and 1 launches.*==PROF==.*it is broken"):
        profile(["program"], [SECTORS])


@pytest.mark.parametrize("answer", [None, log([SECTORS]), "==WARNING== No kernels were profiled.\n"])
def test_a_program_that_launches_nothing(answer: str | None, fake: Path) -> None:
    if answer is not None:
        (fake / "answer0.csv").write_text(answer)
    with pytest.raises(ReaderError, match="exit code 0 and 0 launches"):
        profile(["program"], [SECTORS])


def test_a_metric_without_a_value(fake: Path) -> None:
    (fake / "answer0.csv").write_text(log(["dram__bytes.sum", SECTORS], row("0", "copy(int)", "1", "n/a")))
    with pytest.raises(ReaderError, match=f"did not count {SECTORS}$"):
        profile(["program"], ["dram__bytes.sum", SECTORS])


@pytest.mark.parametrize("where", ["log", "stderr"])
def test_without_permission(where: str, fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
    monkeypatch.setenv("CODE", "1")
    if where == "log":
        (fake / "answer0.csv").write_text(said)
    else:
        monkeypatch.setenv("SAYS", said)
    with pytest.raises(Unavailable, match="not run: hardware counters: only the administrator"):
        profile(["program"], [SECTORS])


def test_without_ncu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "find_tool", lambda name: None)
    with pytest.raises(Unavailable, match=r"not run: ncu.* \(install: apt install cuda-toolkit"):
        profile(["program"], [SECTORS])


def test_a_program_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ncu"
    path.write_text("#!/bin/sh\nexec sleep 30\n")
    path.chmod(0o755)
    monkeypatch.setattr(ncu, "find_tool", lambda name: str(path))
    with pytest.raises(ReaderError, match="ncu took longer than 0 s"):
        profile(["program"], [SECTORS], timeout=0.2)


# --- the tool itself ------------------------------------------------------------------------------------------

PROGRAM = r"""
import sys
import numpy as np
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

SOURCE = '''
template <int TIMES> __global__ void scale(float* x)
{
    __shared__ float tile[256];
    tile[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
    __syncthreads();
    x[blockIdx.x * 256 + threadIdx.x] = TIMES * tile[threadIdx.x ^ 1];
}'''
device = Device(0)
device.set_current()
stream = device.create_stream()
options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
module = Program(SOURCE, "c++", options).compile("cubin", name_expressions=("scale<2>", "scale<3>"))
x = device.allocate(4 * 2560, stream=stream)
x.fill(0, stream=stream)
config = LaunchConfig(grid=10, block=256)
launch(stream, config, module.get_kernel("scale<2>"), x)
stream.sync()
driver.cuProfilerStart()
for name in sys.stdin.read().split(","):
    launch(stream, config, module.get_kernel(name), x)
stream.sync()
driver.cuProfilerStop()
"""


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    wavefronts = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
    metrics = [SECTORS, wavefronts, "launch__registers_per_thread"]
    try:
        found = profile([sys.executable, "-c", PROGRAM], metrics, stdin="scale<3>,scale<3>,scale<2>")
    except Unavailable as missing:
        pytest.skip(str(missing))
    assert len(found) == 3, "the first was launched before cuProfilerStart"
    assert ["3" in found[0].kernel, "3" in found[1].kernel, "2" in found[2].kernel] == [True] * 3
    for launch in found:
        assert launch.metrics[SECTORS] == 10 * 8 * 4 and launch.metrics[wavefronts] == 10 * 8
        assert 4 <= launch.metrics["launch__registers_per_thread"] <= 64


def test_words_among_the_numbers_do_not_stop_it() -> None:
    (launch,) = read_csv(log([SECTORS, "launch__cluster_scheduling_policy"], row("0", "copy(int)", "7", "No-CC")))
    assert launch.metrics == {SECTORS: 7}
