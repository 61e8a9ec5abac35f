"""Lines of a step are those after warm-up: what the first step did once is not what each step does."""

import pytest

from tests.support.recording import FakeRun
from training_profiler.diagnosis import diagnose
from training_profiler.model.location import Location
from training_profiler.snapshot.snapshot import OTHER
from training_profiler.storage.run_reader import read_run

ONCE, EACH = Location("train.py", 3, "prepare"), Location("train.py", 9, "update")


def trained(once: int, each: int = 1, once_s: float = 10.0, **options) -> FakeRun:
    """Return a run whose first step does something else in no section; ``once`` and ``each`` are samples."""
    run = FakeRun(**options)
    for step in range(60):
        run.spend("forward_pass", 0.05)
        run.sample_line(ONCE if not step else EACH, times=once if not step else each)
        run.clock.advance(once_s if not step else 0.05)
        run.step()
        if not step or step % 20 == 19:
            run.flush()
    return run


def unexplained(run: FakeRun) -> str:
    (message,) = [finding.message for finding in diagnose(run.snapshot()) if finding.code == "unexplained"]
    return message


def test_a_finding_about_steps_names_no_line_of_the_first_one():
    run = trained(once=500)
    assert "train.py:9 update (100% of it)" in unexplained(run)
    assert "prepare" not in unexplained(run)


def test_all_lines_stay_in_the_breakdown_of_the_run():
    snapshot = trained(once=500).snapshot()
    assert [line.line for line in snapshot.hottest(OTHER)] == [3, 9]
    assert [line.line for line in snapshot.hottest(OTHER, of_steps=True)] == [9]


def test_with_few_samples_after_warmup_no_line_is_named():
    run = trained(once=500, each=0)
    assert run.snapshot().settled_lines == {}
    assert run.snapshot().lines_of_steps(OTHER) == ()
    assert "train.py" not in unexplained(run)


def test_with_a_short_warmup_all_lines_count():
    run = trained(once=25, once_s=0.5, each=0)
    for _ in range(200):
        run.clock.advance(0.05)
        run.step(forward_pass=0.05)
    run.sample_line(EACH, times=10)
    run.clock.advance(0.05)
    run.step(forward_pass=0.05)
    snapshot = run.snapshot()
    assert snapshot.step.warmup_count == 1
    assert snapshot.settled_lines == {}
    assert [line.line for line in snapshot.lines_of_steps(OTHER)] == [3, 9]


def test_without_warmup_all_lines_count():
    run = trained(once=5, warmup=0)
    assert run.snapshot().settled_lines == {}
    assert "train.py:3 prepare" in unexplained(run) or "train.py:9 update" in unexplained(run)


def test_a_journal_has_the_same_lines(tmp_path):
    run = trained(once=500, journal=tmp_path / "rank0.jsonl")
    live = run.snapshot()
    assert read_run(tmp_path).settled_lines == live.settled_lines
    assert live.settled_lines[OTHER][0].share == pytest.approx(live.sections[OTHER].share)


def test_samples_of_seconds_with_many_of_them_do_not_count_more():
    """The sampler is faster at the begin of a run, until it has used its budget."""
    run = FakeRun()
    early, late = Location("model.py", 4, "early"), Location("model.py", 8, "late")
    for line, steps, samples in ((early, 10, 500), (late, 90, 450)):
        for _ in range(steps):
            with run.section("forward_pass"):
                run.sample_line(line, times=samples // steps)
                run.clock.advance(1)
            run.step()
        run.flush()
    snapshot = run.snapshot()
    first, second = snapshot.lines["forward_pass"]
    assert (first.function, first.share, first.samples) == ("late", pytest.approx(0.9, abs=0.01), 450)
    assert (second.function, second.share, second.samples) == ("early", pytest.approx(0.1, abs=0.01), 500)


def test_settled_lines_have_the_time_that_their_samples_stand_for():
    run = trained(once=500, warmup=1)
    for line, steps, samples in ((ONCE, 20, 30), (EACH, 20, 2)):
        for _ in range(steps):
            run.spend("forward_pass", 0.05)
            run.sample_line(line, times=samples)
            run.clock.advance(0.05)
            run.step()
        run.flush()
    lines = {line.function: line for line in run.snapshot().lines_of_steps(OTHER)}
    whole = sum(line.share for line in lines.values())
    assert lines["prepare"].samples == 600  # and 100 of the other line
    assert lines["prepare"].share / whole == pytest.approx(20 / 99, abs=0.01)
