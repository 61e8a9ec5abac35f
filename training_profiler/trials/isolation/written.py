"""What a trial has written, changed and removed, read from its layers."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from training_profiler.trials.isolation import namespaces, plan

MOST_NAMED: Final = 1000


class Change(NamedTuple):
    """A file that the trial wrote or removed; the user's own is as it was."""

    path: str
    size_bytes: int
    kind: str
    """``created``, ``changed`` or ``removed``."""


class Changes(NamedTuple):
    """All changes; the first thousand are named."""

    named: tuple[Change, ...]
    files: int
    size_bytes: int


def save(trial: plan.Plan) -> None:
    """Write what the layers have into the folder of the plan."""
    found = read(trial.layers)
    (trial.folder / plan.WRITTEN).write_text(json.dumps(found), encoding="utf-8")


def load(trial: plan.Plan) -> Changes:
    """Return what was saved, else what the layers have now."""
    try:
        named, files, size_bytes = json.loads((trial.folder / plan.WRITTEN).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the launcher was killed
        return read(trial.layers)
    return Changes(tuple(Change(*change) for change in named), files, size_bytes)


def read(layers: Path) -> Changes:
    """Return what all layers have."""
    changes = sorted(change for layer in sorted(layers.glob("*")) for change in _changes_in(layer))
    return Changes(tuple(changes[:MOST_NAMED]), len(changes), sum(change.size_bytes for change in changes))


def _changes_in(layer: Path) -> Iterator[Change]:
    top = str(layer / namespaces.WRITTEN)
    marker = layer / namespaces.COVERED
    covered = os.fsdecode(marker.read_bytes()) if marker.exists() else "/"
    for mark in sorted(layer.glob("removed/*")):  # of the redirection
        path = os.readlink(mark)
        if not os.path.lexists(top + path):
            yield Change(path, 0, "removed")
    for folder, _, names in os.walk(top):
        for name in names:
            inside = os.path.relpath(os.path.join(folder, name), top)
            path = os.path.join(covered, inside)
            status = os.lstat(os.path.join(folder, name))
            if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:  # what an overlay puts where a file was removed
                yield Change(path, 0, "removed")
            else:
                yield Change(path, status.st_size, "changed" if os.path.lexists(path) else "created")
