"""The files of a running run on this rank, opened when first written to."""

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from training_profiler.base.sections import SectionNames
from training_profiler.base.units import NS_PER_S
from training_profiler.model.ranks import AttemptStats, RankId
from training_profiler.model.snapshot import Health
from training_profiler.safety.files import (
    OwnFile,
    is_folder,
    is_in_place,
    keep_open,
    let_go,
    remove,
    rename_file,
    rename_open,
)
from training_profiler.settings.settings import Settings, launch_id
from training_profiler.storage.journal import Journal, Line, line_of
from training_profiler.storage.journal_discovery import (
    LaunchId,
    attempts_before,
    count_in,
    find_journals,
    is_same_launch,
    launch_from_data,
    read_head,
    select_journals,
    this_launch,
)
from training_profiler.storage.journal_lines import SourcesLine
from training_profiler.storage.run_folder import (
    META,
    OWN_NAME,
    PAGE,
    REPORT_DATA,
    REPORT_TEXT,
    command_words,
    describe_git,
    describe_process,
    is_own_name,
    is_plain_name,
    journal_name,
    make_folder,
    make_run_folder,
    read_meta,
    renamed_run,
    run_ending,
    write_json,
    write_text,
)
from training_profiler.storage.source_lines import DigestBook

# Search for the run folder on this disk while rank 0 has not sent its name: the interval doubles each time.
FIRST_SEARCH_NS: Final = 2 * NS_PER_S
LAST_SEARCH_NS: Final = 64 * NS_PER_S
MOST_JOURNALS: Final = 100  # of one rank and attempt
ELSEWHERE: Final = "the run goes on in the folder that it opened first"


class RunFiles:
    """Folder, meta.json, journal and final report of one run. Every method may wait for a disk, and for git.

    Rank 0 makes the folder, or continues in the folder of the previous attempt. Other ranks use the folder
    ``run_name``, which rank 0 sends; until they know it their journal keeps its lines in memory.

    Args:
        begin_ns: begin of the run on the recorder's clock.
        clock: a clock in ns, for occasional work.

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
        self.attempts: tuple[AttemptStats, ...] = ()  # earlier attempts; only rank 0 knows them
        self.command = ""  # of the run, without secrets
        self._names = names
        self._begin_ns = begin_ns
        self._wall_ns = time.time_ns() - (time.perf_counter_ns() - begin_ns)
        self._clock = clock
        self._launch = this_launch(settings.launch)
        self._who = RankId(settings.rank, attempt=settings.launch.attempt)
        try:
            self._begin_folder = os.getcwd()  # the program may change its working directory
        except OSError:  # it was removed
            self._begin_folder = os.sep
        self._script = os.path.join(self._begin_folder, sys.argv[0] if sys.argv else "")
        self._digests = DigestBook(self._begin_folder, command_words(), self._wall_ns)
        self._parent: Path | None = None
        self._journal: Journal | None = None
        self._made: list[Path] = []  # folder and files that this process has made
        self._needs_meta = self._needs_git = self._is_elsewhere = False
        self._next_search_ns, self._search_every_ns = 0, FIRST_SEARCH_NS

    def reconfigure(self, settings: Settings) -> None:
        """Continue with other settings; the run's folder moves to another parent if it was made here."""
        is_renamed = settings.name != self.settings.name
        self.settings = settings
        parent = self._chosen_parent()
        if self._parent is not None and (is_renamed or parent != self._parent):
            self._move(parent, is_renamed)

    def _chosen_parent(self) -> Path:
        return Path(self._begin_folder, self.settings.dir)

    def _move(self, parent: Path, is_renamed: bool) -> None:
        before, self._parent = self.folder, parent
        if before is None:
            return
        after = parent / (renamed_run(before.name, self.settings.name) if is_renamed else before.name)
        if before not in self._made or after.exists() or not is_in_place(before):
            self._parent = before.parent
            return
        parent.mkdir(parents=True, exist_ok=True)
        rename_open(before, after)
        with suppress(OSError):  # it holds other runs
            if before.parent in self._made:
                before.parent.rmdir()
        self.folder = after
        self._made = [after / path.relative_to(before) for path in self._made if path != before.parent]
        if self._journal is not None and (file := self._journal.file) is not None:
            file.moved(after / file.path.name)

    def open(self, who: RankId, run_name: str | None = None) -> Journal:
        """Return the journal of rank ``who``; makes folder and files at the first call. Rank 0 sent ``run_name``."""
        self.run_name = run_name or self.run_name
        self._is_elsewhere |= self.folder is not None and not is_in_place(self.folder)
        if self._journal is None:
            self._who = who
            self._parent = self._chosen_parent()
            self._journal = Journal(None, who.rank, self._names, self._begin_ns, self.settings.warmup)
            if who.rank == 0:
                self._open_journal(self._journal, self._continue_run(self._parent) or self._begin(self._parent))
                if self._needs_meta and self.folder is not None:
                    # Once the journal is there: a description takes far more calls, and the GIL for each.
                    self._needs_meta, self._needs_git = False, True
                    meta = {**self._describe(), **self._identity(), "attempts": [self._attempt()]}
                    self._write_meta(self.folder, meta)
        if self._journal.buffer is not None:
            self._who = who
            folder = self._announced_folder() or self._folder_on_disk()
            if folder is not None:
                is_new = make_folder(folder)  # rank 0 is on another machine
                keep_open(folder)
                if is_new:
                    about = {**self._describe(), **self._identity(), "run": folder.name}
                    write_json(folder / f"meta-rank{self._who.rank}.json", about)
                self._open_journal(self._journal, folder)
        return self._journal

    def write_report(self, text: str, data: dict[str, Any]) -> None:
        """Write the final report as text and as data, on rank 0."""
        self.open(self._who)
        if self.folder is not None and self._who.rank == 0:
            write_text(self.folder / REPORT_TEXT, text.lstrip("\n"))
            write_json(self.folder / REPORT_DATA, data)

    def append(self, line: Line, who: RankId, run_name: str | None) -> None:
        """Append a line to the journal of rank ``who``; see ``open``."""
        journal = self.open(who, run_name)
        journal.append(line)
        if self._who.rank == 0 and (digests := self._digests.new(line.files)):
            journal.append(line_of(SourcesLine(digests)))
        self.add_git()

    def discard(self) -> None:
        """Remove what this process has made: nothing was measured."""
        if self._journal is not None:
            self._journal.discard()
        for path in reversed(self._made):
            with suppress(OSError):  # a folder with files of others stays
                remove(path)
        self.let_go()
        self._made, self.folder = [], None

    def let_go(self) -> None:
        """Keep the folder open no longer: nothing more is written to it."""
        let_go(self.folder)

    def has_run_of_child(self) -> bool:
        """Return whether a child of this process has a run of its own."""
        return has_run_of_child(self._parent or self._chosen_parent(), self.folder, launch_id())

    def notes(self) -> list[str]:
        """Return sentences if the program has closed the journal, or the folder has lost its path."""
        file = None if self._journal is None else self._journal.file
        times = 0 if file is None else file.reopened
        notes = [f"the program closed the journal's descriptor {times} times: it was opened again"] if times else []
        return notes + [f"{self.folder} is another folder now, or gone: {ELSEWHERE}"] * self._is_elsewhere

    def close(self, health: Health, ended_by: str | None) -> None:
        """Append how the run ended, and close the journal; a rank that knows no folder makes its own."""
        if self._journal is None and self._who.rank:
            return
        self._next_search_ns = 0
        journal = self.open(self._who)
        unsaved = () if journal.buffer is None else journal.buffer.lines
        if any(kind == "interval" for kind, _ in unsaved) and self._parent is not None:
            folder = make_run_folder(self._parent, OWN_NAME.format(rank=self._who.rank))
            keep_open(folder)
            self._made.append(folder)
            self._write_meta(folder, {**self._describe(), **self._identity()})
            self._open_journal(journal, folder)
        self.add_git()
        journal.close(health, ended_by)

    def _begin(self, parent: Path) -> Path:
        is_new = not parent.exists()
        try:
            folder = make_run_folder(parent, run_ending(self.settings.name))
        except OSError as error:
            why = f"no folder can be made there ({error.strerror or error}); example: "
            name = "RECTIFIED_FLOW_PROFILE_DIR"
            raise OSError(f"{name} is {self.settings.dir!r}, and {why}{name}=/tmp/runs") from None
        self._made += [*([parent] if is_new else []), folder]
        keep_open(folder)
        self._needs_meta = True
        return folder

    def _describe(self) -> dict[str, Any]:
        about = {**describe_process(self.settings), "folder": self._begin_folder}
        self.command = about["command"]
        return about

    def _write_meta(self, folder: Path, meta: dict[str, Any]) -> None:
        write_json(folder / META, meta)
        self._made.append(folder / META)

    def add_git(self) -> None:
        """Add the commit to meta.json, once the first line is written: git may take seconds."""
        if self._needs_git and self.folder is not None:
            self._needs_git = False
            write_json(self.folder / META, {**read_meta(self.folder), "git": describe_git(self._script)})

    def _continue_run(self, parent: Path) -> Path | None:
        """Return the folder of the earlier attempts; None if there were none, or it is not on this disk."""
        if not self._who.attempt:
            return None
        for folder, meta, (last, _) in runs_of(self._launch, parent):
            if last >= self._who.attempt:  # another launch with the same attempts
                return None
            keep_open(folder)
            for name in map(Path, (REPORT_TEXT, REPORT_DATA, PAGE)):
                with suppress(FileNotFoundError):
                    rename_file(folder / name, f"{name.stem}-attempt{last}{name.suffix}")
            write_json(folder / META, {**meta, "attempts": [*meta["attempts"], self._attempt()]})
            journals, _ = select_journals(find_journals(folder, "rank0"), folder)
            self.attempts = attempts_before(journals, self._who.attempt)
            self.command = str(meta.get("command", ""))
            return folder
        return None

    def _announced_folder(self) -> Path | None:
        if self._parent is None or self.run_name is None or not is_plain_name(self.run_name):
            return None
        folder = self._parent / self.run_name
        # In a process that profiles twice, the name may still be that of the first run.
        with suppress(OSError):
            begin = read_head(folder / journal_name(self._who.rank, self._who.attempt)) or {}
            if (begin.get("pid"), begin.get("host")) == (os.getpid(), socket.gethostname()):
                return None
        return folder

    def _folder_on_disk(self) -> Path | None:
        now_ns = self._clock()
        if self._parent is None or now_ns < self._next_search_ns:
            return None
        self._next_search_ns = now_ns + self._search_every_ns
        self._search_every_ns = min(LAST_SEARCH_NS, 2 * self._search_every_ns)
        return run_of_rank(self._who, self._wall_ns, self._launch, self._parent)

    def _open_journal(self, journal: Journal, folder: Path) -> None:
        for number in range(1, MOST_JOURNALS):  # a new file, never one that another process has written
            path = folder / journal_name(self._who.rank, self._who.attempt, number)
            with suppress(FileExistsError):
                file = OwnFile(path, is_new=True)
                break
        else:
            raise FileExistsError(f"{folder} holds {MOST_JOURNALS - 1} journals of {self._who}")
        self._made.append(file.path)
        identity = {"run": folder.name, "pid": os.getpid(), "host": socket.gethostname(), "wall_ns": self._wall_ns}
        journal.open_file(file, {**identity, "rank": self._who.rank, **self._identity()})
        self.folder = folder

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


NEWEST: Final = 20  # run folders that are searched
APART_NS: Final = 600 * NS_PER_S  # between the begins of two ranks of one run


def runs_of(launch: LaunchId, parent: Path) -> Iterator[tuple[Path, dict[str, Any], tuple[int, int]]]:
    """Yield the run folders of that launch in ``parent``, newest first: folder, meta.json, and the last attempt.

    An attempt is its number, and its begin on the wall clock in ns.
    """
    for folder, meta in _newest(parent):
        rows = meta.get("attempts")
        given = (row for row in (rows if isinstance(rows, list) else ()) if isinstance(row, dict))
        found = ((count_in(row.get("number")), count_in(row.get("begin_wall_ns"))) for row in given)
        attempts = [(number, at_ns) for number, at_ns in found if number is not None and at_ns is not None]
        if attempts and is_same_launch(launch_from_data(meta.get("launched")), launch):
            yield folder, meta, max(attempts)


def _newest(parent: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    try:
        names = sorted((name for name in os.listdir(parent) if name[:8].isdigit()), reverse=True)
    except OSError:
        return
    for folder in (parent / name for name in names[:NEWEST]):
        if is_folder(folder):  # a link could lead anywhere
            yield folder, read_meta(folder)


def run_of_rank(who: RankId, wall_ns: int, launch: LaunchId, parent: Path) -> Path | None:
    """Return the run folder that rank 0 has made in ``parent`` for the run of ``who``; None if unknown.

    ``wall_ns`` is when this rank began.
    """
    for folder, _, (number, began_ns) in runs_of(launch, parent):
        is_of_attempt = number == who.attempt and abs(began_ns - wall_ns) <= APART_NS
        has_journal = (folder / journal_name(who.rank, who.attempt)).exists()
        if is_of_attempt and not has_journal and not is_own_name(folder.name):
            return folder
    return None


def has_run_of_child(parent: Path, own: Path | None, launch: str | None) -> bool:
    """Return whether one of the newest runs in ``parent``, besides ``own``, is that of a child of this process.

    ``launch`` is the id that the processes of this launch share, if it is known.
    """
    for folder, meta in _newest(parent):
        is_same = launch is not None and meta.get("launch") == launch and meta.get("pid") != os.getpid()
        if folder != own and (is_same or launch_from_data(meta.get("launched")).parent_pid == os.getpid()):
            return True
    return False
