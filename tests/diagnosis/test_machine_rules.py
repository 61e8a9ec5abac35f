"""Rules about CPU time that a training does not get, about threads and locks, and about garbage collections."""

from dataclasses import replace

import pytest

from tests.support.loader_workers import WORKERS, waiting_run
from tests.support.recording import collecting, snapshot_of
from training_profiler.diagnosis.machine import cpu_loss
from training_profiler.model.machine import Level, MachineStats
from training_profiler.model.program import CallFacts, CallSite, ProgramFacts
from training_profiler.model.snapshot import LineStats, LoaderStats, Snapshot, WorkerLineStats, WorkerStats


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


READER = "load.py:9 decode"


def line(share: float, held: float, place: str = READER, samples: int = 100) -> LineStats:
    return LineStats("train.py", 42, "main", share=share, samples=samples, held_by={place: held} if held else {})


def run_with(line: LineStats, section: str = "forward_pass", **shares: float) -> Snapshot:
    run = snapshot_of({"forward_pass": 0.5, "backward_pass": 0.25, **shares}, steps=64, step_s=0.125)
    return replace(run, lines={section: (line,)})


def of_one_thread(own: float = 0.25, cores: float = 2.0, **loader: int) -> Snapshot:
    """Return a training that makes its batches itself and waits for a CPU for a quarter of the run."""
    busy = Level(own, 1.0, own)
    machine = MachineStats(samples=10, cores=cores, host_cores=2, cpu_wait=busy, cpu_host=Level(1.0, 1.0, 1.0))
    run = run_with(line(0.5, 0.4))
    loader = LoaderStats("0", **{"batches": 64, "samples": 64, "wait_s": 1.0, "num_workers": 0, **loader})
    program = run.program._replace(threads=2)
    return replace(run, machine=machine, loaders=(loader,), program=program)


VALIDATION = run_with(line(0.25, 0.25), "validation_epoch")
LOADING = run_with(line(0.2, 0.2), "data_loading", data_loading=0.2)
BUSY = MachineStats(10, cores=2.0, host_cores=2, cpu_wait=Level(0.2, 1.0, 0.2), cpu_host=Level(1.0, 1.0, 1.0))


def made_by(workers: int) -> Snapshot:
    return replace(LOADING, loaders=(LoaderStats("0", batches=64, samples=64, wait_s=1.0, num_workers=workers),))


READ = WorkerLineStats("data.py", 12, "Pictures.__getitem__", 0.5, 400, "shared lock")


def locked(share: float, **values: object) -> WorkerStats:
    """Return workers that wait for a shared lock for this share of their time, and use a CPU for a tenth of a batch."""
    phases = {"fetch": 0.97 - share, "shared lock": share, "idle": 0.03}
    return replace(WORKERS, cpu_avg_s=0.008, phases=phases, lines=(READ,), samples=830, **values)  # type: ignore[arg-type]


def in_line(share: float = 0.9, **values: float) -> Snapshot:
    line = WorkerLineStats("data.py", 9, "fetch", share, 720, "fetch")
    return waiting_run(replace(WORKERS, lines=(line,), **values))  # type: ignore[arg-type]


def loading(phase: str, part: float) -> Snapshot:
    """Return a run without workers that loads in 75% of its time, a part of it in one line."""
    line = LineStats("data.py", 7, "Pictures.__getitem__", part * 0.75, 90, phase=phase)
    return replace(waiting_run(None, num_workers=0), lines={"data_loading": (line,)})


def training(every: int, seconds: float, generation: int = 2, is_asked: bool = False) -> Snapshot:
    """Return a run whose steps take 100 ms, and have a collection every so many steps."""
    run = collecting()
    for step in range(1, 101):
        run.spend("forward_pass", 0.03)
        with run.section("backward_pass"):
            run.clock.advance(0.06)
            if step % every == 0:
                run.collect(seconds + 0.005 * (step == 50), generation, is_asked)
        run.step(optimizer_step=0.01)
    return run.snapshot()


def of_data() -> Snapshot:
    """Return a run whose data loading has the collections, which leave it the rest."""
    run = collecting()
    for step in range(1, 101):
        with run.section("data_loading"):
            run.clock.advance(0.02)
            if step % 2 == 0:
                run.collect(0.1)
        run.step(forward_pass=0.01, backward_pass=0.02)
    return run.snapshot()


def of_first_steps() -> Snapshot:
    run = collecting()
    for step in range(100):
        run.spend("forward_pass", 0.1)
        if step < 9:
            with run.section("backward_pass"):
                run.collect(0.5)
        run.step()
    return run.snapshot()


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
        "rare": replace(training(20, 0.25), thresholds={"garbage-collection": 0.5}),
    },
    "data-loading-bound": {
        "the machine has a fifth": replace(
            snapshot_of({"data_loading": 0.5, "backward_pass": 0.5}), machine=machine(wait=0.2), wall_s=10.0
        ),
        # Of two workers, one has the lock while the other one waits: with 0.49 of the time of each it is always taken.
        "workers take turns at a lock": waiting_run(locked(0.49)),
        "a lock that is mostly free": waiting_run(locked(0.05)),
        # Each of two waits in a quarter: the lock is taken in 44% to 50%, so about twice as many batches are possible.
        # Of the 80 ms, 59 ms are work without the wait: 4 workers make a batch each 17.6 ms.
        "a lock allows some more": waiting_run(locked(0.25)),
        "a lock before busy CPUs": waiting_run(locked(0.49), busy=7.9),
        # Half a CPU is enough for 8 workers, each of which computes for a tenth of its time.
        "workers mostly wait, on busy CPUs": waiting_run(replace(WORKERS, cpu_avg_s=0.008), busy=7.9),
        "one worker waits for others": waiting_run(locked(0.8), num_workers=1),
        "no phases": waiting_run(replace(locked(0.49), phases={})),
        "a lock of its own": waiting_run(replace(locked(0.49), phases={"fetch": 0.5, "lock": 0.5})),
        # 8 ms of the 80 ms are CPU time, so at least 0.9 - 0.1 of the work is waiting in a line that has 0.9 of it.
        "a line waits for storage": in_line(cpu_avg_s=0.008),
        "a line computes": in_line(cpu_avg_s=0.08),
        "a line computes for more than half": in_line(cpu_avg_s=0.05),
        "other lines may be what waits": in_line(0.15, cpu_avg_s=0.008),
        "a line waits for a CPU": in_line(batch_avg_s=0.160, cpu_avg_s=0.02, cpu_wait_avg_s=0.120),
        "itself at a lock": loading("lock", 0.8),
        "itself at a shared lock": loading("shared lock", 0.8),
        "itself at a lock for less than half": loading("lock", 0.4),
        "itself at no lock": loading("fetch", 0.8),
    },
    "lock-held-by-thread": {
        "a line": run_with(line(0.5, 0.25)),
        "the thread of a queue": run_with(line(0.5, 0.25, "multiprocessing/queues.py:267 Queue._feed")),
        "the training makes its batches itself": made_by(0),
        "the only competitor has the wait for a CPU too": of_one_thread(),
        "mostly for a CPU": of_one_thread(own=0.5),
        "beside workers only the lock": of_one_thread(num_workers=2),
        "beside threads only the lock": of_one_thread(cores=1.0),
    },
    "garbage-collection": {
        "full, and not uneven steps": training(10, 0.25),
        "asked for": training(1, 0.02, is_asked=True),
        "young": training(1, 0.02, generation=0),
        "while data is loaded": of_data(),
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
    "step-time-varies": {
        "the busy machine is not to be said": replace(
            run_on(machine(wait=0.5), **UNEVEN), thresholds={"machine-busy": 1.0, "cpu-oversubscribed": 1.0}
        ),
    },
    "lock-held-by-thread": {
        "nothing": run_with(line(0.5, 0.0)),
        "a tenth": run_with(line(0.5, 0.1)),
        "few samples": run_with(line(0.5, 0.25, samples=9)),
        # A thread that prepares batches runs while the training waits for them.
        "in data loading": LOADING,
        "beside data loading": run_with(line(0.25, 0.2), data_loading=0.15),
        "workers make the batches": made_by(2),
        "for a CPU": replace(run_with(line(0.5, 0.25)), machine=BUSY),
        "outside steps": replace(
            VALIDATION,
            sections={
                **VALIDATION.sections,
                "validation_epoch": replace(
                    VALIDATION.sections["forward_pass"], name="validation_epoch", step_total_s=0.0
                ),
            },
        ),
    },
    "garbage-collection": {
        "unknown": snapshot_of({"forward_pass": 0.5}),
        "2.9 %": training(10, 0.03),
        "in two steps": training(50, 0.3),
        "of the first steps": of_first_steps(),
    },
}
