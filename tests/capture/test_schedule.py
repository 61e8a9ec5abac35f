import pytest

from training_profiler.capture.pace import Pace
from training_profiler.capture.plan import CapturePlan
from training_profiler.capture.schedule import Schedule
from training_profiler.units import NS_PER_S


def paced(steps: int) -> Pace:
    pace = Pace()
    for step in range(steps + 1):
        pace.step_ended(100 * step)
    return pace


@pytest.mark.parametrize(
    ("plan", "known", "lengths"),
    [
        (CapturePlan(steps=((3, 4),)), 0, {3: 2}),
        (CapturePlan(every=4, length=3), 10, {4: 3, 8: 3}),
        (CapturePlan(every=4, length=3), 9, {}),
        (CapturePlan(outlier=True), 10, {}),
        (CapturePlan(), 10, {}),
    ],
)
def test_a_plan_is_due_at_its_steps(plan, known, lengths):
    found = {}
    for step in range(2, 10):
        schedule = Schedule(plan, paced(known))
        length = schedule.due(step, now_ns=0)
        if length is not None:
            found[step] = length
    assert found == lengths


def test_what_is_asked_for_is_due_once_five_steps_are_known():
    early, late = Schedule(CapturePlan(), paced(4)), Schedule(CapturePlan(length=6), paced(5))
    early.ask(2)
    late.ask(None)
    assert (early.due(9, 0), late.due(9, 0)) == (None, 6)


def test_what_could_not_open_is_tried_again_ever_later_until_it_does():
    schedule = Schedule(CapturePlan(steps=((3, 4),)), Pace())
    assert schedule.due(3, 0) == 2
    schedule.later(0)
    assert [schedule.due(4, NS_PER_S - 1), schedule.due(5, NS_PER_S)] == [None, 2]
    schedule.later(NS_PER_S)
    assert [schedule.due(6, 3 * NS_PER_S - 1), schedule.due(7, 3 * NS_PER_S)] == [None, 2]
    schedule.done()
    assert schedule.due(8, 9 * NS_PER_S) is None


def test_a_window_that_had_to_be_dropped_is_wanted_again():
    schedule = Schedule(CapturePlan(), Pace())
    schedule.later(0, steps=3)
    assert (schedule.is_idle, schedule.due(9, NS_PER_S)) == (False, 3)
