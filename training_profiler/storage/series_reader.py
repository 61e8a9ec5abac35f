"""Collects the series of steps from the intervals of a journal, while its sums are read."""

from dataclasses import replace

import numpy as np

from training_profiler.aggregation.machine import MachineSums
from training_profiler.base.text import printable
from training_profiler.base.units import NS_PER_S
from training_profiler.comparison.run_series import RunSeries, SeriesStretch
from training_profiler.diagnosis.machine import SAMPLES_NEEDED, cpu_loss
from training_profiler.model.interval import IntervalRecord
from training_profiler.snapshot.snapshot import OTHER
from training_profiler.storage.journal_codec import machine_of


class SeriesReader:
    """The steps of one rank, interval by interval."""

    def __init__(self) -> None:
        self.rank = 0
        self._stretches: list[SeriesStretch] = []
        self._machine = MachineSums()
        self._first_unknown = 0  # stretches from here on do not know what the machine did
        self._fetched = 0  # samples of intervals in which no step ended, for the next step

    def begin(self, rank: int) -> None:
        """Start again, with the journal of this rank."""
        self.rank, self._stretches = rank, []
        self._machine, self._first_unknown = MachineSums(), 0
        self._fetched = 0

    def add(self, record: IntervalRecord) -> None:
        """Add the next interval."""
        if record.machine is not None:
            self._machine.add(machine_of(record.machine))
        if record.step_ns:
            self._stretches.append(_stretch(record, self._fetched))
            self._fetched = 0
        else:
            self._fetched += record.samples or 0
        if self._machine.samples >= SAMPLES_NEEDED:
            self._know_loss(cpu_loss(self._machine.stats(has_growth=False)).to_others)

    def _know_loss(self, lost: float) -> None:
        """Say of the stretches since the last time how much was lost to others: one alone may have too few samples."""
        latest = self._stretches[self._first_unknown :]
        self._stretches[self._first_unknown :] = [replace(stretch, lost=lost) for stretch in latest]
        self._machine, self._first_unknown = MachineSums(), len(self._stretches)

    def _guess_loss(self) -> None:
        """Say the same of the last stretches, from few samples: an interval that is too wide is the smaller mistake."""
        stats = self._machine.stats(has_growth=False)
        if stats is not None:
            self._know_loss(cpu_loss(replace(stats, samples=max(stats.samples, SAMPLES_NEEDED))).to_others)
        elif self._first_unknown:
            self._know_loss(self._stretches[self._first_unknown - 1].lost or 0.0)

    def series(self, warmup: int) -> RunSeries:
        """Return the steps read so far."""
        if self._first_unknown < len(self._stretches):
            self._guess_loss()
        return RunSeries(tuple(self._stretches), warmup, self.rank)


def _stretch(record: IntervalRecord, fetched_before: int) -> SeriesStretch:
    step_s = np.array(record.step_ns, np.float64) / NS_PER_S
    blocks = record.blocks(lambda name: printable(name) or OTHER)
    sections = {name: np.array(column, np.float64) / NS_PER_S for name, column in blocks.by_section_ns.items()}
    return SeriesStretch(
        step_s,
        tuple(record.slowed_by_capture),
        sections,
        blocks.steps_a_block,
        samples=None if record.samples is None else record.samples + fetched_before,
    )
