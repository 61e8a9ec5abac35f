"""The rule about operators that use fewer threads than there are free CPUs."""

from dataclasses import replace

import pytest

from tests.diagnosis.test_machine_rules import machine
from tests.support.recording import snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.snapshot.program import THREADS, CallFacts, CallSite, LongOperators, ProgramFacts
from training_profiler.snapshot.snapshot import DeviceTimingStats

SET = CallFacts(THREADS, "torch.set_num_threads", CallSite("train.py", 4, "<module>"), {"threads": "1"})


def run_with(*calls, threads=1, operators=100, counted_s=0.09, stats=None, **shares):
    """Return a run of 100 steps of 100 ms on two CPUs, of which the training uses one.

    ``counted_s`` is the time in the operators of the counted step.
    """
    stats = stats or machine(wait=0.0, process=1.05, host=0.55)
    run = snapshot_of(shares or {"forward_pass": 0.4, "backward_pass": 0.55}, steps=100)
    forward, backward = (LongOperators(all_s=share * counted_s) for share in (0.4, 0.6))
    program = ProgramFacts(
        threads=threads, operators=operators, calls=calls, long_forward=forward, long_backward=backward
    )
    return replace(run, machine=stats, program=program)


def findings_of(run):
    return {finding.code: finding for finding in diagnose(run)}


def test_one_thread_of_two_cpus_is_named_with_its_line():
    found = findings_of(run_with(SET))
    assert next(iter(found)) == "few-threads"
    finding = found["few-threads"]
    assert finding.message.startswith(
        "torch computes with 1 thread (set at train.py:4), and 0.9 of 2 CPUs are free: forward and backward passes "
        "take 95% of step time"
    )
    assert finding.potential_saving_s == pytest.approx(0.8 * 0.5 * 9.5)
    assert finding.fix == "Use more threads: torch.set_num_threads(2) or OMP_NUM_THREADS=2"
    assert finding.losses == "differ by rounding"


def test_torch_does_not_choose_one_thread_of_many_cpus():
    many = machine(wait=0.0, process=1.0, host=0.1, cores=8.0, host_cores=8)
    assert findings_of(run_with(stats=many))["few-threads"].evidence["threads"] == 1


@pytest.mark.parametrize(
    "run",
    [
        run_with(),
        run_with(SET, threads=2),
        run_with(SET, operators=2000),
        run_with(SET, operators=0),
        run_with(SET, operators=10, counted_s=0.03),
        run_with(SET, stats=machine(wait=0.0, process=1.9, host=0.95)),
        run_with(SET, stats=machine(wait=0.0, process=1.0, host=1.0)),
        run_with(SET, stats=machine(wait=0.0, process=1.0, host=0.5, local_ranks=2)),
        run_with(SET, data_loading=0.9, forward_pass=0.1),
        run_with(threads=4, stats=machine(wait=0.0, process=4.0, host=0.5, cores=8.0, host_cores=8)),
    ],
    ids=[
        "torch's choice",
        "all CPUs",
        "short operators",
        "not counted",
        "an episode in other steps",
        "workers",
        "a busy machine",
        "two ranks",
        "data",
        "two CPUs a core",
    ],
)
def test_other_trainings_are_not_flagged(run):
    assert "few-threads" not in findings_of(run)


def test_an_accelerator_computes():
    run = replace(run_with(SET), device=DeviceTimingStats("cuda", "A100", "events", 100))
    assert "few-threads" not in findings_of(run)
