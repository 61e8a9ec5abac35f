"""The steps whose spans are kept one by one: the first, those that took far longer than the others, and the last."""

from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from msgspec import structs

from training_profiler.aggregation.span_matching import EndedSpans
from training_profiler.aggregation.step_totals import SETTLED_AFTER
from training_profiler.base.units import NS_PER_US
from training_profiler.device.device_lanes import HeldStep, PlacedSpan
from training_profiler.model.series import SLOW, Lane, StepLanes, Why
from training_profiler.statistics.arrays import Ints
from training_profiler.statistics.trend import median

FIRST: Final[Why] = "first"
LAST: Final[Why] = "last"
MOST_SPANS: Final = 400  # of one step: the longest, which take some 6 kB of the journal
BUDGET: Final = 8_000  # spans of all slow steps together; the others have 2,000 at most
KEPT: Final = 4_000  # spans of a step that goes on, of each part of them
MOST_PARTS: Final = 16  # in which spans of a step that goes on are kept
AFTER_WARMUP, AT_END = 2, 2  # steps
MOST_SLOW: Final = 16  # a step is written if it is slower than one of so many that were
SLOW_RATIO: Final = 1.5  # to the median of the steps before; the page has the shorter ones in its chart of all steps
COMPARED: Final = 101  # steps that the median is of


class StepBounds(NamedTuple):
    """Where a step lies on the clock of the training thread."""

    number: int  # counted from 1
    begin_ns: int
    end_ns: int
    duration_ns: int  # without time outside steps that lies between


THREADS, IDS, BEGINS, ENDS = range(4)  # columns of spans, one array a thread and batch: int64, shape (4, spans)
NUMBERS, DURATIONS = 0, 3  # columns of steps: the fields of ``StepBounds``
_NONE: Final = np.empty((4, 0), np.int64)


Lanes = Mapping[str, Sequence[PlacedSpan]]  # of devices, by their names
NO_LANES: Final[Mapping[int, Lanes]] = MappingProxyType({})


def with_lanes(step: StepLanes[int], lanes: Lanes) -> StepLanes[int]:
    """Return the step with the spans of devices as well, each device by its name after the threads."""
    more = [_lane(name, step.begin_ns, np.array(spans, np.int64).T) for name, spans in lanes.items()]
    return structs.replace(step, lanes=[*step.lanes, *more])


def _lane(thread: str, begin_ns: int, spans: Ints) -> Lane[int]:
    # Both ends are rounded in the same way, so what is nested stays nested.
    ids, *times_ns = spans
    return Lane(thread, ids.tolist(), *(((column - begin_ns) // NS_PER_US).tolist() for column in times_ns))


class StepSpans:
    """Chooses steps and keeps their spans, batch by batch. Memory and what is written are bounded.

    Spans that end after the batch in which their step ends, which only those of other threads can, are not seen.
    """

    def __init__(self) -> None:
        self._spans: list[Ints] = []  # of this batch, and of the step that goes on
        self._names: dict[int, str] = {}  # of threads
        self._ended = _NONE  # steps in this batch
        self._slowed: Sequence[int] = ()  # which of them a capture slowed
        self._begun_ns: int | None = None  # begin of the step that goes on
        self._first: list[StepLanes[int]] = []
        self._slowest: StepLanes[int] | None = None  # since the last ``pop``
        self._last: list[tuple[StepBounds, list[Ints]]] = []  # with the spans of their batch
        self._written: set[int] = set()
        self._spent = 0  # of the budget
        self._slowest_ns: list[int] = []  # durations of the slowest steps that were written, ascending
        self._before: deque[int] = deque(maxlen=COMPARED)  # durations of the steps before
        self._slow_ns = 0.0  # shorter steps are not slow

    def add_steps(
        self, ends_ns: Ints, rows: Ints, from_ns: int, first: int, durations_ns: Ints, slowed: Sequence[int]
    ) -> None:
        """Add the steps that end in a batch.

        Args:
            ends_ns: of the batch's pieces; see ``Cuts``.
            rows: of the pieces: their step, counted from the first of the batch; -1 for none.
            from_ns: begin of the first piece.
            first: number of steps before the batch.
            durations_ns: of the steps.
            slowed: which of them a capture slowed.
        """
        begins_ns = np.concatenate([[from_ns], ends_ns[:-1]])
        if self._begun_ns is not None and rows[0] == 0:
            begins_ns[0] = self._begun_ns
        inside = np.flatnonzero(rows >= 0)
        count = len(durations_ns)
        at = np.searchsorted(rows[inside], np.arange(count + 2))  # the step that goes on is the one after these
        begin_ns, end_ns = begins_ns[inside[at[:count]]], ends_ns[inside[at[1 : count + 1] - 1]]
        self._ended = np.stack((np.arange(first + 1, first + 1 + count), begin_ns, end_ns, durations_ns))
        self._slowed = slowed
        self._begun_ns = int(begins_ns[inside[at[count]]]) if at[count] < at[count + 1] else None

    def add_spans(self, thread_id: int, spans: EndedSpans) -> None:
        """Add the spans of a thread that ended in a batch, the training thread's first."""
        if len(spans.ids):
            self._spans.append(np.stack((np.full_like(spans.ids, thread_id), spans.ids, spans.begin_ns, spans.end_ns)))

    def end_batch(self, names: Mapping[int, str], warmup_steps: int | None, until_ns: int) -> None:
        """Choose from the steps of a batch, and keep what the step that goes on may need. ``names``: its threads'."""
        may_be_written = (*self._spans, *(spans for _, kept in self._last for spans in kept))  # threads may have ended
        threads = {int(spans[THREADS, 0]) for spans in may_be_written}
        self._names = {**{id: self._names.get(id, "") for id in threads}, **names}
        ended, self._ended = self._ended, _NONE
        count = ended.shape[1]
        settled = SETTLED_AFTER if warmup_steps is None else warmup_steps
        for number in (1, *range(settled + 1, settled + 1 + AFTER_WARMUP)):
            for row in np.flatnonzero(ended[NUMBERS] == number).tolist():
                self._first.append(self._recorded(_bounds(ended, row), self._spans, FIRST))
        may_be_slow = ended[NUMBERS] > settled
        may_be_slow[list(self._slowed)] = False
        longest_ns = self._slow_ns if self._slowest is None else self._slowest.duration_ns
        durations_ns = np.where(may_be_slow, ended[DURATIONS], -1)
        if durations_ns.max(initial=-1) > longest_ns:
            self._slowest = self._recorded(_bounds(ended, int(durations_ns.argmax())), self._spans, SLOW)
        self._last += [(_bounds(ended, row), self._spans) for row in range(max(0, count - AT_END), count)]
        del self._last[:-AT_END]
        since_ns = until_ns if self._begun_ns is None else self._begun_ns
        going_on = [kept for each in self._spans if (kept := _between(each, since_ns, until_ns + 1)).size]
        if len(going_on) > MOST_PARTS:
            by_thread: dict[int, list[Ints]] = {}
            for each in going_on:
                by_thread.setdefault(int(each[THREADS, 0]), []).append(each)
            going_on = [np.concatenate(parts, axis=1) for parts in by_thread.values()]
        self._spans, self._slowed = [_longest(each, KEPT) for each in going_on], ()

    def held_steps(self) -> list[HeldStep]:
        """Return the steps that may be written."""
        steps = [*self._first, *filter(None, [self._slowest])]
        held = [HeldStep(each.number, each.begin_ns, each.end_ns) for each in steps]
        return held + [HeldStep(*bounds[:3]) for bounds, _ in self._last]

    def pop(self, step_ns: Sequence[int], is_last: bool = False) -> list[StepLanes[int]]:
        """Return the steps to be written, in order.

        Args:
            step_ns: durations of the steps since the last call.
            is_last: whether the run ends.
        """
        self._before.extend(step_ns[-COMPARED:])
        found, self._first = self._first, []
        slowest, self._slowest = self._slowest, None
        if len(self._before) >= 5:
            self._slow_ns = SLOW_RATIO * median(self._before)
        if slowest is not None and slowest.number not in self._written and self._is_worth_it(slowest):
            found.append(slowest)
        if is_last:
            found += [self._recorded(*last, LAST) for last in self._last]
        steps = {step.number: step for step in reversed(found) if step.number not in self._written}
        self._written.update(steps)
        return [steps[number] for number in sorted(steps)]

    def _is_worth_it(self, slow: StepLanes[int]) -> bool:
        """Return whether a slow step is to be written: it is one of the slowest so far, and there is room for it."""
        if not self._slow_ns or slow.duration_ns < self._slow_ns:
            return False
        spent = self._spent + 1 + sum(len(lane.sections) for lane in slow.lanes)
        if spent > BUDGET or (len(self._slowest_ns) == MOST_SLOW and slow.duration_ns <= self._slowest_ns[0]):
            return False
        self._spent = spent
        self._slowest_ns = sorted([*self._slowest_ns, slow.duration_ns])[-MOST_SLOW:]
        return True

    def _recorded(self, bounds: StepBounds, spans: Sequence[Ints], why: Why) -> StepLanes[int]:
        number, begin_ns, end_ns, duration_ns = bounds
        within = np.concatenate([_NONE, *(_between(each, begin_ns, end_ns) for each in spans)], axis=1)
        kept = _longest(within, MOST_SPANS)
        lanes = [
            _lane(self._label(thread), begin_ns, kept[IDS:, kept[THREADS] == thread])
            for thread in dict.fromkeys(kept[THREADS].tolist())
        ]
        return StepLanes(number, why, begin_ns, end_ns, duration_ns, within.shape[1] - kept.shape[1], lanes)

    def _label(self, thread_id: int) -> str:
        name = self._names[thread_id]
        is_alone = sum(other == name for other in self._names.values()) == 1
        return name if is_alone else f"{name} {thread_id}"


def _bounds(steps: Ints, row: int) -> StepBounds:
    return StepBounds(*steps[:, row].tolist())


def _between(spans: Ints, from_ns: int, until_ns: int) -> Ints:
    """Return the spans that have a part in this time."""
    return spans[:, (spans[BEGINS] < until_ns) & (spans[ENDS] > from_ns)]


def _longest(spans: Ints, most: int) -> Ints:
    """Return so many spans of all threads together: the longest."""
    if spans.shape[1] <= most:
        return spans
    return spans[:, np.sort(np.argpartition(spans[BEGINS] - spans[ENDS], most)[:most])]
