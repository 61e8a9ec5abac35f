"""A rule is registered once, each second is claimed by one finding, and each fix says what it does to the losses."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.diagnosis.finding import Change, Evidence, Finding, Fix, Losses, joined, losses_text
from training_profiler.diagnosis.registry import Registry, Rule, each_second_once
from training_profiler.model.snapshot import LineStats, LoaderStats, Snapshot


def above(number, threshold):
    return Finding("above", f"{number} > {threshold}", {}, 0.0, "") if number > threshold else None


def test_thresholds_are_the_defaults_by_code():
    registry = Registry(Rule)
    registry.rule("above", threshold=3)(above)
    assert dict(registry.thresholds()) == {"above": 3}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((), ""),
        ((Change.NUM_WORKERS,), "same bit for bit, if samples draw no random numbers"),
        ((Change.OTHER_MODEL, Change.ACCUMULATION), "differ"),
        ((Change.ACCUMULATION, Change.FUSED), "fused: differ by rounding; accumulated gradients: differ"),
    ],
)
def test_changes_that_do_not_do_the_same_are_named_in_the_order_of_the_table(changes, expected):
    assert losses_text(changes) == expected


def test_joined_fixes_name_the_changes_of_all():
    first, second = Fix("Do this", (Change.FUSED,)), Fix("Do that", (Change.BATCHED,))
    both = joined([first, second.as_next])
    assert (both, both.changes) == ("Do this; do that", (Change.FUSED, Change.BATCHED))


@pytest.mark.parametrize("file", ["autocast_data.py", "accumulate_inference_mode.py"])
def test_names_of_the_users_files_say_nothing_about_losses(file):
    line = LineStats(file, 7, "Data.__getitem__", 0.7, 90, phase="fetch", called={"Image.open": 0.7})
    loader = LoaderStats("0", 100, 3200, 7.0, "train", num_workers=0)
    run = snapshot_of({"data_loading": 0.7, "backward_pass": 0.3})
    run = replace(run, loaders=(loader,), lines={"data_loading": (line,)})
    (found,) = (each for each in diagnose(run) if each.code == "data-loading-bound")
    assert file in found.message
    assert "autocast" not in found.losses
    assert "no gradients" not in found.losses
    assert found.losses == "same bit for bit, if samples draw no random numbers"


def test_conditions_are_those_of_their_kind():
    for change in Change:
        assert bool(change.condition) or change.losses is not Losses.EXACT_IF, change.label
        assert not change.condition or change.losses is not Losses.EXACT, change.label


RUN = snapshot_of({"data_loading": 0.4, "backward_pass": 0.6})  # 100 steps of 100 ms


def finding(code: str, saving_s: float, evidence: Evidence | None = None) -> Finding:
    return Finding(code, "a message", evidence or {}, saving_s, f"a fix of {code}")


def savings(*findings: Finding, run: Snapshot = RUN) -> dict[str, float]:
    return {each.code: round(each.potential_saving_s, 9) for each in each_second_once(findings, run)}


def test_findings_about_different_sections_keep_their_savings():
    assert savings(finding("data-loading-bound", 4.0), finding("optimizer-heavy", 1.0)) == {
        "data-loading-bound": 4.0,
        "optimizer-heavy": 1.0,
    }


def test_findings_about_one_section_share_its_time():
    kept = savings(finding("loader-slow", 3.0), finding("data-loading-bound", 4.0), finding("first-batch-slow", 1.0))
    assert kept == {"loader-slow": 0.0, "data-loading-bound": 4.0, "first-batch-slow": 0.0}


def test_part_that_is_larger_than_the_rest_keeps_its_own():
    kept = savings(finding("data-loading-bound", 4.0), finding("first-batch-slow", 5.0))
    assert kept == {"first-batch-slow": 5.0, "data-loading-bound": 0.0}


@pytest.mark.parametrize("cause", ["data_loading", "first_fetch"])
def test_uneven_steps_leave_out_what_their_cause_claims(cause):
    uneven = finding("step-time-varies", 3.0, {"moves_with": cause, "explained": 0.9})
    assert savings(finding("data-loading-bound", 4.0), uneven)["step-time-varies"] == pytest.approx(0.3)


def test_uneven_steps_promise_no_action_that_another_finding_promises():
    uneven = replace(finding("step-time-varies", 3.0), fix="a fix of data-loading-bound")
    assert savings(finding("data-loading-bound", 1.0), uneven) == {"data-loading-bound": 1.0}


def test_uneven_steps_leave_out_all_that_lies_inside_the_section_that_is_claimed():
    explained = {"first_fetch": 0.4, "worker_start": 0.3, "data_loading": 0.1, "backward_pass": 0.1}
    run = snapshot_of({"data_loading": 0.4, "backward_pass": 0.6}, explained=explained)
    uneven = finding("step-time-varies", 3.0, {"moves_with": "first_fetch", "explained": 0.4})
    kept = savings(finding("first-batch-slow", 0.5), uneven, run=run)
    assert kept == {"first-batch-slow": 0.5, "step-time-varies": pytest.approx(0.6)}


def test_uneven_steps_of_another_cause_lie_in_claimed_sections_as_much_as_in_others():
    uneven = finding("step-time-varies", 3.0, {"moves_with": "backward_pass", "explained": 0.9})
    assert savings(finding("data-loading-bound", 4.0), uneven)["step-time-varies"] == pytest.approx(1.8)


def test_a_rise_is_claimed_before_the_section_that_rises():
    rise = finding("slowing-down", 2.0, {"moves_with": "data_loading", "explained": 0.9})
    kept = savings(finding("data-loading-bound", 4.0), rise)
    assert kept == {"data-loading-bound": pytest.approx(2.2), "slowing-down": pytest.approx(2 * (0.9 + 0.1 * 0.78))}


def test_rise_is_not_counted_again_as_unevenness():
    kept = savings(finding("slowing-down", 2.0), finding("step-time-varies", 2.5))
    assert kept == {"slowing-down": 2.0, "step-time-varies": 0.5}


def test_work_between_steps_takes_nothing_from_uneven_steps():
    kept = savings(finding("checkpointing-heavy", 5.0), finding("step-time-varies", 2.0))
    assert kept == {"checkpointing-heavy": 5.0, "step-time-varies": 2.0}


def test_page_faults_of_copies_belong_to_the_copies():
    run = snapshot_of({"forward_pass": 0.4, "other": 0.6})
    copying = finding("unexplained", 5.0, {"copying_s": 5.0})
    assert savings(finding("page-faults", 3.0), copying, run=run) == {"unexplained": 5.0}
    faults = finding("page-faults", 6.0)
    both, otherwise = savings(faults, copying, run=run), savings(faults, finding("unexplained", 5.0), run=run)
    assert both["page-faults"] == 3.5
    assert both["unexplained"] > otherwise["unexplained"]


def test_a_change_saves_its_part_of_what_page_faults_leave_of_a_section():
    run = snapshot_of({"forward_pass": 0.8, "other": 0.2})  # 8 s and 2 s
    half_of_it = finding("forward-dominates", 4.0)
    assert savings(finding("page-faults", 5.0), half_of_it, run=run) == {"page-faults": 5.0, "forward-dominates": 2.0}
    # What all of the time left could save is that time, and less than a third of its saving is not said.
    assert savings(finding("page-faults", 5.0), finding("unexplained", 2.0), run=run)["unexplained"] == 1.0
    assert "forward-dominates" not in savings(finding("small-operators", 3.9), half_of_it, run=run)
    assert "forward-dominates" not in savings(finding("page-faults", 9.0), half_of_it, run=run)


def test_idle_device_has_what_its_causes_leave():
    kept = savings(finding("gpu-utilization", 6.0), finding("data-loading-bound", 4.0), finding("optimizer-heavy", 1.0))
    assert kept["gpu-utilization"] == 2.0


def test_savings_of_a_run_that_waits_unevenly_are_no_more_than_its_waiting():
    step = {"std_s": 0.1, "median_s": 0.06, "explained": {"data_loading": 0.95}}
    run = replace(snapshot_of({"data_loading": 0.4, "backward_pass": 0.6}, **step), wall_s=10.0)
    total_s = sum(each.potential_saving_s for each in diagnose(run))
    assert total_s == pytest.approx(4.0 + 0.05 * 4.0)
