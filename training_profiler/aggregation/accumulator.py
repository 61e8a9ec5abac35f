"""Turns the recorder's batches into totals, and carries open spans and unfinished steps from batch to batch."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Final

import numpy as np

from training_profiler.aggregation.lines import LineAttribution
from training_profiler.aggregation.loaders import LoaderAttribution
from training_profiler.aggregation.machine import GarbageAttribution
from training_profiler.aggregation.section_totals import InferredSectionFilter, rows_for
from training_profiler.aggregation.span_matching import (
    NO_EVENTS,
    OUTSIDE,
    Cuts,
    EndedSpans,
    Events,
    OutsideSections,
    SectionKinds,
    StepTimeline,
    StepTimes,
    ThreadBlock,
    attribute,
    read_events,
    sum_time,
)
from training_profiler.aggregation.step_spans import StepSpans
from training_profiler.aggregation.step_totals import CaptureAffectedSteps
from training_profiler.aggregation.totals import GradientSyncAttribution, Totals
from training_profiler.base.sections import DATA_LOADING, FORWARD_SECTIONS, LOOP_SECTIONS, PROFILER, SectionNames
from training_profiler.device.device_lanes import HeldStep
from training_profiler.model.location import Sample
from training_profiler.model.ranks import FIRST_STEPS, GradientSyncTotals
from training_profiler.recording.event_codes import SECTION_MASK
from training_profiler.recording.recorder import Batch
from training_profiler.sampling.garbage_watch import Collection
from training_profiler.statistics.arrays import Ints

UNLIKE_OTHERS: Final = 5  # first steps, in which devices wait for compilers, allocators and workers


class Accumulator:
    """Sums up one run. ``totals`` covers the time since the last ``pop_totals``.

    ``on_spans``, if set, is called with the training thread's spans that count for averages: sections, begins, ends,
    the begins of spans still open, and the time up to which this is complete. ``on_every_span`` is called with all
    spans of the training thread: sections, begins, ends, and that time. ``on_samples`` is called before it, with the
    samples of the lines of that time.
    """

    def __init__(
        self, names: SectionNames, begin_ns: int, warmup_steps: int | None = None, has_inferred: bool = False
    ) -> None:
        self.totals = Totals(begin_ns, 0)
        self.step_ns: list[int] = []  # durations of the steps in ``totals``
        self.inferred_filter = InferredSectionFilter(names, has_inferred)
        self.on_spans: Callable[[Ints, Ints, Ints, Ints, int], None] | None = None
        self.on_every_span: Callable[[Ints, Ints, Ints, int], None] | None = None
        self.on_samples: Callable[[Sequence[Sample]], None] | None = None
        self.slowed_by_capture = CaptureAffectedSteps()
        self.loaders = LoaderAttribution(names)
        self.step_spans = StepSpans()
        self._lines = LineAttribution(names)
        self._garbage = GarbageAttribution()
        self._names = names
        self.warmup_steps = warmup_steps
        self._timeline = StepTimeline()
        self.at_ns = begin_ns  # the end of the time summed up so far
        self._open: dict[int, Events] = {}  # thread id -> its open sections
        self._outside = OutsideSections(names)
        self._gradient_sync = GradientSyncAttribution(names)
        self._settled_ns: int | None = None  # end of the first steps
        self._complete = 0  # number of steps that end in the current batch
        self._unfinished = np.zeros(1, np.int64)  # exclusive times of the step in progress
        self._unfinished_total = np.zeros(1, np.int64)  # the same with nested sections
        self._unfinished_calls = 0  # its forward passes so far
        self._forward = SectionKinds(names, lambda name: name in FORWARD_SECTIONS)

    def reconfigure(self, warmup_steps: int | None) -> None:
        """Go on with another number of warm-up steps."""
        self.warmup_steps = warmup_steps

    def send_spans(self, to: Callable[[Ints, Ints, Ints, Ints, int], None] | None) -> None:
        """Call ``to`` with the spans that count for averages from now on; None: with none."""
        self.on_spans = to

    def send_every_span(
        self,
        to: Callable[[Ints, Ints, Ints, int], None] | None,
        samples_to: Callable[[Sequence[Sample]], None] | None = None,
    ) -> None:
        """Send all spans of the training thread, and the samples of its lines, from now on; None: none."""
        self.on_every_span, self.on_samples = to, samples_to

    @property
    def steps(self) -> int:
        """Number of complete steps."""
        return self._timeline.steps

    def open_sections(self, training_thread: int) -> tuple[str, ...]:
        """Return the names of the training thread's open sections, outermost first."""
        return tuple(name for name, _ in self.open_spans(training_thread))

    def open_spans(self, training_thread: int) -> list[tuple[str, int]]:
        """Return the same with the time at which each was entered."""
        still_open = self._open.get(training_thread, NO_EVENTS)
        names = [self._names.names[code & SECTION_MASK] for code in still_open.codes.tolist()]
        spans = zip(names, still_open.times_ns.tolist(), strict=True)
        return [(name, at_ns) for name, at_ns in spans if name != PROFILER]

    def pop_totals(self) -> tuple[Totals, list[int]]:
        """Return the totals and the durations of their steps in ns, and start new totals at the same time."""
        done = self.totals, self.step_ns
        self.totals = Totals.with_rows(self.at_ns, self.steps, self.totals.sections.rows)
        self.step_ns = []
        return done

    def preview(self) -> "Accumulator":
        """Return a copy that goes on for itself and sends no spans."""
        # The training thread may begin a capture meanwhile, so the receivers of spans are left out before the copy.
        receivers = {"on_spans": None, "on_every_span": None, "on_samples": None}
        state = {**vars(self), **receivers, "step_spans": StepSpans()}
        copy = object.__new__(type(self))
        vars(copy).update(deepcopy(state, {id(self._names): self._names}))
        copy.loaders.configure_intervals(False, None)
        return copy

    def add_collections(self, collections: Sequence[Collection], since_ns: int | None) -> None:
        """Add garbage collections on the training thread, before the batch of their time.

        ``since_ns`` is the time since which all of them are known; None if they are not.
        """
        self._garbage.add(collections, since_ns is not None and (since_ns <= self.at_ns or not self.steps))

    def add(
        self,
        batch: Batch,
        training_thread: int,
        samples: Sequence[Sample] = (),
        has_loop_mark: bool | None = None,
    ) -> None:
        """Add a batch.

        Args:
            batch: of all threads.
            training_thread: whose time is the run's.
            samples: of that thread.
            has_loop_mark: whether a mark shows where the training loop begins; by default, where sections are inferred.
        """
        if has_loop_mark is None:
            has_loop_mark = self.inferred_filter.is_needed
        self._lines.add_samples(samples)
        on_samples = self.on_samples  # the training thread may end a capture meanwhile
        if on_samples is not None:
            on_samples(samples)
        rows = rows_for(len(self._names.names))
        self.totals.sections.grow(rows)
        events = {}
        for thread in batch.threads:
            recorded = self.loaders.extract_changes(read_events(thread.events), thread.thread_id == training_thread)
            events[thread.thread_id] = self.inferred_filter.admit(thread.thread_id, recorded)
        training = events.get(training_thread, NO_EVENTS)
        # The training thread goes on recording during a drain on another thread, so its events may be later.
        # A thread can lose the processor between reading the clock and recording a mark, and be drained meanwhile.
        marks = read_events(batch.marks)
        marks = Events(np.maximum(marks.times_ns, self.at_ns), marks.codes)
        last_ns = [*training.times_ns[-1:].tolist(), *marks.times_ns[-1:].tolist()]
        until_ns = max([batch.until_ns, self.at_ns, *last_ns])
        first_step = self.steps
        self.loaders.begin(training, marks, first_step)
        first_section_ns = None if has_loop_mark else self._loop_begin_ns(training, len(marks.codes) > 0)
        cuts = self._timeline.cut(marks, first_section_ns, until_ns)
        self._complete = self.steps - first_step
        self.totals.loop_begin_ns = self._timeline.begun_ns
        if self._settled_ns is None and self.steps >= UNLIKE_OTHERS:
            self._settled_ns = int(cuts.ends_ns[cuts.steps == UNLIKE_OTHERS - 1].max())
        self._add_thread(training_thread, training, cuts, first_step)
        for thread in batch.threads:
            if thread.thread_id != training_thread:
                self._add_thread(thread.thread_id, events[thread.thread_id], cuts, None)
            if not thread.is_alive:
                self.totals.unended += len(self._open.pop(thread.thread_id, NO_EVENTS).codes)
        self.step_spans.end_batch(
            {thread.thread_id: thread.name for thread in batch.threads}, self.warmup_steps, until_ns
        )
        self.at_ns = self.totals.end_ns = until_ns

    def settled_ns(self) -> int | None:
        """Return since when steps are like most others; None before, and while a capture window slows them."""
        return None if self.totals.slowed_by_capture else self._settled_ns

    def add_gradient_sync(self, synced: GradientSyncTotals) -> None:
        """Attribute the exposed part of DDP's gradient sync to ``synchronization`` within the backward passes."""
        self._gradient_sync.attribute(self.totals, synced, has_steps=self.steps > 0)

    def add_device_time(self, id: int, ns: int) -> None:
        """Add the accelerator's time for a span that ``on_spans`` was called with."""
        self.totals.sections.grow(rows_for(len(self._names.names)))
        self.totals.sections.device_ns[id] += ns
        self.totals.sections.device_count[id] += 1

    def held_steps(self) -> list[HeldStep]:
        """Return the steps that may be written with their spans."""
        return self.step_spans.held_steps()

    def _ids_of(self, names: tuple[str, ...]) -> Ints:
        return np.array([id for id, name in list(self._names.names.items()) if name in names], np.int64)

    def _loop_begin_ns(self, training: Events, has_marks: bool) -> int | None:
        """Return when the training loop may have begun: at the first section that only occurs in a loop.

        If steps end and no such section was seen, the first section of any name counts.
        """
        if self._timeline.has_begun:
            return None
        times_ns = training.times_ns[np.isin(training.codes, self._ids_of(LOOP_SECTIONS))]
        if not len(times_ns) and has_marks:
            times_ns = training.times_ns
        return int(times_ns[0]) if len(times_ns) else None

    def _add_thread(self, thread_id: int, events: Events, cuts: Cuts, first_step: int | None) -> None:
        """Add one thread's events; ``first_step`` is None for all but the training thread."""
        still_open = self._open.pop(thread_id, NO_EVENTS)
        if first_step is None and not len(events.codes) and not len(still_open.codes):
            return
        block = attribute(events, still_open, cuts.ends_ns, self.at_ns, self._outside)
        self.totals.dropped += block.dropped
        if len(block.still_open.codes):
            self._open[thread_id] = block.still_open
        self.totals.sections.grow(rows_for(len(self._names.names)))  # renaming may have added names
        if first_step is None:
            rows = self.totals.sections.rows
            elsewhere_ns = sum_time(block, np.zeros(len(cuts.steps), np.int64), 0, rows).self_ns.sum(axis=0)
            elsewhere_ns[0] = 0
            self.totals.sections.elsewhere_ns += elsewhere_ns
        else:
            self._add_to_steps(block, cuts, first_step)
        self.step_spans.add_spans(thread_id, block.spans)
        if len(block.spans.ids):
            spans, numbers, warmup = block.spans, cuts.steps[block.spans.pieces] + 1, self.warmup_steps
            is_measured = (numbers == 0) | (numbers > (warmup or 0))
            self.totals.sections.add_spans(
                spans.ids, spans.durations_ns, spans.parents, numbers, is_measured, spans.is_counted
            )
        if first_step is not None and self.totals.first_fetch_ns is None:
            self.totals.first_fetch_ns = block.spans.first_ns(self._ids_of((DATA_LOADING,)))

    def _add_to_steps(self, block: ThreadBlock, cuts: Cuts, first_step: int) -> None:
        step_rows = self._rows_of_pieces(cuts, first_step)
        times = sum_time(block, step_rows, self._complete, self.totals.sections.rows)
        stretches, end_ns = block.stretches, int(cuts.ends_ns[-1])

        def rows_at(times_ns: Ints) -> Ints:
            at = stretches.at(times_ns)
            return np.where(at.is_outside, -1, step_rows[at.pieces])

        in_collections = self._garbage.attribute(self.totals.garbage, rows_at, self._complete, first_step, end_ns)
        complete, self_ns = self._complete, times.self_ns
        self.totals.sections.self_ns += self_ns.sum(axis=0)
        self_ns[0, : len(self._unfinished)] += self._unfinished
        self._unfinished = self_ns[complete].copy()
        durations_ns = self_ns[:complete].sum(axis=1)
        slowed = self.slowed_by_capture.among(first_step, complete)
        if complete:
            self.step_ns += durations_ns.tolist()
            self.totals.add_steps(self.step_ns[-complete:], self_ns[:complete], first_step, slowed, in_collections)
        self.step_spans.add_steps(cuts.ends_ns, step_rows, self.at_ns, first_step, durations_ns, slowed)
        self._add_after(block, cuts)
        self._lines.attribute(self.totals.lines, stretches, step_rows, complete, end_ns, self._timeline.begun_ns)
        self.totals.training_spans += len(block.spans.ids)
        self._add_step_totals(block.spans, times)
        made = np.flatnonzero(self._forward.of(block.spans.ids))
        made = made[(times.rows[made] >= 0) & block.spans.is_counted[made]]
        calls = np.bincount(times.rows[made], minlength=self._complete + 1).tolist()
        calls[0] += self._unfinished_calls
        self._unfinished_calls = calls[self._complete]
        self.totals.step_calls += calls[: self._complete]
        self.loaders.attribute(self.totals.loaders, block.spans)
        self.loaders.discard_old_changes(block.still_open)
        self._send(block, cuts)

    def _add_after(self, block: ThreadBlock, cuts: Cuts) -> None:
        """Add the time since the last step ended, which is after the training unless another one ends."""
        if not self.steps:
            return
        sums, spans, own = self.totals.sections, block.spans, block.own
        if cuts.last_end >= 0:
            sums.clear_after()
            self.totals.loop_end_ns = int(cuts.ends_ns[cuts.last_end])
        after, begun = own.pieces > cuts.last_end, (spans.pieces > cuts.last_end) & spans.is_counted
        sums.add_after(own.owners[after], own.durations_ns[after], spans.ids[begun])

    def _rows_of_pieces(self, cuts: Cuts, first_step: int) -> Ints:
        """Return for each piece its step's row, counted from the first step of the batch; -1 for no step."""
        rows = np.where(cuts.steps == OUTSIDE, -1, cuts.steps - first_step)
        for piece in cuts.not_steps:
            rows[: piece + 1][rows[: piece + 1] == rows[piece]] = -1
            if cuts.steps[piece] == first_step:
                self._lines.of_unfinished_step.clear()
                self._garbage.discard_unfinished()
                self._unfinished[:] = 0
                self._unfinished_total[:] = 0
                self._unfinished_calls = 0
        return rows

    def _send(self, block: ThreadBlock, cuts: Cuts) -> None:
        spans, end_ns = block.spans, int(cuts.ends_ns[-1])
        on_spans, on_every_span = self.on_spans, self.on_every_span
        if on_spans is not None:
            counts = spans.is_counted
            if self.warmup_steps:
                steps = cuts.steps[spans.pieces] + 1
                counts = counts & ((steps == 0) | (steps > self.warmup_steps))
            ended = (spans.ids[counts], spans.begin_ns[counts], spans.end_ns[counts])
            on_spans(*ended, block.still_open.times_ns, end_ns)
        if on_every_span is not None:
            on_every_span(spans.ids, spans.begin_ns, spans.end_ns, end_ns)

    def _add_step_totals(self, spans: EndedSpans, times: StepTimes) -> None:
        """Add spans of the training thread to the step that each began in."""
        first_step = self.steps - self._complete
        ended_ns, unfinished_ns = times.total_ns
        before_ns = ended_ns if self._complete else unfinished_ns
        before_ns[: len(self._unfinished_total)] += self._unfinished_total
        if first_step < FIRST_STEPS:
            is_complete = (times.rows >= 0) & (times.rows < self._complete)
            rows, ids, durations_ns = times.rows[is_complete], spans.ids[is_complete], spans.durations_ns[is_complete]
            self.totals.add_early(first_step + rows, ids, durations_ns)
            if self._complete:  # the first of these was unfinished before
                carried = np.flatnonzero(self._unfinished_total)
                step = np.full(len(carried), first_step)
                self.totals.add_early(step, carried, self._unfinished_total[carried])
        self.totals.sections.step_total_ns += ended_ns
        self._unfinished_total = unfinished_ns
