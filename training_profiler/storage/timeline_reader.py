"""Reads what the journals of a run have over time: steps one by one, sections by blocks of steps, the machine."""

from array import array
from dataclasses import replace
from pathlib import Path

from training_profiler.aggregation.machine import MachineSums
from training_profiler.aggregation.run import RunSums
from training_profiler.base.errors import RunFolderError
from training_profiler.base.sections import OUTSIDE_STEPS_SECTIONS, WITHIN
from training_profiler.base.text import printable
from training_profiler.diagnosis.machine import SAMPLES_NEEDED, cpu_loss
from training_profiler.model.bounds import MOST_EPOCHS, MOST_SOURCES, MOST_SPANS
from training_profiler.model.interval import NO_SECTION, IntervalRecord
from training_profiler.model.series import EpochSpan, RankSeries, StepLanes, Stretch
from training_profiler.model.snapshot import OTHER, PROFILER
from training_profiler.storage.journal_discovery import JournalFile, find_journals, lines_of_journal, select_attempt
from training_profiler.storage.journal_lines import EpochBeginLine, EpochEndLine, Line, SourcesLine, SpansLine
from training_profiler.storage.replay import Replay, machine_of


def read_series(folder: Path, attempt: int | None = None, known: "RankReader | None" = None) -> tuple[RankSeries, ...]:
    """Return the readable ranks of the run in ``folder``, by number; the last attempt by default.

    ``read_run`` has checked the folder, and reports what is missing; ``known`` is the rank that it has read.

    Raises:
        RunFolderError: there was no such attempt.
    """
    journals = select_attempt(folder, find_journals(folder), attempt).of_attempt
    read = (_read(journal, known) for journal in journals if not journal.problem)
    return tuple(sorted((series for series in read if series is not None), key=lambda series: series.rank))


def read_digests(folder: Path) -> dict[str, str]:
    """Return the digests of source files that rank 0 recorded in its last attempt, by their names in reports."""
    return next((dict(series.sources) for series in read_series(folder) if series.rank == 0), {})


def _read(journal: JournalFile, known: "RankReader | None") -> RankSeries | None:
    if known is not None and journal.path == known.path:
        return known.series()
    reader = RankReader()
    replay = reader.begin(journal)
    try:
        for line in lines_of_journal(journal.path):
            replay.add(line)
    except RunFolderError:
        return None
    return reader.series()


class RankReader:
    """All that the journal of one rank has over time. Damaged lines are left out."""

    def __init__(self) -> None:
        self.path: Path | None = None  # of the journal
        self._replay = Replay(self._add_interval, self._add)
        self._who = (0, "", 0)
        self._stretches: list[Stretch] = []
        self._end_ns = 0
        self._epochs: list[EpochSpan] = []
        self._epoch_begin_ns: int | None = None  # until the stretch that follows it
        self._recorded: dict[int, StepLanes[str]] = {}
        self._spans = 0  # in them
        self._sources: dict[str, str] = {}
        self._machine = MachineSums()
        self._first_unknown = 0  # stretches from here on do not know what was lost to others
        self._fetched = 0  # samples of intervals in which no step ended, for the next step

    def begin(self, journal: JournalFile) -> Replay:
        """Start again, with the journal of a rank; return what its lines are added to."""
        vars(self).update(vars(RankReader()), path=journal.path, _replay=Replay(self._add_interval, self._add))
        self._who = journal.rank or 0, printable(str(journal.begin.get("host", ""))), journal.wall_ns
        return self._replay

    def _add(self, record: Line) -> None:
        if isinstance(record, SpansLine):
            for step in record.step_lanes(self._name, printable):
                self._spans += 1 + sum(len(lane.sections) for lane in step.lanes)
                if self._spans <= MOST_SPANS:
                    self._recorded[step.number] = step
        elif isinstance(record, SourcesLine):
            self._sources |= list(record.files.items())[: MOST_SOURCES - len(self._sources)]
        elif isinstance(record, EpochBeginLine) and len(self._epochs) < MOST_EPOCHS:
            self._epoch_begin_ns = self._end_ns
            self._epochs.append(EpochSpan(record.number, self._epoch_begin_ns, None))
        elif isinstance(record, EpochEndLine) and self._epochs and self._epochs[-1].end_ns is None:
            last = self._epochs[-1]
            self._epochs[-1] = EpochSpan(last.number, last.begin_ns, self._end_ns)

    @property
    def sums(self) -> RunSums | None:
        """The sums of the run; None of a file without a begin."""
        return self._replay.sums

    def series(self) -> RankSeries | None:
        """Return what was read; None of a file without a begin."""
        self._replay.end()
        if self._replay.sums is None:
            return None
        if self._first_unknown < len(self._stretches):  # few samples: too wide an interval is the smaller mistake
            stats = self._machine.stats(has_growth=False)
            if stats is not None:
                self._know_loss(cpu_loss(replace(stats, samples=max(stats.samples, SAMPLES_NEEDED))).to_others)
            elif self._first_unknown:
                self._know_loss(self._stretches[self._first_unknown - 1].lost or 0.0)
        sections, lines_ns = self._replay.sums.time_of_lines()
        return RankSeries(
            *self._who,
            self._replay.sums.run.begin_ns,
            tuple(self._stretches),
            tuple(self._epochs),
            {name: section.parent for name, section in sections.items() if section.parent},
            lines_ns,
            tuple(self._recorded[number] for number in sorted(self._recorded)),
            {name: each.after_s / (each.self_s - each.before_s) for name, each in sections.items() if each.after_s},
            self._sources,
        )

    def _add_interval(self, record: IntervalRecord) -> None:
        outside_ns = sum(
            section.self_ns
            for given, section in record.sections.items()
            if (name := self._name(given)) == PROFILER or name.partition(WITHIN)[0] in OUTSIDE_STEPS_SECTIONS
        )
        levels = record.machine.levels if record.machine is not None else {}
        self._stretches.append(
            Stretch(
                record.begin_ns,
                record.end_ns,
                record.first_step,
                array("q", record.step_ns),
                tuple(record.slowed_by_capture),
                *record.blocks(self._name),
                outside_ns,
                {printable(key): level[1] / level[0] for key, level in levels.items() if level[0] > 0},
                record.loop_begin_ns,
                self._epoch_begin_ns,
                None if record.samples is None or not record.step_ns else record.samples + self._fetched,
            )
        )
        self._epoch_begin_ns, self._end_ns = None, record.end_ns
        self._fetched = 0 if record.step_ns else self._fetched + (record.samples or 0)
        if record.machine is not None:
            self._machine.add(machine_of(record.machine))
        if self._machine.samples >= SAMPLES_NEEDED:
            self._know_loss(cpu_loss(self._machine.stats(has_growth=False)).to_others)

    def _know_loss(self, lost: float) -> None:
        """Say of the stretches since the last time how much was lost to others: one alone may have too few samples."""
        latest = self._stretches[self._first_unknown :]
        self._stretches[self._first_unknown :] = [replace(stretch, lost=lost) for stretch in latest]
        self._machine, self._first_unknown = MachineSums(), len(self._stretches)

    def _name(self, given: str) -> str:
        if given == NO_SECTION:
            return OTHER
        names = self._replay.names
        return names.names[names.id_of(given)]
