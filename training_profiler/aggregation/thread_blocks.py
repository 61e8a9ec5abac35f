"""What is found in a block of one thread's events: its spans, who owns each moment, and the time of each step."""

from typing import NamedTuple

import numpy as np

from training_profiler.aggregation.section_totals import SectionSums
from training_profiler.aggregation.span_matching import (
    Events,
    LeafSpans,
    OutsideSections,
    Stretches,
    match_spans,
    rename_leaf_spans,
    stretches_between,
)
from training_profiler.statistics.arrays import Bools, Ints


class EndedSpans(NamedTuple):
    """The spans that ended, one row each: leaf spans first, in time order, then all others."""

    ids: Ints
    begin_ns: Ints
    end_ns: Ints
    durations_ns: Ints
    parents: Ints  # section id of the enclosing span, 0 for none
    pieces: Ints  # the piece of time that each begins in, see ``Cuts``
    is_outside: Bools  # whether it is a section outside training steps, or inside one
    is_counted: Bools  # False for spans that add to the time of their section, but not to its count
    leaf_count: int

    def leaf_spans(self) -> LeafSpans:
        """Return the leaf spans alone."""
        leaves = slice(0, self.leaf_count)
        return LeafSpans(self.ids[leaves], self.begin_ns[leaves], self.durations_ns[leaves], self.is_counted[leaves])


class ThreadBlock(NamedTuple):
    """The spans of one thread in a batch, and who owns each moment of it."""

    spans: EndedSpans
    stretches: Stretches
    pieces: Ints  # of the stretches
    own_ns: Ints  # time of the stretches without leaf spans
    still_open: Events
    dropped: int


def first_span_ns(spans: EndedSpans, ids: Ints) -> int | None:
    """Return the duration of the first span of these sections; None without any."""
    rows = np.concatenate([np.flatnonzero(spans.ids == id) for id in ids.tolist()] or [ids])
    if not len(rows):
        return None
    return int(spans.durations_ns[rows[np.lexsort((spans.durations_ns[rows], spans.begin_ns[rows]))[0]]])


class StepTimes(NamedTuple):
    """The time of a block in steps. Row i of a table is the i-th complete step, the row after these goes on."""

    self_ns: Ints  # (steps + 2, sections): exclusive time; the last row is time outside steps
    total_ns: Ints  # (2, sections): spans in complete steps, and in the step that goes on; nested ones are included
    calls: Ints  # forward passes by step
    rows: Ints  # of each span: its step; -1 outside of steps, and for a span inside another of its section


def attribute(events: Events, still_open: Events, ends_ns: Ints, from_ns: int, outside: OutsideSections) -> ThreadBlock:
    """Return the spans of a block of one thread's events, in time order, and who owns each moment.

    Args:
        events: of the block.
        still_open: that of the thread's block before.
        ends_ns: ends of the pieces of time since ``from_ns``.
        from_ns: begin of the first piece.
        outside: the sections outside training steps.
    """
    cuts_ns = ends_ns[:-1]
    result = match_spans(events, still_open, cuts_ns, outside)
    stretches = stretches_between(result, cuts_ns, from_ns, int(ends_ns[-1]))
    pieces = _pieces_at(stretches.begin_ns, ends_ns)
    leaves_per_stretch = stretches.count_leaf_spans(result.leaf_spans)
    outer_ids = np.repeat(stretches.outer_ids, leaves_per_stretch)
    leaves = rename_leaf_spans(result.leaf_spans, outer_ids, outside.rename)
    is_outside = outer_ids > 0
    if outside.exists:
        is_outside |= outside.table[result.leaf_spans.ids]
    others = result.spans
    own_ns = stretches.durations_ns - stretches.sum_leaf_spans(leaves.durations_ns, leaves_per_stretch)
    spans = EndedSpans(
        ids=np.concatenate([leaves.ids, others.ids]),
        begin_ns=np.concatenate([leaves.begin_ns, others.begin_ns]),
        end_ns=np.concatenate([leaves.begin_ns + leaves.durations_ns, others.end_ns]),
        durations_ns=np.concatenate([leaves.durations_ns, others.end_ns - others.begin_ns]),
        parents=np.concatenate([np.repeat(stretches.owners, leaves_per_stretch), others.parents]),
        pieces=np.concatenate([np.repeat(pieces, leaves_per_stretch), _pieces_at(others.begin_ns, ends_ns)]),
        is_outside=np.concatenate([is_outside, others.outer_ids > 0]),
        is_counted=np.concatenate([leaves.is_counted, others.is_counted]),
        leaf_count=len(leaves.ids),
    )
    return ThreadBlock(spans, stretches, pieces, own_ns, result.still_open, result.dropped)


def _pieces_at(times_ns: Ints, ends_ns: Ints) -> Ints:
    return np.minimum(np.searchsorted(ends_ns, times_ns, side="right"), len(ends_ns) - 1)


def sum_time(block: ThreadBlock, step_rows: Ints, complete: int, is_forward: Bools) -> StepTimes:
    """Return the time of each section in each step.

    Args:
        block: with the spans and moments.
        step_rows: the row of the step of each piece, -1 for none.
        complete: number of complete steps.
        is_forward: whether spans of a section are forward passes, by section.
    """
    spans, stretches, rows = block.spans, block.stretches, len(is_forward)
    leaves = slice(0, spans.leaf_count)
    step_row = step_rows[block.pieces]
    outside_row = complete + 1
    row = np.where((stretches.outer_ids > 0) | (step_row < 0), outside_row, step_row)
    size = (complete + 2) * rows
    # float64 holds sums below 2**53 ns, 104 days, exactly.
    sums = np.bincount(row * rows + stretches.owners, block.own_ns, size)
    span_row = step_rows[spans.pieces]
    if spans.leaf_count:
        leaf_row = np.where(spans.is_outside[leaves] | (span_row[leaves] < 0), outside_row, span_row[leaves])
        sums += np.bincount(leaf_row * rows + spans.ids[leaves], spans.durations_ns[leaves], size)
    span_row = np.where(spans.is_outside | (spans.parents == spans.ids), -1, span_row)
    goes_on = span_row == complete
    totals = np.bincount(goes_on * rows + spans.ids, np.where(span_row >= 0, spans.durations_ns, 0), 2 * rows)
    made = span_row[(span_row >= 0) & is_forward[spans.ids] & spans.is_counted]
    calls = np.bincount(made, minlength=complete + 1)
    return StepTimes(sums.astype(np.int64).reshape(-1, rows), totals.astype(np.int64).reshape(2, rows), calls, span_row)


def add_spans(sections: SectionSums, block: ThreadBlock, steps: Ints, warmup_steps: int) -> None:
    """Add the spans of a block to the sums.

    ``steps`` has the step of each piece, counted from 1, 0 for none. Spans of warm-up steps are left out of averages
    and quantiles.
    """
    spans = block.spans
    if not len(spans.ids):
        return
    step_numbers = steps[spans.pieces]
    is_measured = (step_numbers == 0) | (step_numbers > warmup_steps) if warmup_steps else None
    sections.add_spans(spans.ids, spans.durations_ns, spans.parents, step_numbers, is_measured, spans.is_counted)
