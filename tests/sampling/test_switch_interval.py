import sys

import pytest

from training_profiler.sampling import line_sampler as switch_interval
from training_profiler.sampling.line_sampler import HANDOVER_S, SwitchInterval

REAL_GET, REAL_SET = sys.getswitchinterval, sys.setswitchinterval


@pytest.fixture
def shortened():
    before_s = REAL_GET()
    REAL_SET(0.005)
    interval = SwitchInterval()
    interval.shorten()
    yield interval
    interval.restore()
    REAL_SET(before_s)


def test_program_reads_its_own_value_and_nothing_is_left_behind(shortened):
    assert sys.getswitchinterval() == pytest.approx(0.005)
    assert REAL_GET() == pytest.approx(HANDOVER_S)
    shortened.restore()
    assert (sys.getswitchinterval, sys.setswitchinterval) == (REAL_GET, REAL_SET)
    assert REAL_GET() == pytest.approx(0.005)
    shortened.restore()


def test_value_that_the_program_sets_holds(shortened):
    sys.setswitchinterval(0.002)
    assert (sys.getswitchinterval(), REAL_GET()) == (pytest.approx(0.002), pytest.approx(0.002))
    shortened.restore()
    assert REAL_GET() == pytest.approx(0.002)


def test_value_set_for_a_moment_and_back_stays_short(shortened):
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    sys.setswitchinterval(before_s)
    assert (sys.getswitchinterval(), REAL_GET()) == (pytest.approx(0.005), pytest.approx(HANDOVER_S))


@pytest.mark.parametrize("value", [0, -1.0, "long"])
def test_bad_value_raises_as_without_us(shortened, value):
    with pytest.raises((ValueError, TypeError)) as ours:
        sys.setswitchinterval(value)
    with pytest.raises(type(ours.value)) as pythons:
        REAL_SET(value)
    assert str(ours.value) == str(pythons.value)
    assert sys.getswitchinterval() == pytest.approx(0.005)


@pytest.mark.parametrize(("has_gil", "programs_s"), [(False, 0.005), (True, 1e-5)])
def test_interval_without_a_gil_and_a_shorter_one_of_the_program_are_left_alone(monkeypatch, has_gil, programs_s):
    monkeypatch.setattr(switch_interval, "has_gil", lambda: has_gil)
    before_s, interval = REAL_GET(), SwitchInterval()
    REAL_SET(programs_s)
    try:
        interval.shorten()
        assert sys.getswitchinterval is REAL_GET
        interval.restore()
        assert REAL_GET() == pytest.approx(programs_s)
    finally:
        REAL_SET(before_s)
