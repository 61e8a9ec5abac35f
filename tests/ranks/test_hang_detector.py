import pytest

from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.ranks.channel import ReceivedMessage
from training_profiler.ranks.hang_detector import HangDetector, hang_text
from training_profiler.ranks.message import Heartbeat


class Training:
    """Rank 0's training thread, with a hang detector."""

    def __init__(self, recorder, clock):
        self.recorder, self.clock = recorder, clock
        self.reports, self.steps = [], 0
        accumulator = Accumulator(recorder.names, clock(), None)
        self.hang_detector = HangDetector(recorder, accumulator, recorder.thread_id, "node0", lambda: self.steps)

    def train(self, steps, seconds):
        for _ in range(steps):
            self.clock.advance(seconds)
            self.steps += 1
            self.check({}, 1.0)

    def check(self, messages, interval_s):
        hang = self.hang_detector.check(messages, interval_s)
        if hang is not None:
            self.reports.append(hang.text)

    def wait(self, seconds, messages=None, interval_s=1.0):
        self.clock.advance(seconds)
        self.check(messages or {}, interval_s)


@pytest.fixture
def training(recorder, clock):
    return Training(recorder, clock)


def test_hang_is_reported_once_with_the_open_section(training):
    training.train(10, 0.1)
    with training.recorder.section("backward_pass"):
        training.wait(59.9)
        assert training.reports == []
        training.wait(0.1)
        training.wait(100.0)
    assert training.reports == ["no training step for 60 s: rank 0 is in backward_pass"]


def test_second_hang_after_more_steps_is_reported(training):
    training.train(10, 0.1)
    training.wait(60.0)
    training.train(2, 0.1)
    training.wait(60.0)
    assert len(training.reports) == 2


def test_slow_steps_are_not_a_hang(training):
    training.train(10, 10.0)
    training.wait(199.9)
    assert training.reports == []
    training.wait(0.2)
    assert len(training.reports) == 1


def test_no_hang_is_reported_before_the_first_step(training):
    training.wait(1000.0)
    training.wait(1000.0)
    assert training.reports == []


@pytest.mark.parametrize("name", ["validation_epoch", "sampling", "checkpointing"])
def test_validation_is_not_a_hang_and_restarts_the_time(training, name):
    training.train(10, 0.1)
    with training.recorder.section(name):
        training.wait(500.0)
    training.wait(59.0)
    assert training.reports == []


def received(inside=(), since_s=None, ago=0.0, host="node1", **rest):
    return ReceivedMessage(b"", ago, Heartbeat(5, inside, since_s, host), **rest)


def test_report_names_ranks_elsewhere_and_unresponsive_ranks():
    ranks = {
        1: received(("train", "backward_pass"), 60.0, 1.0),
        2: received(("data_loading",), 57.0, 1.0),
        3: received(("backward_pass",), 1.0, 60.0),
    }
    assert hang_text(61.0, Heartbeat(5, ("backward_pass",), 60.0), ranks, 10.0) == (
        "no training step for 61 s: rank 0 is in backward_pass, rank 2 (node1) in data_loading since 58 s; "
        "rank 3 (node1) has not responded for 60 s"
    )


def test_report_of_many_ranks_names_a_few_elsewhere():
    ranks = {rank: received(("synchronization",), 60.0) for rank in range(1, 1024)}
    ranks[700] = received(("data_loading",), 60.0)
    ranks |= {rank: received((), None, 90.0) for rank in range(900, 910)}
    ranks[5] = received((), None, is_final=True)
    line = hang_text(61.0, Heartbeat(5, ("synchronization",), 60.0), ranks, 10.0)
    assert line.startswith(
        "no training step for 61 s: rank 0 is in synchronization, rank 5 (node1) has ended, "
        "rank 700 (node1) in data_loading since 60 s; rank 900 (node1) has not responded for 90 s;"
    )
    assert line.endswith("; and 6 more")


def test_rare_messages_of_many_ranks_are_not_unresponsive(training):
    training.train(10, 0.1)
    training.wait(60.0, {1: ReceivedMessage(b"", 40.0, Heartbeat(10, (), None, "node1"))}, interval_s=10.24)
    assert training.reports == ["no training step for 60 s: rank 0 is in no section"]
