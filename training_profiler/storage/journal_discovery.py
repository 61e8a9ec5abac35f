"""Finds the journals in a run folder, written there or copied together, and selects those of one run."""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from training_profiler.base.errors import RunFolderError
from training_profiler.base.text import printable
from training_profiler.base.units import NS_PER_S
from training_profiler.safety.files import NotRegularFileError, is_folder, may_follow
from training_profiler.storage.journal import JOURNAL_SCHEMA
from training_profiler.storage.journal_tail import read_head
from training_profiler.storage.launch import LaunchId, is_running, is_same_launch, is_surely_another, launch_from_data
from training_profiler.storage.run_folder import is_own_name, read_journal_name

MOST_SHOWN: Final = 300  # characters of a path in a message
MOST_NUMBER: Final = 2**62
NO_JOURNAL: Final = "does not begin like a journal; is it a file of the profiler's?"


@dataclass(frozen=True, slots=True)
class JournalFile:
    """A file named like a journal."""

    path: Path
    shown: str  # path below the run folder
    size: int = 0
    rank: int | None = None
    attempt: int = 0
    begin: dict[str, Any] | None = None  # the first line, if it is complete
    problem: str = ""  # why the file cannot be read; follows its name in a message

    @property
    def run(self) -> str | None:
        """The name of the run according to the first line."""
        name = (self.begin or {}).get("run")
        return name if isinstance(name, str) else None

    @property
    def launch(self) -> LaunchId:
        """The launch according to the first line."""
        return launch_from_data((self.begin or {}).get("launched"))

    @property
    def process(self) -> tuple[Any, ...]:
        """Identifies the process that wrote the file."""
        begin = self.begin or {}
        return tuple(str(begin.get(key)) for key in ("host", "pid", "wall_ns", "begin_ns"))

    @property
    def is_running(self) -> bool | None:
        """Whether the process that wrote the file still runs; None if unknown."""
        begin = self.begin or {}
        return is_running(begin.get("host"), begin.get("pid"), self.wall_ns / NS_PER_S)

    @property
    def wall_ns(self) -> int:
        """Begin of the run on the wall clock; 0 if unknown."""
        return _number((self.begin or {}).get("wall_ns")) or 0


class RunJournals(NamedTuple):
    """The journals of one run, one for each rank and attempt, and messages on files that were left out."""

    journals: list[JournalFile]
    left_out: list[str]


class AttemptJournals(NamedTuple):
    """The journals of a run."""

    all: list[JournalFile]
    of_attempt: list[JournalFile]  # of the attempt that was asked for, by rank
    left_out: list[str]


def find_journals(folder: Path, stem: str = "rank") -> list[JournalFile]:
    """Return the files named like journals in ``folder`` and in folders one level below it."""
    below = [entry for entry in _entries(folder) if _is_folder(entry)]
    names = [path for parent in (folder, *sorted(below)) for path in sorted(_entries(parent))]
    return [inspect_journal(path, str(path.relative_to(folder))) for path in names if is_journal(path, stem)]


def find_own_folder_journals(folder: Path, found: Sequence[JournalFile]) -> list[JournalFile]:
    """Return the journals beside ``folder`` of ranks of its launch that ended before they knew its name."""
    first = min((journal for journal in found if journal.run == folder.name), key=_order, default=None)
    if first is None or is_own_name(folder.name):
        return []
    known = {(journal.rank, journal.attempt) for journal in found if not journal.problem}
    nearest: dict[tuple[int | None, int], JournalFile] = {}
    for sibling in sorted(path for path in _entries(folder.parent) if is_own_name(path.name)):
        for path in sorted(_entries(sibling)):
            journal = inspect_journal(path, f"../{sibling.name}/{path.name}") if is_journal(path) else None
            if journal is None or journal.problem or (journal.rank, journal.attempt) in known:
                continue
            other = nearest.get((journal.rank, journal.attempt))
            distance_ns = abs(journal.wall_ns - first.wall_ns)  # a process may profile several runs in sequence
            if is_same_launch(journal.launch, first.launch) and (
                other is None or distance_ns < abs(other.wall_ns - first.wall_ns)
            ):
                nearest[journal.rank, journal.attempt] = journal
    return list(nearest.values())


def is_journal(path: Path, stem: str = "rank") -> bool:
    """Return whether a file is named like a journal."""
    return path.name.startswith(stem) and path.name.endswith(".jsonl")


def read_begin(path: Path) -> dict[str, Any] | None:
    """Return the first line of a journal; None if there is none."""
    try:
        return read_head(path)
    except OSError:
        return None


def select_journals(found: Iterable[JournalFile], folder: Path) -> RunJournals:
    """Return the journals of the run in ``folder``: without copies, and without journals of other runs."""
    left_out: list[str] = []
    belonging = _of_one_run(list(found), folder, left_out)
    by_place: dict[tuple[int | None, int, str], list[JournalFile]] = defaultdict(list)
    for journal in belonging:
        # An unreadable file does not displace another one.
        by_place[journal.rank, journal.attempt, journal.shown if journal.problem else ""].append(journal)
    journals = [_best(same, left_out) for same in by_place.values()]
    return RunJournals(sorted(journals, key=_order), left_out)


def select_attempt(folder: Path, found: list[JournalFile], asked: int | None) -> AttemptJournals:
    """Return the journals of the run in ``folder``, where some were ``found``, and those of one attempt; or the last.

    Raises:
        RunFolderError: there was no such attempt.
    """
    journals, left_out = select_journals(found + find_own_folder_journals(folder, found), folder)
    there = sorted({journal.attempt for journal in [each for each in journals if not each.problem] or journals})
    number = there[-1] if asked is None else asked
    if number not in there:
        held = f"attempt {there[0]} alone" if len(there) == 1 else f"attempts {', '.join(map(str, there))}"
        raise RunFolderError(
            f"{folder} has no attempt {asked}; it has {held}; "
            f"example: training-profiler report {folder} --attempt {there[-1]}"
        )
    return AttemptJournals(journals, [journal for journal in journals if journal.attempt == number], left_out)


def _order(journal: JournalFile) -> tuple[int, float]:
    return journal.attempt, float("inf") if journal.rank is None else journal.rank


def _entries(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder)]
    except OSError:
        return []


def _is_folder(path: Path) -> bool:
    if path.name.endswith(".jsonl"):
        return False
    return is_folder(path) or (may_follow(path) and path.is_dir())


def inspect_journal(path: Path, shown: str) -> JournalFile:
    """Return what the first line of a file says that is named like a journal; ``shown`` is its path in messages."""
    shown = printable(shown, MOST_SHOWN)
    rank, attempt = read_journal_name(path.name) or (None, 0)
    try:
        size = path.stat().st_size
        begin = read_head(path)
    except NotRegularFileError:
        return JournalFile(path, shown, 0, rank, attempt, problem="is not a file")
    except OSError as error:
        return JournalFile(path, shown, 0, rank, attempt, problem=f"cannot be read ({error.strerror})")
    if begin is None:
        return JournalFile(path, shown, size, rank, attempt, problem=NO_JOURNAL)
    if begin.get("schema") != JOURNAL_SCHEMA:
        problem = (
            f"has schema {printable(repr(begin.get('schema')))}, this version reads {JOURNAL_SCHEMA}; "
            f"read it with the version that wrote it (meta.json names it)"
        )
        return JournalFile(path, shown, size, rank, attempt, problem=problem)
    who = begin.get("who")
    stated_attempt = _number(who.get("attempt")) if isinstance(who, dict) else None
    stated_rank = _number(begin.get("rank"))
    return JournalFile(
        path,
        shown,
        size,
        rank if stated_rank is None else stated_rank,
        attempt if stated_attempt is None else stated_attempt,
        begin,
    )


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_NUMBER else None


def _of_one_run(found: Sequence[JournalFile], folder: Path, left_out: list[str]) -> list[JournalFile]:
    names = Counter(journal.run for journal in found if journal.run is not None)
    if not names:
        return list(found)
    with_rank_0 = {journal.run for journal in found if journal.rank == 0}
    latest: dict[str | None, int] = defaultdict(int)
    for journal in found:
        latest[journal.run] = max(latest[journal.run], journal.wall_ns)
    run = max(names, key=lambda name: (name == folder.name, name in with_rank_0, names[name], latest[name]))
    of_run = [journal for journal in found if journal.run in (None, run)]
    anchor = min(
        (journal for journal in of_run if journal.run == run), key=lambda journal: (_order(journal), -journal.wall_ns)
    )
    kept = [journal for journal in of_run if not is_surely_another(journal.launch, anchor.launch)]
    are_kept = set(map(id, kept))
    others = [journal for journal in found if id(journal) not in are_kept]
    places = {(journal.rank, journal.attempt) for journal in kept}
    # A rank that never learned the run's name, or an attempt that did not find the run's folder.
    joined = [
        journal
        for journal in others
        if (journal.rank, journal.attempt) not in places
        and is_same_launch(journal.launch, anchor.launch)
        and journal.run != run
    ]
    are_joined = set(map(id, joined))
    of_others: dict[str | None, list[str]] = defaultdict(list)
    for journal in others:
        if id(journal) not in are_joined:
            of_others[journal.run].append(journal.shown)
    left_out += [
        f"left out, of another run ({printable(str(name))}): {enumerated(shown, 4)}"
        for name, shown in of_others.items()
    ]
    return kept + joined


def enumerated(names: Sequence[str], most: int = 8) -> str:
    """Return the names in one text: the first ones, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _best(same: Sequence[JournalFile], left_out: list[str]) -> JournalFile:
    """Return the journal to read for a rank and attempt: that of the last process, and its longest copy."""
    best = max(same, key=lambda journal: (journal.wall_ns, journal.size))
    for journal in same:
        if journal is not best:
            why = "a copy of" if journal.process == best.process else "of an earlier process than"
            left_out.append(f"left out: {journal.shown}, {why} {best.shown}")
    return best
