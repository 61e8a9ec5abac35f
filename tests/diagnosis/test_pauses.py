"""Pauses within steps, by cause: their sum is the time lost, and no second is counted twice."""

from dataclasses import replace

import pytest

from tests.support.recording import collecting, snapshot_of
from training_profiler.diagnosis.pauses import lost_in_long_steps_s, pauses
from training_profiler.reports.pauses import pause_lines
from training_profiler.snapshot.machine import Level, MachineStats
from training_profiler.snapshot.pauses import Pause
from training_profiler.snapshot.snapshot import LineStats, Snapshot

EVEN = snapshot_of({"forward_pass": 0.5}, steps=100, step_s=0.1)


def level(mean: float) -> Level:
    return Level(mean, mean, mean)


def on(run: Snapshot, **levels: float) -> Snapshot:
    return replace(run, machine=MachineStats(10, cores=2.0, host_cores=2, **{k: level(v) for k, v in levels.items()}))


def uneven() -> Snapshot:
    run = collecting()
    for step in range(100):
        with run.section("forward_pass"):
            run.clock.advance(0.1)
            if step % 10 == 9:
                run.collect(0.2)
        run.step()
    return run.snapshot()


def test_collections_are_the_time_that_long_steps_lost() -> None:
    run = uneven()
    (pause,) = pauses(run)
    assert (pause.cause, pause.least_s, pause.most_s) == ("garbage collection", pause.seconds, pause.seconds)
    assert pause.seconds == pytest.approx(2.0)
    assert lost_in_long_steps_s(run) == pytest.approx(pause.seconds, rel=0.06)  # the median is accurate to 1 %
    (line,) = pause_lines(run)
    assert line.startswith("Pauses within steps (12.0 s): garbage collection 2.00 s; steps above the median took 1.9")


@pytest.mark.parametrize(
    ("levels", "cause", "part"),
    [
        ({"cpu_wait": 0.2, "cpu_host": 1.0, "cpu_process": 1.0}, "CPUs busy with other programs", 0.2),
        ({"cpu_wait": 0.2, "cpu_host": 1.0, "cpu_process": 2.0}, "CPUs busy with its own threads and processes", 0.2),
        ({"cpu_wait": 0.2, "cpu_throttled": 0.5}, "the container's CPU quota", 0.2),
        ({"cpu_steal": 0.2, "cpu_process": 0.5}, "CPUs that the hypervisor gave to others", 0.1),
        ({"memory_stall": 0.2}, "memory pages", 0.2),
        ({"disk_stall": 0.2}, "disk", 0.2),
    ],
)
def test_what_the_machine_counts_has_the_share_of_the_steps(levels: dict[str, float], cause: str, part: float) -> None:
    run = replace(on(EVEN, **levels), wall_s=12.5)  # the steps take 10 s of it
    (pause,) = pauses(run)
    assert pause == Pause(
        cause,
        pytest.approx(10 * part),
        pytest.approx(max(0.0, 12.5 * part - 2.5)),
        pytest.approx(12.5 * part),
    )


def test_pages_that_a_disk_reads_back_count_once() -> None:
    found = {pause.cause: pause.seconds for pause in pauses(on(EVEN, memory_stall=0.2, disk_stall=0.25))}
    assert found == {"memory pages": pytest.approx(2.0), "disk": pytest.approx(0.5)}


def test_a_collection_that_waits_for_a_cpu_counts_once() -> None:
    run = on(uneven(), cpu_wait=0.25, cpu_host=1.0, cpu_process=1.0)
    found = {pause.cause: pause.seconds for pause in pauses(run)}
    assert found == {
        "CPUs busy with other programs": pytest.approx(3.0),
        "garbage collection": pytest.approx(1.5),
    }


def test_the_lock_has_the_uncertainty_of_its_samples() -> None:
    line = LineStats("train.py", 4, "main", 0.5, 100, held_by={"load.py:9 decode": 0.25})
    (pause,) = pauses(replace(EVEN, lines={"forward_pass": (line,)}))
    assert pause == Pause("Python's lock", pytest.approx(2.5), pytest.approx(2.0), pytest.approx(3.0))


def test_a_quiet_run_has_no_line() -> None:
    assert pauses(EVEN) == []
    assert pause_lines(on(EVEN, disk_stall=0.005)) == []
    assert pause_lines(Snapshot()) == []
