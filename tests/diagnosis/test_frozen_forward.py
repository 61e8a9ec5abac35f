"""A frozen module whose outputs are computed again in each epoch is found, with what keeping them saves."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.diagnosis.claims import section_of
from training_profiler.findings.finding import Finding
from training_profiler.snapshot.program import FrozenFacts, ProgramFacts
from training_profiler.snapshot.snapshot import EpochStats, Snapshot

# 30 ms of a step of 100 ms.
FROZEN = FrozenFacts(20, 0.5, True, "ResNet", "train.py:20", 0.03)
SECTIONS = {"forward_pass": 0.6, "backward_pass": 0.2}


def epochs(*forward_s: float, steps: int = 25) -> tuple[EpochStats, ...]:
    return tuple(
        EpochStats(number, 2.5, steps, steps, None, None, {"forward_pass": seconds * steps}, None, None)
        for number, seconds in enumerate(forward_s)
    )


FOUR = epochs(0.06, 0.06, 0.06, 0.06)


def run_with(facts: FrozenFacts, passed: tuple[EpochStats, ...] = FOUR, steps: int = 100, **shares: float) -> Snapshot:
    run = snapshot_of(shares or SECTIONS, steps=steps)
    return replace(run, epochs=passed, program=ProgramFacts(frozen=facts))


def findings_of(run: Snapshot) -> dict[str, Finding]:
    return {finding.code: finding for finding in diagnose(run)}


def test_all_epochs_but_the_first_can_do_without_it():
    found = findings_of(run_with(FROZEN))
    finding = found["frozen-forward"]
    assert finding.message == (
        "ResNet (called at train.py:20) is not trained, and computes its outputs again in each of 4 epochs: "
        "30.0 ms per step, 30% of step time"
    )
    assert finding.potential_saving_s == pytest.approx(3.0 * 3 / 4)
    assert finding.fix.startswith("If each epoch has the same inputs, without random augmentation")
    assert finding.losses == "differ by rounding, if inputs are the same in each epoch"
    assert section_of(finding) == "forward_pass"


def test_kept_outputs_may_also_be_read_faster_than_inputs_are_loaded():
    quick = findings_of(run_with(FROZEN))["frozen-forward"]
    assert quick.saving_range_s == pytest.approx((0.6 * 2.25, 1.3 * 2.25))
    slow = findings_of(run_with(FROZEN, forward_pass=0.6, backward_pass=0.1, data_loading=0.2))["frozen-forward"]
    assert slow.saving_range_s == pytest.approx((0.6 * 2.25, 2.25 + 2.0 * 3 / 4))


def test_a_pass_without_gradients_lies_in_its_own_section():
    run = run_with(FROZEN._replace(has_grad=False), forward_pass=0.2, forward_without_grad=0.4)
    finding = findings_of(run)["frozen-forward"]
    assert finding.potential_saving_s == pytest.approx(3.0 * 3 / 4)
    assert section_of(finding) == "forward_without_grad"


def test_several_layers_are_counted():
    message = findings_of(run_with(FROZEN._replace(module="layer3 of ResNet", modules=4)))["frozen-forward"].message
    assert message.startswith("layer3 of ResNet and 3 more (called at train.py:20) are not trained, and compute their ")


def test_a_run_whose_epochs_are_not_all_there_has_even_ones():
    run = run_with(FROZEN)
    run = replace(run, program=run.program._replace(epochs=10))
    assert findings_of(run)["frozen-forward"].potential_saving_s == pytest.approx(3.0 * 9 / 10)


@pytest.mark.parametrize(
    "run",
    [
        run_with(FROZEN, FOUR[:1]),
        run_with(FROZEN, ()),
        run_with(FROZEN, epochs(0.06, 0.014, 0.014)),
        run_with(FROZEN._replace(part=0.25)),
        run_with(FROZEN._replace(batches=7)),
        run_with(FROZEN, steps=9),
        replace(run_with(FROZEN), program=ProgramFacts()),
    ],
    ids=["one epoch", "no epochs", "kept already", "at the threshold", "few batches", "few steps", "not known"],
)
def test_other_runs_have_none(run):
    assert "frozen-forward" not in findings_of(run)
