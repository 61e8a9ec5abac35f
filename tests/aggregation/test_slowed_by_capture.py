from training_profiler.aggregation.step_totals import CaptureAffectedSteps


def test_steps_are_slowed_from_begin_to_end():
    disturbed = CaptureAffectedSteps()
    disturbed.begin(5)
    disturbed.end(8)
    assert disturbed.among(before=0, count=10) == [4, 5, 6, 7]
    assert disturbed.among(before=6, count=10) == [0, 1]
    assert disturbed.among(before=8, count=10) == []


def test_steps_are_slowed_until_an_end_is_set():
    disturbed = CaptureAffectedSteps()
    disturbed.begin(3)
    assert disturbed.among(before=0, count=4) == [2, 3]
    disturbed.end(3)
    disturbed.end(9)  # of no window
    disturbed.begin(6)
    assert disturbed.among(before=0, count=7) == [2, 5, 6]
