"""Run folders on this disk that are of this launch: those that nobody told this process of."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from training_profiler.rank_figures import RankId
from training_profiler.runs.folder import META, is_own_name, journal_name
from training_profiler.runs.launch import LaunchId, is_same_launch, launch_from_data
from training_profiler.units import NS_PER_S

NEWEST: Final = 20  # run folders looked through
APART_NS: Final = 600 * NS_PER_S  # between the begins of two ranks of one run


class Attempt(NamedTuple):
    """One attempt of a run, as meta.json has it."""

    number: int
    wall_ns: int


def runs_of(launch: LaunchId, parent: Path) -> Iterator[tuple[Path, dict[str, Any], Attempt]]:
    """Yield the folders of that launch in ``parent``, the newest first: what meta.json says, and its last attempt."""
    try:
        names = [name for name in os.listdir(parent) if name[:8].isdigit()]
    except OSError:
        return
    for name in sorted(names, reverse=True)[:NEWEST]:
        meta = read_meta(parent / name)
        attempts = [found for found in map(_attempt, _list(meta.get("attempts"))) if found is not None]
        if attempts and is_same_launch(launch_from_data(meta.get("launched")), launch):
            yield parent / name, meta, max(attempts)


def run_of_rank(who: RankId, wall_ns: int, launch: LaunchId, parent: Path) -> Path | None:
    """Return the folder that rank 0 has made in ``parent`` for the run that ``who`` is a rank of; None if unknown.

    ``wall_ns`` is when this rank began.
    """
    for folder, _, attempt in runs_of(launch, parent):
        is_of_attempt = attempt.number == who.attempt and abs(attempt.wall_ns - wall_ns) <= APART_NS
        has_journal = (folder / journal_name(who.rank, who.attempt)).exists()
        if is_of_attempt and not has_journal and not is_own_name(folder.name):
            return folder
    return None


def read_meta(folder: Path) -> dict[str, Any]:
    """Return what meta.json in ``folder`` says; nothing where it cannot be read."""
    try:
        meta = json.loads((folder / META).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return meta if isinstance(meta, dict) else {}


def _attempt(row: Any) -> Attempt | None:
    try:
        return Attempt(int(row["number"]), int(row["begin_wall_ns"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
