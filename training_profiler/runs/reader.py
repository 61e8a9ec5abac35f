"""Reading a run folder back: the final figures from the journal alone."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training_profiler.errors import RunFolderError
from training_profiler.record.loader import TRAIN, LoaderCounts
from training_profiler.record.names import SectionNames
from training_profiler.runs.codec import totals_from_data
from training_profiler.runs.folder import META, journal_name
from training_profiler.runs.journal import JOURNAL_SCHEMA
from training_profiler.snapshot import DeviceFigures, Health, Snapshot
from training_profiler.statistics.run import RunSums


def read_run(folder: Path) -> Snapshot:
    """Return the figures of the run in ``folder``, whether or not it came to its end.

    Raises:
        RunFolderError: the folder is not a run's, or its journal cannot be understood.
    """
    path = folder / journal_name(0)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RunFolderError(_why_not(folder, path, error)) from None
    records, torn = _records(lines)
    if not records or records[0].get("kind") != "begin":
        raise RunFolderError(f"{path} does not begin like a journal; is it a file of the profiler's?")
    begin, *later = records
    if begin.get("schema") != JOURNAL_SCHEMA:
        raise RunFolderError(
            f"{path} has schema {begin.get('schema')!r}, this version reads {JOURNAL_SCHEMA}; "
            f"read it with the version that wrote it (meta.json names it)"
        )
    try:
        return _replay(folder, begin, later, torn)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise RunFolderError(f"{path} holds a line that is no journal's: {error!r}") from error


def _why_not(folder: Path, path: Path, error: OSError) -> str:
    if not folder.exists():
        return f"{folder} does not exist; example: training-profiler report runs/20261121-142530"
    if not folder.is_dir():
        return f"{folder} is a file; give the run folder around it, e.g. {folder.parent}"
    runs = sorted(journal.parent.name for journal in folder.glob(f"*/{journal_name(0)}"))
    if runs:
        held = "a run" if len(runs) == 1 else f"{len(runs)} runs"
        return f"{folder} holds {held}; give that folder itself, e.g. {folder / runs[-1]}"
    return f"{folder} is no run folder: {path.name} cannot be read ({error.strerror})"


def _records(lines: list[bytes]) -> tuple[list[dict[str, Any]], int]:
    """Return the lines that are whole, and how many are not."""
    records, torn = [], 0
    for line in lines:
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            records.append(record)
        else:
            torn += 1
    return records, torn


def _replay(folder: Path, begin: dict[str, Any], records: list[dict[str, Any]], torn: int) -> Snapshot:
    names = SectionNames(limit=1_000_000)
    sums = RunSums(names, begin["begin_ns"], begin["warmup"])
    loaders: list[LoaderCounts] = []
    open_sections: list[str] = []
    health: dict[str, Any] = {}
    device: DeviceFigures | None = None
    end: dict[str, Any] | None = None
    for record in records:
        kind = record["kind"]
        if kind == "interval":
            sums.add(*totals_from_data(record, names))
            loaders = [_loader(*columns) for columns in record["loaders"]]
            health = record
            device = DeviceFigures(**record["device"]) if "device" in record else None  # on an accelerator alone
            open_sections = record["open_sections"]
        elif kind == "epoch_begin":
            sums.begin_epoch(record["number"])
        elif kind == "epoch_end":
            sums.end_epoch(record["batches"], record["samples"], record["is_complete"])
        elif kind == "end":
            health = end = record
    notes = list(health.get("notes", ()))
    if torn:
        notes.append(f"{torn} torn line{'s' * (torn > 1)} in the journal left out")
    if end is None:
        sums.end_epoch(None, None, is_complete=False)
        notes.append("the run did not come to its end (or still runs): what followed the last interval is missing")
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
        thresholds=_thresholds(folder),
    )


def _thresholds(folder: Path) -> dict[str, float]:
    """Return the rules' thresholds that the run had set; none where that was not written down."""
    try:
        told = json.loads((folder / META).read_bytes())["settings"]["thresholds"]
        return {str(code): float(value) for code, value in told.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _loader(
    name: str,
    batches: int,
    samples: int | None,
    wait_ns: int,
    serial: int = 0,  # this and what follows is not in journals of earlier versions
    asked: float | None = None,
    phases: Sequence[tuple[str, int, int | None, int]] = (),
) -> LoaderCounts:
    counts = LoaderCounts(name, serial)
    counts.asked = asked
    for phase, count, sample_count, ns in phases or [(TRAIN, batches, samples, wait_ns)]:
        counts.by_phase[phase].add(count, sample_count, ns)
    return counts
