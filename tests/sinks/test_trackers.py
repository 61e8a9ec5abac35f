"""A tracker that blocks, fails or is slow loses only its own rows, and the training does not wait for it."""

import threading
from dataclasses import replace

import pytest

from training_profiler.base.errors import MissingExtraError
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.settings.settings import Settings
from training_profiler.sinks import trackers
from training_profiler.sinks.sink import MAX_HELD_ROWS, HeldRows, MetricRow, Sink
from training_profiler.sinks.trackers import MOST_ROWS, Trackers, with_installed_sinks

LONG_S = 30.0  # bounds a hang; nothing here waits for long


class Memory(Sink):
    """Keeps its rows; blocks while ``training_thread`` is not set, and fails if ``fails``."""

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
    """Trackers with fake sinks, as in a session."""

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


@pytest.fixture(autouse=True)
def threads_end():
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("training_profiler "):
            thread.join(LONG_S)


def test_metrics_are_not_computed_without_a_tracker():
    trackers = Trackers(lambda part, work: work())
    trackers.send(1, lambda: pytest.fail("no sink needs them"))
    trackers.end()
    trackers.wait(LONG_S, is_last=True)
    assert trackers.notes() == []


def test_blocking_sink_delays_nothing_and_its_lost_rows_are_counted():
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


def test_failing_sink_is_disabled_alone_and_named(caplog):
    good, bad = Memory("good"), Memory("bad", fails=True)
    chosen = Chosen(good, bad)
    chosen.send(1)
    bad.entered.wait(LONG_S)
    chosen.send(2)
    chosen.end()
    assert (good.steps, good.is_closed) == ([1, 2], True)
    assert chosen.guard.disabled == {"bad sink": "ConnectionError: no route to host"}
    assert len(caplog.records) == 1


def test_stuck_sink_is_abandoned_at_the_end():
    good, stuck = Memory("good"), Memory("stuck")
    stuck.training_thread.clear()
    chosen = Chosen(good, stuck)
    chosen.send(1)
    stuck.entered.wait(LONG_S)
    chosen.send(2, 3)
    chosen.end(patience_s=0.0)
    assert chosen.trackers.notes()[-1] == "stuck sink: did not come to its end, at least 2 rows not written"
    stuck.training_thread.set()


def test_frequent_rows_are_skipped_if_they_cost_too_much(monkeypatch):
    one = Memory("one")
    monkeypatch.setattr(trackers, "FREE_S", -1e9)  # whatever it took is too much
    chosen = Chosen(one)
    chosen.trackers.send(1, lambda: pytest.fail("no sink may get it"), is_frequent=True)
    chosen.send(2)
    chosen.end()
    assert one.steps == [2]
    assert chosen.trackers.notes() == [
        "one sink: 1 row of data loaders left out, more would cost over 0.1% of the run; "
        "raise log_scalars_every_n_steps"
    ]


def test_sinks_may_change_during_the_run():
    one, two = Memory("one"), Memory("two")
    chosen = Chosen(one)
    chosen.send(1)
    chosen.sinks["two"] = two
    chosen.trackers.choose(["two"], lambda: None)
    chosen.send(2)
    chosen.end()
    assert (one.steps, two.steps) == ([1], [2])
    assert one.is_closed


def test_forked_child_sends_nothing():
    one = Memory("one")
    chosen = Chosen(one)
    writers = list(chosen.trackers._writers.values())
    chosen.trackers.after_fork_in_child()
    chosen.send(1)
    chosen.end()
    assert one.steps == []
    for left in writers:  # in a child there would be no thread
        left.end()


def test_held_rows_are_thinned_evenly():
    held = HeldRows()
    held.add([MetricRow(step, 0.0, {}) for step in range(MAX_HELD_ROWS + 1)])
    steps = [row.step for row in held.drain()]
    assert steps == list(range(1, MAX_HELD_ROWS + 1, 2))
    assert held.thinned == MAX_HELD_ROWS + 1 - len(steps)
    assert len(held) == 0


def test_missing_package_is_reported_with_the_install_command(monkeypatch, caplog):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    message = (
        "The prometheus sink needs prometheus-client: pip install 'training-profiler[prometheus]', "
        "or pip install prometheus-client"
    )
    files, chosen = Settings(sinks=("jsonl", "csv")), Settings(sinks=("jsonl", "prometheus"))
    assert with_installed_sinks(files) is files
    with pytest.raises(MissingExtraError) as caught:
        with_installed_sinks(chosen)
    assert str(caught.value) == message
    assert with_installed_sinks(replace(chosen, sinks_optional=True)).sinks == ("jsonl",)
    assert [record.getMessage() for record in caplog.records] == [f"left out: {message}"]
