"""The rules together: their order, the remarks, and the warnings of an epoch."""

from dataclasses import replace

import pytest

from tests.support.recording import section_stats, snapshot_of, step_stats
from training_profiler.diagnosis import diagnose, epoch_warnings
from training_profiler.diagnosis.rules import too_little_data
from training_profiler.model.snapshot import EpochStats, LoaderStats, Snapshot

HEALTHY = {"data_loading": 0.02, "forward_pass": 0.38, "backward_pass": 0.5, "optimizer_step": 0.1}


def test_without_steps_the_message_asks_for_profile_step():
    assert too_little_data(Snapshot()) == (
        "No steps were marked: call profile_step() after each step; the rules need 10"
    )


def test_a_program_that_ended_before_it_trained_is_not_asked_for_profile_step():
    crashed = Snapshot(ended_by="ValueError")
    assert too_little_data(crashed) == "The program ended by ValueError before its first training step"
    trained = replace(crashed, sections={"backward_pass": section_stats("backward_pass", 0.5, count=5, avg_s=0.1)})
    assert "profile_step()" in too_little_data(trained)


def test_message_on_few_steps_names_the_needed_number():
    assert too_little_data(snapshot_of(HEALTHY, steps=9)) == "Only 9 steps; the rules need 10"
    assert too_little_data(snapshot_of(HEALTHY, steps=10)) is None


def epoch(**self_s) -> EpochStats:
    return EpochStats(1, 10.0, 100, 100, None, 0.1, self_s, None, None)


def test_an_epoch_warns_of_data_generation_above_three_tenths():
    assert epoch_warnings(epoch(data_generation=6.5)) == ["Data generation takes 65.0% of batch time (severity 0.50)"]
    assert epoch_warnings(epoch(data_generation=10.0))[0].endswith("(severity 1.00)")


@pytest.mark.parametrize("self_s", [{"data_generation": 3.0}, {"forward_pass": 9.0}, {}])
def test_an_epoch_does_not_warn_at_or_below_three_tenths_or_without_time(self_s):
    assert epoch_warnings(epoch(**self_s)) == []
    assert epoch_warnings(replace(epoch(**self_s), wall_s=0.0)) == []


def test_the_warnings_of_an_epoch_have_the_threshold_of_the_run():
    assert epoch_warnings(epoch(data_generation=4.0), {"data-generation-bound": 0.5}) == []
    assert len(epoch_warnings(epoch(data_generation=4.0), {"data-generation-bound": 0.35})) == 1


@pytest.mark.parametrize(("threshold", "fires"), [(0.30, False), (0.20, True)])
def test_a_threshold_of_the_run_wins_over_the_default(threshold, fires):
    run = snapshot_of({"data_loading": 0.25, "forward_pass": 0.35, "backward_pass": 0.4})
    found = [each.code for each in diagnose(replace(run, thresholds={"data-loading-bound": threshold}))]
    assert ("data-loading-bound" in found, "data-loading-efficient" in found) == (fires, not fires)


WARM = snapshot_of(HEALTHY, warmup_count=1, warmup_s=5.0, settled_count=99)
LOADERS = (
    LoaderStats("main", 100, None, 0.1, data_avg_s=0.001),
    LoaderStats("aux", 100, None, 4.0, data_avg_s=0.04),
)
FIRST = {
    "data_loading": section_stats("data_loading", 0.0, count=1, avg_s=0.2),
    "first_fetch": replace(section_stats("first_fetch", 0.2, count=1, avg_s=0.2), parent="data_loading"),
    "data_transfer": section_stats("data_transfer", 0.1, count=2, avg_s=0.05),
}
OF_USER = {"user:other": section_stats("user:other", 0.5)}
PROFILED = snapshot_of(HEALTHY)
OVERHEAD = section_stats("(profiler)", 0.9, count=5, avg_s=100.0)


def of_passes(steps: int, step_s: float, passes: int) -> Snapshot:
    """Return a run of few steps, as with LBFGS or accumulated gradients, with so many backward passes."""
    run = snapshot_of(HEALTHY, steps=steps, step_s=step_s)
    backward = replace(run.sections["backward_pass"], count=passes)
    return replace(run, sections={**run.sections, "backward_pass": backward})


SAYS = {
    "healthy": {
        "100 steps": PROFILED,
        "no sections": Snapshot(steps=100, wall_s=10.0, step=step_stats()),
        "uneven at no cost": snapshot_of(HEALTHY, std_s=0.027),
        "uneven as its work": snapshot_of(HEALTHY, std_s=0.5, median_s=0.05, explained_by_inputs=0.8),
        "one step of many passes": of_passes(1, 40.0, 20),
        "four steps of many passes": of_passes(4, 1.0, 20),
    },
    "warm-up": {"alone": WARM},
    "slowest-component": {
        "by the mean": PROFILED,
        "first batches are data loading": Snapshot(sections=FIRST, wall_s=1.0),
        "as the user wrote it": Snapshot(sections=OF_USER, wall_s=1.0),
        "not the profiler": replace(PROFILED, sections={**PROFILED.sections, "(profiler)": OVERHEAD}),
    },
    "synchronization-heavy": {
        "savings in their order": snapshot_of({"data_loading": 0.2, "optimizer_step": 0.3, "synchronization": 0.5}),
        "before remarks": snapshot_of({"data_loading": 0.1, "synchronization": 0.2, "backward_pass": 0.7}),
    },
    "data-loading-bound": {
        "a slow loader": replace(snapshot_of({"data_loading": 0.41, "backward_pass": 0.5}), loaders=LOADERS)
    },
    "data-loading-efficient": {"a tenth": snapshot_of({**HEALTHY, "data_loading": 0.102})},
}
SILENT = {
    "healthy": {
        "data loading": snapshot_of({**HEALTHY, "data_loading": 0.3, "forward_pass": 0.1}),
        "nine steps": snapshot_of(HEALTHY, steps=9),
        "19 passes": of_passes(1, 40.0, 19),
        "short steps of many passes": of_passes(4, 0.2, 100),
        "few passes": of_passes(9, 10.0, 9),
    },
    "slowest-component": {
        "most is unattributed": snapshot_of({"forward_pass": 0.1, "backward_pass": 0.2}),
        "no section": snapshot_of({}),
    },
    "data-loading-efficient": {
        "heavy": snapshot_of({"data_loading": 0.16}),
        "none": snapshot_of({"forward_pass": 0.5}),
    },
}
