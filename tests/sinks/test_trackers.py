"""A tracker that blocks, fails or is slow loses its own rows and nothing else; nobody waits for it."""

import threading

import pytest

from training_profiler.errors import MissingExtraError
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.sinks import extras, writer
from training_profiler.sinks.extras import require_packages
from training_profiler.sinks.sink import MAX_HELD_ROWS, HeldRows, MetricRow, Sink
from training_profiler.sinks.trackers import Trackers
from training_profiler.sinks.writer import MOST_ROWS

LONG_S = 30.0  # bounds a hang; nothing here waits for long


class Memory(Sink):
    """Keeps what it gets; blocks while ``training_thread`` is not set, and fails where it is told to."""

    def __init__(self, name, fails=False):
        self.name = name
        self.steps = []
        self.training_thread = threading.Event()
        self.training_thread.set()
        self.entered = threading.Event()
        self.is_closed = False
        self._fails = fails

    def write(self, rows):
        self.entered.set()
        self.training_thread.wait(LONG_S)
        if self._fails:
            raise ConnectionError("no route to host")
        self.steps += [row.step for row in rows]

    def close(self):
        self.is_closed = True


class Chosen:
    """Trackers of stand-ins, as a session has them."""

    def __init__(self, *sinks):
        self.guard = FaultGuard()
        self.sinks = {sink.name: sink for sink in sinks}
        self.trackers = Trackers(self.guard.run, sinks=self.sinks.__getitem__)
        self.trackers.choose(list(self.sinks), lambda: None)

    def send(self, *steps):
        for step in steps:
            self.trackers.send(step, lambda: {"profiling/mfu": 0.5})

    def end(self, patience_s=LONG_S):
        self.trackers.end()
        self.trackers.wait(patience_s, is_last=True)


def wait_for_threads():
    for thread in threading.enumerate():
        if thread.name.startswith("training_profiler "):
            thread.join(LONG_S)


def test_rows_reach_every_sink_in_order():
    one, two = Memory("one"), Memory("two")
    chosen = Chosen(one, two)
    chosen.send(1, 2, 3)
    chosen.end()
    assert one.steps == two.steps == [1, 2, 3]
    assert one.is_closed
    assert chosen.trackers.notes() == []
    wait_for_threads()


def test_without_a_tracker_metrics_are_not_even_made():
    trackers = Trackers(lambda part, work: work())
    trackers.send(1, lambda: pytest.fail("nobody asked"))
    trackers.end()
    trackers.wait(LONG_S, is_last=True)
    assert trackers.notes() == []


def test_a_sink_that_fails_is_switched_off_alone_and_named(caplog):
    good, bad = Memory("good"), Memory("bad", fails=True)
    chosen = Chosen(good, bad)
    chosen.send(1)
    bad.entered.wait(LONG_S)
    chosen.send(2)
    chosen.end()
    assert good.steps == [1, 2]
    assert chosen.guard.disabled == {"bad sink": "ConnectionError: no route to host"}
    assert len(caplog.records) == 1
    wait_for_threads()


def test_a_sink_that_blocks_makes_nobody_wait_and_its_rows_are_counted():
    good, slow = Memory("good"), Memory("slow")
    slow.training_thread.clear()
    chosen = Chosen(good, slow)
    chosen.send(0)
    slow.entered.wait(LONG_S)
    chosen.send(*range(1, MOST_ROWS + 8))
    assert any("slow sink: 7 rows left out, for it was slower" in note for note in chosen.trackers.notes())
    slow.training_thread.set()
    chosen.end()
    assert slow.steps == list(range(MOST_ROWS + 1))
    wait_for_threads()


def test_a_sink_that_never_comes_back_is_given_up_at_the_end():
    good, stuck = Memory("good"), Memory("stuck")
    stuck.training_thread.clear()
    chosen = Chosen(good, stuck)
    chosen.send(1)
    stuck.entered.wait(LONG_S)
    chosen.send(2, 3)
    chosen.end(patience_s=0.0)
    assert chosen.trackers.notes()[-1] == "stuck sink: did not come to its end, at least 2 rows not written"
    stuck.training_thread.set()
    wait_for_threads()


def test_rows_of_every_step_are_left_out_where_they_cost_too_much(monkeypatch):
    one = Memory("one")
    monkeypatch.setattr(writer, "FREE_S", -1e9)  # whatever it took is too much
    chosen = Chosen(one)
    chosen.trackers.send(1, lambda: pytest.fail("nobody has use for it"), is_frequent=True)
    chosen.send(2)
    chosen.end()
    assert one.steps == [2]
    assert chosen.trackers.notes() == [
        "one sink: 1 row of data loaders left out, more would cost over 0.1% of the run; "
        "raise log_scalars_every_n_steps"
    ]
    wait_for_threads()


def test_a_sink_may_be_chosen_and_left_while_the_run_goes_on():
    one, two = Memory("one"), Memory("two")
    chosen = Chosen(one)
    chosen.send(1)
    chosen.sinks["two"] = two
    chosen.trackers.choose(["two"], lambda: None)
    chosen.send(2)
    chosen.end()
    assert (one.steps, two.steps) == ([1], [2])
    assert one.is_closed
    wait_for_threads()


def test_a_forked_child_sends_nothing():
    one = Memory("one")
    chosen = Chosen(one)
    writers = list(chosen.trackers._writers.values())
    chosen.trackers.after_fork_in_child()
    chosen.send(1)
    chosen.end()
    assert one.steps == []
    for left in writers:  # in a child there would be no thread
        left.end()
    wait_for_threads()


def test_rows_that_wait_for_a_tracker_are_thinned_out_evenly():
    held = HeldRows()
    held.add([MetricRow(step, 0.0, {}) for step in range(MAX_HELD_ROWS + 1)])
    steps = [row.step for row in held.drain()]
    assert steps == list(range(1, MAX_HELD_ROWS + 1, 2))
    assert held.thinned == MAX_HELD_ROWS + 1 - len(steps)
    assert len(held) == 0


def test_a_missing_package_is_told_with_the_way_to_install_it(monkeypatch):
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None)
    require_packages(["jsonl", "csv"])
    with pytest.raises(MissingExtraError) as caught:
        require_packages(["jsonl", "prometheus"])
    assert str(caught.value) == (
        "The prometheus sink needs prometheus-client: pip install 'training-profiler[prometheus]', "
        "or pip install prometheus-client"
    )
