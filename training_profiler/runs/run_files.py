"""All files of the run under way, opened when first written to."""

from pathlib import Path
from typing import Any

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
        self._names = names
        self._begin_ns = begin_ns
        self._journal: Journal | None = None

    def open(self) -> Journal:
        """Return the journal, making folder and files where they are not there yet."""
        if self._journal is None:
            folder = make_run_folder(self.settings.dir)
            write_json(folder / META, describe_run(self.settings))
            path = folder / journal_name(self.settings.rank)
            self._journal = Journal(path, self.settings.rank, self._names, self._begin_ns, self.settings.warmup)
            self.folder = folder
        return self._journal

    def write_report(self, text: str, data: dict[str, Any]) -> None:
        """Write the final report as text and as data."""
        self.open()
        if self.folder is not None:
            (self.folder / REPORT_TEXT).write_text(text.lstrip("\n"), encoding="utf-8", errors="backslashreplace")
            write_json(self.folder / REPORT_DATA, data)

    def close(self, health: Health, ended_by: str | None) -> None:
        """Append how the run ended, and close the journal."""
        self.open().close(health, ended_by)
