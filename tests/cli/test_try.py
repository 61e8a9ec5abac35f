"""What `training-profiler try --resume` refuses, each in one line."""

import argparse
import json
import sys
from dataclasses import replace

import pytest

from tests.support.commands import refused
from tests.support.golden import assert_answers
from tests.trials.test_results import RESULTS
from training_profiler.cli import main, try_command
from training_profiler.cli.try_command import _names
from training_profiler.cli.try_command import number_of_steps as count
from training_profiler.cli.trying import ProgressLine, seconds
from training_profiler.settings.settings import read_settings
from training_profiler.storage.run_folder import describe_process
from training_profiler.trials.launcher import Program
from training_profiler.trials.own_change import CHANGED
from training_profiler.trials.results import as_data, save
from training_profiler.trials.state import SCHEMA, Progress, SessionState, Wishes, identity_of, save_state


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
    assert json.loads(outcome(capsys, str(session), "--json")[1])["remaining"] == []
    card = session / "a.svg"
    lines = outcome(capsys, str(session), "--markdown", "--card", str(card))[1].splitlines()
    headline = "FASTER: a step takes 43.9% less (42.9% to 44.9%), with num_workers=2 and fused"
    assert lines[0] == f"**{headline}**".replace("_", "\\_")
    assert all(words in card.read_text() for words in (">unchanged<", "23.1 ms", "on train.py", "Losses: "))
    save(session, replace(RESULTS, rows=(), together=None))
    assert outcome(capsys, str(session), "--markdown")[1].startswith("**No change is shown to help**\n")


def test_what_is_left_is_named_with_the_command_that_goes_on(session, capsys):
    save(session, replace(RESULTS, remaining=("foreach", "compile")))
    lines = outcome(capsys, str(session))[1].splitlines()
    assert "Not finished: foreach, compile." in lines
    assert "To go on: training-profiler try --resume runs/20261121-142530" in lines


def test_another_wish_or_program_is_refused(session, capsys):
    assert "leave out --only" in refused(capsys, "try", "--resume", session, "--only", "fused")
    assert "cannot go on: command was" in refused(capsys, "try", "--resume", session, "train.py", "--lr", "2")
    (session.parents[1] / "train.py").write_text("import torch, os")
    assert refused(capsys, "try", "--resume", "runs/20261121-142530").endswith("train.py has changed\n")
    (session / "trials-state.json").unlink()
    assert "no session of trials to go on with" in refused(capsys, "try", "--resume", session)


def test_arguments_that_were_not_kept_have_to_be_written_again(session, capsys):
    keep(session, Progress(["fused"], ["fused"]), "--api-key", "abc")
    assert "write the program after --resume RUN" in refused(capsys, "try", "--resume", session)
    assert outcome(capsys, str(session), "train.py", "--api-key", "abc")[0] == 0


def test_a_change_of_ones_own_goes_on_with_the_same_command_alone(session, capsys):
    words = "--patch", "fix.diff", "train.py"
    assert "with the same command and --resume RUN" in refused(capsys, "try", "--resume", session, *words)
    keep(session, Progress([CHANGED]))
    assert "with the same command and --resume RUN" in refused(capsys, "try", "--resume", session)
    (session.parents[1] / "fix.diff").write_text(PATCH)
    assert "cannot go on: " in refused(capsys, "try", "--resume", session, *words)


PATCH = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-import torch\n\\ No newline at end of file\n+import torch  # 2\n"


def test_arguments_may_begin_with_a_dash_and_those_of_the_program_stay(monkeypatch):
    seen = []
    monkeypatch.setattr(try_command, "run", lambda given: seen.extend([given.args, given.words]) or 0)
    words = ["--args", "--amp", "--args", "-n 2", "--budget", "9m", "train.py", "--args", "--own"]
    assert main(["try", *words]) == 0
    assert seen == [["--amp", "-n 2"], ["train.py", "--args", "--own"]]


def answer_of(read):
    def answer(word):
        try:
            return read(word)
        except argparse.ArgumentTypeError as error:
            return error

    return answer


@pytest.mark.parametrize(("name", "read"), [("budgets", seconds), ("step_counts", count), ("changes", _names)])
def test_budgets_steps_and_changes_are_read_as_they_are_printed_or_refused_with_what_may_be_meant(name, read):
    assert_answers(name, answer_of(read))
    with pytest.raises(argparse.ArgumentTypeError):
        read("")


def test_the_time_that_is_left_is_shown_in_a_narrow_terminal_too(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    progress = ProgressLine(180.0)
    progress.show(0.5, "runs a_training_with_a_long_name.py unchanged under the profiler: 1234 steps")
    line = capsys.readouterr().err.strip("\r")
    assert line.startswith("[#####.....] runs a_training")
    assert line.endswith(" s left")
    assert "1234 steps, at most" in line
    assert len(line) <= 79


def test_a_word_that_names_no_program_and_wishes_that_exclude_each_other_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    no_command = "training-profiler: torchrunn is neither a file nor a command\n"
    assert refused(capsys, "try", "torchrunn", "--nproc_per_node=2", "train.py") == no_command
    assert "leave one of them out" in refused(capsys, "try", "--all", "--only", "fused", "train.py")
