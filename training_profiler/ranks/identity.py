"""Which rank this process is."""

import sys
from dataclasses import replace

from training_profiler.snapshot.ranks import RankId


class Rank:
    """This process's place in a distributed training: torch's, where a process group was seen, else the launcher's."""

    def __init__(self, of_launcher: RankId, is_certain: bool = True) -> None:
        self.who = of_launcher
        self.is_certain = is_certain  # False: no launcher told, and a process group may
        self.has_group = False  # a process group was seen

    def detect_process_group(self) -> None:
        """Look for a process group while there is one: at the end of a program it may be gone."""
        distributed = sys.modules.get("torch.distributed")
        try:
            if distributed is None or not distributed.is_available() or not distributed.is_initialized():
                return
            rank, world_size = int(distributed.get_rank()), int(distributed.get_world_size())
        except (AttributeError, ValueError, RuntimeError):  # on another thread it is just imported, or the group goes
            return
        self.has_group = self.is_certain = True
        if (rank, world_size) != (self.who.rank, self.who.world_size):
            self.who = replace(self.who, rank=rank, world_size=world_size)

    def is_primary(self) -> bool:
        """Return whether this is rank 0, which reports."""
        self.detect_process_group()
        return self.who.rank == 0

    def is_one_of_many(self) -> bool:
        """Return whether there are other ranks."""
        return self.who.world_size > 1
