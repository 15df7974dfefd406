"""With a GPU: the tests that are about the simulator, in a process that uses it."""

import os
import re
import subprocess
import sys

import pytest

from common.sections import ROOT


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_is_about_the_simulator() -> None:
    environment = {**os.environ, "CUDA_BOOK_DEVICE": "simulator"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "simulator",
        "--durations=0",
        "-p",
        "no:cacheprovider",
        "tests",
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > 50
