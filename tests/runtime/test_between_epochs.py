"""Work between two epochs that were detected belongs to no step."""

from types import SimpleNamespace

import pytest

from tests.support.session import FakeTraining
from training_profiler.instrumentation.loop_detection.step_detector import EpochBoundary
from training_profiler.model.snapshot import OUTSIDE_STEPS


class Boundaries:
    """The part of the instrumentation that a step asks."""

    early_steps = SimpleNamespace(poll=lambda: None)

    def __init__(self):
        self.next = None

    def epoch_boundary(self):
        found, self.next = self.next, None
        return found

    def step_ended(self, steps, counts_flops):
        pass


class Training(FakeTraining):
    """Its events are held back until a step ends, as under the instrumentation."""

    def __init__(self, folder):
        super().__init__(folder, warmup=0)
        self.epochs = self.session.instrumentation = Boundaries()
        self.run.recorder.watermark_ns = self.clock()

    def begin_epoch(self, number):
        """Let the next step find out that a pass over the data begins now."""
        counts = (None, None) if number == 1 else (2, 8)
        self.epochs.next = EpochBoundary(self.clock(), number, *counts)

    def step(self, seconds=1.0, at_ns=None):
        self.run.spend("forward_pass", seconds)
        self.session.step(at_ns)

    def stats(self):
        self.session.instrumentation = None
        self.session.run.drain()
        self.session.run.flush()
        return self.session.run.stats()


@pytest.fixture
def training(tmp_path, capsys):
    training = Training(tmp_path)
    yield training
    training.session.close()


def test_work_between_epochs_is_in_no_step(training):
    for number in (1, 2, 3):
        training.begin_epoch(number)
        training.step()
        training.step()
        training.clock.advance(10.0)
    stats = training.stats()
    assert stats.step.max_s == pytest.approx(1.0)
    assert stats.step.total_s == pytest.approx(6.0)
    assert stats.sections[OUTSIDE_STEPS].self_s >= 20.0
    assert stats.sections["forward_pass"].step_total_s == pytest.approx(6.0)


def test_work_before_the_first_epoch_is_decided_elsewhere(training):
    training.run.spend("forward_pass", 5.0)  # a rollout, perhaps
    training.begin_epoch(1)
    training.step()
    assert training.stats().step.total_s == pytest.approx(6.0)


def test_a_loop_that_reads_ahead_loses_no_time_of_its_steps(training):
    training.begin_epoch(1)
    training.step()
    training.run.spend("forward_pass", 1.0)
    ahead_ns = training.clock()
    training.clock.advance(1.0)
    training.session.step()
    training.epochs.next = EpochBoundary(ahead_ns, 2, 2, 8)
    training.step()
    stats = training.stats()
    assert stats.step.total_s == pytest.approx(4.0)


def test_a_step_whose_end_shows_late_is_the_last_of_its_epoch(training):
    """With several optimizers, the next update shows where the step before has ended."""
    training.begin_epoch(1)
    training.step()
    training.run.spend("forward_pass", 1.0)
    end_ns = training.clock()
    training.clock.advance(10.0)
    training.begin_epoch(2)
    training.run.spend("forward_pass", 1.0)
    training.session.step(end_ns)  # known at the first update of the next step
    training.session.step()
    stats = training.stats()
    assert (stats.steps, [epoch.steps for epoch in stats.epochs]) == (3, [2])
    assert stats.step.total_s == pytest.approx(3.0)
