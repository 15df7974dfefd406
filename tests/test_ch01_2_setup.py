"""Sections 1.2.1 and 1.2.2, setting up: versions that go together, and one kernel through every interface."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common import gpu
from common.cli import FAILED, ReaderError, Unavailable, exit_code
from common.verify import Mismatch, ulp_distance
from tests.chapter import SIZES, assert_both_agree, on_the_simulator, output_of, section, vectors

# --- 1.2.1 ----------------------------------------------------------------------------------------------------

TARGETS = [75, 80, 86, 89, 90, 100, 103, 120]


@pytest.mark.parametrize(
    ("driver", "toolkit", "capability", "target", "words"),
    [
        ((13, 0), (13, 0), 90, "sm_90", "every driver for CUDA 13.x loads"),
        ((13, 1), (13, 0), 90, "sm_90", "every driver for CUDA 13.x loads"),
        ((14, 0), (13, 0), 75, "sm_75", "machine code"),
        ((13, 0), (13, 3), 80, "sm_80", "it would refuse PTX of 13.3, being for 13.0"),  # minor-version compatibility
        ((13, 0), (13, 0), 87, "sm_86", "machine code"),  # of a lower minor capability
        ((13, 0), (13, 0), 121, "sm_120", "machine code"),
        ((13, 2), (13, 0), 130, "compute_120", "newer than the compiler: PTX"),
        ((13, 0), (13, 0), 110, "compute_103", "newer than the compiler: PTX"),  # not of 12.0, which is newer still
        ((13, 0), (13, 1), 130, None, "PTX of 13.1 newer than the driver"),
        ((12, 9), (13, 0), 90, None, "CUDA up to 12.9; toolkit 13.x needs a driver 580 or newer"),
        ((11, 4), (12, 0), 80, None, "toolkit 12.x needs a driver 525 or newer"),
        ((13, 0), (14, 0), 90, None, "toolkit 14.x needs a driver that is newer"),
        ((13, 0), (13, 0), 70, None, "too old: toolkit 13.0 begins with compute capability 7.5"),
    ],
)
def test_121_what_goes_together(
    driver: tuple[int, int], toolkit: tuple[int, int], capability: int, target: str | None, words: str
) -> None:
    found, why = section("1.2.1").verdict(driver, toolkit, capability, TARGETS)
    assert found == target and words in why


def test_121_what_runs_with_a_driver() -> None:
    s = section("1.2.1")
    rows = {toolkit: (driver, runs) for toolkit, driver, _, runs in s.compatibility_table((12, 4))}
    assert rows == {
        "CUDA 11.x": ("450 or newer", "machine code, PTX"),
        "CUDA 12.x": ("525 or newer", "machine code, PTX up to 12.4"),
        "CUDA 13.x": ("580 or newer", "nothing"),
    }
    assert [row[-1] for row in s.compatibility_table(None)] == ["-"] * 3
    for _, packages in s.OLDEST_DRIVER.values():
        assert packages is None or (Path(s.__file__).parent.parent / packages).is_file()


def test_121_the_compiler_says_itself_what_it_can() -> None:
    version, targets = section("1.2.1").compiler_version()
    assert version >= (12, 0) and 90 in targets and targets == sorted(targets)


class FakeDriver:
    """A libcuda that answers cuDriverGetVersion."""

    def __init__(self, version: int, status: int = 0):
        self.version, self.status = version, status

    def cuDriverGetVersion(self, pointer: Any) -> int:
        pointer._obj.value = self.version
        return self.status


@pytest.mark.parametrize(
    ("library", "expected"),
    [(FakeDriver(13010), (13, 1)), (FakeDriver(12090), (12, 9)), (FakeDriver(0, status=3), None), (None, None)],
)
def test_121_the_driver_is_asked(
    library: FakeDriver | None, expected: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str) -> FakeDriver:
        assert name == "libcuda.so.1"
        if library is None:
            raise OSError(name)
        return library

    s = section("1.2.1")
    monkeypatch.setattr(s.ctypes, "CDLL", load)
    assert s.driver_version() == expected


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Jan 6\nGCC version: 12.2", "580.159.04"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build", "575.57.08"),
        ("NVRM version: 525.60", "525.60"),
        ("something else", "unknown"),
        (None, "unknown"),
    ],
)
def test_121_the_drivers_release(
    text: str | None, release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s, file = section("1.2.1"), tmp_path / "version"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(s, "Path", lambda name: file)
    assert s.driver_release() == release


def test_121_folders_that_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.2.1")
    folders = {name: tmp_path / name for name in ("tools", "nothing", "driver", "compiler")}
    for folder in folders.values():
        folder.mkdir()
    (folders["tools"] / "nvcc").touch()
    (folders["driver"] / "libcuda.so.1").touch()
    (folders["compiler"] / "libnvrtc.so.13").touch()
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders.values())))
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join(map(str, folders.values())))
    monkeypatch.setenv("CUDA_HOME", "/somewhere")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    shown = {name: value for name, value, _ in s.variables()}
    assert shown["PATH"] == str(folders["tools"])
    assert shown["LD_LIBRARY_PATH"] == f"{folders['driver']}{os.pathsep}{folders['compiler']}"
    assert (shown["CUDA_HOME"], shown["CUDA_PATH"]) == ("/somewhere", "not set")
    monkeypatch.setenv("PATH", str(folders["nothing"]))
    monkeypatch.delenv("LD_LIBRARY_PATH")
    shown = {name: value for name, value, _ in s.variables()}
    assert shown["PATH"] == shown["LD_LIBRARY_PATH"] == "nothing of CUDA"


def test_121_places(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.2.1")
    monkeypatch.setattr(s, "find_tool", {"nvcc": "/a/nvcc", "g++": "/b/g++"}.get)
    monkeypatch.setattr(s.shutil, "which", lambda name: "/b/g++" if name == "g++" else None)
    rows = {what: (how, where) for what, how, where in s.places()}
    assert Path(rows["libnvrtc"][1]).is_file() and rows["libnvrtc"][0] != "not found"
    assert Path(rows["headers, cudart"][1], "cuda_runtime.h").is_file()
    assert rows["nvcc"] == ("wheels or toolkit", "/a/nvcc") and rows["g++"] == ("PATH", "/b/g++")
    how, install = rows["compute-sanitizer"]
    assert how == "not found" and "pip install nvidia-cuda-sanitizer-api" in install
    assert (rows["libcuda"][0] == "not found") == (s.driver_version() is None)


def test_121_versions_that_disagree() -> None:
    s = section("1.2.1")
    found = {"cuda-bindings": "13.3.1", "cuda-toolkit": "12.9.1", "nvcc": "11.8"}
    assert s.disagreements((13, 0), found) == [
        "cuda-toolkit 12.9.1 does not go with NVRTC 13.0",
        "nvcc 11.8 does not go with NVRTC 13.0",
    ]
    assert s.disagreements((1, 0), found) == [f"{k} {v} does not go with NVRTC 1.0" for k, v in found.items()]
    here = s.versions() | s.built_for()
    assert "cuda-bindings" in here and not s.disagreements(s.compiler_version()[0], here)


def test_121_reference_by_hand() -> None:
    lengths, largest = section("1.2.1").reference(np.array([[3, 4, 0], [-2, 1, 2], [0, 0, 0], [1, 2, -2]], np.float32))
    np.testing.assert_array_equal(lengths, [5, 3, 0, 3])
    np.testing.assert_array_equal(largest, [1, 0, 0, 1])  # the first of equals
    assert largest.dtype == np.int32


def smoke_test(xyz: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    try:
        return section("1.2.1").smoke_test(xyz, f"sm_{gpu.Device().arch}")
    except ReaderError as failed:
        raise (failed.__cause__ or failed) from None  # such as the simulator's fault


@pytest.mark.parametrize("n", SIZES)
def test_121_smoke_test(n: int) -> None:
    xyz = np.random.default_rng(n).standard_normal((n, 3), dtype=np.float32)
    (length, largest), (lengths, components) = smoke_test(xyz), section("1.2.1").reference(xyz)
    assert length.dtype == np.float32
    # three products, two sums and a root, each rounded by at most 2^-24
    np.testing.assert_allclose(length, lengths, rtol=4 * 2.0**-24, equal_nan=False)
    np.testing.assert_array_equal(largest, components)


def test_121_smoke_test_of_equal_components() -> None:
    xyz = np.stack(np.meshgrid(*[[-1, 0, 1, 2]] * 3), axis=-1).reshape(-1, 3).astype(np.float32)
    np.testing.assert_array_equal(smoke_test(xyz)[1], section("1.2.1").reference(xyz)[1])
    np.testing.assert_array_equal(smoke_test(xyz[::2])[1], section("1.2.1").reference(xyz[::2])[1])


def test_121_bad_input() -> None:
    for shape, dtype in (((3,), "f4"), ((4, 2), "f4"), ((0, 3), "f4"), ((4, 3), "f8")):
        with pytest.raises(ValueError, match=r"expected float32 vectors of shape \(n, 3\)"):
            smoke_test(np.ones(shape, dtype))


def broken(*_: Any, **__: Any) -> None:
    raise gpu.CUDAError("CUDA_ERROR_OF_THE_TEST")


@pytest.mark.parametrize("name", ["open", "compile", "load", "allocate", "copy in", "launch", "wait", "copy out"])
def test_121_the_step_that_fails_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    s = section("1.2.1")
    device = gpu.Device(0)
    device.set_current()
    real = device.create_stream()
    stream = SimpleNamespace(sync=broken)
    buffer = SimpleNamespace(size=12, copy_from=lambda *_, **__: None, copy_to=broken)
    standing_in = SimpleNamespace(set_current=lambda: None, create_stream=lambda: real, allocate=device.allocate)
    match name:
        case "open":
            standing_in.set_current = broken
        case "compile":
            monkeypatch.setattr(s, "KERNEL", s.KERNEL.replace("if (i >= n) return;", "if (i >= n) return"))
        case "load":
            monkeypatch.setattr(s, "KERNEL", s.KERNEL.replace("void lengths", "void length_of"))
        case "allocate":
            standing_in.allocate = broken
        case "copy in":
            standing_in.allocate = lambda *_, **__: SimpleNamespace(copy_from=broken)
        case "launch":
            monkeypatch.setattr(s, "BLOCK", 2048)
        case "wait":
            standing_in.create_stream, standing_in.allocate = lambda: stream, lambda *_, **__: buffer
            monkeypatch.setattr(s, "launch", lambda *_: None)
        case "copy out":
            stream.sync = lambda: None
            standing_in.create_stream, standing_in.allocate = lambda: stream, lambda *_, **__: buffer
            monkeypatch.setattr(s, "launch", lambda *_: None)
    monkeypatch.setattr(s, "Device", lambda number: standing_in)
    with pytest.raises(ReaderError, match=f"^{name} failed.*{s.REMEDIES[name][:20]}"):
        s.smoke_test(np.ones((100, 3), np.float32), f"sm_{device.arch}")
    lines = capfd.readouterr().out.splitlines()
    assert lines[-1].split() == [*name.split(), "failed"]
    assert [line[:12].strip() for line in lines] == list(s.REMEDIES)[: len(lines)]


@pytest.mark.parametrize("older", [0, 1])
def test_121_a_gpu_newer_than_the_compiler_gets_ptx(
    older: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    s = section("1.2.1")
    version, targets = s.compiler_version()
    known = [target for target in targets if target // 10 < gpu.Device().compute_capability[0]][: 1 + older]
    monkeypatch.setattr(s, "compiler_version", lambda: (version, known))
    if not known or (s.driver_version() or version) < version:
        pytest.skip("the compiler knows no older GPU, or the driver is too old for its PTX")
    printed = output_of("1.2.1", "--quick", capfd=capfd)
    assert f": compute_{known[-1]} (the GPU is newer than the compiler" in printed and "copy out" in printed


def test_121_what_cannot_work_ends_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    s = section("1.2.1")
    monkeypatch.setattr(s, "driver_version", lambda: (11, 4))
    monkeypatch.setattr(s, "versions", lambda: {"cuda-bindings": "11.8"})
    assert exit_code(s.main, ["--quick"]) == FAILED
    done = capfd.readouterr()
    assert "CUDA up to 11.4" in done.err and "./run setup chooses" in done.err
    assert "cuda-bindings 11.8 does not go with NVRTC" in done.out
    assert "verdict: impossible" in done.out and "smoke test" not in done.out


def test_121_what_it_prints(capfd: pytest.CaptureFixture[str]) -> None:
    printed = output_of("1.2.1", "--quick", capfd=capfd)
    s, arch = section("1.2.1"), gpu.Device().arch
    words = ("libnvrtc", "LD_LIBRARY_PATH", "CUDA 13.x   580 or newer", f": sm_{arch} (machine code", "smoke test")
    positions = [printed.index(text) for text in (*words, *(f"\n  {name} " for name in s.REMEDIES), " largest ")]
    assert positions == sorted(positions)
    assert gpu.Device(0).name in printed and f"all of major version {s.compiler_version()[0][0]}" in printed
    assert printed.count(" done\n") == (len(s.REMEDIES) if gpu.SIMULATED else 0)


def test_121_a_wrong_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.2.1")
    for name in ("length", "largest"):
        monkeypatch.setattr(s, "KERNEL", s.KERNEL.replace(f"{name}[i] = ", f"{name}[i] = i == 7 ? 5 : "))
        with pytest.raises(Mismatch, match=f"{name}: 1 of 33 elements"):
            s.verify(33, f"sm_{gpu.Device().arch}")
        monkeypatch.undo()


# --- 1.2.2 ----------------------------------------------------------------------------------------------------


@pytest.fixture
def interfaces() -> Iterator[dict[str, Any]]:
    """Those that are here; on the simulator all but the driver's own functions."""
    with section("1.2.2").interfaces() as (found, missing):
        assert len(missing) == (set(found) != set(section("1.2.2").INTERFACES))
        assert "cuda.core" in found
        if gpu.SIMULATED:
            assert set(section("1.2.2").INTERFACES) - set(found) == {"cuda.bindings.driver"}
        yield found


def test_122_reference_by_hand() -> None:
    x, y = np.array([1, 2, 3, np.nan], np.float32), np.array([10, -20, 30, 0], np.float32)
    out = section("1.2.2").reference(2, x, y, -5, 20)
    np.testing.assert_array_equal(out, [12, -5, 20, np.nan])
    assert out.dtype == np.float32


@pytest.mark.parametrize("n", SIZES)
def test_122_same_bits(n: int, interfaces: dict[str, Any]) -> None:
    s, (x, y) = section("1.2.2"), vectors(n)
    before, expected = y.copy(), s.reference(-1.25, x, y, -0.5, 0.75)
    for name, call in interfaces.items():
        out = call(-1.25, x, y, -0.5, 0.75)
        assert out.dtype == np.float32
        np.testing.assert_array_equal(out, expected, err_msg=name)
        np.testing.assert_array_equal(y, before)


def test_122_any_factor(interfaces: dict[str, Any]) -> None:
    s, (x, y) = section("1.2.2"), vectors(1000)
    results = [call(1 / 3, x, y, -3, 3) for call in interfaces.values()]
    for out in results:
        np.testing.assert_array_equal(out, results[0])
        # in float64 the sum may be rounded, and then once more to float32
        assert ulp_distance(out, s.reference(1 / 3, x, y, -3, 3)).max() <= 1


def test_122_bounds_and_nan(interfaces: dict[str, Any]) -> None:
    x = np.array([1, -1, np.nan, np.inf, -np.inf, 0, 0.5], np.float32)
    y = np.array([0, 0, 1, 0, 1, np.nan, 0], np.float32)
    for name, call in interfaces.items():
        np.testing.assert_array_equal(call(2, x, y, -1, 1.5), [1.5, -1, np.nan, 1.5, -1, np.nan, 1], err_msg=name)


def test_122_strided_input(interfaces: dict[str, Any]) -> None:
    s, (x, y) = section("1.2.2"), vectors(600)
    for name, call in interfaces.items():
        out = call(2, x[::2], y[::-2], -1, 1)
        np.testing.assert_array_equal(out, s.reference(2, x[::2], y[::-2], -1, 1), err_msg=name)


def test_122_bad_input(interfaces: dict[str, Any]) -> None:
    good = np.ones(3, np.float32)
    bad = (np.ones(3), np.ones(4, np.float32), np.ones((3, 1), np.float32), np.ones(0, np.float32))
    for call in interfaces.values():
        for other in bad:
            for pair in ((good, other), (other, good)):
                with pytest.raises(ValueError, match="expected two float32 vectors of one length"):
                    call(1, *pair, 0, 1)
        with pytest.raises(ValueError, match=r"got float64 \(2,\), float32 \(3,\), 0 and 1"):
            call(1, [1.0, 2.0], good, 0, 1)
        for low, high in ((1, 0), (np.nan, 1), (0, np.nan)):
            with pytest.raises(ValueError, match=f"low <= high, got .* {low} and {high}"):
                call(1, good, good, low, high)
    with pytest.raises(ValueError, match="expected two float32 vectors of one length"):
        section("1.2.2").shared_memory(good, good[:2])


def test_122_many_launches_on_held_memory(interfaces: dict[str, Any]) -> None:
    """As they are timed: each launch updates what the one before it left."""
    s, (x, y) = section("1.2.2"), vectors(300)
    expected = y
    for _ in range(3):
        expected = s.reference(0.5, x, expected, -1, 1)
    for name, call in interfaces.items():
        d_x, d_y = call.upload(x), call.upload(y)
        start, out = call.launcher(0.5, d_x, d_y, -1, 1, 300), np.empty(300, np.float32)
        for _ in range(3):
            start()
        call.download(out, d_y)
        call.free(d_x, d_y)
        np.testing.assert_array_equal(out, expected, err_msg=name)


def test_122_two_libraries_one_memory(interfaces: dict[str, Any]) -> None:
    if "PyCUDA SourceModule" not in interfaces:
        pytest.skip("needs PyCUDA")
    s, (x, y) = section("1.2.2"), vectors(100_003)
    expected = s.reference(-1, x, s.reference(2, x, y, -5, 5), -1, 1)
    np.testing.assert_array_equal(s.shared_memory(x, y), expected)
    np.testing.assert_array_equal(s.shared_memory(x[::-3], y[::-3]), expected[::-3])


def test_122_the_compilers_own_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.2.2")
    assert s.compile_with_nvrtc("sm_90")[:4] == b"\x7fELF"
    monkeypatch.setattr(s, "KERNEL", s.KERNEL.replace("const long long i", "const long lon i"))
    with pytest.raises(gpu.CUDAError, match=r"(?s)clipped_update\.cu.*error: .*\d error"):
        s.compile_with_nvrtc("sm_90")


def test_122_what_is_missing_has_one_line_and_the_rest_runs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    s = section("1.2.2")

    def missing() -> None:
        raise Unavailable("PyCUDA", "./run setup pycuda")

    monkeypatch.setattr(s, "load_pycuda", missing)
    printed = output_of("1.2.2", "--size", "1000", "--no-bench", capfd=capfd)
    assert printed.count("not run: PyCUDA (install: ./run setup pycuda)") == 1
    assert " cuda.core " in printed and "PyCUDA, then" not in printed


def test_122_what_was_opened_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    s, closed = section("1.2.2"), []
    monkeypatch.setattr(s.Core, "close", lambda self: closed.append(self))
    with s.interfaces() as (found, _):
        assert not closed
    assert closed == [found["cuda.core"]]


def test_122_memory_is_freed_though_the_launch_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    s, freed = section("1.2.2"), []
    monkeypatch.setattr(s.Core, "free", lambda self, *arrays: freed.extend(arrays))
    monkeypatch.setattr(s, "BLOCK", 2048)
    with pytest.raises(gpu.CUDAError):
        s.Core()(1, *vectors(10), 0, 1)
    assert len(freed) == 2


def test_122_a_wrong_interface_is_noticed() -> None:
    s = section("1.2.2")
    with pytest.raises(Mismatch, match="wrong"):
        s.verify({"wrong": lambda a, x, y, low, high: np.clip(a * x - y, low, high)}, 100)


def test_122_what_it_prints(capfd: pytest.CaptureFixture[str]) -> None:
    printed = output_of("1.2.2", "--quick", capfd=capfd)
    assert f"bytes of machine code for sm_{gpu.Device().arch}" in printed and "who checks errors" in printed
    assert ("not run: cuda.bindings.driver" in printed) == gpu.SIMULATED


@pytest.mark.gpu
@pytest.mark.slow
def test_122_what_a_launch_costs() -> None:
    rows = {(row.name, row.size.rpartition(" ")[2]): row for row in section("1.2.2").benchmark()}
    launches = {name: row.seconds for (name, what), row in rows.items() if what == "launch"}
    alone = launches.pop("the kernel on the GPU")
    assert all(alone < seconds < 1e-4 for seconds in launches.values())
    assert max(launches["cuda.core"], launches["cuda.bindings.driver"]) < launches["PyCUDA SourceModule"]
    assert rows["cuda.bindings.driver", "launch"].of_peer == rows["cuda.bindings.driver", "call"].of_peer == 1


# --- on a GPU -------------------------------------------------------------------------------------------------


def outputs(number: str) -> list[np.ndarray]:
    """What the kernels of a section make of fixed inputs."""
    if number == "1.2.1":
        return list(smoke_test(np.random.default_rng(121).standard_normal((1000, 3), dtype=np.float32)))
    return [section("1.2.2").Core()(1 / 3, *vectors(20_003), -1.5, 2.5)]


@pytest.mark.gpu
@pytest.mark.parametrize("number", ["1.2.1", "1.2.2"])
def test_gpu_and_simulator_agree(number: str, tmp_path: Path) -> None:
    assert_both_agree(outputs(number), on_the_simulator(__name__, number, tmp_path))


def test_121_packages_built_for_another_cuda_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.2.1")
    names = ("cupy-cuda12x", "nvidia-cudnn-cu12", "tensorrt-rtx-cu13", "numpy", "cuda-core", "pycuda", None)
    distributions = [SimpleNamespace(name=name) for name in names]
    monkeypatch.setattr(s.metadata, "distributions", lambda: distributions)
    assert s.built_for() == {"cupy-cuda12x": "12.", "nvidia-cudnn-cu12": "12.", "tensorrt-rtx-cu13": "13."}
    assert len(s.disagreements((13, 0), s.built_for())) == 2
    assert "requirements.txt: cuda-core 1." in s.compatibility_table(None)[-1][2]


@pytest.mark.parametrize("program", [b"\377\376garbage\n", b"#!/bin/sh\nprintf '\\377\\376garbage'\n"])
def test_121_an_nvcc_that_is_none(program: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "nvcc"
    fake.write_bytes(program)
    fake.chmod(0o755)
    monkeypatch.setattr(section("1.2.1"), "find_tool", lambda name: str(fake))
    assert section("1.2.1").versions()["nvcc"] == "no answer"
