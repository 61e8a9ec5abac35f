"""Exposed gradient sync becomes synchronization within the backward passes, and all times still add up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.recording import FakeRun
from training_profiler.model.ranks import GradientSyncTotals
from training_profiler.recording.event_codes import STEP_END
from training_profiler.storage.run_reader import read_run

S = 1_000_000_000


@pytest.fixture
def run() -> FakeRun:
    return FakeRun()


def exchanged(seconds, exchanges=1, hidden_s=0.0, **others):
    return GradientSyncTotals(exchanges, exchanges, round((seconds + hidden_s) * S), round(hidden_s * S), **others)


def add_sync(run, of):
    run.drain()
    run.accumulator.add_gradient_sync(of)


def sums_of(run, name):
    """Return (count, total, self, total in steps, self in steps) in s of a section in the current totals."""
    sections = run.accumulator.totals.sections
    id = run.names.id_of(name)
    columns = (sections.total_ns, sections.self_ns, sections.step_total_ns, sections.step_self_ns)
    return (int(sections.count[id]), *(int(column[id]) / S for column in columns))


def test_late_sync_is_moved_in_the_sums_of_the_run(run):
    run.step(backward_pass=68)  # a rank that hung; DDP reports it at the next forward pass
    run.flush()
    run.step(backward_pass=2)
    add_sync(run, exchanged(67.5))
    run.flush()
    run.step(backward_pass=2)
    add_sync(run, exchanged(1))
    assert sums_of(run, "backward_pass") == (1, 2, 1, 2, 1)  # the last interval has its own waiting only
    run.flush()
    sections = run.snapshot().sections
    assert sections["backward_pass"].self_s == 72 - 68.5
    assert sections["synchronization"].step_self_s == 68.5
    assert sum(section.share for section in sections.values()) == pytest.approx(1)


def test_sync_is_moved_without_known_steps(run):
    run.spend("backward_pass", 5)
    add_sync(run, exchanged(3))
    assert sums_of(run, "backward_pass") == (1, 5, 2, 0, 0)
    assert sums_of(run, "synchronization") == (1, 3, 3, 0, 0)


def test_on_an_accelerator_or_without_a_backward_section_nothing_is_moved(run):
    run.step(train_step=5)
    add_sync(run, exchanged(3))
    run.step(train_step=5, backward_pass=5)
    add_sync(run, exchanged(3, is_on_host=False))
    assert sums_of(run, "backward_pass") == (1, 5, 5, 5, 5)
    assert "synchronization" not in run.snapshot().sections


def test_sync_of_warmup_steps_is_left_out_with_them(run):
    run.step(backward_pass=50)
    run.steps(19, backward_pass=3)
    of_steps = ((0, 40 * S), *((step, 1 * S) for step in range(1, 20)))
    add_sync(run, exchanged(59, exchanges=20, of_steps=of_steps))
    synchronization = run.snapshot().sections["synchronization"]
    assert synchronization.total_s == synchronization.step_total_s == 59
    assert synchronization.settled_total_s == 19


def test_late_sync_of_a_step_is_not_counted_twice(run):
    run.step(backward_pass=50)
    add_sync(run, exchanged(40))
    run.flush()
    run.steps(19, backward_pass=3)
    add_sync(run, exchanged(0, exchanges=0, of_steps=((0, 40 * S),)))
    synchronization = run.snapshot().sections["synchronization"]
    assert (synchronization.count, synchronization.total_s, synchronization.settled_total_s) == (1, 40, 0)


def test_moved_sync_reads_back_from_the_journal(tmp_path):
    run = FakeRun(journal=tmp_path / "rank0.jsonl")
    for of_steps in ((), ((0, 2 * S), (1, 1 * S))):
        run.steps(10, forward_pass=1, backward_pass=3)
        add_sync(run, exchanged(9, exchanges=10, hidden_s=3, of_steps=of_steps))
        run.flush()
    assert read_run(tmp_path).sections == run.snapshot().sections


def test_with_manual_collectives_only_the_common_average_is_known(run):
    run.steps(2, synchronization=4, backward_pass=3)
    add_sync(run, exchanged(2, exchanges=2))
    synchronization = run.snapshot().sections["synchronization"]
    assert (synchronization.count, synchronization.total_s, synchronization.avg_s) == (4, 10, 2.5)
    assert (synchronization.min_s, synchronization.p50_s) == (None, None)


amounts = st.integers(0, 6)


@given(st.lists(st.tuples(amounts, amounts, st.booleans()), min_size=1, max_size=8))
def test_all_times_add_up_for_any_sync(intervals):
    run = FakeRun()
    for backward_s, exposed_s, ends_step in intervals:
        run.spend("forward_pass", 1)
        run.spend("backward_pass", backward_s)
        if ends_step:
            run.recorder.mark(STEP_END)
        add_sync(run, exchanged(exposed_s))
        totals = run.accumulator.totals
        assert totals.sections.self_ns.sum() == totals.wall_ns
        assert totals.sections.step_self_ns.sum() == totals.steps.total_ns
        assert (totals.sections.self_ns >= 0).all()
        run.flush()
    run_sums = run.sums.run.sections
    backward, synchronization = (run.names.id_of(name) for name in ("backward_pass", "synchronization"))
    moved_ns = run_sums.total_ns[synchronization]
    assert moved_ns <= sum(exposed_s for _, exposed_s, _ in intervals) * S
    assert run_sums.self_ns[backward] == run_sums.total_ns[backward] - moved_ns
    assert (run_sums.self_ns >= 0).all()
    assert run_sums.self_ns.sum() == run.sums.run.wall_ns
    assert (run_sums.step_self_ns >= 0).all()
