"""Rules about how step time varies."""

from dataclasses import replace

import pytest

from tests.support.recording import section_stats, snapshot_of, step_stats
from training_profiler.diagnosis import diagnose
from training_profiler.diagnosis.steps import first_batch_slow, slowing_down, step_time_varies, steps_do_more, warm_up
from training_profiler.snapshot.machine import GpuStats, Level, MachineStats
from training_profiler.snapshot.program import OptimizerFacts, ProgramFacts
from training_profiler.snapshot.snapshot import EpochStats, LineStats, LoaderStats, SectionStats, Snapshot


def run_of(**step) -> Snapshot:
    return snapshot_of({"backward_pass": 1.0}, **step)


def test_variation_above_a_tenth_is_found():
    finding = step_time_varies(run_of(std_s=0.011, median_s=0.095, max_s=0.5, max_step=7))
    assert finding.message == ("Step time varies by 11% (std/mean; longest 500 ms at step 7, median 95.0 ms)")
    assert finding.potential_saving_s == pytest.approx(0.5)  # 100 steps, 5 ms above the median on average


def test_variation_of_a_tenth_has_no_finding():
    assert step_time_varies(run_of(std_s=0.01, median_s=0.05)) is None


def test_19_settled_steps_are_too_few_to_vary():
    assert step_time_varies(run_of(std_s=0.1, median_s=0.05, settled_count=19)) is None


def test_20_settled_steps_are_enough_to_vary():
    assert step_time_varies(run_of(std_s=0.1, median_s=0.05, settled_count=20)) is not None


def test_steps_that_a_capture_window_slowed_are_not_enough_to_vary():
    assert step_time_varies(run_of(std_s=0.1, median_s=0.05, settled_count=25, disturbed_count=6)) is None


def test_steps_mostly_slowed_by_captures_do_not_vary():
    assert step_time_varies(run_of(std_s=0.1, median_s=0.05, disturbed_count=51)) is None
    assert step_time_varies(run_of(std_s=0.1, median_s=0.05, disturbed_count=50)) is not None


def test_variation_that_costs_less_than_a_hundredth_of_the_steps_has_no_finding():
    """A few long steps among many: their deviation is large, and there is nothing to gain."""
    assert step_time_varies(run_of(std_s=0.03, median_s=0.0991, max_s=0.4, max_step=40)) is None
    assert step_time_varies(run_of(std_s=0.03, median_s=0.0989, max_s=0.4, max_step=40)) is not None


def test_variation_without_cost_has_no_finding():
    assert step_time_varies(run_of(std_s=0.1, median_s=0.1)) is None


@pytest.mark.parametrize("by", ["explained_by_calls", "explained_by_inputs"])
def test_steps_that_vary_as_their_work_does_have_no_finding(by):
    assert step_time_varies(run_of(std_s=0.1, median_s=0.05, **{by: 0.5})) is None
    assert step_time_varies(run_of(std_s=0.1, median_s=0.05, **{by: 0.49})) is not None


def test_time_of_no_section_that_varies_is_named_in_words():
    finding = step_time_varies(run_of(std_s=0.05, median_s=0.05, explained={"other": 0.7}))
    assert finding.message.endswith("; 70% of the variation comes from time in no section")


def test_a_users_section_that_varies_is_named_as_the_user_wrote_it():
    finding = step_time_varies(run_of(std_s=0.05, median_s=0.05, explained={"user:other": 0.7}))
    assert finding.message.endswith("; 70% of the variation comes from other")
    assert (finding.evidence["moves_with"], finding.fix) == ("user:other", "Check what makes other uneven")


def test_section_that_varies_is_named_with_its_fix():
    explained = {"forward_pass": 0.2, "data_loading": 0.7}
    finding = step_time_varies(run_of(std_s=0.05, median_s=0.05, explained=explained))
    assert finding.message.endswith("; 70% of the variation comes from data_loading")
    assert (finding.evidence["moves_with"], finding.evidence["explained"]) == ("data_loading", 0.7)
    assert finding.fix.startswith("Avoid data stalls")


def test_a_section_that_explains_less_than_three_tenths_is_not_named():
    finding = step_time_varies(run_of(std_s=0.05, median_s=0.05, explained={"data_loading": 0.29}))
    assert "data_loading" not in finding.message
    assert "moves_with" not in finding.evidence


def test_a_section_of_the_users_own_is_named_as_well():
    finding = step_time_varies(run_of(std_s=0.05, median_s=0.05, explained={"augment": 0.9}))
    assert finding.fix == "Check what makes augment uneven"


def waiting_for_a_device(waits: float, median_s: float, section: str = "other", call: str = "item") -> Snapshot:
    """Return a run of 10 s whose steps of 100 ms wait for this part of it, in a section that explains their spread."""
    run = snapshot_of({"forward_pass": 0.1, "backward_pass": 0.1}, std_s=0.2, median_s=median_s)
    run = replace(run, step=replace(run.step, explained={section: 0.99}))
    line = LineStats("train.py", 16, "main", share=0.8, samples=400, waiting_share=waits, waits_in=call)
    return replace(run, lines={section: (line,)})


def test_steps_do_not_vary_where_the_host_waits_for_the_device_in_some_of_them():
    run = waiting_for_a_device(waits=0.7, median_s=0.02)  # a number is read in every tenth step
    assert step_time_varies(run) is None
    why = "varying by 200%, as the host waits for the device in some of them"
    assert diagnose(run)[0].message.startswith(f"No bottleneck found (100 steps, mean 100 ms, {why})")


@pytest.mark.parametrize(
    "run",
    [
        waiting_for_a_device(waits=0.7, median_s=0.09),  # 1 s is lost, and 7 s are waited: most of it in each step
        waiting_for_a_device(waits=0.3, median_s=0.02),  # less than half of the 8 s
        replace(waiting_for_a_device(waits=0.7, median_s=0.02), lines={}),
        replace(
            waiting_for_a_device(waits=0.7, median_s=0.02, call="tolist"),
            program=ProgramFacts(OptimizerFacts("SGD", 12, ("float32",), ("cpu",))),
        ),
    ],
    ids=["in each step", "other causes", "no lines", "on the CPU"],
)
def test_other_waits_are_no_reason_for_steps_to_vary(run):
    assert step_time_varies(run) is not None


@pytest.mark.parametrize(("busy", "saving_s"), [(1.0, None), (0.8, 2.0), (0.1, 5.0)])
def test_steps_that_vary_save_no_more_than_the_device_is_idle(busy, saving_s):
    gpu = GpuStats(index=0, loop_utilization=Level(busy, 1.0, busy))
    finding = step_time_varies(
        replace(run_of(std_s=0.1, median_s=0.05), machine=MachineStats(samples=20, gpus=(gpu,)), wall_s=10.0)
    )
    assert (finding and finding.potential_saving_s) == pytest.approx(saving_s)


def test_slowdown_above_five_percent_is_found():
    finding = slowing_down(run_of(rise=0.5, rise_p_value=0.0001))
    assert finding.message == "Step time grew by 50% from start to end of the run"
    assert finding.potential_saving_s == pytest.approx(2.0)  # 10 s instead of the 8 s at the pace of the start


@pytest.mark.parametrize(
    "step",
    [
        {"rise": 0.05, "rise_p_value": 0.0},
        {"rise": -0.5, "rise_p_value": 0.0},
        {"rise": 0.5, "rise_p_value": 0.002},
        {"rise": None, "rise_p_value": None},
        {"rise": 0.5, "rise_p_value": 0.0, "settled_count": 99},
    ],
    ids=["at its threshold", "falling", "by chance", "unknown", "too few steps"],
)
def test_uncertain_slowdown_has_no_finding(step):
    assert slowing_down(run_of(**step)) is None


def test_first_steps_above_three_medians_are_warm_up():
    finding = warm_up(run_of(warmup_count=2, warmup_s=3.2, settled_count=98))
    assert finding.message == (
        "The first 2 steps were warm-up: 1.60 s each, against 100 ms later; step averages exclude them"
    )
    assert finding.potential_saving_s == pytest.approx(3.0)


def test_steps_after_warm_up_are_compared_by_their_mean_where_most_only_queue_work():
    finding = warm_up(run_of(warmup_count=2, warmup_s=3.2, settled_count=98, median_s=0.006))
    assert ": 1.60 s each, against 100 ms later" in finding.message
    assert warm_up(run_of(warmup_count=2, warmup_s=0.6, settled_count=98, median_s=0.006)) is None


@pytest.mark.parametrize(
    "step",
    [
        {"warmup_count": 0},
        {"warmup_count": 2, "warmup_s": 0.6},
        {"warmup_count": 1, "warmup_s": 0.119},
        {"warmup_count": 100, "warmup_s": 50.0, "settled_count": 0},
    ],
    ids=["none", "three medians", "a trifle", "nothing but warm-up"],
)
def test_first_steps_without_warm_up_are_no_finding(step):
    assert warm_up(run_of(**step)) is None


def epoch(number: int, first_fetch_s: float | None, **others) -> EpochStats:
    stats = {
        "wall_s": 10.0,
        "steps": 100,
        "batches": 100,
        "samples": None,
        "avg_batch_s": 0.1,
        "self_s": {},
        "median_fetch_s": 0.01,
    }
    return EpochStats(number=number, first_fetch_s=first_fetch_s, **{**stats, **others})


def run_with(*epochs: EpochStats) -> Snapshot:
    return Snapshot(epochs=epochs, step=step_stats())


def test_slow_first_fetches_are_found():
    finding = first_batch_slow(run_with(epoch(1, 2.01), epoch(2, 1.01)))
    assert finding.message == "The first batch of each epoch takes 1.51 s on average, 15.0% of the time of 2 epochs"
    assert finding.potential_saving_s == 1.5  # the first epoch must start its workers in any case


@pytest.mark.parametrize(
    "second",
    [
        epoch(2, 0.05),
        epoch(2, 0.11),
        epoch(2, None),
        epoch(2, 1.0, median_fetch_s=None),
        epoch(2, 1.0, is_complete=False),
    ],
    ids=["five medians", "a hundredth of the epoch", "no fetch", "no median", "not complete"],
)
def test_fast_start_of_the_second_epoch_has_no_finding(second):
    assert first_batch_slow(run_with(epoch(1, 2.0), second)) is None


def test_single_slow_first_fetch_has_no_finding():
    assert first_batch_slow(run_with(epoch(1, 2.0))) is None


@pytest.mark.parametrize("rule", [step_time_varies, slowing_down, warm_up, first_batch_slow])
def test_run_without_steps_has_no_step_findings(rule):
    assert rule(Snapshot()) is None


def test_step_time_that_is_zero_does_not_vary():
    assert step_time_varies(replace(run_of(), step=step_stats(avg_s=0.0))) is None


def test_all_step_rules_are_registered():
    snapshot = run_of(std_s=0.05, median_s=0.05, rise=0.5, rise_p_value=0.0, warmup_count=1, warmup_s=1.0, max_step=1)
    snapshot = replace(snapshot, epochs=(epoch(1, 2.0), epoch(2, 1.0)))
    found = {finding.code for finding in diagnose(snapshot)}
    assert found >= {"step-time-varies", "slowing-down", "warm-up", "first-batch-slow"}


def passes(first_s: float, start_s: float, count: int = 4, median_s: float = 0.01):
    """Return a run with ``count`` passes over its loader, as the patches record them."""
    run = snapshot_of({"data_loading": 0.2, "backward_pass": 0.75})
    sections = {
        **run.sections,
        "data_loading": replace(run.sections["data_loading"], p50_s=median_s),
        "first_fetch": in_steps("first_fetch", count, first_s),
        "worker_start": in_steps("worker_start", count, start_s),
    }
    return replace(run, sections=sections)


def in_steps(name: str, count: int, avg_s: float, in_steps: float = 1.0) -> SectionStats:
    """Return a section at the begin of passes, of which a part lies in steps: those of a validation do not."""
    return section_stats(name, count=count, avg_s=avg_s, parent="data_loading", step_total_s=in_steps * count * avg_s)


def first_batch(run):
    return first_batch_slow(run)


def test_first_fetch_section_includes_worker_start():
    finding = first_batch(passes(first_s=0.05, start_s=0.06))
    assert finding.message == (
        "The first batch of each epoch takes 110 ms on average (60.0 ms of it to start workers), "
        "against 10.0 ms later; that adds 0.40 s in 4 epochs"
    )
    assert finding.potential_saving_s == pytest.approx(0.3)  # but for the first pass


@pytest.mark.parametrize(
    "run",
    [
        passes(0.05, 0.0),  # five times is not over five times
        passes(0.05, 0.06, count=1),
        passes(0.012, 0.012, median_s=0.001),  # 0.9 % of step time
        passes(0.0008, 0.0, median_s=0.0001),  # a trifle
    ],
)
def test_quick_first_fetches_are_no_finding(run):
    assert first_batch(run) is None


def test_the_workers_of_a_validation_do_not_start_in_training():
    run = passes(first_s=0.05, start_s=0.0)
    validated = replace(run, sections={**run.sections, "worker_start": in_steps("worker_start", 40, 0.06, in_steps=0)})
    assert first_batch(validated) is None
    both = {
        "first_fetch": in_steps("first_fetch", 8, 0.07, 0.5),
        "worker_start": in_steps("worker_start", 8, 0.06, 0.5),
    }
    finding = first_batch(replace(run, sections={**run.sections, **both}))
    assert "takes 130 ms on average (60.0 ms of it to start workers)" in finding.message
    assert finding.evidence["passes"] == 4


def with_two_loaders(run: Snapshot) -> Snapshot:
    loaders = (LoaderStats("0", 50, None, 1.0), LoaderStats("1", 50, None, 1.0))
    return replace(run, loaders=loaders)


def test_batches_of_two_loaders_are_not_compared_with_the_median_of_both():
    run = passes(first_s=0.11, start_s=0.0)
    assert first_batch(run) is not None
    assert first_batch(with_two_loaders(run)) is None


def test_starting_the_workers_of_two_loaders_again_and_again_is_found():
    finding = first_batch(with_two_loaders(passes(first_s=0.05, start_s=0.06, count=8)))
    assert finding.message == "Workers of the 2 loaders are started 8 times, which takes 60.0 ms each and 0.48 s in all"
    assert finding.potential_saving_s == pytest.approx(0.36)  # but for the first start of each
    assert first_batch(with_two_loaders(passes(first_s=0.05, start_s=0.06, count=2))) is None


def waiting_run(waits_s: float) -> Snapshot:
    run = run_of(std_s=0.05, median_s=0.05, explained={"backward_pass": 1.02})
    waits = section_stats("synchronization", 0.1, count=100, avg_s=waits_s / 100, parent="backward_pass")
    return replace(run, sections={**run.sections, "synchronization": replace(waits, step_self_s=waits_s)})


def test_variation_of_a_waiting_backward_is_synchronization():
    finding = step_time_varies(waiting_run(waits_s=5.0))  # of 10 s
    assert finding.message.endswith("100% of the variation comes from synchronization")
    assert finding.fix == "Check for a rank that is sometimes late"


def test_backward_pass_with_less_waiting_explains_its_variation():
    assert step_time_varies(waiting_run(waits_s=4.9)).message.endswith("comes from backward_pass")


GROWING = {"rise": 3.0, "rise_p_value": 1e-6, "work_unit": "forward passes", "work_rise": 3.0}


def test_steps_that_do_more_are_not_slower():
    run = run_of(**GROWING, std_s=0.05, median_s=0.05)
    finding = steps_do_more(run)
    assert finding.message == (
        "Steps become longer because they do more: 4.0x the forward passes of a step at the end of the run, "
        "in 4.0x the time"
    )
    assert (finding.potential_saving_s, finding.fix) == (0.0, "")
    assert slowing_down(run) is None
    assert step_time_varies(run) is None
    assert "healthy" in [finding.code for finding in diagnose(run)]


def test_forward_passes_that_become_slower_are_found_although_there_are_more():
    run = run_of(**GROWING | {"rise": 11.0}, unit_rise=2.0, unit_rise_p_value=1e-6)
    assert steps_do_more(run) is None
    finding = slowing_down(run)
    assert finding.message == "Step time for the same forward passes grew 3.0x from start to end of the run"
    assert finding.potential_saving_s == pytest.approx(0.1 * 100 * 1 / 2)


@pytest.mark.parametrize(("unit_rise", "is_explained"), [(2.9, True), (3.2, False)])
def test_time_may_rise_with_the_square_of_the_input(unit_rise, is_explained):
    run = run_of(**GROWING | {"work_unit": "input elements"}, unit_rise=unit_rise, unit_rise_p_value=1e-6)
    assert (steps_do_more(run) is not None) is is_explained
    assert (slowing_down(run) is None) is is_explained


@pytest.mark.parametrize("acting", ["rollout", "forward_without_grad"])
def test_steps_before_which_the_model_acts_do_not_vary(acting):
    assert step_time_varies(run_of(std_s=0.2, median_s=0.05, explained={acting: 0.06, "other": 0.9})) is None
    assert step_time_varies(run_of(std_s=0.2, median_s=0.05, explained={"other": 0.9})) is not None
