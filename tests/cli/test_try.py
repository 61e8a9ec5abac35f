"""What `training-profiler try --resume` refuses, each in one line."""

import argparse
import json
import sys
from dataclasses import replace

import pytest

from tests.trials.test_results import RESULTS
from training_profiler.cli import main
from training_profiler.cli.try_command import _count, _names, _Progress, _seconds
from training_profiler.settings.settings import read_settings
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


@pytest.mark.parametrize(
    ("word", "seconds"),
    [("90", 90), ("90s", 90), ("1.5m", 90), ("2 min", 120), ("1h30m", 5400), ("1h 30 min", 5400), ("10sec", 10)],
)
def test_a_budget_is_a_time(word, seconds):
    assert _seconds(word) == seconds


@pytest.mark.parametrize(
    "word", ["", "0", "0s", "5x", "m", "soon", "-5m", "1h30", "nan", "inf", "1e3", "9" * 400, "5mm"]
)
def test_a_budget_that_is_not_a_time_is_refused(word):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a time; examples: 90s, 10m, 1h30m"):
        _seconds(word)


@pytest.mark.parametrize(("word", "steps"), [("12000", 12_000), ("12,000", 12_000), ("1_200_000", 1_200_000)])
def test_steps_may_be_written_as_the_table_prints_them(word, steps):
    assert _count(word) == steps


@pytest.mark.parametrize("word", ["", "0", "-3", "1.5", "12,00", "1,2", "12k", "²", "9" * 20])
def test_steps_that_are_not_a_number_are_refused(word):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a number of steps"):
        _count(word)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fusd", "'fusd' is not a change; did you mean fused?"),
        ("fused,numworkers", "'numworkers' is not a change; did you mean num_workers?"),
        ("num_workers=3", "did you mean num_workers"),
        ("x", "'x' is not a change; there are num_workers, persistent_workers,"),
        (" , ", "names no change; example: num_workers,fused"),
    ],
)
def test_a_change_that_is_unknown_is_refused_with_what_may_be_meant(words, message):
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        _names(words)
    assert message in str(refused.value)


def test_all_and_only_exclude_each_other(capsys):
    assert main(["try", "--all", "--only", "fused", "train.py"]) == 2
    assert "leave one of them out" in capsys.readouterr().err


def test_the_time_that_is_left_is_shown_in_a_narrow_terminal_too(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    progress = _Progress(180.0)
    progress.show(0.5, "runs a_training_with_a_long_name.py unchanged under the profiler: 1234 steps")
    line = capsys.readouterr().err.strip("\r")
    assert line.startswith("[#####.....] runs a_training")
    assert line.endswith(" s left")
    assert "1234 steps, at most" in line
    assert len(line) <= 79


def test_a_word_that_names_no_program_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["try", "torchrunn", "--nproc_per_node=2", "train.py"]) == 2
    assert capsys.readouterr().err == "training-profiler: torchrunn is neither a file nor a command\n"
