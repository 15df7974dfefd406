"""common.cli: exit codes, one-line errors, options, and what a notebook sees."""

import subprocess
import sys
import types

import pytest

from common import cli, gpu
from common.verify import Mismatch


def raises(error):
    def main(argv=None):
        raise error

    return main


@pytest.mark.parametrize(
    ("main", "code", "out", "err"),
    [
        (lambda argv: 0, 0, "", ""),
        (lambda argv: None, 0, "", ""),
        (lambda argv: 1, 1, "", ""),
        (raises(Mismatch("saxpy: 1 of 2 elements differ")), 1, "", "error: saxpy: 1 of 2 elements differ\n"),
        (raises(cli.UsageError("size must be a multiple of 32")), 2, "", "size must be a multiple of 32\n"),
        (
            raises(cli.Unavailable("nccl", "pip install nccl4py")),
            77,
            "not run: nccl (install: pip install nccl4py)\n",
            "",
        ),
        (raises(cli.Unavailable("wgmma needs sm_90a")), 77, "not run: wgmma needs sm_90a\n", ""),
        (raises(KeyboardInterrupt()), 130, "", "interrupted\n"),
        (
            raises(gpu.CUDAError("CUDA_ERROR_X:\n  a long\n  story")),
            1,
            "",
            "CUDAError: CUDA_ERROR_X: a long story\n",
        ),
        (raises(FileExistsError(17, "File exists", "out")), 1, "", "error: File exists: out\n"),
        (raises(OSError(28, "No space left on device")), 1, "", "error: No space left on device\n"),
        (raises(SystemExit(2)), 2, "", ""),
        (raises(SystemExit(None)), 0, "", ""),
        (raises(SystemExit("a reason")), 1, "", "a reason\n"),
    ],
)
def test_exit_codes_and_one_line(main, code, out, err, capsys):
    assert cli.exit_code(main, []) == code
    printed = capsys.readouterr()
    assert printed.out == out
    assert printed.err.endswith(err) and bool(printed.err) == bool(err)
    assert "Traceback" not in printed.err


def test_a_simulator_fault_is_one_line(capsys):
    fault = type("IllegalAddress", (gpu.CUDAError,), {})
    assert cli.exit_code(raises(fault("kernel saxpy,\nthread 3: out of bounds")), []) == 1
    assert capsys.readouterr().err == "error: IllegalAddress: kernel saxpy, thread 3: out of bounds\n"


def test_a_compiler_log_keeps_its_lines(capsys):
    error = type("NVRTCError", (gpu.CUDAError,), {})
    cli.exit_code(raises(error("compilation failed\nline 3: expected a ';'")), [])
    assert capsys.readouterr().err.count("\n") == 2


def test_debug_shows_the_traceback_and_a_bug_always_does(capsys):
    assert cli.exit_code(raises(Mismatch("wrong")), ["--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err
    assert cli.exit_code(raises(ZeroDivisionError("a bug")), []) == 1
    assert "Traceback" in capsys.readouterr().err


def test_unavailable_keeps_what_and_fix(capsys):
    missing = cli.Unavailable("PyCUDA", "./run setup pycuda")
    assert (missing.what, missing.fix) == ("PyCUDA", "./run setup pycuda")
    cli.not_run("PyCUDA", "./run setup pycuda")
    assert capsys.readouterr().out == "not run: PyCUDA (install: ./run setup pycuda)\n"


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("1000", 1000), ("64K", 65536), ("2m", 2 << 20)])
def test_size(text, value):
    assert cli.parser("doc", size=7).parse_args(["--size", text]).size == value


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "abc", "", "K", "1KB", "٣", "0K", " "])
def test_bad_size_is_one_clear_line(text, capsys):
    def main(argv):
        cli.parser("doc", size=7).parse_args(argv)

    assert cli.exit_code(main, [f"--size={text}"]) == cli.USAGE
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "--size: expected a positive integer such as 1000, 64K or 2M" in message and repr(text) in message


def test_unknown_and_abbreviated_options_are_refused_in_one_line(capsys):
    for option in ("--sise=3", "--qui", "stray"):
        with pytest.raises(SystemExit) as stop:
            cli.parser("doc", size=7).parse_args([option])
        message = capsys.readouterr().err
        assert stop.value.code == 2 and message.count("\n") == 1 and option in message


def test_sizes_follow_quick():
    parser = cli.parser("doc", size=1 << 20, quick_size=1000)
    assert parser.parse_args([]).size == 1 << 20
    assert parser.parse_args(["--quick"]).size == 1000
    assert parser.parse_args(["--quick", "--size", "33"]).size == 33
    assert cli.parser("doc", size=9).parse_args(["--quick"]).size == 9
    assert not hasattr(cli.parser(None).parse_args([]), "size")


def test_bench_is_on_for_a_gpu_only(monkeypatch):
    parser = cli.parser("doc")
    monkeypatch.setattr(gpu, "SIMULATED", True)
    assert parser.parse_args([]).bench is False
    assert parser.parse_args(["--bench"]).bench is True
    monkeypatch.setattr(gpu, "SIMULATED", False)
    assert parser.parse_args([]).bench is True
    assert parser.parse_args(["--quick"]).bench is False
    assert parser.parse_args(["--no-bench"]).bench is False
    assert not hasattr(cli.parser("doc", bench=False).parse_args([]), "bench")


def test_header_prints_title_and_device(monkeypatch, capsys):
    monkeypatch.setattr(gpu, "describe_device", lambda device: f"device: {device}")
    cli.header("\n1.1.1 标题 — Title\n\nmore", "the simulator")
    assert capsys.readouterr().out == "1.1.1 标题 — Title\ndevice: the simulator\n"


def test_run_main_as_a_script():
    with pytest.raises(SystemExit) as stop:
        cli.run_main(lambda argv: 1)
    assert stop.value.code == 1


@pytest.fixture
def ipython(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: object()))


def test_run_main_in_a_notebook_raises_only_on_failure(ipython, capsys):
    seen = []
    cli.run_main(lambda argv: seen.append(argv) or 0)
    cli.run_main(lambda argv: 77)
    cli.run_main(raises(cli.Unavailable("a GPU")))
    assert seen == [[]] and capsys.readouterr().out == "not run: a GPU\n"
    with pytest.raises(RuntimeError, match="exit code 1"):
        cli.run_main(lambda argv: 1)
    with pytest.raises(Mismatch):
        cli.run_main(raises(Mismatch("wrong")))


def test_a_reader_that_goes_away_leaves_no_traceback():
    code = "from common.cli import run_main; run_main(lambda argv: [print('x' * 99) for _ in range(9999)] and 0)"
    shown = subprocess.run(
        f'{sys.executable} -c "{code}" | head -1', shell=True, capture_output=True, text=True, check=True
    )
    assert shown.stdout == "x" * 99 + "\n" and shown.stderr == ""


def test_what_does_not_fit_is_a_wrong_size(monkeypatch):
    monkeypatch.setattr("common.gpu.free_memory", lambda: 1000)
    cli.check_fits(1000)
    with pytest.raises(cli.UsageError, match=r"--size is too large: it needs 1,001 bytes .* 1,000 are free"):
        cli.check_fits(1001)
