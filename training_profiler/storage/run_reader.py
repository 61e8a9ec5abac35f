"""Reads a run folder: the final stats come from the journal alone."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from training_profiler.aggregation.run import RunSums
from training_profiler.errors import RunFolderError
from training_profiler.recording.data_loader import TRAIN, LoaderCounts
from training_profiler.recording.section_names import SectionNames
from training_profiler.snapshot.snapshot import DeviceTimingStats, Health, Snapshot
from training_profiler.storage.journal_codec import totals_from_data
from training_profiler.storage.journal_discovery import (
    NO_JOURNAL,
    JournalFile,
    find_journals,
    find_own_folder_journals,
    select_journals,
)
from training_profiler.storage.journal_tail import as_record
from training_profiler.storage.launch import is_running
from training_profiler.storage.rank_reader import attempt_of, received_ranks
from training_profiler.storage.run_folder import is_own_name, journal_name
from training_profiler.storage.run_lookup import attempts_before, read_meta
from training_profiler.units import NS_PER_S

# By whether the process still runs, as far as known.
_UNENDED: Final = {
    None: "the run did not come to its end (or still runs): what followed the last interval is missing",
    False: "the run did not come to its end: what followed the last interval is missing",
    True: "the run still runs: these figures reach to its last interval",
}


def read_run(folder: Path, attempt: int | None = None) -> Snapshot:
    """Return the stats of the run in ``folder``, whether or not it has ended.

    Stats of a single rank are rank 0's, or those of the lowest rank with a journal.

    Args:
        folder: the run's, or a folder with copies of its ranks' journals, together or in one folder per machine.
        attempt: the attempt of a restarted training; the last by default.

    Raises:
        RunFolderError: the folder is not a run's, no journal in it is readable, or there was no such attempt.
    """
    found = find_journals(folder)
    if not found or _is_folder_of_runs(folder, found):
        raise RunFolderError(_why_not(folder))
    journals, left_out = select_journals(found + find_own_folder_journals(folder, found), folder)
    number = attempt_of(journals, attempt, folder)
    of_attempt = [journal for journal in journals if journal.attempt == number]
    for journal in of_attempt:
        try:
            snapshot = _read_journal(folder, journal)
        except RunFolderError as error:
            left_out.append(f"left out: {error}")
            continue
        return _with_ranks(snapshot, journal, [each for each in journals if not each.problem], of_attempt, left_out)
    raise RunFolderError(left_out[-len(of_attempt)].removeprefix("left out: "))


def newest_run(folder: Path) -> Path | None:
    """Return the run in ``folder`` that began last; None where ``folder`` is a run itself, or holds none."""
    found = find_journals(folder)
    if not found or not _is_folder_of_runs(folder, found):
        return None
    journals = [journal for journal in found if not journal.problem]
    of_runs = [journal for journal in journals if not is_own_name(journal.path.parent.name)] or journals
    newest = max(of_runs, key=lambda journal: (journal.wall_ns, journal.path), default=None)
    return None if newest is None else newest.path.parent


def _with_ranks(
    snapshot: Snapshot,
    primary: JournalFile,
    journals: Sequence[JournalFile],
    of_attempt: Sequence[JournalFile],
    left_out: list[str],
) -> Snapshot:
    """Return the stats of ``primary`` with those of all ranks and of earlier attempts."""
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
        (folder / journal_name(0)).open("rb").close()
        reason = "it is none of the run's"
    except OSError as error:
        reason = str(error.strerror)
    return f"{folder} is not a run folder: {journal_name(0)} cannot be read ({reason})"


def _read_journal(folder: Path, found: JournalFile) -> Snapshot:
    """Return the stats of one rank."""
    if found.problem or found.begin is None:
        raise RunFolderError(f"{found.path} {found.problem}")
    try:
        lines = found.path.read_bytes().split(b"\n")
    except OSError as error:
        raise RunFolderError(f"{found.path} cannot be read ({error.strerror})") from None
    (begin, *later), torn = _records(lines)
    try:
        return _replay(folder, found.path.parent, begin, later, torn)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise RunFolderError(f"{found.path} holds a line that is not a journal's: {error!r}") from error


def _records(lines: list[bytes]) -> tuple[list[dict[str, Any]], int]:
    """Return the complete lines, and the number of incomplete lines."""
    there = [line for line in lines if line.strip()]
    records = [record for record in map(as_record, there) if record is not None]
    return records, len(there) - len(records)


def _replay(
    folder: Path, own_folder: Path, begin: dict[str, Any], records: list[dict[str, Any]], torn: int
) -> Snapshot:
    names = SectionNames(limit=1_000_000)
    sums = RunSums(names, begin["begin_ns"], begin["warmup"])
    loaders: list[LoaderCounts] = []
    open_sections: list[str] = []
    health: dict[str, Any] = {}
    device: DeviceTimingStats | None = None
    end: dict[str, Any] | None = None
    unsaved = lost = 0
    for record in _with_last_pending(records):
        kind = record["kind"]
        if kind in ("interval", "pending"):
            sums.add(*totals_from_data(record, names))
            loaders = [_loader(*columns) for columns in record["loaders"]]
            health = record
            device = DeviceTimingStats(**record["device"]) if "device" in record else None  # only with an accelerator
            open_sections = record["open_sections"]
        elif kind == "epoch_begin":
            sums.begin_epoch(record["number"])
        elif kind == "epoch_end":
            sums.end_epoch(record["batches"], record["samples"], record["is_complete"])
        elif kind == "held":
            unsaved = record["dropped"]
        elif kind == "lost":
            lost += record["intervals"]
        elif kind == "end":
            health = end = record
    notes = list(health.get("notes", ()))
    if torn:
        notes.append(f"{torn} torn line{'s' * (torn > 1)} in the journal left out")
    if unsaved:
        dropped = "1 interval was" if unsaved == 1 else f"{unsaved} intervals were"
        notes.append(f"{dropped} dropped before this rank knew of the run's folder")
    if lost:
        notes.append(f"{lost} interval{'s' * (lost != 1)} not written: the disk did not respond for too long")
    if end is None:
        sums.end_epoch(None, None, is_complete=False)
        notes.append(_UNENDED[is_running(begin.get("host"), begin.get("pid"), begin.get("wall_ns", 0) / NS_PER_S)])
    return sums.snapshot(
        Health(
            dropped=sums.run.dropped,
            disabled=tuple(health.get("disabled", ())),
            overhead_s=health.get("overhead_s", 0.0),
            notes=tuple(notes),
        ),
        loaders=loaders,
        device=device,
        open_sections=open_sections,
        run_folder=str(folder),
        ended_by=end["ended_by"] if end else None,
        thresholds=_thresholds(own_folder),
    )


def _with_last_pending(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records without pending intervals that a later interval covers again."""
    last = max((at for at, record in enumerate(records) if record["kind"] in ("interval", "pending")), default=-1)
    return [record for at, record in enumerate(records) if record["kind"] != "pending" or at == last]


def _thresholds(folder: Path) -> dict[str, float]:
    """Return the rule thresholds that the run had set; empty if unknown."""
    try:
        return {str(code): float(value) for code, value in read_meta(folder)["settings"]["thresholds"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _loader(
    name: str,
    batches: int,
    samples: int | None,
    wait_ns: int,
    serial: int = 0,  # journals of earlier versions lack this and the following
    asked: float | None = None,
    phases: Sequence[tuple[str, int, int | None, int]] = (),
) -> LoaderCounts:
    counts = LoaderCounts(name, serial)
    counts.requested_share = asked
    for phase, count, sample_count, ns in phases or [(TRAIN, batches, samples, wait_ns)]:
        counts.by_phase[phase].add(count, sample_count, ns)
    return counts
