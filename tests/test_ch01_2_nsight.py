"""Section 1.2.3, the tools of Nsight: its kernel against NumPy; the tools, with stand-ins where they are missing."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from common import gpu, ncu
from common.cli import USAGE, ReaderError, Unavailable, exit_code
from common.doctor import find_tool
from common.verify import Mismatch
from tests.chapter import assert_both_agree, bad_vectors, on_the_simulator, output_of, section

simulated = pytest.mark.simulator


def test_123_reference_by_hand() -> None:
    s = section("1.2.3")
    np.testing.assert_allclose(s.reference(np.float32([3, 6, 0, 9])), [4, 3, 5, 6])
    np.testing.assert_array_equal(s.reference(np.float32([5])), [5])
    assert s.reference(np.float32([5])).dtype == np.float64


@pytest.mark.parametrize("n", [1, 31, 33, 255, 256, 257, 1000, 20_003])
def test_123_smooth(n: int) -> None:
    s = section("1.2.3")
    x = s.random_vector(n)
    before, out = x.copy(), s.smooth(x)
    assert out.dtype == np.float32
    # three roundings of at most 2^-24 of a number below 16
    np.testing.assert_allclose(out, s.reference(before), rtol=0, atol=3e-6, equal_nan=False)
    np.testing.assert_array_equal(x, before)
    s.verify(n)


@pytest.mark.parametrize(("x", "message"), bad_vectors(np.float32)[:3])
def test_123_bad_input(x: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        section("1.2.3").smooth(x)


@pytest.mark.parametrize(("size", "message"), [("0", "positive integer"), ("900000M", "are free")])
def test_123_sizes_that_cannot_be(size: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code(section("1.2.3").main, ["--size", size]) == USAGE
    assert message in capfd.readouterr().err


def test_123_a_wrong_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.2.3")
    monkeypatch.setattr(s, "smooth", lambda x, smooth=s.smooth: smooth(x) + np.float32(1e-4))
    with pytest.raises(Mismatch, match="smooth: 33 of 33 elements differ"):
        s.verify(33)


def test_123_ranges_nest(monkeypatch: pytest.MonkeyPatch) -> None:
    s, seen = section("1.2.3"), []

    @contextmanager
    def annotate(name: str, color: str, domain: str) -> Iterator[None]:
        assert domain == "book"
        seen.append(name)
        yield
        seen.append(f"end of {name}")

    monkeypatch.setattr(s.nvtx, "annotate", annotate)
    s.smooth(np.ones(3, np.float32))
    inner = [text for name in ("compile", "copy in", "kernel", "copy out") for text in (name, f"end of {name}")]
    assert seen == ["smooth", *inner, "end of smooth"]
    # the program that the tools start has the same kernel and the same ranges
    assert re.findall(r'annotate\("([^"]+)"', s.PROGRAM) == ["compile", "copy in", "kernel"]
    assert s.PROGRAM.index("cuProfilerStart") < s.PROGRAM.index('annotate("kernel"') < s.PROGRAM.index("cuProfilerStop")
    compile(s.PROGRAM, "PROGRAM", "exec")


def test_123_command_lines(capsys: pytest.CaptureFixture[str]) -> None:
    s = section("1.2.3")
    record, sums = s.nsys_commands("/opt/nsys", ["python", "x.py", "-q"], "/tmp/a line")
    assert record[:2] == ["/opt/nsys", "profile"] and record[-3:] == ["python", "x.py", "-q"]
    assert {"--trace=cuda,nvtx", "--force-overwrite=true", "--output=/tmp/a line"} == set(record[2:-3])
    assert sums[:2] == ["/opt/nsys", "stats"] and sums[-1] == "/tmp/a line.nsys-rep"
    assert {"--report=cuda_gpu_kern_sum,nvtx_sum", "--force-export=true"} == set(sums[2:-1])
    expected = ["cs", "--tool=racecheck", "--error-exitcode=9", "--report-api-errors=no", "python", "x.py"]
    assert s.sanitizer_command("cs", "racecheck", ["python", "x.py"]) == expected
    s.show_commands()
    printed = capsys.readouterr().out
    commands = [line.split() for line in printed.splitlines() if line.startswith(" " * 6)]
    assert [command[0] for command in commands] == ["nsys", "nsys", "ncu", *["compute-sanitizer"] * 2]
    assert all(command[-2:] == ["python", "program.py"] for command in (commands[0], *commands[2:]))
    assert "--profile-from-start" in commands[2] and "cuProfilerStart" in printed


MEMCHECK_SAYS = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at smooth+0x430 in _string__smooth_2tcefkxf.cu:13
=========     by thread (232,0,0) in block (3,0,0)
=========     Access to 0x48ea001fa0 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x48ea001000 of size 4,000 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame:  [0x4cd39] in cydriver.cpython-312-x86_64-linux-gnu.so
=========         Host Frame: <module> in <string>:21
========= 
========= Invalid __global__ write of size 4 bytes
=========     at smooth+0x430
=========     by thread (233,0,0) in block (3,0,0)
=========     Access to 0x48ea001fa4 is out of bounds
========= 
========= ERROR SUMMARY: 2 errors
"""
RACECHECK_SAYS = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at smooth+0x2b0 in _string__smooth_mvh1a1am.cu:8
=========     and Read access at smooth+0x2f0 in _string__smooth_mvh1a1am.cu:13 [3964 hazards]
=========     and Read access at smooth+0x350 in _string__smooth_mvh1a1am.cu:13 [72 hazards]
========= 
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"


def test_123_what_the_sanitizer_says() -> None:
    read, finding = section("1.2.3").read_sanitizer, section("1.2.3").Finding
    invalid = "Invalid __global__ write of size 4 bytes"
    assert read(MEMCHECK_SAYS) == [
        finding(invalid, "smooth", 13, "(232,0,0)", "(3,0,0)"),
        finding(invalid, "smooth", None, "(233,0,0)", "(3,0,0)"),
    ]
    assert read(RACECHECK_SAYS) == [finding("Error: Race reported between Write access", "smooth", 8, "", "")]
    warned = read(RACECHECK_SAYS.replace("Error:", "Warning:"))
    assert [found.what for found in warned] == ["Warning: Race reported between Write access"]
    assert read(CLEAN) == read("") == read("Invalid __global__ write, says the program") == []


def test_123_what_the_simulator_says() -> None:
    read, finding = section("1.2.3").read_simulator, section("1.2.3").Finding
    fault = (
        "CUDA_ERROR_ILLEGAL_ADDRESS: write of 4 bytes at 0x1020a0 is out of bounds: 4 bytes past the end\n"
        "  in kernel smooth, block (3,0,0) thread (232,0,0), line 13: y[i] = (tile[t - 1]"
    )
    race = (
        "race in shared memory, read after write: kernel smooth, block 0, byte 4\n"
        "  block (0,0,0) thread (1,0,0), line 8: tile[t] = x[min(i, n - 1)];\n"
        "  block (0,0,0) thread (2,0,0), line 13: y[i] = (tile[t - 1] + tile[t]"
    )
    what = "CUDA_ERROR_ILLEGAL_ADDRESS: write of 4 bytes at 0x1020a0 is out of bounds: 4 bytes past the end"
    assert read(fault) == finding(what, "smooth", 13, "(232,0,0)", "(3,0,0)")
    assert read(race) == finding("race in shared memory, read after write", "smooth", 8, "(1,0,0)", "(0,0,0)")


def test_123_both_faults_are_found() -> None:
    s = section("1.2.3")
    try:
        (_, memcheck, write), (_, racecheck, race) = s.diagnose(1000)
    except Unavailable as missing:
        pytest.skip(str(missing))
    assert (memcheck, racecheck) == ("memcheck", "racecheck")
    text = s.KERNEL.splitlines()
    # 3 blocks of 256 threads and 232 of the fourth have an element
    assert (write.kernel, write.thread, write.block) == ("smooth", "(232,0,0)", "(3,0,0)")
    assert "y[i] =" in text[write.line - 1] and "write of" in write.what
    assert race.kernel == "smooth" and re.search("race", race.what, re.IGNORECASE) and "tile[" in text[race.line - 1]


def test_123_a_fault_that_is_not_found_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.2.3")
    monkeypatch.setattr(s, "FAULTS", {"another comment": ("  // the tile is whole", "", "racecheck")})
    try:
        with pytest.raises(Mismatch, match="another comment: racecheck found nothing"):
            s.diagnose(1000)
    except Unavailable as missing:
        pytest.skip(str(missing))


def test_123_a_report_of_the_whole_kernel_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.2.3")
    always = [s.Finding("a fault", "smooth", 1, "", "")]
    for examine in ("simulate", "sanitize"):
        monkeypatch.setattr(s, examine, lambda n, source, kind: always)
    with pytest.raises(Mismatch, match="the whole kernel: memcheck found a fault"):
        s.diagnose(1000)


@simulated
def test_123_after_a_fault_the_simulator_works_again() -> None:
    s = section("1.2.3")
    old, new, kind = s.FAULTS["out of bounds: no guard"]
    assert len(s.simulate(1000, s.KERNEL.replace(old, new), kind)) == 1
    assert s.simulate(1000, s.KERNEL, kind) == []
    np.testing.assert_array_equal(s.smooth(np.ones(9, np.float32)), np.ones(9))


FAKE_TOOL = f"""#!{sys.executable}
import json, sys
from pathlib import Path
job = sys.stdin.read()
with Path(__file__).with_suffix(".calls").open("a") as calls:
    print(json.dumps([sys.argv[1:], job]), file=calls)
"""


def fake_tool(path: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> list[list]:
    """Make a tool that notes how it was called and then runs `code`; whatever is looked for is it."""
    path.write_text(FAKE_TOOL + code)
    path.chmod(0o755)
    monkeypatch.setattr(section("1.2.3"), "find_tool", lambda name: str(path))


def calls_of(path: Path) -> list[tuple[list[str], str]]:
    return [tuple(json.loads(line)) for line in path.with_suffix(".calls").read_text().splitlines()]


def test_123_compute_sanitizer_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that reports what is missing in the kernel, and ends as the real one does."""
    s, path = section("1.2.3"), tmp_path / "compute-sanitizer"
    code = (
        f"memcheck, racecheck, clean = {(MEMCHECK_SAYS, RACECHECK_SAYS, CLEAN)!r}\n"
        "source, kind = json.loads(job)['source'], sys.argv[1]\n"
        "if kind == '--tool=memcheck' and 'if (i < n)' not in source: print(memcheck); sys.exit(1)\n"
        "if kind == '--tool=racecheck' and '__sync' not in source: print(racecheck); sys.exit(9)\n"
        "print(clean)\n"
    )
    fake_tool(path, code, monkeypatch)
    monkeypatch.setattr(gpu, "SIMULATED", False)
    found = {kind: finding.line for _, kind, finding in s.diagnose(77)}
    assert found == {"memcheck": 13, "racecheck": 8}
    calls = calls_of(path)
    assert [arguments[0] for arguments, _ in calls] == ["--tool=memcheck"] * 2 + ["--tool=racecheck"] * 2
    assert all(arguments[1:] == ["--error-exitcode=9", "--report-api-errors=no", *s.CHILD] for arguments, _ in calls)
    assert all(json.loads(job)["n"] == 77 for _, job in calls)
    assert json.loads(calls[1][1])["source"] == json.loads(calls[3][1])["source"] == s.KERNEL


@pytest.mark.parametrize(
    "code", ["print('no device'); sys.exit(1)", f"print({CLEAN!r}); sys.exit(9)", "print('Target ended')"]
)
def test_123_a_sanitizer_that_fails(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.2.3")
    fake_tool(tmp_path / "tool", code, monkeypatch)
    with pytest.raises(ReaderError, match="compute-sanitizer ended with exit code"):
        s.sanitize(1000, s.KERNEL, "memcheck")


def test_123_nsys_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    s, path = section("1.2.3"), tmp_path / "nsys"
    fake_tool(path, "print('the sums' if sys.argv[1] == 'stats' else 'Generated')", monkeypatch)
    s.show_nsys(77)
    assert capsys.readouterr().out == "the sums\n\n"
    (record, job), (sums, _) = calls_of(path)
    assert record[0] == "profile" and record[-3:] == s.CHILD and json.loads(job) == {"n": 77, "source": s.KERNEL}
    (report,) = (option.partition("=")[2] for option in record if option.startswith("--output="))
    assert sums[0] == "stats" and sums[-1] == f"{report}.nsys-rep" and not Path(report).parent.exists()
    fake_tool(path, "print('no such report', file=sys.stderr); sys.exit(sys.argv[1] == 'stats')", monkeypatch)
    with pytest.raises(ReaderError, match="nsys stats: exit code 1\nno such report"):
        s.show_nsys(77)


def test_123_ncu_is_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    s = section("1.2.3")

    def profile(program: list[str], metrics: list[str], stdin: str) -> list[ncu.Launch]:
        assert program == s.CHILD and json.loads(stdin) == {"n": 1_000_003, "source": s.KERNEL}
        return [ncu.Launch("smooth", dict(zip(metrics, (5432, 8_000_024, 132_814, 91.25, 16), strict=True)))]

    monkeypatch.setattr(ncu, "profile", profile)
    s.show_ncu(1_000_003)
    printed = capsys.readouterr().out
    assert "ncu on smooth" in printed
    for name, value in (
        ("time, ns", "5,432"),
        ("load sectors", "132,814"),
        ("occupancy %", "91.25"),
        ("registers", "16"),
    ):
        assert re.search(rf"{name} +{value} ", printed)


def test_123_without_the_tools(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    s = section("1.2.3")
    for module in (s, ncu):
        monkeypatch.setattr(module, "find_tool", lambda name: None)
    monkeypatch.setattr(gpu, "SIMULATED", False)
    monkeypatch.setattr(s, "check_fits", lambda nbytes: None)
    lines = output_of("1.2.3", "--size", "33", capfd=capfd).splitlines()
    missing = [line for line in lines if line.startswith("not run: ")]
    assert [line.split()[2].strip(",") for line in missing] == ["nsys", "ncu", "compute-sanitizer"]
    assert all("(install: " in line for line in missing)


@simulated
def test_123_prints(capfd: pytest.CaptureFixture[str]) -> None:
    printed = output_of("1.2.3", "--size", "1000", capfd=capfd)
    assert "not run: nsys and ncu: they need a GPU" in printed
    assert "Planted faults, as the simulator reports them; the whole kernel passes" in printed
    assert re.search(
        r"out of bounds: no guard +memcheck +CUDA_ERROR_ILLEGAL.* smooth +13 +\(232,0,0\) +\(3,0,0\)", printed
    )
    assert re.search(r"race: no barrier +racecheck +race in shared memory, read after write +smooth +8 ", printed)
    assert "line 8: tile[t] = x[min(i, n - 1)];\nline 13: y[i] = " in printed


@pytest.mark.gpu
def test_123_on_a_gpu(capfd: pytest.CaptureFixture[str]) -> None:
    printed = output_of("1.2.3", "--size", "1000003", capfd=capfd)
    if find_tool("compute-sanitizer"):
        assert "as compute-sanitizer reports them; the whole kernel passes" in printed
    if find_tool("ncu") and "only the administrator" not in printed:
        assert re.search(r"registers +\d+ ", printed)
        (sectors,) = re.findall(r"load sectors +([\d,]+) ", printed)
        assert int(sectors.replace(",", "")) >= 4_000_012 // 32  # each of x, and more where tiles meet


# --- on a GPU -------------------------------------------------------------------------------------------------


def outputs(number: str) -> list[np.ndarray]:
    """What the kernel makes of fixed inputs."""
    s = section(number)
    return [s.smooth(s.random_vector(n)) for n in (33, 20_003)]


@pytest.mark.gpu
def test_gpu_and_simulator_agree(tmp_path: Path) -> None:
    assert_both_agree(outputs("1.2.3"), on_the_simulator(__name__, "1.2.3", tmp_path))
