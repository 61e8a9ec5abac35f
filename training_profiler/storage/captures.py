"""The traces that a run's captures left in its folder."""

from pathlib import Path
from typing import Final

from training_profiler.safety.files import is_readable
from training_profiler.torch_capture.request import FOLDER

MOST_CAPTURES: Final = 50


def captures_of(folder: Path) -> list[str]:
    """Return the paths of the traces below the run folder, by name."""
    try:
        names = sorted(
            path.name for path in (folder / FOLDER).iterdir() if ".trace.json" in path.name and is_readable(path)
        )
    except OSError:
        return []
    return [f"{FOLDER}/{name}" for name in names[:MOST_CAPTURES]]
