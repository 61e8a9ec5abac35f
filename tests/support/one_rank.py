"""A process group of one rank in this process."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as distributed


@contextmanager
def one_rank() -> Iterator[None]:
    """Have a process group."""
    hook = sys.excepthook
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    sys.excepthook = hook  # it puts one of its own there
    try:
        yield
    finally:
        distributed.destroy_process_group()
