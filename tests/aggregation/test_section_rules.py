"""Inferred sections together with manual ones."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.aggregation.test_accumulator_against_brute_force import BEGIN_NS, TRAINING, accumulated, nonzero
from tests.support.brute_force import BruteForce
from tests.support.recording import FakeRun
from training_profiler.base.sections import OUTSIDE_STEPS_SECTIONS, STEP_PARTS
from training_profiler.recording.event_codes import EPOCH_BEGIN, INFERRED, STEP_END, TIME_ONLY
from training_profiler.recording.recorder import Batch, ThreadEvents


class WatchedRun(FakeRun):
    """A run with inferred sections."""

    def __init__(self):
        super().__init__()
        self.accumulator.inferred_filter.is_needed = True

    def note(self, name, sign=1, code=0):
        """Record an inferred enter, or an exit with ``sign`` -1."""
        self.recorder.buffer().events.extend((self.clock(), sign * (self.names.id_of(name) | INFERRED | code)))

    def infer(self, name, seconds=1.0, code=0):
        """Pass one inferred span."""
        self.note(name, code=code)
        self.clock.advance(seconds)
        self.note(name, -1, code)

    def stats(self):
        """Return (counts, total s, self s) by name; times add up, and no event is left over."""
        totals = self.totals()
        sums, names = totals.sections, {0: "", **self.names.names}
        assert sums.self_ns.sum() == totals.wall_ns
        assert totals.dropped == 0
        assert self.accumulator.open_sections(self.recorder.thread_id()) == ()
        return tuple(
            {names[id]: value / unit for id, value in enumerate(column.tolist()) if value}
            for column, unit in ((sums.count, 1), (sums.total_ns, 1e9), (sums.self_ns, 1e9))
        )


@pytest.fixture
def run() -> WatchedRun:
    return WatchedRun()


def test_a_discarded_manual_section_hides_nothing_after_it(run):
    waiting = run.section("data_loading")
    waiting.__enter__()
    run.infer("data_loading")
    waiting.discard()
    run.infer("forward_pass")
    assert run.stats()[0] == {"forward_pass": 1}


def test_open_sections_of_a_thread_end_with_its_last_section(run):
    with run.section("forward_pass"):
        run.drain()
        run.infer("forward_pass")
        assert run.accumulator.inferred_filter._open
    run.drain()
    assert not run.accumulator.inferred_filter._open
    assert not run.accumulator.inferred_filter._dropped


# Time without a count


def test_a_mean_of_mostly_time_only_spans_has_no_extremes(run):
    run.infer("optimizer_step", 2)
    run.infer("optimizer_step", 9, TIME_ONLY)
    stats = run.snapshot().sections["optimizer_step"]
    assert (stats.count, stats.avg_s, stats.min_s, stats.max_s) == (1, 11.0, None, None)


def test_a_section_of_which_only_the_time_is_known_is_part_of_the_one_around_it(run):
    run.note("validation_epoch")
    run.infer("forward_pass", 2, TIME_ONLY)
    run.note("validation_epoch", -1)
    assert run.snapshot().sections["validation_epoch/forward_pass"].parent == "validation_epoch"


# Compared with brute force without shared code

NAMES = ("data_loading", "forward_pass", "custom", "validation_epoch", "checkpointing")
THREAD = TRAINING
MARKED_TIME_ONLY = 100  # added to ids for brute force, which has no codes

ticks = st.integers(1, 2_000)
enter = st.tuples(st.just("enter"), st.integers(1, len(NAMES)), st.sampled_from((0, INFERRED, INFERRED | TIME_ONLY)))
leave = st.tuples(st.just("leave"), st.just(0), st.just(0))
leave_inferred = st.tuples(st.just("leave inferred"), st.just(0), st.just(0))
mark = st.tuples(st.just("mark"), st.just(0), st.just(0))
drain = st.tuples(st.just("drain"), st.just(0), st.just(0))
# Patches end their sections in order; manual sections may end before or after them.
events = st.lists(
    st.tuples(st.one_of(enter, leave, leave, leave_inferred, mark, drain), ticks), min_size=20, max_size=60
)


def batches_of(operations):
    """Return (until, events, marks) of each batch; every section ends."""
    now_ns, batches, flat, marks, opened = BEGIN_NS, [], [], [(BEGIN_NS, EPOCH_BEGIN)], []

    def close(at):
        flat.append((now_ns, -opened.pop(at)))

    for (what, id, flags), ns in operations:
        now_ns += ns
        inferred = [at for at, code in enumerate(opened) if code & INFERRED]
        if what == "enter":
            is_outside = NAMES[id - 1] in OUTSIDE_STEPS_SECTIONS
            opened.append(id | (flags & ~TIME_ONLY if is_outside else flags))  # these are always counted
            flat.append((now_ns, opened[-1]))
        elif what == "leave" and opened:
            close(-1)
        elif what == "leave inferred" and inferred:
            close(inferred[-1])
        elif what == "mark":
            marks.append((now_ns, STEP_END))
        elif what == "drain":
            batches.append((now_ns, flat, marks))
            flat, marks = [], []
    while opened:
        now_ns += 1
        close(-1)
    return [*batches, (now_ns + 1, flat, marks)]


def admitted(batches):
    """Return the batches with the events that count and plain ids, filtered one event at a time."""
    names = dict(enumerate(NAMES, 1))
    manual, opened, result = [], [], []
    for until_ns, flat, marks in batches:
        kept = []
        for ns, code in flat:
            id, is_inferred, is_uncounted = abs(code) % INFERRED, abs(code) & INFERRED, abs(code) & TIME_ONLY
            if code > 0 and is_inferred:
                is_covered = any(name in STEP_PARTS for name in manual)
                outside = OUTSIDE_STEPS_SECTIONS
                is_covered |= names[id] in outside and any(name in outside for name in manual)
                opened.append((code, not is_covered))
                is_kept = not is_covered
            elif is_inferred:
                at = max(at for at, (entered, _) in enumerate(opened) if entered == -code)
                is_kept = opened.pop(at)[1]
            else:
                is_kept = True
                (manual.append if code > 0 else manual.remove)(names[id])
            if is_kept:
                plain = id + (MARKED_TIME_ONLY if is_uncounted else 0)
                kept.append((ns, plain if code > 0 else -plain))
        result.append((until_ns, kept, marks))
    return result


def read_slowly(batches, shown):
    """Return the result of brute force; ``shown`` names time without a count."""
    names = dict(enumerate(NAMES, 1))
    names |= {id + MARKED_TIME_ONLY: shown(name) for id, name in names.items()}
    reader = BruteForce(names, BEGIN_NS, THREAD)
    for until_ns, flat, marks in batches:
        reader.add(until_ns, {THREAD: (True, flat)}, marks)
    return reader.found


@given(events)
def test_filtered_events_match_brute_force(operations):
    batches = batches_of(operations)
    recorded = [
        Batch(until_ns, [ThreadEvents(THREAD, "", True, [*chain(*flat)])], [*chain(*marks)])
        for until_ns, flat, marks in batches
    ]
    accumulator = accumulated(recorded, NAMES, has_inferred=True)
    plain = admitted(batches)
    found = read_slowly(plain, lambda name: name)
    counted = [span.name for span in read_slowly(plain, lambda name: f"{name} uncounted").spans]
    total_ns = {}
    for span in found.spans:
        total_ns[span.name] = total_ns.get(span.name, 0) + span.ns
    assert nonzero(accumulator, "total_ns") == {name: ns for name, ns in total_ns.items() if ns}
    assert nonzero(accumulator, "self_ns") == {name: ns for name, ns in found.self_ns.items() if ns}
    assert accumulator.step_ns == found.step_ns
    assert accumulator.totals.dropped == found.dropped == 0
    assert nonzero(accumulator, "count") == {
        name: counted.count(name) for name in set(counted) if "uncounted" not in name
    }
