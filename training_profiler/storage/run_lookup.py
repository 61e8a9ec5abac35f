"""Finds the run folders of this launch on this disk, without a message from rank 0."""

import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from training_profiler.base.text import printable
from training_profiler.base.units import NS_PER_S
from training_profiler.model.bounds import MOST_META_BYTES, MOST_SUM
from training_profiler.safety.files import is_folder, read_file
from training_profiler.snapshot.ranks import AttemptStats, RankId
from training_profiler.storage.journal_discovery import JournalFile, find_journals, select_journals
from training_profiler.storage.journal_lines import as_object
from training_profiler.storage.journal_tail import read_end
from training_profiler.storage.launch import LaunchId, is_same_launch, launch_from_data
from training_profiler.storage.run_folder import META, is_folder_of, is_own_name, is_plain_name, journal_name


def attempts_in(folder: Path, before: int) -> tuple[AttemptStats, ...]:
    """Return the attempts before number ``before`` of the run in ``folder``, from rank 0's journals."""
    return attempts_before(select_journals(find_journals(folder, "rank0"), folder).journals, before)


def attempts_before(journals: Iterable[JournalFile], number: int) -> tuple[AttemptStats, ...]:
    """Return the attempts before ``number``, each from the journal of its lowest rank, if there is one.

    ``journals`` are in the order of attempts and ranks.
    """
    stats: dict[int, AttemptStats] = {}
    for journal in journals:
        if journal.attempt < number and journal.attempt not in stats and journal.begin is not None:
            attempt = _figures(journal)
            if attempt is not None:
                stats[journal.attempt] = attempt
    return tuple(stats[number] for number in sorted(stats))


def _figures(journal: JournalFile) -> AttemptStats | None:
    begin = journal.begin or {}

    def until_then(interval: dict[str, Any]) -> tuple[int, float]:
        steps, ns = int(interval["first_step"]) + len(interval["step_ns"]), interval["end_ns"] - begin["begin_ns"]
        if not (0 <= steps <= MOST_SUM and 0 <= ns <= MOST_SUM):
            raise ValueError("steps or time out of range")
        return steps, ns / NS_PER_S

    try:
        steps, wall_s = read_end(journal.path, "interval", until_then).value or (0, 0.0)
        end = read_end(journal.path, "end", _ended_by).value
    except OSError:
        return None
    return AttemptStats(journal.attempt, steps, wall_s, end[0] if end else None, is_ended=end is not None)


def _ended_by(end: dict[str, Any]) -> tuple[str | None]:
    return (None if end["ended_by"] is None else printable(str(end["ended_by"])),)


MOST_COMMAND: Final = 10_000  # characters; the program is among the first
NEWEST: Final = 20  # run folders that are searched
APART_NS: Final = 600 * NS_PER_S  # between the begins of two ranks of one run


class Attempt(NamedTuple):
    """One attempt of a run according to meta.json."""

    number: int
    wall_ns: int


def runs_of(launch: LaunchId, parent: Path) -> Iterator[tuple[Path, dict[str, Any], Attempt]]:
    """Yield the run folders of that launch in ``parent``, newest first: folder, meta.json, and last attempt."""
    for folder, meta in _newest(parent):
        attempts = [attempt for attempt in map(_attempt, _list(meta.get("attempts"))) if attempt is not None]
        if attempts and is_same_launch(launch_from_data(meta.get("launched")), launch):
            yield folder, meta, max(attempts)


def _newest(parent: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the newest run folders in ``parent``, each with its meta.json."""
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
    for folder, _, attempt in runs_of(launch, parent):
        is_of_attempt = attempt.number == who.attempt and abs(attempt.wall_ns - wall_ns) <= APART_NS
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


def run_named(name: str, parent: Path) -> Path | None:
    """Return the newest run in ``parent`` with that name, or whose folder is called so; None without one."""
    try:
        folders = sorted((entry for entry in os.listdir(parent) if is_folder_of(entry, name)), reverse=True)
    except (OSError, ValueError):
        return None
    if is_plain_name(name) and is_folder(parent / name):
        return parent / name
    return next((parent / folder for folder in folders if _is_named(parent / folder, name)), None)


def _is_named(folder: Path, name: str) -> bool:
    """Return whether a run has that name. The folder of a second run of a name ends like that of another name."""
    settings = read_meta(folder).get("settings")
    return not isinstance(settings, dict) or settings.get("name", name) == name


def read_meta(folder: Path) -> dict[str, Any]:
    """Return the content of meta.json in ``folder``; empty if it cannot be read."""
    return read_object(folder / META, MOST_META_BYTES) or {}


def read_object(path: Path, most_bytes: int) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if it cannot be read, is too large or is none."""
    try:
        return as_object(read_file(path, most_bytes))
    except (OSError, ValueError):
        return None


def read_program(folder: Path) -> str | None:
    """Return the name of the script or module of the run in ``folder``; None where it is unknown."""
    return program_in(read_meta(folder).get("command", ""))


def program_in(command: object) -> str | None:
    """Return the name of the script or module in a command line; None where it is unknown."""
    try:
        words = shlex.split(str(command)[:MOST_COMMAND])[1:]  # the first is the interpreter
    except ValueError:  # a quote without its end
        return None
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "-m":
            return printable(words[0]) if words else None
        if option == "-c":
            return None
        if option in ("-W", "-X"):  # their value is the next word
            words = words[1:]
    return printable(Path(words[0]).name) if words else None


def typed_path(folder: Path) -> str:
    """Return ``folder`` as it can be typed in a shell here: relative where it is below the current folder."""
    with suppress(OSError, ValueError):  # the current folder is gone, or is not above
        folder = folder.absolute().relative_to(Path.cwd())
    return shlex.quote(str(folder))


def _attempt(row: Any) -> Attempt | None:
    try:
        attempt = Attempt(int(row["number"]), int(row["begin_wall_ns"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return attempt if all(0 <= number <= MOST_SUM for number in attempt) else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
