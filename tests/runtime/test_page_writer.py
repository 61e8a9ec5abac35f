"""The page at the end of a run: written in a process of its own, for a bounded time, and failures are reasons."""

import sys

import pytest

from tests.support.recording import FakeRun
from training_profiler.runtime.outputs import write_page
from training_profiler.safety.files import keep_open
from training_profiler.storage.run_folder import PAGE


def test_the_page_is_in_the_run_folder_and_files_beside_the_program_do_not_matter(tmp_path, monkeypatch):
    run = FakeRun(journal=tmp_path / "rank0.jsonl")
    run.step(forward_pass=0.25)
    run.flush()
    run.journal.close(run.snapshot().health, None)
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    (tmp_path / "numpy.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RECTIFIED_FLOW_PROFILE", "1")
    assert write_page(tmp_path) == ""
    assert (tmp_path / PAGE).read_text().startswith("<!doctype html>")


def test_why_there_is_no_page_is_the_last_line_of_the_process(tmp_path):
    assert write_page(tmp_path).startswith(f"{tmp_path} is not a run folder")
    failing = "import sys; print('first\\nlast', file=sys.stderr); sys.exit(3)"
    assert write_page(tmp_path, command=[sys.executable, "-c", failing]) == "last"
    assert write_page(tmp_path, command=[sys.executable, "-c", "import sys; sys.exit(3)"]) == "exit status 3"
    assert write_page(tmp_path, command=[str(tmp_path / "nothing")]).startswith("no process can be started (No such")


def test_a_process_that_takes_too_long_is_ended(tmp_path):
    pid = tmp_path / "pid"
    sleeping = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    assert write_page(tmp_path, 1.0, [sys.executable, "-c", sleeping]) == "it took longer than 1 s"
    if pid.exists():
        import os

        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


def test_without_an_interpreter_there_is_no_page(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    assert write_page(tmp_path) == "there is no Python interpreter to write it"


def test_no_page_is_written_through_a_link_in_place_of_the_run_folder(tmp_path):
    folder, theirs = tmp_path / "run", tmp_path / "theirs"
    for path in (folder, theirs):
        path.mkdir()
        (path / PAGE).write_text("old")
    keep_open(folder)
    aside = tmp_path / "aside"
    swap = f"import os; os.rename({str(folder)!r}, {str(aside)!r}); os.symlink({str(theirs)!r}, {str(folder)!r})"
    write = "import sys; open(sys.argv[2], 'w').write('page')"
    assert write_page(folder, command=[sys.executable, "-c", f"{swap}\n{write}"]) == ""
    assert ((aside / PAGE).read_text(), (theirs / PAGE).read_text()) == ("page", "old")
    assert write_page(folder) == "its folder was moved or replaced"
    assert [path.name for path in aside.iterdir()] == [PAGE]


def test_a_page_that_fails_leaves_the_old_one(tmp_path):
    (tmp_path / PAGE).write_text("old")
    half = "import sys; open(sys.argv[2], 'w').write('half'); sys.exit('why')"
    assert write_page(tmp_path, command=[sys.executable, "-c", half]) == "why"
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(PAGE, "old")]
    assert write_page(tmp_path / "gone", command=[sys.executable, "-c", half]) == "its folder was moved or replaced"
