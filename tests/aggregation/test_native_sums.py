"""The arithmetic in C adds up what the one in numpy does, to the last bit, and touches no memory but its own."""

import random
import sys
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.aggregation.test_accumulator_against_brute_force import (
    BEGIN_NS,
    NAMES,
    TRAINING,
    batches_of,
    interleaved,
    nested,
    training_loops,
)
from tests.support.recording import implementation_of
from training_profiler.aggregation import numpy_sums
from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.aggregation.histogram import BIN_COUNT, bin_cells, bins_of
from training_profiler.aggregation.native_sums import arithmetic_of
from training_profiler.aggregation.section_totals import SectionSums
from training_profiler.aggregation.span_matching import MAX_OPEN, Events, OutsideSections, no_events
from training_profiler.aggregation.thread_blocks import EndedSpans
from training_profiler.recording.event_codes import DISCARDED, STEP_END, TIME_ONLY
from training_profiler.recording.implementation import python_implementation
from training_profiler.recording.recorder import Batch, ThreadEvents
from training_profiler.recording.section_names import SectionNames
from training_profiler.sampling.garbage_watch import Collection
from training_profiler.sampling.location import Location

ROWS = 16
LINE = Location("train.py", 1, "train")


@pytest.fixture(scope="module")
def native():
    return implementation_of("C").native


@pytest.fixture(scope="module")
def arithmetic():
    return arithmetic_of(implementation_of("C"))


class Heard:
    """An accumulator, and all spans that it hands on."""

    def __init__(self, arithmetic, warmup_steps=None):
        self.names = SectionNames()
        for name in NAMES:
            self.names.id_of(name)
        self.accumulator = Accumulator(self.names, BEGIN_NS, warmup_steps, arithmetic=arithmetic)
        self.spans = []
        self.accumulator.send_spans(self.hear)
        self.accumulator.send_every_span(self.hear)

    def hear(self, ids, *times_ns):
        self.spans.append((self.named(ids), *(np.asarray(column).tolist() for column in times_ns)))

    def named(self, ids):
        return [self.names.names.get(id, "") for id in ids.tolist()]

    def add(self, batches):
        for batch in batches:
            middle_ns = (self.accumulator.at_ns + batch.until_ns) // 2
            self.accumulator.add_collections([Collection(middle_ns, middle_ns + 5, 0, False)], 0)
            self.accumulator.add(batch, TRAINING, [(middle_ns, LINE)])
        return self

    def by_name(self, rows):
        """Return what an array has of each section: sections inside others may be numbered in another order."""
        named = [(0, ""), *self.names.names.items()]
        return {name: rows[id].tolist() for id, name in named if id < len(rows) and rows[id].any()}

    def everything(self):
        """Return all that is summed up, floats included."""
        accumulator, totals = self.accumulator, self.accumulator.totals
        sums = totals.sections
        named = self.names.names.get
        steps = [
            (
                bounds.number,
                bounds.begin_ns,
                bounds.end_ns,
                [(self.named(each.ids), *map(list, each[2:4])) for each in spans],
            )
            for bounds, spans in accumulator.step_spans._last
        ]
        return {
            "sections": {name: self.by_name(array) for name, array in sums._arrays().items()},
            "parents": {(named(parent, ""), named(id, "")): count for (parent, id), count in sums.parents.items()},
            "early": self.by_name(totals.early_ns.T),
            "series": self.by_name(totals.series.sums_ns.T),
            "coupling": self.by_name(totals.coupling.sections.T),
            "steps": (accumulator.step_ns, totals.step_calls, totals.training_spans, steps),
            "open": {thread: [list(column) for column in still] for thread, still in accumulator._open.items()},
            "rest": (totals.dropped, totals.unended, totals.first_fetch_ns, totals.wall_ns),
            "garbage": totals.garbage.rows(),
            "lines": {(named(id, id), location): count for (id, location), count in totals.lines.items()},
            "spans": self.spans,
        }


def assert_same(arithmetic, batches, warmup_steps=None):
    """Compare all sums of the two; a mismatch names the sum."""
    in_c = Heard(arithmetic, warmup_steps).add(batches).everything()
    in_numpy = Heard(numpy_sums.NUMPY, warmup_steps).add(batches).everything()
    for what, expected in in_numpy.items():
        if in_c[what] != expected:  # pytest needs minutes to show the difference of so many numbers
            pytest.fail(f"{what}: {in_c[what]} instead of {expected}"[:2000])


@given(operations=st.one_of(nested, interleaved, training_loops()), warmup_steps=st.sampled_from((None, 0, 2)))
def test_both_add_up_the_same(arithmetic, operations, warmup_steps):
    assert_same(arithmetic, batches_of(operations), warmup_steps)


@given(operations=st.one_of(nested, training_loops()), divisor=st.integers(1, 5))
def test_both_add_up_the_same_where_the_clock_stands_still(arithmetic, operations, divisor):
    coarse = [(thread_id, (what, which, ns // 10**divisor)) for thread_id, (what, which, ns) in operations]
    assert_same(arithmetic, batches_of(coarse))


def random_batches(seed, batch_count=6, depth=12, is_nested=True):
    """Return batches of recursion, exceptions that leave several sections at once, empty fetches, and times alone."""
    rng = random.Random(seed)
    now_ns, batches = BEGIN_NS, []
    stacks = {1: [], 2: []}
    for _ in range(batch_count):
        events, marks = {1: [], 2: []}, []
        for _ in range(rng.choice((0, 3, 40, 900))):
            now_ns += rng.choice((0, 1, 7, 300, 50_000, 3_000_000_000))
            thread_id = rng.choice((1, 1, 1, 2))
            stack, flat = stacks[thread_id], events[thread_id]
            what = rng.random()
            if what < 0.45 and len(stack) < depth:
                stack.append(rng.randint(1, len(NAMES)) | rng.choice((0, 0, 0, TIME_ONLY)))
                flat += [now_ns, stack[-1]]
            elif what < 0.85 and stack:
                at = -1 if is_nested else rng.randrange(len(stack))
                flat += [now_ns, -stack.pop(at)]
            elif what < 0.9:
                while stack and rng.random() < 0.8:
                    flat += [now_ns, -stack.pop()]
            elif what < 0.92:
                code = rng.randint(1, len(NAMES))
                flat += [now_ns, code, now_ns + 1, -code - DISCARDED]
                now_ns += 1
            elif what < 0.97:
                marks.extend((now_ns, STEP_END))
            elif not is_nested:
                flat += [now_ns, -rng.randint(1, len(NAMES))]
        now_ns += 1
        is_alive = rng.random() < 0.9
        threads = [ThreadEvents(1, "", True, events[1]), ThreadEvents(2, "", is_alive, events[2])]
        if not is_alive:
            stacks[2].clear()
        batches.append(Batch(now_ns, threads, marks))
    return batches


@pytest.mark.parametrize("seed", range(60))
def test_both_add_up_long_batches_the_same(arithmetic, seed):
    assert_same(arithmetic, random_batches(seed, depth=3 + 4 * (seed % 10), is_nested=seed % 4 > 0), seed % 3)


def test_both_add_up_the_same_from_many_open_sections(arithmetic):
    deep = [number for at in range(MAX_OPEN) for number in (BEGIN_NS + at, 1 + at % 4)]
    deeper = [number for at in range(5) for number in (BEGIN_NS + 2_000 + at, 2)]
    batches = [
        Batch(BEGIN_NS + 1_500, [ThreadEvents(1, "", True, deep)], []),
        Batch(BEGIN_NS + 3_000, [ThreadEvents(1, "", True, deeper)], []),
        Batch(BEGIN_NS + 4_000, [ThreadEvents(1, "", True, [BEGIN_NS + 3_500, -2])], []),
    ]
    assert_same(arithmetic, batches)


def test_bins_are_those_of_the_logarithm(arithmetic):
    """At each begin of a bin, one nanosecond before it, and on both sides of each cell."""
    bins, begins_ns = bin_cells()
    cells = [(64 + cell) << power >> 6 for power in range(53) for cell in range(64)]
    edges = np.array([*begins_ns[begins_ns < 2**60].tolist(), *cells, 2**53, 2**60, 1, 0, -5], np.int64)
    durations_ns = np.concatenate([edges - 1, edges, edges + 1])
    sums, count = SectionSums(ROWS), len(durations_ns)
    packed = np.zeros((3, count), np.int64), np.zeros((3, count), np.int64), np.ones((2, count), np.bool_), None
    packed[0][0], packed[1][0] = 1, durations_ns
    spans = EndedSpans(*packed[0], *packed[1], *packed[2], leaf_count=count)
    block = arithmetic.attribute(no_events(), no_events(), np.array([1]), 0, outside())
    arithmetic.add_spans(sums, block._replace(spans=spans, packed=packed), np.zeros(1, np.int64), 0)
    assert sums.bins[1].tolist() == np.bincount(bins_of(durations_ns), minlength=BIN_COUNT).tolist()
    assert bins.max() < BIN_COUNT


def test_python_adds_up_beside_the_recorder_in_python():
    assert arithmetic_of(python_implementation("a test asks for it")) is numpy_sums.NUMPY


def outside(rename=None):
    def no_name(outer, id):
        raise AssertionError

    return OutsideSections(np.zeros(ROWS, np.bool_), False, rename or no_name)


def arguments(events, pieces=1, room=None, table=ROWS):
    """Return what ``match_events`` is called with."""
    events = np.array(events, np.int64).reshape(-1, 2)
    room = len(events) // 2 + 1 if room is None else room
    is_outside = np.zeros(table, np.bool_)
    is_outside[:3] = [False, False, True]
    return [
        np.ascontiguousarray(events[:, 0]),
        np.ascontiguousarray(events[:, 1]),
        *no_events(),
        np.arange(1, pieces + 1) * 1000,
        0,
        is_outside,
        lambda outer, id: id + 8,
        MAX_OPEN,
        np.empty((3, room), np.int64),
        np.empty((3, room), np.int64),
        np.empty((2, room), np.bool_),
        np.empty((6, len(events) + pieces), np.int64),
        np.empty((2, MAX_OPEN), np.int64),
    ]


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1)), max_size=20))
def test_events_are_read_as_numpy_reads_them(pairs):
    implementation = implementation_of("C")
    flat = implementation.new_events()
    flat.extend([number for pair in pairs for number in pair])
    for memory in (flat[:], list(flat[:])):
        read, expected = arithmetic_of(implementation).read_events(memory), numpy_sums.read_events(memory)
        assert [column.tolist() for column in read] == [column.tolist() for column in expected]
        assert [column.dtype for column in read] == [np.int64, np.int64]


def test_events_are_written_only_where_there_is_room(native):
    rows = np.zeros((2, 2), np.int64)
    native.split_events(np.array([5, 1, 3, -1, 9]), rows)  # half an event is none
    assert rows.tolist() == [[5, 5], [1, -1]]
    with pytest.raises(ValueError, match="4 items and needs 6"):
        native.split_events(np.arange(6), rows)
    with pytest.raises(ValueError, match="another size"):
        native.split_events(np.zeros(3, np.int16), rows)
    with pytest.raises(TypeError):
        native.split_events(rows)


EVENTS = [(1, 2), (2, 1), (3, 1), (4, -1), (5, -1), (6, -2), (7, 3)]


@pytest.mark.parametrize("events", [EVENTS, [(1, 500)], [(1, 2), (2, -1)]])
def test_the_arrays_are_given_back_and_nothing_is_kept(native, events):
    given_arrays = arguments(events)
    lent = {at: bytearray(given_arrays[at].nbytes) for at in (9, 10, 11, 12, 13)}
    for at, memory in lent.items():
        given_arrays[at] = memory
    before = [sys.getrefcount(array) for array in given_arrays]
    with suppress(IndexError):
        found = native.match_events(*given_arrays)
        assert found == ((1, 3, 6, 1) if events is EVENTS else None)
    assert [sys.getrefcount(array) for array in given_arrays] == before
    for memory in lent.values():
        memory.append(0)  # raises BufferError while another reads it


@pytest.mark.parametrize("at", [1, 3, 9, 10, 11, 12, 13])
def test_a_short_array_is_refused(native, at):
    given_arrays = arguments(EVENTS)
    given_arrays[2], given_arrays[3] = np.ones(4, np.int64), np.ones(4, np.int64)
    given_arrays[at] = given_arrays[at].ravel()[:1].copy()
    with pytest.raises(ValueError, match=r"room|items"):
        native.match_events(*given_arrays)


def test_other_items_are_refused(native):
    given_arrays = arguments(EVENTS)
    given_arrays[0] = np.zeros(7, np.int16)
    with pytest.raises(ValueError, match="another size"):
        native.match_events(*given_arrays)
    given_arrays = arguments(EVENTS)
    given_arrays[9].setflags(write=False)
    with pytest.raises(ValueError, match="read-only"):
        native.match_events(*given_arrays)


def test_a_section_that_there_is_not_is_refused(native):
    for events in ([(1, 500)], [(1, 500), (2, -500)]):
        with pytest.raises(IndexError, match="no section 500"):
            native.match_events(*arguments(events))


def test_an_error_of_a_name_arrives(native):
    given_arrays = arguments(EVENTS)

    def rename(outer, id):
        raise KeyboardInterrupt

    given_arrays[7] = rename
    with pytest.raises(KeyboardInterrupt):
        native.match_events(*given_arrays)
    given_arrays[7] = lambda outer, id: -1
    with pytest.raises(ValueError, match="impossible id"):
        native.match_events(*given_arrays)


@pytest.mark.parametrize("seed", range(200))
def test_damaged_blocks_write_nowhere_else(native, seed):
    """Any integers: the call raises or returns; a write outside of its arrays is what AddressSanitizer finds."""
    rng = random.Random(seed)

    def damage(array):
        flat = array.reshape(-1)
        for _ in range(rng.randint(0, 3) if len(flat) else 0):
            flat[rng.randrange(len(flat))] = rng.choice((-(2**63), -(2**31), -1, 0, 5, 2**20, 2**40, 2**63 - 1))

    events = [(rng.randint(-5, 3000), rng.choice((1, 2, 3, -1, -2, -3))) for _ in range(rng.randint(0, 30))]
    given_arrays = arguments(sorted(events), rng.randint(1, 3))
    for array in given_arrays[:2] + given_arrays[4:5]:
        damage(array)
    try:
        found = native.match_events(*given_arrays)
    except (IndexError, ValueError):
        return
    if found is None:
        return
    leaves, spans, stretches, _ = found
    for array in (given_arrays[9], given_arrays[10], given_arrays[12]):
        damage(array)
    parts, sums = given_arrays[9:12], SectionSums(ROWS)
    counts = (leaves + rng.choice((0, 0, 0, 5)), spans + rng.choice((0, 0, 0, 1, 100, -100)))
    rows = np.array([rng.choice((0, 1, -1, -2, 99)) if rng.random() < 0.1 else 0 for _ in given_arrays[4]])
    out = np.zeros((3, ROWS), np.int64), np.zeros((2, ROWS), np.int64), np.zeros(2, np.int64), np.zeros(100, np.int64)
    for call in (
        lambda: native.sum_time(*parts, *counts, given_arrays[12], stretches, rows, 1, np.zeros(ROWS, np.bool_), *out),
        lambda: native.add_spans(*parts, counts[1], rows, 0, sums.columns_of_spans(), sums.parents, *bin_cells()),
    ):
        try:
            call()
        except (IndexError, ValueError):
            assert not sums.count.any()


def test_events_of_the_recorder_in_c_are_read_as_a_list_is(arithmetic):
    flat = [10, 1, 20, 2, 30, -2, 40, -1]
    native_events = implementation_of("C").new_events()
    native_events.extend(flat)
    both = []
    for events in (flat, native_events[:]):
        heard = Heard(arithmetic)
        heard.accumulator.add(Batch(BEGIN_NS + 100, [ThreadEvents(1, "", True, events)], []), TRAINING)
        both.append(heard.everything())
    assert both[0] == both[1]


def test_blocks_may_have_no_events(arithmetic):
    ends_ns = np.array([5, 9])
    block = arithmetic.attribute(no_events(), no_events(), ends_ns, 2, outside())
    assert [column.tolist() for column in block.stretches] == [[2, 5], [3, 4], [0, 0], [0, 0]]
    block = arithmetic.attribute(Events(np.array([3]), np.array([4])), no_events(), ends_ns, 2, outside())
    assert block.still_open.codes.tolist() == [4]
