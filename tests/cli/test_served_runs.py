"""What an assistant may read, and what it may not."""

import json
import sys
from pathlib import Path

import pytest

from tests.cli.test_compare import write_run
from tests.cli.test_trace import training
from tests.support.commands import printed
from training_profiler.base.errors import MissingExtraError, RunFolderError, TraceError
from training_profiler.cli import main
from training_profiler.cli.mcp import ServedRuns


@pytest.fixture
def runs(tmp_path):
    """Return a folder with two runs, of which the newer has a name, and a run outside of it."""
    folder = tmp_path / "runs"
    write_run(folder, "20261121-142530")
    write_run(folder, "20261121-142531-candidate", 0.12, meta={"settings": {"name": "candidate"}})
    write_run(tmp_path / "elsewhere", "20261121-142532")
    return folder


def test_runs_are_listed_and_found_by_folder_name_or_as_the_newest(runs):
    served = ServedRuns([runs])
    assert [(row["name"], row["steps"]) for row in served.list_runs()] == [("candidate", 60), (None, 60)]
    newest = served.findings()
    assert newest == served.findings("candidate") == served.findings("20261121-142531-candidate")
    assert newest == served.findings(served.list_runs()[0]["folder"])
    assert newest["steps"] == 60
    assert {"verdict", "findings", "step_time"} <= newest.keys()
    json.dumps(newest)


def test_reports_and_comparisons_are_those_of_the_commands(runs, capsys):
    served = ServedRuns([runs])
    assert (
        served.report("20261121-142530").splitlines()[:8]
        == printed(capsys, "report", str(runs / "20261121-142530"), "--checklist").splitlines()[:8]
    )
    compared = served.compare("20261121-142530")
    assert compared["verdict"] == "slower"
    assert "SLOWER: a step takes 20.0% longer" in compared["text"]
    json.dumps(compared)


def test_a_run_or_a_folder_may_be_given_alone(runs, tmp_path):
    served = ServedRuns([runs / "20261121-142530", tmp_path / "elsewhere"])
    assert [Path(row["folder"]).name for row in served.list_runs()] == ["20261121-142532", "20261121-142530"]
    assert served.findings("20261121-142532")["steps"] == 60
    with pytest.raises(RunFolderError, match="is not a run that is served"):
        served.findings(str(runs / "20261121-142531-candidate"))


@pytest.mark.parametrize(
    "given",
    [
        "../elsewhere/20261121-142532",
        "/etc",
        "link",
        "20261121-142530/../../elsewhere/20261121-142532",
        "nothing",
        "a\0b",
    ],
)
def test_nothing_else_is_read(runs, tmp_path, given):
    (runs / "link").symlink_to(tmp_path / "elsewhere" / "20261121-142532")
    served = ServedRuns([runs])
    for ask in (served.findings, served.report, served.list_traces, served.compare):
        with pytest.raises(RunFolderError, match="is not a run that is served"):
            ask(given)
    with pytest.raises(TraceError, match="is not a trace that is served"):
        served.trace(given)


def test_traces_of_captures_and_given_ones_are_analysed(runs, tmp_path):
    captures = runs / "20261121-142530" / "captures"
    captures.mkdir()
    captured, given = training().write(captures, "steps.pt.trace.json.gz"), training().write(tmp_path)
    outside = training().write(tmp_path, "other.pt.trace.json")
    served = ServedRuns([runs, given])
    assert served.list_traces("20261121-142530") == [str(captured), str(given)]
    for path in served.list_traces("20261121-142530"):
        assert "=== Recommendations ===" in served.trace(path)
    with pytest.raises(TraceError):
        served.trace(str(outside))


def test_bad_runs_are_errors(runs):
    journal = runs / "20261121-142530" / "rank0.jsonl"
    journal.write_text(journal.read_text().replace('"schema":1', '"schema":9', 1))
    served = ServedRuns([runs])
    with pytest.raises(RunFolderError, match="has schema 9"):
        served.findings("20261121-142530")
    with pytest.raises(RunFolderError, match="no folder of runs is served"):
        ServedRuns([journal]).findings()
    (runs / "empty").mkdir()
    with pytest.raises(RunFolderError, match="No runs in /"):
        ServedRuns([runs / "empty"]).findings()


def test_without_the_package_one_line_says_what_to_install(runs, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    assert main(["mcp", str(runs)]) == 2
    assert capsys.readouterr().err == (
        "training-profiler: The command mcp needs the package mcp, version 2 or newer: "
        "pip install 'training-profiler[mcp]'\n"
    )
    assert main(["mcp", str(runs / "nothing")]) == 2
    assert issubclass(MissingExtraError, ImportError)
