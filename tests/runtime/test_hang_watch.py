"""On a fake clock, with the thread's looks made by the test."""

import os

import pytest

from tests.support.stacks import stacks_of, training_at
from tests.support.store import rank_of
from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.ranks.message import ReceivedMessage
from training_profiler.recording.recorder import TrainingProgress
from training_profiler.runtime.hang_watch import MOST_SENT, STILL_LOOKS, HangWatch, short
from training_profiler.storage.stack_files import (
    decode_stacks,
    encode_stacks,
    read_request,
    read_stacks,
    write_request,
    write_stacks,
)

BEGAN_NS = 1_000
HINT = ". All stacks: training-profiler stacks "


class FakeChannel:
    every_s = 1.0

    def __init__(self):
        self.asked_ns, self.messages, self.asked, self.sent_soon = 0, {}, [], 0
        self.outbox = self.inbox = self.stores = self

    def received(self):
        return self.messages

    def ask_for_stacks(self, asked_ns):
        self.asked.append(asked_ns)

    def send_stacks_soon(self):
        self.sent_soon += 1


class Training:
    """A rank whose training thread is the test's."""

    def __init__(self, recorder, clock, folder, rank=0, world_size=1):
        self.recorder, self.clock, self.folder = recorder, clock, folder
        self.reports, self.channel, self.progress = [], FakeChannel(), TrainingProgress(recorder.thread_id())
        self.run_folder = str(folder)
        accumulator = Accumulator(recorder.names, clock(), None)
        self.watch = HangWatch(
            recorder,
            accumulator,
            self.channel,
            rank_of(rank, world_size),
            lambda part, work: work(),
            progress=self.progress,
            outputs=self,
            report=self.reports.append,
            wall_clock=lambda: 2_000,
            began_wall_ns=BEGAN_NS,
        )

    def read_soon(self, work):
        work()
        return True

    def train(self, steps=3):
        for _ in range(steps):
            self.clock.advance(0.1)
            self.progress.end_step()
            self.watch.look()

    def look(self, times, seconds=1.0):
        for _ in range(times):
            self.clock.advance(seconds)
            self.watch.look()


@pytest.fixture
def training(recorder, clock, tmp_path):
    return Training(recorder, clock, tmp_path)


def test_training_of_one_rank_that_stands_still_is_reported_once_with_its_line(training):
    training.train()
    with training.recorder.section("backward_pass"):
        training.look(100)
    (line,) = training.reports
    assert line.startswith("no training step for 70 s, at ")
    assert " (in backward_pass)" in line
    assert line.endswith(f"{HINT}{training.folder}")
    (stacks,) = read_stacks(training.folder).values()
    assert stacks.training.sections == ("backward_pass",)
    assert stacks.steps == 3


def test_program_that_goes_on_without_steps_does_not_hang(training):
    training.train()
    training.look(60)
    for _ in range(STILL_LOOKS):
        training.look(1)  # each at one line,
        training.look(1)  # and then at another
    assert training.reports == []


def test_person_at_a_prompt_does_not_hang(training):
    training.train()
    code = compile("def wait(look):\n    look(100)", f"{os.path.dirname(os.__file__)}/pdb.py", "exec")
    names = {}
    exec(code, names)
    names["wait"](training.look)
    assert training.reports == []


def test_request_in_the_run_folder_is_answered_once_and_one_of_an_earlier_attempt_never(training):
    write_request(training.folder, BEGAN_NS)
    training.look(1)
    assert read_stacks(training.folder) == {}
    write_request(training.folder, BEGAN_NS + 1)
    training.look(1)
    assert list(read_stacks(training.folder, BEGAN_NS + 1)) == [0]
    (training.folder / "stacks" / "rank0.json").unlink()
    training.look(3)
    assert read_stacks(training.folder) == {}
    write_request(training.folder, BEGAN_NS + 2)
    training.look(1)
    assert list(read_stacks(training.folder)) == [0]
    assert training.reports == []  # whoever asked prints them


def test_other_rank_sends_its_stacks_for_a_while(recorder, clock, tmp_path):
    other = Training(recorder, clock, tmp_path, rank=1, world_size=2)
    assert other.watch.attached() == b""
    other.channel.asked_ns = BEGAN_NS + 7
    other.look(1)
    assert other.channel.sent_soon == 1
    assert decode_stacks(other.watch.attached()).asked_ns == BEGAN_NS + 7
    clock.advance(3.1)
    assert other.watch.attached() == b""


def message_of(stacks):
    return ReceivedMessage(b"", 0.0, stacks=encode_stacks(stacks))


def test_rank_0_relays_a_request_and_writes_the_stacks_that_come_by_message(recorder, clock, tmp_path):
    first = Training(recorder, clock, tmp_path, world_size=3)
    write_request(tmp_path, BEGAN_NS + 7)
    first.look(1)
    assert first.channel.asked == [BEGAN_NS + 7]
    first.channel.messages = {
        1: message_of(stacks_of(1, training_at("train.py:5 f"), asked_ns=BEGAN_NS + 7)),
        2: message_of(stacks_of(2, training_at("train.py:5 f"), asked_ns=BEGAN_NS + 6)),  # of an earlier request
    }
    first.look(1)
    assert list(read_stacks(tmp_path, BEGAN_NS + 7)) == [0, 1]
    assert first.reports == []


@pytest.mark.parametrize("answers", [True, False])
def test_hang_of_ranks_is_reported_at_once_and_again_with_the_lines_of_those_that_answer(
    recorder, clock, tmp_path, answers
):
    first = Training(recorder, clock, tmp_path, world_size=3)
    first.train()
    first.look(60)
    assert [line.partition(":")[0] for line in first.reports] == ["no training step for 60 s"]
    (asked_ns,) = first.channel.asked
    assert read_request(tmp_path) == asked_ns  # for ranks without a store
    if not answers:  # they are not waited for forever
        first.look(6)
        assert len(first.reports) == 2
        assert first.reports[1].startswith("where the ranks are: the only rank that answered at ")
        return
    write_stacks(tmp_path, stacks_of(1, training_at("data.py:41 get", section="data_loading"), asked_ns=asked_ns))
    first.channel.messages = {2: message_of(stacks_of(2, training_at("train.py:5 f"), asked_ns=asked_ns))}
    first.look(2)
    _, line = first.reports
    assert line.startswith("where the ranks are: ")
    assert "rank 1 at data.py:41 get (in data_loading)" in line
    assert "rank 2 at train.py:5 f" in line
    first.look(100)
    assert len(first.reports) == 2


def test_deep_stacks_are_cut_to_the_innermost_frames_for_a_message():
    deep = training_at(*(f"some/quite/long/path/to/a/file.py:{line} function_{line}" for line in range(2_000)))
    data = short(stacks_of(1, deep, deep, deep))
    assert len(data) <= MOST_SENT
    assert decode_stacks(data).threads[0].frames[-1].function == "function_1999"
    assert decode_stacks(b"no stacks") is None
