"""The rules together: their order, the remarks, and the warnings of an epoch."""

from dataclasses import replace

import pytest

from tests.support.recording import section_stats, snapshot_of
from training_profiler.diagnosis import diagnose, epoch_warnings
from training_profiler.diagnosis.rules import too_little_data
from training_profiler.snapshot.snapshot import EpochStats, LoaderStats, Snapshot

HEALTHY = {"data_loading": 0.02, "forward_pass": 0.38, "backward_pass": 0.5, "optimizer_step": 0.1}
NOT_CHECKED = "not checked: how fast the model could compute"


def codes(snapshot):
    return [finding.code for finding in diagnose(snapshot)]


def test_healthy_run_is_reported_with_its_step_time():
    finding = diagnose(snapshot_of(HEALTHY))[0]
    assert finding.code == "healthy"
    assert finding.message == "No bottleneck found (100 steps, mean 100 ms, varying by 0%); " + NOT_CHECKED
    assert finding.evidence == {"steps": 100, "avg_s": 0.1, "coefficient_of_variation": 0.0}


def test_run_with_a_finding_is_not_healthy():
    assert "healthy" not in codes(snapshot_of({**HEALTHY, "data_loading": 0.3, "forward_pass": 0.1}))


def test_nine_steps_are_too_few_to_be_healthy():
    assert "healthy" not in codes(snapshot_of(HEALTHY, steps=9))


def test_warm_up_alone_leaves_a_run_healthy():
    found = codes(snapshot_of(HEALTHY, warmup_count=1, warmup_s=5.0, settled_count=99))
    assert found[:2] == ["warm-up", "healthy"]


def test_what_advises_nothing_says_nothing_of_the_losses():
    found = diagnose(snapshot_of(HEALTHY, warmup_count=1, warmup_s=5.0, settled_count=99))[0]
    assert "torch.compile" in found.fix
    assert found.losses == ""


def test_largest_saving_comes_first():
    found = diagnose(snapshot_of({"data_loading": 0.2, "optimizer_step": 0.3, "synchronization": 0.5}))
    worth = [(finding.code, round(finding.potential_saving_s, 6)) for finding in found if finding.potential_saving_s]
    assert worth == [("synchronization-heavy", 5.0), ("data-loading-bound", 2.0), ("optimizer-heavy", 1.5)]


def test_remarks_follow_findings_with_a_saving():
    found = codes(snapshot_of({"data_loading": 0.1, "synchronization": 0.2, "backward_pass": 0.7}))
    assert found == ["synchronization-heavy", "slowest-component", "data-loading-efficient"]


def test_variation_without_cost_leaves_a_run_healthy():
    finding = diagnose(snapshot_of(HEALTHY, std_s=0.027))[0]
    assert finding.message == (
        "No bottleneck found (100 steps, mean 100 ms, varying by 27%, at negligible cost); " + NOT_CHECKED
    )


def test_a_healthy_run_whose_steps_vary_as_their_work_does_says_so():
    finding = diagnose(snapshot_of(HEALTHY, std_s=0.5, median_s=0.05, explained_by_inputs=0.8))[0]
    assert "varying by 500%, as their work does); " in finding.message


def test_no_slowest_section_if_most_time_is_unattributed():
    found = codes(snapshot_of({"forward_pass": 0.1, "backward_pass": 0.2}))
    assert found == ["unexplained"]


def test_waiting_for_batches_names_the_slow_loader():
    loaders = (
        LoaderStats("main", 100, None, 0.1, data_avg_s=0.001),
        LoaderStats("aux", 100, None, 4.0, data_avg_s=0.04),
    )
    run = replace(snapshot_of({"data_loading": 0.41, "backward_pass": 0.5}), loaders=loaders)
    found = {finding.code: finding for finding in diagnose(run)}
    assert found["data-loading-bound"].fix.startswith("Mostly this loader (aux): Raise num_workers")


def test_slowest_section_has_the_most_time():
    found = {finding.code: finding for finding in diagnose(snapshot_of(HEALTHY))}
    assert found["slowest-component"].message == "Slowest component: backward_pass (50.0 ms avg)"


def test_first_batches_count_as_data_loading_where_the_slowest_section_is_named():
    sections = {
        "data_loading": section_stats("data_loading", 0.0, count=1, avg_s=0.2),
        "first_fetch": replace(section_stats("first_fetch", 0.2, count=1, avg_s=0.2), parent="data_loading"),
        "data_transfer": section_stats("data_transfer", 0.1, count=2, avg_s=0.05),
    }
    found = {finding.code: finding for finding in diagnose(Snapshot(sections=sections, wall_s=1.0))}
    assert found["slowest-component"].message == "Slowest component: data_loading (200 ms avg)"


def test_a_users_section_is_named_as_the_user_wrote_it():
    sections = {"user:other": section_stats("user:other", 0.5)}
    found = {finding.code: finding for finding in diagnose(Snapshot(sections=sections, wall_s=1.0))}
    assert found["slowest-component"].message == "Slowest component: other (100 ms avg)"


def test_unattributed_time_is_not_a_section():
    assert "slowest-component" not in codes(snapshot_of({}))


def test_profiler_overhead_is_not_a_section():
    snapshot = snapshot_of(HEALTHY)
    profiler = section_stats("(profiler)", 0.9, count=5, avg_s=100.0)
    found = diagnose(replace(snapshot, sections={**snapshot.sections, "(profiler)": profiler}))
    assert "(profiler)" not in " ".join(finding.message for finding in found)


def test_efficient_data_loading_is_reported_with_its_share():
    found = {finding.code: finding for finding in diagnose(snapshot_of({**HEALTHY, "data_loading": 0.102}))}
    assert found["data-loading-efficient"].message == "Data loading appears efficient (10.2% of total time)"


@pytest.mark.parametrize("shares", [{"data_loading": 0.16}, {"forward_pass": 0.5}])
def test_heavy_or_unmeasured_data_loading_is_not_efficient(shares):
    assert "data-loading-efficient" not in codes(snapshot_of(shares))


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


def test_with_ten_steps_the_rules_have_enough():
    assert too_little_data(snapshot_of(HEALTHY, steps=10)) is None


@pytest.mark.parametrize(
    ("steps", "step_s", "passes", "is_enough"),
    [(1, 40.0, 20, True), (1, 40.0, 19, False), (4, 1.0, 20, True), (4, 0.2, 100, False), (9, 10.0, 9, False)],
)
def test_few_steps_of_many_backward_passes_are_enough(steps, step_s, passes, is_enough) -> None:
    """With LBFGS, or with gradients that are accumulated, one step holds as much as many of other trainings."""
    run = snapshot_of(HEALTHY, steps=steps, step_s=step_s)
    backward = replace(run.sections["backward_pass"], count=passes)
    run = replace(run, sections={**run.sections, "backward_pass": backward})
    assert (too_little_data(run) is None) == is_enough
    assert any(finding.code == "healthy" for finding in diagnose(run)) == is_enough


def test_one_step_does_not_vary() -> None:
    run = snapshot_of(HEALTHY, steps=1, step_s=40.0)
    run = replace(run, sections={**run.sections, "backward_pass": replace(run.sections["backward_pass"], count=20)})
    healthy = next(finding for finding in diagnose(run) if finding.code == "healthy")
    assert healthy.message.startswith("No bottleneck found (1 step, mean 40.0 s);")


def epoch(**self_s) -> EpochStats:
    return EpochStats(1, 10.0, 100, 100, None, 0.1, self_s, None, None)


def test_an_epoch_warns_of_data_generation_above_three_tenths():
    assert epoch_warnings(epoch(data_generation=6.5)) == ["Data generation takes 65.0% of batch time (severity 0.50)"]


def test_epoch_of_data_generation_alone_has_severity_one():
    assert epoch_warnings(epoch(data_generation=10.0))[0].endswith("(severity 1.00)")


@pytest.mark.parametrize("self_s", [{"data_generation": 3.0}, {"forward_pass": 9.0}, {}])
def test_an_epoch_does_not_warn_at_or_below_three_tenths(self_s):
    assert epoch_warnings(epoch(**self_s)) == []


def test_an_epoch_without_time_does_not_warn():
    assert epoch_warnings(replace(epoch(data_generation=1.0), wall_s=0.0)) == []
