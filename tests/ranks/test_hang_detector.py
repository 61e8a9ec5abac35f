import pytest

from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.ranks.channel import ReceivedMessage
from training_profiler.ranks.hang_detector import HangDetector, hang_text
from training_profiler.ranks.message import Heartbeat


class Training:
    """Rank 0's training thread, with a pulse that looks at it."""

    def __init__(self, recorder, clock):
        self.recorder, self.clock = recorder, clock
        self.said, self.steps = [], 0
        accumulator = Accumulator(recorder.names, clock(), None)
        self.hang_detector = HangDetector(
            recorder, accumulator, recorder.thread_id, "node0", self.said.append, lambda: self.steps
        )

    def train(self, steps, seconds):
        for _ in range(steps):
            self.clock.advance(seconds)
            self.steps += 1
            self.hang_detector.check({}, 1.0)

    def wait(self, seconds, told=None, interval_s=1.0):
        self.clock.advance(seconds)
        self.hang_detector.check(told or {}, interval_s)


@pytest.fixture
def training(recorder, clock):
    return Training(recorder, clock)


def test_a_training_that_has_stopped_is_said_once_with_where_it_is(training):
    training.train(10, 0.1)
    with training.recorder.section("backward_pass"):
        training.wait(59.9)
        assert training.said == []
        training.wait(0.1)
        training.wait(100.0)
    assert training.said == ["Profiler: no training step for 60 s: rank 0 is in backward_pass"]


def test_another_stop_after_more_steps_is_said_again(training):
    training.train(10, 0.1)
    training.wait(60.0)
    training.train(2, 0.1)
    training.wait(60.0)
    assert len(training.said) == 2


def test_slow_steps_are_no_stop(training):
    training.train(10, 10.0)
    training.wait(199.9)
    assert training.said == []
    training.wait(0.2)
    assert len(training.said) == 1


def test_before_the_first_step_nothing_is_said(training):
    training.wait(1000.0)
    training.wait(1000.0)
    assert training.said == []


@pytest.mark.parametrize("name", ["validation_epoch", "sampling", "checkpointing"])
def test_validation_and_the_like_are_no_stop_and_the_time_counts_from_their_end(training, name):
    training.train(10, 0.1)
    with training.recorder.section(name):
        training.wait(500.0)
    training.wait(59.0)
    assert training.said == []


def told(inside=(), since_s=None, ago=0.0, host="node1", **rest):
    return ReceivedMessage(b"", ago, Heartbeat(5, inside, since_s, host), **rest)


def test_the_line_names_who_is_elsewhere_and_who_is_silent():
    ranks = {
        1: told(("train", "backward_pass"), 60.0, 1.0),
        2: told(("data_loading",), 57.0, 1.0),
        3: told(("backward_pass",), 1.0, 60.0),
    }
    assert hang_text(61.0, Heartbeat(5, ("backward_pass",), 60.0), ranks, 10.0) == (
        "Profiler: no training step for 61 s: rank 0 is in backward_pass, rank 2 (node1) in data_loading since 58 s; "
        "rank 3 (node1) has not responded for 60 s"
    )


def test_of_many_ranks_the_few_that_are_elsewhere_are_named():
    ranks = {rank: told(("synchronization",), 60.0) for rank in range(1, 1024)}
    ranks[700] = told(("data_loading",), 60.0)
    ranks |= {rank: told((), None, 90.0) for rank in range(900, 910)}
    ranks[5] = told((), None, is_final=True)
    line = hang_text(61.0, Heartbeat(5, ("synchronization",), 60.0), ranks, 10.0)
    assert line.startswith(
        "Profiler: no training step for 61 s: rank 0 is in synchronization, rank 5 (node1) has ended, "
        "rank 700 (node1) in data_loading since 60 s; rank 900 (node1) has not responded for 90 s;"
    )
    assert line.endswith("; and 6 more")


def test_of_many_ranks_none_is_silent_that_is_only_heard_of_seldom(training):
    training.train(10, 0.1)
    training.wait(60.0, {1: ReceivedMessage(b"", 40.0, Heartbeat(10, (), None, "node1"))}, interval_s=10.24)
    assert training.said == ["Profiler: no training step for 60 s: rank 0 is in no section"]
