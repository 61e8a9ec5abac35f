"""The stats of a loader's workers, from their sums."""

import pytest

from training_profiler.aggregation.loader_workers import worker_stats
from training_profiler.aggregation.loaders import LoaderSums, loader_stats
from training_profiler.model.loader_workers import WorkerLine, WorkerMemory, WorkerSums
from training_profiler.recording.data_loader import LoaderCounts
from training_profiler.snapshot.loader_workers import WorkerLineStats

MS = 1_000_000
SUMS = WorkerSums(
    workers=2,
    batches=20,
    wall_ns=2_000 * MS,
    fetch_ns=1_600 * MS,
    slowest_ns=300 * MS,
    cpu_ns=1_200 * MS,
    queued_ns=200 * MS,
    sampling_ns=1 * MS,
    idle_samples=20,
    lines=(
        WorkerLine("transform", "data.py", 31, "Blur.__call__", "", 48),
        WorkerLine("fetch", "data.py", 20, "Pictures.__getitem__", "", 24),
        WorkerLine("collate", "", 0, "", "", 8),
    ),
    memory=(WorkerMemory(100, 150, 160), WorkerMemory(100, 210, 210)),
)


def test_stats_are_means_of_a_batch_and_shares() -> None:
    stats = worker_stats(SUMS)
    assert stats is not None
    assert (stats.workers, stats.batches, stats.samples) == (2, 20, 100)
    assert (stats.busy, stats.sampling_share) == (0.8, 0.0005)
    assert (stats.batch_avg_s, stats.cpu_avg_s, stats.queued_avg_s) == pytest.approx((0.08, 0.06, 0.01))
    assert stats.batch_max_s == pytest.approx(0.3)
    assert stats.phases == {"fetch": 0.24, "transform": 0.48, "collate": 0.08, "idle": 0.2}
    assert (stats.memory_bytes, stats.memory_growth_bytes) == (210, 110)


def test_waiting_for_a_cpu_between_batches_is_not_of_a_batch() -> None:
    stats = worker_stats(SUMS._replace(queued_ns=1_800 * MS))
    assert stats is not None
    assert stats.queued_avg_s == pytest.approx(stats.batch_avg_s - stats.cpu_avg_s)
    busy = worker_stats(SUMS._replace(queued_ns=10 * MS, cpu_ns=1_900 * MS))
    assert busy is not None
    assert busy.queued_avg_s == 0


def test_pinning_is_a_share_of_the_waiting_with_a_pin_memory_thread() -> None:
    many, few = (worker_stats(SUMS._replace(waits=100, pin_waits=waits, pinning=20)) for waits in (40, 29))
    assert many is not None
    assert few is not None
    assert (many.pinning, few.pinning) == (0.5, None)


def test_lines_are_shares_of_the_work_without_waiting_for_requests() -> None:
    stats = worker_stats(SUMS)
    assert stats is not None
    assert stats.lines == (
        WorkerLineStats("data.py", 31, "Blur.__call__", 0.6, 48, "transform"),
        WorkerLineStats("data.py", 20, "Pictures.__getitem__", 0.3, 24, "fetch"),
    )


def test_too_few_samples_or_batches_say_nothing() -> None:
    few = worker_stats(SUMS._replace(lines=SUMS.lines[2:], idle_samples=5))
    assert few is not None
    assert (few.lines, few.phases) == ((), {})
    assert worker_stats(SUMS._replace(batches=3)) is None
    assert worker_stats(None) is None


def test_later_batches_that_wait_are_a_share_of_enough_samples() -> None:
    stats, few = (worker_stats(SUMS._replace(waits=waits, held=12)) for waits in (40, 29))
    assert stats is not None
    assert few is not None
    assert (stats.held, few.held) == (0.3, None)


def test_workers_of_both_phases_are_said_once() -> None:
    counts, val = LoaderCounts("0"), LoaderCounts("1")
    for phase in ("train", "val"):
        counts.by_phase[phase].add(10, None)
    val.by_phase["val"].add(5, None)
    for each in (counts, val):
        each.use_workers(SUMS)
    stats = loader_stats([counts, val], LoaderSums())
    assert [(loader.name, loader.phase, loader.workers is not None) for loader in stats] == [
        ("0", "train", True),
        ("0", "val", False),
        ("1", "val", True),
    ]
