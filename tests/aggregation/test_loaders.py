"""Sums of each loader, compared with brute force without shared code."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.recording import FakeRun
from training_profiler.aggregation.loaders import (
    KINDS,
    LoaderSums,
    loader_stats,
    worker_stats,
)
from training_profiler.model.lines import WorkerLineStats
from training_profiler.model.loader_workers import TRAIN, VAL, WorkerLine, WorkerMemory, WorkerSums
from training_profiler.recording.data_loader import LoaderCounts
from training_profiler.recording.event_codes import TIME_ONLY

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
    """A run whose events are recorded one by one, as patches do."""

    def __init__(self, every=None):
        super().__init__()
        self.accumulator.loaders.configure_intervals(every is not None, every)

    def note(self, name, sign=1, code=0):
        self.recorder.buffer().events.extend((self.clock(), sign * (self.names.id_of(name) | code)))

    def comes_from(self, number):
        self.recorder.buffer().record_loader(number, self.clock())

    def found(self):
        """Return {(loader, phase, kind): (ns, count)} without zeros."""
        return found_in(self.totals().loaders)

    def batch(self, number, data=1.0, forward=2.0, backward=3.0):
        """Pass one batch of a loader; times in s."""
        self.comes_from(number)
        self.spend("data_loading", data)
        self.spend("forward_pass", forward)
        self.spend("backward_pass", backward)


def found_in(sums):
    return {
        (number, ("train", "val")[kind // KINDS], KIND_NAMES[kind % KINDS]): tuple(cell)
        for number, table in sums.tables.items()
        for kind, cell in enumerate(table.tolist())
        if any(cell)
    }


class SlowReading:
    """Evaluates one operation at a time."""

    def __init__(self):
        self.sums = Counter()
        self.rows = []  # (step, sums since the previous interval)
        self.since = Counter()
        self.stack = []
        self.loader = 0
        self.fetched = {"train": 0, "val": 0}  # the loader of the last batch
        self.arrival_ns = None
        self.was_outside = False
        self.steps = 0

    def read(self, what, which, ns):
        if what in ("enter", "uncounted"):
            root = next((name for _, _, name, _, _ in self.stack if name == "validation_epoch"), "")
            name = f"{root}/{which}" if root and root != which else which
            around = self.stack[-1][2] if self.stack else ""
            self.stack.append((ns, dict(self.fetched), name, name != around, what == "enter"))
            self.was_outside |= which == "validation_epoch"
        elif what == "leave" and self.stack:
            self._leave(ns, *self.stack.pop())
        elif what == "loader":
            self.loader = int(which)
        elif what == "step":
            self.steps += 1
            if self.since:
                self.rows.append((self.steps, +self.since))
            self.since = Counter()

    def _leave(self, ns, begin_ns, fetched, name, is_outermost, is_counted):
        plain = name.rpartition("/")[2]
        if plain not in KIND_OF or not is_outermost:
            return
        phase, kind = "val" if "/" in name else "train", KIND_NAMES[KIND_OF[plain]]
        loader = fetched[phase]
        if kind == "data":
            if not is_counted:
                return
            loader = self.fetched[phase] = self.loader
        if not loader:
            return
        self._add((loader, phase, kind), ns - begin_ns, is_counted)
        if (phase, kind) == ("train", "data"):
            if self.arrival_ns is not None and not self.was_outside:
                self._add((loader, "train", "between"), ns - self.arrival_ns, True)
            self.arrival_ns, self.was_outside = ns, False

    def _add(self, key, ns, count):
        for sums in (self.sums, self.since):
            sums[*key, "ns"] += ns
            sums[*key, "count"] += count


def by_key(sums):
    """Return {(loader, phase, kind): (ns, count)} of a counter by (loader, phase, kind, what)."""
    keys = {key[:-1] for key, value in sums.items() if value}
    return {key: (sums[*key, "ns"], sums[*key, "count"]) for key in keys}


@pytest.mark.parametrize("every", [1, None])
@given(listed=operations)
def test_loader_sums_match_brute_force_for_any_drains(listed, every):
    run, slow, opened = LoaderRun(every), SlowReading(), []
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
            rows += run.accumulator.loaders.pop_intervals()
        slow.read(what, which, run.clock())
    assert run.found() == by_key(slow.sums)
    if every is None:
        assert not rows
        return
    rows += run.accumulator.loaders.pop_intervals()
    assert [(row.step, found_in(row.sums)) for row in rows] == [(step, by_key(sums)) for step, sums in slow.rows]
    left = [found_in(row.sums) for row in run.accumulator.loaders.pop_intervals(is_last=True)]
    assert left == [by_key(slow.since)] * bool(by_key(slow.since))


def counts_of(*numbers, batches=1):
    counts = [LoaderCounts(f"loader{number}", number) for number in numbers]
    for one in counts:
        for _ in range(batches):
            one.add(4, 10**9, True)
    return counts


def test_fetches_on_other_threads_belong_to_no_loader():
    run = LoaderRun()
    run.recorder.thread_id()
    run.accumulator.add(run.recorder.drain(), training_thread=0)
    run.batch(1)
    run.accumulator.add(run.recorder.drain(), training_thread=0)
    assert run.found() == {}


def test_an_interval_has_its_means_and_the_mix_so_far():
    run = LoaderRun(every=2)
    for loader, data in ((1, 1), (1, 3), (2, 5), (2, 7)):
        run.batch(loader, data=data)
        run.step(optimizer_step=1)
    run.drain()
    rows = run.accumulator.loaders.pop_intervals()
    counts = counts_of(1, 2)
    counts[0].requested_share = 0.25
    shares = [
        (row.step, [(one.name, one.batches, one.data_avg_s, one.proportion) for one in row.stats(counts)])
        for row in rows
    ]
    assert shares == [
        (2, [("loader1", 2, 2.0, 1.0)]),
        (4, [("loader1", 0, None, 0.5), ("loader2", 2, 6.0, 0.5)]),
    ]
    assert rows[0].stats(counts)[0].requested_proportion == 0.25


def test_by_default_there_are_at_most_ten_intervals_a_second():
    run = LoaderRun()
    run.accumulator.loaders.configure_intervals(True, None)
    for _ in range(100):
        run.batch(1, data=0.01, forward=0.01, backward=0.01)
        run.step()
    run.drain()
    rows = run.accumulator.loaders.pop_intervals() + run.accumulator.loaders.pop_intervals(is_last=True)
    assert 28 <= len(rows) <= 32  # 3 s
    assert sum(row.stats(counts_of(1))[0].batches for row in rows) == 100


@pytest.mark.parametrize("phase", [TRAIN, VAL])
def test_a_loader_on_another_thread_has_batches_and_wait_only(phase):
    counts = LoaderCounts("main")
    counts.add(4, 2 * 10**9, phase == TRAIN)
    (stats,) = loader_stats([counts], LoaderRun().sums.run.loaders)
    assert (stats.phase, stats.batches, stats.wait_s, stats.data_avg_s) == (phase, 1, 2.0, None)


MS = 1_000_000
SUMS = WorkerSums(
    workers=2,
    batches=20,
    wall_ns=2_000 * MS,
    fetch_ns=1_600 * MS,
    slowest_ns=300 * MS,
    cpu_ns=1_200 * MS,
    queued_ns=200 * MS,
    sampling_ns=1 * MS,
    idle_samples=20,
    lines=(
        WorkerLine("transform", "data.py", 31, "Blur.__call__", "", 48),
        WorkerLine("fetch", "data.py", 20, "Pictures.__getitem__", "", 24),
        WorkerLine("collate", "", 0, "", "", 8),
    ),
    memory=(WorkerMemory(100, 150, 160), WorkerMemory(100, 210, 210, 50)),
)


LINES = (
    WorkerLineStats("data.py", 31, "Blur.__call__", 0.6, 48, "transform"),
    WorkerLineStats("data.py", 20, "Pictures.__getitem__", 0.3, 24, "fetch"),
)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, {"workers": 2, "batches": 20, "samples": 100, "busy": 0.8, "sampling_share": 0.0005, "batch_avg_s": 0.08}),
        ({}, {"cpu_avg_s": 0.06, "cpu_wait_avg_s": 0.01, "batch_max_s": 0.3, "lines": LINES}),
        ({}, {"phases": {"fetch": 0.24, "transform": 0.48, "collate": 0.08, "idle": 0.2}}),
        ({}, {"memory_bytes": 210, "memory_growth_bytes": 110, "memory_copied_bytes": 50}),
        ({"queued_ns": 1_800 * MS}, {"cpu_wait_avg_s": 0.02}),  # a worker also waits for a CPU between batches
        ({"queued_ns": 10 * MS, "cpu_ns": 1_900 * MS}, {"cpu_wait_avg_s": 0.0}),
        ({"waits": 100, "pin_waits": 40, "pinning": 20}, {"pinning_share": 0.5}),
        ({"waits": 100, "pin_waits": 29, "pinning": 20}, {"pinning_share": None}),
        ({"waits": 40, "held": 12}, {"in_order_wait_share": 0.3}),
        ({"waits": 29, "held": 12}, {"in_order_wait_share": None}),
        ({"lines": SUMS.lines[2:], "idle_samples": 5}, {"lines": (), "phases": {}}),
    ],
)
def test_stats_of_workers_are_means_of_a_batch_and_shares_of_enough_samples(changed, expected) -> None:
    stats = worker_stats(SUMS._replace(**changed))
    found = {name: getattr(stats, name) for name in expected}
    rounded = {name: round(value, 9) if isinstance(value, float) else value for name, value in found.items()}
    assert rounded == expected


def test_too_few_batches_say_nothing() -> None:
    assert worker_stats(SUMS._replace(batches=3)) is None
    assert worker_stats(None) is None


def test_workers_of_both_phases_are_said_once() -> None:
    counts, val = LoaderCounts("0"), LoaderCounts("1")
    for phase in ("train", "val"):
        counts.by_phase[phase].add(10, None)
    val.by_phase["val"].add(5, None)
    for each in (counts, val):
        each.use_workers(SUMS)
    stats = loader_stats([counts, val], LoaderSums())
    assert [(loader.name, loader.phase, loader.workers is not None) for loader in stats] == [
        ("0", "train", True),
        ("0", "val", False),
        ("1", "val", True),
    ]


def test_names_differ_within_a_phase_alone() -> None:
    loaders = [LoaderCounts(name) for name in ("a", "a", "a", "Set(7)")]
    for loader, other in zip(loaders, (["Set(7)"], ["Set(8)", "a.py:3"], ["Set(7)"], []), strict=True):
        loader.other_names = other
    for loader, phase in zip(loaders, ("train", "train", "val", "train"), strict=True):
        loader.by_phase[phase].add(10, None)
    loaders[0].by_phase["val"].add(10, None)
    assert [(loader.name, loader.phase) for loader in loader_stats(loaders, LoaderSums())] == [
        ("a", "train"),
        ("Set(8)", "train"),
        ("Set(7)", "train"),
        ("a", "val"),
        ("Set(7)", "val"),
    ]
