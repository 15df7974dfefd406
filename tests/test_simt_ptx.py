"""Single instructions against the PTX manual's definitions, and the dialects that NVRTC speaks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import common.simt.api as simulator
from tests.simt_cases import CASES
from tests.simt_cases.harness import EXACT, Runner, compare, include_paths
from tests.simt_cases.ptx_ops import COUNT, NAMES, OPS, SOURCE, Op, comparable, exact_fma32, signed

pytestmark = pytest.mark.timeout(60)


def module() -> Any:
    return Runner.of(simulator).compile(SOURCE, NAMES)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_instruction(op: Op) -> None:
    actual, expected = op.run(Runner.of(simulator), module()), op.expected()
    compare(op.name, comparable(actual, op.tol), comparable(expected, op.tol), op.tol or EXACT)


def test_references_by_hand() -> None:
    """The expected values themselves, on cases worked out on paper."""
    by_name = {op.name: op for op in OPS}

    def one(name: str, *values: int) -> int:
        op = by_name[name]
        words = [np.full(COUNT, v, a.dtype) for v, a in zip(values, op.inputs(), strict=True)]
        return int(np.asarray(op.reference(*words))[0]) & 0xFFFFFFFF

    assert one("bfe_u32", 0xABCD1234, 8, 8) == 0x12
    assert one("bfe_s32", 0x00008000, 8, 8) == 0xFFFFFF80
    assert one("bfe_s32", 0x80000000, 28, 8) == 0xFFFFFFF8
    assert one("bfi_b32", 0xF, 0x12345678, 8, 4) == 0x12345F78
    assert one("prmt_index", 0x33221100, 0x77665544, 0x7350) == 0x77335500
    assert one("prmt_index", 0x00000080, 0, 0x8888) == 0xFFFFFFFF
    assert one("prmt_b4e", 0x33221100, 0x77665544, 0) == 0x55667700
    assert one("lop3_96", 0b1100, 0b1010, 0b0110) == 0b0000
    assert one("lop3_e8", 0b1100, 0b1010, 0b0110) == 0b1110
    assert one("lop3_ca", 0b1100, 0b1010, 0b0110) == 0b1010
    assert one("shf_l_wrap", 0x80000000, 0x1, 4) == 0x18
    assert one("bfind_u32", 0x00010000) == 16 and one("bfind_u32", 0) == 0xFFFFFFFF
    assert one("bfind_s32", 0xFFFFFFF0) == 3
    assert one("dp2a_lo", 0xFFFF0002, 0x00000305, 10) == 10 + 2 * 5 - 3
    assert one("dp4a_mixed", 0xFF010203, 0x01FF0203, 0) == (-1) * 1 + 1 * 255 + 2 * 2 + 3 * 3
    assert signed(np.array([0xFFFF], np.uint16))[0] == -1
    near_tie = (np.array([v], np.float32) for v in (1 + 2**-23, 2.0**-24 - 2**-47, 1 + 2**-23))
    assert exact_fma32(*near_tie)[0] == np.float32(1 + 2**-23)


# Cases with registers, parameters, memory, atomics and warp operations of many kinds, in the PTX of a newer
# target: compute_100 and later write untyped .b32 registers and .ptr parameters.
DIALECT = (
    "saxpy", "struct_parameters", "half2_axpy", "monte_carlo_pi", "scan_lookback", "softmax", "radix_pass",
    "atomics_all", "calls_and_switch", "conversions", "float64", "pointers", "warp_votes", "matmul_register",
)  # fmt: skip


def ptx_for(source: str, names: tuple[str, ...], target: str) -> tuple[str, dict[str, str]]:
    """NVRTC's PTX for another target, and the mangled names."""
    from cuda.bindings import nvrtc

    def call(function: Any, *arguments: Any) -> Any:
        status, *results = function(*arguments)
        assert int(status) == 0, status
        return results[0] if results else None

    options = [f"-arch={target}", "-std=c++17", *(f"-I{path}" for path in include_paths())]
    program = call(nvrtc.nvrtcCreateProgram, source.encode(), b"case.cu", 0, [], [])
    for name in names:
        call(nvrtc.nvrtcAddNameExpression, program, name.encode())
    call(nvrtc.nvrtcCompileProgram, program, len(options), [option.encode() for option in options])
    text = bytes(call(nvrtc.nvrtcGetPTXSize, program))
    call(nvrtc.nvrtcGetPTX, program, text)
    mapping = {name: call(nvrtc.nvrtcGetLoweredName, program, name.encode()).decode() for name in names}
    return text.decode().rstrip("\0"), mapping


@pytest.mark.parametrize("name", DIALECT)
def test_ptx_of_a_newer_target(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    text, mapping = ptx_for(case.source, case.kernels, "compute_100")
    assert ".target sm_100" in text
    gpu, size = Runner.of(simulator), case.sizes[-1]
    gpu.module = simulator.ObjectCode.from_ptx(text, symbol_mapping=mapping)
    actual, expected = case.launch(gpu, size, **case.make_inputs(size)), case.expected(size)
    for key, values in expected.items():
        compare(f"{name}: {key}", actual[key], values, case.tolerance.get(key, EXACT))
