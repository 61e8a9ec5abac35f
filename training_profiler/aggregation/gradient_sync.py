"""Attributes the exposed part of DDP's gradient sync to ``synchronization`` instead of ``backward_pass``."""

from collections import deque

import numpy as np

from training_profiler.aggregation.step_totals import FIRST_STEPS
from training_profiler.aggregation.totals import Totals, rows_for
from training_profiler.recording.gradient_sync import GradientSyncTotals
from training_profiler.recording.section_names import SectionNames
from training_profiler.tables.sections import BACKWARD_PASS, SYNCHRONIZATION


class GradientSyncAttribution:
    """Moves exposed gradient sync from backward passes to ``synchronization`` nested in them.

    Both are measured on the host's clock. DDP may report time for a step that has not ended. The part that exceeds
    this interval is carried into the next one, and moved in sums that contain both (see ``move_late``).
    """

    def __init__(self, names: SectionNames) -> None:
        self._names = names
        self._waiting_ns = 0  # still to move
        self._spans = 0
        self._moved_ns = 0  # moved, but not yet attributed to a step
        self._early: deque[tuple[int, int]] = deque()  # (one of the first steps, ns), often known late

    def attribute(self, totals: Totals, synced: GradientSyncTotals, has_steps: bool) -> None:
        """Move the reported time in ``totals``, if the host waits for it."""
        if not synced.is_on_host:
            return
        late_ns, self._waiting_ns = self._waiting_ns, synced.exposed_ns
        self._spans += synced.exchanges
        self._early.extend((step, ns) for step, ns in synced.of_steps if ns and step < FIRST_STEPS)
        if not late_ns and not self._waiting_ns and not self._early:
            return
        backward = next((id for id, name in list(self._names.names.items()) if name == BACKWARD_PASS), None)
        if backward is None:  # the section around the backward passes is unknown
            self._waiting_ns = self._spans = 0
            self._early.clear()
            return
        synchronization = self._names.id_of(SYNCHRONIZATION)
        totals.sections.grow(rows_for(len(self._names.names)))
        totals.late_exchange_ns = late_ns
        self._moved_ns += late_ns
        self._move(totals, backward, synchronization, has_steps)
        self._add_early(totals, synchronization)

    def _move(self, totals: Totals, backward: int, synchronization: int, has_steps: bool) -> None:
        sections = totals.sections
        own = [sections.self_ns, sections.step_self_ns] if has_steps else [sections.self_ns]
        whole = [sections.total_ns, sections.step_total_ns] if has_steps else [sections.total_ns]
        # An open step may turn out not to be a step. Most time of a step that began earlier may be in earlier totals.
        moved_ns = min(self._waiting_ns, *(int(column[backward]) for column in own))
        if moved_ns <= 0:
            return
        self._waiting_ns -= moved_ns
        self._moved_ns += moved_ns
        for column in own:
            column[backward] -= moved_ns
        for column in own + whole:
            column[synchronization] += moved_ns
        edge = (backward, synchronization)
        sections.count[synchronization] += self._spans
        sections.parents[edge] = sections.parents.get(edge, 0) + self._spans
        self._spans = 0

    def _add_early(self, totals: Totals, synchronization: int) -> None:
        """Add the moved time of the run's first steps one by one: they may turn out to be warm-up."""
        while self._early and self._moved_ns:
            step, ns = self._early.popleft()
            moved_ns = min(ns, self._moved_ns)
            self._moved_ns -= moved_ns
            if moved_ns < ns:
                self._early.appendleft((step, ns - moved_ns))
            totals.add_early(*(np.array([value], np.int64) for value in (step, synchronization, moved_ns)))


def move_late(sums: Totals, names: SectionNames, later: Totals) -> None:
    """Move gradient sync that ``later`` reports for backward passes before it, if ``sums`` contains these too."""
    ns = later.late_exchange_ns if sums.begin_ns < later.begin_ns else 0
    if not ns:
        return
    ids = {name: id for id, name in list(names.names.items()) if name in (BACKWARD_PASS, SYNCHRONIZATION)}
    if len(ids) < 2 or max(ids.values()) >= sums.sections.rows:
        return
    sections = sums.sections
    backward, synchronization = ids[BACKWARD_PASS], ids[SYNCHRONIZATION]
    moved_ns = min(ns, int(sections.self_ns[backward]), int(sections.step_self_ns[backward]))
    if moved_ns <= 0:
        return
    for own in (sections.self_ns, sections.step_self_ns):
        own[backward] -= moved_ns
    for column in (sections.self_ns, sections.step_self_ns, sections.total_ns, sections.step_total_ns):
        column[synchronization] += moved_ns
