"""The rank of this process."""

import sys
from dataclasses import replace

from training_profiler.snapshot.ranks import RankId


class Rank:
    """This process's place in a distributed training: from torch's process group if there is one, else the launcher."""

    def __init__(self, of_launcher: RankId, is_certain: bool = True) -> None:
        self.who = of_launcher
        self.is_certain = is_certain  # False: no launcher has set the rank, and a process group may
        self.has_group = False  # a process group was detected

    def detect_process_group(self) -> None:
        """Read the process group while it exists: at the end of a program it may be gone."""
        distributed = sys.modules.get("torch.distributed")
        try:
            if distributed is None or not distributed.is_available() or not distributed.is_initialized():
                return
            rank, world_size = int(distributed.get_rank()), int(distributed.get_world_size())
        except (
            AttributeError,
            ValueError,
            RuntimeError,
        ):  # torch.distributed is being imported on another thread, or the group is being destroyed
            return
        self.has_group = self.is_certain = True
        if (rank, world_size) != (self.who.rank, self.who.world_size):
            self.who = replace(self.who, rank=rank, world_size=world_size)

    def is_primary(self) -> bool:
        """Return whether this is rank 0, which reports."""
        self.detect_process_group()
        return self.who.rank == 0

    def is_one_of_many(self) -> bool:
        """Return whether the training has other ranks."""
        return self.who.world_size > 1
