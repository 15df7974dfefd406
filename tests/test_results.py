"""common.results: rows, merging, broken files, and README tables that agree with the reference file."""

import json
import re
import subprocess
import types

import numpy as np
import pytest

from common import gpu, results, timing
from common.results import NOTHING, ResultsError, Row, load, merge, record, recorded, render, update_readme
from common.timing import Timing, Yardsticks
from tests.chapter import recorded_as

YARD = Yardsticks(copy_gbps=4000.0, fma_tflops=60.0, sm_clock_mhz=1980, throttled=())
RUN = {
    "date": "2026-01-02T03:04:05Z",
    "commit": "abcdef0123456789-dirty",
    "driver": "580.1",
    "cpu": "Some CPU, 16 threads",
    "cuda": "13.0",
    "packages": {"numpy": "2.4.6"},
    "copy_gbps": 4000.0,
    "fma_tflops": 60.0,
    "sm_clock_mhz": 1980,
    "throttled": ["SwPowerCap"],
}


def row(section="1.1.1", name="saxpy", seconds=1e-3, spread=0.01, **more):
    defaults = {
        "size": "1000",
        "dtype": "f32",
        "timing": Timing(seconds, spread, (seconds,)),
        "yardsticks": YARD,
    }
    return Row.from_timing(section=section, name=name, **(defaults | more))


def test_a_row_from_a_timing():
    made = row(bytes=np.int64(2_000_000_000), flops=30_000_000_000, peer=("cuBLAS", Timing(2e-3, 0.0, ())))
    assert type(made.bytes) is int and made.of_copy == pytest.approx(0.5) and made.of_peak == pytest.approx(0.5)
    assert (made.peer, made.of_peer) == ("cuBLAS", 2.0)
    bare = row()
    assert bare.of_copy is bare.of_peak is bare.peer is bare.of_peer is None
    assert row(flops=10**9, dtype="bf16").of_peak is None, "FMA in float32 is no yardstick for tensor cores"
    assert row(flops=10**12, dtype="bf16", peak_tflops=2000.0).of_peak == pytest.approx(0.5)


def test_the_file_is_called_after_the_gpu():
    assert results.path_for("NVIDIA H200") == results.REFERENCE
    assert results.path_for("NVIDIA GeForce RTX 4090 (x)").name == "nvidia_geforce_rtx_4090_x.json"


def test_merge_replaces_equal_keys_keeps_the_rest_and_drops_unused_runs(tmp_path):
    path = tmp_path / "results" / "gpu.json"
    merge(path, "GPU", "run1", RUN, [row("10.1.1"), row("2.1.1"), row(), row(name="other")])
    merge(path, "GPU", "run2", RUN, [row(seconds=5e-3), row(peer=("cuBLAS", Timing(1.0, 0, ())))])
    rows = load(path)["rows"]
    assert [(r.section, r.name, r.peer, r.run) for r in rows] == [
        ("1.1.1", "other", None, "run1"),
        ("1.1.1", "saxpy", None, "run2"),
        ("1.1.1", "saxpy", "cuBLAS", "run2"),
        ("2.1.1", "saxpy", None, "run1"),
        ("10.1.1", "saxpy", None, "run1"),
    ]
    assert rows[1].seconds == 5e-3 and set(load(path)["runs"]) == {"run1", "run2"}
    merge(path, "GPU", "run3", RUN, [r for r in rows if r.run == "run1"])
    assert set(load(path)["runs"]) == {"run2", "run3"}
    assert [file.name for file in path.parent.iterdir()] == ["gpu.json"], "no temporary file stays behind"


def test_the_schema_is_the_documented_one(tmp_path):
    path = tmp_path / "gpu.json"
    merge(path, "NVIDIA H200", "id", RUN, [row()])
    data = json.loads(path.read_text())
    assert list(data) == ["gpu", "runs", "rows"] and data["runs"] == {"id": RUN}
    assert set(data["rows"][0]) == set(
        [
            "run",
            "section",
            "name",
            "size",
            "dtype",
            "seconds",
            "spread",
            "bytes",
            "flops",
            "of_copy",
            "of_peak",
            "peer",
            "of_peer",
        ]
    )


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "gpu.json"
    merge(path, "GPU", "id", RUN, [row()])
    before = path.read_text()
    with pytest.raises(ValueError, match="JSON"):
        merge(path, "GPU", "id", RUN, [row(seconds=float("nan"))])
    assert path.read_text() == before


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"gpu": "x"}',
        '{"gpu": "x", "runs": {}, "rows": [{"run": "a"}]}',
        '{"gpu": "x", "runs": {}, "rows": [1]}',
        '{"gpu": "x", "runs": [], "rows": [{"nonsense": 1}]}',
        '{"gpu": "x", "runs": 3, "rows": []}',
        '{"gpu": "x", "runs": {"a": {}}, "rows": []}',
        b"\xff\xfe",
    ],
)
def test_a_broken_file_is_a_clear_error_and_is_not_overwritten(tmp_path, text):
    path = tmp_path / "gpu.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    before = path.read_bytes()
    with pytest.raises(ResultsError, match=r"gpu\.json is not a results file \(.*\): repair or delete it$"):
        merge(path, "GPU", "id", RUN, [row()])
    assert path.read_bytes() == before


def test_a_row_of_an_unknown_run_is_an_error(tmp_path):
    path = tmp_path / "gpu.json"
    merge(path, "GPU", "id", RUN, [row()])
    path.write_text(path.read_text().replace('"run": "id"', '"run": "lost"'))
    with pytest.raises(ResultsError, match="no run 'lost'"):
        load(path)


def test_a_missing_file_has_nothing(tmp_path, capsys):
    assert load(tmp_path / "none.json")["rows"] == []
    assert render("1.1.1", tmp_path / "none.json") == NOTHING + "\n" and "no figures recorded yet" in NOTHING
    results.show_recorded("1.1.1", tmp_path / "none.json")
    assert capsys.readouterr().out == NOTHING + "\n"


def test_a_chapter_holds_its_sections_only(tmp_path):
    path = tmp_path / "gpu.json"
    merge(path, "GPU", "id", RUN, [row("1.1.1"), row("1.1.2"), row("10.1.1")])
    assert [r.section for r in recorded("1", path)] == ["1.1.1", "1.1.2"]
    assert [r.section for r in recorded("1.1.1", path)] == ["1.1.1"]


def test_the_table(tmp_path, capsys):
    path = tmp_path / "gpu.json"
    rows = [
        row(name="naive", seconds=12.3456e-3, bytes=10**9, flops=10**6, spread=0.123),
        row(name="a|b", seconds=1.5e-6, flops=60_000_000, peer=("cuBLAS", Timing(1.2e-6, 0, ()))),
    ]
    merge(path, "NVIDIA H200", "id", RUN, rows)
    table = render("1.1.1", path)
    head, rule, naive, fast, blank, source = table.splitlines()
    assert head.count("|") == rule.count("|") == naive.count("|") and "section" not in head
    for text in ("naive", "12.3 ms", "81 GB/s", "2.0%", "12% |"):
        assert text in naive
    for text in (r"a\|b", "1.50 µs", "40 TFLOP/s", "66.7%", "0.80×"):
        assert text in fast
    assert "对比 vs cuBLAS" in head
    assert fast.endswith("|  |") and blank == ""
    for text in (
        "NVIDIA H200",
        "2026-01-02",
        "abcdef0-dirty",
        "580.1",
        "4000 GB/s",
        "60.0 TFLOP/s",
        "SwPowerCap",
    ):
        assert text in source
    assert "节 section" in (merge(path, "NVIDIA H200", "id", RUN, [row("1.2.1")]) or render("1", path))
    results.show_recorded("1.1.1", path)
    printed = " ".join(capsys.readouterr().out.split())
    assert "recorded, not measured here: NVIDIA H200, 2026-01-02" in printed and "12.3 ms" in printed


def test_update_readme_rewrites_only_between_the_markers(tmp_path):
    path, readme = tmp_path / "gpu.json", tmp_path / "README.md"
    merge(path, "GPU", "id", RUN, [row(bytes=10**9)])
    text = (
        "before\n<!-- results:1.1.1 -->\nstale\n<!-- /results -->\n"
        "between\n<!-- results:2 -->\n<!-- /results -->\nend\n"
    )
    readme.write_text(text)
    assert update_readme(readme, write=False, path=path) and readme.read_text() == text
    assert update_readme(readme, path=path)
    new = readme.read_text()
    assert "stale" not in new and re.search(r"before\n<!-- results:1\.1\.1 -->\n\| ", new)
    assert f"between\n<!-- results:2 -->\n{NOTHING}\n<!-- /results -->\nend\n" in new
    assert not update_readme(readme, path=path), "a second time changes nothing"
    readme.write_text("<!-- results:1 -->\n" + new)
    with pytest.raises(ResultsError, match="without its"):
        update_readme(readme, path=path)


def test_check_exits_1_and_changes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(results, "ROOT", tmp_path)
    chapter = tmp_path / "ch01_cuda_basics"
    chapter.mkdir()
    for readme in (tmp_path / "README.md", tmp_path / "README.zh-CN.md", chapter / "README.md"):
        readme.write_text("<!-- results:99.1.1 -->\n<!-- /results -->\n")
    assert results.main(["--check"]) == 1
    assert capsys.readouterr().out.count("out of date: ") == 3
    assert results.main([]) == 0 and results.main(["--check"]) == 0
    assert NOTHING in (chapter / "README.md").read_text()


def test_the_repositorys_tables_agree_with_the_reference_file():
    assert [str(readme) for readme in results.check_readmes()] == [], "run: python -m common.results"


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A GPU called "NVIDIA X1" whose figures land in tmp_path."""
    results._run.cache_clear()
    device = types.SimpleNamespace(name="NVIDIA X1")
    monkeypatch.setattr(gpu, "open_device", lambda: (device, None))
    monkeypatch.setattr(timing, "yardsticks", lambda device, stream: YARD)
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    yield tmp_path / "nvidia_x1.json"
    results._run.cache_clear()


def test_record_is_one_run_per_process(bench):
    assert record([row()]) == record([row("1.1.2")]) == bench
    data = load(bench)
    ((run_id, run),) = data["runs"].items()
    assert set(run) == set(RUN) and {r.run for r in data["rows"]} == {run_id}
    assert re.fullmatch(r"\d{8}T\d{6}Z-\w{7}", run_id) and re.fullmatch(r"\d{4}(-\d\d){2}T(\d\d:){2}\d\dZ", run["date"])
    assert run["packages"]["numpy"] and re.fullmatch(r"\d+\.\d+", run["cuda"])
    assert run["throttled"] == [] and run["copy_gbps"] == 4000


def test_the_commit_says_dirty_for_code_and_not_for_its_own_output(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", "-C", tmp_path, *identity, *arguments], check=True, capture_output=True)

    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("CUDA_BOOK_COMMIT", raising=False)
    assert results._commit() == "unknown"
    monkeypatch.setenv("CUDA_BOOK_COMMIT", "1234567")
    assert results._commit() == "1234567"
    monkeypatch.delenv("CUDA_BOOK_COMMIT")
    git("init")
    (tmp_path / "results").mkdir()
    (tmp_path / "ch01").mkdir()
    files = [tmp_path / name for name in ("code.py", "results/x.json", "README.md", "ch01/README.zh-CN.md")]
    for file in files:
        file.write_text("1")
    git("add", ".")
    git("commit", "-m", "x")
    clean = results._commit()
    assert re.fullmatch(r"[0-9a-f]{40}", clean)
    for file in files[1:]:
        file.write_text("2")
    assert results._commit() == clean
    files[0].write_text("2")
    assert results._commit() == clean + "-dirty"


def test_a_changed_peer_leaves_no_stale_row(tmp_path):
    path = tmp_path / "gpu.json"
    merge(path, "GPU", "run1", RUN, [row(peer=("NumPy, 1 thread", Timing(1.0, 0, ())))])
    merge(path, "GPU", "run2", RUN, [row(peer=("NumPy, 16 threads", Timing(1.0, 0, ())))])
    assert [(r.peer, r.run) for r in load(path)["rows"]] == [("NumPy, 16 threads", "run2")]


def test_rows_of_several_peers_name_theirs(tmp_path):
    path = tmp_path / "gpu.json"
    peers = [row(name=name, peer=(peer, Timing(1e-3, 0, ()))) for name, peer in (("a", "P"), ("b", "Q"))]
    merge(path, "GPU", "id", RUN, [*peers, row(name="c")])
    table = render("1.1.1", path)
    assert all(text in table for text in ("对比 vs peer |", "| 1.00× P |", "| 1.00× Q |"))


def test_what_all_rows_have_in_common_is_said_once(capsys):
    results.show([row(name="a"), row(name="b", seconds=2e-3)], "Title")
    out = capsys.readouterr().out
    assert out.count("f32") == out.count("1000") == 1 and "Title: 规模 size 1000, 类型 dtype f32" in out
    results.show([row(name="a")])
    assert "类型 dtype" in capsys.readouterr().out.splitlines()[1]


def test_a_ratio_has_three_digits(tmp_path):
    path = tmp_path / "gpu.json"
    peers = {"a": 1.14822, "b": 0.0126, "c": 0.004, "d": 0.0000801, "e": 0.0099996}
    merge(path, "GPU", "id", RUN, [row(name=n, peer=("P", Timing(s, 0, ()))) for n, s in peers.items()])
    table = render("1.1.1", path)
    for text in (" 1150× ", " 12.6× ", " 4.00× ", " 0.08× ", " 10× "):
        assert text in table


def test_the_source_of_rows(tmp_path):
    path = tmp_path / "gpu.json"
    run = {**RUN, "date": "2031-02-03T00:00:00Z"}
    merge(path, "NVIDIA Test", "id", run, [row()])
    assert results.source(recorded("1.1.1", path), path) == "NVIDIA Test, 2031-02-03"
    assert results.source([row()], path) == "measured now"


def test_measure_shows_rows_or_says_why_not(monkeypatch, capsys):
    assert results.measure(lambda: [row()], True) == [row()]
    assert "saxpy" in capsys.readouterr().out
    for simulated, text in ((True, "not run: times and rates: the simulator has no time"), (False, "")):
        monkeypatch.setattr("common.gpu.SIMULATED", simulated)
        assert results.measure(lambda: [row()], False) == []
        assert capsys.readouterr().out.startswith(text)


def test_measured_or_recorded_says_which_it_is(tmp_path, monkeypatch, capsys):
    recorded_as([row(name="as it was")], tmp_path, monkeypatch)
    rows, source = results.measured_or_recorded("1.1.1", lambda: [row(name="now")], False)
    assert ([r.name for r in rows], source) == (["as it was"], "NVIDIA Test, 2031-02-03")
    assert capsys.readouterr().out == "recorded on NVIDIA Test, 2031-02-03, not measured here\n"
    assert results.measured_or_recorded("1.1.1", lambda: [row(name="now")], True) == ([row(name="now")], "measured now")
    assert capsys.readouterr().out == "measured now\n"
    monkeypatch.setattr(results, "recorded", lambda number: [])
    assert results.measured_or_recorded("10.1.1", list, False) == ([], "")
    assert "./run bench 10, on a machine with a GPU" in capsys.readouterr().out


def test_further_figures_are_kept_and_shown(tmp_path):
    timing = Timing(1e-3, 0.0, (1e-3,))
    yardsticks = Yardsticks(4000.0, 60.0, None, None)
    what = {"section": "1.5.4", "size": "1024", "dtype": "f32", "timing": timing, "yardsticks": yardsticks}
    counted = Row.from_timing(name="a", figures={"sectors": np.int64(1048576), "occupancy": 0.5}, **what)
    path = tmp_path / "r.json"
    results.merge(path, "G", "r", {"date": "2031-01-01T00:00:00Z"}, [counted, Row.from_timing(name="b", **what)])
    first, second = results.recorded("1.5.4", path)
    assert first.figures == {"sectors": 1048576.0, "occupancy": 0.5} and second.figures is None
    headings, cells = results._cells([first, second])
    assert cells[0][headings.index("sectors")] == "1,048,576" and cells[0][headings.index("occupancy")] == "0.5"
    assert cells[1][headings.index("sectors")] == ""
