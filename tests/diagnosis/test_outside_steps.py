"""The rule about a run whose time lies outside its training steps."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.diagnosis.outside_steps import mostly_outside
from training_profiler.snapshot.snapshot import OUTSIDE_STEPS, LineStats

ACT = LineStats("dqn.py", 51, "Qnet.forward", 0.50, 100)
ENVIRONMENT = LineStats("dqn.py", 95, "main", 0.25, 50)
IMPORTS = LineStats("dqn.py", 2, "<module>", 0.05, 10)


def run_with(passes_s=50.0, rest_s=25.0, before_s=5.0, lines=(ENVIRONMENT,), steps=100):
    """Return a run of 100 s with steps of 100 ms, and so many seconds between them."""
    run = snapshot_of({"forward_pass": 0.5, "backward_pass": 0.5}, steps=steps)
    forward = run.sections["forward_pass"]
    sections = {
        **run.sections,
        "forward_pass": replace(forward, self_s=forward.step_self_s + passes_s),
        OUTSIDE_STEPS: replace(forward, name=OUTSIDE_STEPS, count=0, self_s=rest_s + before_s, step_self_s=0.0),
    }
    return replace(
        run,
        wall_s=100.0,
        sections=sections,
        step=replace(run.step, before_s=before_s),
        lines={OUTSIDE_STEPS: (*lines, IMPORTS), "forward_pass": (ACT,)},
        settled_lines={OUTSIDE_STEPS: lines},
    )


def test_an_agent_that_acts_is_named_with_its_lines():
    finding = mostly_outside(run_with())
    assert finding.message == (
        "75.0% of the run lies outside its training steps: 50.0% in forward passes, 25.0% in no section: "
        "dqn.py:51 Qnet.forward (67% of it), dqn.py:95 main (33% of it)"
    )
    assert finding.potential_saving_s == pytest.approx(75.0)


def test_it_comes_before_findings_about_the_few_steps():
    codes = [finding.code for finding in diagnose(run_with())]
    assert codes[0] == "outside-steps"
    assert "healthy" not in codes


def test_forward_passes_of_steps_are_not_its_lines():
    run = run_with(passes_s=1.0, rest_s=60.0, lines=(replace(ENVIRONMENT, share=0.6),))
    assert mostly_outside(run).message == (
        "61.0% of the run lies outside its training steps: 1.0% in forward passes, 60.0% in no section: "
        "dqn.py:95 main (98% of it)"
    )


def test_time_of_one_kind_has_one_share():
    run = run_with(passes_s=0.0, rest_s=50.0, lines=(replace(ENVIRONMENT, share=0.5),))
    assert mostly_outside(run).message == (
        "50.0% of the run lies outside its training steps, in no section: dqn.py:95 main (100% of it)"
    )


def test_a_part_of_the_run_in_no_section_is_named_without_its_forward_passes():
    finding = mostly_outside(run_with(passes_s=15.0, rest_s=20.0))
    assert (
        finding.message
        == "20.0% of the run lies outside its training steps, in no section: dqn.py:95 main (100% of it)"
    )
    assert finding.potential_saving_s == pytest.approx(10.0)


@pytest.mark.parametrize(
    "run",
    [
        run_with(passes_s=24.0, rest_s=15.0),
        run_with(rest_s=0.0, passes_s=0.0, before_s=90.0),
        run_with(lines=(), passes_s=0.5, rest_s=80.0),
        run_with(lines=(replace(ENVIRONMENT, samples=9),), passes_s=0.5, rest_s=80.0),
        run_with(lines=(replace(ENVIRONMENT, share=0.14),), passes_s=0.5, rest_s=90.0),
        run_with(steps=9),
        replace(run_with(passes_s=5.0, rest_s=3.0), wall_s=12.0),
        replace(run_with(), step=None),
    ],
    ids=[
        "most in steps",
        "start-up",
        "no lines",
        "few samples",
        "a notebook between cells",
        "few steps",
        "a short run",
        "no steps",
    ],
)
def test_other_runs_are_not_flagged(run):
    assert mostly_outside(run) is None
