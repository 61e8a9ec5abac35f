"""Where finished figures go: the terminal, the run folder. On the primary rank alone; none can hurt the training."""

from collections.abc import Callable, Sequence

from training_profiler.diagnosis import Insight, epoch_warnings
from training_profiler.distributed.rank import Rank
from training_profiler.record.names import SectionNames
from training_profiler.reports.console import render_epoch, render_final, render_periodic
from training_profiler.reports.contract import as_data
from training_profiler.runs.journal import Journal
from training_profiler.runs.run_files import RunFiles
from training_profiler.settings import Settings
from training_profiler.sinks.console import Console
from training_profiler.snapshot import EpochFigures, Health, LoaderFigures, Snapshot
from training_profiler.upkeep import Upkeep


class Outlets:
    """All that one session prints and writes."""

    def __init__(self, settings: Settings, names: SectionNames, begin_ns: int, upkeep: Upkeep) -> None:
        self.rank = Rank(settings.rank)
        self._settings = settings
        self._upkeep = upkeep
        self._console = Console(settings.stream)
        self._files = RunFiles(settings, names, begin_ns)

    @property
    def run_folder(self) -> str | None:
        """The run's folder; None where it has none yet."""
        return None if self._files.folder is None else str(self._files.folder)

    def adopt(self, settings: Settings) -> None:
        """Go on with other settings."""
        self._settings = self._files.settings = settings
        self._console = Console(settings.stream)

    def open(self) -> None:
        """Make the run folder."""
        self.journal(lambda journal: None)

    def journal(self, work: Callable[[Journal], None]) -> None:
        """Do ``work`` with the journal."""
        if self.rank.is_primary():
            self._upkeep.guard("run folder", lambda: work(self._files.open()))

    def periodic(self, snapshot: Snapshot) -> None:
        """Report on an interval."""
        self._print(render_periodic(snapshot, self._settings.format))

    def epoch(self, figures: EpochFigures) -> None:
        """Report on an epoch."""
        self._print(render_epoch(figures, epoch_warnings(figures, self._settings.thresholds)))

    def loader_row(self, step: int, loaders: Sequence[LoaderFigures]) -> None:
        """Hand on what the batches of each loader cost up to the end of step ``step``, since the row before."""

    def final(self, figures: Callable[[], Snapshot], insights: Sequence[Insight], health: Callable[[], Health]) -> None:
        """Report on the run, which is over; ``figures`` are asked for again after printing, which may have failed."""
        snapshot = figures()
        self._print(render_final(snapshot, insights, self._settings.format, self._settings.checklist))
        snapshot = figures()
        text = render_final(snapshot, insights, self._settings.format, self._settings.checklist)
        if self.rank.is_primary():
            write = self._files.write_report
            self._upkeep.guard("run folder", lambda: write(text, as_data(snapshot, insights)))
            self._upkeep.guard("run folder", lambda: self._files.close(health(), snapshot.ended_by))

    def _print(self, text: str) -> None:
        if self.rank.is_primary():
            self._upkeep.guard("console", lambda: self._console.print(text))
