"""The time before the first step, divided by samples."""

import msgspec

from tests.support.recording import FakeRun
from training_profiler.aggregation.run import startup_stats
from training_profiler.model.interval import IntervalRecord
from training_profiler.model.location import Location
from training_profiler.reports.console import startup_lines
from training_profiler.storage.journal_codec import interval_of, totals_of

BEFORE = Location("", 0, "", activity="until torch was imported")
IMPORTS = Location("train.py", 3, "<module>", activity="imports")
MODEL = Location("train.py", 9, "main", activity="model")
OWN = Location("train.py", 12, "main")


def sampled(run: FakeRun, location: Location | None, samples: int) -> None:
    for _ in range(samples):
        run.sample_line(location)
        run.clock.advance(0.5)


def run_with_startup() -> FakeRun:
    run = FakeRun()
    for location, samples in ((BEFORE, 4), (IMPORTS, 10), (MODEL, 4), (OWN, 2)):
        sampled(run, location, samples)
    return run


def test_startup_is_divided_by_what_the_samples_show():
    run = run_with_startup()
    run.step(data_loading=0.5, forward_pass=0.5)
    sampled(run, MODEL, 20)  # the second step makes modules: not start-up
    run.step(forward_pass=0.5)
    snapshot = run.snapshot()
    assert (snapshot.startup.total_s, snapshot.startup.has_steps) == (10.0, True)
    assert [(part.name, part.seconds, part.lines) for part in snapshot.startup.parts] == [
        ("imports", 5.0, (("train.py:3 <module>", 5.0),)),
        ("model", 2.0, (("train.py:9 main", 2.0),)),
        ("until torch was imported", 2.0, ()),
        ("other code", 1.0, (("train.py:12 main", 1.0),)),
    ]
    assert startup_lines(snapshot) == [
        "Before the first step (10.0 s): imports 5.00 s (train.py:3 <module>), model 2.00 s (train.py:9 main), "
        "until torch was imported 2.00 s, other code 1.00 s (train.py:12 main)"
    ]


def test_the_longest_of_several_lines_has_its_own_time():
    run = FakeRun()
    sampled(run, IMPORTS, 12)
    sampled(run, IMPORTS._replace(line=5), 8)
    run.step(data_loading=0.5)
    assert startup_lines(run.snapshot()) == [
        "Before the first step (10.0 s): imports 10.0 s (6.00 s at train.py:3 <module>)"
    ]


def test_what_a_section_says_of_the_time_before_the_first_step_is_kept():
    run = run_with_startup()
    with run.section("validation_epoch"):
        sampled(run, OWN, 10)
    run.step(data_loading=0.5)
    assert {part.name for part in run.snapshot().startup.parts[:2]} == {"imports", "validation_epoch"}
    assert ", validation 5.00 s (train.py:12 main), " in startup_lines(run.snapshot())[0]


def test_a_run_without_steps_is_explained_as_a_whole():
    startup = run_with_startup().snapshot().startup
    assert (startup.total_s, startup.has_steps, startup.parts[0].name) == (10.0, False, "imports")


def test_sections_of_a_run_without_steps_have_their_exact_time():
    """The sampler is faster at first, so the samples alone would make imports longer than they are."""
    run = FakeRun()
    for _ in range(20):
        run.sample_line(IMPORTS)
        run.clock.advance(0.25)
    with run.section("validation_epoch"):
        for _ in range(10):
            run.sample_line(OWN)
            run.clock.advance(1.5)
    assert [(part.name, part.seconds, part.lines) for part in run.snapshot().startup.parts] == [
        ("validation_epoch", 15.0, (("train.py:12 main", 15.0),)),
        ("imports", 5.0, (("train.py:3 <module>", 5.0),)),
    ]


def test_lines_of_sections_have_no_activity():
    run = run_with_startup()
    run.step(data_loading=0.5, forward_pass=0.5)
    locations = {location for (id, location) in run.totals().lines if id >= 0}
    assert locations == {IMPORTS._replace(activity=""), MODEL._replace(activity=""), OWN, None}


def test_a_few_samples_explain_nothing():
    run = FakeRun()
    sampled(run, IMPORTS, 9)
    run.step(data_loading=0.5)
    assert run.snapshot().startup is None


def test_a_journal_keeps_what_was_prepared():
    run = run_with_startup()
    run.drain()
    totals, step_ns = run.accumulator.pop_totals()
    record = interval_of(IntervalRecord, totals, step_ns, run.names)
    read = totals_of(msgspec.json.decode(msgspec.json.encode(record), type=IntervalRecord), run.names)
    assert startup_stats(read) == startup_stats(totals) is not None
