"""Where finished figures go: terminal, run folder, trackers. On the primary rank alone; none can hurt the training."""

import multiprocessing
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from training_profiler.diagnosis import Finding, epoch_warnings
from training_profiler.ranks.channel import RankChannel
from training_profiler.ranks.exchange import update_to_bytes
from training_profiler.ranks.identity import Rank
from training_profiler.ranks.summary import RankSummary
from training_profiler.recording.section_names import SectionNames
from training_profiler.reports.console import render_epoch, render_final, render_periodic
from training_profiler.reports.report_json import as_data
from training_profiler.runtime.health import ProfilerHealth
from training_profiler.settings import Settings
from training_profiler.sinks.console import Console
from training_profiler.sinks.metrics import epoch_metrics, interval_metrics, loader_metrics
from training_profiler.sinks.trackers import PATIENCE_S, Trackers
from training_profiler.snapshot.ranks import RankId
from training_profiler.snapshot.snapshot import AttemptStats, EpochStats, Health, LoaderStats, Snapshot
from training_profiler.storage.journal import Journal
from training_profiler.storage.run_files import RunFiles

LEAD: Final = 2  # steps: in the first it is told, in the second rank 0 reads it
A_MOMENT_S: Final = 0.5  # for trackers before the final summary, which tells how they fared


class Outputs:
    """All that one session prints and writes.

    ``last_row`` sends the tracker of a name what was measured since its last row.
    """

    def __init__(
        self,
        settings: Settings,
        names: SectionNames,
        begin_ns: int,
        profiler_health: ProfilerHealth,
        last_row: Callable[[str], None],
    ) -> None:
        launch = settings.launch
        self.rank = Rank(
            RankId(
                settings.rank,
                (launch.is_torchrun and launch.world_size) or 1,  # told by others, a process group has to confirm it
                socket.gethostname(),
                launch.node,
                launch.local_rank,
                launch.attempt,
            ),
            is_certain=launch.is_torchrun or multiprocessing.parent_process() is None,
        )
        self.channel = RankChannel(self.rank, settings.rank_wait_s, launch.has_agent_store, profiler_health.guard)
        self._settings = settings
        self._health_of_profiler = profiler_health
        self._console = Console(settings.stream)
        self._files = RunFiles(settings, names, begin_ns)
        self._trackers = Trackers(profiler_health.guard, last_row)
        self._trackers.prepare(settings.sinks)

    @property
    def run_folder(self) -> str | None:
        """The run's folder; None where it has none yet."""
        return None if self._files.folder is None else str(self._files.folder)

    @property
    def attempts(self) -> tuple[AttemptStats, ...]:
        """The attempts before this one, of a training that was started anew."""
        return self._files.attempts

    def reconfigure(self, settings: Settings) -> None:
        """Go on with other settings."""
        self._settings = self._files.settings = settings
        self.channel.wait_s = settings.rank_wait_s
        self._console = Console(settings.stream)
        self._trackers.prepare(settings.sinks)

    def open(self) -> None:
        """Make the run folder and start the trackers; later, in a process that does not know its rank yet."""
        self.rank.detect_process_group()
        if self.rank.is_certain:
            self.journal(lambda journal: None)
            self._start_trackers()

    def begin_training(self) -> None:
        """Note which rank this is and start the trackers: a training step is about to end."""
        self.rank.detect_process_group()
        if self.rank.is_one_of_many():  # the others want to know the folder's name
            self.journal(lambda journal: None)
            self._health_of_profiler.guard("ranks", self.channel.begin)
        self._start_trackers()

    def journal(self, work: Callable[[Journal], None]) -> None:
        """Do ``work`` with the journal of this rank."""
        is_primary = self.rank.is_primary()
        self._health_of_profiler.guard("run folder", lambda: work(self._open_files()))
        if is_primary:
            self._trackers.look()

    def tell(self, sums: RankSummary) -> None:
        """Tell the other ranks what this one has measured so far."""
        told = sums.to_data()
        self.journal(lambda journal: journal.write_rank(told))
        if not sums.is_final:  # at the end of the interpreter no thread may be started any more
            self._health_of_profiler.guard("ranks", self.channel.begin)
        if not self.rank.is_primary():
            self._health_of_profiler.guard("ranks", lambda: self.channel.tell(update_to_bytes(told), sums.is_final))

    def periodic(self, snapshot: Snapshot) -> None:
        """Report on an interval; on the primary rank."""
        self._print(render_periodic(snapshot, self._settings.format))
        self.interval_row(snapshot)

    def interval_row(self, snapshot: Snapshot, only: str | None = None) -> None:
        """Send the metrics of an interval to the trackers, or to one of them."""
        if (
            snapshot.step is not None or not snapshot.steps
        ):  # what lies between the last step and the end is no interval
            send = self._trackers.send
            self._health_of_profiler.guard(
                "trackers", lambda: send(snapshot.steps, lambda: interval_metrics(snapshot), only)
            )

    def loader_row(self, step: int, loaders: Sequence[LoaderStats]) -> None:
        """Send the metrics of data loaders, as they are after ``step`` optimizer steps, to trackers that can follow."""
        send = self._trackers.send
        self._health_of_profiler.guard(
            "trackers", lambda: send(step, lambda: loader_metrics(loaders), is_frequent=True)
        )

    def epoch(self, stats: EpochStats, step: int) -> None:
        """Report on an epoch that ended after ``step`` optimizer steps."""
        self._print(render_epoch(stats, epoch_warnings(stats, self._settings.thresholds)))
        self._health_of_profiler.guard("trackers", lambda: self._trackers.send(step, lambda: epoch_metrics(stats)))

    def final(self, stats: Callable[[], Snapshot], findings: Sequence[Finding], health: Callable[[], Health]) -> None:
        """Report on the run, which is over; ``stats`` are asked for again after printing, which may have failed."""
        self._trackers.end()
        self._trackers.wait(A_MOMENT_S, is_last=False)
        snapshot = stats()
        self._print(render_final(snapshot, findings, self._settings.format, self._settings.checklist))
        self._trackers.wait(PATIENCE_S, is_last=True)
        snapshot = stats()
        text = render_final(snapshot, findings, self._settings.format, self._settings.checklist)
        write = self._files.write_report
        self._health_of_profiler.guard("run folder", lambda: write(text, as_data(snapshot, findings)))
        self.close(health, snapshot.ended_by)

    def close(self, health: Callable[[], Health], ended_by: str | None) -> None:
        """Append how the run ended, and close the journal; where no report is made, that is all."""
        self._health_of_profiler.guard("run folder", lambda: self._files.close(health(), ended_by))
        self._share_folder()

    def notes(self) -> list[str]:
        """Return sentences on what did not reach a tracker."""
        return self._trackers.notes()

    def abandon(self) -> None:
        """Forget trackers and board: in a forked child they are the parent's."""
        self._trackers.abandon()
        self.channel.abandon()

    def lead(self) -> int:
        """Return how many steps before rank 0 this rank is to tell, so that rank 0 has it when it reports."""
        return LEAD if self.rank.is_one_of_many() and not self.rank.is_primary() else 0

    def is_primary(self) -> bool:
        """Return whether this is the rank that reports."""
        return self.rank.is_primary()

    def say(self, line: str) -> None:
        """Print one line between reports."""
        self._print(line + "\n")

    def _start_trackers(self) -> None:
        if self.rank.is_primary():
            self._health_of_profiler.guard(
                "trackers", lambda: self._trackers.choose(self._settings.sinks, self._folder)
            )
            self._trackers.look()

    def _open_files(self) -> Journal:
        """Return the journal; what the ranks are to know of the run's folder goes to them, or comes from them."""
        files, channel = self._files, self.channel
        if channel.run_name is not None:
            files.run_name = channel.run_name
        journal = files.open(self.rank.who)
        self._share_folder()
        return journal

    def _share_folder(self) -> None:
        folder = self._files.folder
        if folder is not None and self.rank.is_one_of_many():
            self.channel.folder = folder
            if self.rank.is_primary():
                self.channel.name_run(folder.name)

    def _folder(self) -> Path | None:
        self.journal(lambda journal: None)
        return self._files.folder

    def _print(self, text: str) -> None:
        if self.rank.is_primary():
            self._health_of_profiler.guard("console", lambda: self._console.print(text))
