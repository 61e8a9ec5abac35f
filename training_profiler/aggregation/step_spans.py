"""The steps whose spans are kept one by one: the first, those that took far longer than the others, and the last."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from training_profiler.aggregation.span_matching import EndedSpans
from training_profiler.aggregation.step_totals import SETTLED_AFTER
from training_profiler.device.device_lanes import HeldStep, PlacedSpan
from training_profiler.model.series import SLOW, Why
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


class ThreadSpans(NamedTuple):
    """Spans of one thread, in no particular order unless ``are_sorted``: then begins and ends ascend."""

    thread_id: int
    ids: Ints
    begin_ns: Ints
    end_ns: Ints
    are_sorted: bool = False

    def where(self, rows: Ints) -> "ThreadSpans":
        """Return some of the spans."""
        return ThreadSpans(self.thread_id, self.ids[rows], self.begin_ns[rows], self.end_ns[rows], self.are_sorted)

    def between(self, from_ns: int, until_ns: int) -> "ThreadSpans":
        """Return the spans that have a part in this time."""
        if not self.are_sorted:  # of most batches these are few
            return self.where(np.flatnonzero((self.begin_ns < until_ns) & (self.end_ns > from_ns)))
        rows = slice(self.end_ns.searchsorted(from_ns, "right"), self.begin_ns.searchsorted(until_ns))
        ids, begin_ns, end_ns = (column[rows].copy() for column in (self.ids, self.begin_ns, self.end_ns))
        return self._replace(ids=ids, begin_ns=begin_ns, end_ns=end_ns)  # copies, which do not keep the whole batch


class RecordedStep(NamedTuple):
    """A step with its spans. Those of other threads may begin before it and end after it."""

    bounds: StepBounds
    why: Why
    threads: dict[str, ThreadSpans]  # the training thread first
    left_out: int  # spans, the shortest

    def with_lanes(self, lanes: Mapping[str, Sequence[PlacedSpan]]) -> "RecordedStep":
        """Return the step with the spans of devices as well, each device by its name after the threads."""
        threads = dict(self.threads)
        for name, spans in lanes.items():
            ids, begin_ns, end_ns = (np.array(column, np.int64) for column in zip(*spans, strict=True))
            threads[name] = ThreadSpans(-1, ids, begin_ns, end_ns)  # in place of a thread's id
        return self._replace(threads=threads)


class _Steps(NamedTuple):
    """The steps that end in a batch, a row each."""

    first: int  # number of steps before
    begin_ns: Ints
    end_ns: Ints
    durations_ns: Ints
    slowed: Sequence[int]  # rows of those that a capture slowed

    def at(self, row: int) -> StepBounds:
        times_ns = (int(column[row]) for column in (self.begin_ns, self.end_ns, self.durations_ns))
        return StepBounds(self.first + row + 1, *times_ns)

    def slowest_after(self, number: int) -> StepBounds | None:
        """Return the step that took longest of those after that one; None without any."""
        durations_ns = self.durations_ns
        if self.slowed:
            durations_ns = durations_ns.copy()
            durations_ns[list(self.slowed)] = -1
        from_row = max(0, number - self.first)
        if from_row >= len(durations_ns):
            return None
        row = from_row + int(durations_ns[from_row:].argmax())
        return self.at(row) if durations_ns[row] >= 0 else None


_NONE: Final = np.empty(0, np.int64)
_NO_STEPS: Final = _Steps(0, _NONE, _NONE, _NONE, ())


class StepSpans:
    """Chooses steps and keeps their spans, batch by batch. Memory and what is written are bounded.

    Spans that end after the batch in which their step ends, which only those of other threads can, are not seen.
    """

    def __init__(self) -> None:
        self._spans: list[ThreadSpans] = []  # of this batch, and of the step that goes on
        self._names: dict[int, str] = {}  # of threads
        self._ended = _NO_STEPS  # in this batch
        self._begun_ns: int | None = None  # begin of the step that goes on
        self._first: list[RecordedStep] = []
        self._slowest: RecordedStep | None = None  # since the last ``pop``
        self._last: list[tuple[StepBounds, list[ThreadSpans]]] = []  # with the spans of their batch
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
        self._ended = _Steps(first, begin_ns, end_ns, durations_ns, slowed)
        self._begun_ns = int(begins_ns[inside[at[count]]]) if at[count] < at[count + 1] else None

    def add_spans(self, thread_id: int, spans: EndedSpans) -> None:
        """Add the spans of a thread that ended in a batch, the training thread's first."""
        leaves = spans.leaf_count
        for part, are_sorted in ((slice(0, leaves), True), (slice(leaves, None), False)):
            ids = spans.ids[part]
            if len(ids):
                columns = (ids, spans.begin_ns[part], spans.end_ns[part])
                self._spans.append(ThreadSpans(thread_id, *columns, are_sorted=are_sorted))

    def end_batch(self, names: Mapping[int, str], warmup_steps: int | None, until_ns: int) -> None:
        """Choose from the steps of a batch, and keep what the step that goes on may need. ``names``: its threads'."""
        may_be_written = (*self._spans, *(spans for _, kept in self._last for spans in kept))  # threads may have ended
        known = {spans.thread_id: self._names.get(spans.thread_id, "") for spans in may_be_written}
        self._names = {**known, **names}
        ended, self._ended = self._ended, _NO_STEPS
        count = len(ended.durations_ns)
        settled = SETTLED_AFTER if warmup_steps is None else warmup_steps
        for number in (1, *range(settled + 1, settled + 1 + AFTER_WARMUP)):
            if 0 < number - ended.first <= count:
                self._first.append(self._recorded(ended.at(number - ended.first - 1), self._spans, FIRST))
        slowest = ended.slowest_after(settled)
        longest_ns = self._slow_ns if self._slowest is None else self._slowest.bounds.duration_ns
        if slowest is not None and slowest.duration_ns > longest_ns:
            self._slowest = self._recorded(slowest, self._spans, SLOW)
        self._last += [(ended.at(row), self._spans) for row in range(max(0, count - AT_END), count)]
        del self._last[:-AT_END]
        since_ns = until_ns if self._begun_ns is None else self._begun_ns
        going_on = [
            each for each in self._spans if (each.end_ns[-1] if each.are_sorted else each.end_ns.max()) > since_ns
        ]
        kept = [spans for each in going_on if len((spans := each.between(since_ns, until_ns + 1)).ids)]
        self._spans = [_longest([spans], KEPT)[0] for spans in (_merged(kept) if len(kept) > MOST_PARTS else kept)]

    def held_steps(self) -> list[HeldStep]:
        """Return the steps that may be written."""
        slowest = [] if self._slowest is None else [self._slowest.bounds]
        bounds = [*(step.bounds for step in self._first), *slowest, *(bounds for bounds, _ in self._last)]
        return [HeldStep(each.number, each.begin_ns, each.end_ns) for each in bounds]

    def pop(self, step_ns: Sequence[int], is_last: bool = False) -> list[RecordedStep]:
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
        if slowest is not None and slowest.bounds.number not in self._written and self._is_worth_it(slowest):
            found.append(slowest)
        if is_last:
            found += [self._recorded(*last, LAST) for last in self._last]
        steps = {step.bounds.number: step for step in reversed(found) if step.bounds.number not in self._written}
        self._written.update(steps)
        return sorted(steps.values(), key=lambda step: step.bounds.number)

    def _is_worth_it(self, slow: RecordedStep) -> bool:
        """Return whether a slow step is to be written: it is one of the slowest so far, and there is room for it."""
        duration_ns = slow.bounds.duration_ns
        if not self._slow_ns or duration_ns < self._slow_ns:
            return False
        spent = self._spent + 1 + sum(len(each.ids) for each in slow.threads.values())
        if spent > BUDGET or (len(self._slowest_ns) == MOST_SLOW and duration_ns <= self._slowest_ns[0]):
            return False
        self._spent = spent
        self._slowest_ns = sorted([*self._slowest_ns, duration_ns])[-MOST_SLOW:]
        return True

    def _recorded(self, bounds: StepBounds, spans: Sequence[ThreadSpans], why: Why) -> RecordedStep:
        within = [each.between(bounds.begin_ns, bounds.end_ns) for each in spans]
        kept = _longest(within, MOST_SPANS)
        left_out = sum(len(each.ids) for each in within) - sum(len(each.ids) for each in kept)
        threads = {self._label(each.thread_id): each for each in _merged([each for each in kept if len(each.ids)])}
        return RecordedStep(bounds, why, threads, left_out)

    def _label(self, thread_id: int) -> str:
        name = self._names[thread_id]
        is_alone = sum(other == name for other in self._names.values()) == 1
        return name if is_alone else f"{name} {thread_id}"


def _longest(spans: list[ThreadSpans], most: int) -> list[ThreadSpans]:
    """Return so many spans of all threads together: the longest."""
    durations_ns = np.concatenate([each.end_ns - each.begin_ns for each in spans] or [_NONE])
    if len(durations_ns) <= most:
        return spans
    is_kept = np.zeros(len(durations_ns), np.bool_)
    is_kept[np.argpartition(-durations_ns, most)[:most]] = True
    ends = np.cumsum([len(each.ids) for each in spans])
    return [each.where(np.flatnonzero(rows)) for each, rows in zip(spans, np.split(is_kept, ends[:-1]), strict=True)]


def _merged(spans: Sequence[ThreadSpans]) -> list[ThreadSpans]:
    """Return one entry for each thread, in the order of their first."""
    by_thread: dict[int, list[ThreadSpans]] = {}
    for each in spans:
        by_thread.setdefault(each.thread_id, []).append(each)
    merged = []
    for thread_id, parts in by_thread.items():
        ids, begin_ns, end_ns = (np.concatenate([each[column] for each in parts]) for column in (1, 2, 3))
        merged.append(ThreadSpans(thread_id, ids, begin_ns, end_ns))
    return merged
