"""What was tried on a run is in all its reports."""

import json

import pytest

from tests.support.commands import printed
from tests.support.loader_workers import waiting_run
from tests.trials.test_results import RESULTS
from training_profiler.cli import html, main, mcp, report
from training_profiler.cli.mcp import ServedRuns
from training_profiler.trials.results import save

TRIED = "Tried: num_workers=2 -39.5% (-40.5 .. -38.5)"


@pytest.fixture
def tried_run(tmp_path, monkeypatch):
    """Return the folder of a run that waits for its loader, and on which changes were tried."""
    (tmp_path / "rank0.jsonl").touch()
    for module in (report, html, mcp):
        monkeypatch.setattr(module, "read_run", lambda *given: waiting_run())
    save(tmp_path, RESULTS)
    return tmp_path


def test_what_a_fix_brought_is_in_the_text_the_page_and_the_json(tried_run, capsys):
    found = " ".join(printed(capsys, "report", tried_run).split())
    assert "=== Tried on train.py" in found
    assert main(["html", str(tried_run)]) == 0
    page = (tried_run / "report.html").read_text(encoding="utf-8")
    served = ServedRuns([tried_run])
    assert [TRIED in text for text in (found, page, " ".join(served.report().split()))] == [True] * 3
    capsys.readouterr()
    data = json.loads(printed(capsys, "report", tried_run, "--json"))
    assert data["trials"]["rows"][0]["effect"]["relative"] == -0.395
    fixes = {insight["code"]: insight["tried"] for insight in data["findings"]}
    assert TRIED.endswith(fixes["data-loading-bound"])
    assert [each["tried"] for each in served.findings()["findings"]] == list(fixes.values())
    (tried_run / "trials.jsonl").unlink()
    data = json.loads(printed(capsys, "report", tried_run, "--json"))
    assert (data["trials"], {insight["tried"] for insight in data["findings"]}) == (None, {""})


def test_one_finding_with_all_its_figures(tried_run, capsys):
    said = " ".join(printed(capsys, "report", tried_run, "--explain", "data-loading-bound").split())
    assert said.startswith("data-loading-bound: ")
    assert "could save " in said
    assert "Losses: " in said
    assert "figures share_of_step" in said
    assert main(["report", str(tried_run), "--explain", "no-such"]) != 0
    assert "--explain no-such: this run has no such finding; it has data-loading-bound" in capsys.readouterr().err


def test_the_full_report_has_what_the_last_screen_leaves_out(tried_run, capsys):
    short, full = (printed(capsys, "report", tried_run, *more) for more in ((), ("--full",)))
    assert [("All findings:" in text, "Profiler health:" in text) for text in (short, full)] == [
        (False, False),
        (True, True),
    ]
    *same, points_to_full = short[short.index(" VERDICT") :].splitlines()
    assert full[full.index(" VERDICT") :].splitlines() == same
    assert points_to_full.split()[:4] == ["figures", "training-profiler", "report", "--full"]
    assert len(short[short.index(" VERDICT") :].splitlines()) <= 24


def test_an_option_with_the_name_of_a_command_means_that(capsys):
    assert main(["report", "--html"]) == 2
    said = "training-profiler: unrecognized arguments: --html; did you mean: training-profiler html?\n"
    assert capsys.readouterr().err == said
