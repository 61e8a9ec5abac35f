"""The rule about gradients that nothing uses."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.diagnosis.validation import validation_with_gradients
from training_profiler.snapshot.snapshot import LineStats


def run_with(count, spent_s):
    return replace(snapshot_of({"backward_pass": 1.0}), with_grad_count=count, with_grad_s=spent_s)


def test_gradients_in_validation_are_found_without_a_saving():
    finding = validation_with_gradients(run_with(12, 1.5))
    assert finding.message == "Validation records gradients that nothing uses, in 12 forward passes (1.50 s)"
    assert finding.potential_saving_s == 0.0
    assert finding.evidence["count"] == 12
    assert "healthy" not in [finding.code for finding in diagnose(run_with(12, 1.5))]


def test_the_line_of_validation_is_named():
    line = LineStats("train.py", 42, "evaluate", share=0.1, samples=40)
    run = replace(run_with(12, 1.5), lines={"validation_epoch/forward_pass": (line,)})
    assert validation_with_gradients(run).message.endswith(": train.py:42 evaluate")


@pytest.mark.parametrize(("count", "spent_s"), [(0, 0.0), (1, 0.02)])
def test_validation_without_gradients_has_no_finding(count, spent_s):
    assert validation_with_gradients(run_with(count, spent_s)) is None
