"""How many workers of a data loader would keep up with a training, by what its first run has measured."""

from math import ceil
from typing import Final, NamedTuple

from training_profiler.base.units import time_text
from training_profiler.diagnosis.machine import cpu_loss
from training_profiler.diagnosis.worker_plan import BATCHES_NEEDED, MOST_WORKERS, batch_times
from training_profiler.snapshot.snapshot import LoaderStats, Snapshot

LEAST_WAIT: Final = 0.05  # of the time of a batch; below, more workers bring nothing that a trial could show


class _Making(NamedTuple):
    """What it takes to make one batch."""

    seconds: float
    cpu_s: float  # at most, where the training makes its batches itself
    is_cpu_known: bool


def workers_that_would_do(snapshot: Snapshot, loader: LoaderStats | None) -> str | None:
    """Return how many workers would keep up with the training; None if that is unknown or does not matter."""
    measured = None if loader is None else batch_times(snapshot, loader)
    if loader is None or measured is None:
        return None
    now_s, using_s = measured
    if loader.num_workers == 0:  # both parts have the time in which the training had no CPU
        kept = 1 - cpu_loss(snapshot.machine).all
        now_s, using_s = kept * now_s, kept * using_s
    making = _making(loader, now_s - using_s)
    if making is None or using_s <= 0 or now_s - using_s < LEAST_WAIT * now_s:
        return None
    needed = ceil(making.seconds / using_s)
    if needed <= (loader.num_workers or 0):  # they have another reason to be late
        return None
    workers = "1 worker would keep up" if needed == 1 else f"{needed} workers would keep up"
    if needed > MOST_WORKERS:
        workers = f"more than {MOST_WORKERS} workers would be needed to keep up"
    condition = "" if making.is_cpu_known or needed == 1 else ", with a CPU each"
    times = f"a batch takes {time_text(making.seconds)} to make and {time_text(using_s)} to use"
    return f"{workers}{condition}: {times}{_ceiling(snapshot, making, using_s)}"


def _making(loader: LoaderStats, waiting_s: float) -> _Making | None:
    """Return what a batch takes in a worker, or in the training itself where that makes its batches."""
    workers = loader.workers
    if loader.num_workers == 0 and loader.is_map_style is not False:  # another may repeat its data in each worker
        cpu_s = loader.making_cpu_avg_s
        return _Making(waiting_s, waiting_s if cpu_s is None else cpu_s, cpu_s is not None)
    if workers is None or workers.batches < BATCHES_NEEDED:
        return None
    making_s = workers.batch_avg_s - workers.queued_avg_s
    return _Making(making_s, workers.cpu_avg_s, True) if making_s > 0 else None


def _ceiling(snapshot: Snapshot, making: _Making, using_s: float) -> str:
    """Return the least time for a batch that the CPUs allow, as the end of a sentence; "" where they are enough."""
    machine = snapshot.machine
    if machine is None or not machine.cores:
        return ""
    ranks = machine.local_ranks
    cores = machine.cores / ranks
    at_best_s = making.cpu_s / cores
    if at_best_s <= using_s:
        return ""
    whose = f"{cores:g} CPU{'s' * (cores != 1)}{' a rank' * (ranks > 1)}"
    condition = "" if making.is_cpu_known else "if all of that is computing, "
    return f"; {condition}{whose} would make one in {time_text(at_best_s)} at best"
