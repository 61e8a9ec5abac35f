"""What is found in a block of one thread's events, and the arithmetic that finds it and adds it up.

``numpy_sums`` has this arithmetic in numpy, ``native_sums`` the same in C.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from training_profiler.aggregation.arrays import Bools, Ints
from training_profiler.aggregation.section_totals import SectionSums
from training_profiler.aggregation.span_matching import Events, Flat, LeafSpans, OutsideSections, Stretches


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
    packed: Any = None  # of the arithmetic in C: the same as it passed it


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


Attribute = Callable[[Events, Events, Ints, int, OutsideSections], ThreadBlock]


class Arithmetic(NamedTuple):
    """The arithmetic of blocks. The integers of all implementations are the same, and the floats bit for bit.

    ``read_events(flat)`` reads the recorder's times and codes, which lie in turns.

    ``attribute(events, still_open, ends_ns, from_ns, outside)`` matches events of one thread, in time order.
    ``still_open`` is that of the thread's previous block, ``ends_ns`` has the ends of the pieces of time since
    ``from_ns``, and ``outside`` the sections outside training steps.

    ``sum_time(block, step_rows, complete, is_forward)`` adds up the time of each section in each step: ``step_rows``
    has the row of the step of each piece, -1 for none, ``complete`` is the number of complete steps, and
    ``is_forward`` says of each section whether its spans are forward passes.

    ``add_spans(sections, block, steps, warmup_steps)`` adds the spans to the sums: ``steps`` has the step of each
    piece, counted from 1, 0 for none. Spans of warm-up steps are left out of averages and quantiles.
    """

    read_events: Callable[[Flat], Events]
    attribute: Attribute
    sum_time: Callable[[ThreadBlock, Ints, int, Bools], StepTimes]
    add_spans: Callable[[SectionSums, ThreadBlock, Ints, int], None]
