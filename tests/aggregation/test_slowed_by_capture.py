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
