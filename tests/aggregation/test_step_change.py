"""From spans of a run to the change of its steps."""

import pytest

from tests.support.recording import FakeRun
from training_profiler.aggregation.totals import MOST_LINES
from training_profiler.diagnosis.change import slower_since
from training_profiler.diagnosis.steps import slowing_down
from training_profiler.model.location import Location
from training_profiler.sampling.machine_sampler import MachineSample
from training_profiler.storage.run_reader import read_run


def even(i, seconds):
    """Return times that vary a little, so that steps are no constant."""
    return seconds * (1 + 0.01 * (i * 7 % 5))


def trained(run, steps=240, at=150, slow_s=0.05, each=lambda i: None):
    for i in range(steps):
        each(i)
        run.step(forward_pass=even(i, 0.1), data_loading=even(i, 0.02) + (slow_s if i >= at else 0.0))
        if i % 30 == 29:
            run.flush()


def test_change_names_the_step_and_what_each_section_took():
    run = FakeRun()
    trained(run)
    change = run.snapshot().step.change
    assert change.first_step <= 151 <= change.last_step
    assert change.last_step - change.first_step <= 20
    assert change.is_abrupt
    assert (change.before_s, change.after_s) == (pytest.approx(0.1224, abs=0.002), pytest.approx(0.1724, abs=0.002))
    assert change.sections["data_loading"] == (pytest.approx(0.0204, abs=0.001), pytest.approx(0.0704, abs=0.001))
    assert change.forward_passes == (1, 1)


def test_what_the_machine_did_is_known_for_both_sides():
    run = FakeRun()

    def sample(i):
        busy = 0.6 if i >= 150 else 0.0
        at = MachineSample(run.clock(), {"cpu_wait": busy}, {"cores": 2.0})
        run.accumulator.totals.machine.add_samples([at])

    trained(run, each=sample)
    before, after = run.snapshot().step.change.machine
    assert (before.cpu_wait.mean, after.cpu_wait.mean) == (0.0, pytest.approx(0.6))


def test_even_steps_have_neither_a_change_nor_halves():
    run = FakeRun()
    trained(run, slow_s=0.0)
    step = run.snapshot().step
    assert (step.change, step.halves) == (None, None)


def test_long_run_is_kept_in_bounded_memory():
    run = FakeRun()
    trained(run, steps=9_000, at=6_000)
    assert run.sums.run.history.size <= 512
    change = run.snapshot().step.change
    assert change.first_step <= 6_001 <= change.last_step
    assert change.sections["data_loading"][1] == pytest.approx(0.0704, abs=0.001)


def test_line_that_takes_longer_is_known_by_its_samples(tmp_path):
    run = FakeRun(journal=tmp_path / "rank0.jsonl")
    decode, shuffle = Location("load.py", 9, "decode"), Location("load.py", 20, "shuffle")
    for i in range(240):
        with run.section("data_loading"):
            for location, seconds in ((decode, 0.06 if i >= 150 else 0.01), (shuffle, 0.01)):
                run.sample_line(location, times=round(100 * seconds))
                run.clock.advance(even(i, seconds))
        run.step(forward_pass=even(i, 0.1))
        if i % 30 == 29:
            run.flush()
    change = run.snapshot().step.change
    first, second = change.lines["data_loading"]
    assert (first.line, second.line) == ("load.py:9 decode", "load.py:20 shuffle")
    assert (first.before_s, first.after_s) == (pytest.approx(0.0102, abs=2e-4), pytest.approx(0.0612, abs=1e-3))
    assert (second.before_s, second.after_s) == (pytest.approx(0.0102, abs=2e-4),) * 2
    assert read_run(tmp_path).step.change == change
    assert "above all load.py:9 decode (10.2 ms before, 61.2 ms after)" in slower_since(run.snapshot()).message


def test_lines_are_kept_in_bounded_memory():
    run = FakeRun()
    for i in range(300):
        run.sample_line(Location("train.py", i, "main"))
        run.step(forward_pass=0.1)
    run.flush()
    seen = run.sums.run.history.lines(0, 300)
    assert len(seen) <= MOST_LINES + 1
    assert seen.total() == 300


def test_steps_that_rise_without_a_jump_have_two_halves():
    run = FakeRun()
    growing = Location("train.py", 19, "mean")
    for i in range(400):
        run.spend("forward_pass", even(i, 0.05))
        run.sample_line(growing, times=1 + i // 40)
        run.clock.advance(even(i, 0.001 * i))
        run.step()
        if i % 20 == 19:
            run.flush()
    step = run.snapshot().step
    assert step.change is None
    assert (step.halves.before_s, step.halves.after_s) == (pytest.approx(0.15, rel=0.05), pytest.approx(0.35, rel=0.05))
    assert step.halves.lines["other"][0].line == "train.py:19 mean"
    finding = slowing_down(run.snapshot())
    assert "; 100% of the rise is in no section (" in finding.message
    assert ", above all train.py:19 mean (" in finding.message


@pytest.mark.parametrize("ends", [(30, 120, 380), (30, 250), (), (400,)])
def test_parts_of_a_short_run_have_the_samples_of_whole_stretches(ends):
    run = FakeRun()
    growing = Location("train.py", 19, "mean")
    for i in range(400):
        run.spend("forward_pass", even(i, 0.05))
        run.sample_line(growing)
        run.clock.advance(even(i, 0.001 * i))
        run.step()
        if i + 1 in ends:
            run.flush()
    halves = run.snapshot().step.halves
    nearest = {380: 120, 250: 250}.get(max(ends, default=0))
    if nearest is None:  # all samples are of one stretch
        assert (halves.step, halves.lines) == (pytest.approx(201, abs=4), {})
        return
    assert halves.step == nearest + 1
    assert halves.lines["other"][0].samples == 400 - nearest
    rise_s = halves.sections["other"][1] - halves.sections["other"][0]
    assert (rise_s, halves.after_s - halves.before_s) == (pytest.approx(0.2, rel=0.05),) * 2  # as of even halves


def test_parts_with_enough_samples_go_before_equal_ones():
    run = FakeRun()
    for i in range(400):
        run.spend("forward_pass", even(i, 0.05))
        if i < 150 or i >= 360:  # a pause of the sampler
            run.sample_line(Location("train.py", 19, "mean"))
        run.clock.advance(even(i, 0.001 * i))
        run.step()
        if i + 1 in (60, 210, 390):
            run.flush()
    assert run.snapshot().step.halves.step == 211
    history = run.sums.run.history
    assert history.nearest_end(400, 1, 400) == 210  # the nearest has ten samples behind it
