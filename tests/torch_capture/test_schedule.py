import pytest

from training_profiler.base.units import NS_PER_S
from training_profiler.torch_capture.plan import CapturePlan, Schedule


def paced(*durations_ns: int, plan: CapturePlan | None = None) -> Schedule:
    schedule, now_ns = Schedule(plan or CapturePlan()), 0
    schedule.step_ended(now_ns)
    for duration_ns in durations_ns:
        now_ns += duration_ns
        schedule.step_ended(now_ns)
    return schedule


@pytest.mark.parametrize(
    ("durations_ns", "is_outlier"),
    [
        ([100] * 10 + [301], True),
        ([100] * 10 + [300], False),  # three medians
        ([100] * 9 + [10_000], False),  # too few are known
        ([100] * 10 + [301, 100], False),
    ],
)
def test_a_step_of_over_three_medians_is_an_outlier_once_ten_are_known(durations_ns, is_outlier):
    assert paced(*durations_ns).is_outlier is is_outlier


def test_interrupted_step_is_left_out():
    pace = paced(100)
    pace.interrupt()
    pace.step_ended(99_999)
    assert (pace.median_ns, Schedule(CapturePlan()).median_ns) == (100, None)


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
        schedule = paced(*[100] * known, plan=plan)
        length = schedule.due(step, now_ns=0)
        if length is not None:
            found[step] = length
    assert found == lengths


def test_requested_window_is_due_after_five_steps():
    early, late = paced(*[100] * 4), paced(*[100] * 5, plan=CapturePlan(length=6))
    early.ask(2)
    late.ask(None)
    assert (early.due(9, 0), late.due(9, 0)) == (None, 6)


def test_blocked_window_is_retried_with_growing_delay():
    schedule = Schedule(CapturePlan(steps=((3, 4),)))
    assert schedule.due(3, 0) == 2
    schedule.later(0)
    assert [schedule.due(4, NS_PER_S - 1), schedule.due(5, NS_PER_S)] == [None, 2]
    schedule.later(NS_PER_S)
    assert schedule.missed(12, 0) == ["a capture window that was due never opened: the run ended before it could"]
    assert [schedule.due(6, 3 * NS_PER_S - 1), schedule.due(7, 3 * NS_PER_S)] == [None, 2]
    schedule.done()
    assert schedule.due(8, 9 * NS_PER_S) is None


@pytest.mark.parametrize(
    ("plan", "steps", "opened", "sentences"),
    [
        (CapturePlan(steps=((3, 4),)), 12, 1, []),
        (CapturePlan(steps=((3, 4), (20, 21))), 12, 1, ["no capture of steps 20-21: the run ended after 12 steps"]),
        (CapturePlan(steps=((20, 20),)), 1, 0, ["no capture of step 20: the run ended after 1 step"]),
        (CapturePlan(steps=((9, 9),)), 12, 1, ["no capture of step 9: another window was open when it was due"]),
        (CapturePlan(every=20), 12, 0, ["no capture window was opened: the run ended after 12 steps, every=20 begins "
                                        "with step 20"]),
        (CapturePlan(every=5), 8, 0, ["no capture window was opened: the run ended after 8 steps, none opens before 10 "
                                      "steps are known"]),
        (CapturePlan(outlier=True), 80, 0, ["no capture window was opened: the run ended after 80 steps, no step was "
                                            "longer than 3 medians of 10 steps or more"]),
        (CapturePlan(every=20), 60, 2, []),
        (CapturePlan(), 12, 0, []),
        (CapturePlan(every=20), 0, 0, []),
    ],
)  # fmt: skip
def test_planned_windows_that_never_opened_are_reported(plan, steps, opened, sentences):
    schedule = Schedule(plan)
    schedule.due(3, now_ns=0)
    schedule.done()
    assert schedule.missed(steps, opened) == sentences


def test_dropped_window_is_due_again():
    schedule = Schedule(CapturePlan())
    schedule.later(0, steps=3)
    assert (schedule.is_idle, schedule.due(9, NS_PER_S)) == (False, 3)
