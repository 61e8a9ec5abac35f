"""Anomaly detection that is left on is found with its line."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.program import CallFacts, CallSite, NanChecks, OptimizerFacts, ProgramFacts
from training_profiler.snapshot.snapshot import Snapshot

ADAM = OptimizerFacts("Adam", 20, ("float32",), ("cpu",), has_foreach=True, has_fused=True)
CALL = CallFacts("anomaly", "torch.autograd.set_detect_anomaly", CallSite("train.py", 7))


def run_with(is_on: bool, phases: dict[str, float]) -> Snapshot:
    run = snapshot_of({"forward_pass": 0.7, "backward_pass": 0.2, "optimizer_step": 0.1})  # of 100 steps of 100 ms
    return replace(run, program=ProgramFacts(ADAM, calls=(CALL,), finds_anomalies=is_on), phases=phases, wall_s=10.0)


def findings_of(run: Snapshot) -> dict[str, Finding]:
    return {finding.code: finding for finding in diagnose(run)}


def test_stacks_of_anomaly_detection_are_the_saving() -> None:
    found = findings_of(run_with(True, {"anomaly detection": 0.5}))
    assert next(iter(found)) == "anomaly-detection"
    finding = found["anomaly-detection"]
    assert finding.potential_saving_s == pytest.approx(5.0)
    assert (
        "takes 50% of step time to keep a stack for each operation (50.0 ms per step), switched on at train.py:7"
        in finding.message
    )
    assert finding.losses == "same bit for bit"
    assert "forward-dominates" not in found


def test_checks_for_nan_are_part_of_the_saving() -> None:
    """They took 3/4 of the operators in the backward pass of the counted step; the backward pass is 20% of a step."""
    run = run_with(True, {"anomaly detection": 0.5})
    run = replace(run, program=run.program._replace(nan_checks=NanChecks(300, 0.009, 0.012)))
    finding = findings_of(run)["anomaly-detection"]
    assert finding.potential_saving_s == pytest.approx(5.0 + 0.75 * 2.0)
    assert finding.message == (
        "Autograd's anomaly detection takes 65% of step time to keep a stack for each operation and to look for NaN in "
        "each gradient (65.0 ms per step), switched on at train.py:7"
    )


def test_checks_of_a_device_are_unknown() -> None:
    run = run_with(True, {"anomaly detection": 0.5})
    on_device = replace(run.sections["backward_pass"], device_count=100, device_total_s=2.0)
    checked = replace(
        run,
        program=run.program._replace(nan_checks=NanChecks(300, 0.009, 0.012)),
        sections={**run.sections, "backward_pass": on_device},
    )
    assert findings_of(run)["anomaly-detection"].message.endswith(", and more to look for NaN in each gradient")
    assert findings_of(checked)["anomaly-detection"].potential_saving_s == pytest.approx(5.0)


def test_other_trainings_have_no_anomaly_detection() -> None:
    assert "anomaly-detection" not in findings_of(run_with(False, {"anomaly detection": 0.5}))  # of a compiler
    assert "anomaly-detection" not in findings_of(run_with(True, {}))  # on in the first step alone
