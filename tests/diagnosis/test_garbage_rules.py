"""The rule about garbage collections, and uneven steps that they explain."""

from dataclasses import replace

import pytest

from tests.support.recording import collecting, snapshot_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.snapshot.snapshot import Snapshot


def found(run: Snapshot, code: str = "garbage-collection") -> Finding | None:
    return next((finding for finding in diagnose(run) if finding.code == code), None)


def training(every: int, seconds: float, generation: int = 2, is_asked: bool = False, steps: int = 100) -> Snapshot:
    """Return a run whose steps take 100 ms, and have a collection every so many steps."""
    run = collecting()
    for step in range(1, steps + 1):
        run.spend("forward_pass", 0.03)
        with run.section("backward_pass"):
            run.clock.advance(0.06)
            if step % every == 0:
                run.collect(seconds + 0.005 * (step == 50), generation, is_asked)
        run.step(optimizer_step=0.01)
    return run.snapshot()


def test_full_collections_are_named_with_their_steps() -> None:
    finding = found(training(10, 0.25))
    assert finding is not None
    assert finding.message == (
        "Garbage collection takes 20% of step time (25.1 ms per step): 10 full, 250 ms each, in 10 of 100 steps "
        "(longest 255 ms at step 50)"
    )
    assert finding.potential_saving_s == pytest.approx(2.5, abs=0.01)
    assert finding.evidence["explained"] == pytest.approx(1.0, abs=0.01)
    assert "gc.freeze()" in finding.fix
    assert finding.losses == "same bit for bit"


def test_uneven_steps_say_nothing_beside_their_cause() -> None:
    assert found(training(10, 0.25), "step-time-varies") is None


def test_uneven_steps_name_collections_that_are_rare() -> None:
    run = replace(training(20, 0.25), thresholds={"garbage-collection": 0.5})
    finding = found(run, "step-time-varies")
    assert finding is not None
    assert finding.message.endswith("100% of the variation comes from garbage collection")
    assert "gc.freeze()" in finding.fix


def test_collections_that_the_program_asks_for_have_another_fix() -> None:
    finding = found(training(1, 0.02, is_asked=True))
    assert finding is not None
    assert "100 of gc.collect(), 20.0 ms each, in nearly every step" in finding.message
    assert finding.fix.startswith("Call gc.collect() less often")
    assert finding.losses == "same bit for bit"


def test_young_collections_have_another_fix() -> None:
    finding = found(training(1, 0.02, generation=0))
    assert finding is not None
    assert "100 young, 20.0 ms each" in finding.message
    assert "gc.set_threshold" in finding.fix


@pytest.mark.parametrize(
    "run",
    [
        snapshot_of({"forward_pass": 0.5}),
        training(10, 0.03),  # 2.9 %
        training(50, 0.3),  # in two steps
    ],
)
def test_silent_where_it_is_little_or_chance(run: Snapshot) -> None:
    assert found(run) is None


def test_collections_of_the_first_steps_do_not_count() -> None:
    run = collecting()
    for step in range(100):
        run.spend("forward_pass", 0.1)
        if step < 9:
            with run.section("backward_pass"):
                run.collect(0.5)
        run.step()
    assert found(run.snapshot()) is None


def test_a_section_that_collects_has_the_rest() -> None:
    run = collecting()
    for step in range(1, 101):
        with run.section("data_loading"):
            run.clock.advance(0.02)
            if step % 2 == 0:
                run.collect(0.1)
        run.step(forward_pass=0.01, backward_pass=0.02)
    findings = {finding.code: finding.potential_saving_s for finding in diagnose(run.snapshot())}
    assert findings["garbage-collection"] == pytest.approx(5.0)
    assert sum(findings.values()) <= 10.0
