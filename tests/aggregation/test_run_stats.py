"""Stats of runs, driven by sections and steps on a fake clock."""

import pytest

from tests.support.recording import FakeRun
from training_profiler.base.peaks import MEASURED
from training_profiler.model.interval import StepFlops
from training_profiler.model.location import Location
from training_profiler.model.program import NOTHING_KNOWN, OptimizerFacts, PaddingFacts, ProgramFacts
from training_profiler.model.snapshot import OUTSIDE_STEPS, Health, Throughput
from training_profiler.recording.event_codes import time_only
from training_profiler.reports.resources import startup_lines


@pytest.fixture
def run():
    return FakeRun()


def test_quantiles_stay_between_the_extremes_and_an_open_section_has_time_but_no_span(run):
    for _ in range(3):
        run.spend("a", 0.123)
    with run.section("validation_epoch"):
        run.spend("accuracy", 5)
    run.section("b").__enter__()
    run.clock.advance(3)
    sections = run.snapshot().sections
    assert [getattr(sections["a"], name) for name in ("p50_s", "p95_s", "p99_s")] == [0.123] * 3
    assert [getattr(sections["b"], name) for name in ("count", "self_s", "avg_s", "min_s")] == [0, 3.0, None, None]
    assert (sections["accuracy"].parent, sections["accuracy"].total_s) == ("validation_epoch", 5.0)


@pytest.mark.parametrize(("own", "parent"), [(3, None), (0, "forward_pass")])
def test_a_backward_pass_of_the_loss_is_none_of_those_in_a_forward_pass(run, own, parent):
    """A model that computes forces has a gradient in each forward pass."""
    for number in range(4):
        with run.section("forward_pass"), run.section("backward_pass"):
            run.clock.advance(1)
        if number < own:
            with run.section("backward_pass"):
                run.clock.advance(2)
        run.step()
    assert run.snapshot().sections["backward_pass"].parent == parent


@pytest.mark.parametrize(("target_s", "parent"), [(0.5, "rollout"), (20, None)])
def test_calls_without_gradients_belong_to_rollouts_if_their_time_may(run, target_s, parent):
    """Most calls are actions, but the few of the targets may take longer than all rollouts."""
    with run.section("rollout"):
        for _ in range(3):
            run.spend("forward_without_grad", 1)
    run.spend("forward_without_grad", target_s)
    run.step(forward_pass=1)
    if parent is None:
        assert run.snapshot().sections["forward_without_grad"].parent is None
    else:
        run.clock.advance(1)
        with run.section("rollout"):
            run.clock.advance(2)
        assert run.snapshot().sections["forward_without_grad"].parent == parent


def test_an_open_section_in_validation_leaves_the_row_of_its_name_in_training_alone(run):
    for _ in range(3):
        run.spend("augment", 1)
    run.step(forward_pass=1)
    with run.section("validation_epoch"), run.section("augment"):
        run.clock.advance(5)
        sections = run.snapshot().sections
    assert (sections["augment"].count, sections["augment"].self_s) == (3, 3.0)
    assert (sections["validation_epoch/augment"].count, sections["validation_epoch/augment"].self_s) == (0, 5.0)


STEP, REST, VALIDATED = ("step", 1.0), ("rest", 1.0), ("validation_epoch", 1.0)
EPOCH, BEGIN, END = [STEP, STEP, VALIDATED], ("begin", 0.0), ("end", 0.0)
VALIDATION, EXPORT, PLOTS = "validation_epoch", ("export", 2.0), "visualization_generation"
FETCH, PASSES = ("fetch", 0.0), ("passes", 2.0)
PASS = [FETCH, STEP]


def fetch_first(run: FakeRun) -> None:
    with run.recorder.own_section("first_fetch"):
        pass


def play(run: FakeRun, *events: tuple[str, float]) -> None:
    for name, seconds in events:
        others = {"begin": lambda: run.begin_epoch(1), "end": run.end_epoch, "rest": lambda: run.clock.advance(1.0)}
        others |= {"step": lambda: run.step(data_loading=0.5, forward_pass=0.5), "fetch": lambda: fetch_first(run)}
        if name == "passes":  # that follow each other at once are one evaluation
            with run.section(VALIDATION):
                play(run, FETCH, REST, FETCH, REST)
        else:
            others.get(name, lambda name=name, seconds=seconds: run.spend(name, seconds))()


@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize(
    ("program", "after"),
    [
        ([*EPOCH, *EPOCH, STEP, (VALIDATION, 1.5)], {}),  # the last validation is longer
        ([*EPOCH, *EPOCH, (VALIDATION, 3.0)], {VALIDATION: 3.0}),  # and a test
        ([*EPOCH, *EPOCH, STEP, (VALIDATION, 4.0)], {VALIDATION: 3.0}),  # the test is the same pass
        ([(VALIDATION, 0.01), REST, *EPOCH], {VALIDATION: 0.99}),  # one epoch, and a check before any step
        ([*PASS, VALIDATED], {}),  # a single epoch
        ([*PASS, VALIDATED, (PLOTS, 2.0)], {PLOTS: 2.0}),
        ([*PASS, VALIDATED, (VALIDATION, 3.0)], {VALIDATION: 3.0}),  # and a test
        ([*PASS, PASSES], {VALIDATION: 2.0}),  # of which one may be a test
        ([*PASS, VALIDATED, STEP, (VALIDATION, 3.0)], {VALIDATION: 2.0}),
        ([(VALIDATION, 0.01), REST, *PASS, VALIDATED], {}),  # and a check before any step
        ([(VALIDATION, 0.01), REST, *PASS, VALIDATED, (VALIDATION, 3.0)], {VALIDATION: 3.0}),
        ([*PASS, *PASS, VALIDATED], {VALIDATION: 1.0}),  # a test after several epochs
        ([STEP, VALIDATED], {VALIDATION: 1.0}),  # epochs are not known
        ([STEP, EXPORT, REST], {"export": 2.0, OUTSIDE_STEPS: 1.0}),
        ([BEGIN, *EPOCH, REST, END, REST], {OUTSIDE_STEPS: 1.0}),  # the program marks what is its epoch
        ([STEP, ("data_loading", 3.0)], {"data_loading": 3.0}),  # a step that was interrupted
        ([*EPOCH, *EPOCH, REST, *EPOCH, *EPOCH], {}),  # two models
        ([(VALIDATION, 3.0)], {}),  # without steps
    ],
)
def test_the_training_ends_with_its_last_step_and_what_follows_each_epoch(run, program, after, flushes):
    play(run, *program)
    if flushes:
        run.flush()
    play(run, EXPORT)
    snapshot = run.snapshot()
    found = {name: each.after_s for name, each in snapshot.sections.items() if round(each.after_s, 6)}
    expected = {**after, "export": after.get("export", 0.0) + 2.0} if snapshot.steps else {}
    before_s = snapshot.step.before_s if snapshot.step else 0.0
    assert found == pytest.approx(expected)
    assert snapshot.training_s == pytest.approx(snapshot.wall_s - before_s - sum(expected.values()))
    assert sum(each.training_s for each in snapshot.sections.values()) == pytest.approx(snapshot.training_s, abs=0.02)
    assert run.sums.snapshot(Health(), of_interval=True).after_training_s == 0.0


def test_configured_warmup_keeps_spans_outside_steps():
    run = FakeRun(warmup=1)
    run.spend("build_model", 10)
    run.step(forward_pass=1)
    assert run.snapshot().sections["build_model"].avg_s == 10.0


def test_the_section_that_makes_steps_uneven_is_named(run):
    for i in range(40):
        run.step(data_loading=3 if i % 4 == 0 else 1, forward_pass=1)
    assert run.snapshot().step.explained == {"data_loading": pytest.approx(1.0)}


def test_an_epoch_has_its_own_stats(run):
    run.spend("data_loading", 100)
    run.begin_epoch(3)
    run.step(data_loading=5, forward_pass=1)
    run.step(data_loading=1, forward_pass=1)
    run.spend("checkpointing", 2)
    run.clock.advance(1)
    epoch = run.end_epoch(batches=2, samples=64)
    assert (epoch.number, epoch.wall_s, epoch.steps, epoch.batches, epoch.samples) == (3, 11.0, 2, 2, 64)
    assert epoch.avg_batch_s == 4.0
    assert epoch.self_s == {"data_loading": 6.0, "forward_pass": 2.0, "checkpointing": 2.0, "other": 1.0}
    assert epoch.first_fetch_s == 5.0
    assert run.snapshot().epochs == (epoch,)


def test_an_epoch_without_loaders_counts_its_steps_as_batches(run):
    run.begin_epoch(1)
    run.step(forward_pass=1)
    run.step(forward_pass=1)
    epoch = run.end_epoch()
    assert (epoch.batches, epoch.avg_batch_s, epoch.first_fetch_s) == (2, 1.0, None)


def test_mutually_nested_sections_have_no_circular_parents(run):
    for outer, inner in (("a", "b"), ("b", "a")):
        with run.section(outer):
            run.spend(inner, 1)
        run.flush()
    sections = run.snapshot().sections
    assert {sections["a"].parent, sections["b"].parent} != {"a", "b"}


def test_an_average_of_which_only_the_sum_is_known_has_no_shorter_maximum(run):
    run.section("optimizer_step")
    run.spend("optimizer_step", 0.09)
    code = time_only(run.recorder.names.id_of("optimizer_step"))  # pieces between the losses that LBFGS asks for
    events = run.recorder.buffer().events
    for _ in range(20):
        events.extend((run.clock(), code))
        run.clock.advance(0.09)
        events.extend((run.clock(), -code))
    section = run.snapshot().sections["optimizer_step"]
    assert section.avg_s == pytest.approx(21 * 0.09)
    assert (section.max_s, section.p95_s) == (None, None)


A100 = "NVIDIA A100-SXM4-80GB"


def run_of(steps, step_s=0.5, batches=None, samples=None, flops=None, **options):
    run = FakeRun(**options)
    run.steps(steps, forward_pass=step_s)
    run.drain()
    totals = run.accumulator.totals
    totals.batches, totals.samples, totals.flops = batches, samples, flops
    return run


@pytest.mark.parametrize(
    ("batches", "samples", "rates"),
    [(80, 2560, (8.0, 256.0)), (10, 320, (1.0, None)), (19, 320, (1.9, 32.0))],
    ids=["per step", "several updates share a batch", "nearly one a step"],
)
def test_rates_of_batches_and_samples(batches, samples, rates):
    found = run_of(20, batches=batches, samples=samples).snapshot().throughput
    assert (found.steps_per_s, found.batches_per_s, found.samples_per_s) == (2.0, *rates)


def test_tokens_are_those_that_a_trainer_counts():
    run = run_of(20)
    assert run.snapshot().throughput.tokens_per_s is None
    run.accumulator.totals.tokens = 20_000
    assert run.snapshot().throughput.tokens_per_s == 2000.0
    padding = PaddingFacts(9, 0.25, 0.3, 0.1, 0.2, 1.0, "the mask")
    for has_ids, expected in ((True, 1500.0), (False, 2000.0)):  # a trainer says itself what it counts
        seen = run.snapshot(program=ProgramFacts(padding=padding, has_token_ids=has_ids))
        assert seen.throughput.tokens_per_s == expected


def test_warmup_does_not_lower_throughput():
    run = FakeRun(warmup=2)
    run.step(forward_pass=50)
    run.step(forward_pass=50)
    run.steps(8, forward_pass=0.25)
    run.drain()
    run.accumulator.totals.batches = 10
    rates = run.snapshot().throughput
    assert (rates.steps_per_s, rates.batches_per_s) == (4.0, 4.0)


def test_first_steps_that_inspections_made_long_are_left_out_with_what_they_added():
    run, line = FakeRun(), Location("train.py", 3, "forward")
    for seconds in [1.0] * 12 + [9.0] * 3 + [1.0] * 25:
        run.sample_line(line)
        run.step(forward_pass=seconds)
    run.drain()
    before = run.snapshot().step
    run.accumulator.totals.named_steps = 16
    snapshot = run.snapshot()
    step = snapshot.step
    assert (before.warmup_count, before.inspected_s, before.settled_s) == (0, 0.0, 64.0)
    assert (step.warmup_count, step.inspected_s, step.settled_s) == (15, 24.0, 25.0)
    assert [each.line for each in snapshot.lines_of_steps("forward_pass")] == [3]  # which has less than half after them


def test_first_steps_in_which_a_model_acts_are_not_taken_for_made_long():
    run = FakeRun()
    for step in range(40):
        run.step(**({"rollout": 8} if step in (1, 14) else {}), forward_pass=1)
    run.drain()
    run.accumulator.totals.named_steps = 16
    assert run.snapshot().step.warmup_count == 0


def test_an_interval_has_rates_of_its_own():
    run = run_of(10, flops=StepFlops(10**12, "float32", ""))
    run.flush()
    run.sums.new_interval()
    run.steps(10, forward_pass=0.25)
    assert run.snapshot(of_interval=True).throughput == Throughput(
        4.0, flops_per_step=10**12, dtype="float32", tflops=4.0
    )


@pytest.mark.parametrize(
    ("flops", "expected"),
    [
        (StepFlops(39 * 10**12, "bfloat16", A100), (78.0, 312.0, "NVIDIA A100 data sheet", 0.25)),
        (StepFlops(10**12, "float32", "Some other accelerator"), (2.0, None, "", None)),
        (StepFlops(10**12, "float32", "", "", 0, 0, 8.0), (2.0, 8.0, MEASURED, 0.25)),
        (StepFlops(39 * 10**12, "bfloat16", A100, "", 0, 0, 99.0), (78.0, 312.0, "NVIDIA A100 data sheet", 0.25)),
    ],
    ids=["the peak of the device for the type", "an unknown device", "measured", "measured, but known"],
)
def test_utilization_is_of_a_known_peak(flops, expected):
    rates = run_of(10, flops=flops).snapshot().throughput
    assert (rates.tflops, rates.peak_tflops, rates.peak_source, rates.mfu) == expected


IDS = ProgramFacts(OptimizerFacts("AdamW", 40, ("float32",), ("cuda",), numbers=10**9), has_token_ids=True)
DENSE = StepFlops(7_500 * 10**9, "bfloat16", A100, "flash", 2_500 * 10**9, 500 * 10**9)  # of 1000 tokens


@pytest.mark.parametrize(
    ("flops", "program", "expected"),
    [
        (DENSE, IDS, (7.5, "6N + attention")),
        (DENSE._replace(flops=10**13), IDS, (7.5, "6N + attention")),  # executed again by checkpointing
        (DENSE._replace(flops=10**13), NOTHING_KNOWN, (7.5, "3x the forward pass")),
        (DENSE._replace(flops=7 * 10**12), NOTHING_KNOWN, (7.0, "3x the forward pass")),  # some layers are frozen
        (DENSE._replace(forward=10**12), IDS, (3.0, "3x the forward pass")),  # experts, of which each token has a few
        (DENSE._replace(forward=0), NOTHING_KNOWN, (7.5, "")),  # of a journal of an earlier version
    ],
)
def test_utilization_by_the_model_leaves_recomputation_out(flops, program, expected):
    run = run_of(10, flops=flops)
    run.accumulator.totals.tokens = 10_000
    rates = run.snapshot(program=program).throughput
    assert rates.hfu == pytest.approx(flops.flops * 2.0 / 312e12)
    assert (rates.mfu / rates.hfu * flops.flops / 1e12, rates.mfu_by) == (pytest.approx(expected[0]), expected[1])


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


@pytest.mark.parametrize(
    ("samples", "said"),
    [((12, 8), ["Before the first step (10.0 s): imports 10.0 s (6.00 s at train.py:3 <module>)"]), ((9, 0), [])],
)
def test_the_longest_of_several_lines_has_its_own_time_and_a_few_samples_explain_nothing(samples, said):
    run = FakeRun()
    for line, count in zip((3, 5), samples, strict=True):
        sampled(run, IMPORTS._replace(line=line), count)
    run.step(data_loading=0.5)
    assert startup_lines(run.snapshot()) == said
    assert (run.snapshot().startup is None) == (not said)


def test_imports_are_unused_where_nothing_of_the_package_runs():
    """A package that others need is imported by these then, such as a part of torch."""
    unused = IMPORTS._replace(called="unused import big.part")
    run = FakeRun()
    sampled(run, unused._replace(inside="big/__init__.py:3 <module> > small/core.py:1 <module>"), 8)
    sampled(run, unused._replace(inside="big/__init__.py:4 <module> > torch/_dynamo.py:9 <module>"), 4)
    sampled(run, unused._replace(line=5, called="unused import used", inside="used/__init__.py:1 <module>"), 6)
    run.step(data_loading=0.5)
    run.sample_line(OWN._replace(inside="used/table.py:7 read"))
    run.step(data_loading=0.5)
    (part,) = run.snapshot().startup.parts
    assert part.lines == (
        ("train.py:3 unused import big.part", 4.0),
        ("train.py:5 import used", 3.0),
        ("train.py:3 import big.part", 2.0),
    )


def test_what_a_section_says_of_the_time_before_the_first_step_is_kept():
    run = run_with_startup()
    with run.section("validation_epoch"):
        sampled(run, OWN, 10)
    run.step(data_loading=0.5)
    assert {part.name for part in run.snapshot().startup.parts[:2]} == {"imports", "validation_epoch"}
    assert ", validation_epoch 5.00 s (train.py:12 main), " in startup_lines(run.snapshot())[0]


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
