"""What `training-profiler try --resume` refuses, each in one line."""

import json
import sys
from dataclasses import replace

import pytest

from tests.trials.test_results import RESULTS
from training_profiler.cli import main
from training_profiler.settings import read_settings
from training_profiler.storage.run_folder import describe_process
from training_profiler.trials.identity import identity_of
from training_profiler.trials.launcher import Program
from training_profiler.trials.results import as_data, save
from training_profiler.trials.state import SCHEMA, Progress, SessionState, Wishes, save_state


@pytest.fixture
def session(tmp_path, monkeypatch):
    """Return the run folder of a session that has come to its end."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch")
    folder = tmp_path / "runs" / "20261121-142530"
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text("{}")
    save(folder, RESULTS)
    keep(folder, Progress(["fused"], ["fused"]))
    return folder


def keep(folder, progress, *arguments):
    words = [sys.executable, "train.py", *arguments]
    identity = identity_of(Program(words, True, "train.py"), describe_process(read_settings()))
    words = ["***" if word == "abc" else word for word in words]
    save_state(folder, SessionState(SCHEMA, identity, words, True, Wishes(300.0), 0, False, as_data(RESULTS), progress))


def outcome(capsys, *words):
    status = main(["try", "--resume", *words])
    found = capsys.readouterr()
    return status, found.out, found.err


def test_a_session_without_anything_left_is_shown_again(session, capsys):
    status, out, err = outcome(capsys, str(session))
    assert (status, err) == (0, "")
    assert "=== Tried on train.py" in out
    assert outcome(capsys, str(session), "train.py")[0] == 0
    assert json.loads(outcome(capsys, str(session), "--json")[1])["left"] == []


def test_what_is_left_is_named_with_the_command_that_goes_on(session, capsys):
    save(session, replace(RESULTS, left=("foreach", "compile")))
    lines = outcome(capsys, str(session))[1].splitlines()
    assert "Not finished: foreach, compile." in lines
    assert "To go on: training-profiler try --resume runs/20261121-142530" in lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "fused"], "leave out --only"),
        (["train.py", "--lr", "2"], "cannot go on: command was"),
        (["--budget", "soon"], "is not a time"),
    ],
)
def test_another_wish_or_program_is_refused(session, capsys, words, message):
    try:
        status, out, err = outcome(capsys, str(session), *words)
    except SystemExit as end:  # of argparse
        status, (out, err) = end.code, capsys.readouterr()
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_a_program_that_has_changed_is_refused(session, capsys):
    (session.parents[1] / "train.py").write_text("import torch, os")
    status, out, err = outcome(capsys, "runs/20261121-142530")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert "cannot go on" in err
    assert err.endswith("train.py has changed\n")


def test_arguments_that_were_not_kept_have_to_be_written_again(session, capsys):
    keep(session, Progress(["fused"], ["fused"]), "--api-key", "abc")
    status, _, err = outcome(capsys, str(session))
    assert status == 2
    assert "write the program after --resume RUN" in err
    assert outcome(capsys, str(session), "train.py", "--api-key", "abc")[0] == 0


def test_a_run_without_a_session_is_refused(session, capsys):
    (session / "trials-state.json").unlink()
    status, _, err = outcome(capsys, str(session))
    assert (status, len(err.splitlines())) == (2, 1)
    assert "no session of trials to go on with" in err


def test_a_word_that_names_no_program_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["try", "torchrunn", "--nproc_per_node=2", "train.py"]) == 2
    assert capsys.readouterr().err == "training-profiler: torchrunn is neither a file nor a command\n"
