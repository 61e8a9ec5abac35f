"""A session that is asked at few ends of steps has the figures and the reports of one that is asked at each."""

import time

import pytest

from tests.support.session import FakeTraining
from training_profiler.inspections.flop_counter import COUNTED_BY
from training_profiler.instrumentation.loop_detection.step_detector import StepEnds

STEPS, STEP_S, EVERY = 600, 0.001, 100


class Training(FakeTraining):
    """Its steps end as those of a loop that was detected, or as those of the program."""

    def __init__(self, folder):
        super().__init__(folder, log_every=EVERY, flush_s=0.1, warmup=0)
        self.asked = []
        self.run.recorder.watermark_ns = self.clock()
        self.ends = StepEnds(self.run.recorder, self.ask)

    def ask(self, at_ns):
        self.asked.append(self.steps + 1)
        self.session.step(at_ns)

    @property
    def steps(self):
        return self.session._progress.steps

    def train(self, steps, end_step):
        for number in range(steps):
            self.run.spend("forward_pass", STEP_S * (1 + number % 3))
            end_step(self.run.clock())


@pytest.fixture
def training(tmp_path, capsys):
    training = Training(tmp_path)
    yield training
    training.session.close()


def outcome(folder, capsys, is_quiet):
    training = Training(folder)
    training.train(STEPS, training.ends if is_quiet else training.session.step)
    snapshot = training.session.snapshot()
    training.session.close()
    printed = [line for line in capsys.readouterr().err.splitlines() if "step " in line and str(folder) not in line]
    return snapshot.steps, snapshot.step, snapshot.sections["forward_pass"], printed


def test_both_have_the_same_figures_and_reports(tmp_path, capsys):
    asked = outcome(tmp_path / "asked", capsys, is_quiet=False)
    quiet = outcome(tmp_path / "quiet", capsys, is_quiet=True)
    assert quiet == asked
    assert quiet[0] == STEPS


def test_session_is_asked_in_the_first_steps_each_20_ms_and_for_reports(training):
    training.train(STEPS, training.ends)
    assert training.asked[: COUNTED_BY - 1] == list(range(1, COUNTED_BY))
    assert {step for at in range(EVERY, STEPS + 1, EVERY) for step in (at - 1, at)} <= set(training.asked)
    assert len(training.asked) < STEPS / 4


def let_reports_cost(training, ns, monkeypatch):
    """Let reports cost time, of which they take none on this clock; return a list of the steps at which they come."""
    steps = []

    def report():
        steps.append(training.steps)
        training.session._reports.spend(ns)

    monkeypatch.setattr(training.session, "_report", report)
    return steps


@pytest.mark.parametrize(
    ("step_s", "reports", "least", "most"), [(0.0005, 120, 1, 40), (0.003, 60, 1, 59), (0.05, 8, 8, 8)]
)
def test_reports_that_the_budget_refuses_are_not_asked_about_and_all_counted(
    step_s, reports, least, most, tmp_path, monkeypatch
):
    monkeypatch.setattr("tests.runtime.test_quiet_steps.STEP_S", step_s)
    # What drains really take would decide about a report at the limit.
    monkeypatch.setattr(time, "thread_time_ns", lambda: 0)
    found = []
    for name in ("asked", "quiet"):
        training = Training(tmp_path / name)
        reported = let_reports_cost(training, 3_000_000, monkeypatch)
        training.train(reports * EVERY + 30, training.ends if name == "quiet" else training.session.step)
        training.session.close()
        found.append((reported, training.session._reports.refused, training.session._next_report))
    assert found[0] == found[1]
    assert len(found[0][0]) + found[0][1] == reports
    assert least <= sum(step % EVERY == 0 for step in training.asked) <= most


def test_session_is_asked_at_each_step_while_a_capture_is_on(training):
    training.train(STEPS, training.ends)
    training.session._captures.is_on = True
    training.session._be_quiet()
    before = len(training.asked)
    training.train(10, training.ends)
    assert len(training.asked) == before + 10


def test_session_with_new_settings_is_asked_at_the_next_step(training):
    training.train(STEPS, training.ends)
    training.session.reconfigure(training.session.settings)
    training.train(1, training.ends)
    assert training.asked[-1] == STEPS + 1


def test_closed_session_counts_no_quiet_steps(training):
    training.train(STEPS, training.ends)
    training.session.close()
    training.train(1, lambda at_ns: training.run.recorder.ends_quietly(at_ns))
    assert training.steps == STEPS
