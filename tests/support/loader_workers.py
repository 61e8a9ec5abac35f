"""The stats of workers for tests of rules and reports: 200 batches of 80 ms in two workers."""

from dataclasses import replace

from tests.support.recording import snapshot_of
from training_profiler.model.machine import Level, MachineStats
from training_profiler.model.snapshot import LoaderStats, Snapshot, WorkerLineStats, WorkerStats

BLUR = WorkerLineStats("data.py", 31, "Blur.__call__", 0.6, 480, "transform")
READ = WorkerLineStats("data.py", 20, "Pictures.__getitem__", 0.3, 240, "fetch")
WORKERS = WorkerStats(
    workers=2,
    batches=200,
    busy=0.97,
    batch_avg_s=0.080,
    batch_max_s=0.120,
    cpu_avg_s=0.080,
    cpu_wait_avg_s=0.0,
    samples=830,
    phases={"fetch": 0.29, "transform": 0.58, "collate": 0.10, "idle": 0.03},
    lines=(BLUR, READ),
    memory_bytes=3 * 2**29,
    memory_growth_bytes=2**29,
)


def machine(busy: float, cores: float = 8.0) -> MachineStats:
    """Return a machine of which this process uses ``busy`` CPUs, and others none."""
    part = Level(busy / cores, busy / cores, busy / cores)
    return MachineStats(9, cores=cores, host_cores=int(cores), cpu_process=Level(busy, busy, busy), cpu_host=part)


def waiting_run(
    workers: WorkerStats | None = WORKERS, num_workers: int = 2, busy: float = 2.0, using_s: float = 0.010
) -> Snapshot:
    """Return a training that waits for two workers: 40 ms a step, of which ``using_s`` are its own."""
    run = snapshot_of({"data_loading": 1 - using_s / 0.040, "backward_pass": using_s / 0.040}, steps=200, step_s=0.040)
    loader = LoaderStats("0", 200, None, 6.0, num_workers=num_workers, prefetch_factor=2, workers=workers)
    return replace(run, loaders=(loader,), machine=machine(busy))
