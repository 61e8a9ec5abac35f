"""Rules about CPU time that the training needed and did not get."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis.machine import cpu_loss
from training_profiler.model.machine import Level, MachineStats
from training_profiler.model.program import CallFacts, CallSite, ProgramFacts
from training_profiler.model.snapshot import Snapshot


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


def test_waiting_is_divided_among_others_and_own_processes():
    loss = cpu_loss(machine(wait=0.6, process=2.0, host_cores=4))
    assert (loss.others, loss.own) == (pytest.approx(0.6 * 2.0 / 3.6), pytest.approx(0.6 * 1.6 / 3.6))


def test_without_figures_nothing_is_known():
    assert cpu_loss(None).all == 0
    assert cpu_loss(MachineStats(9)).all == 0
    assert cpu_loss(replace(machine(wait=0.9), samples=2)).all == 0


SET = CallFacts("threads", "torch.set_num_threads", CallSite("train.py", 3))
RISING = {"rise": 2.0, "rise_p_value": 1e-9, "settled_count": 100}  # costs 5 s
UNEVEN = {"std_s": 0.5, "median_s": 0.06}  # 4 s above the median
ON_ONE_CPU = machine(wait=0.32, process=0.97, cores=1.0, cpu_allowed=level(1.0), allowed_cores=1)
OUTSIDE_AFFINITY = {"host": 0.95, "host_cores": 64, "cpu_allowed": level(1.0), "allowed_cores": 2}
SAYS = {
    "machine-busy": {
        "others, which comes first": run_on(machine(wait=0.6, process=0.21), std_s=0.5, median_s=0.05),
        "not measured from the begin on": run_on(machine(wait=0.5, cpu_wait_known_s=4.0)),
        # Threads of an operation wait for one that has no CPU, which may cost more.
        "most steps are shorter than the mean": run_on(machine(wait=0.3), median_s=0.02),
        "most steps are as long as the mean": run_on(machine(wait=0.3), median_s=0.1),
        "a quota, which takes all of the waiting": run_on(machine(wait=0.3, process=2.0, cpu_throttled=level(0.5))),
        "a hypervisor takes half a used CPU": run_on(machine(wait=0.0, process=0.5, cpu_steal=level(0.4))),
        "short of memory": run_on(machine(wait=0.0, memory_stall=level(0.3))),
        "uneven steps are explained": run_on(machine(wait=0.5), **UNEVEN),
        "a rise is explained": run_on(machine(wait=0.5), **RISING),
    },
    "cpu-oversubscribed": {
        "own workers": run_on(machine(wait=0.4, process=2.0)),
        "not measured from the begin on": run_on(machine(wait=0.5, process=2.0, cpu_wait_known_s=4.0)),
        "own workers on one CPU, 0.03 of which others had": run_on(ON_ONE_CPU),
        "more threads than CPUs save what is lost": replace(
            run_on(machine(wait=0.4, process=2.0)), program=ProgramFacts(threads=16, calls=(SET,))
        ),
        "ranks are own processes": run_on(machine(wait=0.4, process=1.0, local_ranks=2)),
        "others are outside the affinity": run_on(machine(wait=0.4, process=2.0, **OUTSIDE_AFFINITY)),
    },
    "slowing-down": {"waiting explains a part": run_on(machine(wait=0.2), **RISING)},
    "step-time-varies": {
        "waiting explains a part": run_on(machine(wait=0.05), **UNEVEN),
        "the machine has no rules": replace(
            run_on(machine(wait=0.5), **UNEVEN), thresholds={"machine-busy": 1.0, "cpu-oversubscribed": 1.0}
        ),
    },
    "data-loading-bound": {
        "the machine has a fifth": replace(
            snapshot_of({"data_loading": 0.5, "backward_pass": 0.5}), machine=machine(wait=0.2), wall_s=10.0
        )
    },
}
SILENT = {
    "machine-busy": {
        "a tenth": run_on(machine(wait=0.1)),
        "own workers": run_on(machine(wait=0.4, process=2.0)),
        "own workers on one CPU": run_on(ON_ONE_CPU),
        "ranks are own processes": run_on(machine(wait=0.4, process=1.0, local_ranks=2)),
        "others are outside the affinity": run_on(machine(wait=0.4, process=2.0, **OUTSIDE_AFFINITY)),
    },
    "slowing-down": {"waiting explains all": run_on(machine(wait=0.5), **RISING)},
}
