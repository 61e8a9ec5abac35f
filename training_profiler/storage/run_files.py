"""All files of the run under way on this rank, opened when first written to."""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from training_profiler.recording.section_names import SectionNames
from training_profiler.settings import Settings
from training_profiler.snapshot.ranks import AttemptStats, RankId
from training_profiler.snapshot.snapshot import Health
from training_profiler.storage.journal import Journal
from training_profiler.storage.journal_discovery import read_begin
from training_profiler.storage.launch import this_launch
from training_profiler.storage.run_folder import (
    META,
    OWN_NAME,
    REPORT_DATA,
    REPORT_TEXT,
    describe_process,
    describe_run,
    is_plain_name,
    journal_name,
    make_folder,
    make_run_folder,
    write_json,
)
from training_profiler.storage.run_lookup import attempts_in, run_of_rank, runs_of
from training_profiler.units import NS_PER_S

# For a run folder on this disk, where nobody has told its name: after so long, then each time after twice as long.
FIRST_LOOK_NS: Final = 2 * NS_PER_S
LAST_LOOK_NS: Final = 64 * NS_PER_S
MOST_JOURNALS: Final = 100  # of one rank in one attempt


class RunFiles:
    """Folder, meta.json, journal and final report of one run.

    Rank 0 makes the folder, or goes on in the one of the attempt before. Other ranks go into the folder of
    ``run_name`` as soon as that is known, which is what rank 0 has told; till then their journal keeps its lines.

    Args:
        begin_ns: when the run began, by the recorder's clock.
        clock: a clock in ns, for what is done now and then.

    Raises:
        OSError: a file cannot be made or written.
    """

    def __init__(
        self,
        settings: Settings,
        names: SectionNames,
        begin_ns: int,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.settings = settings
        self.folder: Path | None = None
        self.run_name: str | None = None
        self.attempts: tuple[AttemptStats, ...] = ()  # those before this one; rank 0 knows them
        self._names = names
        self._begin_ns = begin_ns
        self._wall_ns = time.time_ns() - (time.perf_counter_ns() - begin_ns)
        self._clock = clock
        self._launch = this_launch(settings.launch)
        self._who = RankId(settings.rank, attempt=settings.launch.attempt)
        self._parent: Path | None = None
        self._journal: Journal | None = None
        self._next_look_ns, self._look_every_ns = 0, FIRST_LOOK_NS

    def reconfigure(self, settings: Settings) -> None:
        """Go on with other settings."""
        self.settings = settings

    def open(self, who: RankId, run_name: str | None = None) -> Journal:
        """Return the journal of rank ``who``, making folder and files where they are not there yet.

        Args:
            who: the rank that this process is by now.
            run_name: name of the run's folder as rank 0 sent it; None as long as it is unknown.
        """
        self.run_name = run_name or self.run_name
        if self._journal is None:
            self._who = who
            self._parent = Path(self.settings.dir).absolute()  # the program may go to another folder
            self._journal = Journal(None, who.rank, self._names, self._begin_ns, self.settings.warmup)
            if who.rank == 0:
                self._settle(self._journal, self._go_on(self._parent) or self._begin(self._parent))
        if self._journal.is_held:
            self._who = who
            folder = self._told_folder() or self._folder_seen()
            if folder is not None:
                self._join(self._journal, folder)
        return self._journal

    def write_report(self, text: str, data: dict[str, Any]) -> None:
        """Write the final report as text and as data; rank 0 does."""
        self.open(self._who)
        if self.folder is not None and self._who.rank == 0:
            (self.folder / REPORT_TEXT).write_text(text.lstrip("\n"), encoding="utf-8", errors="backslashreplace")
            write_json(self.folder / REPORT_DATA, data)

    def close(self, health: Health, ended_by: str | None) -> None:
        """Append how the run ended, and close the journal; a rank that has heard of no folder makes its own."""
        if self._journal is None and self._who.rank:
            return
        self._next_look_ns = 0
        journal = self.open(self._who)
        if journal.is_worth_a_folder and self._parent is not None:
            folder = make_run_folder(self._parent, OWN_NAME.format(rank=self._who.rank))
            write_json(folder / META, {**describe_process(self.settings), **self._identity()})
            self._settle(journal, folder)
        journal.close(health, ended_by)

    def _begin(self, parent: Path) -> Path:
        folder = make_run_folder(parent)
        attempts = [self._attempt()]
        write_json(folder / META, {**describe_run(self.settings), **self._identity(), "attempts": attempts})
        return folder

    def _go_on(self, parent: Path) -> Path | None:
        """Return the folder of the attempts before this one; None where there were none, or it is not here."""
        if not self._who.attempt:
            return None
        for folder, meta, last in runs_of(self._launch, parent):
            if last.number >= self._who.attempt:  # the launcher has come to this number before
                return None
            for name in (REPORT_TEXT, REPORT_DATA):
                path = folder / name
                if path.exists():
                    path.replace(path.with_stem(f"{path.stem}-attempt{last.number}"))
            write_json(folder / META, {**meta, "attempts": [*meta["attempts"], self._attempt()]})
            self.attempts = attempts_in(folder, before=self._who.attempt)
            return folder
        return None

    def _told_folder(self) -> Path | None:
        if self._parent is None or self.run_name is None or not is_plain_name(self.run_name):
            return None
        folder = self._parent / self.run_name
        # A process that profiles twice hears at first what it was told the first time.
        return None if self._wrote(folder / journal_name(self._who.rank, self._who.attempt)) else folder

    def _wrote(self, path: Path) -> bool:
        begin = read_begin(path)
        return begin is not None and (begin.get("pid"), begin.get("host")) == (os.getpid(), socket.gethostname())

    def _folder_seen(self) -> Path | None:
        now_ns = self._clock()
        if self._parent is None or now_ns < self._next_look_ns:
            return None
        self._next_look_ns = now_ns + self._look_every_ns
        self._look_every_ns = min(LAST_LOOK_NS, 2 * self._look_every_ns)
        return run_of_rank(self._who, self._wall_ns, self._launch, self._parent)

    def _join(self, journal: Journal, folder: Path) -> None:
        if make_folder(folder):  # rank 0 is on another machine
            about = {**describe_process(self.settings), **self._identity(), "run": folder.name}
            write_json(folder / f"meta-rank{self._who.rank}.json", about)
        self._settle(journal, folder)

    def _settle(self, journal: Journal, folder: Path) -> None:
        path = self._new_journal(folder)
        told = {"run": folder.name, "pid": os.getpid(), "host": socket.gethostname(), "wall_ns": self._wall_ns}
        journal.settle(path, {**told, "rank": self._who.rank, **self._identity()})
        self.folder = folder

    def _new_journal(self, folder: Path) -> Path:
        """Return a new file: what another process has written is its own."""
        for number in range(1, MOST_JOURNALS):
            path = folder / journal_name(self._who.rank, self._who.attempt, number)
            try:
                path.open("xb").close()
            except FileExistsError:
                continue
            return path
        raise FileExistsError(f"{folder} holds {MOST_JOURNALS - 1} journals of {self._who}")

    def _identity(self) -> dict[str, Any]:
        return {"who": asdict(self._who), "launched": self._launch._asdict()}

    def _attempt(self) -> dict[str, Any]:
        return {
            "number": self._who.attempt,
            "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "begin_wall_ns": self._wall_ns,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "world_size": self._who.world_size,
        }
