"""The rule about the time in a sampler, and what it leaves of the waiting for batches."""

from dataclasses import replace

import pytest

from tests.support.recording import section_stats, snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.snapshot import LineStats, Snapshot


def line(number: int, share: float, phase: str = "sampler", samples: int = 100) -> LineStats:
    return LineStats("data.py", number, "Hard.__iter__", share=share, samples=samples, phase=phase)


def run_with(*lines: LineStats, section: str = "data_loading", steps: int = 100) -> Snapshot:
    run = snapshot_of({"data_loading": 0.5, "forward_pass": 0.2, "backward_pass": 0.3}, steps=steps)
    extra = (
        {section: section_stats(section, 0.4, count=5, parent="data_loading")} if section not in run.sections else {}
    )
    return replace(run, lines={section: lines}, sections={**run.sections, **extra})


def findings_of(run: Snapshot) -> dict[str, Finding]:
    return {finding.code: finding for finding in diagnose(run)}


@pytest.mark.parametrize("section", ["data_loading", "first_fetch"])
def test_a_sampler_is_named_with_its_line_and_before_the_loader(section):
    found = findings_of(run_with(line(9, 0.3), line(10, 0.15), section=section))
    assert next(iter(found)) == "sampler-slow"
    assert "takes 45.0% of step time (45.0 ms per step)" in found["sampler-slow"].message
    assert "data.py:9 Hard.__iter__ (67% of it)" in found["sampler-slow"].message
    assert found["sampler-slow"].potential_saving_s == pytest.approx(4.5)
    assert "data-loading-bound" not in found  # workers cannot take it over, and little else is left


def test_the_rest_of_the_waiting_stays_with_the_loader():
    found = findings_of(run_with(line(9, 0.2), line(20, 0.3, phase="")))
    assert found["sampler-slow"].potential_saving_s == pytest.approx(2.0)
    assert found["data-loading-bound"].potential_saving_s == pytest.approx(3.0)


@pytest.mark.parametrize(
    "run",
    [
        run_with(line(9, 0.45, phase="")),  # the data set
        run_with(line(9, 0.05)),
        run_with(line(9, 0.45, samples=9)),
        run_with(line(9, 0.45), steps=9),
        run_with(line(9, 0.45), section="validation_epoch/data_loading"),
    ],
    ids=["data set", "at the threshold", "few samples", "few steps", "validation"],
)
def test_other_waiting_is_not_a_slow_sampler(run):
    assert "sampler-slow" not in findings_of(run)
