"""The rule about a thread of the program that has Python's lock."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.snapshot.machine import Level, MachineStats
from training_profiler.snapshot.snapshot import LineStats, LoaderStats, Snapshot

READER = "load.py:9 decode"


def line(share: float, held: float, place: str = READER, samples: int = 100) -> LineStats:
    return LineStats("train.py", 42, "main", share=share, samples=samples, held_by={place: held} if held else {})


def run_with(line: LineStats, section: str = "forward_pass", **shares: float) -> Snapshot:
    run = snapshot_of({"forward_pass": 0.5, "backward_pass": 0.25, **shares}, steps=64, step_s=0.125)
    return replace(run, lines={section: (line,)})


def found(run: Snapshot) -> Finding | None:
    return next((finding for finding in diagnose(run) if finding.code == "lock-held-by-thread"), None)


def test_the_line_that_has_the_lock_is_named():
    finding = found(run_with(line(0.5, 0.25)))
    assert finding is not None
    assert finding.message == (
        "The training waits for Python's lock for 25% of step time (31.2 ms per step), "
        "which a thread of the program has at load.py:9 decode"
    )
    assert finding.potential_saving_s == 2.0


def test_the_thread_of_a_queue_is_named_with_what_it_does():
    finding = found(run_with(line(0.5, 0.25, "multiprocessing/queues.py:267 Queue._feed")))
    assert finding is not None
    assert finding.message.endswith(
        "which a thread of the program has at multiprocessing/queues.py:267 Queue._feed: the thread of a "
        "multiprocessing queue, which pickles what is put into it"
    )
    assert finding.fix.startswith("Put less into the queue")


@pytest.mark.parametrize(
    "run",
    [
        run_with(line(0.5, 0.0)),
        run_with(line(0.5, 0.1)),  # a tenth is not over a tenth
        run_with(line(0.5, 0.25, samples=9)),
        # A thread that prepares batches runs while the training waits for them.
        run_with(line(0.2, 0.2), "data_loading", data_loading=0.2),
        run_with(line(0.25, 0.2), data_loading=0.15),
    ],
)
def test_silent_where_it_is_little_or_may_be_another_wait(run):
    assert found(run) is None


@pytest.mark.parametrize(("workers", "is_found"), [(0, True), (2, False)])
def test_batches_that_the_training_makes_itself_are_no_wait_for_others(workers, is_found):
    loader = LoaderStats("0", batches=64, samples=64, wait_s=1.0, num_workers=workers)
    run = run_with(line(0.2, 0.2), "data_loading", data_loading=0.2)
    assert (found(replace(run, loaders=(loader,))) is not None) == is_found


def test_waiting_for_a_cpu_is_not_waiting_for_the_lock():
    busy = Level(0.2, 1.0, 0.2)
    machine = MachineStats(samples=10, cores=2.0, host_cores=2, cpu_wait=busy, cpu_host=Level(1.0, 1.0, 1.0))
    assert found(replace(run_with(line(0.5, 0.25)), machine=machine)) is None


def of_one_thread(own: float = 0.25, cores: float = 2.0, **loader: int) -> Snapshot:
    """Return a training that makes its batches itself and waits for a CPU for a quarter of the run."""
    busy = Level(own, 1.0, own)
    machine = MachineStats(samples=10, cores=cores, host_cores=2, cpu_wait=busy, cpu_host=Level(1.0, 1.0, 1.0))
    run = run_with(line(0.5, 0.4))
    loader = LoaderStats("0", **{"batches": 64, "samples": 64, "wait_s": 1.0, "num_workers": 0, **loader})
    program = run.program._replace(threads=2)
    return replace(run, machine=machine, loaders=(loader,), program=program)


def test_a_thread_that_is_the_only_competitor_has_the_wait_for_the_cpu_too():
    finding = found(of_one_thread())
    assert finding is not None
    assert finding.message == (
        "The training waits for Python's lock or for a CPU for 40% of step time (50.0 ms per step), while a thread of "
        "the program runs at load.py:9 decode"
    )
    assert finding.potential_saving_s == pytest.approx(3.2)
    assert finding.fix.startswith("Do less of that work meanwhile; where a CPU is free, move it to a process")
    finding = found(of_one_thread(own=0.5))
    assert finding is not None
    assert finding.message.startswith("The training waits for a CPU for 40% of step time")


@pytest.mark.parametrize("run", [of_one_thread(num_workers=2), of_one_thread(cores=1.0)])
def test_with_other_competitors_only_the_lock_counts(run):
    finding = found(run)
    assert finding is None or "or for a CPU" not in finding.message


def test_a_step_outside_of_training_does_not_count():
    run = run_with(line(0.25, 0.25), "validation_epoch")
    validation = replace(run.sections["forward_pass"], name="validation_epoch", step_total_s=0.0)
    assert found(replace(run, sections={**run.sections, "validation_epoch": validation})) is None
