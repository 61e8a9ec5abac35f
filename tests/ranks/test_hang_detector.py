import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.recording import IMPLEMENTATIONS, implementation_of
from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.ranks.hang_detector import HangDetector, hang_text, open_sections
from training_profiler.ranks.message import Heartbeat, ReceivedMessage
from training_profiler.recording.event_codes import INFERRED, LOADER, TIME_ONLY, discarded_exit, is_inferred, section_id
from training_profiler.recording.recorder import Recorder, TrainingProgress


class Training:
    """Rank 0's training thread, with a hang detector."""

    def __init__(self, recorder, clock):
        self.recorder, self.clock = recorder, clock
        self.reports, self.progress = [], TrainingProgress(recorder.thread_id())
        accumulator = Accumulator(recorder.names, clock(), None)
        self.hang_detector = HangDetector(recorder, accumulator, self.progress, "node0")

    def train(self, steps, seconds):
        for _ in range(steps):
            self.clock.advance(seconds)
            self.progress.end_step()
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


def test_slow_steps_are_not_a_hang(training):
    training.train(10, 10.0)
    training.wait(199.9)
    assert training.reports == []
    training.wait(0.2)
    assert len(training.reports) == 1


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


@pytest.fixture(params=IMPLEMENTATIONS)
def recorder(request, clock):
    """Events of the recorder in Python are a list, and those of the one in C an array."""
    return Recorder(clock=clock, implementation=implementation_of(request.param))


def inside(recorder, before=()):
    return open_sections(recorder.buffer(), recorder.names.names, before)


def one_by_one(events, names, before):
    """Return the same by one event after the other."""
    stack = [(name, at_ns, False) for name, at_ns in before]
    for at_ns, code in zip(events[::2], events[1::2], strict=False):
        name = names.get(section_id(code), "")
        same = [row for row, section in enumerate(stack) if section[0] == name]
        if abs(code) & LOADER:
            continue
        if code > 0:
            stack.append((name, at_ns, is_inferred(code)))
        elif same:
            del stack[same[-1]]
    manual = next((row for row, section in enumerate(stack) if not section[2]), len(stack))
    kept = [section for row, section in enumerate(stack) if row <= manual or not section[2]]
    return tuple(name for name, _, _ in kept), kept[-1][1] if kept else None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.randoms(use_true_random=True), st.booleans())
def test_leaving_out_what_has_ended_changes_nothing(recorder, draw, is_written):
    """Sections of patches and of the user overlap, end twice or never, and loaders change between any two events."""
    recorder = Recorder(clock=recorder.clock, implementation=recorder.implementation)
    ids = [recorder.names.id_of(name) for name in ("forward_pass", "backward_pass", "mine")]
    events, depth = [], draw.choice([0.3, 0.5, 0.55])
    for at_ns in range(draw.randrange(60)):
        code = draw.choice(ids) | draw.choice([0, INFERRED]) | draw.choice([0, 0, TIME_ONLY])
        exits = [-code, discarded_exit(code)]
        events += [at_ns, LOADER | 1 if draw.random() < 0.1 else code if draw.random() < depth else draw.choice(exits)]
    events += [99] * is_written  # the code of the last one is about to be written
    recorder.buffer().events.extend(events)
    before = [("mine", 5), ("forward_pass", 6)][: draw.randrange(3)]
    assert inside(recorder, before) == one_by_one(events, recorder.names.names, before)
