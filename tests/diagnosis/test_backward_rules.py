"""Rules about what a program adds to backward passes: hooks, penalties of parameters, graphs of gradients."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.program import (
    OptimizerFacts,
    OutsideModules,
    ProgramFacts,
    UnusedGradients,
    UnusedGraphs,
)
from training_profiler.snapshot.snapshot import LineStats, Snapshot

SGD = OptimizerFacts("SGD", 12, ("float32",), ("cpu",), has_foreach=True, has_fused=True)
# Of 100 steps of 100 ms; 20 % of them are unattributed.
SECTIONS = {"forward_pass": 0.2, "backward_pass": 0.5, "optimizer_step": 0.1}
CALL = LineStats("train.py", 9, "main", 0.1, 100, called={"backward": 0.1})


def hook(share: float, phase: str = "backward hook", samples: int = 100) -> LineStats:
    return LineStats("train.py", 30, "watch", share, samples, phase=phase, called={".item": share})


def run_with(*lines: LineStats, facts: ProgramFacts | None = None, steps: int = 100) -> Snapshot:
    return replace(
        snapshot_of(SECTIONS, steps=steps), lines={"backward_pass": lines}, program=facts or ProgramFacts(SGD)
    )


def findings_of(run: Snapshot) -> dict[str, Finding]:
    return {finding.code: finding for finding in diagnose(run)}


def test_hooks_are_named_with_their_line_and_their_time():
    found = findings_of(run_with(hook(0.4), CALL))
    assert next(iter(found)) == "backward-hooks"
    finding = found["backward-hooks"]
    assert "Hooks take 40% of step time in backward passes (40.0 ms per step)" in finding.message
    assert "above all in train.py:30 watch (100% of it, in .item())" in finding.message
    assert finding.potential_saving_s == pytest.approx(4.0)
    assert "backward-slow" not in found


@pytest.mark.parametrize(
    "run",
    [
        run_with(hook(0.4, phase="custom backward"), CALL),
        run_with(hook(0.4, phase="recomputation"), CALL),
        run_with(hook(0.1), CALL),
        run_with(hook(0.4, samples=9), CALL),
        run_with(hook(0.4), CALL, steps=9),
        run_with(CALL),
    ],
    ids=["custom function", "recomputation", "at the threshold", "few samples", "few steps", "no hooks"],
)
def test_other_backward_passes_have_no_hooks(run):
    assert "backward-hooks" not in findings_of(run)


def test_hooks_of_forward_passes_are_named_too():
    lines = (replace(hook(0.15, phase="forward hook"), called={}), LineStats("train.py", 9, "main", 0.05, 50))
    found = findings_of(replace(run_with(CALL), lines={"forward_pass": lines}))
    finding = found["forward-hooks"]
    assert finding.message == (
        "Hooks take 15% of step time in forward passes (15.0 ms per step), above all in train.py:30 watch (100% of it)"
    )
    assert finding.potential_saving_s == pytest.approx(1.5)
    assert "every n-th step" in finding.fix
    assert "cheaper hooks: same bit for bit, if they change no value" in finding.losses


@pytest.mark.parametrize("line", [hook(0.09, phase="forward hook"), hook(0.15, phase="forward hook", samples=9)])
def test_few_hooks_of_forward_passes_are_no_finding(line):
    assert "forward-hooks" not in findings_of(replace(run_with(CALL), lines={"forward_pass": (line,)}))


PENALTY = ProgramFacts(SGD, operators=200, outside=OutsideModules(72, 0.006, 0.01, 24))


def test_a_penalty_of_all_parameters_has_its_part_of_the_backward_pass():
    run = run_with(CALL, facts=PENALTY)
    run = replace(run, lines={**run.lines, "other": (LineStats("train.py", 4, "penalty", 0.15, 100),)})
    found = findings_of(run)
    finding = found["parameter-loop"]
    # 60 % of the backward pass, and all that is unattributed.
    assert finding.potential_saving_s == pytest.approx(3.0 + 2.0)
    assert "24 operations a step, which take about 50% of step time" in finding.message
    assert finding.message.endswith("unattributed time is above all in train.py:4 penalty (75% of it)")
    assert "unexplained" not in found


def test_unattributed_time_beyond_the_backward_pass_of_a_penalty_is_not_its():
    small = PENALTY._replace(outside=OutsideModules(72, 0.003, 0.01, 24))
    found = findings_of(run_with(CALL, facts=small))
    assert found["parameter-loop"].potential_saving_s == pytest.approx(1.5 + 1.5)


@pytest.mark.parametrize(
    "facts",
    [
        PENALTY._replace(outside=OutsideModules(72, 0.006, 0.01, 5)),  # a layer that the program computes itself
        PENALTY._replace(optimizer=SGD._replace(tensors=49)),
        PENALTY._replace(outside=OutsideModules(72, 0.001, 0.01, 24)),
        PENALTY._replace(outside=OutsideModules(0, 0.0, 0.0, 24)),
        PENALTY._replace(optimizer=None),
    ],
    ids=["few", "of a few tensors", "at the threshold", "not counted", "no optimizer"],
)
def test_other_losses_have_no_penalty(facts):
    assert "parameter-loop" not in findings_of(run_with(CALL, facts=facts))


def test_a_model_of_functions_has_no_penalty():
    run = run_with(CALL, facts=PENALTY)
    without = {name: section for name, section in run.sections.items() if name != "forward_pass"}
    assert "parameter-loop" not in findings_of(replace(run, sections=without))


def test_a_graph_of_gradients_that_nothing_uses_is_found():
    found = findings_of(run_with(facts=ProgramFacts(SGD, created_graphs=95)))["needless-create-graph"]
    assert "in 95 of 100 steps" in found.message
    assert found.potential_saving_s == pytest.approx(0.5)  # a tenth of the backward pass
    assert found.losses == "same bit for bit"


TEACHER = UnusedGradients(9_000, 10_000, 0.8, 0.0, True, "Teacher", "train.py:20 main")


def test_gradients_of_a_teacher_that_no_optimizer_uses_are_found():
    found = findings_of(run_with(facts=ProgramFacts(SGD, unused_gradients=TEACHER)))["unused-gradients"]
    assert found.message == (
        "Backward passes compute gradients of 9,000 parameters that are in no optimizer, 90% of all with gradients: of "
        "Teacher, called at train.py:20 main; a step's backward passes take 50.0 ms"
    )
    assert found.potential_saving_s == pytest.approx(4.0)
    assert found.fix.startswith("Call it under torch.no_grad() if it only gives targets")
    assert found.losses == "same bit for bit"


def test_gradients_that_pass_through_a_model_are_needed():
    loss = TEACHER._replace(passed_on=0.8, is_whole=False)
    found = findings_of(run_with(facts=ProgramFacts(SGD, unused_gradients=loss)))["unused-gradients"]
    assert found.potential_saving_s == pytest.approx(2.0)
    assert "no_grad" not in found.fix
    small = TEACHER._replace(part=0.1)  # 5 % of step time
    assert "unused-gradients" not in findings_of(run_with(facts=ProgramFacts(SGD, unused_gradients=small)))


@pytest.mark.parametrize("count", [0, 89])
def test_graphs_of_gradients_that_some_steps_use_are_none(count):
    assert "needless-create-graph" not in findings_of(run_with(facts=ProgramFacts(SGD, created_graphs=count)))


ACTING = UnusedGraphs(24, 480, 500, 0.9, "Policy", "train.py:22 act")


def test_forward_passes_whose_gradients_nothing_uses_are_found():
    found = findings_of(run_with(facts=ProgramFacts(SGD, unused_graphs=ACTING)))["unused-graphs"]
    assert found.message == (
        "Forward passes record gradients that no backward pass uses: 96% of them, above all Policy at train.py:22 act "
        "(18.0 ms per step, 18% of step time)"
    )
    assert found.potential_saving_s == pytest.approx(0.15 * 1.8)
    assert found.fix.startswith("Call it under torch.no_grad()")
    assert found.losses == "same bit for bit"


@pytest.mark.parametrize(
    "facts",
    [
        ACTING._replace(part=0.3),
        ACTING._replace(steps=5),
        ACTING._replace(calls=5),
    ],
    ids=["a small part", "few steps", "now and then"],
)
def test_gradients_of_few_forward_passes_are_not_worth_a_finding(facts):
    assert "unused-graphs" not in findings_of(run_with(facts=ProgramFacts(SGD, unused_graphs=facts)))


def test_validation_that_records_gradients_has_a_rule_of_its_own():
    run = replace(run_with(facts=ProgramFacts(SGD, unused_graphs=ACTING)), with_grad_count=100, with_grad_s=1.0)
    assert "unused-graphs" not in findings_of(run)


def test_on_a_device_recording_gradients_is_not_what_takes_time():
    run = run_with(facts=ProgramFacts(SGD, unused_graphs=ACTING))
    forward = replace(run.sections["forward_pass"], device_count=100, device_total_s=3.0)
    run = replace(run, sections={**run.sections, "forward_pass": forward})
    assert "unused-graphs" not in findings_of(run)
