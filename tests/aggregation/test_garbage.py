"""Garbage collections belong to the step in which they begin, and explain a part of the variance of step time."""

import subprocess
import sys

import pytest

from tests.support.recording import FakeRun, collecting
from training_profiler.model.machine import ASKED, CollectionStats
from training_profiler.model.snapshot import GarbageStats
from training_profiler.recording.event_codes import EPOCH_BEGIN, EPOCH_END


def garbage_of(run: FakeRun) -> GarbageStats:
    garbage = run.snapshot().garbage
    assert garbage is not None
    return garbage


def test_collections_are_counted_by_generation_and_step() -> None:
    run = collecting()
    for step in range(20):
        with run.section("forward_pass"):
            run.clock.advance(0.1)
            run.collect(0.01, 0)
            if step % 5 == 4:
                run.collect(0.2 + 0.01 * step)
                run.collect(0.02, 1)
                run.collect(0.02, 1)
        run.step()
        if step % 3 == 0:
            run.flush()
    by_kind = garbage_of(run).by_kind
    assert by_kind["generation 0"] == CollectionStats(20, pytest.approx(0.2), 20, pytest.approx(0.2), 20, 0.01, 20)
    assert by_kind["generation 1"] == CollectionStats(8, pytest.approx(0.16), 8, pytest.approx(0.16), 4, 0.02, 20)
    assert by_kind["generation 2"] == CollectionStats(4, pytest.approx(1.26), 4, pytest.approx(1.26), 4, 0.39, 20)
    assert ASKED not in by_kind
    assert garbage_of(run).step_total_s == pytest.approx(1.62)


def test_a_collection_belongs_to_its_step_over_many_drains() -> None:
    run = collecting()
    run.step(forward_pass=1)
    with run.section("forward_pass"):
        run.collect(0.5)
        for _ in range(3):
            run.flush()
            run.clock.advance(1)
        run.collect(0.25, is_asked=True)
        run.flush()
    assert garbage_of(run).by_kind["generation 2"].step_count == 0  # nothing says yet that it is a step
    run.step()
    by_kind = garbage_of(run).by_kind
    assert by_kind["generation 2"] == CollectionStats(1, 0.5, 1, 0.5, 1, 0.5, 2)
    assert by_kind[ASKED] == CollectionStats(1, 0.25, 1, 0.25, 1, 0.25, 2)


def test_collections_of_a_step_that_was_none_do_not_move_to_the_next() -> None:
    run = collecting()
    for _ in range(2):
        run.recorder.mark(EPOCH_BEGIN)
        run.collect(0.5)
        run.flush()
        run.recorder.mark(EPOCH_END)
    run.begin_epoch(1)
    run.step(forward_pass=1)
    assert garbage_of(run).by_kind["generation 2"] == CollectionStats(2, 1.0)


def test_collections_explain_the_variance_that_they_cause() -> None:
    run = collecting()
    for step in range(200):
        with run.section("forward_pass"):
            run.clock.advance(0.1 + 0.002 * (step % 2))
            if step % 10 == 9:
                run.collect(0.3)
        run.step()
    assert garbage_of(run).explained == pytest.approx(1.0, abs=0.01)
    assert run.snapshot().step.explained == {"forward_pass": pytest.approx(1.0)}


def test_only_steps_of_which_all_collections_are_known_count() -> None:
    run = collecting()

    def steps(count: int) -> None:
        for _ in range(count):
            with run.section("forward_pass"):
                run.clock.advance(0.1)
                run.collect(0.1)
            run.step()
        run.flush()

    steps(20)
    run.collected_since_ns = None
    steps(15)
    run.collected_since_ns = run.clock()
    with run.section("forward_pass"):  # a step that began before is in the same batch as the first ones after
        run.clock.advance(0.1)
        run.flush()
    run.step()
    steps(5)
    garbage = garbage_of(run)
    assert garbage.steps == 26
    assert garbage.share_of_step == pytest.approx(0.5, abs=0.02)
    full = garbage.by_kind["generation 2"]
    assert (full.count, full.step_count, full.steps) == (40, 25, 25)


def test_adding_up_imports_nothing() -> None:
    program = (
        "import sys, numpy as np\n"
        "from training_profiler.aggregation.machine import GarbageSums\n"
        "before = set(sys.modules)\n"
        "GarbageSums().add_in_steps(3, np.array([0, 0, 2]), np.array([1, 1, 2]), np.array([5, 6, 7]))\n"
        "print(*set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
