"""The arithmetic of blocks in C (native/), where that was built. The memory of its results is numpy's."""

from typing import Any

import numpy as np

from training_profiler.aggregation import numpy_sums
from training_profiler.aggregation.arrays import Bools, Ints
from training_profiler.aggregation.histogram import bin_cells
from training_profiler.aggregation.section_totals import SectionSums
from training_profiler.aggregation.span_matching import (
    MAX_OPEN,
    Events,
    Flat,
    OutsideSections,
    Stretches,
    no_events,
    without_discarded,
)
from training_profiler.aggregation.thread_blocks import Arithmetic, EndedSpans, StepTimes, ThreadBlock
from training_profiler.recording.implementation import Implementation

Packed = tuple[Ints, Ints, Bools, Ints]  # spans, their details and flags, stretches: as native/matching.c fills them


def arithmetic_of(implementation: Implementation) -> Arithmetic:
    """Return the arithmetic in C beside the recorder in C, and otherwise that in numpy."""
    return numpy_sums.NUMPY if implementation.native is None else native_arithmetic(implementation.native)


def native_arithmetic(native: Any) -> Arithmetic:
    """Return the arithmetic of the module in C."""
    bins, next_begins_ns = bin_cells()

    def read_events(flat: Flat) -> Events:
        if isinstance(flat, list):
            return numpy_sums.NUMPY.read_events(flat)
        rows = np.empty((2, len(flat) // 2), np.int64)
        native.split_events(flat, rows)
        return Events(*rows)

    def attribute(
        events: Events, still_open: Events, ends_ns: Ints, from_ns: int, outside: OutsideSections
    ) -> ThreadBlock:
        events, still_open = without_discarded(events, still_open)
        count = len(events.codes) + len(still_open.codes)
        room = count // 2 + 1
        spans, details = np.empty((3, room), np.int64), np.empty((3, room), np.int64)
        flags, stretches = np.empty((2, room), np.bool_), np.empty((6, count + len(ends_ns)), np.int64)
        open_events = np.empty((2, MAX_OPEN), np.int64)
        times = (*events, *still_open, ends_ns, from_ns)
        found = native.match_events(
            *times, outside.table, outside.rename, MAX_OPEN, spans, details, flags, stretches, open_events
        )
        if found is None:  # not nested
            return numpy_sums.attribute(events, still_open, ends_ns, from_ns, outside)
        return _block(found, open_events, (spans, details, flags, stretches))

    def sum_time(block: ThreadBlock, step_rows: Ints, complete: int, is_forward: Bools) -> StepTimes:
        if block.packed is None:
            return numpy_sums.sum_time(block, step_rows, complete, is_forward)
        rows, count = len(is_forward), len(block.spans.ids)
        times = StepTimes(
            np.zeros((complete + 2, rows), np.int64),
            np.zeros((2, rows), np.int64),
            np.zeros(complete + 1, np.int64),
            np.empty(count, np.int64),
        )
        spans, details, flags, stretches = block.packed
        counts = (block.spans.leaf_count, count, stretches, len(block.pieces))
        native.sum_time(spans, details, flags, *counts, step_rows, complete, is_forward, *times)
        return times

    def add_spans(sections: SectionSums, block: ThreadBlock, steps: Ints, warmup_steps: int) -> None:
        if block.packed is None:
            numpy_sums.add_spans(sections, block, steps, warmup_steps)
            return
        spans, details, flags, _ = block.packed
        native.add_spans(
            *(spans, details, flags, len(block.spans.ids), steps, warmup_steps),
            sections.columns_of_spans(),
            *(sections.parents, bins, next_begins_ns),
        )

    return Arithmetic(read_events, attribute, sum_time, add_spans)


def _block(counts: tuple[int, int, int, int], open_events: Ints, packed: Packed) -> ThreadBlock:
    leaf_count, span_count, stretch_count, open_count = counts
    spans, details, flags, stretches = packed
    ids, begin_ns, end_ns = spans[:, :span_count]
    durations_ns, parents, pieces = details[:, :span_count]
    is_outside, is_counted = flags[:, :span_count]
    stretch_begin_ns, stretch_durations_ns, owners, outer_ids, stretch_pieces, own_ns = stretches[:, :stretch_count]
    still_open = Events(*open_events[:, :open_count].copy()) if open_count else no_events()
    return ThreadBlock(
        EndedSpans(ids, begin_ns, end_ns, durations_ns, parents, pieces, is_outside, is_counted, leaf_count),
        Stretches(stretch_begin_ns, stretch_durations_ns, owners, outer_ids),
        stretch_pieces,
        own_ns,
        still_open,
        0,
        packed,
    )
