"""A search through commits ends at the first slow one, beside commits that do not run and wide intervals."""

import random
from math import expm1, log1p

import pytest

from tests.support.recording import snapshot_of
from training_profiler.trials.bisection import BROKEN, FAST, SLOW, UNCLEAR, Bisection, slower_section
from training_profiler.trials.results import FAILED, NOT_SHOWN, SLOWER, TOO_WIDE, UNDECIDED, Row
from training_profiler.trials.statistics import Effect


def row_of(relative, half=0.004):
    low, high = expm1(log1p(relative) - half), expm1(log1p(relative) + half)
    return Row("changed", "", "", NOT_SHOWN, effect=Effect(relative, low, high, 0.5, 60))


class History:
    """Commits c0, c1, ..., of which one makes a step slower; comparisons have noise."""

    def __init__(self, count=64, slow_from=40, slower=0.1, broken=(), noise=0.0, seed=0):
        self.commits = [f"c{number}" for number in range(count)]
        self._slow_from, self._slower, self._broken, self._noise = slow_from, slower, broken, noise
        self._random = random.Random(seed)
        self.pairs = []

    def compare(self, commit, before):
        self.pairs.append((commit, before))
        if self.commits.index(commit) in self._broken:
            return Row("changed", "", "", FAILED, reason="ImportError: no")
        levels = [
            self._slower if each in self.commits and self.commits.index(each) >= self._slow_from else 0.0
            for each in (before, commit)
        ]
        drawn = self._random.gauss(0.0, self._noise)
        return row_of((1 + levels[1]) / (1 + levels[0]) * (1 + drawn) - 1, max(0.004, 1.96 * self._noise))

    def found(self):
        bisection = Bisection(self.commits, "good", self.compare)
        bisection.run()
        return bisection


@pytest.mark.parametrize("slow_from", range(17))
def test_the_first_slow_commit_is_found_and_confirmed_against_the_one_before(slow_from):
    history = History(17, slow_from)
    found = history.found()
    assert found.suspects == [f"c{slow_from}"]
    assert found.own.effect.relative == pytest.approx(0.1)
    assert history.pairs[-1] == (f"c{slow_from}", f"c{slow_from - 1}" if slow_from else "good")
    assert len(history.pairs) <= 7
    assert {step.state for step in found.steps} <= {SLOW, FAST}


def test_commits_that_do_not_run_are_left_out_and_named_where_they_hide_the_answer():
    assert History(broken=(31, 32, 33)).found().suspects == ["c40"]
    found = History(broken=(38, 39)).found()
    assert found.suspects == ["c38", "c39", "c40"]
    assert [step.reason for step in found.steps if step.state == BROKEN] == ["ImportError: no"] * 2
    assert found.own is None


def test_nothing_is_named_where_the_last_commit_is_not_slower():
    history = History(slow_from=64)
    found = history.found()
    assert (found.suspects, len(history.pairs), found.own) == ((), 1, None)
    assert History(broken=(63,)).found().suspects == ()


def test_a_wide_interval_decides_nothing_and_other_commits_are_asked():
    history = History(17, 8)
    wide = {"c8"}
    found = Bisection(
        history.commits,
        "good",
        lambda commit, before: row_of(0.05, 0.2) if commit in wide else history.compare(commit, before),
    )
    found.run()
    assert found.suspects == ["c8", "c9"]
    assert [step.state for step in found.steps if step.commit == "c8"] == [UNCLEAR]


def test_an_interval_that_is_wide_for_a_verdict_may_be_clear_for_a_search():
    wide = Row("changed", "", "", UNDECIDED, TOO_WIDE, effect=Effect(0.9, 0.5, 1.1, 0.5, 20))
    found = Bisection(["c0"], "good", lambda commit, before: wide)
    found.run()
    assert (found.suspects, found.own.verdict) == (["c0"], SLOWER)
    assert [(step.state, step.reason) for step in found.steps] == [(SLOW, "")]


@pytest.mark.parametrize("slower", [0.03, 0.1, 0.3])
def test_noise_names_the_wrong_commit_in_few_histories_and_none_without_one(slower):
    right = sum(
        History(slow_from=23, slower=slower, noise=0.004, seed=seed).found().suspects == ["c23"] for seed in range(60)
    )
    assert right >= 57  # 19 of 20
    none = sum(not History(slow_from=64, noise=0.004, seed=seed).found().suspects for seed in range(60))
    assert none == 60


def test_a_difference_that_the_commit_itself_does_not_show_is_not_confirmed():
    history = History(17, 8)
    levels = iter(range(100))
    found = Bisection(
        history.commits,
        "good",
        lambda commit, before: history.compare(commit, before) if before == "good" else row_of(0.0 * next(levels)),
    )
    found.run()
    assert (found.suspects, found.own.effect.relative) == ((), 0.0)


def test_the_section_with_most_of_the_rise_is_named():
    before, after = snapshot_of({"forward_pass": 0.2}), snapshot_of({"forward_pass": 0.5})
    name, seconds = slower_section(before, after)
    assert name == "forward_pass"
    assert seconds > 0
    assert slower_section(after, before) is None or slower_section(after, before)[0] != "forward_pass"
