"""The rule about a thread of the program that has Python's lock."""

from dataclasses import replace

from tests.support.recording import snapshot_of
from training_profiler.model.machine import Level, MachineStats
from training_profiler.model.snapshot import LineStats, LoaderStats, Snapshot

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


SAYS = {
    "lock-held-by-thread": {
        "a line": run_with(line(0.5, 0.25)),
        "the thread of a queue": run_with(line(0.5, 0.25, "multiprocessing/queues.py:267 Queue._feed")),
        "the training makes its batches itself": made_by(0),
        "the only competitor has the wait for a CPU too": of_one_thread(),
        "mostly for a CPU": of_one_thread(own=0.5),
        "beside workers only the lock": of_one_thread(num_workers=2),
        "beside threads only the lock": of_one_thread(cores=1.0),
    }
}
SILENT = {
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
    }
}
