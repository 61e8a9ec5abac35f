"""The rule about gradients that nothing uses."""

from dataclasses import replace

import pytest

from tests.support.recording import section_stats, snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.diagnosis.validation import validation_with_gradients
from training_profiler.snapshot.program import PassesBefore
from training_profiler.snapshot.snapshot import LineStats


def run_with(count, spent_s):
    return replace(snapshot_of({"backward_pass": 1.0}), with_grad_count=count, with_grad_s=spent_s)


def test_gradients_in_validation_save_a_part_of_its_forward_passes():
    finding = validation_with_gradients(run_with(12, 1.5))
    assert (
        finding.message
        == "Validation records gradients that nothing uses, in 12 forward passes (1.50 s, 15% of the run)"
    )
    assert finding.potential_saving_s == pytest.approx(0.225)
    assert finding.evidence["count"] == 12
    assert "healthy" not in [finding.code for finding in diagnose(run_with(12, 1.5))]


def test_the_line_of_validation_is_named():
    line = LineStats("train.py", 42, "evaluate", share=0.1, samples=40)
    run = replace(run_with(12, 1.5), lines={"validation_epoch/forward_pass": (line,)})
    assert validation_with_gradients(run).message.endswith(": train.py:42 evaluate")


def test_the_line_of_the_loop_comes_before_that_of_the_model():
    loop, model = (LineStats("train.py", line, name, 0.1, 40) for line, name in ((42, "evaluate"), (7, "Net.forward")))
    run = replace(run_with(12, 1.5), lines={"validation_epoch/forward_pass": (model,), "validation_epoch": (loop,)})
    assert validation_with_gradients(run).message.endswith(": train.py:42 evaluate")


def validating(share, spent_s, others):
    """Return a run of 10 s in steps, whose validation takes ``share`` of that, ``spent_s`` of it with gradients."""
    run = run_with(100, spent_s)
    section = section_stats("validation_epoch", share, count=10, total_s=share * 10, step_total_s=0.0)
    return replace(run, sections={**snapshot_of(others).sections, "validation_epoch": section})


def test_gradients_come_before_the_validation_that_records_them():
    findings = diagnose(validating(0.5, 4.0, {"optimizer_step": 0.2, "backward_pass": 0.8}))
    assert [(each.code, round(each.potential_saving_s, 3)) for each in findings[:3]] == [
        ("validation-with-gradients", 0.6),
        ("validation-heavy", 1.9),
        ("optimizer-heavy", 1.0),
    ]


def test_a_costlier_cause_comes_before_both():
    findings = diagnose(validating(0.2, 1.0, {"data_loading": 0.8, "backward_pass": 0.2}))
    assert [each.code for each in findings[:3]] == [
        "data-loading-bound",
        "validation-with-gradients",
        "validation-heavy",
    ]


@pytest.mark.parametrize(("count", "spent_s"), [(0, 0.0), (1, 0.02), (100, 0.13)])
def test_validation_without_gradients_has_no_finding(count, spent_s):
    assert validation_with_gradients(run_with(count, spent_s)) is None


def prepared(count, spent_s, of=10, share=0.5):
    run = validating(share, 0.0, {"optimizer_step": 0.2, "backward_pass": 0.8})
    section = replace(run.sections["validation_epoch"], count=of)
    run = replace(run, sections={**run.sections, "validation_epoch": section}, with_grad_count=0)
    return replace(run, program=run.program._replace(passes_before=PassesBefore(count, spent_s)))


def test_passes_before_the_training_are_no_validation_that_could_be_less_often():
    findings = {each.code: each for each in diagnose(prepared(1, 5.0, of=1))}
    assert "validation-heavy" not in findings
    finding = findings["passes-before-training"]
    assert finding.message == (
        "50.0% of the run is one pass without gradients over a data loader before the first step (5.00 s)"
    )
    assert (finding.potential_saving_s, finding.saving_range_s) == (5.0, (0.0, 5.0))
    assert "often" not in finding.fix


def test_validations_beside_these_passes_count_without_them():
    findings = {each.code: each for each in diagnose(prepared(2, 3.0))}
    assert "2 passes without gradients" in findings["passes-before-training"].message
    assert "(validation_epoch: 8 times, 250 ms on average)" in findings["validation-heavy"].message
    assert findings["validation-heavy"].potential_saving_s == pytest.approx(1.0)


def test_a_short_pass_before_the_training_is_not_worth_a_word():
    assert "passes-before-training" not in [each.code for each in diagnose(prepared(1, 0.5))]
