"""Shared by all tests: what a marker needs, and a device in its first state before and after each test."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from functools import cache

os.environ["MPLBACKEND"] = "Agg"  # for the scripts that tests start, too

import pytest
from hypothesis import settings

settings.register_profile("book", deadline=None, derandomize=True)
settings.load_profile("book")


@cache
def gpu_count() -> int:
    """How many GPUs `common.gpu` uses: none where CUDA_BOOK_DEVICE=simulator."""
    from common import gpu

    if gpu.SIMULATED:
        return 0
    from cuda.core import Device

    return len(Device.get_all_devices())


def obstacle(marker: str) -> str | None:
    """Why a test with that marker cannot run here; None if it can."""
    if marker == "gpu" and gpu_count() == 0:
        from common import gpu

        return f"needs a GPU ({gpu.DEVICE_REASON})"
    if marker == "multi_gpu" and gpu_count() < 2:
        return f"needs two GPUs, has {gpu_count()}"
    modules = {"tensorrt": ("tensorrt", "tensorrt_rtx"), "tensorflow": ("tensorflow",)}.get(marker, ())
    if modules and not any(importlib.util.find_spec(name) for name in modules):
        return f"needs {' or '.join(modules)} (./run doctor says how)"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers():
        if reason := obstacle(mark.name):
            pytest.skip(reason)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With a GPU, tests that are about the simulator are left to test_on_the_simulator.py."""
    if gpu_count() == 0:
        return
    about_it = [item for item in items if item.get_closest_marker("simulator")]
    config.hook.pytest_deselected(items=about_it)
    items[:] = [item for item in items if item not in about_it]


def pytest_report_header() -> str:
    try:
        from common import gpu
    except ImportError as error:
        return f"device: unknown, common.gpu does not import: {error}"
    return f"device: simulator ({gpu.DEVICE_REASON})" if gpu.SIMULATED else f"device: {gpu_count()} GPU(s)"


@pytest.fixture(autouse=True)
def fresh_simulator() -> Iterator[None]:
    """A fault sticks to the simulated device, as on a GPU; it must not reach the next test."""
    yield
    if api := sys.modules.get("common.simt.api"):
        api.reset()


@pytest.fixture(autouse=True, scope="session")
def plots_of_tests_go_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """out/ holds the reader's plots; what a test draws, perhaps from made-up figures, must not replace them."""
    from common import report

    report.OUT, kept = tmp_path_factory.mktemp("out"), report.OUT
    yield
    report.OUT = kept
