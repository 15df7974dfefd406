"""`./run counters`: the simulator's counters are the hardware's, and the comparison is stored, printed and rendered."""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from common import counters, gpu, ncu
from common import results as stored_results
from common.__main__ import parse
from common.cli import FAILED, OK, UNAVAILABLE, USAGE, ReaderError, exit_code
from common.simt.counters import METRICS, Counts
from tests import counter_kernels

TOGETHER = 30  # kernels at least that must agree in everything


@cache
def launches() -> tuple[tuple[str, Counts], ...]:
    """All launches on the simulator, once for all tests: they take some seconds."""
    return tuple(counter_kernels.simulated())


@cache
def simulated() -> dict[str, dict[str, int]]:
    return counters.by_the_simulator(launches())


# --- the simulator against the stored figures of a GPU --------------------------------------------------------


@pytest.mark.simulator
def test_every_case_counts_something() -> None:
    assert len(simulated()) > 2 * TOGETHER
    for name, figures in simulated().items():
        assert figures.keys() == counters.COMPARED.keys()
        assert any(figures.values()), name
    for counter in counters.COMPARED:
        assert any(figures[counter] for figures in simulated().values()), counter


@pytest.mark.simulator
def test_the_simulator_counts_as_the_hardware_did() -> None:
    data = counters.load()
    if data is None:
        pytest.skip("no figures of a GPU are stored: ./run counters on a GPU stores them")
    hardware = data["kernels"]
    assert hardware.keys() <= simulated().keys(), "a kernel that is no case any more: ./run counters records anew"
    assert counters.unexplained(hardware, simulated()) == []
    assert len(hardware) - len(counters.differing(hardware, simulated())) >= TOGETHER
    assert data["simulator"] == simulated(), "the README shows the simulator's figures as they were"


@pytest.mark.simulator
def test_cases_by_hand() -> None:
    found, warps = simulated(), -(-counter_kernels.N // 32)
    assert found["1.1.1 saxpy"]["global_load_requests"] == 2 * warps
    assert found["1.1.1 saxpy"]["global_store_sectors"] == -(-counter_kernels.N // 8)
    assert found["1.5.4 transpose_naive"]["global_store_sectors"] == counter_kernels.SIDE**2
    assert found["1.5.1 sum_by_atomics"]["global_atomic_sectors"] == counter_kernels.N  # all lanes at one address
    assert found["1.3.3 table_sums"]["global_load_requests"] == 0  # constant memory


@pytest.mark.simulator
def test_the_list_of_differences_names_cases_and_counters() -> None:
    for name, (why, *which) in counter_kernels.DIFFERENT.items():
        assert why and which and set(which) <= counters.COMPARED.keys(), name
        assert name in simulated()


def test_names_of_cases_are_unique() -> None:
    names = [case.name for case in counter_kernels.CASES]
    assert len(names) == len(set(names))


@pytest.mark.gpu
@pytest.mark.slow
def test_the_cases_on_this_gpu() -> None:
    try:
        hardware = counters.by_the_hardware(launches())
    except ReaderError as missing:
        pytest.skip(str(missing))
    agreeing = len(hardware) - len(counters.differing(hardware, simulated()))
    assert agreeing >= TOGETHER, counters.differing(hardware, simulated())


# --- the comparison -------------------------------------------------------------------------------------------

NOTHING = dict.fromkeys(counters.COMPARED, 0)


def figures(**values: int) -> dict[str, int]:
    return NOTHING | values


HARDWARE = {
    "1.1.1 saxpy": figures(global_load_requests=640, global_load_sectors=2560),
    "1.5.2 matmul": figures(shared_load_wavefronts=98_304),
    "bins": figures(global_atomic_sectors=109),
}
SIMULATOR = {
    "1.1.1 saxpy": figures(global_load_requests=640, global_load_sectors=2560),
    "1.5.2 matmul": figures(shared_load_wavefronts=131_072),
    "bins": figures(global_atomic_sectors=100),
}
MATMUL = {"1.5.2 matmul": ("merged loads", "shared_load_wavefronts")}


def test_what_counts_as_equal() -> None:
    assert counters.agree("global_load_sectors", 100, 100) and not counters.agree("global_load_sectors", 101, 100)
    assert not counters.agree("global_store_requests", 99, 100)
    assert counters.agree("global_atomic_sectors", 110, 100) and not counters.agree("global_atomic_sectors", 111, 100)
    assert not counters.agree("global_atomic_sectors", 99, 100)
    assert not counters.agree("shared_atomic_wavefronts", 109, 100)


def test_differences_must_be_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    differences = counters.differing(HARDWARE, SIMULATOR)
    assert differences == {"1.5.2 matmul": ["shared_load_wavefronts"]}
    monkeypatch.setattr(counter_kernels, "DIFFERENT", MATMUL)
    assert counters.unexplained(HARDWARE, SIMULATOR) == []
    known = "known: shared_load_wavefronts"
    # known to differ, and it does not
    assert counters.unexplained(SIMULATOR, SIMULATOR) == [f"1.5.2 matmul: nothing differ, {known}"]
    another = HARDWARE | {"bins": HARDWARE["bins"] | {"global_load_sectors": 1}}
    assert counters.unexplained(another, SIMULATOR) == ["bins: global_load_sectors differ, known: nothing"]
    more = HARDWARE | {"1.5.2 matmul": HARDWARE["1.5.2 matmul"] | {"global_load_sectors": 1}}
    both = "global_load_sectors, shared_load_wavefronts"
    assert counters.unexplained(more, SIMULATOR) == [f"1.5.2 matmul: {both} differ, {known}"]
    less = {name: {c: n for c, n in figures.items() if c != "shared_load_wavefronts"} for name, figures in more.items()}
    assert not counters.differing({"1.5.2 matmul": less["1.5.2 matmul"] | {"global_load_sectors": 0}}, SIMULATOR)
    assert counters.unexplained({"bins": HARDWARE["bins"]}, SIMULATOR) == []  # of the others nothing is stored


def test_launches_of_a_case_add_up_by_kernel() -> None:
    one = figures(global_load_sectors=4)
    found = counters.add_up([("a", "copy", one), ("a", "copy", one), ("b", "copy", one), ("b", "scale<2>", one)])
    assert {name: f["global_load_sectors"] for name, f in found.items()} == {"a": 8, "b: copy": 4, "b: scale<2>": 4}


# --- the commands, with a tool that counts as the simulator does ----------------------------------------------


def watched(program: list[str], metrics: list[str], timeout: float) -> list[ncu.Launch]:
    """ncu.profile: each launch with the simulator's figures; of matmul it saw fewer wavefronts."""
    assert program == [sys.executable, "-m", "tests.counter_kernels"] and timeout >= 120
    found = []
    for case, counts in launches():
        values = dict.fromkeys(metrics, 0.0)
        for name in counters.COMPARED:
            values[METRICS[name].split(" + ")[-1]] = float(counts.total(name))
        if case == "1.5.2 matmul":
            values[METRICS["shared_load_wavefronts"]] *= 0.75
        found.append(ncu.Launch(counts.kernel, values))
    return found


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of results, with nothing in it; one difference is known."""
    monkeypatch.setattr(counters, "on_the_simulator", launches)
    monkeypatch.setattr(counters, "ROOT", tmp_path)
    monkeypatch.setattr(stored_results, "RESULTS", tmp_path)
    monkeypatch.setattr(counters, "REFERENCE", tmp_path / "counters_reference.json")
    monkeypatch.setattr(counter_kernels, "DIFFERENT", MATMUL)
    return tmp_path


@pytest.mark.simulator
def test_on_a_gpu_the_figures_are_stored(
    stand_ins: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "SIMULATED", False)
    monkeypatch.setattr(ncu, "profile", watched)
    monkeypatch.setattr(ncu, "version", lambda: "2025.3.1.0")
    assert counters.report() == OK
    data = json.loads((stand_ins / "counters_cuda_book_simulator.json").read_text())
    assert data.keys() == {"gpu", "date", "commit", "driver", "ncu", "kernels", "simulator"}
    assert data["ncu"] == "2025.3.1.0" and data["simulator"] == simulated()
    assert data["kernels"]["1.1.1 saxpy"] == simulated()["1.1.1 saxpy"]
    printed = capsys.readouterr().out
    assert max(map(len, (line.rstrip() for line in printed.splitlines()))) <= 120
    assert re.search(r"^ 1\.1\.1 saxpy +626 +2,502 +313 +1,251 *$", printed, flags=re.MULTILINE)
    assert re.search(r"^ 1\.5\.2 matmul .* 98,304≠", printed, flags=re.MULTILINE)
    assert re.search(r"1\.5\.2 matmul +sh ld +98,304 +131,072 +merged loads", printed)
    total = len(simulated())
    assert f"{total - 1} of {total} kernels agree" in printed


@pytest.mark.simulator
def test_without_a_gpu_the_stored_figures_are_compared(
    stand_ins: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(lambda _: counters.report()) == UNAVAILABLE
    assert "no figures of a GPU are stored" in capsys.readouterr().out
    data = {"gpu": "NVIDIA X", "date": "2026-12-01T00:00:00Z", "commit": "abc1234", "driver": "580", "ncu": "2025.3"}
    data |= {"kernels": simulated() | {"gone": NOTHING}, "simulator": simulated()}
    counters.REFERENCE.write_text(json.dumps(data))
    monkeypatch.setattr(counter_kernels, "DIFFERENT", {})
    assert counters.report() == OK
    printed = capsys.readouterr().out
    assert "recorded, not counted here:\nNVIDIA X, 2026-12-01, commit abc1234" in printed
    assert "no longer a case: gone" in printed
    data["kernels"]["1.1.1 saxpy"] = figures(global_load_sectors=1)
    counters.REFERENCE.write_text(json.dumps(data))
    assert counters.report() == FAILED  # nobody knows why
    assert "1.1.1 saxpy: global_load_requests, global_load_sectors" in capsys.readouterr().out


@pytest.mark.simulator
def test_other_launches_on_the_gpu_are_an_error(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def others(*arguments: Any, **options: Any) -> list[ncu.Launch]:
        first, *rest = watched(*arguments, **options)
        return [ncu.Launch("another", first.metrics), *rest]

    monkeypatch.setattr(ncu, "profile", others)
    with pytest.raises(ReaderError, match=r"the GPU launched \d+ kernels, the simulator \d+, or others"):
        counters.by_the_hardware(launches())


def test_the_command_line() -> None:
    assert parse(["counters"]).run.__name__ == "counters"
    assert exit_code(lambda _: parse(["counters", "1.1.1"]).run()) == USAGE


# --- the README -----------------------------------------------------------------------------------------------


def test_the_table_in_a_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter_kernels, "DIFFERENT", MATMUL)
    data: dict[str, Any] = {"gpu": "NVIDIA X", "date": "2026-12-01T00:00:00Z", "commit": "abc123456", "driver": "580"}
    data |= {"ncu": "2025.3", "kernels": HARDWARE, "simulator": SIMULATOR}
    path, readme = tmp_path / "counters.json", tmp_path / "README.md"
    path.write_text(json.dumps(data))
    readme.write_text("before\n<!-- counters -->\nold\n<!-- /counters -->\nbehind\n")
    assert counters.update_readme(readme, write=False, path=path) and "old" in readme.read_text()
    assert counters.update_readme(readme, path=path)
    text = readme.read_text()
    assert text.startswith("before\n<!-- counters -->\n2 of 3 kernels agree in all of 9 counters")
    assert text.endswith("<!-- /counters -->\nbehind\n") and "old" not in text
    assert "| 1.5.2 matmul | sh ld | 98,304 | 131,072 | merged loads |" in text
    assert "| 1.1.1 saxpy | 640 | 2,560 |  |" in text and "abc1234," in text
    assert not counters.update_readme(readme, path=path)  # it is as it should be


def test_a_readme_before_anything_is_recorded(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("<!-- counters -->\n<!-- /counters -->\n")
    assert counters.update_readme(readme, path=tmp_path / "none.json")
    assert stored_results.NOTHING in readme.read_text()
    readme.write_text("no mark\n")
    assert not counters.update_readme(readme, path=tmp_path / "none.json")


def test_the_readmes_show_what_is_stored() -> None:
    assert counters.update_readmes(write=False) == [], "./run counters brings them up to date"
