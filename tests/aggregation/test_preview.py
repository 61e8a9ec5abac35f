"""A preview adds events that may still be rewritten, and leaves the sums as they are."""

import threading

import pytest

from tests.support.recording import FakeRun


@pytest.fixture
def run():
    run = FakeRun()
    run.steps(3, forward_pass=1.0, backward_pass=2.0)
    run.flush()
    return run


def preview_of(run):
    """Return the totals that a preview adds, its step durations, and its open sections."""
    preview = run.accumulator.preview()
    preview.add(run.recorder.peek(), run.recorder.thread_id())
    totals, step_ns = preview.pop_totals()
    return totals, step_ns, preview.open_sections(run.recorder.thread_id())


def test_a_preview_shows_what_is_held_back(run):
    run.recorder.move_watermark(run.clock())
    run.step(forward_pass=1.0)
    with run.section("forward_pass"), run.section("attention"):
        run.clock.advance(5.0)
        totals, step_ns, inside = preview_of(run)
    assert (totals.wall_ns, step_ns, inside) == (6 * 10**9, [10**9], ("forward_pass", "attention"))
    assert totals.sections.self_ns.sum() == totals.wall_ns


def test_the_sums_are_the_same_with_and_without_previews(run):
    other = FakeRun()
    other.steps(3, forward_pass=1.0, backward_pass=2.0)
    other.flush()
    for each, previews in ((run, True), (other, False)):
        each.recorder.move_watermark(each.clock())
        for _ in range(4):
            each.step(forward_pass=1.0)
            if previews:
                preview_of(each)
        with each.section("forward_pass"):
            each.clock.advance(1.0)
            if previews:
                preview_of(each)
        each.recorder.move_watermark(None)
    assert run.snapshot() == other.snapshot()


def test_preview_copies_no_receiver_of_spans(run):
    lock = threading.Lock()  # cannot be copied
    run.accumulator.send_every_span(lambda *spans: lock)
    run.accumulator.send_spans(Receiver().receive)
    preview = run.accumulator.preview()
    assert (preview.on_spans, preview.on_every_span) == (None, None)
    assert run.accumulator.on_every_span is not None


class Receiver:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def receive(self, *spans: object) -> None:
        raise AssertionError
