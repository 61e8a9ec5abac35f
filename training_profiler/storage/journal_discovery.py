"""The journals that lie in a run folder, be they written there or copied together, and which of them are of the run."""

import os
import stat
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from training_profiler.storage.journal import JOURNAL_SCHEMA
from training_profiler.storage.journal_tail import read_head
from training_profiler.storage.launch import LaunchId, is_same_launch, is_surely_another, launch_from_data
from training_profiler.storage.run_folder import is_own_name, read_journal_name

NO_JOURNAL: Final = "does not begin like a journal; is it a file of the profiler's?"


@dataclass(frozen=True, slots=True)
class JournalFile:
    """One file that is called like a journal."""

    path: Path
    shown: str  # its path below the run folder
    size: int = 0
    rank: int | None = None
    attempt: int = 0
    begin: dict[str, Any] | None = None  # its first line, where that is whole
    problem: str = ""  # why it cannot be read, as what follows its name in a sentence

    @property
    def run(self) -> str | None:
        """The name of the run that it says it is of."""
        name = (self.begin or {}).get("run")
        return name if isinstance(name, str) else None

    @property
    def launch(self) -> LaunchId:
        """The launch that it says it is of."""
        return launch_from_data((self.begin or {}).get("launched"))

    @property
    def process(self) -> tuple[Any, ...]:
        """What tells the process that wrote it from all others."""
        begin = self.begin or {}
        return tuple(str(begin.get(key)) for key in ("host", "pid", "wall_ns", "begin_ns"))

    @property
    def wall_ns(self) -> int:
        """When its run began, by the wall clock; 0 where that is not known."""
        return _number((self.begin or {}).get("wall_ns")) or 0


class RunJournals(NamedTuple):
    """The journals of one run, one a rank and attempt, and sentences on those that were left out."""

    journals: list[JournalFile]
    left_out: list[str]


def find_journals(folder: Path, stem: str = "rank") -> list[JournalFile]:
    """Return the files in ``folder``, and in folders one level below it, that are called ``stem`` and so on."""
    below = [entry for entry in _entries(folder) if _is_folder(entry)]
    names = [path for parent in (folder, *sorted(below)) for path in sorted(_entries(parent))]
    return [_inspect(path, str(path.relative_to(folder))) for path in names if is_journal(path, stem)]


def find_own_folder_journals(folder: Path, found: Sequence[JournalFile]) -> list[JournalFile]:
    """Return the journals beside ``folder`` of ranks of its launch that ended before anybody told them its name."""
    first = min((one for one in found if one.run == folder.name), key=_order, default=None)
    if first is None or is_own_name(folder.name):
        return []
    there = {(one.rank, one.attempt) for one in found if not one.problem}
    nearest: dict[tuple[int | None, int], JournalFile] = {}
    for sibling in sorted(path for path in _entries(folder.parent) if is_own_name(path.name)):
        for path in sorted(_entries(sibling)):
            one = _inspect(path, f"../{sibling.name}/{path.name}") if is_journal(path) else None
            if one is None or one.problem or (one.rank, one.attempt) in there:
                continue
            other = nearest.get((one.rank, one.attempt))
            apart_ns = abs(one.wall_ns - first.wall_ns)  # a process may profile several runs, one after another
            if is_same_launch(one.launch, first.launch) and (
                other is None or apart_ns < abs(other.wall_ns - first.wall_ns)
            ):
                nearest[one.rank, one.attempt] = one
    return list(nearest.values())


def is_journal(path: Path, stem: str = "rank") -> bool:
    """Return whether a file is called like a journal."""
    return path.name.startswith(stem) and path.name.endswith(".jsonl")


def read_begin(path: Path) -> dict[str, Any] | None:
    """Return the first line of a journal; None where there is none."""
    try:
        return read_head(path) if stat.S_ISREG(path.stat().st_mode) else None
    except OSError:
        return None


def select_journals(found: Iterable[JournalFile], folder: Path) -> RunJournals:
    """Return the journals that are of the run of ``folder``: copies once, and none of other runs."""
    left_out: list[str] = []
    belonging = _of_one_run(list(found), folder, left_out)
    by_place: dict[tuple[int | None, int, str], list[JournalFile]] = defaultdict(list)
    for one in belonging:
        # What cannot be read takes nobody's place.
        by_place[one.rank, one.attempt, one.shown if one.problem else ""].append(one)
    journals = [_best(same, left_out) for same in by_place.values()]
    return RunJournals(sorted(journals, key=_order), left_out)


def _order(one: JournalFile) -> tuple[int, float]:
    return one.attempt, float("inf") if one.rank is None else one.rank


def _entries(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder)]
    except OSError:
        return []


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.name.endswith(".jsonl")


def _inspect(path: Path, shown: str) -> JournalFile:
    rank, attempt = read_journal_name(path.name) or (None, 0)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # to open a pipe would wait for a writer
            return JournalFile(path, shown, 0, rank, attempt, problem="is no file")
        begin = read_head(path)
    except OSError as error:
        return JournalFile(path, shown, 0, rank, attempt, problem=f"cannot be read ({error.strerror})")
    if begin is None:
        return JournalFile(path, shown, status.st_size, rank, attempt, problem=NO_JOURNAL)
    if begin.get("schema") != JOURNAL_SCHEMA:
        problem = (
            f"has schema {begin.get('schema')!r}, this version reads {JOURNAL_SCHEMA}; "
            f"read it with the version that wrote it (meta.json names it)"
        )
        return JournalFile(path, shown, status.st_size, rank, attempt, problem=problem)
    who = begin.get("who")
    stated_attempt = _number(who.get("attempt")) if isinstance(who, dict) else None
    stated_rank = _number(begin.get("rank"))
    return JournalFile(
        path,
        shown,
        status.st_size,
        rank if stated_rank is None else stated_rank,
        attempt if stated_attempt is None else stated_attempt,
        begin,
    )


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _of_one_run(found: Sequence[JournalFile], folder: Path, left_out: list[str]) -> list[JournalFile]:
    names = Counter(one.run for one in found if one.run is not None)
    if not names:
        return list(found)
    with_rank_0 = {one.run for one in found if one.rank == 0}
    latest: dict[str | None, int] = defaultdict(int)
    for one in found:
        latest[one.run] = max(latest[one.run], one.wall_ns)
    run = max(names, key=lambda name: (name == folder.name, name in with_rank_0, names[name], latest[name]))
    of_run = [one for one in found if one.run in (None, run)]
    anchor = min((one for one in of_run if one.run == run), key=lambda one: (_order(one), -one.wall_ns))
    kept = [one for one in of_run if not is_surely_another(one.launch, anchor.launch)]
    others = [one for one in found if one not in kept]
    places = {(one.rank, one.attempt) for one in kept}
    # A rank that nobody told the run's name, or an attempt that did not find the run's folder.
    joined = [
        one
        for one in others
        if (one.rank, one.attempt) not in places and is_same_launch(one.launch, anchor.launch) and one.run != run
    ]
    of_others: dict[str | None, list[str]] = defaultdict(list)
    for one in others:
        if one not in joined:
            of_others[one.run].append(one.shown)
    left_out += [f"left out, of another run ({name}): {_enumerated(shown)}" for name, shown in of_others.items()]
    return kept + joined


def _enumerated(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _best(same: Sequence[JournalFile], left_out: list[str]) -> JournalFile:
    """Return the journal to read, of several of one rank in one attempt: the last process's, and its longest copy."""
    best = max(same, key=lambda one: (one.wall_ns, one.size))
    for one in same:
        if one is not best:
            why = "a copy of" if one.process == best.process else "of an earlier process than"
            left_out.append(f"left out: {one.shown}, {why} {best.shown}")
    return best
