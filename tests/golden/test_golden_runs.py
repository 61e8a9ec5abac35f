"""Runs and a trace that were recorded by earlier versions are reported to the letter as these versions did.

The figures of such a report never change; its words do where a release changes them. See tests/support/golden.py.
"""

import shutil
from pathlib import Path

import pytest

from tests.support.golden import assert_golden
from training_profiler.cli import main

HERE = Path(__file__).parent
RUNS = sorted(path.name for path in HERE.iterdir() if path.name[0].isdigit())
FORMS = {"report.txt": [], "report.json": ["--json"]}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("run", RUNS)
def test_runs_of_earlier_versions_have_their_reports(run, form, tmp_path, monkeypatch, capsys):
    folder = tmp_path / run.partition("-")[2]  # whose name a report says
    shutil.copytree(HERE / run, folder)
    monkeypatch.chdir(tmp_path)
    assert main(["report", folder.name, *FORMS[form]]) == 0
    assert_golden(HERE / run / form, capsys.readouterr().out)


@pytest.mark.parametrize("form", FORMS)
def test_a_trace_has_its_figures(form, monkeypatch, capsys):
    monkeypatch.chdir(HERE / "trace")
    assert main(["trace", "cpu.pt.trace.json.gz", *FORMS[form]]) == 0
    assert_golden(HERE / "trace" / form, capsys.readouterr().out)
