import json

import pytest

from tests.cli.test_compare import write_run
from tests.support.commands import printed, refused
from training_profiler.base.errors import RunFolderError
from training_profiler.cli.history import history_of, page_of, render_history
from training_profiler.cli.mcp import MOST_TEXT, ServedRuns
from training_profiler.reports.layout import Layout
from training_profiler.storage.history import INDEX

CHANGE = "20% slower a step than your last 4 runs (17 to 23%): data_loading +20.0 ms, since 3f2a1c9"


def facts(commit="a1b2c3d4e5", **others):
    return {
        "command": "python train.py",
        "began": "2026-11-21T14:25:30",
        "host": "a",
        "git": {"commit": commit},
    } | others


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Return a folder with five runs alike, a slower one of another commit, and one of another program."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs", "20261120-142530", meta=facts(command="python other.py"), steps=200)
    for number in range(5):
        write_run(tmp_path / "runs", f"20261121-14253{number}", steps=200, meta=facts())
    write_run(tmp_path / "runs", "20261122-142530", 0.12, steps=200, loading_s=0.04, meta=facts("3f2a1c9d00"))
    return tmp_path / "runs"


def test_the_run_that_changed_is_marked_with_what_is_new(runs, capsys):
    lines = printed(capsys, "history").splitlines()
    assert lines[0] == "train.py: 6 runs"
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 80
    at = next(number for number, line in enumerate(lines) if "20261122-142530" in line)
    assert lines[at].split() == ["11-21", "14:25", "120", "ms", "20261122-142530"]
    text = " ".join(" ".join(lines[at + 1 :]).split())
    assert text == f"{CHANGE} new: git.commit a1b2c3d -> 3f2a1c9"
    assert sum("slower" in line for line in lines) == 1
    assert (runs / INDEX).is_file()
    assert printed(capsys, "history", "train.py").splitlines() == lines


def test_a_run_that_the_index_lacked_stands_where_it_began(runs):
    history_of(runs)
    write_run(runs, "20261119-142530", steps=200, meta=facts(began="2026-11-19T14:25:30"))
    assert [run["run"] for run in history_of(runs)[0]["runs"]][::6] == ["20261119-142530", "20261122-142530"]


def test_the_plot_has_a_column_for_each_run(runs):
    history, _ = history_of(runs)
    for layout, full in ((Layout(80, is_unicode=True), "█"), (Layout(40), "#")):
        rows = [line for line in render_history(history, layout).splitlines() if " |" in line]
        assert [row.count(full * 3) for row in rows] == [1, 1 if layout.is_unicode else 6, *[6] * 6]
        assert all(len(row) <= layout.width for row in rows)
    many = {**history, "runs": history["runs"] * 50}
    assert max(map(len, render_history(many, Layout(80)).splitlines())) <= 80


def test_a_run_on_a_busy_machine_is_light_and_says_so(runs):
    history, _ = history_of(runs)
    history["runs"][0] |= {"is_busy": True, "cpu_share_of_others": 0.3}
    text = render_history(history, Layout(80))
    assert ":::" in text
    assert "others took 30% of the time" in text
    assert '"values":[[null,100.0' in page_of(history)


def test_a_program_is_chosen_by_name_or_with_its_arguments(runs, capsys):
    assert printed(capsys, "history", "other.py").startswith("other.py: 1 run\n")
    assert "no run of none.py in runs; there are other.py, train.py" in refused(capsys, "history", "none.py")


def test_a_folder_without_runs_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "No runs in ./runs" in refused(capsys, "history")
    assert not list(tmp_path.iterdir())


def test_json_has_each_run_and_a_page_the_trend(runs, capsys):
    data = json.loads(printed(capsys, "history", "--json", "--html", "history.html"))
    assert [row["change"] is not None for row in data["runs"]] == [False] * 5 + [True]
    assert data["runs"][-1]["texts"][0] == CHANGE
    assert data["runs"][-1]["new"] == [{"what": "git.commit", "before": "a1b2c3d4e5", "after": "3f2a1c9d00"}]
    page = (runs.parent / "history.html").read_text(encoding="utf-8")
    assert CHANGE in page
    assert '"names":["typical step","on a busy machine","shown to differ"]' in page
    assert page == page_of(history_of(runs)[0])


def test_an_assistant_gets_the_same_within_its_limit(runs, tmp_path):
    answer = ServedRuns([runs]).history()
    assert answer["runs"][-1]["texts"][0] == CHANGE
    assert answer["next_step"].startswith("compare(before, after)")
    for number in range(60):
        write_run(runs, f"20261123-1425{number:02d}", steps=30, meta=facts(f"{number:040d}"))
    answer = ServedRuns([runs]).history("train.py")
    assert 20 < len(answer["runs"]) < 60
    assert len(json.dumps(answer)) <= MOST_TEXT
    with pytest.raises(RunFolderError, match="no folder of runs is served"):
        ServedRuns([runs / "20261122-142530"]).history()
