"""Which rank this process is."""

import sys


class Rank:
    """This process's number in a distributed training: torch's, where a process group was seen, else the launcher's."""

    def __init__(self, of_launcher: int) -> None:
        self._of_launcher = of_launcher
        self._of_group: int | None = None

    def note(self) -> None:
        """Look for a process group while there is one: at the end of a program it may be gone."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            self._of_group = int(distributed.get_rank())

    def is_primary(self) -> bool:
        """Return whether this is rank 0, which reports."""
        self.note()
        return (self._of_launcher if self._of_group is None else self._of_group) == 0
