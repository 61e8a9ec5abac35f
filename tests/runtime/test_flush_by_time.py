"""A thread beside the training flushes by time, also in the middle of a section, and names the open sections."""

import json
import threading
from types import SimpleNamespace

import pytest

from tests.support.session import FakeTraining
from training_profiler.instrumentation.loop_detection.step_detector import EpochBoundary
from training_profiler.runtime.session import FIRST_FLUSH_S
from training_profiler.storage.run_reader import read_run

FLUSH_S = 10.0


class Training(FakeTraining):
    """A thread beside it flushes when the test says so."""

    @property
    def outputs(self):
        return self.session.run.outputs

    def flush_beside(self):
        """Let the thread look at the time; return in how many seconds it wants to look again."""
        due_s = []
        thread = threading.Thread(target=lambda: due_s.append(self.session.flush_beside()))
        thread.start()
        thread.join()
        self.outputs.settle()
        return due_s[0]

    def flushes(self):
        """Return the open sections of each flush."""
        self.outputs.settle()
        path = next(self.outputs._files.folder.glob("rank0.jsonl"))
        records = [json.loads(line) for line in path.read_text().splitlines()]
        return [tuple(record["open_sections"]) for record in records if record["kind"] == "interval"]


@pytest.fixture
def training(tmp_path, capsys):
    training = Training(tmp_path, flush_s=FLUSH_S)
    yield training
    training.session.close()


def test_the_folder_is_there_from_the_start_and_nothing_is_flushed_beside_a_drain_or_after_the_end(training):
    training.outputs.settle()
    assert sorted(path.name for path in training.outputs._files.folder.iterdir()) == ["meta.json", "rank0.jsonl"]
    training.run.clock.advance(1.0)
    with training.session._busy:
        assert training.flush_beside() > 0
        assert training.flushes() == []
    training.flush_beside()
    assert len(training.flushes()) == 1
    training.session.step()
    training.session.close()
    before = training.flushes()
    training.run.clock.advance(100.0)
    assert training.flush_beside() > 0
    assert training.flushes() == before


def test_a_long_section_is_flushed_and_named(training):
    section = training.run.section
    with section("forward_pass"), section("attention"):
        assert 0 < training.flush_beside() <= FIRST_FLUSH_S
        assert training.flushes() == []
        training.run.clock.advance(2 * FIRST_FLUSH_S)
        training.flush_beside()
        assert training.flushes() == [("forward_pass", "attention")]
        snapshot = read_run(training.outputs._files.folder)
        assert snapshot.open_sections == ("forward_pass", "attention")
        assert snapshot.wall_s == pytest.approx(2 * FIRST_FLUSH_S)


def test_flushes_become_rarer_until_they_are_flush_s_apart(training):
    at_s, flushed_s = 0.0, []
    while at_s < 60:
        before = len(training.flushes())
        training.flush_beside()
        if len(training.flushes()) > before:
            flushed_s.append(at_s)
        training.run.clock.advance(0.05)
        at_s += 0.05
    gaps_s = [after - before for before, after in zip([0.0, *flushed_s], flushed_s, strict=False)]
    assert max(gaps_s) <= FLUSH_S
    assert gaps_s[0] < 0.2
    assert len(flushed_s) < 15
    assert min(gaps_s[-3:]) > FLUSH_S / 2


def test_steps_are_counted_once(training, tmp_path):
    for _ in range(7):
        with training.run.section("forward_pass"):
            training.run.clock.advance(0.5)
            training.flush_beside()
        training.session.step()
        training.flush_beside()
    training.session.close()
    snapshot = read_run(training.outputs._files.folder)
    assert (snapshot.steps, snapshot.sections["forward_pass"].count) == (7, 7)
    assert snapshot.sections["forward_pass"].total_s == pytest.approx(3.5)


def test_first_steps_are_in_the_journal_before_any_time_has_passed(tmp_path, capsys):
    training = Training(tmp_path, flush_s=FLUSH_S, sinks=())  # no reader, no report
    for step in range(1, 301):
        training.session.step()
        if step in (50, 150, 300):
            training.outputs.settle()
            assert read_run(training.outputs._files.folder).steps == min(step, 150)
    training.session.close()


class FlushesBetween:
    """The part of the instrumentation that a step asks; the thread beside flushes while it answers."""

    early_steps = SimpleNamespace(poll=lambda: None)

    def __init__(self, training, boundaries):
        self.training = training
        self.boundaries = boundaries

    def epoch_boundary(self):
        return self.boundaries.pop(0)

    def step_ended(self, steps, counts_flops):
        self.training.run.clock.advance(FLUSH_S)
        self.training.flush_beside()


def test_a_flush_beside_the_end_of_an_epochs_first_step_leaves_it_the_step(training):
    clock, session = training.run.clock, training.session
    training.run.recorder.watermark_ns = clock()
    boundaries, pipeline = [], session.run
    session.instrumentation = FlushesBetween(training, boundaries)
    for number in (1, 2):
        counts = (None, None) if number == 1 else (3, 12)
        boundaries += [EpochBoundary(clock() + 1_000_000, number, *counts), None, None]
        for _ in range(3):
            clock.advance(1.0)
            session.step()
    session.instrumentation = None
    pipeline.roll_over_epoch(EpochBoundary(clock(), 3, 3, 12))
    assert [epoch.steps for epoch in pipeline.stats().epochs] == [3, 3]


def test_a_flush_that_is_asked_for_during_one_comes_with_the_next_step(training, monkeypatch):
    pipeline, clock = training.session.run, training.run.clock
    flush, flushed = pipeline.flush, []

    def asked_meanwhile(**given):
        clock.advance(0.5)
        training.session.flush_soon()
        flush(**given)

    monkeypatch.setattr(pipeline, "flush", asked_meanwhile)
    clock.advance(FLUSH_S)
    training.flush_beside()
    monkeypatch.setattr(pipeline, "flush", lambda: flushed.append(flush()))
    clock.advance(0.1)
    training.session.step()
    assert len(flushed) == 1
