"""Books what DDP says of its exchange of gradients, which is part of backward passes, as time of its own."""

from collections import deque
from typing import Final

import numpy as np

from training_profiler.record.exchange import Exchanged
from training_profiler.record.names import SectionNames
from training_profiler.statistics.steps import FIRST_STEPS
from training_profiler.statistics.totals import Totals, rows_for

BACKWARD: Final = "backward_pass"
SYNCHRONIZATION: Final = "synchronization"


class ExchangeBooking:
    """Moves the exposed part of exchanges from backward passes to ``synchronization`` nested in them.

    Both are on the host's clock there. What is told of the last step may be of a backward pass in earlier totals, or
    of a step that has not ended: more than these totals have is left for the next.
    """

    def __init__(self, names: SectionNames) -> None:
        self._names = names
        self._waiting: deque[tuple[int | None, int]] = deque()  # (one of the first steps, ns) still to be moved
        self._spans = 0

    def book(self, totals: Totals, exchanged: Exchanged, has_steps: bool) -> None:
        """Book it in ``totals``, where gradients were computed on the host."""
        if not exchanged.is_on_host:
            return
        early = [(step, ns) for step, ns in exchanged.of_steps if ns and step < FIRST_STEPS]
        rest_ns = exchanged.exposed_ns - sum(ns for _, ns in early)
        self._waiting.extend(early)
        if rest_ns > 0:
            self._waiting.append((None, rest_ns))
        self._spans += exchanged.exchanges
        if not self._waiting:
            return
        backward = next((id for id, name in list(self._names.names.items()) if name == BACKWARD), None)
        if backward is None:  # which section the backward passes are part of is not known
            self._waiting.clear()
            self._spans = 0
            return
        synchronization = self._names.id_of(SYNCHRONIZATION)
        totals.sections.grow(rows_for(len(self._names.names)))
        self._move(totals, backward, synchronization, has_steps)

    def _move(self, totals: Totals, backward: int, synchronization: int, has_steps: bool) -> None:
        sections = totals.sections
        own = [sections.self_ns, sections.step_self_ns] if has_steps else [sections.self_ns]
        whole = [sections.total_ns, sections.step_total_ns] if has_steps else [sections.total_ns]
        # Of a step under way it is not known yet whether it will be one, and of one that began in earlier totals most
        # of the time may be in those.
        left_ns = min(int(column[backward]) for column in own)
        if left_ns <= 0:
            return
        while self._waiting and left_ns > 0:
            step, ns = self._waiting.popleft()
            moved_ns = min(ns, left_ns)
            left_ns -= moved_ns
            if moved_ns < ns:
                self._waiting.appendleft((step, ns - moved_ns))
            for column in own:
                column[backward] -= moved_ns
            for column in own + whole:
                column[synchronization] += moved_ns
            if step is not None:
                totals.add_early(*(np.array([value], np.int64) for value in (step, synchronization, moved_ns)))
        edge = (backward, synchronization)
        sections.count[synchronization] += self._spans
        sections.parents[edge] = sections.parents.get(edge, 0) + self._spans
        self._spans = 0
