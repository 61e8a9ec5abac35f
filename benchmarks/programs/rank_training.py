"""A small unmodified training on many ranks that notes its progress in files, for ``benchmarks/rank_faults.py``.

``python rank_training.py FOLDER --train-s 2``: each rank writes ``FOLDER/pid-RANK-ATTEMPT`` once it has started, and
its number of steps to ``FOLDER/steps-RANK-ATTEMPT``, and to ``FOLDER/end-RANK-ATTEMPT`` when its own code ended.
"""

import argparse
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WIDTH, BATCH = 64, 16
STEP_S = 0.01


class Rows(Dataset):
    def __init__(self, count: int) -> None:
        self.rows = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


def meet(attempt: int, timeout: timedelta) -> None:
    """Make the process group; a later attempt uses other keys of the store.

    Otherwise gloo sometimes connects to addresses of processes that have ended (torch 2.13).
    """
    if not attempt:
        dist.init_process_group("gloo", timeout=timeout)
        return
    server = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.PrefixStore(f"attempt{attempt}", server)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)


def main() -> None:
    arguments = read_arguments()
    try:
        train(arguments)
    finally:
        (arguments.folder / f"end-{os.environ['RANK']}-{attempt()}").write_text(str(time.monotonic()))


def attempt() -> int:
    """Return how often torchrun has started this rank again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train-s", type=float, default=2.0)
    parser.add_argument("--timeout-s", type=float, default=5.0, help="of the process group: for a rank that is stopped")
    return parser.parse_args()


def train(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = int(os.environ["RANK"])
    pid = arguments.folder / f"pid-{rank}-{attempt()}"
    draft = pid.with_suffix(".part")
    draft.write_text(str(os.getpid()))
    draft.rename(pid)
    progress = os.open(arguments.folder / f"steps-{rank}-{attempt()}", os.O_WRONLY | os.O_CREAT)

    meet(attempt(), timedelta(seconds=arguments.timeout_s))
    steps = int(arguments.train_s / STEP_S)
    loader = DataLoader(Rows(steps * BATCH), BATCH)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in enumerate(loader):
        begin_s = time.perf_counter()
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        os.pwrite(progress, b"%8d" % (step + 1), 0)
        time.sleep(max(0.0, STEP_S - (time.perf_counter() - begin_s)))
    dist.barrier()
    time.sleep(0.2)  # gloo can lock up where its group goes right after a collective
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
