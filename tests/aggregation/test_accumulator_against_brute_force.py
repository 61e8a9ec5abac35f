"""Random events, summed up by the accumulator and by brute force without shared code."""

import math
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.brute_force import BruteForce, Reading
from training_profiler.aggregation.accumulator import Accumulator
from training_profiler.base.sections import SectionNames
from training_profiler.recording.event_codes import EPOCH_BEGIN, EPOCH_END, STEP_END
from training_profiler.recording.recorder import Batch, ThreadEvents
from training_profiler.statistics.histogram import bins_of

NAMES = ("data_loading", "forward_pass", "a", "b", "validation_epoch", "sampling", "(profiler)")
PLAIN = 4  # the first four are not outside steps
BEGIN_NS = 1_000
TRAINING = 1

ticks = st.integers(1, 2_000)
sections = st.integers(1, len(NAMES))
enter = st.tuples(st.just("enter"), sections, ticks)
leave = st.tuples(st.just("leave"), st.just(0), ticks)  # exit of the innermost section
leave_any = st.tuples(st.just("leave any"), sections, ticks)  # of any name, open or not
mark = st.tuples(st.just("mark"), st.sampled_from((STEP_END, STEP_END, EPOCH_BEGIN, EPOCH_END)), ticks)
drain = st.tuples(st.just("drain"), st.just(0), ticks)
threads = st.integers(1, 3)

nested = st.lists(st.tuples(threads, st.one_of(enter, leave, leave, mark, drain)), max_size=80)
interleaved = st.lists(st.tuples(threads, st.one_of(enter, leave_any, leave_any, mark, drain)), max_size=80)


def batches_of(operations) -> list[Batch]:
    """Return the batches of a recorder, with events at least 1 ns apart; ends with a drain."""
    now_ns, batches, marks = BEGIN_NS, [], []
    events = {thread_id: [] for thread_id in (1, 2, 3)}
    opened = {thread_id: [] for thread_id in (1, 2, 3)}

    def hand_out():
        batches.append(
            Batch(now_ns, [ThreadEvents(thread_id, "", True, flat) for thread_id, flat in events.items()], list(marks))
        )
        for thread_id in events:
            events[thread_id] = []
        marks.clear()

    for thread_id, (what, which, ns) in operations:
        now_ns += ns
        if what == "enter":
            opened[thread_id].append(which)
            events[thread_id] += [now_ns, which]
        elif what == "leave" and opened[thread_id]:
            events[thread_id] += [now_ns, -opened[thread_id].pop()]
        elif what == "leave any":
            events[thread_id] += [now_ns, -which]
        elif what == "mark":
            marks += [now_ns, which]
        elif what == "drain":
            hand_out()
    now_ns += 1
    hand_out()
    return batches


def in_one_batch(batches: list[Batch]) -> Batch:
    """Return the batch of a single drain at the end."""
    flat = {thread_id: [] for thread_id in (1, 2, 3)}
    for batch in batches:
        for thread in batch.threads:
            flat[thread.thread_id] += thread.events
    return Batch(
        batches[-1].until_ns,
        [ThreadEvents(thread_id, "", True, events) for thread_id, events in flat.items()],
        [mark for batch in batches for mark in batch.marks],
    )


def accumulated(batches: list[Batch], sections: Sequence[str] = NAMES, has_inferred: bool = False) -> Accumulator:
    names = SectionNames()
    for name in sections:
        names.id_of(name)
    accumulator = Accumulator(names, BEGIN_NS)
    accumulator.inferred_filter.is_needed = has_inferred
    for batch in batches:
        accumulator.add(batch, TRAINING)
    return accumulator


def pairs(flat: list[int]) -> list[tuple[int, int]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def brute_force(batches: list[Batch]) -> Reading:
    reader = BruteForce(dict(enumerate(NAMES, 1)), BEGIN_NS, TRAINING)
    for batch in batches:
        threads = {thread.thread_id: (thread.is_alive, pairs(thread.events)) for thread in batch.threads}
        reader.add(batch.until_ns, threads, pairs(batch.marks))
    return reader.found


def nonzero(accumulator: Accumulator, column: str) -> dict[str, int]:
    """Return a column of the section sums by name, without empty rows."""
    names = accumulator._names.names
    values = getattr(accumulator.totals.sections, column).tolist()
    return {names[id]: value for id, value in enumerate(values) if value}


def figures_of(accumulator: Accumulator) -> dict[str, object]:
    """Return all sums in whole ns, by name."""
    names, sums = accumulator._names.names, accumulator.totals.sections
    columns = ("count", "total_ns", "self_ns", "elsewhere_ns", "step_self_ns", "step_total_ns", "after_ns")
    bins = {names[id]: row.nonzero()[0].tolist() for id, row in enumerate(sums.bins) if row.any()}
    return {
        **{column: nonzero(accumulator, column) for column in columns},
        "parents": {(names[parent], names[id]): count for (parent, id), count in sums.parents.items()},
        "bins": bins,
        "step_ns": accumulator.step_ns,
        "first_fetch_ns": accumulator.totals.first_fetch_ns,
        "dropped": accumulator.totals.dropped,
        "wall_ns": accumulator.totals.wall_ns,
    }


def assert_same(accumulator: Accumulator, found: Reading) -> None:
    durations: dict[str, list[int]] = {}
    for span in found.spans:
        durations.setdefault(span.name, []).append(span.ns)
    assert nonzero(accumulator, "count") == {name: len(own) for name, own in durations.items()}
    assert nonzero(accumulator, "total_ns") == {name: sum(own) for name, own in durations.items()}
    assert nonzero(accumulator, "self_ns") == {name: ns for name, ns in found.self_ns.items() if ns}
    assert nonzero(accumulator, "elsewhere_ns") == {name: ns for name, ns in found.elsewhere_ns.items() if ns}
    assert nonzero(accumulator, "step_self_ns") == {name: ns for name, ns in found.step_self_ns.items() if ns}
    assert nonzero(accumulator, "after_ns") == {name: ns for name, ns in found.after_ns.items() if ns}
    assert accumulator.step_ns == found.step_ns
    assert accumulator.totals.dropped == found.dropped
    assert accumulator.totals.first_fetch_ns == first_fetch_ns(found)
    assert_spread(accumulator, durations)
    ids = {name: id for id, name in accumulator._names.names.items()}
    edges = Counter((ids[span.parent], ids[span.name]) for span in found.spans)
    assert accumulator.totals.sections.parents == edges


def first_fetch_ns(found: Reading) -> int | None:
    fetches = [span for span in found.spans if span.name == "data_loading" and span.thread == TRAINING]
    return min((span.begin_ns, span.ns) for span in fetches)[1] if fetches else None


def assert_spread(accumulator: Accumulator, durations: dict[str, list[int]]) -> None:
    names, sums = accumulator._names.names, accumulator.totals.sections
    for id, name in names.items():
        own = durations.get(name, [])
        if not own:
            continue
        mean = math.fsum(own) / len(own)
        assert sums.mean_ns[id] == pytest.approx(mean, rel=1e-12)
        assert sums.m2[id] == pytest.approx(math.fsum((ns - mean) ** 2 for ns in own), rel=1e-9, abs=1e-6)
        assert (sums.min_ns[id], sums.max_ns[id]) == (min(own), max(own))
        assert {bin: count for bin, count in enumerate(sums.bins[id].tolist()) if count} == Counter(
            int(bins_of(ns)) for ns in own
        )


@pytest.mark.parametrize("events", [nested, interleaved], ids=["nested", "in any order"])
@given(st.data())
def test_events_match_brute_force(events, data):
    operations = data.draw(events)
    batches = batches_of(operations)
    assert_same(accumulated(batches), brute_force(batches))


@given(st.one_of(nested, interleaved))
def test_self_times_add_up_to_the_wall_time_exactly(operations):
    accumulator = accumulated(batches_of(operations))
    assert accumulator.totals.sections.self_ns.sum() == accumulator.totals.wall_ns


@given(st.one_of(nested, interleaved), st.integers(0, 5))
def test_a_stopped_clock_loses_no_time(operations, divisor):
    coarse = [(thread_id, (what, which, ns // 10**divisor)) for thread_id, (what, which, ns) in operations]
    accumulator = accumulated(batches_of(coarse))
    assert accumulator.totals.sections.self_ns.sum() == accumulator.totals.wall_ns


@st.composite
def training_loops(draw):
    """Return operations of a loop as users write it: sections end before their step or epoch."""
    operations = []

    def block(depth, names):
        for _ in range(draw(st.integers(0, 3))):
            thread_id = draw(st.sampled_from((1, 1, 1, 2)))
            operations.append((thread_id, ("enter", draw(names), draw(ticks))))
            if depth:
                block(depth - 1, names)
            maybe_drain()
            operations.append((thread_id, ("leave", 0, draw(ticks))))

    def maybe_drain():
        if draw(st.booleans()):
            operations.append((1, ("drain", 0, draw(ticks))))

    for _ in range(draw(st.integers(1, 3))):
        operations.append((1, ("mark", EPOCH_BEGIN, draw(ticks))))
        for _ in range(draw(st.integers(0, 4))):
            block(2, sections)
            operations.append((1, ("mark", STEP_END, draw(ticks))))
            maybe_drain()
        block(1, sections)
        operations.append((1, ("mark", EPOCH_END, draw(ticks))))
        block(1, sections)
    return operations


def in_thread_order(operations):
    """Leave out the other threads' events: their sections need not nest with those of the training thread."""
    return [operation for operation in operations if operation[0] == TRAINING]


@given(training_loops())
def test_shortest_and_longest_spans_have_the_right_steps(operations):
    batches = batches_of(operations)
    accumulator, found = accumulated(batches), brute_force(batches)
    sums = accumulator.totals.sections
    for id, name in accumulator._names.names.items():
        for extreme, step in ((sums.min_ns, sums.min_step), (sums.max_ns, sums.max_step)):
            candidates = {span.step for span in found.spans if (span.name, span.ns) == (name, extreme[id])}
            assert not candidates or int(step[id]) in candidates


@given(training_loops())
def test_time_within_steps_covers_spans_in_complete_steps(operations):
    batches = batches_of(in_thread_order(operations))
    accumulator = accumulated(batches)
    assert nonzero(accumulator, "step_total_ns") == in_complete_steps_ns(batches)


def in_complete_steps_ns(batches: list[Batch]) -> dict[str, int]:
    """Return the time of spans that lie in complete steps, without those inside sections outside steps."""
    one = in_one_batch(batches)
    ends = [BEGIN_NS, *one.marks[::2]]
    complete = [(begin, end) for begin, (end, kind) in zip(ends, pairs(one.marks), strict=False) if kind == STEP_END]
    totals: dict[str, int] = {}
    for span in brute_force([one]).spans:
        root = span.name.split("/")[0]
        is_outside = root in NAMES[PLAIN:] or span.parent.split("/")[0] in NAMES[PLAIN:]
        if is_outside or span.parent == span.name:
            continue
        if any(begin <= span.begin_ns and span.begin_ns + span.ns <= end for begin, end in complete):
            totals[span.name] = totals.get(span.name, 0) + span.ns
    return totals


plain = st.integers(1, PLAIN)
plain_interleaved = st.lists(
    st.tuples(
        threads,
        st.one_of(
            st.tuples(st.just("enter"), plain, ticks),
            st.tuples(st.just("leave any"), plain, ticks),
            st.tuples(st.just("leave any"), plain, ticks),
            drain,
        ),
    ),
    max_size=80,
)


# With nested or overlapping fetches the first one is that which ended first, as is the parent of overlapping sections.
@pytest.mark.parametrize(
    ("events", "unlike"),
    [
        (training_loops(), ["first_fetch_ns"]),
        (plain_interleaved, ["first_fetch_ns", "parents", "step_total_ns"]),
    ],
    ids=["a loop", "in any order"],
)
@given(data=st.data())
def test_sums_do_not_depend_on_batches(events, unlike, data):
    batches = batches_of(data.draw(events))
    many, one = figures_of(accumulated(batches)), figures_of(accumulated([in_one_batch(batches)]))
    for name in unlike:
        del many[name], one[name]
    assert many == one


def test_a_mark_made_during_a_drain_lies_within_the_batch():
    accumulator = accumulated([])
    # The drain read the clock at 1100; the training thread went on meanwhile.
    accumulator.add(Batch(1_100, [ThreadEvents(1, "", True, [1_010, 2, 1_050, -2])], [1_120, STEP_END]), TRAINING)
    accumulator.add(Batch(1_200, [ThreadEvents(1, "", True, [])], []), TRAINING)
    assert accumulator.totals.wall_ns == 200
    assert accumulator.totals.sections.self_ns.sum() == 200


def test_a_section_open_at_the_end_of_its_thread_is_counted():
    accumulator = accumulated([])
    accumulator.add(Batch(1_100, [ThreadEvents(2, "", False, [1_010, 2, 1_020, 3])], []), TRAINING)
    assert accumulator.totals.unended == 2
