"""From the sums of a loader's workers to their stats."""

from collections import Counter
from typing import Final

from training_profiler.base.units import NS_PER_S
from training_profiler.model.loader_workers import IDLE, PHASES, WorkerSums
from training_profiler.snapshot.loader_workers import WorkerLineStats, WorkerStats

SAMPLES_NEEDED: Final = 30  # of work, or of waiting; a share of one half is then accurate to about 18 points (95 %)
BATCHES_NEEDED: Final = 4  # before a mean batch says anything


def worker_stats(sums: WorkerSums | None) -> WorkerStats | None:
    """Return the stats of a loader's workers; None where they made too few batches."""
    if sums is None or sums.batches < BATCHES_NEEDED or not sums.wall_ns:
        return None
    of_batches_ns = sums.batches * NS_PER_S
    work = sum(line.samples for line in sums.lines)
    # A worker also waits for a CPU between batches; of a batch it is at most the time that is not CPU time.
    queued_ns = min(sums.queued_ns, max(0, sums.fetch_ns - sums.cpu_ns))
    return WorkerStats(
        workers=sums.workers,
        batches=sums.batches,
        busy=min(1.0, sums.fetch_ns / sums.wall_ns),
        batch_avg_s=sums.fetch_ns / of_batches_ns,
        batch_max_s=sums.slowest_ns / NS_PER_S,
        cpu_avg_s=sums.cpu_ns / of_batches_ns,
        queued_avg_s=queued_ns / of_batches_ns,
        samples=sums.samples,
        phases=_phases(sums) if sums.samples >= SAMPLES_NEEDED else {},
        lines=_lines(sums, work) if work >= SAMPLES_NEEDED else (),
        memory_bytes=max((memory.last for memory in sums.memory), default=None),
        memory_growth_bytes=max((memory.last - memory.first for memory in sums.memory), default=None),
        held=sums.held / sums.waits if sums.waits >= SAMPLES_NEEDED else None,
        pinning=sums.pinning / sums.pin_waits if sums.pin_waits >= SAMPLES_NEEDED else None,
        sampling_share=sums.sampling_ns / sums.wall_ns,
    )


def _phases(sums: WorkerSums) -> dict[str, float]:
    samples = Counter({IDLE: sums.idle_samples})
    for line in sums.lines:
        samples[line.phase] += line.samples
    return {phase: samples[phase] / sums.samples for phase in PHASES if samples[phase]}


def _lines(sums: WorkerSums, work: int) -> tuple[WorkerLineStats, ...]:
    named = [line for line in sums.lines if line.file]
    return tuple(
        WorkerLineStats(line.file, line.line, line.function, line.samples / work, line.samples, line.phase, line.inside)
        for line in sorted(named, key=lambda line: (-line.samples, line))
    )
