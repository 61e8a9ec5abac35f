"""Rules about CPU time that the training needed and did not get."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.diagnosis.machine import cpu_loss, cpu_oversubscribed, machine_busy
from training_profiler.snapshot.machine import Level, MachineStats
from training_profiler.snapshot.program import CallFacts, CallSite, ProgramFacts
from training_profiler.snapshot.snapshot import Snapshot


def level(mean: float) -> Level:
    return Level(mean, mean, mean)


def machine(wait: float = 0.5, process: float | None = None, host: float = 1.0, **more) -> MachineStats:
    """Return the stats of a machine with two CPUs; by default the training has one thread."""
    figures = {"samples": 9, "cores": 2.0, "host_cores": 2}
    levels = {
        "cpu_process": level(1.0 - wait if process is None else process),
        "cpu_host": level(host),
        "cpu_wait": level(wait),
    }
    return MachineStats(**{**figures, **levels, **more})


def run_on(stats: MachineStats, **step) -> Snapshot:
    return replace(snapshot_of({"backward_pass": 1.0}, **step), machine=stats, wall_s=10.0)


def codes(snapshot: Snapshot) -> list[str]:
    return [finding.code for finding in diagnose(snapshot)]


def test_waiting_for_others_comes_first_with_what_it_cost():
    run = run_on(machine(wait=0.6, process=0.21), std_s=0.5, median_s=0.05)
    first = diagnose(run)[0]
    assert first.code == "machine-busy"
    assert first.message == (
        "Other programs kept this machine's CPUs busy: the training waited 6.00 s (60% of the run) for one; it got "
        "0.21 of 2 CPUs"
    )
    assert first.potential_saving_s == pytest.approx(6.0)
    assert first.evidence["cause"] == "other programs"


def test_waiting_before_it_was_measured_is_unknown():
    """Imports wait for a CPU too, or not: the waiting in the loop says nothing about them."""
    finding = machine_busy(run_on(machine(wait=0.5, cpu_wait_known_s=4.0)))
    assert "the training waited 2.00 s (50% of the 4.00 s that were measured) for one" in finding.message
    assert finding.potential_saving_s == finding.evidence["lost_s"] == pytest.approx(2.0)
    own = cpu_oversubscribed(run_on(machine(wait=0.5, process=2.0, cpu_wait_known_s=4.0)))
    assert own.evidence["lost_s"] == pytest.approx(2.0)


@pytest.mark.parametrize(("median_s", "most_s"), [(0.02, 8.0), (0.1, 3.3)])
def test_an_operation_that_waits_for_one_of_its_threads_may_have_lost_more(median_s, most_s):
    first = diagnose(run_on(machine(wait=0.3), median_s=median_s))[0]
    assert first.code == "machine-busy"
    assert first.saving_range_s == pytest.approx((2.1, most_s))


def test_waiting_of_a_tenth_is_none():
    assert machine_busy(run_on(machine(wait=0.1))) is None
    assert machine_busy(run_on(machine(wait=0.11))) is not None


def test_own_workers_are_no_other_programs():
    stats = machine(wait=0.4, process=2.0)
    assert machine_busy(run_on(stats)) is None
    finding = cpu_oversubscribed(run_on(stats))
    assert finding.evidence["lost_share"] == pytest.approx(0.4)
    assert "own threads and processes compete for 2 CPUs" in finding.message


def test_own_workers_on_one_cpu_are_no_other_programs():
    stats = machine(wait=0.32, process=0.97, cores=1.0, cpu_allowed=level(1.0), allowed_cores=1)
    assert machine_busy(run_on(stats)) is None
    finding = cpu_oversubscribed(run_on(stats))
    assert finding.evidence["lost_share"] == pytest.approx(0.29)  # 0.03 CPUs of 0.32 had others
    assert "compete for 1 CPU:" in finding.message


def test_more_threads_than_cpus_are_named_with_their_line_and_save_what_is_lost():
    call = CallFacts("threads", "torch.set_num_threads", CallSite("train.py", 3))
    run = replace(run_on(machine(wait=0.4, process=2.0)), program=ProgramFacts(threads=16, calls=(call,)))
    finding = cpu_oversubscribed(run)
    assert "An operation of torch uses up to 16 threads (set at train.py:3), with 2 CPUs" in finding.message
    assert finding.potential_saving_s == pytest.approx(0.4 * run.wall_s)
    assert "torch.set_num_threads(2)" in finding.fix
    first = next(iter(diagnose(run)))
    assert (first.code, first.potential_saving_s) == ("cpu-oversubscribed", finding.potential_saving_s)


def test_ranks_on_the_same_machine_are_own_processes():
    stats = machine(wait=0.4, process=1.0, local_ranks=2)
    assert machine_busy(run_on(stats)) is None
    assert cpu_oversubscribed(run_on(stats)).fix.endswith("or fewer workers, in each of the 2 processes")


def test_others_on_cpus_outside_the_affinity_are_no_competition():
    stats = machine(wait=0.4, process=2.0, host=0.95, host_cores=64, cpu_allowed=level(1.0), allowed_cores=2)
    assert machine_busy(run_on(stats)) is None
    assert cpu_oversubscribed(run_on(stats)) is not None


def test_waiting_is_divided_among_others_and_own_processes():
    loss = cpu_loss(machine(wait=0.6, process=2.0, host_cores=4))
    assert (loss.others, loss.own) == (pytest.approx(0.6 * 2.0 / 3.6), pytest.approx(0.6 * 1.6 / 3.6))


def test_quota_takes_all_of_the_waiting():
    finding = machine_busy(run_on(machine(wait=0.3, process=2.0, cpu_throttled=level(0.5))))
    assert finding.evidence["cause"] == "quota"
    assert finding.fix.startswith("Raise the container's CPU limit")


def test_stolen_time_counts_for_the_cpu_that_the_training_used():
    finding = machine_busy(run_on(machine(wait=0.0, process=0.5, cpu_steal=level(0.4))))
    assert (finding.evidence["cause"], finding.evidence["lost_share"]) == ("hypervisor", pytest.approx(0.2))


def test_shortage_of_memory_counts():
    finding = machine_busy(run_on(machine(wait=0.0, memory_stall=level(0.3))))
    assert finding.evidence["cause"] == "memory"


def test_without_figures_nothing_is_known():
    assert cpu_loss(None).all == 0
    assert cpu_loss(MachineStats(9)).all == 0
    assert cpu_loss(replace(machine(wait=0.9), samples=2)).all == 0


def test_uneven_steps_that_waiting_explains_are_not_blamed_on_the_program():
    uneven = {"std_s": 0.5, "median_s": 0.06}  # 4 s above the median
    assert "step-time-varies" in codes(run_on(machine(wait=0.05), **uneven))
    assert codes(run_on(machine(wait=0.5), **uneven)) == ["machine-busy", "slowest-component"]


def test_rise_that_waiting_cannot_explain_is_reported_with_what_is_left():
    rising = {"rise": 2.0, "rise_p_value": 1e-9, "settled_count": 100}  # costs 5 s
    finding = next(each for each in diagnose(run_on(machine(wait=0.2), **rising)) if each.code == "slowing-down")
    assert finding.potential_saving_s == pytest.approx(1.0)
    assert "slowing-down" not in codes(run_on(machine(wait=0.5), **rising))


def test_savings_leave_out_what_was_lost():
    run = replace(snapshot_of({"data_loading": 0.5, "backward_pass": 0.5}), machine=machine(wait=0.2), wall_s=10.0)
    by_code = {finding.code: finding for finding in diagnose(run)}
    assert by_code["data-loading-bound"].potential_saving_s == pytest.approx(0.8 * 5.0)


def test_raised_threshold_switches_all_of_it_off():
    run = replace(
        run_on(machine(wait=0.5), std_s=0.5, median_s=0.06), thresholds={"machine-busy": 1.0, "cpu-oversubscribed": 1.0}
    )
    assert codes(run)[0] == "step-time-varies"
