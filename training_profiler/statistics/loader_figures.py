"""From sums a loader to figures in seconds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from training_profiler.record.loader import TRAIN, VAL, LoaderCounts
from training_profiler.snapshot import LoaderFigures
from training_profiler.statistics.histogram import Ints
from training_profiler.statistics.loaders import BACKWARD, BETWEEN, DATA, FORWARD, KINDS, OPTIMIZER, LoaderSums, Row
from training_profiler.units import NS_PER_S


def loader_figures(loaders: Sequence[LoaderCounts], sums: LoaderSums) -> tuple[LoaderFigures, ...]:
    """Return the figures of each loader that gave at least one batch, in training and then in validation."""
    figures = []
    for phase in (TRAIN, VAL):
        tallies = [(counts, counts.of(phase)) for counts in loaders]
        batches = sum(tally.batches for _, tally in tallies)
        for counts, tally in tallies:
            if not tally.batches:
                continue
            table = sums.table(counts.serial)[KINDS * (phase == VAL) :]
            wait_ns = int(table[DATA, 0]) if table[DATA, 1] else tally.wait_ns  # by hand, on another thread
            figures.append(
                LoaderFigures(
                    name=counts.name,
                    batches=tally.batches,
                    samples=tally.samples,
                    wait_s=wait_ns / NS_PER_S,
                    phase=phase,
                    proportion=tally.batches / batches,
                    asked_proportion=counts.asked if phase == TRAIN else None,
                    **_means(table),
                )
            )
    return tuple(figures)


def row_figures(row: Row, loaders: Sequence[LoaderCounts]) -> tuple[LoaderFigures, ...]:
    """Return the figures of one row for trackers; proportions are of the run so far, samples are not told."""
    batches = sum(row.batches.values())
    figures = []
    for counts in loaders:
        table = row.sums.table(counts.serial)
        for phase, part in ((TRAIN, table[:KINDS]), (VAL, table[KINDS:])):
            so_far = row.batches.get(counts.serial, 0) if phase == TRAIN else 0
            if not so_far and not part.any():
                continue
            one = LoaderFigures(
                counts.name, int(part[DATA, 1]), None, int(part[DATA, 0]) / NS_PER_S, phase, **_means(part)
            )
            if so_far:
                one = replace(one, proportion=so_far / batches, asked_proportion=counts.asked)
            figures.append(one)
    return tuple(figures)


def _means(table: Ints) -> dict[str, Any]:
    """Return the means a batch, of an update for the optimizer, in s; None of what did not happen."""
    batches = int(table[DATA, 1])

    def mean(kind: int, count: int) -> float | None:
        return int(table[kind, 0]) / count / NS_PER_S if count and table[kind].any() else None

    return {
        "data_avg_s": mean(DATA, batches),
        "forward_avg_s": mean(FORWARD, batches),
        "backward_avg_s": mean(BACKWARD, batches),
        "optimizer_avg_s": mean(OPTIMIZER, int(table[OPTIMIZER, 1])),
        "batch_wait_avg_s": mean(BETWEEN, int(table[BETWEEN, 1])),
    }
