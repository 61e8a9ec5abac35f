"""Books what DDP says of its exchange of gradients, which is part of backward passes, as time of its own."""

from collections import deque

import numpy as np

from training_profiler.aggregation.step_totals import FIRST_STEPS
from training_profiler.aggregation.totals import Totals, rows_for
from training_profiler.recording.gradient_sync import GradientSyncTotals
from training_profiler.recording.known_sections import BACKWARD_PASS, SYNCHRONIZATION
from training_profiler.recording.section_names import SectionNames


class GradientSyncAttribution:
    """Moves the exposed part of exchanges from backward passes to ``synchronization`` nested in them.

    Both are on the host's clock there. What is told of the last step may be of a step that has not ended: more than
    these totals have is told with the next, and moved in the sums that both are part of (``move_late``).
    """

    def __init__(self, names: SectionNames) -> None:
        self._names = names
        self._waiting_ns = 0  # still to be moved
        self._spans = 0
        self._moved_ns = 0  # of steps that are not told
        self._early: deque[tuple[int, int]] = deque()  # (one of the first steps, ns): told, often later than the sums

    def book(self, totals: Totals, exchanged: GradientSyncTotals, has_steps: bool) -> None:
        """Book it in ``totals``, where gradients were computed on the host."""
        if not exchanged.is_on_host:
            return
        late_ns, self._waiting_ns = self._waiting_ns, exchanged.exposed_ns
        self._spans += exchanged.exchanges
        self._early.extend((step, ns) for step, ns in exchanged.of_steps if ns and step < FIRST_STEPS)
        if not late_ns and not self._waiting_ns and not self._early:
            return
        backward = next((id for id, name in list(self._names.names.items()) if name == BACKWARD_PASS), None)
        if backward is None:  # which section the backward passes are part of is not known
            self._waiting_ns = self._spans = 0
            self._early.clear()
            return
        synchronization = self._names.id_of(SYNCHRONIZATION)
        totals.sections.grow(rows_for(len(self._names.names)))
        totals.late_exchange_ns = late_ns
        self._moved_ns += late_ns
        self._move(totals, backward, synchronization, has_steps)
        self._tell_early(totals, synchronization)

    def _move(self, totals: Totals, backward: int, synchronization: int, has_steps: bool) -> None:
        sections = totals.sections
        own = [sections.self_ns, sections.step_self_ns] if has_steps else [sections.self_ns]
        whole = [sections.total_ns, sections.step_total_ns] if has_steps else [sections.total_ns]
        # Of a step under way it is not known yet whether it will be one, and of one that began in earlier totals most
        # of the time may be in those.
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

    def _tell_early(self, totals: Totals, synchronization: int) -> None:
        """Tell which of the moved time was in the first steps, for these may be warm-up."""
        while self._early and self._moved_ns:
            step, ns = self._early.popleft()
            told_ns = min(ns, self._moved_ns)
            self._moved_ns -= told_ns
            if told_ns < ns:
                self._early.appendleft((step, ns - told_ns))
            totals.add_early(*(np.array([value], np.int64) for value in (step, synchronization, told_ns)))


def move_late(sums: Totals, names: SectionNames, later: Totals) -> None:
    """Move exchange that ``later``, now part of ``sums``, tells of backward passes before it, where these are too."""
    ns = later.late_exchange_ns if sums.begin_ns < later.begin_ns else 0
    ids = {name: id for id, name in list(names.names.items()) if name in (BACKWARD_PASS, SYNCHRONIZATION)}
    if not ns or len(ids) < 2 or max(ids.values()) >= sums.sections.rows:
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
