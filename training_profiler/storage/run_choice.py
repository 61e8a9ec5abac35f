"""The run that a word on the command line means: a folder, a name, or nothing for the newest."""

import os
from pathlib import Path
from typing import Any

from training_profiler.base.errors import RunFolderError
from training_profiler.safety.files import is_folder
from training_profiler.storage.run_folder import META, is_own_name, journal_name
from training_profiler.storage.run_lookup import run_named
from training_profiler.storage.run_reader import newest_run


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
