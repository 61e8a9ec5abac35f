"""Samples of lines in no section, before the first step and after it."""

from collections import Counter

import pytest

from training_profiler.aggregation.lines import BEFORE_STEPS, IN_STEPS
from training_profiler.aggregation.summary import outside_samples
from training_profiler.aggregation.totals import Totals
from training_profiler.base.units import NS_PER_S
from training_profiler.model.location import Location

IMPORT = Location("train.py", 1, "<module>")
NEGATIVES = Location("train.py", 8, "negatives")
LOOP = Location("train.py", 20, "<module>")


def totals_of(lines, startup_s=10, outside_s=30, steps_s=20):
    totals = Totals(0, 0)
    totals.end_ns = (outside_s + steps_s) * NS_PER_S
    totals.loop_begin_ns = startup_s * NS_PER_S
    totals.sections.grow(1)
    totals.sections.self_ns[0] = (outside_s + steps_s) * NS_PER_S
    totals.sections.step_self_ns[0] = steps_s * NS_PER_S
    totals.lines.update(lines)
    return totals


def test_samples_are_divided_at_the_first_step():
    found = outside_samples(
        totals_of(
            {
                (0, IMPORT): 100,
                (0, NEGATIVES): 50,
                (0, LOOP): 20,
                (IN_STEPS, LOOP): 20,
                (BEFORE_STEPS, IMPORT._replace(activity="imports")): 100,
                (BEFORE_STEPS, NEGATIVES._replace(activity="data set")): 10,
            }
        ),
        {"", "forward_pass"},
    )
    assert found.before == Counter({IMPORT: 100, NEGATIVES: 10})
    assert found.after == Counter({NEGATIVES: 40})
    assert (found.before_ns, found.after_ns) == (10 * NS_PER_S, 20 * NS_PER_S)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(100, 40, (20, 40)), (10, 40, (10, 20)), (10, 20, (10, 20)), (0, 20, (0, 20)), (10, 0, (10, 0))],
    ids=["more before", "more after", "evenly", "none before", "none after"],
)
def test_a_sample_stands_for_the_same_time_on_both_sides(before, after, expected):
    lines = {(0, IMPORT): before, (0, NEGATIVES): after, (BEFORE_STEPS, IMPORT): before}
    even = outside_samples(totals_of(lines), set()).evenly()
    assert (even[IMPORT], even[NEGATIVES]) == expected


def test_sections_before_the_first_step_are_not_in_its_time():
    lines = {(0, IMPORT): 30, (BEFORE_STEPS, IMPORT): 30, (BEFORE_STEPS, LOOP._replace(activity="my setup")): 10}
    found = outside_samples(totals_of(lines), {"my setup"})
    assert found.before == Counter({IMPORT: 30})
    assert found.before_ns == pytest.approx(7.5 * NS_PER_S)


def test_without_samples_before_the_first_step_its_time_is_known():
    found = outside_samples(totals_of({(0, NEGATIVES): 40}), set())
    assert (found.before_ns, found.after_ns) == (10 * NS_PER_S, 20 * NS_PER_S)
