"""Rules about sections that take too much: each fires, is silent just below, and without data."""

from dataclasses import replace

import pytest

from tests.support.loader_workers import machine
from tests.support.recording import FakeRun, section_stats, snapshot_of, step_stats
from training_profiler.diagnosis import diagnose
from training_profiler.diagnosis.rules import THRESHOLDS
from training_profiler.snapshot.program import OptimizerFacts
from training_profiler.snapshot.snapshot import LineStats, Snapshot

OF_STEP = [
    ("data_loading", 0.15, "data-loading-bound"),
    ("data_generation", 0.30, "data-generation-bound"),
    ("data_transfer", 0.10, "data-transfer"),
    ("forward_pass", 0.60, "forward-dominates"),
    ("optimizer_step", 0.15, "optimizer-heavy"),
    ("metrics_computation", 0.05, "metrics-heavy"),
    ("logging", 0.05, "logging-heavy"),
    ("ema_update", 0.05, "ema-heavy"),
    ("synchronization", 0.10, "synchronization-heavy"),
]
OF_RUN = [
    ("validation_epoch", "validation-heavy"),
    ("sampling", "sampling-heavy"),
    ("checkpointing", "checkpointing-heavy"),
]


def codes(snapshot: Snapshot) -> list[str]:
    return [finding.code for finding in diagnose(snapshot)]


def find(snapshot: Snapshot, code: str):
    return next(finding for finding in diagnose(snapshot) if finding.code == code)


@pytest.mark.parametrize(("section", "threshold", "code"), OF_STEP)
def test_share_of_step_above_threshold_is_found(section, threshold, code):
    assert code in codes(snapshot_of({section: threshold + 0.001}))


@pytest.mark.parametrize(("section", "threshold", "code"), OF_STEP)
def test_a_share_of_the_step_just_below_its_threshold_is_not(section, threshold, code):
    assert code not in codes(snapshot_of({section: threshold - 0.001}))


def test_data_loading_at_its_threshold_is_found():
    snapshot = snapshot_of({"data_loading": 0.15}, steps=64, step_s=0.125)
    assert "data-loading-bound" in codes(snapshot)


def test_forward_at_its_threshold_has_no_finding():
    snapshot = snapshot_of({"forward_pass": 0.6}, steps=64, step_s=0.125)
    assert snapshot.share_of_step("forward_pass") == 0.6
    assert "forward-dominates" not in codes(snapshot)


@pytest.mark.parametrize(("section", "threshold", "code"), OF_STEP)
def test_nine_steps_are_too_few_for_a_share(section, threshold, code):
    assert code not in codes(snapshot_of({section: 0.9}, steps=9))


@pytest.mark.parametrize(("section", "threshold", "code"), OF_STEP)
def test_ten_steps_are_enough_for_a_share(section, threshold, code):
    assert code in codes(snapshot_of({section: 0.9}, steps=10))


def test_share_of_a_tiny_time_has_no_finding():
    # 90 % of 10 ms in all are less than the 20 ms worth a word.
    assert "data-loading-bound" not in codes(snapshot_of({"data_loading": 0.9}, step_s=0.0001))


def run_of_validation(*inner: str) -> Snapshot:
    snapshot = snapshot_of({"forward_pass": 0.5})
    times_s = {"validation_epoch": 2.0, **{f"validation_epoch/{name}": 0.9 for name in inner}}
    sections = {name: section_stats(name, 0.2, count=4, total_s=s, avg_s=s / 4) for name, s in times_s.items()}
    return replace(snapshot, sections=snapshot.sections | sections)


@pytest.mark.parametrize("inner", [(), ("data_loading",), ("data_loading", "forward_pass")])
def test_validation_with_batches_or_by_name_is_validation(inner):
    finding = find(run_of_validation(*inner), "validation-heavy")
    assert finding.message.startswith("20.0% of the run is spent validating (validation_epoch: 4 times")
    assert finding.fix.startswith("Validate less often")


@pytest.mark.parametrize(
    ("busy", "advice"),
    [(1.0, "raise num_workers of its loader, prepare them once"), (7.9, "prepare them once")],
)
def test_validation_that_mostly_waits_for_its_batches_needs_them_faster(busy, advice):
    run = run_of_validation("data_loading", "forward_pass")
    waits = replace(run.sections["validation_epoch/data_loading"], total_s=1.5)
    run = replace(run, sections={**run.sections, waits.name: waits}, machine=machine(busy))
    assert find(run, "validation-heavy").fix == (
        f"It mostly waits for its batches (1.50 s of 2.00 s): {advice}, or validate less often"
    )


def test_more_forward_passes_than_batches_may_generate_samples():
    run = run_of_validation("data_loading", "forward_pass")
    passes = run.sections["validation_epoch/forward_pass"]
    more = {passes.name: replace(passes, count=passes.count + 1)}
    finding = find(replace(run, sections=run.sections | more), "validation-heavy")
    assert "spent validating or generating samples (" in finding.message


def test_forward_passes_in_eval_mode_without_batches_may_generate_samples():
    finding = find(run_of_validation("forward_pass"), "validation-heavy")
    assert finding.message.startswith("20.0% of the run is spent validating or generating samples (")
    assert finding.fix.startswith("Validate or generate samples less often")


def test_a_single_validation_is_not_to_be_less_often():
    run = run_of_validation("forward_pass")
    once = {"validation_epoch": replace(run.sections["validation_epoch"], count=1)}
    fix = find(replace(run, sections=run.sections | once), "validation-heavy").fix
    assert fix.startswith("It ran once: use fewer batches")


def test_no_advice_clips_gradients_less_often():
    finding = find(snapshot_of({"metrics_computation": 0.2}, steps=100, step_s=0.125), "metrics-heavy")
    assert "foreach=True to clip_grad_norm_" in finding.fix
    assert "compute other norms and metrics every n-th step" in finding.fix
    assert finding.potential_saving_s == 1.25  # half: the gradients are still clipped


@pytest.mark.parametrize(("count", "is_found"), [(100, False), (200, True)])
def test_gradients_on_cuda_are_clipped_at_once_already(count, is_found):
    run = snapshot_of({"metrics_computation": 0.2}, steps=100, step_s=0.125)
    metrics = {"metrics_computation": replace(run.sections["metrics_computation"], count=count)}
    program = run.program._replace(optimizer=OptimizerFacts("AdamW", 8, ("float32",), ("cuda",)))
    run = replace(run, sections=run.sections | metrics, program=program)
    fixes = [finding.fix for finding in diagnose(run) if finding.code == "metrics-heavy"]
    assert bool(fixes) == is_found
    assert all(fix.startswith("Use the norm that clip_grad_norm_ returns; ") for fix in fixes)


def test_share_finding_has_its_numbers():
    finding = find(snapshot_of({"data_loading": 0.25}, steps=64, step_s=0.125), "data-loading-bound")
    assert finding.message == "25.0% of step time is spent waiting for the next batch (data_loading: 31.2 ms per step)"
    assert finding.evidence == {"share_of_step": 0.25, "threshold": 0.15, "seconds_per_step": 0.03125, "steps": 64}
    assert finding.potential_saving_s == 2.0
    assert "num_workers" in finding.fix


@pytest.mark.parametrize("section", ["forward_pass", "optimizer_step"])
def test_forward_and_optimizer_save_half(section):
    snapshot = snapshot_of({section: 0.75}, steps=64, step_s=0.125)
    assert diagnose(snapshot)[0].potential_saving_s == 3.0


def of_run(section: str, total_s: float, wall_s: float = 100.0, steps: int = 100) -> Snapshot:
    snapshot = snapshot_of({"forward_pass": 0.5, "backward_pass": 0.5}, steps=steps)
    stats = section_stats(section, count=4, avg_s=total_s / 4)
    return replace(snapshot, wall_s=wall_s, sections={**snapshot.sections, section: stats})


@pytest.mark.parametrize(("section", "code"), OF_RUN)
def test_share_of_the_run_above_its_threshold_saves_half(section, code):
    total_s = 100 * THRESHOLDS[code] + 0.1
    finding = find(of_run(section, total_s), code)
    assert finding.potential_saving_s == total_s / 2
    assert finding.evidence["seconds"] == total_s


@pytest.mark.parametrize(("section", "code"), OF_RUN)
def test_a_share_of_the_run_just_below_its_threshold_is_not(section, code):
    assert code not in codes(of_run(section, 100 * THRESHOLDS[code] - 0.1))


def test_a_single_checkpoint_cannot_be_saved_less_often():
    run = of_run("checkpointing", 20.0)
    once = replace(run.sections["checkpointing"], count=1)
    assert "checkpointing-heavy" not in codes(replace(run, sections={**run.sections, "checkpointing": once}))


def test_all_but_one_computation_of_batch_norm_statistics_is_saved():
    run = of_run("batch_norm_update", 20.0)
    five = replace(run.sections["batch_norm_update"], count=5)
    found = find(replace(run, sections={**run.sections, "batch_norm_update": five}), "batch-norm-update-heavy")
    assert found.potential_saving_s == pytest.approx(16.0)
    once = replace(run, sections={**run.sections, "batch_norm_update": replace(five, count=1)})
    assert "batch-norm-update-heavy" not in codes(once)


@pytest.mark.parametrize(("section", "code"), OF_RUN)
def test_nine_steps_are_too_few_for_a_share_of_the_run(section, code):
    assert code not in codes(of_run(section, 50.0, steps=9))


@pytest.mark.parametrize(("section", "code"), OF_RUN)
def test_open_section_has_no_share_of_the_run(section, code):
    snapshot = of_run(section, 50.0)
    unended = replace(snapshot.sections[section], count=0)
    assert code not in codes(replace(snapshot, sections={section: unended}))


def test_backward_above_three_forward_passes_is_found():
    shares = {"data_loading": 0.375, "forward_pass": 0.125, "backward_pass": 0.5}
    finding = find(snapshot_of(shares, steps=64, step_s=0.125), "backward-slow")
    assert finding.message == "The backward pass takes 4.0x as long as the forward pass (usual: 2x)"
    assert finding.potential_saving_s == 2.0  # down to twice the forward pass


def test_time_in_no_section_is_said_where_it_counts_as_forward_pass():
    shares = {"data_loading": 0.2, "forward_pass": 0.1, "backward_pass": 0.6}
    finding = find(snapshot_of(shares), "backward-slow")
    assert finding.message.startswith(
        "The backward pass takes 3.0x as long as the forward pass and the time in no section"
    )


def in_backward(function: str, called: dict[str, float], share: float = 0.4) -> Snapshot:
    run = snapshot_of({"data_loading": 0.375, "forward_pass": 0.125, "backward_pass": 0.5})
    return replace(run, lines={"backward_pass": (LineStats("m.py", 9, function, share, 100, called=called),)})


def test_a_backward_method_of_the_users_is_what_to_change():
    finding = find(in_backward("Sort.backward", {"<python>": 0.4}), "backward-slow")
    assert finding.fix.startswith("Do less in m.py:9 Sort.backward: operations on whole tensors")
    assert finding.potential_saving_s == pytest.approx(4.0)


@pytest.mark.parametrize(
    "run",
    [
        in_backward("Trainer.backward", {"loss.backward": 0.4}),
        in_backward("train", {"<python>": 0.4}),
        in_backward("Sort.backward", {"<python>": 0.2}, share=0.2),
        in_backward("Sort.backward", {}),
    ],
    ids=["a call of backward", "another function", "a part", "unknown"],
)
def test_other_lines_in_backward_passes_are_not_blamed(run):
    finding = find(run, "backward-slow")
    assert finding.fix.startswith("Check for memory pressure")


def test_unattributed_time_may_be_the_forward_pass_of_functional_code():
    assert "backward-slow" not in codes(snapshot_of({"forward_pass": 0.1, "backward_pass": 0.5}))


def test_synchronization_within_backward_is_not_its_work():
    shares = {"data_loading": 0.125, "forward_pass": 0.125, "backward_pass": 0.5, "synchronization": 0.25}
    run = snapshot_of(shares, steps=64, step_s=0.125)
    nested = replace(run.sections["synchronization"], parent="backward_pass")
    assert "backward-slow" in codes(run)
    assert "backward-slow" not in codes(replace(run, sections={**run.sections, "synchronization": nested}))


def test_backward_of_three_forward_passes_has_no_finding():
    assert "backward-slow" not in codes(
        snapshot_of({"forward_pass": 0.25, "backward_pass": 0.75}, steps=64, step_s=0.125)
    )


@pytest.mark.parametrize("shares", [{"forward_pass": 0.1}, {"backward_pass": 0.9}])
def test_without_both_passes_they_are_not_compared(shares):
    assert "backward-slow" not in codes(snapshot_of(shares))


def test_gradients_of_gradients_are_compared_pass_by_pass():
    """A physics-informed network differentiates its output twice before the loss, and the loss once."""
    run = snapshot_of({"forward_pass": 0.15, "backward_pass": 0.8})
    assert "backward-slow" in codes(run)
    backward = replace(run.sections["backward_pass"], count=300)
    assert "backward-slow" not in codes(replace(run, sections={**run.sections, "backward_pass": backward}))


def test_nine_steps_are_too_few_to_compare_the_passes():
    assert "backward-slow" not in codes(snapshot_of({"forward_pass": 0.1, "backward_pass": 0.8}, steps=9))


def test_unattributed_time_above_a_tenth_is_found():
    finding = find(snapshot_of({"forward_pass": 0.25, "backward_pass": 0.5}, steps=64, step_s=0.125), "unexplained")
    assert finding.message == "25.0% of step time is unattributed (31.2 ms per step)"
    assert (finding.potential_saving_s, finding.evidence["unknown_s"]) == (0.0, 2.0)  # no line says why


def test_unattributed_time_with_the_forward_pass_of_functional_code_has_no_saving():
    finding = find(snapshot_of({"backward_pass": 0.5}, steps=64, step_s=0.125), "unexplained")
    assert finding.message.endswith("; it includes the forward pass, because no call of a module was seen")
    assert finding.potential_saving_s == 0


def test_unattributed_time_names_its_lines():
    lines = (
        LineStats("train.py", 212, "estimate_loss", share=0.1675, samples=67),
        LineStats("train.py", 88, "get_batch", share=0.0625, samples=25),
        LineStats("train.py", 90, "get_batch", share=0.005, samples=2),
    )
    run = snapshot_of({"forward_pass": 0.25, "backward_pass": 0.5}, steps=64, step_s=0.125)
    finding = find(replace(run, lines={"other": lines}), "unexplained")
    named = "train.py:212 estimate_loss (67% of it), train.py:88 get_batch (25% of it)"
    assert finding.message == f"25.0% of step time is unattributed (31.2 ms per step): {named}"
    assert finding.evidence["lines"] == named
    assert finding.fix.startswith("Make these lines cheaper")


def test_unattributed_time_just_below_a_tenth_has_no_finding():
    assert "unexplained" not in codes(snapshot_of({"backward_pass": 0.901}))


def test_nine_steps_are_too_few_for_time_in_no_section():
    assert "unexplained" not in codes(snapshot_of({"backward_pass": 0.5}, steps=9))


def test_run_without_sections_has_no_unattributed_time():
    assert "unexplained" not in codes(snapshot_of({}))


def test_time_outside_of_steps_is_not_unexplained():
    snapshot = snapshot_of({"backward_pass": 1.0})
    outside = section_stats("(outside steps)", 0.9, count=0, avg_s=None, self_s=90.0)
    assert "unexplained" not in codes(replace(snapshot, sections={**snapshot.sections, "(outside steps)": outside}))


def test_no_rule_fires_without_data():
    assert diagnose(Snapshot()) == []


def test_no_rule_fires_on_steps_without_sections():
    assert codes(Snapshot(steps=100, wall_s=10.0, step=step_stats())) == ["healthy"]


def test_warm_up_steps_do_not_count_for_a_share_of_the_step():
    run = FakeRun()
    for step in range(20):
        with run.section("data_loading"):
            run.clock.advance(5.0 if step == 0 else 0.01)
        with run.section("forward_pass"):
            run.clock.advance(0.4)
        run.step()
    snapshot = run.snapshot()
    assert snapshot.step.warmup_count == 1
    assert snapshot.share_of_step("data_loading") == pytest.approx(0.01 / 0.41)
    assert "data-loading-bound" not in [finding.code for finding in diagnose(snapshot)]


@pytest.mark.parametrize(("waits", "is_reported"), [(0.19, True), (0.21, False)])
def test_waiting_for_ranks_does_not_make_forward_dominate(waits, is_reported):
    run = snapshot_of({"forward_pass": 0.8, "synchronization": waits})
    nested = replace(run.sections["synchronization"], parent="forward_pass")
    run = replace(run, sections={**run.sections, "synchronization": nested})
    assert ("forward-dominates" in codes(run)) is is_reported
