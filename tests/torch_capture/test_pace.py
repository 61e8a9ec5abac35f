from training_profiler.torch_capture.schedule import RecentStepTimes


def paced(*durations_ns: int) -> RecentStepTimes:
    pace, now_ns = RecentStepTimes(), 0
    pace.step_ended(now_ns)
    for duration_ns in durations_ns:
        now_ns += duration_ns
        pace.step_ended(now_ns)
    return pace


def test_a_step_of_over_three_medians_is_an_outlier_once_ten_are_known():
    assert paced(*[100] * 10, 301).is_outlier


def test_step_of_three_medians_is_not_an_outlier():
    assert not paced(*[100] * 10, 300).is_outlier


def test_nothing_is_an_outlier_among_the_first_ten():
    assert not paced(*[100] * 9, 10_000).is_outlier


def test_step_after_an_outlier_is_not_an_outlier():
    assert not paced(*[100] * 10, 301, 100).is_outlier


def test_interrupted_step_is_left_out():
    pace = paced(100, 100)
    pace.interrupt()
    pace.step_ended(99_999)
    assert (pace.steps, pace.median_ns) == (2, 100)


def test_median_without_steps_is_none():
    assert RecentStepTimes().median_ns is None
