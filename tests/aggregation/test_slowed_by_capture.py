from tests.support.recording import FakeRun
from training_profiler.aggregation.step_totals import CaptureAffectedSteps


def test_steps_are_slowed_from_begin_to_end():
    slowed = CaptureAffectedSteps()
    slowed.begin(5)
    slowed.end(8)
    assert slowed.among(before=0, count=10) == [4, 5, 6, 7]
    assert slowed.among(before=6, count=10) == [0, 1]
    assert slowed.among(before=8, count=10) == []


def test_steps_are_slowed_until_an_end_is_set():
    slowed = CaptureAffectedSteps()
    slowed.begin(3)
    assert slowed.among(before=0, count=4) == [2, 3]
    slowed.end(3)
    slowed.end(9)  # without a window
    slowed.begin(6)
    assert slowed.among(before=0, count=7) == [2, 5, 6]


def test_steps_are_settled_after_the_fifth_but_not_beside_a_capture_window():
    run = FakeRun()
    settled_ns = []
    for number in range(1, 9):
        run.step(forward_pass=0.5)
        if number == 5:
            fifth_ns = run.clock()
        if number == 6:
            run.accumulator.slowed_by_capture.begin(7)
        if number == 7:
            run.accumulator.slowed_by_capture.end(8)
        if number in (4, 6, 7, 8):
            run.drain()
            settled_ns.append(run.accumulator.settled_ns())
            run.accumulator.pop_totals()
    assert settled_ns == [None, fifth_ns, None, None]
    run.step(forward_pass=0.5)
    run.drain()
    assert run.accumulator.settled_ns() == fifth_ns
