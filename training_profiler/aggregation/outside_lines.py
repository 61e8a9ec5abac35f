"""The samples of lines in no section outside of steps: before the first one, and after it.

The sampler is faster before the first step and in the first seconds after it, so a sample stands for different times.
"""

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from training_profiler.aggregation.lines import BEFORE_STEPS, IN_STEPS
from training_profiler.aggregation.totals import Totals
from training_profiler.sampling.location import Location

Samples = Counter[Location | None]


class OutsideSamples(NamedTuple):
    """Samples and times before and after the begin of the first step, in no section and in no step."""

    before: Samples
    before_ns: float
    after: Samples
    after_ns: float

    def evenly(self) -> Samples:
        """Return all samples, those of the side with more samples a second in a smaller number."""
        if not self.before or not self.after or self.before_ns <= 0 or self.after_ns <= 0:
            return self.before + self.after
        weight = self.before_ns / self.before.total() / (self.after_ns / self.after.total())
        if weight <= 1:
            return _scaled(self.before, weight) + self.after
        return self.before + _scaled(self.after, 1 / weight)


def _scaled(samples: Samples, weight: float) -> Samples:
    return Counter({location: round(count * weight) for location, count in samples.items()})


def outside_samples(totals: Totals, section_names: Collection[str]) -> OutsideSamples:
    """Return the samples outside of steps; before the first one, ``section_names`` may have some as well."""
    outside: Samples = Counter({location: count for (id, location), count in totals.lines.items() if id == 0})
    outside.subtract({location: count for (id, location), count in totals.lines.items() if id == IN_STEPS})
    before: Samples = Counter()
    in_sections = 0
    for (id, location), count in totals.lines.items():
        if id != BEFORE_STEPS:
            continue
        if location is not None and location.activity and location.activity in section_names:
            in_sections += count
        else:
            before[_as_everywhere(location)] += count
    before &= outside
    seen = before.total() + in_sections
    begun_ns = totals.loop_begin_ns
    outside_ns = int(totals.sections.self_ns[0]) - int(totals.sections.step_self_ns[0])
    startup_ns = 0 if begun_ns is None else max(0, begun_ns - totals.begin_ns)
    before_ns = min(float(outside_ns), startup_ns * before.total() / seen if seen else float(startup_ns))
    return OutsideSamples(before, before_ns, +outside - before, outside_ns - before_ns)


def _as_everywhere(location: Location | None) -> Location | None:
    """Return the location as it stands among the lines of the run, which do not say what was prepared."""
    if location is None or not location.activity:
        return location
    return location._replace(activity="") if location.file else None
