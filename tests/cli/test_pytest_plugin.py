"""A marked test passes, fails or is skipped by what the comparison of its training shows."""

import contextlib
import json
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.trials.test_results import effect
from training_profiler.reports.layout import Layout
from training_profiler.trials.report import render_change
from training_profiler.trials.results import (
    FAILED,
    IDENTICAL,
    NOT_SHOWN,
    SLOWER,
    UNDECIDED,
    LossComparison,
    Results,
    Row,
    as_data,
)

pytest_plugins = ["pytester"]
PLUGINS = "-p", "no:training_profiler", "-p", "training_profiler.cli.pytest_plugin", "-p", "no:rerunfailures"
ROW = Row("changed", "", "with the change", NOT_SHOWN, step_s=0.04, losses=LossComparison(IDENTICAL, steps=300))
TEST = """
import pytest

@pytest.mark.training_speed(max_slower="3%", base="main", budget="1m"{more})
def test_speed(tmp_path):
    return ["train.py", "--out", tmp_path]
"""


@pytest.fixture
def outcome(pytester, monkeypatch):
    """Return the command, the outcomes and the output of a marked test whose comparison shows ``row``."""

    def run(row, more="", status=0):
        asked = []
        results = Results("train.py", 60.0, (row,), 0.04)
        text = render_change(results, "as it is", "main", Layout())
        data = json.dumps({**as_data(results), "text": text})

        class Process(contextlib.nullcontext):
            returncode = status

            def __init__(self, command, **arguments):
                super().__init__(self)
                asked.append(command[3:])

            def communicate(self):
                return data, ""

        pytester.makepyfile(TEST.format(more=more))
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", Process)
            result = pytester.runpytest_inprocess(*PLUGINS, "-rs", "--strict-markers")
        outcomes = result.parseoutcomes()
        outcomes.pop("warnings", None)  # where the installed plugin was imported before
        return asked, outcomes, result.stdout.str()

    return run


def test_a_training_that_is_not_slower_passes(outcome):
    asked, outcomes, _ = outcome(replace(ROW, effect=effect(0.005)))
    (words,) = asked
    flags = ["--json", "--base", "main", "--budget", "1m", "--fail-if-slower", "3%"]
    assert words[:-1] == ["try", *flags, "train.py", "--out"]
    assert outcomes == {"passed": 1}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (replace(ROW, verdict=SLOWER, effect=effect(0.05)), ["SLOWER: a step takes 5.0% more (4.0% to 6.0%)"]),
        (replace(ROW, verdict=FAILED, reason="ValueError: x"), ["FAILED with the change: ValueError: x"]),
    ],
)
def test_a_slower_or_broken_training_fails_with_verdict_interval_and_losses(outcome, row, words):
    _, outcomes, text = outcome(row, status=1)
    assert outcomes == {"failed": 1}
    assert all(each in text for each in [*words, "Losses: identical, bit for bit, in 300 steps"])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (replace(ROW, verdict=UNDECIDED, effect=effect(0.0)), "UNDECIDED"),
        (replace(ROW, effect=effect(0.0, 0.05)), "less than 3% slower"),
        (replace(ROW, verdict=SLOWER, effect=effect(0.025)), "less than 3% slower"),
    ],
)
def test_an_undecided_training_is_skipped_or_fails_where_that_is_asked_for(outcome, row, words):
    _, outcomes, text = outcome(row)
    assert outcomes == {"skipped": 1}
    assert words in text
    assert outcome(row, ', undecided="fail"')[1] == {"failed": 1}


def test_what_cannot_be_compared_fails_in_a_line_and_nothing_else_is_touched(pytester):
    pytester.makepyfile(TEST.format(more=""), test_others="def test_other():\n    assert True")
    pytester.makepyfile(train="")
    result = pytester.runpytest_inprocess(*PLUGINS)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["not a git repository*", "*1 failed, 1 passed*"])
    nothing = TEST.replace('return ["train.py", "--out", tmp_path]', "assert True").format(more="")
    pytester.makepyfile(nothing)
    result = pytester.runpytest_inprocess(*PLUGINS, "-k", "speed")
    result.stdout.fnmatch_lines(["None is not a program; example: return*"])


def test_the_plugin_imports_nothing_heavy():
    code = "import sys; import training_profiler.cli.pytest_plugin; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"torch", "numpy", "msgspec", "psutil", "argparse", "typing"} & set(loaded)
