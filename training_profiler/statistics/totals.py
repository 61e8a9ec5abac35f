"""Everything summed up over a stretch of time: a flush interval, a report interval, an epoch, a run."""

from collections.abc import Sequence

import numpy as np

from training_profiler.statistics.histogram import Ints
from training_profiler.statistics.sections import SectionSums
from training_profiler.statistics.steps import Coupling, StepSums


class Totals:
    """Sums over ``begin_ns`` to ``end_ns`` of the recorder's clock.

    ``sections.self_ns`` adds up to ``end_ns - begin_ns`` exactly; its row 0 is the time of no section.
    """

    def __init__(self, begin_ns: int, first_step: int = 0) -> None:
        self.begin_ns = begin_ns
        self.end_ns = begin_ns
        self.first_step = first_step  # steps complete before this stretch
        self.sections = SectionSums()
        self.steps = StepSums()
        self.coupling = Coupling()
        self.first_fetch_ns: int | None = None  # the first wait for a batch, if it ended here
        self.dropped = 0  # exits without enter, enters given up
        self.unended = 0  # sections still open when their thread ended

    @property
    def wall_ns(self) -> int:
        """How long the stretch is."""
        return self.end_ns - self.begin_ns

    def add_steps(self, durations_ns: Sequence[int], self_ns: Ints, first_step: int) -> None:
        """Add complete steps, whose exclusive times are the rows of ``self_ns``."""
        self.steps.add(durations_ns)
        self.coupling.grow(self_ns.shape[1])
        self.coupling.add_steps(first_step, self_ns)
        self.sections.step_self_ns[: self_ns.shape[1]] += self_ns.sum(axis=0)

    def add(self, later: "Totals", durations_ns: Sequence[int]) -> None:
        """Add the stretch that follows this one; ``durations_ns`` are its steps."""
        self.end_ns = later.end_ns
        self.sections.add(later.sections)
        self.steps.add(durations_ns)
        self.coupling.add(later.coupling)
        if self.first_fetch_ns is None:
            self.first_fetch_ns = later.first_fetch_ns
        self.dropped += later.dropped
        self.unended += later.unended


def rows_for(sections: int) -> int:
    """Return how many rows to keep for so many sections; a multiple, so that arrays seldom grow."""
    return int(np.ceil((sections + 1) / 16)) * 16
