"""Single steps keep their spans: the first, slow ones and the last, whole, in bounded number."""

import random
import threading

import pytest

from tests.support.recording import FakeRun
from training_profiler.aggregation import step_spans
from training_profiler.aggregation.span_matching import OUTSIDE, StepTimeline, read_events
from training_profiler.aggregation.step_spans import FIRST, LAST, SLOW
from training_profiler.recording.event_codes import EPOCH_BEGIN, LOOP_BEGIN, STEP_END

S, US = 1_000_000_000, 1_000


def numbers(steps):
    return [(step.number, step.why) for step in steps]


def pop(run, is_last=False):
    run.drain()
    _, step_ns = run.accumulator.pop_totals()
    return run.accumulator.step_spans.pop(step_ns, is_last)


def spans_of(run, step, thread=0):
    """Return the spans of a step as (name, begin, end) in s since its begin, by begin and the outermost first."""
    spans = step.lanes[thread].by_begin()
    return [(run.names.names[id], begin_us * US / S, end_us * US / S) for id, begin_us, end_us in spans]


@pytest.mark.parametrize(("warmup", "expected"), [(None, [1, 11, 12]), (0, [1, 2]), (5, [1, 6, 7])])
def test_the_first_steps_are_the_very_first_and_those_after_warm_up(warmup, expected):
    run = FakeRun(warmup=warmup)
    run.steps(20, forward_pass=1.0)
    assert numbers(pop(run)) == [(number, FIRST) for number in expected]


def test_a_step_that_takes_far_longer_is_kept_and_one_a_little_longer_is_not():
    run = FakeRun(warmup=0)
    for number in range(1, 41):
        run.step(forward_pass=1.4 if number == 20 else 1.0)
    assert numbers(pop(run)) == [(1, FIRST), (2, FIRST)]
    for number in range(41, 81):
        run.step(forward_pass=3.0 if number == 60 else 1.0)
    (slow,) = pop(run)
    assert numbers([slow]) == [(60, SLOW)]
    assert spans_of(run, slow) == [("forward_pass", 0.0, 3.0)]


def test_slow_steps_are_found_where_every_interval_has_one_step():
    run = FakeRun(warmup=0)
    found = []
    for number in range(1, 21):
        run.step(forward_pass=30.0 if number == 15 else 10.0)
        found += numbers(pop(run))
    assert found == [(1, FIRST), (2, FIRST), (15, SLOW)]


def test_a_step_that_a_capture_slowed_is_not_a_slow_step():
    run = FakeRun(warmup=0)
    run.accumulator.slowed_by_capture.begin(30)
    run.accumulator.slowed_by_capture.end(30)
    for number in range(1, 41):
        run.step(forward_pass={30: 9.0, 35: 3.0}.get(number, 1.0))
    assert numbers(pop(run))[2:] == [(35, SLOW)]


def test_the_last_steps_are_written_at_the_end_and_none_twice():
    run = FakeRun(warmup=0)
    run.steps(2, forward_pass=1.0)
    assert numbers(pop(run)) == [(1, FIRST), (2, FIRST)]
    run.steps(5, forward_pass=1.0)
    assert numbers(pop(run)) == []
    assert numbers(pop(run, is_last=True)) == [(6, LAST), (7, LAST)]
    assert numbers(pop(run, is_last=True)) == []


def test_the_step_after_an_epoch_begins_with_the_next_epoch():
    run = FakeRun(warmup=0)
    run.begin_epoch(1)
    run.step(forward_pass=1.0)
    run.spend("forward_pass", 5.0)  # of a step that does not end
    run.end_epoch()
    run.clock.advance(7.0)
    run.begin_epoch(2)
    run.step(forward_pass=2.0)
    steps = pop(run, is_last=True)
    assert [(step.end_ns - step.begin_ns) / S for step in steps] == [1.0, 2.0]
    assert spans_of(run, steps[1]) == [("forward_pass", 0.0, 2.0)]


def test_other_threads_have_lanes_of_their_own_and_reach_over_the_ends_of_a_step():
    run = FakeRun(warmup=0)
    entered, leave = threading.Event(), threading.Event()

    def beside():
        with run.section("prefetch"):
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=beside, name="reader")
    run.step(forward_pass=1.0)
    thread.start()
    entered.wait(30)
    run.step(forward_pass=1.0)
    run.spend("forward_pass", 0.5)
    leave.set()
    thread.join(30)
    run.clock.advance(0.5)
    run.step()
    steps = pop(run)
    assert [[lane.thread for lane in step.lanes] for step in steps] == [["MainThread"], ["MainThread", "reader"]]
    assert spans_of(run, steps[1], thread=1) == [("prefetch", 0.0, 1.5)]


def test_a_thread_that_ended_before_the_last_batch_keeps_its_name_in_the_last_steps():
    run = FakeRun(warmup=0)
    run.steps(3, forward_pass=1.0)
    pop(run)
    thread = threading.Thread(target=lambda: run.spend("prefetch", 0.5), name="reader")
    thread.start()
    thread.join(30)
    run.step(forward_pass=1.0)
    run.drain()
    for _ in range(2):
        run.drain()
    run.step(forward_pass=1.0)
    steps = pop(run, is_last=True)
    assert [[lane.thread for lane in step.lanes] for step in steps] == [["MainThread", "reader"], ["MainThread"]]


def test_of_very_many_spans_the_longest_are_kept_and_the_others_counted(monkeypatch):
    monkeypatch.setattr(step_spans, "MOST_SPANS", 10)
    run = FakeRun(warmup=0)
    run.step(forward_pass=1.0)  # shows where the loop begins
    for at in range(50):
        run.spend(f"part{at}", 1.0 + at)
    run.step()
    _, step = pop(run)
    assert [name for name, _, _ in spans_of(run, step)] == [f"part{at}" for at in range(40, 50)]
    assert step.left_out == 40


def test_a_step_that_does_not_end_keeps_a_bounded_number_of_spans(monkeypatch):
    monkeypatch.setattr(step_spans, "KEPT", 10)
    run = FakeRun(warmup=0)
    run.step(forward_pass=1.0)
    for at in range(200):
        run.spend("forward_pass", 1.0 + at)
        run.drain()
    run.step()
    *_, step = pop(run)
    assert len(spans_of(run, step)) <= 10 + step_spans.MOST_PARTS
    assert spans_of(run, step)[-1][2] - spans_of(run, step)[-1][1] == 200.0


def slow_steps(run, seconds):
    """Return which steps are written as slow if every tenth takes one of these times, and the others a second."""
    found = []
    for slow_s in seconds:
        run.steps(9, forward_pass=1.0)
        run.step(forward_pass=slow_s)
        found += [number for number, why in numbers(pop(run)) if why == SLOW]
    return found


@pytest.mark.parametrize(
    ("limit", "value", "seconds", "written"),
    [
        ("MOST_SLOW", 3, [3, 4, 5, 3, 3, 3.5, 6, 4, 7], [10, 20, 30, 60, 70, 90]),
        ("BUDGET", 10, range(3, 30), [10, 20, 30, 40, 50]),
    ],
)
def test_once_some_slow_steps_are_written_only_slower_ones_are_within_a_budget(
    monkeypatch, limit, value, seconds, written
):
    monkeypatch.setattr(step_spans, limit, value)
    assert slow_steps(FakeRun(warmup=0), seconds) == written


def test_what_is_kept_is_what_was_recorded_whatever_the_drains():
    """Random nesting, drained at random: each recorded step has exactly the spans that ran in it."""
    rng = random.Random(0)
    run, truth, found = FakeRun(warmup=0), {}, []

    def section(depth):
        begin_ns = run.clock()
        name = rng.choice("abc") + str(depth)
        with run.section(name):
            for _ in range(rng.randint(0, 2) if depth < 3 else 0):
                run.clock.advance_ns(rng.randint(1, 9) * US)
                section(depth + 1)
                if rng.random() < 0.2:
                    run.drain()
            run.clock.advance_ns(rng.randint(1, 9) * US)
        spans.append((name, begin_ns, run.clock()))

    spans = truth[1] = [("forward_pass", run.clock(), run.clock() + S)]
    run.step(forward_pass=1.0)  # shows where the loop begins
    for number in range(2, 201):
        spans = []
        for _ in range(rng.randint(1, 4) * (20 if number % 23 == 0 else 1)):
            section(0)
        run.step()
        truth[number] = sorted(spans)
        if rng.random() < 0.3:
            found += pop(run)
    found += pop(run, is_last=True)
    assert {step.why for step in found} == {FIRST, SLOW, LAST}
    for step in found:
        (lane,) = step.lanes
        rows = [(id, *(step.begin_ns + us * US for us in ends)) for id, *ends in lane.by_begin()]
        assert sorted((run.names.names[id], begin, end) for id, begin, end in rows) == truth[step.number]


def cut_pieces(timeline, marks, until_ns, first_section_ns=None):
    return timeline.cut(read_events([ns for kind, at_ns in marks for ns in (at_ns, kind)]), first_section_ns, until_ns)


@pytest.mark.parametrize(
    ("first_section_ns", "marks", "steps", "not_steps", "begun_ns"),
    [
        (None, [(LOOP_BEGIN, 10), (LOOP_BEGIN, 40), (STEP_END, 50)], [OUTSIDE, 0, 0, 1], [1], 40),
        (10, [(LOOP_BEGIN, 40), (STEP_END, 50)], [0, 0, 1], [0], 40),  # the loop has begun before a drain
        (None, [(EPOCH_BEGIN, 10), (LOOP_BEGIN, 40), (STEP_END, 50)], [OUTSIDE, 0, 0, 1], [], 10),
    ],
)
def test_the_loop_may_begin_again_before_the_first_step_ends_but_for_an_epoch(
    first_section_ns, marks, steps, not_steps, begun_ns
):
    timeline = StepTimeline()
    if first_section_ns is not None:
        cut_pieces(timeline, [], 30, first_section_ns)
    cuts = cut_pieces(timeline, marks, 60)
    assert cuts.ends_ns.tolist() == [*(at_ns for _, at_ns in marks), 60]
    assert (cuts.steps.tolist(), cuts.not_steps, timeline.begun_ns) == (steps, not_steps, begun_ns)
    assert cut_pieces(timeline, [(LOOP_BEGIN, 80)], 90).not_steps == []
