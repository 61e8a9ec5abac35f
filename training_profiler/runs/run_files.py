"""All files of the run under way, opened when first written to."""

import json
import os
from pathlib import Path
from typing import Any

from training_profiler.rank_figures import RankId
from training_profiler.record.names import SectionNames
from training_profiler.runs.folder import (
    META,
    REPORT_DATA,
    REPORT_TEXT,
    describe_run,
    journal_name,
    make_run_folder,
    write_json,
)
from training_profiler.runs.journal import Journal
from training_profiler.settings import Settings
from training_profiler.snapshot import Health


class RunFiles:
    """Folder, meta.json, journal and final report of one run.

    Raises:
        OSError: a file cannot be made or written.
    """

    def __init__(self, settings: Settings, names: SectionNames, begin_ns: int) -> None:
        self.settings = settings
        self.folder: Path | None = None
        self.run_name: str | None = None
        self._names = names
        self._begin_ns = begin_ns
        self._journal: Journal | None = None
        self._who = RankId()

    def open(self, who: RankId) -> Journal:
        """Return the journal, making folder and files where they are not there yet."""
        self._who = who
        if self._journal is None:
            if who.rank == 0:
                self.folder = make_run_folder(self.settings.dir)
                write_json(self.folder / META, {**describe_run(self.settings), "parent": os.getppid()})
                self._open_journal(self.folder)
            else:
                self._journal = _Held(self.settings.rank, self._names, self._begin_ns, self.settings.warmup)
        if isinstance(self._journal, _Held) and self._journal.path is None:
            folder = self._found() if self.run_name is None else Path(self.settings.dir, self.run_name).absolute()
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                self.folder = folder
                self._journal.settle(folder / journal_name(who.rank))
        assert self._journal is not None
        return self._journal

    def _open_journal(self, folder: Path) -> None:
        path = folder / journal_name(self._who.rank)
        self._journal = Journal(path, self._who.rank, self._names, self._begin_ns, self.settings.warmup)

    def _found(self) -> Path | None:
        for meta in sorted(Path(self.settings.dir).glob(f"*/{META}"), reverse=True):
            if json.loads(meta.read_text()).get("parent") == os.getppid():
                return meta.parent.absolute()
        return None

    def write_report(self, text: str, data: dict[str, Any]) -> None:
        """Write the final report as text and as data."""
        self.open(self._who)
        if self.folder is not None:
            (self.folder / REPORT_TEXT).write_text(text.lstrip("\n"), encoding="utf-8", errors="backslashreplace")
            write_json(self.folder / REPORT_DATA, data)

    def close(self, health: Health, ended_by: str | None) -> None:
        """Append how the run ended, and close the journal."""
        self.open(self._who).close(health, ended_by)


class _Held(Journal):
    """A journal whose file is not known yet."""

    def __init__(self, rank: int, names: SectionNames, begin_ns: int, warmup: int | None) -> None:
        self.path: Path | None = None
        self._begin = (rank, names, begin_ns, warmup)
        self._names = names
        self._lines: list[dict[str, Any]] = []
        self._descriptor = None

    def settle(self, path: Path) -> None:
        self.path = path
        super().__init__(path, *self._begin)
        lines, self._lines = self._lines, []
        for line in lines:
            super()._write(**line)

    def _write(self, **line: Any) -> None:
        if self.path is None:
            self._lines.append(line)
        else:
            super()._write(**line)
