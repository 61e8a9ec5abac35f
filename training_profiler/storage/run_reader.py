"""Reads a run folder: the final stats come from the journal alone."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from training_profiler.base.errors import RunFolderError
from training_profiler.base.text import printable
from training_profiler.base.units import BYTES_PER_MIB, NS_PER_S
from training_profiler.model.bounds import MOST_SUM
from training_profiler.safety.files import is_folder, open_file
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.storage.journal_discovery import (
    NO_JOURNAL,
    AttemptJournals,
    JournalFile,
    attempts_before,
    find_journals,
    inspect_journal,
    is_beginning,
    is_running,
    lines_of_journal,
    read_end,
    select_attempt,
)
from training_profiler.storage.rank_reader import received_ranks
from training_profiler.storage.replay import Replay
from training_profiler.storage.run_folder import (
    META,
    REPORT_DATA,
    is_own_name,
    journal_name,
    program_in,
    read_meta,
    read_object,
    run_named,
)
from training_profiler.storage.timeline_reader import SeriesReader

RUNNING, ENDED, KILLED, UNKNOWN = "running", "ended", "killed", "unknown"
MOST_REPORT_BYTES: Final = 64 * BYTES_PER_MIB
STATES: Final = {True: RUNNING, False: KILLED, None: UNKNOWN}


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One run. None means unknown; texts are fit for a terminal."""

    folder: str
    began: str | None  # ISO 8601
    name: str | None
    program: str | None
    state: str  # running, ended, killed, or unknown: on another machine, without an end
    steps: int | None
    step_s: float | None  # mean after warm-up; of a run without a final summary, of its last interval
    verdict: str | None
    ended_by: str | None  # exception or signal
    problem: str | None = None  # why nothing else is known


def list_runs(parent: Path) -> list[ListedRun]:
    """Return the runs in ``parent``, newest first."""
    return [listed_run(folder) for folder in run_folders(parent)]


def listed_run(folder: Path) -> ListedRun:
    """Return what a list shows of one run."""
    meta = read_meta(folder)
    name, began = run_name(meta), meta.get("began")
    program = program_in(meta.get("command", ""))
    attempts = meta.get("attempts")
    last = attempts[-1] if isinstance(attempts, list) and attempts and isinstance(attempts[-1], dict) else {}
    report = read_object(folder / REPORT_DATA, MOST_REPORT_BYTES)
    if report is not None:
        state, steps, step_s = ENDED, _count(report.get("steps")), None
        step_time = report.get("step_time")
        if isinstance(step_time, dict):
            step_s = _seconds(step_time.get("avg_s"))
        problem = None
    else:
        state, steps, step_s, problem = _from_journal(folder, meta, last)
    verdict, ended_by = (None if report is None else report.get(key) for key in ("verdict", "ended_by"))
    return ListedRun(
        printable(str(folder)),
        printable(began) if isinstance(began, str) else None,
        None if name is None else printable(name),
        program,
        state,
        steps,
        step_s,
        printable(verdict) if isinstance(verdict, str) else None,
        printable(ended_by) if isinstance(ended_by, str) else None,
        problem,
    )


def _from_journal(
    folder: Path, meta: dict[str, Any], last: dict[str, Any]
) -> tuple[str, int | None, float | None, str | None]:
    """Return state, steps, step time and problem, from the end of rank 0's journal."""
    number = _count(last.get("number")) or 0

    def figures(interval: dict[str, Any]) -> tuple[int, float | None]:
        step_ns = interval["step_ns"]
        steps = int(interval["first_step"]) + len(step_ns)
        mean_s = sum(map(int, step_ns)) / len(step_ns) / NS_PER_S if step_ns else None
        if not (0 <= steps <= MOST_SUM and (mean_s is None or 0 <= mean_s <= MOST_SUM)):
            raise ValueError("out of range")
        return steps, mean_s

    name = journal_name(0, number)
    journal = inspect_journal(folder / name, name)
    try:
        if journal.problem and not (journal.problem == NO_JOURNAL and is_beginning(folder / name)):
            return UNKNOWN, None, None, f"{name} {journal.problem}"
        end = read_end(folder / name, "interval", figures)
    except OSError as error:
        return UNKNOWN, None, None, f"{name} cannot be read ({error.strerror})"
    steps, step_s = end.value if end.value is not None else (None, None)
    if end.has_end:
        return ENDED, steps, step_s, None
    wall_ns = _count(last.get("begin_wall_ns"))
    process = (last or meta).get("host"), (last or meta).get("pid")
    is_alive = is_running(*process, wall_ns / NS_PER_S) if wall_ns is not None else None
    return STATES[is_alive], steps, step_s, None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_SUM else None


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and 0 <= value <= MOST_SUM else None


def run_folders(parent: Path) -> list[Path]:
    """Return the run folders in ``parent``, newest first; those of ranks that knew no run folder are left out.

    The names begin with the time, so no file has to be read.
    """
    try:
        names = [name for name in os.listdir(parent) if name[:8].isdigit() and not is_own_name(name)]
    except OSError:
        return []
    folders = [parent / name for name in sorted(names, key=_order, reverse=True)]
    return [folder for folder in folders if is_folder(folder) and _is_run(folder)]


def _order(name: str) -> tuple[str, int, str]:
    """Return the time of a folder, and its number among those of one second."""
    stem, _, number = name.rpartition("-")
    is_numbered = stem.count("-") >= 1 and number.isdecimal()
    return name[:15], int(number) if is_numbered else 1, name


def _is_run(folder: Path) -> bool:
    return (folder / META).exists() or (folder / journal_name(0)).exists()


def run_name(meta: dict[str, Any]) -> str | None:
    """Return the name that the user gave the run; None without one."""
    settings = meta.get("settings")
    name = settings.get("name") if isinstance(settings, dict) else None
    name = name or meta.get("name")
    return name if isinstance(name, str) and name else None


def choose_run(given: Path | None, runs: Path) -> Path:
    """Return the run folder that ``given`` means: a run, the newest of a folder of runs, or a name among ``runs``.

    Raises:
        RunFolderError: there is no such run.
    """
    if given is None:
        return newest_runs(runs, 1)[0]
    if os.path.lexists(given):
        return newest_run(given) or given
    named = run_named(str(given), runs)
    if named is None:
        raise RunFolderError(
            f"{given} is neither a folder nor the name of a run in {runs}; training-profiler list shows the runs"
        )
    return named


def newest_runs(runs: Path, count: int) -> list[Path]:
    """Return the ``count`` newest runs in ``runs``, newest first.

    Raises:
        RunFolderError: there are fewer.
    """
    folders = run_folders(runs)[:count]
    if len(folders) < count:
        held = "no run" if not folders else "1 run" if len(folders) == 1 else f"{len(folders)} runs"
        what = f"{runs} holds {held}" if runs.is_dir() else f"{runs} does not exist"
        raise RunFolderError(f"{what}; give a run folder, e.g. training-profiler report runs/20261121-142530")
    return folders


def journals_of_running(folder: Path, command: str) -> list[JournalFile]:
    """Return the readable journals of a run folder; ``command`` is for the example in a message.

    Raises:
        RunFolderError: ``folder`` is not a run folder.
    """
    if not folder.is_dir():
        raise RunFolderError(f"{folder} is not a folder; example: training-profiler {command} runs/20261121-142530")
    journals = [journal for journal in find_journals(folder) if not journal.problem]
    if not journals:
        raise RunFolderError(f"{folder} is not a run folder: it has no journal (rank0.jsonl)")
    own = folder.resolve()
    if all(journal.path.resolve().parent != own for journal in journals):  # a training reads its own folder only
        run = max(journal.path.parent for journal in journals)
        raise RunFolderError(f"{folder} is not a run folder, but contains one; example: {run}")
    return journals


def is_still_running(journal: JournalFile) -> bool | None:
    """Return whether the process that writes a journal still runs; None if that is unknown."""
    try:
        if read_end(journal.path, "end", lambda record: record).has_end:
            return False
    except OSError:
        return None
    return journal.is_running


def read_run(folder: Path, attempt: int | None = None, series: SeriesReader | None = None) -> Snapshot:
    """Return the stats of the run in ``folder``, whether or not it has ended.

    Stats of a single rank are rank 0's, or those of the lowest rank with a journal.

    Args:
        folder: the run's, or a folder with copies of its ranks' journals, together or in one folder per machine.
        attempt: the attempt of a restarted training; the last by default.
        series: gets the steps one by one, of the same rank.

    Raises:
        RunFolderError: the folder is not a run's, no journal in it is readable, or there was no such attempt.
    """
    found = find_attempt(folder, attempt)
    for journal in found.of_attempt:
        try:
            snapshot = _read_journal(folder, journal, series)
        except RunFolderError as error:
            found.left_out.append(f"left out: {error}")
            continue
        return with_ranks(snapshot, journal, found)
    raise RunFolderError(found.left_out[-len(found.of_attempt)].removeprefix("left out: "))


def find_attempt(folder: Path, attempt: int | None = None) -> AttemptJournals:
    """Return the journals of the run in ``folder``, and those of one attempt; the last by default.

    Raises:
        RunFolderError: the folder is not a run's, or there was no such attempt.
    """
    found = find_journals(folder)
    if not found or _is_folder_of_runs(folder, found):
        raise RunFolderError(_why_not(folder))
    return select_attempt(folder, found, attempt)


def newest_run(folder: Path) -> Path | None:
    """Return the run in ``folder`` that began last; None where ``folder`` is a run itself, or holds none."""
    found = find_journals(folder)
    if not found or not _is_folder_of_runs(folder, found):
        return None
    journals = [journal for journal in found if not journal.problem]
    of_runs = [journal for journal in journals if not is_own_name(journal.path.parent.name)] or journals
    newest = max(of_runs, key=lambda journal: (journal.wall_ns, journal.path), default=None)
    return None if newest is None else newest.path.parent


def with_ranks(snapshot: Snapshot, primary: JournalFile, found: AttemptJournals) -> Snapshot:
    """Return the stats of ``primary`` with those of all ranks and of earlier attempts."""
    of_attempt, left_out = found.of_attempt, found.left_out
    journals = [journal for journal in found.all if not journal.problem]
    others = [journal for journal in of_attempt if not journal.problem or journal.problem == NO_JOURNAL]
    if primary.rank:
        why = "cannot be read" if any(journal.rank == 0 for journal in of_attempt) else "is missing"
        left_out = [f"the figures above are rank {primary.rank}'s: rank 0's journal {why}", *left_out]
    received = received_ranks(others, left_out)
    ranks, notes = received.stats(), list(snapshot.health.notes)
    if ranks is None:
        notes += received.left_out
    last = max((journal.attempt for journal in journals), default=primary.attempt)
    if last > primary.attempt:
        notes.append(f"this is attempt {primary.attempt}; the last one was attempt {last}")
    return replace(
        snapshot,
        ranks=ranks,
        exchange=received.exchange(primary.rank or 0),
        attempts=attempts_before(journals, primary.attempt),
        health=replace(snapshot.health, notes=tuple(notes)),
    )


def _is_folder_of_runs(folder: Path, found: Sequence[JournalFile]) -> bool:
    """Return whether the folders below ``folder`` are runs, and not the machines of one run."""
    parents = {journal.path.parent for journal in found}
    if folder in parents:
        return False
    readable = [journal for journal in found if journal.begin is not None]
    if len(parents) > 1 and len({journal.run for journal in readable}) == 1 and readable[0].run is not None:
        return False
    return not readable or any(journal.run in (None, journal.path.parent.name) for journal in readable)


def _why_not(folder: Path) -> str:
    if not folder.exists():
        return f"{folder} does not exist; example: training-profiler report runs/20261121-142530"
    if not folder.is_dir():
        return f"{folder} is a file; give the run folder around it, e.g. {folder.parent}"
    runs = sorted({journal.parent.name for journal in folder.glob("*/rank*.jsonl")})
    if runs:
        held = "a run" if len(runs) == 1 else f"{len(runs)} runs"
        return f"{folder} holds {held}; give that folder itself, e.g. {folder / runs[-1]}"
    try:
        open_file(folder / journal_name(0), follow=True).close()
        reason = "it is none of the run's"
    except OSError as error:
        reason = str(error.strerror)
    return f"{folder} is not a run folder: {journal_name(0)} cannot be read ({reason})"


def _read_journal(folder: Path, found: JournalFile, series: SeriesReader | None) -> Snapshot:
    """Return the stats of one rank."""
    if found.problem or found.begin is None:
        raise RunFolderError(f"{found.path} {found.problem}")
    replay = Replay()
    if series is not None:
        series.begin(found.rank or 0)
        replay = Replay(series.add)
    for line in lines_of_journal(found.path):
        replay.add(line)
    replay.end()
    if replay.has_failed:
        raise RunFolderError(f"{found.path} holds a line that is not a journal's: {replay.problem}")
    return replay.snapshot(folder, found)
