"""An index of the runs of a folder beside them: what the end of a run is compared with, without opening a journal.

Nothing is lost with it: `training-profiler history` makes it again from the runs.
"""

import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np

from training_profiler.aggregation.run import RunSums
from training_profiler.base.units import NS_PER_US
from training_profiler.diagnosis.machine import SAMPLES_NEEDED, cpu_loss
from training_profiler.model.snapshot import HistoryChange, Snapshot
from training_profiler.statistics.differences import Differing, differing
from training_profiler.statistics.history import (
    FEWEST_BLOCKS,
    MOST_BLOCKS,
    MOST_RUNS,
    NO_BLOCKS,
    RunBlocks,
    change_since,
)
from training_profiler.statistics.run_series import SETTLED_AFTER, SETTLED_PART
from training_profiler.storage.run_folder import META, read_meta, typed_program, write_json

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")
INDEX: Final = ".history.sqlite"
MEMORY: Final = ":memory:"
# Nothing waits for a disk. A version with other columns gives its table another name.
TABLE: Final = (
    "PRAGMA synchronous = OFF;"
    "CREATE TABLE IF NOT EXISTS runs (folder TEXT PRIMARY KEY, work TEXT, facts TEXT, blocks TEXT);"
    "CREATE INDEX IF NOT EXISTS alike ON runs (work)"
)
WAIT_S: Final = 0.5  # for another run that ends
SLOWED: Final = 0.02  # part of the steps in captures from which a run is not compared
LOOKED_AT: Final = 4 * MOST_RUNS  # earlier runs: some were on a busy machine, or are gone
_FACTS: Final = ("began", "command", "folder", "host", "python", "platform", "cpus", "versions", "git")
MOUNTS: Final = Path("/proc/self/mounts")  # of Linux
_REMOTE: Final = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "9p", "fuse.sshfs")
# Arguments that say how a run is called and where it writes, and not what it does: --seed 1, out_dir=x.
_HARMLESS: Final = re.compile(
    r" (--?(?=[\w-]+[= ])|(?=\w+=))(seed|tags?|notes|group|project|experiment|((run|exp|experiment)[-_])?(name|id)"
    r"|out(put)?|(out|output|log|save|checkpoint)[-_]?(dir|path))[= ]('[^']*'|\S+)"
)


class RememberedRun(NamedTuple):
    """A row of the index."""

    folder: str  # its name in the folder of runs
    work: str  # the same for runs that do the same
    facts: dict[str, Any]  # of meta.json
    blocks: RunBlocks

    def differs_from(self, before: "RememberedRun") -> list[Differing]:
        """Return the facts that are not those of a run before which did the same."""
        return [each for each in differing((before.facts, {}), (self.facts, {})) if each.what != "command"]


def remember(folder: Path, sums: RunSums, snapshot: Snapshot) -> tuple[HistoryChange | None, str]:
    """Enter a run that ends; return how it differs from those before it, and why there is no index, or ""."""
    meta, runs = read_meta(folder), folder.parent
    run = run_of(folder.name, meta, blocks_of(sums, snapshot))
    is_alone = not (runs / INDEX).exists() and not any(each.is_dir() for each in runs.iterdir() if each != folder)
    if run is None or len(run.blocks.steps) < FEWEST_BLOCKS or is_alone:  # no file beside the folder of a single run
        return None, ""

    def work(index: "sqlite3.Connection") -> list[RememberedRun]:
        # In the order of their ends: a clock may be set back.
        found = index.execute(
            "SELECT * FROM runs WHERE work = ? AND folder <> ? ORDER BY rowid DESC LIMIT ?",
            (run.work, run.folder, LOOKED_AT),
        ).fetchall()
        put(index, run)
        return [row_of(row) for row in found if (runs / row[0]).is_dir()]

    earlier, problem = with_index(runs, work)
    change = change_of(earlier or [], run)
    if change is not None:
        write_json(folder / META, {**meta, "history": asdict(change)})
    return change, problem


def change_of(earlier: Sequence[RememberedRun], run: RememberedRun) -> HistoryChange | None:
    """Return how a run differs from those before it on its machine, which come newest first."""
    like = [
        each
        for each in earlier
        if (each.work, each.facts.get("host")) == (run.work, run.facts.get("host")) and not each.blocks.is_busy
    ]
    change = change_since([each.blocks for each in like], run.blocks)
    return None if change is None else replace(change, since=_since(run.differs_from(like[0])))


def _since(facts: Sequence[Differing]) -> str:
    new = {each.what: each.after or "" for each in facts}
    if commit := new.get("git.commit"):
        return commit[:7]
    if new.get("git.has_changes") == "True":
        return "changes that are not committed"
    versions = (f"{name} {new[name]}" for name in new if name == "python" or name.startswith("versions."))
    return next(versions, "").removeprefix("versions.")


def blocks_of(sums: RunSums, snapshot: Snapshot) -> RunBlocks:
    """Return the steps of a run, from the running session or from its journal; none where they say nothing."""
    step, count, samples = snapshot.step, snapshot.steps, sums.run.samples
    warmup = max(0 if step is None else step.warmup_count, min(SETTLED_AFTER, int(SETTLED_PART * count)))
    blocks = sums.blocks(warmup)
    names = sorted({name for _, times in blocks for name in times})
    # Few samples may be wrong, but a busy machine that is not noticed is the larger mistake.
    machine = snapshot.machine and replace(snapshot.machine, samples=max(snapshot.machine.samples, SAMPLES_NEEDED))
    run = RunBlocks(
        np.array([steps for steps, _ in blocks], np.int64),
        {name: np.array([times.get(name, 0) for _, times in blocks], np.int64) for name in names},
        samples / count if samples and count else None,
        None if machine is None else cpu_loss(machine).to_others,
    )
    if not run.block_ns.all() or sums.run.steps.slowed_count > SLOWED * count:  # a journal of 0.1 has no blocks
        return NO_BLOCKS
    return run.grouped(-(-count // MOST_BLOCKS) or 1, count)


def run_of(name: str, meta: dict[str, Any], blocks: RunBlocks = NO_BLOCKS) -> RememberedRun | None:
    """Return the row of a run; None where its program is not known."""
    typed, attempts, settings = typed_program(meta.get("command", "")), meta.get("attempts"), meta.get("settings")
    last = attempts[-1] if isinstance(attempts, list) and attempts and isinstance(attempts[-1], dict) else {}
    timing = settings.get("timing") if isinstance(settings, dict) else None
    facts: dict[str, Any] = {key: meta[key] for key in _FACTS if key in meta}
    work = json.dumps([_HARMLESS.sub("", typed or ""), meta.get("folder"), last.get("world_size"), timing])
    return RememberedRun(name, work, facts, blocks) if typed else None


def with_index(
    runs: Path, work: Callable[["sqlite3.Connection"], T], wait_s: float = WAIT_S, path: str | None = None
) -> tuple[T | None, str]:
    """Return what ``work`` returns, and ""; None and the reason where there is no index that can be written."""
    error: Exception | None = None
    try:
        import sqlite3  # a Python may be built without it

        path = path or _path_of(runs)
        for _ in range(2):
            try:
                with closing(sqlite3.connect(path, timeout=wait_s)) as index, index:  # one transaction
                    index.executescript(TABLE)
                    return work(index), ""
            except (sqlite3.DatabaseError, ValueError, LookupError, TypeError, AttributeError) as damage:
                error = damage
                # Unlike a damaged table or row, a lock or a full disk does not make the index useless.
                name = getattr(damage, "sqlite_errorname", "")
                if isinstance(damage, sqlite3.OperationalError) and name != "SQLITE_ERROR":
                    break
                for each in (path, f"{path}-journal"):
                    Path(each).unlink(missing_ok=True)
    except (OSError, ImportError) as failure:
        error = failure
    return None, f"no index of runs in {runs}, so earlier runs are not compared: {error}"


def _path_of(runs: Path) -> str:
    """Return the path of the index.

    Raises:
        OSError: the folder is on another machine, or something that is not ours is in its place.
    """
    path, whole = runs / INDEX, runs.resolve()
    mounts = [line.split()[1:3] for line in MOUNTS.read_text(errors="replace").splitlines()] if MOUNTS.exists() else []
    _, kind = max(((len(place), kind) for place, kind in mounts if whole.is_relative_to(place)), default=(0, ""))
    if kind.startswith(_REMOTE):
        raise OSError(f"it is a network folder ({kind}), where locks are not reliable")
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise OSError(f"{INDEX} is not a file")
    return str(path)


def put(index: "sqlite3.Connection", run: RememberedRun) -> None:
    """Enter a run."""
    blocks = run.blocks
    sections = {name: (ns // NS_PER_US).tolist() for name, ns in blocks.sections_ns.items()}
    data = [blocks.steps.tolist(), sections, blocks.samples_a_step, blocks.lost]
    row = (*run[:2], json.dumps(run.facts), json.dumps(data))
    index.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)", row)


def row_of(row: Sequence[str]) -> RememberedRun:
    """Return the run of a row.

    Raises:
        ValueError: it is damaged, as in other errors of what it holds.
    """
    steps, sections, samples, lost = json.loads(row[3])
    columns = {name: np.array(column, np.int64) * NS_PER_US for name, column in sections.items()}
    if any(len(column) != len(steps) for column in columns.values()):
        raise ValueError("a row is damaged")
    return RememberedRun(
        row[0], row[1], json.loads(row[2]), RunBlocks(np.array(steps, np.int64), columns, samples, lost)
    )
