"""Where each rank tells what it has measured, and rank 0 reads it: c10d's store, or files in the run folder."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from training_profiler.distributed.rank import Rank


class Told(NamedTuple):
    """What one rank told last."""

    data: bytes
    heard_s_ago: float


class Board:
    """What ranks tell each other. No call but ``finish`` waits for anybody; a thread carries what is told.

    Args:
        rank: whose board it is.
        wait_s: the longest time that ``finish`` may take.
        has_agent_store: whether the store outlives the process group, because the launcher keeps it.
        guard: runs what may fail, and switches it off for good where it does.
    """

    def __init__(
        self, rank: Rank, wait_s: float, has_agent_store: bool, guard: Callable[[str, Callable[[], None]], None]
    ) -> None:
        self.folder: Path | None = None  # of the run, once this rank has it

    def begin(self) -> None:
        """Start to carry, where there are other ranks and not yet a thread."""

    @property
    def run_name(self) -> str | None:
        """The name of the run's folder as rank 0 told it; None as long as that is not known."""
        return None

    def name_run(self, name: str) -> None:
        """Tell the other ranks the name of the run's folder."""

    def tell(self, data: bytes, is_final: bool = False) -> None:
        """Tell the others what this rank has measured so far, in place of what it told before."""

    def told(self) -> Mapping[int, Told]:
        """Return what other ranks told last, as far as it has arrived, by their number."""
        return {}

    def finish(self) -> None:
        """Carry what was told last, and on rank 0 wait for the others' last, no longer than ``wait_s``."""

    def abandon(self) -> None:
        """Forget it without a word: in a forked child it is the parent's."""

    def notes(self) -> list[str]:
        """Return sentences on what did not arrive."""
        return []
