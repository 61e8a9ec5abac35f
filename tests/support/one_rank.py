"""A process group of one rank in this process."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as distributed


@contextmanager
def one_rank() -> Iterator[None]:
    """Create a process group, and destroy it afterwards."""
    hook = sys.excepthook
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    sys.excepthook = hook  # init_process_group sets one of its own
    try:
        yield
    finally:
        distributed.destroy_process_group()
