"""Samples of lines are attributed to the section open at their time, and become stats if there are enough."""

from collections import Counter
from functools import reduce

import pytest

from tests.support.recording import FakeRun
from training_profiler.aggregation.lines import BEFORE_STEPS, IN_STEPS, WeightedLines
from training_profiler.aggregation.summary import outside_samples
from training_profiler.aggregation.totals import Totals
from training_profiler.base.units import NS_PER_S
from training_profiler.diagnosis import diagnose
from training_profiler.model.location import Location
from training_profiler.model.snapshot import OTHER, OUTSIDE_STEPS, PROFILER, LineStats
from training_profiler.recording.event_codes import STEP_END
from training_profiler.storage.run_reader import read_run

BATCH = Location("train.py", 88, "get_batch")
LOSS = Location("train.py", 212, "estimate_loss")
MODEL = Location("model.py", 12, "Block.forward")


def attributed(run: FakeRun) -> dict:
    """Return the samples since the last flush by section name; IN_STEPS is kept."""
    lines = {key: count for key, count in run.totals().lines.items() if key[0] != BEFORE_STEPS}
    return {(run.names.names.get(id, id), location): count for (id, location), count in lines.items()}


def test_the_profilers_own_time_has_no_lines():
    run = FakeRun()
    with run.recorder.own_section(PROFILER):
        run.clock.advance(1)
        run.sample_line(LOSS)
        run.clock.advance(1)
    run.clock.advance(1)
    assert attributed(run) == {}


def test_waiting_samples_are_bounded(monkeypatch):
    monkeypatch.setattr("training_profiler.aggregation.lines.MOST_WAITING", 5)
    run = FakeRun()
    for _ in range(4):
        run.sample_line(LOSS, 2)
        run.drain()
    run.clock.advance(1)
    assert attributed(run) == {("", LOSS): 5}


def test_samples_of_a_step_cut_by_an_epoch_are_outside_steps():
    run = FakeRun()
    run.begin_epoch(1)
    run.step(forward_pass=1)
    run.sample_line(BATCH)
    run.clock.advance(1)
    run.drain()
    run.end_epoch()
    run.begin_epoch(2)
    run.clock.advance(1)
    run.step(forward_pass=1)
    run.sample_line(LOSS)
    run.clock.advance(1)
    run.recorder.mark(STEP_END)
    run.flush()
    assert {location: count for (id, location), count in run.sums.run.lines.items() if id == IN_STEPS} == {LOSS: 1}


def train(run: FakeRun, steps: int = 40) -> None:
    """Pass steps of 4 s: forward 1 s, no section 3 s, with two samples of BATCH and one of LOSS."""
    for _ in range(steps):
        with run.section("forward_pass"):
            run.sample_line(MODEL)
            run.clock.advance(1)
        run.sample_line(BATCH, 2)
        run.clock.advance(2)
        run.sample_line(LOSS)
        run.clock.advance(1)
        run.step()
        run.flush()


@pytest.mark.parametrize(("samples", "claims"), [(29, False), (30, True)])
def test_sections_with_fewer_than_30_samples_of_many_lines_show_none(samples, claims):
    run = FakeRun()
    with run.section("forward_pass"):
        run.clock.advance(1)
        for number in range(samples):
            run.sample_line(MODEL._replace(line=number))
        run.clock.advance(1)
    run.clock.advance(1)
    assert ("forward_pass" in run.snapshot().lines) == claims


def test_samples_outside_user_code_count_but_are_not_shown():
    run = FakeRun()
    with run.section("forward_pass"):
        run.sample_line(MODEL, 15)
        run.sample_line(None, 45)
        run.clock.advance(1)
    with run.section("backward_pass"):
        run.sample_line(None, 60)
        run.clock.advance(1)
    assert run.snapshot().lines == {"forward_pass": (LineStats(*MODEL[:3], share=0.5 * 15 / 60, samples=15),)}


def test_samples_after_the_last_step_are_outside_steps():
    run = FakeRun()
    train(run)
    run.sample_line(LOSS, 50)
    run.clock.advance(40)
    lines = run.snapshot().lines
    assert [line.samples for line in lines[OTHER]] == [80, 40]
    assert lines[OUTSIDE_STEPS] == (LineStats(*LOSS[:3], share=0.2, samples=50),)


def test_without_steps_all_time_of_no_section_is_other():
    run = FakeRun()
    run.sample_line(LOSS, 50)
    run.clock.advance(1)
    assert run.snapshot().lines == {OTHER: (LineStats(*LOSS[:3], share=1.0, samples=50),)}


def test_a_section_has_at_most_a_hundred_lines():
    run = FakeRun()
    for line in range(200):
        run.sample_line(Location("train.py", line, "main"))
    run.sample_line(Location("train.py", 150, "main"))
    run.clock.advance(1)
    lines = run.snapshot().lines[OTHER]
    assert len(lines) == 100
    assert lines[0] == LineStats("train.py", 150, "main", share=lines[0].share, samples=2)
    assert lines[0].share == pytest.approx(2 / 201)


def weighted(*stretches: tuple[str, float]) -> dict:
    """Return the seconds of each line: of every stretch, its samples ("AAB") and its seconds."""
    lines = WeightedLines()
    for samples, seconds in stretches:
        lines.add(Counter((1, name) for name in samples), int(seconds * NS_PER_S))
    return {name: ns / NS_PER_S for (_, name), ns in lines.times().items()}


@pytest.mark.parametrize(
    ("stretches", "seconds", "rel"),
    [
        ([("A" * 100, 1.0)] * 3 + [("AABB", 1.0)] * 60, {"A": 33, "B": 30}, 0.01),  # samples become rarer
        ([("A", 1.0), ("", 1.0), ("B", 1.0), ("A", 0.5), ("", 2.5)] * 20, {"A": 80, "B": 40}, 0.01),
        # One by one, the last three would have a third of the time, which is chance.
        ([("AAAABBBBBB" * 10, 1.0)] * 3 + [("B", 4.0)] * 3, {"A": 6, "B": 9}, 0.033),
    ],
)
def test_a_sample_stands_for_the_time_between_it_and_others(stretches, seconds, rel):
    assert weighted(*stretches) == pytest.approx(seconds, rel=rel)


@pytest.mark.parametrize(
    ("samples", "times"),
    [
        ({(0, "A"): 30, (1, "B"): 30, (IN_STEPS, "A"): 20, (BEFORE_STEPS, "A"): 10}, (30, 30, 20, 10)),
        ({(IN_STEPS, "A"): 3, (IN_STEPS, "B"): 1}, (45, 15)),  # of a step that ends later
    ],
)
def test_samples_of_no_section_have_their_part_of_a_stretch(samples, times):
    lines = WeightedLines()
    lines.add(Counter(samples), 60)
    assert lines.times() == dict(zip(samples, times, strict=True))


def test_parts_of_a_run_have_the_sum_of_their_times():
    parts = [WeightedLines() for _ in range(4)]
    for part, samples in zip(parts, ("A" * 50, "B", "AB" * 30, "A" * 5), strict=True):
        part.add(Counter((1, name) for name in samples), NS_PER_S)
    whole = reduce(WeightedLines.together, parts)
    assert sum(whole.times().values()) == pytest.approx(4 * NS_PER_S, abs=4)
    assert sum(parts[0].times().values()) == NS_PER_S  # none of them changed


IMPORT = Location("train.py", 1, "<module>")
NEGATIVES = Location("train.py", 8, "negatives")
LOOP = Location("train.py", 20, "<module>")


def totals_of(lines, startup_s=10, outside_s=30, steps_s=20):
    totals = Totals(0, 0)
    totals.end_ns = (outside_s + steps_s) * NS_PER_S
    totals.loop_begin_ns = startup_s * NS_PER_S
    totals.sections.grow(1)
    totals.sections.self_ns[0] = (outside_s + steps_s) * NS_PER_S
    totals.sections.step_self_ns[0] = steps_s * NS_PER_S
    totals.lines.update(lines)
    return totals


OF_IMPORTS, OF_DATA, OF_SETUP = (
    (BEFORE_STEPS, place._replace(activity=activity))
    for place, activity in ((IMPORT, "imports"), (NEGATIVES, "data set"), (LOOP, "my setup"))
)


@pytest.mark.parametrize(
    ("lines", "sections", "before", "after", "seconds"),
    [
        (
            {(0, IMPORT): 100, (0, NEGATIVES): 50, (0, LOOP): 20, (IN_STEPS, LOOP): 20, OF_IMPORTS: 100, OF_DATA: 10},
            {"", "forward_pass"},
            {IMPORT: 100, NEGATIVES: 10},
            {NEGATIVES: 40},
            (10, 20),
        ),
        ({(0, IMPORT): 30, OF_IMPORTS: 30, OF_SETUP: 10}, {"my setup"}, {IMPORT: 30}, {}, (7.5, 22.5)),
        ({(0, NEGATIVES): 40}, set(), {}, {NEGATIVES: 40}, (10, 20)),
    ],
)
def test_samples_are_divided_at_the_first_step_and_sections_before_it_are_not_in_its_time(
    lines, sections, before, after, seconds
):
    found = outside_samples(totals_of(lines), sections)
    assert (found.before, found.after) == (before, after)
    assert (found.before_ns / NS_PER_S, found.after_ns / NS_PER_S) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(100, 40, (20, 40)), (10, 40, (10, 20)), (10, 20, (10, 20)), (0, 20, (0, 20)), (10, 0, (10, 0))],
    ids=["more before", "more after", "evenly", "none before", "none after"],
)
def test_a_sample_stands_for_the_same_time_on_both_sides(before, after, expected):
    lines = {(0, IMPORT): before, (0, NEGATIVES): after, (BEFORE_STEPS, IMPORT): before}
    even = outside_samples(totals_of(lines), set()).evenly()
    assert (even[IMPORT], even[NEGATIVES]) == expected


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


def test_a_finding_about_steps_names_no_line_of_the_first_one_and_the_breakdown_all(tmp_path):
    run = trained(once=500, journal=tmp_path / "rank0.jsonl")
    assert "train.py:9 update (100% of it)" in unexplained(run)
    assert "prepare" not in unexplained(run)
    live = run.snapshot()
    assert [line.line for line in live.hottest(OTHER)] == [3, 9]
    assert [line.line for line in live.hottest(OTHER, of_steps=True)] == [9]
    assert read_run(tmp_path).settled_lines == live.settled_lines
    assert live.settled_lines[OTHER][0].share == pytest.approx(live.sections[OTHER].share)


def test_with_few_samples_after_warmup_no_line_is_named():
    run = trained(once=500, each=0)
    assert run.snapshot().settled_lines == {}
    assert run.snapshot().lines_of_steps(OTHER) == ()
    assert "train.py" not in unexplained(run)


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
