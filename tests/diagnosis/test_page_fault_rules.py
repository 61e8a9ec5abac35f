"""Page faults within steps: their price, with its uncertainty, and the finding."""

from dataclasses import replace

import pytest

from tests.diagnosis.test_machine_rules import level
from tests.support.recording import snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.diagnosis.pauses import page_fault_time, pauses
from training_profiler.diagnosis.registry import section_of
from training_profiler.snapshot.machine import MachineStats
from training_profiler.snapshot.snapshot import LineStats, Snapshot

STEPS = {"forward_pass": 0.6, "backward_pass": 0.4}


def run(
    faults: float = 40_000, cost_s: float | None = 5e-6, kernel: float = 0.3, wall_s: float = 10.0, samples: int = 9
) -> Snapshot:
    """Return a run with 100 steps of 100 ms."""
    stats = MachineStats(samples, page_faults=level(faults), cpu_kernel=level(kernel), page_cost_s=cost_s)
    return replace(snapshot_of(STEPS, steps=100, step_s=0.1), machine=stats, wall_s=wall_s)


def codes(snapshot: Snapshot) -> list[str]:
    return [finding.code for finding in diagnose(snapshot)]


def test_faults_cost_their_number_times_that_of_a_page() -> None:
    (pause,) = pauses(run())
    assert (pause.cause, pause.seconds, pause.least_s) == ("page faults", pytest.approx(2.0), pytest.approx(1.0))
    # All time in the kernel, and two standard errors of the 300 ticks in it.
    assert pause.most_s == pytest.approx(3.0 + 2 * 300**0.5 * 0.01)


def test_they_take_no_longer_than_the_kernel_did() -> None:
    pause = page_fault_time(run(faults=400_000))
    assert pause is not None
    assert pause.seconds == pause.most_s == pytest.approx(3.346, abs=0.001)


def test_finding_says_how_long_and_how_many() -> None:
    finding = next(finding for finding in diagnose(run()) if finding.code == "page-faults")
    assert finding.message == (
        "Page faults take about 20% of step time (20.0 ms per step, 10.0 ms to 33.5 ms): about 4,000 pages of memory "
        "are new in each step"
    )
    assert finding.potential_saving_s == pytest.approx(2.0)
    assert finding.losses == "same bit for bit"


@pytest.mark.parametrize(
    "snapshot",
    [
        run(faults=19_900),  # 9.95 %, and half of that in the least; 5 % is the threshold
        run(cost_s=None),  # not measured
        run(samples=2),
        run(wall_s=20.0),  # all of them may lie before the steps
        replace(run(), machine=None),
        replace(run(), machine=MachineStats(9, page_faults=level(40_000), page_cost_s=5e-6)),  # another system
        replace(run(), step=None),
    ],
)
def test_no_finding_where_it_is_little_or_unknown(snapshot: Snapshot) -> None:
    assert "page-faults" not in codes(snapshot)


def test_the_time_is_claimed_once() -> None:
    findings = {finding.code: finding.potential_saving_s for finding in diagnose(run())}
    assert sum(findings.values()) <= 10.0


def test_they_are_of_no_line_because_only_their_number_in_all_sections_is_known() -> None:
    forward = (LineStats("model.py", 19, "forward", share=0.6, samples=400),)
    with_lines = replace(run(), lines={"forward_pass": forward}, settled_lines={"forward_pass": forward})
    finding = next(finding for finding in diagnose(with_lines) if finding.code == "page-faults")
    assert section_of(finding) is None
    assert "model.py" not in finding.message
    assert "lines" not in finding.evidence


def message_with(share: float, faults: float = 140_000, samples: int = 400) -> str:
    """Return the message where one line takes this share of the steps and page faults take 70% of them."""
    line = (LineStats("model.py", 31, "enqueue", share=share, samples=samples),)
    steps = replace(run(faults=faults, kernel=0.9), lines={"forward_pass": line}, settled_lines={"forward_pass": line})
    steps = replace(steps, sections=snapshot_of({"forward_pass": 0.95, "backward_pass": 0.05}).sections)
    return next(finding.message for finding in diagnose(steps) if finding.code == "page-faults")


def test_a_line_with_nearly_all_step_time_has_most_page_faults() -> None:
    """Of 70% at least 60% are among its 90%."""
    assert message_with(share=0.9).endswith("; most of them at model.py:31 enqueue, which takes 90% of step time")


@pytest.mark.parametrize(
    "message", [message_with(0.6), message_with(0.9, faults=40_000), message_with(0.9, samples=20)]
)
def test_a_line_that_may_have_few_of_them_is_not_named(message: str) -> None:
    assert "model.py" not in message


def test_page_faults_of_gradients_make_no_backward_pass_slow() -> None:
    shares = {"forward_pass": 0.2, "backward_pass": 0.8}
    with_faults, without = (replace(run(cost_s=cost_s), sections=snapshot_of(shares).sections) for cost_s in (6e-6, 0))
    assert "backward-slow" not in codes(with_faults)  # 2.4 of its 8 s, so 2.8 forward passes are left
    assert "backward-slow" in codes(without)
