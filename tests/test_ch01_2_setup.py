"""Sections 1.2.1 and 1.2.2, setting up: versions that go together, and one kernel through every interface."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common import gpu
from common.cli import Unavailable
from common.verify import Mismatch
from tests.chapter import SIZES, assert_both_agree, on_the_simulator, output_of, section, vectors

# --- 1.2.1 ----------------------------------------------------------------------------------------------------

TARGETS = [75, 80, 86, 89, 90, 100, 120]


@pytest.mark.parametrize(
    ("driver", "toolkit", "capability", "form", "words"),
    [
        ((13, 0), (13, 0), 90, "cubin", "this very GPU"),
        ((13, 1), (13, 0), 90, "cubin", "this very GPU"),
        ((14, 0), (13, 0), 75, "cubin", "this very GPU"),
        ((13, 0), (13, 3), 80, "cubin", "CUDA 13.0 or newer"),  # minor-version compatibility
        ((13, 0), (13, 0), 87, "cubin", "for 8.6, which runs on 8.7 too"),
        ((13, 0), (13, 0), 121, "cubin", "for 12.0, which runs on 12.1 too"),
        ((13, 2), (13, 0), 130, "PTX", "PTX for 12.0"),
        ((13, 0), (13, 0), 110, "PTX", "newer than the compiler"),
        ((13, 0), (13, 1), 130, None, "too old for the compiler's PTX"),
        ((12, 9), (13, 0), 90, None, "needs driver 580 or newer"),
        ((11, 4), (12, 0), 80, None, "needs driver 525 or newer"),
        ((13, 0), (14, 0), 90, None, "needs driver a newer one"),
        ((13, 0), (13, 0), 70, None, "older than anything toolkit 13.0 compiles for"),
    ],
)
def test_121_what_goes_together(
    driver: tuple[int, int], toolkit: tuple[int, int], capability: int, form: str | None, words: str
) -> None:
    found, why = section("1.2.1").verdict(driver, toolkit, capability, TARGETS)
    assert found == form and words in why


def test_121_the_compiler_says_itself_what_it_can() -> None:
    s = section("1.2.1")
    version, targets = s.compiler_version()
    assert version >= (12, 0) and 90 in targets and targets == sorted(targets)
    rows = s.compatibility_table(version, targets)
    assert [row[1] for row in rows] == ["450 or newer", "525 or newer", "580 or newer"]
    assert f"asked of NVRTC {version[0]}.{version[1]}" in rows[version[0] - 11][2]


class FakeLibrary:
    """A libcuda that answers cuDriverGetVersion."""

    def __init__(self, version: int, status: int = 0):
        self.version, self.status = version, status

    def cuDriverGetVersion(self, pointer: Any) -> int:
        pointer._obj.value = self.version
        return self.status


def test_121_the_driver_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.2.1")
    monkeypatch.setattr(s, "kernel_module_version", lambda: "580.1")
    monkeypatch.setattr(s.ctypes, "CDLL", lambda name: FakeLibrary(13010))
    assert s.driver_version() == ((13, 1), "580.1")
    monkeypatch.setattr(s.ctypes, "CDLL", lambda name: FakeLibrary(12090))
    assert s.driver_version() == ((12, 9), "580.1")
    monkeypatch.setattr(s.ctypes, "CDLL", lambda name: FakeLibrary(0, status=3))
    assert s.driver_version() is None

    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(s.ctypes, "CDLL", missing)
    assert s.driver_version() is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Jan 6\nGCC version: 12.2", "580.159.04"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build", "575.57.08"),
        ("something else", "unknown"),
    ],
)
def test_121_the_kernel_module(text: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s, file = section("1.2.1"), tmp_path / "version"
    file.write_text(text)
    monkeypatch.setattr(s, "Path", lambda name: file)
    assert s.kernel_module_version() == version
    file.unlink()
    assert s.kernel_module_version() == "unknown"


def test_121_environment_and_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.2.1")
    monkeypatch.setenv("PATH", "/bin:/usr/local/cuda/bin")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/lib")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    shown = {name: value for name, value, _ in s.variables()}
    assert shown["PATH"] == "/usr/local/cuda/bin" and shown["LD_LIBRARY_PATH"] == "nothing of CUDA"
    assert shown["CUDA_PATH"] == "not set"
    versions = dict(s.packages())
    assert versions["numpy"] == np.__version__
    assert dict(s.places())["libnvrtc"].rpartition("/")[2].startswith("libnvrtc.so")


def test_121_reference_by_hand() -> None:
    lengths, largest = section("1.2.1").reference(np.array([[3, 4, 0], [-2, 1, 2], [0, 0, 0]], np.float32))
    np.testing.assert_array_equal(lengths, [5, 3, 0])
    np.testing.assert_array_equal(largest, [1, 0, 0])  # the first of equals


@pytest.mark.parametrize("n", SIZES)
def test_121_smoke_test(n: int) -> None:
    s = section("1.2.1")
    steps, xyz, length, largest = s.smoke_test(n)
    assert [step for step, _, _ in steps][:3] == ["open the device", "compile", "load"]
    expected, index = s.reference(xyz)
    np.testing.assert_allclose(length, expected, rtol=4 * 2.0**-24, equal_nan=False)
    np.testing.assert_array_equal(largest, index)


def test_121_the_step_that_fails_is_the_next_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    s = section("1.2.1")
    monkeypatch.setattr(s, "KERNEL", s.KERNEL.replace("if (i >= n) return;", "if (i >= n) return"))
    with pytest.raises(gpu.CUDAError):
        s.smoke_test(10)
    printed = capfd.readouterr().out
    assert "open the device" in printed and "compile" not in printed


def test_121_what_it_prints(capfd: pytest.CaptureFixture[str]) -> None:
    printed = output_of("1.2.1", "--quick", capfd=capfd)
    for words in ("NVRTC", "cuda-core", "What goes together", "verdict: ", "copy out", "largest"):
        assert words in printed


# --- 1.2.2 ----------------------------------------------------------------------------------------------------


def interfaces() -> list[str]:
    """Those that are there."""
    s, found = section("1.2.2"), []
    for name in s.INTERFACES:
        with contextlib.suppress(Unavailable):
            s.interface(name)
            found.append(name)
    return found


def test_122_reference_by_hand() -> None:
    x, y = np.array([1, 2, 3], np.float32), np.array([10, -20, 30], np.float32)
    out = section("1.2.2").reference(2, x, y, -5, 20)
    np.testing.assert_array_equal(out, [12, -5, 20])
    assert out.dtype == np.float32


@pytest.mark.parametrize("n", SIZES)
def test_122_same_bits(n: int) -> None:
    s, (x, y) = section("1.2.2"), vectors(n)
    before, expected = y.copy(), s.reference(-1.3, x, y, -0.7, 0.9)
    assert "cuda.core" in interfaces()
    for name in interfaces():
        out = s.interface(name)(-1.3, x, y, -0.7, 0.9)
        assert out.dtype == np.float32
        np.testing.assert_array_equal(out, expected, err_msg=name)
        np.testing.assert_array_equal(y, before)


def test_122_bad_input() -> None:
    s, good = section("1.2.2"), np.ones(3, np.float32)
    bad = (np.ones(3), np.ones(4, np.float32), np.ones((3, 1), np.float32), np.ones(0, np.float32))
    for name in interfaces():
        for other in bad:
            for pair in ((good, other), (other, good)):
                with pytest.raises(ValueError, match="expected two float32 vectors of one length"):
                    s.interface(name)(1, *pair, 0, 1)


def test_122_two_interfaces_one_memory() -> None:
    s, (x, y) = section("1.2.2"), vectors(1000)
    if "PyCUDA SourceModule" not in interfaces():
        pytest.skip("needs PyCUDA")
    expected = s.reference(-1, x, s.reference(2, x, y, -5, 5), -1, 1)
    np.testing.assert_array_equal(s.shared_memory(x, y), expected)


def test_122_the_compilers_own_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.2.2")
    assert s.compile_with_nvrtc("sm_90")[:4] == b"\x7fELF"
    monkeypatch.setattr(s, "KERNEL", s.KERNEL.replace("const long long i", "const long lon i"))
    with pytest.raises(gpu.CUDAError, match="error: "):
        s.compile_with_nvrtc("sm_90")


def test_122_what_is_missing_has_a_line_and_the_rest_runs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    s = section("1.2.2")

    def missing() -> None:
        raise Unavailable("PyCUDA", "./run setup pycuda")

    monkeypatch.setattr(s, "load_pycuda", missing)
    monkeypatch.setattr(s, "interface", lambda name: s.INTERFACES[name]())
    checks = s.verify(100)
    assert "cuda.core" in [c.name for c in checks] and not any(c.name.startswith("PyCUDA") for c in checks)
    assert capfd.readouterr().out.count("not run: PyCUDA (install: ./run setup pycuda)") == 2


def test_122_a_wrong_interface_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.2.2")
    monkeypatch.setattr(s, "available", lambda: {"wrong": lambda a, x, y, low, high: np.clip(a * x - y, low, high)})
    with pytest.raises(Mismatch, match="wrong"):
        s.verify(100)


def test_122_what_it_prints(capfd: pytest.CaptureFixture[str]) -> None:
    printed = output_of("1.2.2", "--quick", capfd=capfd)
    assert "bytes of machine code for sm_" in printed and "Four interfaces" in printed
    assert ("not run: cuda.bindings.driver" in printed) == gpu.SIMULATED


# --- on a GPU -------------------------------------------------------------------------------------------------


def outputs(number: str) -> list[np.ndarray]:
    """What the kernels of a section make of fixed inputs."""
    s = section(number)
    if number == "1.2.1":
        return list(s.smoke_test(1000)[2:])
    return [s.interface("cuda.core")(1.75, *vectors(20_003), -1.5, 2.5)]


@pytest.mark.gpu
@pytest.mark.parametrize("number", ["1.2.1", "1.2.2"])
def test_gpu_and_simulator_agree(number: str, tmp_path: Path) -> None:
    assert_both_agree(outputs(number), on_the_simulator(__name__, number, tmp_path))
