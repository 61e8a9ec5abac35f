import json

import pytest

from tests.cli.test_trace import training
from tests.storage.test_timeline_reader import trained
from tests.support.commands import printed
from training_profiler.cli import html, main
from training_profiler.storage import run_reader, timeline_reader


def test_the_page_is_written_into_the_run_folder(tmp_path, capsys):
    trained(tmp_path)
    (tmp_path / "captures").mkdir()
    (tmp_path / "captures" / "steps.pt.trace.json.gz").write_bytes(b"")
    (tmp_path / "meta.json").write_text(json.dumps({"command": "python train.py", "versions": {"torch": "2"}}))
    assert printed(capsys, "html", str(tmp_path)) == f"{tmp_path / 'report.html'}\n"
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "train.py" in page
    assert "captures/steps.pt.trace.json.gz" in page


def test_captures_are_on_the_page_with_their_analysis_but_for_large_ones(tmp_path, monkeypatch):
    trained(tmp_path)
    captures = tmp_path / "captures"
    captures.mkdir()
    small = training().write(captures, "a.pt.trace.json")
    training().write(captures, "b<script>.pt.trace.json")
    monkeypatch.setattr(html, "MOST_TRACE_BYTES", small.stat().st_size)
    assert main(["html", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<span>=== Recommendations ===</span>") == 1  # lines of their own
    assert "captures/b&lt;script&gt;.pt.trace.json" in page
    assert page.count("training-profiler trace ") == 1
    journal = tmp_path / "rank0.jsonl"
    journal.write_bytes(journal.read_bytes()[:-40])
    assert main(["html", str(tmp_path), "--no-source"]) == 0
    assert "torn" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["html", "timeline"])
def test_each_journal_is_read_once(command, tmp_path, monkeypatch):
    trained(tmp_path)
    lines_of, read = run_reader.lines_of_journal, []
    for module in (run_reader, timeline_reader):
        monkeypatch.setattr(module, "lines_of_journal", lambda path: read.append(path) or lines_of(path))
    assert main([command, str(tmp_path)]) == 0
    assert len(read) == 1
