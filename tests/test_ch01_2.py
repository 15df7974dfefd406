"""Sections 1.2.1 to 1.2.4, setting up and the tools: each kernel against NumPy, on whatever device is there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from common import gpu
from common.cli import ReaderError
from common.doctor import find_tool
from common.verify import Mismatch
from tests.chapter import assert_both_agree, on_the_simulator, output_of, section

# --- 1.2.4 ----------------------------------------------------------------------------------------------------

CLUSTERS = (1, 31, 33, 127, 128, 129, 1000)


def test_124_reference_by_hand() -> None:
    s = section("1.2.4")
    state = np.zeros((6, 6, 1))
    state[2:, 0, 0] = (1e6, 2e6, 3e6, 4e6)  # too far away to count
    state[1, :, 0] = (0, 1, 0, 0.5, 0, 0)  # at distance 1 of body 0, along y
    one = s.reference(state, 1)[:, :, 0]
    dt, softening = float(s.DT), float(np.float32(0.01))
    pull = dt / (1 + softening) ** 1.5
    np.testing.assert_allclose(one[0], [0, dt * pull, 0, 0, pull, 0], atol=1e-11)
    np.testing.assert_allclose(one[1], [dt * 0.5, 1 - dt * pull, 0, 0.5, -pull, 0], atol=1e-11)
    assert s.reference(state, 1).dtype == np.float64
    assert s.reference(state.astype(np.float32), 1, np.float32).dtype == np.float32


def test_124_reference_keeps_the_momentum() -> None:
    s = section("1.2.4")
    state = s.random_state(7)
    momentum = state[:, 3:].sum(axis=0, dtype=np.float64)
    np.testing.assert_allclose(s.reference(state, 50)[:, 3:].sum(axis=0), momentum, rtol=0, atol=1e-13)


@pytest.mark.parametrize("n", CLUSTERS)
def test_124_without_fma_bits_are_numpys(n: int) -> None:
    s = section("1.2.4")
    state = s.random_state(n)
    before = state.copy()
    out = s.integrate(s.nvrtc(fma=False).get_kernel("cluster"), state, 3)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, s.reference(before, 3, np.float32))
    np.testing.assert_array_equal(state, before)


@pytest.mark.parametrize("n", CLUSTERS)
@pytest.mark.parametrize("kernel", ["cluster", "cluster_rsqrt"])
def test_124_every_kernel(kernel: str, n: int) -> None:
    s = section("1.2.4")
    state = s.random_state(n)
    out = s.integrate(s.nvrtc().get_kernel(kernel), state, 3)
    # 3 steps of 15 pairs: some 60 roundings of numbers below 4, of which the pull's are magnified by close encounters
    np.testing.assert_allclose(out, s.reference(state, 3), rtol=0, atol=2e-5, equal_nan=False)
    np.testing.assert_array_equal(s.integrate(s.nvrtc().get_kernel(kernel), state, 0), state)


def test_124_bad_input() -> None:
    s = section("1.2.4")
    kernel = s.nvrtc().get_kernel("cluster")
    for shape, dtype in (((6, 6, 0), "f4"), ((6, 6), "f4"), ((5, 6, 3), "f4"), ((6, 5, 3), "f4"), ((6, 6, 3), "f8")):
        with pytest.raises(ValueError, match=r"expected float32 of shape \(6, 6, n\)"):
            s.integrate(kernel, np.zeros(shape, dtype), 1)


def test_124_a_wrong_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.2.4")
    right = s.reference
    monkeypatch.setattr(s, "reference", lambda state, steps, *dtype: right(state, steps + 1, *dtype))
    with pytest.raises(Mismatch, match="cluster -Xptxas -O3"):
        s.verify(33)
    # one unit in the last place is enough to fail where bits are compared
    monkeypatch.setattr(s, "reference", lambda *arguments: np.nextafter(result := right(*arguments), result + 1))
    with pytest.raises(Mismatch, match="the same with NumPy's float32"):
        s.verify(33)


needs_tools = pytest.mark.skipif(
    any(find_tool(name) is None for name in ("g++", "nvcc", "ptxas", "cuobjdump", "nvdisasm")),
    reason="nvcc, g++ or a tool of the toolkit is missing (./run doctor says which)",
)


PTXAS_SAYS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'cluster_rsqrt' for 'sm_90'
ptxas info    : Function properties for cluster_rsqrt
    280 bytes stack frame, 320 bytes spill stores, 396 bytes spill loads
ptxas info    : Used 64 registers, used 0 barriers, 280 bytes cumulative stack size
ptxas info    : Compiling entry function 'cluster' for 'sm_90'
ptxas info    : Function properties for cluster
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 194 registers, used 0 barriers
"""
CUOBJDUMP_SAYS = """
\t\tFunction : cluster
        /*0000*/                   LDC R1, c[0x0][0x28] ;                  /* 0x00000a00ff017b82 */
                                                                            /* 0x000fe20000000800 */
        /*0010*/               @P0 FFMA R1, R2, R3, R4 ;                    /* 0x00000a00ff017b82 */
        /*0020*/              @!P1 FADD R1, R2, R3 ;                        /* 0x00000a00ff017b82 */
        /*0030*/              @UP2 MUFU.RSQ R1, R2 ;                        /* 0x00000a00ff017b82 */
        /*0040*/                   BRA `(.L_x_1) ;                          /* 0x00000a00ff017b82 */
        /*0050*/                   NOP;                                     /* 0x00000a00ff017b82 */
\t\tFunction : cluster_rsqrt
        /*0000*/                   STL [R1], R2 ;                           /* 0x00000a00ff017b82 */
        /*10010*/                  LDL.LU R2, [R1] ;                        /* 0x00000a00ff017b82 */
"""


def test_124_figures_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    s = section("1.2.4")
    monkeypatch.setattr(s, "run", lambda command: PTXAS_SAYS if command.startswith("nvcc") else CUOBJDUMP_SAYS)
    name, found = s.make_variant("-Xptxas -O0")
    assert name == "Xptxas_O0.cubin"
    columns = ("registers", "spilled bytes", "SASS", "float32", "special", "local", "jumps")
    assert found["cluster"] == dict(zip(columns, (194, 0, 5, 2, 1, 0, 1), strict=True))
    assert found["cluster_rsqrt"] == dict(zip(columns, (64, 716, 2, 0, 0, 2, 0), strict=True))


@needs_tools
def test_124_what_the_options_do_to_the_code(capfd: pytest.CaptureFixture[str]) -> None:
    s, made = section("1.2.4"), {}
    keep = s.make_variant

    def make_variant(options: str) -> tuple[str, dict]:
        made[options] = keep(options)
        return made[options]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(s, "make_variant", make_variant)
        s.show_options((s.DEFAULT, "-maxrregcount=32"))
    usual, short = (made[options][1] for options in (s.DEFAULT, "-maxrregcount=32"))
    for kernel in s.KERNELS:
        assert short[kernel]["registers"] == 32 < usual[kernel]["registers"] <= 255
        assert usual[kernel]["spilled bytes"] == usual[kernel]["local"] == 0
        assert short[kernel]["spilled bytes"] > 0 and short[kernel]["local"] > 0
        assert sum(usual[kernel][name] for name in s.CLASSES) < usual[kernel]["SASS"]
    # a root, and with a division two special functions for each of 15 pairs, and more for those that need care
    assert usual["cluster_rsqrt"]["special"] == 15 and usual["cluster"]["special"] >= 30
    assert usual["cluster_rsqrt"]["SASS"] < 0.7 * usual["cluster"]["SASS"]
    printed = capfd.readouterr().out
    (most, *others) = map(int, re.findall(r"^ +\d+ +(\d+) +\S.*;", printed, flags=re.MULTILINE))
    assert len(others) == 3 and most > 5 * others[0] >= 5 * others[-1] > 0
    assert most + sum(others) < usual["cluster"]["SASS"]
    assert re.search(r"^ cluster +-Xptxas -O3 +\d+ +0 +\d+ ", printed, flags=re.MULTILINE)
    assert re.search(r"^ +\d+ +\d{3} +static .* return 1.0f / \(d2 \* sqrtf\(d2\)\);", printed, flags=re.MULTILINE)


@needs_tools
def test_124_forms(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    s = section("1.2.4")
    s.show_forms(33)
    printed = capfd.readouterr().out
    assert re.search(r"nvcc -ptx +gcc → cicc", printed) and re.search(r"nvcc -o program +gcc → .* → g\+\+", printed)
    assert printed.count("loaded, result as NVRTC's") == (1 if gpu.SIMULATED else 4)
    arch = gpu.Device().arch
    assert re.search(rf"in the fatbin: ELF for sm_\d+, ELF for sm_{arch}, PTX for sm_{arch}", printed)
    # only what is loaded is compared; other arithmetic gives other bits
    monkeypatch.setattr(s, "nvrtc", lambda nvrtc=s.nvrtc: nvrtc(fma=False))
    monkeypatch.setattr(s, "run", lambda command: "compute_75")  # the files are there
    with pytest.raises(Mismatch, match=r"cluster\.ptx"):
        s.show_forms(33)


@needs_tools
def test_124_a_command_that_fails_shows_its_log() -> None:
    s = section("1.2.4")
    with pytest.raises(ReaderError, match=r"(?s)nvcc -ptx there_is_none\.cu.*there_is_none"):
        s.run("nvcc -ptx there_is_none.cu")


@pytest.mark.parametrize(("tool", "install"), [("g++", "apt install g++"), ("nvdisasm", "./run setup")])
def test_124_without_a_tool(
    tool: str, install: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    s = section("1.2.4")
    monkeypatch.setattr(s, "find_tool", lambda name: None if name == tool else name)
    monkeypatch.setattr(s, "run", None)  # nothing is started
    printed = output_of("1.2.4", "--size", "33", capfd=capfd)
    assert f"not run: what {tool} makes or shows (install: {install})" in printed
    assert re.search(r"the same with NumPy's float32 +1188 +0 +0 +exact", printed)


@pytest.mark.gpu
@pytest.mark.slow
@needs_tools
def test_124_what_the_options_cost() -> None:
    seconds = {row.name: row.seconds for row in section("1.2.4").benchmark()}
    assert seconds["cluster --use_fast_math"] < seconds["cluster -Xptxas -O3"] < seconds["cluster -Xptxas -O0"]
    assert seconds["cluster_rsqrt -Xptxas -O3"] < seconds["cluster -Xptxas -O3"] < seconds["cluster -G"]
    assert seconds["driver: load cubin"] < seconds["driver: load PTX"]


# --- on a GPU -------------------------------------------------------------------------------------------------


def outputs(number: str) -> list[np.ndarray]:
    """What the kernels of a section make of fixed inputs."""
    s = section(number)
    if number == "1.2.4":  # without fused multiply-adds, which the compilers place differently
        return [s.integrate(s.nvrtc(fma=False).get_kernel("cluster"), s.random_state(333), 20)]
    raise ValueError(number)


@pytest.mark.gpu
@pytest.mark.parametrize("number", ["1.2.4"])
def test_gpu_and_simulator_agree(number: str, tmp_path: Path) -> None:
    assert_both_agree(outputs(number), on_the_simulator(__name__, number, tmp_path))
