"""Where steps lie on a rank's clock. The journal has their durations and order, and bounds of their positions."""

from typing import NamedTuple

from training_profiler.snapshot.series import RankSeries, Stretch


class PlacedStep(NamedTuple):
    """A step whose position is known to within its own duration."""

    number: int  # counted from 1
    begin_ns: int  # the earliest possible
    duration_ns: int
    later_by_ns: int  # it began at most this much later


def placed_steps(series: RankSeries) -> list[PlacedStep]:
    """Return the steps whose position is known.

    All steps of a stretch ended in it, steps follow each other, and a first step begins with its epoch or its loop.
    Between two steps there is only time outside steps, of which each stretch has the sum.
    """
    placed: list[PlacedStep] = []
    least_ns = most_ns = None
    for stretch in series.stretches:
        anchor_ns = _anchor(stretch)
        if anchor_ns is not None:
            least_ns = most_ns = anchor_ns
        if not len(stretch.steps_ns):
            most_ns = None if most_ns is None else most_ns + stretch.outside_ns
            continue
        total_ns = sum(stretch.steps_ns)
        low_ns = stretch.begin_ns - stretch.steps_ns[0]
        high_ns = stretch.end_ns - total_ns
        low_ns = low_ns if least_ns is None else max(least_ns, low_ns)
        high_ns = high_ns if most_ns is None else min(high_ns, most_ns + stretch.outside_ns)
        if high_ns < low_ns:  # the journal contradicts itself, or a part of it is missing
            least_ns = most_ns = None
            continue
        at_ns = low_ns
        for number, duration_ns in enumerate(stretch.steps_ns, start=stretch.first_step + 1):
            if high_ns - low_ns <= duration_ns:
                placed.append(PlacedStep(number, at_ns, duration_ns, high_ns - low_ns))
            at_ns += duration_ns
        least_ns, most_ns = at_ns, high_ns + total_ns
    return placed


def _anchor(stretch: Stretch) -> int | None:
    if stretch.epoch_begin_ns is not None:
        return stretch.epoch_begin_ns
    return stretch.loop_begin_ns
