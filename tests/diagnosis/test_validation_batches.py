"""Validation that gives the model a few samples at once."""

from dataclasses import replace

import pytest

from tests.support.recording import section_stats, snapshot_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.snapshot.program import ProgramFacts, RowFacts
from training_profiler.snapshot.snapshot import LoaderStats, Snapshot

ONE_BY_ONE = RowFacts(1000, 1000, 1.0, 768.0, 1000, 1000, 1, 64.0, 768.0)
TRAINING = LoaderStats("train", 100, 6400, 0.64, num_workers=0)
VALIDATION = LoaderStats("val", 5000, 5000, 1.0, "val", num_workers=0, made_at="train.py:9")


def run_with(
    facts: RowFacts = ONE_BY_ONE, *loaders: LoaderStats, passes: int = 5000, forward: float = 0.32
) -> Snapshot:
    """Return 10 s of 100 steps, 3.2 s of them forward passes, and ten validations of 10 s."""
    run = snapshot_of({"forward_pass": forward, "backward_pass": 0.3}, steps=100, step_s=0.1)
    total_s = {"validation_epoch": 10.0, "validation_epoch/data_loading": 1.0, "validation_epoch/forward_pass": 8.0}
    counts = {"validation_epoch": 10, "validation_epoch/data_loading": 5000, "validation_epoch/forward_pass": passes}
    self_s = {**total_s, "validation_epoch": 1.0}
    sections = {
        name: section_stats(
            name, self_s[name] / 20, self_s=self_s[name], count=counts[name], total_s=total_s[name], step_total_s=0.0
        )
        for name in total_s
    }
    return replace(
        run,
        wall_s=20.0,
        sections={**run.sections, **sections},
        loaders=loaders or (TRAINING, VALIDATION),
        program=ProgramFacts(rows=facts),
    )


def found(run: Snapshot) -> Finding | None:
    return next((finding for finding in diagnose(run) if finding.code == "validation-tiny-batches"), None)


def test_a_batch_of_one_sample_costs_what_the_training_shows() -> None:
    finding = found(run_with())
    assert finding is not None
    assert finding.message == (
        "Validation calls the model on 1 sample at a time: a forward pass takes 1.60 ms a sample, and 0.5 ms in the "
        "training, on 64"
    )
    # 5000 samples of 0.5 ms, and 5000 / 64 passes of at least 1.6 ms; loading takes 0.1 ms a sample in the training.
    passes_s, rest_s, loading_s = 8.0 - 2.5 - 5000 * 0.0016 / 64, 1.0 * 63 / 64, 1.0 - 0.5
    assert finding.potential_saving_s == pytest.approx(passes_s + rest_s + loading_s)
    assert "batch_size=64 for its DataLoader (train.py:9)" in finding.fix
    assert finding.losses == "same bit for bit, but its own results differ by rounding"


def test_a_loop_over_the_samples_of_a_batch_needs_no_other_loader() -> None:
    facts = ONE_BY_ONE._replace(batches=16, few_batches=16, most=64)
    finding = found(run_with(facts, TRAINING, replace(VALIDATION, batches=80)))
    assert finding is not None
    assert "batch_size" not in finding.fix
    assert finding.potential_saving_s == pytest.approx(8.0 - 2.5 - 5000 * 0.0016 / 64 + 63 / 64)


def test_a_call_for_each_token_of_each_sample_is_said() -> None:
    facts = ONE_BY_ONE._replace(batches=100, few_batches=100, most=10)
    finding = found(run_with(facts, TRAINING, replace(VALIDATION, batches=500, samples=500)))
    assert finding is not None
    assert "on 1 sample at a time, 10 times for each: " in finding.message
    assert "until the last of them has ended" in finding.fix


def test_it_comes_before_the_validation_that_is_slow_for_it() -> None:
    codes = [finding.code for finding in diagnose(run_with())]
    assert codes[0] == "validation-tiny-batches"
    savings = [each.potential_saving_s for each in diagnose(run_with()) if each.code.startswith("validation")]
    assert sum(savings) <= 10.0


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(ONE_BY_ONE._replace(calls=20, few=20, batches=20, few_batches=20), id="hardly any call"),
        pytest.param(ONE_BY_ONE._replace(few=500), id="most calls have many rows"),
        pytest.param(ONE_BY_ONE._replace(few_batches=10), id="few batches are followed by one: a text is made"),
        pytest.param(ONE_BY_ONE._replace(most=400), id="many after one batch: a text is made beside"),
        pytest.param(ONE_BY_ONE._replace(elements=2000.0), id="samples are larger"),
        pytest.param(ONE_BY_ONE._replace(training_rows=6.0, rows=1.0), id="the training has few as well"),
        pytest.param(ONE_BY_ONE._replace(training_rows=20.0), id="rows of the training are not its samples"),
        pytest.param(
            ONE_BY_ONE._replace(batches=100, few_batches=100, most=10), id="other passes than the ones looked at"
        ),
    ],
)
def test_silent_where_the_rows_may_have_a_reason(facts: RowFacts) -> None:
    assert found(run_with(facts)) is None


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run_with(ONE_BY_ONE, TRAINING), id="no loader of a validation"),
        pytest.param(run_with(ONE_BY_ONE, VALIDATION), id="no loader of the training"),
        pytest.param(run_with(ONE_BY_ONE, TRAINING, replace(VALIDATION, batches=10)), id="one batch a validation"),
        pytest.param(run_with(forward=0.6), id="a sample takes as long in the training"),
        pytest.param(replace(run_with(), program=ProgramFacts()), id="nothing is known"),
        pytest.param(replace(run_with(), wall_s=400.0), id="a small part of the run"),
    ],
)
def test_silent_without_a_comparison_or_a_gain(run: Snapshot) -> None:
    assert found(run) is None
