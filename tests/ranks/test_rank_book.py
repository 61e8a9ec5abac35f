"""What a rank tells: sums after warm-up, the steps that are compared, paces, places, DDP's exchange."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.recording import FakeRun
from training_profiler.ranks.summary import (
    MOST_BUCKETS,
    UNKNOWN_NS,
    RankSection,
    RankSummary,
    StepTimeBucket,
    SyncPoint,
    rank_summary_from_data,
)
from training_profiler.ranks.summary_builder import ComparedBlocks, RankSummaryBuilder
from training_profiler.recording.gradient_sync import GradientSyncTotals
from training_profiler.sampling.line_sampler import Location
from training_profiler.snapshot.ranks import GradientSyncStats, RankId

MS = 1_000_000
NOTHING = GradientSyncTotals()
WHO = RankId(3, 4, "node1")


class Book:
    """A run on a fake clock, and what its rank tells of it."""

    def __init__(self, warmup: int | None = None) -> None:
        self.run = FakeRun(warmup)
        self.book = RankSummaryBuilder(self.run.names)
        self.book.warmup_steps = warmup

    def flush(self, exchanged: GradientSyncTotals = NOTHING, of_steps: list[tuple[int, int]] | None = None) -> None:
        self.run.drain()
        totals, step_ns = self.run.accumulator.take_totals()
        self.run.sums.add(totals, step_ns)
        self.book.add(totals, step_ns, exchanged._replace(of_steps=tuple(of_steps or exchanged.of_steps)))

    def told(self, **rest) -> RankSummary:
        return self.book.sums(WHO, self.run.sums.run, self.run.names.names, **rest)


def test_sections_are_summed_up_after_warm_up_with_and_without_nested_ones():
    book = Book()
    for step in range(20):
        with book.run.section("forward_pass"):
            book.run.clock.advance(1.0 if step == 0 else 0.002)
            book.run.spend("attention", 0.003)
        book.run.clock.advance(0.001)
        book.run.step(synchronization=0.004)
    book.flush()
    told = book.told()
    assert (told.steps, told.settled_steps, told.settled_ns) == (20, 19, 19 * 10 * MS)
    assert told.sections["forward_pass"] == RankSection(20, 1000 * MS + 19 * 2 * MS + 60 * MS, 19 * 5 * MS, 19 * 2 * MS)
    assert told.sections["attention"] == RankSection(20, 60 * MS, 19 * 3 * MS, 19 * 3 * MS)
    assert told.sections["other"] == RankSection(0, 0, 19 * MS, 19 * MS)
    assert told.sync_ns == 19 * 4 * MS
    assert told.knows_sync


def test_work_between_steps_is_told_by_its_spans():
    book = Book()
    for _ in range(12):
        book.run.step(forward_pass=0.01)
        book.run.spend("checkpointing", 0.5)
    book.flush()
    assert book.told().sections["checkpointing"] == RankSection(12, 12 * 500 * MS)


def test_without_any_exchange_its_time_is_not_known():
    book = Book()
    for _ in range(12):
        book.run.step(forward_pass=0.01)
    book.flush()
    assert not book.told().knows_sync


def test_an_exchange_whose_time_ddp_does_not_tell_is_not_known_whatever_else_is_seen():
    book = Book()
    for _ in range(12):
        book.run.step(forward_pass=0.01, synchronization=0.001)
    book.flush(GradientSyncTotals(exchanges=12))
    assert not book.told().knows_sync
    assert book.book.gradient_sync_stats() is None


def test_the_steps_of_blocks_are_told_one_by_one():
    book = Book()
    for step in range(33):
        book.run.step(forward_pass=0.01, synchronization=0.001 * (step + 1))
    book.flush()
    assert book.told().blocks == {0: [MS * (i + 1) for i in range(16)], 16: [MS * (i + 17) for i in range(16)]}


def test_a_block_goes_on_over_flushes():
    book = Book()
    for step in range(16):
        book.run.step(forward_pass=0.01, synchronization=0.001)
        if step % 5 == 1:
            book.flush()
    assert book.told().blocks == {}
    book.flush()
    assert book.told().blocks == {0: [MS] * 16}


def test_exchange_that_ddp_tells_of_a_step_is_added_when_it_comes():
    book = Book()
    for _ in range(16):
        book.run.step(backward_pass=0.01, synchronization=0.001)
    book.flush(GradientSyncTotals(15, 15, 30 * MS, 0), [(step, 2 * MS) for step in range(15)])
    assert book.told().blocks == {}, "what the last step exchanged is known after the next"
    book.flush(GradientSyncTotals(1, 1, 2 * MS, 0), [(15, 2 * MS)])
    assert book.told().blocks == {0: [3 * MS] * 16}


def test_a_step_of_which_ddp_tells_nothing_is_unknown_and_not_zero():
    book = Book()
    for _ in range(16):
        book.run.step(backward_pass=0.01)
    book.flush(GradientSyncTotals(15, 15, 30 * MS, 0), [(step, 2 * MS) for step in range(16) if step != 7])
    assert book.told().blocks == {0: [2 * MS] * 7 + [UNKNOWN_NS] + [2 * MS] * 8}


@given(steps=st.integers(0, 3000), flush_every=st.integers(1, 700))
def test_the_blocks_that_are_told_are_those_of_a_slow_reading(steps, flush_every):
    book = ComparedBlocks()
    for first in range(0, steps, flush_every):
        end = min(steps, first + flush_every)
        book.add({step: [0, step] for step in range(first, end) if reads(step)}, 1, [])
    whole = steps // 16
    begun = (steps + 15) // 16
    stride = 1
    while begun / stride > 8:
        stride *= 2
    told = book.told()
    kept = {16 * block for block in range(whole) if block % stride == 0}
    assert told.keys() >= kept
    assert len(told) <= 8
    assert all(ns == list(range(first, first + 16)) for first, ns in told.items())


def reads(step: int) -> bool:
    stride = 1
    while (step + 1) / (16 * stride) > 8:
        stride *= 2
    return step // 16 % stride == 0


def test_paces_are_of_steps_and_their_synchronization():
    book = Book()
    for ms in (10, 20):
        for _ in range(5):
            book.run.step(forward_pass=ms / 1000, synchronization=0.001)
        book.flush()
    assert book.told().step_times == [StepTimeBucket(5, 55 * MS, 5 * MS), StepTimeBucket(5, 105 * MS, 5 * MS)]


def test_synchronization_of_a_flush_without_a_step_counts_for_the_next():
    book = Book()
    book.run.step(forward_pass=0.01)
    book.flush()
    book.flush(GradientSyncTotals(1, 1, 3 * MS, MS, is_on_host=False))
    book.run.step(forward_pass=0.01)
    book.flush()
    assert book.told().step_times == [StepTimeBucket(1, 10 * MS, 0), StepTimeBucket(1, 10 * MS, 2 * MS)]


def test_paces_are_bounded_and_lose_nothing():
    book = Book()
    for _ in range(1000):
        book.run.step(forward_pass=0.01)
        book.flush()
    paces = book.told().step_times
    assert len(paces) <= MOST_BUCKETS
    assert sum(pace.steps for pace in paces) == 1000
    assert sum(pace.step_ns for pace in paces) == 1000 * 10 * MS
    assert max(pace.steps for pace in paces) <= 64


def test_the_hottest_line_of_a_section_is_told_once_it_has_been_seen_often_enough():
    book = Book()
    book.run.step(forward_pass=0.01)
    with book.run.section("data_loading"):
        for _ in range(29):
            book.run.look(Location("train.py", 31, "fetch"))
            book.run.clock.advance(0.001)
        book.flush()
        assert "data_loading" not in book.told().places
        book.run.look(Location("train.py", 32, "fetch"))
        book.run.clock.advance(0.001)
    book.run.step()
    book.flush()
    assert book.told().places == {"data_loading": "train.py:31 fetch"}


def test_a_section_with_little_time_has_no_place():
    book = Book()
    book.run.step(forward_pass=10.0)
    with book.run.section("data_loading"):
        for _ in range(40):
            book.run.look(Location("train.py", 31, "fetch"))
            book.run.clock.advance(0.001)
    book.run.step()
    book.flush()
    assert book.told().places == {}


def test_the_exchange_of_gradients_is_told_as_means():
    book = Book()
    book.flush(GradientSyncTotals(10, 5, 40 * MS, 10 * MS))
    book.flush(GradientSyncTotals(10, 5, 40 * MS, 30 * MS))
    assert book.book.gradient_sync_stats() == GradientSyncStats(20, 10, 0.004, overlap=0.5, exposed_s=0.002)
    told = book.told()
    assert (told.exchanges, told.sampled, told.exchange_ns, told.exchange_hidden_ns) == (20, 10, 80 * MS, 40 * MS)


def test_exchange_that_no_host_waits_for_counts_as_synchronization_beside_the_sections():
    book = Book()
    for _ in range(20):
        book.run.step(backward_pass=0.01)
    book.flush(GradientSyncTotals(20, 2, 20 * 3 * MS, 20 * MS, is_on_host=False))
    told = book.told()
    assert told.knows_sync
    assert told.sync_ns == 20 * 2 * MS


def on_device(device_ms: dict[str, int], steps: int = 20) -> Book:
    """Return a run whose host queues work for 1 ms a section; ``attention`` is nested in the forward pass."""
    book = Book()
    for _ in range(steps):
        with book.run.section("forward_pass"):
            book.run.clock.advance(0.001)
            book.run.spend("attention", 0.001)
        book.run.step(backward_pass=0.001, synchronization=0.001)
        book.run.clock.advance(0.05)
    book.run.drain()
    for name, ms in device_ms.items():
        for _ in range(steps):
            book.run.accumulator.add_device_time(book.run.names.id_of(name), ms * MS)
    return book


def test_on_an_accelerator_its_own_time_is_told_beside_the_hosts():
    book = on_device({"forward_pass": 10, "attention": 4, "backward_pass": 20, "synchronization": 3})
    book.flush()
    told = book.told()
    forward = told.sections["forward_pass"]
    assert (forward.step_ns, forward.own_step_ns) == (20 * 2 * MS, 20 * MS)
    assert (forward.device_step_ns, forward.device_own_ns) == (20 * 10 * MS, 20 * 6 * MS)
    assert told.sync_ns == 20 * 3 * MS
    assert told.knows_sync


def test_on_an_accelerator_exchange_that_only_the_host_was_timed_of_is_not_known():
    book = on_device({"forward_pass": 10, "backward_pass": 20})
    book.flush()
    assert not book.told().knows_sync


def test_on_an_accelerator_exposed_exchange_is_no_part_of_the_backward_passes_own_time():
    book = on_device({"backward_pass": 20})
    book.flush(GradientSyncTotals(20, 2, 20 * 6 * MS, 20 * MS, is_on_host=False))
    told = book.told()
    assert told.sections["backward_pass"].device_own_ns == 20 * 15 * MS
    assert told.sync_ns == 20 * 6 * MS  # with 1 ms of synchronization that the host has seen


def test_what_is_told_survives_json():
    book = Book()
    for _ in range(40):
        book.run.step(forward_pass=0.01, synchronization=0.001)
    book.flush(GradientSyncTotals(1, 1, MS, 0))
    told = book.told(
        sent_ns=5, sync_points=[SyncPoint("all:0", 1, 2)], inside=["forward_pass"], is_final=True, ended_by="SIGTERM"
    )
    assert rank_summary_from_data(json.loads(json.dumps(told.to_data(), allow_nan=False))) == told


def test_a_line_of_the_journal_has_more_keys_and_is_read():
    told = RankSummary(who=WHO, steps=5)
    read = rank_summary_from_data({"kind": "rank", **json.loads(json.dumps(told.to_data()))})
    assert (read.who, read.steps) == (WHO, 5)


def test_names_of_other_processes_are_made_fit_to_print():
    data = RankSummary(who=RankId(1, 2, "a\x1b[31mb"), sections={"x\n": RankSection()}).to_data()
    told = rank_summary_from_data(json.loads(json.dumps(data)))
    assert told.who.host == "a\\x1b[31mb"
    assert list(told.sections) == ["x\\n"]


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"who": {"rank": "x", "world_size": 2}},
        {"who": None},
        {"who": {"rank": 1}},
        {"who": {"rank": -1, "world_size": 2}},
        {"who": {"rank": 1, "world_size": 2**63}},
        {"knows_sync": "yes"},
        {"sections": None},
        {"paces": [[1, 2, 3, 4]]},
        {"sections": {"a": ["b"]}},
        {"steps": float("inf")},
        {"blocks": {"a": [0] * 16}},
        {"blocks": {"0": [0] * 15}},
        {"steps": -1},
        {"steps": 1.5},
        {"settled_ns": 2**63},
        {"ended_by": 5},
        {"meetings": [["all:0", 1]]},
    ],
)
def test_data_of_another_form_is_refused(change):
    data = {**RankSummary(who=WHO).to_data(), **change}
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError, OverflowError)):
        rank_summary_from_data(data)


@pytest.mark.parametrize("key", ["who", "sections", "paces", "blocks", "places", "meetings", "inside", "is_final"])
def test_a_summary_without_a_required_key_is_refused(key):
    data = RankSummary(who=WHO).to_data()
    del data[key]
    with pytest.raises(KeyError, match=key):
        rank_summary_from_data(data)


def test_columns_of_a_later_version_are_ignored():
    data = {**RankSummary(who=WHO).to_data(), "sections": {"forward_pass": list(range(12))}}
    assert rank_summary_from_data(data).sections["forward_pass"] == RankSection(*range(8))


def test_the_number_of_tellings_grows():
    book = Book()
    assert (book.told().number, book.told().number) == (1, 2)
