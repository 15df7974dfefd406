"""The same kernels, inputs and launches on a GPU and on the simulator, in one process.

Integers must be equal bit for bit, floats within the ulp (or the tolerance, with its reason) that the case states.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simt_cases import CASES
from tests.simt_cases.harness import EXACT, Case, Runner, Size, Tol, compare, compare_ulp
from tests.simt_cases.ptx_ops import NAMES, OPS, SOURCE, Op, comparable

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]
EVERY = [
    pytest.param(case, size, id=f"{case.name}-{'x'.join(map(str, size)) if isinstance(size, tuple) else size}")
    for case in CASES
    for size in case.sizes
]


@pytest.fixture(scope="module")
def backends() -> Iterator[tuple[object, object]]:
    import cuda.core as hardware

    import common.simt.api as simulator

    yield hardware, simulator
    Runner.forget()


@pytest.mark.parametrize(("case", "size"), EVERY)
def test_simulator_equals_gpu(case: Case, size: Size, backends: tuple[object, object]) -> None:
    hardware, simulator = backends
    on_gpu, simulated = case.run(hardware, size), case.run(simulator, size)
    expected = case.expected(size)
    assert on_gpu.keys() == simulated.keys() == expected.keys()
    for name, values in on_gpu.items():
        label = f"{case.name}: {name}"
        # the GPU against NumPy first: where that fails, the kernel or its reference is wrong, not the simulator
        compare(f"{label} (GPU against NumPy)", values, expected[name], case.tolerance.get(name, EXACT))
        allowed = case.gpu.get(name, 0)
        if isinstance(allowed, Tol):
            compare(f"{label} (simulator against GPU)", simulated[name], values, allowed)
        else:
            compare_ulp(f"{label} (simulator against GPU)", simulated[name], values, allowed)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_instruction_equals_gpu(op: Op, backends: tuple[object, object]) -> None:
    results = []
    for backend in backends:
        gpu = Runner.of(backend)
        results.append(comparable(op.run(gpu, gpu.compile(SOURCE, NAMES)), op.tol))
    compare(f"{op.name} (GPU against the manual)", results[0], comparable(op.expected(), op.tol), op.tol or EXACT)
    compare(f"{op.name} (simulator against GPU)", results[1], results[0], op.tol or EXACT)
