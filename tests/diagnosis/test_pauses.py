"""Pauses within steps, by cause: their sum is the time lost, and no second is counted twice."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.diagnosis.test_machine_rules import level
from tests.support.recording import collecting, snapshot_of
from training_profiler.aggregation.machine import MachineSums
from training_profiler.diagnosis.pauses import goodput, lost_in_long_steps_s, pauses
from training_profiler.model.machine import MachineStats, Pause
from training_profiler.model.snapshot import LineStats, Snapshot
from training_profiler.reports.console import pause_lines
from training_profiler.reports.sections import left_text
from training_profiler.sampling.machine_sampler import MachineSample

EVEN = snapshot_of({"forward_pass": 0.5}, steps=100, step_s=0.1)


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
    assert (pause.cause, pause.min_s, pause.max_s) == ("garbage collection", pause.seconds, pause.seconds)
    assert pause.seconds == pytest.approx(2.0)
    assert lost_in_long_steps_s(run) == pytest.approx(pause.seconds, rel=0.06)  # the median is accurate to 1 %
    (line,) = pause_lines(run)
    assert line.startswith("Pauses within steps (12.0 s): garbage collection 2.00 s; steps took 1.9")


def synced(samples: int, function: str = "os.fsync") -> LineStats:
    share = samples / 200  # of a run of 200 samples
    return LineStats("log.py", 9, "write", share, samples, called={function: share})


def test_samples_in_calls_that_wait_for_a_disk_count_where_the_machine_counts_less() -> None:
    run = replace(on(EVEN, disk_stall=0.01), lines={"forward_pass": (synced(100),)})
    (pause,) = pauses(run)
    assert pause == Pause("disk", pytest.approx(5.0), pytest.approx(4.0), pytest.approx(6.0))  # 2 / sqrt(100)
    for others in ((synced(9),), (synced(100, "queue.get"),), ()):
        (counted,) = pauses(replace(run, lines={"forward_pass": others}))
        assert counted.seconds == pytest.approx(0.1)
    (counted,) = pauses(replace(on(EVEN, disk_stall=0.6), lines=run.lines))
    assert counted.seconds == pytest.approx(6.0)


def test_what_is_written_between_steps_is_not_a_pause_within_them() -> None:
    run = replace(on(EVEN, disk_stall=0.01), lines={"forward_pass": (synced(100),)})
    forward = run.sections["forward_pass"]
    between = replace(forward, step_self_s=forward.self_s / 2)
    (pause,) = pauses(replace(run, sections={**run.sections, "forward_pass": between}))
    assert pause.seconds == pytest.approx(2.5)


def test_a_collection_that_waits_for_a_cpu_counts_once() -> None:
    run = on(uneven(), cpu_wait=0.25, cpu_host=1.0, cpu_process=0.75)
    found = {pause.cause: pause.seconds for pause in pauses(run)}
    assert found == {
        "CPUs busy with other programs": pytest.approx(3.0),
        "garbage collection": pytest.approx(1.5),
    }


def test_the_lock_has_the_uncertainty_of_its_samples() -> None:
    line = LineStats("train.py", 4, "main", 0.5, 100, held_by={"load.py:9 decode": 0.25})
    (pause,) = pauses(replace(EVEN, lines={"forward_pass": (line,)}))
    assert pause == Pause("Python's lock", pytest.approx(2.5), pytest.approx(2.0), pytest.approx(3.0))


def simulated(seed: int) -> tuple[Snapshot, float]:
    """Return a run beside a neighbour that comes and goes, and the time that its steps lost, in ticks of 10 ms.

    Samples come late, far apart, and the last one is missing in a third of the runs.
    """
    rng = np.random.default_rng(seed)
    tick_s, ticks = 0.01, int(rng.integers(3_000, 12_000))
    busy = np.zeros(ticks)
    for _ in range(rng.integers(1, 4)):
        begin = rng.integers(0, ticks)
        busy[begin : begin + rng.integers(100, ticks)] = rng.uniform(0.1, 0.9)
    own = rng.random(ticks) < busy
    helper = (rng.random(ticks) < busy) & bool(rng.integers(2))
    in_steps = np.zeros(ticks, bool)
    in_steps[rng.integers(0, 2_000) : ticks - rng.integers(0, 500)] = True
    for begin in rng.integers(0, ticks, size=3):  # validation
        in_steps[begin : begin + 200] = False
    # The training thread goes on while its helper waits, until it needs what the helper computes.
    lost = own | (helper & (rng.random(ticks) < rng.random()))
    at = np.cumsum(rng.integers(10, 1_000, size=2_000))
    at = [0, *at[at < ticks].tolist(), *([] if seed % 3 == 0 else [ticks])]
    sums = MachineSums()
    for begin, end in pairwise(at):
        span_s = (end - begin) * tick_s
        waits_s = [waiting[begin:end].sum() * tick_s for waiting in (own, helper)]
        values = {"cpu_wait": max(waits_s), "cpu_wait_own": waits_s[0], "cpu_waiting": sum(waits_s)}
        weights = dict.fromkeys(values, span_s)
        values = {name: float(waited_s / span_s) for name, waited_s in values.items()} | {"cpu_host": 1.0}
        sums.add_samples([MachineSample(round(end * tick_s * 1e9), values, weights, {"cores": 2, "host_cores": 2})])
    steps = 100
    run = snapshot_of({"forward_pass": 0.5}, steps=steps, step_s=float(in_steps.sum()) * tick_s / steps)
    stats = sums.stats()
    own_wait = 0.0 if stats.cpu_wait_own is None else stats.cpu_wait_own.mean
    machine_stats = replace(stats, cpu_process=level(1.0 - own_wait))
    return replace(run, wall_s=ticks * tick_s, machine=machine_stats), float((lost & in_steps).sum()) * tick_s


def test_the_interval_of_a_neighbour_holds_what_the_steps_lost_to_it() -> None:
    inside = found = 0
    widths = []
    for seed in range(300):
        run, lost_s = simulated(seed)
        if run.machine.samples < 3:
            continue
        pause = next(iter(pauses(run)), None)
        if pause is None:  # the neighbour came after the last sample
            continue
        found += 1
        assert pause.min_s <= pause.seconds <= pause.max_s
        inside += pause.min_s - 1e-6 <= lost_s <= pause.max_s + 1e-6
        widths.append((pause.max_s - pause.min_s) / run.wall_s)
    assert (found > 250, inside) == (True, found)
    assert np.median(widths) < 0.5


def test_time_that_no_sample_covers_widens_the_interval() -> None:
    run = replace(on(EVEN, cpu_wait=0.5, cpu_host=1.0, cpu_process=0.5), wall_s=10.0)
    (exact,) = pauses(run)
    assert (exact.min_s, exact.max_s) == (pytest.approx(5.0), pytest.approx(5.0))
    (wider,) = pauses(replace(run, machine=replace(run.machine, cpu_wait_known_s=8.0)))
    assert (wider.seconds, wider.min_s, wider.max_s) == tuple(map(pytest.approx, (5.0, 4.0, 6.0)))


def test_goodput_is_what_productive_steps_take_of_the_wall_time() -> None:
    run = collecting()
    run.clock.advance(2.0)
    for step in range(100):
        with run.section("forward_pass"):
            run.clock.advance(0.1)
            run.clock.advance(0.9 if step == 50 else 0.0)
        run.step()
        if step in (49, 99):
            with run.section("validation_epoch"):
                run.clock.advance(1.5)
            with run.section("checkpointing"):
                run.clock.advance(0.5)
    seen = run.snapshot()
    parts = goodput(seen)
    assert parts is not None
    assert sum(parts.values()) == pytest.approx(1.0)
    seconds = {name: part * seen.wall_s for name, part in parts.items()}
    expected = {"productive_steps": 10.0, "stalls": 0.9, "startup": 2.0, "evaluation": 3.0, "checkpoints": 1.0}
    assert seconds == pytest.approx({**expected, "warmup": 0.0, "other": 0.0}, abs=0.15)
    assert goodput(Snapshot(wall_s=3.0)) is None


def test_the_time_left_is_at_the_pace_of_the_loop() -> None:
    known = EVEN.program._replace(expected_steps=150)
    run = replace(EVEN, program=known)
    assert run.step is not None
    assert run.left_s == pytest.approx(50 * run.training_s / 100, rel=0.1)
    assert left_text(run).endswith(" s left")
    ended = (replace(run, steps=150), replace(run, ended_by="KeyboardInterrupt"), EVEN, replace(run, step=None))
    assert [each.left_s for each in ended] == [None] * 4
    assert left_text(EVEN) == ""
