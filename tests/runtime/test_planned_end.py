"""A training ends when the user asked for it: once, at the end of a step, and as by Ctrl-C."""

import signal
import threading
from types import SimpleNamespace

import pytest

from tests.support.store import rank_of
from training_profiler.runtime.shutdown import NEVER, SURE_STEPS, EndOfTraining, PlannedEnd, end_training
from training_profiler.settings.settings import read_settings


class Planned:
    """A training of steps of the same time on one of some ranks; what its end says is kept."""

    def __init__(self, clock, rank=0, world_size=1, step_s=0.1, **arguments):
        self.clock, self.step_s, self.steps, self.said, self.asked = clock, step_s, 0, [], []
        self.follows = []
        self.channel = SimpleNamespace(
            end_step=None, stores=SimpleNamespace(every_s=1.0), follow_end=self.follows.append, end_in=self.asked.append
        )
        self.end = PlannedEnd(rank_of(rank, world_size), self.channel, clock, clock(), self.said.append)
        self.use(**arguments)

    def use(self, **arguments):
        self.end.reconfigure(read_settings(arguments, {}))

    def train(self, steps):
        """Make steps, until the training is ended; return how many have ended."""
        for _ in range(steps):
            self.clock.advance(self.step_s)
            self.steps += 1
            if self.end.is_on:
                try:
                    self.end.step_ended(self.steps, self.clock())
                except EndOfTraining:
                    return self.steps
        return None

    def look(self, code):
        self.end.look(lambda: (self.steps, code))


def test_without_the_settings_nothing_is_asked(clock):
    training = Planned(clock)
    assert (training.end.is_on, training.end.next_step, training.follows) == (False, NEVER, [False])
    assert not training.end.is_look_due(1000, clock())


@pytest.mark.parametrize(
    ("given", "step_s", "ended_at"),
    [("1step", 0.1, 1), ("20steps", 0.1, 20), ("3s", 0.1, 30), ("1min", 7.0, 9), ("1s", 60.0, 1)],
)
def test_it_ends_with_the_first_step_that_reaches_the_limit(clock, given, step_s, ended_at):
    training = Planned(clock, step_s=step_s, for_=given)
    assert training.end.next_step == (ended_at if given.endswith(("step", "steps")) else NEVER)
    assert training.train(100) == ended_at
    steps = "1 step" if ended_at == 1 else f"{ended_at} steps"
    assert training.said == [f"ending the training after {steps}, as --for {given} asked"]
    assert training.end.ended_by == f"--for {given}"


def test_a_training_that_goes_on_is_not_ended_twice_and_that_is_said_once(clock):
    training = Planned(clock, for_="20steps")
    assert training.train(100) == 20
    assert training.end.next_step == 0
    assert training.train(100) is None
    assert training.said[1:] == [
        "the training caught the interrupt of --for 20steps and goes on; it ends at its own will"
    ]
    assert (training.end.is_on, training.end.next_step, training.end.ended_by) == (False, NEVER, None)
    training.use(for_="30steps")
    assert training.train(100) is None


def test_the_first_finding_is_sure_once_it_has_been_the_same_for_so_many_steps(clock):
    training = Planned(clock, stop_when_sure=True)
    for code, steps in (("a", 20), ("b", 20), ("b", SURE_STEPS - 20), ("a", 1)):
        training.look(code)
        assert training.train(steps) is None
    training.look("a")
    assert training.train(SURE_STEPS - 1) is None
    training.look("a")
    assert training.train(1) == training.steps
    assert training.said == [
        f"ending the training after {training.steps} steps, as --stop-when-sure asked: "
        f"its answer was the same for {SURE_STEPS} steps (a)"
    ]


def test_no_finding_is_never_sure(clock):
    training = Planned(clock, stop_when_sure=True)
    for _ in range(5):
        training.look(None)
        assert training.train(SURE_STEPS) is None


def test_looks_are_some_steps_and_a_second_apart_and_more_where_they_take_long(clock):
    training = Planned(clock, stop_when_sure=True)
    assert not training.end.is_look_due(19, clock())
    assert training.end.is_look_due(20, clock())
    training.train(20)
    training.end.look(lambda: (clock.advance(0.5), (20, "a"))[1])
    assert not training.end.is_look_due(1000, clock() + 49 * 10**9)
    assert not training.end.is_look_due(39, clock() + 50 * 10**9)
    assert training.end.is_look_due(40, clock() + 50 * 10**9)
    assert not Planned(clock, rank=1, world_size=2, stop_when_sure=True).end.is_look_due(1000, clock())


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_counts_steps_itself(clock, rank):
    training = Planned(clock, rank, 2, for_="20steps")
    assert (training.follows, training.train(100), training.asked) == ([False], 20, [])


@pytest.mark.parametrize("wish", [{"for_": "1s"}, {"stop_when_sure": True}])
def test_the_other_ranks_follow_rank_0_alone_and_end_at_once_where_they_hear_of_it_too_late(clock, wish):
    for end_step, ended_at in ((130, 130), (50, 101)):
        training = Planned(clock, 1, 2, **wish)
        assert training.train(100) is None
        training.channel.end_step = end_step
        assert training.train(100) == ended_at
        assert training.end.ended_by == ("--for 1s" if "for_" in wish else "--stop-when-sure")


def test_rank_0_sets_the_last_step_once_before_the_time_is_over_so_that_it_comes_then(clock):
    training = Planned(clock, 0, 2, for_="60s")
    assert training.follows == [True]
    assert training.train(570) is None
    assert training.asked == [31]  # after 57 s of 60: three messages, in steps, and one more
    training.channel.end_step = 570 + 31
    assert training.train(100) == 601
    assert training.said == ["ending the training after 601 steps, as --for 60s asked"]
    long = Planned(clock, 0, 2, step_s=100.0, for_="60s")
    assert (long.train(1000), long.asked) == (None, [2])  # the others have not heard of it


@pytest.fixture
def handle(monkeypatch):
    """Return the function that installs a handler of SIGINT."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN, signal.SIG_DFL])
def test_the_end_is_an_interrupt_and_an_exit_with_status_0(handle, handler):
    handle(handler)
    with pytest.raises(KeyboardInterrupt) as raised:
        end_training()
    assert isinstance(raised.value, SystemExit)
    assert raised.value.code == 0


def on_another_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize("way", [lambda work: work(), on_another_thread])
def test_a_handler_of_the_program_is_called_on_the_main_thread_and_nothing_is_raised(handle, way):
    calls = []
    handle(lambda number, frame: calls.append((number, threading.current_thread())))
    way(end_training)
    assert calls == [(signal.SIGINT, threading.main_thread())]


def test_a_training_on_another_thread_ends_without_a_traceback(handle, monkeypatch):
    others = []
    monkeypatch.setattr(threading, "excepthook", others.append)
    handle(signal.default_int_handler)
    for work in (end_training, lambda: 1 / 0):
        on_another_thread(work)
    assert [ended.exc_type for ended in others] == [ZeroDivisionError]
    others.clear()


class Wish(KeyboardInterrupt):
    pass


@pytest.mark.parametrize(
    ("error", "kind"),
    [(KeyboardInterrupt, EndOfTraining), (Wish, Wish), (ValueError, ValueError), (SystemExit, SystemExit)],
)
def test_what_a_handler_raises_is_raised_and_a_plain_interrupt_is_the_end(handle, error, kind):
    def fail(number, frame):
        raise error

    handle(fail)
    with pytest.raises(error) as raised:
        end_training()
    assert type(raised.value) is kind
