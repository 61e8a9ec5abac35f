"""One process, or several under ``torchrun``."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist


def pick_device(wanted: str) -> torch.device:
    """Return the device to train on; ``auto`` takes an accelerator if there is one."""
    if wanted != "auto":
        device = torch.device(wanted)
    elif torch.accelerator.is_available():
        device = torch.device(torch.accelerator.current_accelerator() or "cpu")
    else:
        device = torch.device("cpu")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    return device


@contextmanager
def process_group(device: torch.device) -> Iterator[tuple[int, int]]:
    """Join the other ranks if ``torchrun`` started this process; return (rank, world size)."""
    if "RANK" not in os.environ:
        yield 0, 1
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        # Gloo of torch 2.13 can deadlock if its group is destroyed while its thread releases the last collective.
        time.sleep(0.2)
        dist.destroy_process_group()


def mean_over_ranks(value: torch.Tensor) -> float:
    """Return the mean over all ranks as a number; waits for the device, and for the other ranks."""
    if dist.is_initialized():
        value = value.clone()
        dist.all_reduce(value)
        value /= dist.get_world_size()
    return float(value)


def wait_for_all() -> None:
    """Wait until every rank has reached this call."""
    if dist.is_initialized():
        dist.barrier()
