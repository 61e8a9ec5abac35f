"""Sums a loader, beside a slow reading of the same events that shares no code with them."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.recording import FakeRun
from training_profiler.aggregation.loaders import KINDS, MOST_CHANGES, interval_stats, loader_stats
from training_profiler.recording.data_loader import TRAIN, VAL, LoaderCounts
from training_profiler.recording.event_codes import LOADER, TIME_ONLY

KIND_NAMES = ("data", "forward", "backward", "optimizer", "between")
KIND_OF = {"data_loading": 0, "forward_pass": 1, "backward_pass": 2, "optimizer_step": 3}
NAMES = ("data_loading", "forward_pass", "optimizer_step", "validation_epoch", "a")
operations = st.lists(
    st.tuples(
        st.one_of(
            st.tuples(st.just("enter"), st.sampled_from(NAMES)),
            st.tuples(st.just("enter"), st.just("data_loading")),
            st.tuples(st.just("uncounted"), st.sampled_from(NAMES)),
            st.tuples(st.just("leave"), st.just("")),
            st.tuples(st.just("leave"), st.just("")),
            st.tuples(st.just("loader"), st.sampled_from("123")),
            st.tuples(st.just("step"), st.just("")),
            st.tuples(st.just("drain"), st.just("")),
        ),
        st.integers(1, 400_000_000),
    ),
    max_size=100,
)


class LoaderRun(FakeRun):
    """A run of which events are noted one by one, as seams note them."""

    def __init__(self, every=None):
        super().__init__()
        self.accumulator.loaders.wants_rows(every is not None, every)

    def note(self, name, sign=1, code=0):
        self.recorder.buffer().events.extend((self.clock(), sign * (self.names.id_of(name) | code)))

    def comes_from(self, serial):
        self.recorder.buffer().record_loader(serial, self.clock())

    def found(self):
        """Return {(loader, phase, kind): (ns, count)} of all that is not nothing."""
        return found_in(self.totals().loaders)

    def batch(self, serial, data=1.0, forward=2.0, backward=3.0):
        """Pass one batch of a loader; times in s."""
        self.comes_from(serial)
        self.spend("data_loading", data)
        self.spend("forward_pass", forward)
        self.spend("backward_pass", backward)


def found_in(sums):
    return {
        (serial, ("train", "val")[kind // KINDS], KIND_NAMES[kind % KINDS]): tuple(cell)
        for serial, table in sums.tables.items()
        for kind, cell in enumerate(table.tolist())
        if any(cell)
    }


class SlowReading:
    """Reads operations one after the other."""

    def __init__(self):
        self.sums = Counter()
        self.rows = []  # (step, sums since the row before)
        self.since = Counter()
        self.stack = []
        self.loader = 0
        self.arrival_ns = None
        self.was_apart = False
        self.steps = 0

    def read(self, what, which, ns):
        if what in ("enter", "uncounted"):
            root = next((name for _, _, name, _, _ in self.stack if name == "validation_epoch"), "")
            name = f"{root}/{which}" if root and root != which else which
            around = self.stack[-1][2] if self.stack else ""
            self.stack.append((ns, self.loader, name, name != around, what == "enter"))
            self.was_apart |= which == "validation_epoch"
        elif what == "leave" and self.stack:
            self._leave(ns, *self.stack.pop())
        elif what == "loader":
            self.loader = int(which)
        elif what == "step":
            self.steps += 1
            if self.since:
                self.rows.append((self.steps, +self.since))
            self.since = Counter()

    def _leave(self, ns, begin_ns, loader, name, is_outermost, is_counted):
        plain = name.rpartition("/")[2]
        if plain not in KIND_OF or not is_outermost:
            return
        phase, kind = "val" if "/" in name else "train", KIND_NAMES[KIND_OF[plain]]
        if kind == "data":
            loader = self.loader
            if not is_counted:
                return
        if not loader:
            return
        self._add((loader, phase, kind), ns - begin_ns, is_counted)
        if (phase, kind) == ("train", "data"):
            if self.arrival_ns is not None and not self.was_apart:
                self._add((loader, "train", "between"), ns - self.arrival_ns, True)
            self.arrival_ns, self.was_apart = ns, False

    def _add(self, key, ns, count):
        for sums in (self.sums, self.since):
            sums[*key, "ns"] += ns
            sums[*key, "count"] += count


def by_key(sums):
    """Return {(loader, phase, kind): (ns, count)} of a counter by (loader, phase, kind, what)."""
    keys = {key[:-1] for key, value in sums.items() if value}
    return {key: (sums[*key, "ns"], sums[*key, "count"]) for key in keys}


@given(operations)
def test_sums_are_those_of_a_slow_reading_however_the_events_are_drained(listed):
    run, slow, opened = LoaderRun(every=1), SlowReading(), []
    rows = []
    for (what, which), ns in listed:
        run.clock.advance_ns(ns)
        code = TIME_ONLY if what == "uncounted" else 0
        if what in ("enter", "uncounted"):
            run.note(which, code=code)
            opened.append((which, code))
        elif what == "leave" and opened:
            name, code = opened.pop()
            run.note(name, -1, code)
        elif what == "loader":
            run.comes_from(int(which))
        elif what == "step":
            run.step()
        elif what == "drain":
            run.drain()
            rows += run.accumulator.loaders.take_rows()
        slow.read(what, which, run.clock())
    assert run.found() == by_key(slow.sums)
    rows += run.accumulator.loaders.take_rows()
    assert [(row.step, found_in(row.sums)) for row in rows] == [(step, by_key(sums)) for step, sums in slow.rows]
    left = [found_in(row.sums) for row in run.accumulator.loaders.take_rows(is_last=True)]
    assert left == [by_key(slow.since)] * bool(by_key(slow.since))


def counts_of(*serials, batches=1):
    counts = [LoaderCounts(f"loader{serial}", serial) for serial in serials]
    for one in counts:
        for _ in range(batches):
            one.add(4, 10**9, True)
    return counts


def test_every_timing_belongs_to_the_loader_that_the_batch_came_from():
    run = LoaderRun()
    run.batch(1, data=1, forward=2, backward=3)
    run.batch(2, data=10, forward=20, backward=30)
    run.spend("optimizer_step", 5)
    run.flush()
    first, second = loader_stats(counts_of(1, 2), run.sums.run.loaders)
    assert (first.data_avg_s, first.forward_avg_s, first.backward_avg_s, first.optimizer_avg_s) == (1, 2, 3, None)
    assert (second.data_avg_s, second.forward_avg_s, second.backward_avg_s, second.optimizer_avg_s) == (10, 20, 30, 5)
    assert (first.batch_wait_avg_s, second.batch_wait_avg_s) == (None, 15)
    assert (first.proportion, first.wait_s, first.samples) == (0.5, 1, 4)


def test_two_forward_passes_of_a_batch_are_one_figure_a_batch():
    run = LoaderRun()
    run.batch(1, forward=2)
    run.spend("forward_pass", 4)
    run.flush()
    (stats,) = loader_stats(counts_of(1), run.sums.run.loaders)
    assert stats.forward_avg_s == 6


def test_time_between_batches_does_not_reach_across_a_validation():
    run = LoaderRun()
    run.batch(1)
    with run.section("validation_epoch"):
        run.batch(2, data=7)
    run.batch(1)
    run.batch(1)
    run.flush()
    sums = run.sums.run.loaders
    assert found_in(sums)[1, "train", "between"] == (6_000_000_000, 1)
    counts = counts_of(1, 2)
    counts[1].by_phase[VAL], counts[1].by_phase[TRAIN] = counts[1].by_phase[TRAIN], counts[1].by_phase[VAL]
    train, val = loader_stats(counts, sums)
    assert (train.phase, val.phase, val.data_avg_s, val.batch_wait_avg_s, val.proportion) == (
        "train",
        "val",
        7,
        None,
        1,
    )


def test_a_section_by_hand_around_the_fetch_is_of_the_loader_that_is_fetched_from():
    run = LoaderRun()
    run.batch(1)
    with run.section("data_loading"):
        run.clock.advance(1)
        run.comes_from(2)
        run.clock.advance(1)
    assert run.found()[2, "train", "data"] == (2_000_000_000, 1)


def test_a_run_without_a_change_of_loader_sums_up_nothing():
    run = LoaderRun()
    run.step(data_loading=1, forward_pass=2)
    assert run.found() == {}


def test_what_another_thread_fetches_is_nobodys():
    run = LoaderRun()
    run.recorder.thread_id()
    run.accumulator.add(run.recorder.drain(), training_thread=0)
    run.batch(1)
    run.accumulator.add(run.recorder.drain(), training_thread=0)
    assert run.found() == {}


def test_changes_of_loader_that_nobody_needs_any_more_are_forgotten():
    run = LoaderRun()
    run.note("forward_pass")
    for i in range(2 * MOST_CHANGES):
        run.clock.advance_ns(1)
        run.comes_from(1 + i % 2)
    run.drain()
    assert len(run.accumulator.loaders._serials) == MOST_CHANGES
    run.note("forward_pass", -1)
    run.drain()
    assert run.accumulator.loaders._serials.tolist() == [2]


def test_a_row_holds_the_means_of_the_batches_since_the_row_before_and_the_mix_so_far():
    run = LoaderRun(every=2)
    for loader, data in ((1, 1), (1, 3), (2, 5), (2, 7)):
        run.batch(loader, data=data)
        run.step(optimizer_step=1)
    run.drain()
    rows = run.accumulator.loaders.take_rows()
    counts = counts_of(1, 2)
    counts[0].requested_share = 0.25
    told = [
        (row.step, [(one.name, one.batches, one.data_avg_s, one.proportion) for one in interval_stats(row, counts)])
        for row in rows
    ]
    assert told == [
        (2, [("loader1", 2, 2.0, 1.0)]),
        (4, [("loader1", 0, None, 0.5), ("loader2", 2, 6.0, 0.5)]),
    ]
    assert interval_stats(rows[0], counts)[0].asked_proportion == 0.25


def test_rows_of_validation_come_with_the_next_step_or_at_the_end():
    run = LoaderRun(every=1)
    run.batch(1)
    run.step(optimizer_step=1)
    with run.section("validation_epoch"):
        run.batch(2)
    run.drain()
    assert [row.step for row in run.accumulator.loaders.take_rows()] == [1]
    (row,) = run.accumulator.loaders.take_rows(is_last=True)
    assert [(one.name, one.phase) for one in interval_stats(row, counts_of(1, 2))][-1] == ("loader2", "val")
    assert row.step == 1


def test_without_a_setting_there_are_at_most_ten_rows_a_second():
    run = LoaderRun()
    run.accumulator.loaders.wants_rows(True, None)
    for _ in range(100):
        run.batch(1, data=0.01, forward=0.01, backward=0.01)
        run.step()
    run.drain()
    rows = run.accumulator.loaders.take_rows() + run.accumulator.loaders.take_rows(is_last=True)
    assert 28 <= len(rows) <= 32  # 3 s
    assert sum(interval_stats(row, counts_of(1))[0].batches for row in rows) == 100


def test_the_code_of_a_loader_is_no_section():
    assert LOADER > 1 << 25


@pytest.mark.parametrize("phase", [TRAIN, VAL])
def test_a_loader_on_another_thread_has_its_batches_and_their_wait_and_no_means(phase):
    counts = LoaderCounts("main")
    counts.add(4, 2 * 10**9, phase == TRAIN)
    (stats,) = loader_stats([counts], LoaderRun().sums.run.loaders)
    assert (stats.phase, stats.batches, stats.wait_s, stats.data_avg_s) == (phase, 1, 2.0, None)
