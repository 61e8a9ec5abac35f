"""Reads a run while it is written: each look reads what was added since the last one, and never more than a part."""

import os
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from training_profiler.base.errors import RunFolderError
from training_profiler.base.text import printable
from training_profiler.base.units import BYTES_PER_GIB, BYTES_PER_MIB, NS_PER_S
from training_profiler.model.bounds import MOST_JOURNAL_BYTES, MOST_LINE_BYTES
from training_profiler.model.interval import IntervalRecord
from training_profiler.model.snapshot import OTHER, PROFILER, Snapshot
from training_profiler.safety.files import Lines, may_follow, open_file
from training_profiler.statistics.trend import Point, Series
from training_profiler.storage.journal_discovery import JournalFile
from training_profiler.storage.replay import Replay
from training_profiler.storage.run_reader import ENDED, STATES, find_attempt, with_ranks

MOST_A_LOOK: Final = 8 * BYTES_PER_MIB
KEPT: Final = 256  # bytes that were read last


class Recent:
    """The last steps of a run, and its step time since the begin in bounded memory."""

    def __init__(self) -> None:
        self.steps = 0  # in the last interval that has any
        self.step_s = 0.0  # their mean
        self.shares: dict[str, float] = {}  # of the time of that interval, by section
        self._over_steps = Series()

    def add(self, record: IntervalRecord) -> None:
        """Add the next interval."""
        if not record.step_ns:
            return
        for number, step_ns in enumerate(record.step_ns, start=record.first_step + 1):
            self._over_steps.add(number, step_ns / NS_PER_S)
        self.steps = len(record.step_ns)
        self.step_s = sum(record.step_ns) / self.steps / NS_PER_S
        whole_ns = max(1, record.end_ns - record.begin_ns)
        self.shares = {
            printable(name) or OTHER: section.self_ns / whole_ns for name, section in record.sections.items()
        }
        self.shares.pop(PROFILER, None)

    @property
    def over_steps(self) -> list[Point]:
        """Consecutive steps: their count, the sum of their numbers, and their time in s."""
        return self._over_steps.points


@dataclass(frozen=True, slots=True)
class Look:
    """A run as it was seen at one moment."""

    snapshot: Snapshot
    recent: Recent
    state: str  # running, ended, killed or unknown
    attempt: int
    written_s_ago: float  # by the clocks of this machine and of the machine that writes
    left_bytes: int  # of the journal, to be read in the next looks
    began_again: bool  # the journal was replaced or has become shorter, and was read from its begin


class LiveRun:
    """A run that is looked at again and again. Nothing is kept open, and nothing is written.

    By default, the last attempt of a restarted training counts, also if it begins later. The clock is in s since 1970.
    """

    def __init__(self, folder: Path, attempt: int | None = None, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._attempt = attempt
        self._clock = clock
        self._journal: _GrowingJournal | None = None

    def look(self, to_end: bool = False) -> Look:
        """Return the run as it is now, with a part of what was added since the last look, or all of it.

        Raises:
            RunFolderError: it cannot be read, or not yet.
        """
        found = find_attempt(self.folder, self._attempt)
        of_attempt = [journal for journal in found.of_attempt if not journal.problem]
        if not of_attempt:
            first = found.of_attempt[0]
            raise RunFolderError(f"{first.path} {first.problem}")
        primary = of_attempt[0]
        if self._journal is None or self._journal.found.process != primary.process:
            self._journal = _GrowingJournal(primary)
        journal = self._journal
        began_again = journal.read_on()
        while to_end and journal.left_bytes:
            journal.read_on()
        is_alive = primary.is_running
        replay, recent = journal.as_of_now(is_alive is not True)
        if replay.has_failed:
            raise RunFolderError(f"{primary.path} holds a line that is not a journal's: {replay.problem}")
        return Look(
            with_ranks(replay.snapshot(self.folder, primary), primary, found),
            recent,
            ENDED if replay.end_line else STATES[is_alive],
            primary.attempt,
            max(0.0, self._clock() - journal.written_s),
            journal.left_bytes,
            began_again,
        )


class _GrowingJournal:
    """One journal, as far as it was read."""

    def __init__(self, found: JournalFile) -> None:
        self.found = found
        self.written_s = 0.0  # last change of the file
        self.left_bytes = 0
        self._begin()

    def _begin(self) -> None:
        self._recent = Recent()
        self._replay = Replay(self._recent.add)
        self._file: tuple[int, int] | None = None
        self._at = 0
        self._last = b""  # read before that place, to notice another content
        self._lines = Lines(MOST_LINE_BYTES)

    def read_on(self) -> bool:
        """Read what was added, or a part of it; return whether that began again at the begin of the file."""
        path = self.found.path
        try:
            with open_file(path, follow=may_follow(path)) as file:
                status = os.fstat(file.fileno())
                if status.st_size > MOST_JOURNAL_BYTES:
                    raise RunFolderError(f"{path} is larger than {MOST_JOURNAL_BYTES / BYTES_PER_GIB:g} GiB")
                # Whether this is the file of the last look, with what was read then.
                continues = (status.st_dev, status.st_ino) == self._file and status.st_size >= self._at
                if continues and self._at:
                    file.seek(self._at - len(self._last))
                    continues = file.read(len(self._last)) == self._last
                begins_again = self._at > 0 and not continues
                if begins_again:
                    self._begin()
                self._file = status.st_dev, status.st_ino
                file.seek(self._at)
                data = file.read(MOST_A_LOOK)
            for line in self._lines.cut(data):
                self._replay.add(line)
        except OSError as error:
            raise RunFolderError(f"{path} cannot be read ({error.strerror})") from None
        self._at += len(data)
        self._last = (self._last + data)[-KEPT:]
        self.written_s, self.left_bytes = status.st_mtime, max(0, status.st_size - self._at)
        return begins_again

    def as_of_now(self, with_torn_line: bool) -> tuple[Replay, Recent]:
        """Return the figures with what the next lines may cover again."""
        replay, recent = deepcopy((self._replay, self._recent))
        if with_torn_line and self._lines.rest and not self.left_bytes:
            replay.add(self._lines.rest)
        replay.end()
        return replay, recent
