from types import SimpleNamespace

import pytest

from training_profiler.snapshot.snapshot import Snapshot, StepStats
from training_profiler.trials.first_run import FirstRun, TryError
from training_profiler.trials.planning import most_trainings, schedule_of


def first_run(step_s=0.04, startup_s=5.0, steps=60, has_ended=False, memory_bytes=0):
    step = StepStats(steps, steps * step_s, step_s, 5, 5 * step_s, steps - 5, step_s, 0.0, step_s, 0, steps * step_s)
    return FirstRun(Snapshot(steps=steps, step=step), [], startup_s, memory_bytes, has_ended)


def test_a_schedule_fits_into_its_time():
    schedule = schedule_of(first_run(), 10, at_once=2, seconds=100)
    assert schedule is not None
    assert schedule.rounds >= 12
    assert schedule.seconds(10, 2) <= 100


def test_with_much_time_no_more_rounds_than_needed_are_run():
    schedule = schedule_of(first_run(), 4, at_once=2, seconds=10_000)
    assert schedule is not None
    assert (schedule.rounds, schedule.block_steps, schedule.warmup) == (30, 4, 5)


def test_too_little_time_has_no_schedule():
    assert schedule_of(first_run(), 10, at_once=2, seconds=30) is None
    assert schedule_of(first_run(step_s=30.0), 3, at_once=2, seconds=300) is None


def test_a_short_training_has_blocks_of_two_steps_and_never_more_steps_than_it_makes():
    schedule = schedule_of(first_run(step_s=0.001, steps=60, has_ended=True), 4, at_once=2, seconds=1000)
    assert schedule is not None
    assert schedule.steps < 60
    assert schedule_of(first_run(steps=20, has_ended=True), 4, at_once=2, seconds=1000) is None


@pytest.mark.parametrize(
    ("seconds", "cycle", "block_steps", "rounds"),
    [
        (10_000, 1, 4, 30),
        (10_000, 2, 9, 20),  # 0.25 s in whole cycles, and the first step, which is not measured
        (10_000, 5, 11, 20),
        (10_000, 16, 17, 20),
        (26, 5, 6, 19),  # 0.1 s in whole cycles
        (20, 16, 4, 19),  # not even one
    ],
)
def test_a_block_has_whole_cycles_of_the_workers_as_far_as_there_is_time(seconds, cycle, block_steps, rounds):
    schedule = schedule_of(first_run(), 4, at_once=4, seconds=seconds, cycle=cycle)
    assert schedule is not None
    assert (schedule.block_steps, schedule.rounds) == (block_steps, rounds)


@pytest.mark.parametrize(("cycle", "block_steps"), [(1, 13), (2, 13), (5, 11), (7, 8), (50, 13)])
def test_blocks_of_a_short_training_have_whole_cycles_too(cycle, block_steps):
    short = first_run(step_s=0.001, steps=166, has_ended=True)
    schedule = schedule_of(short, 4, at_once=2, seconds=1000, cycle=cycle)
    assert schedule is not None
    assert schedule.block_steps == block_steps


def test_trainings_that_do_not_fit_into_memory_are_refused(monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1000))
    assert most_trainings(first_run(memory_bytes=100)) == 7
    with pytest.raises(TryError, match="no room for three trainings"):
        most_trainings(first_run(memory_bytes=400))
