"""A small unmodified training on many ranks; its arguments plant a fault on one rank."""

import argparse
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

WIDTH, BATCH, ROWS = 128, 16, 640
SLOW_S = 0.02  # planted per step


class Rows(Dataset):
    def __init__(self, count: int, slow_s: float) -> None:
        self.rows = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
        self.count, self.slow_s = count, slow_s

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.slow_s)
        return self.rows[index % ROWS]


class Model(nn.Module):
    def __init__(self, slow_s: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.slow_s = slow_s

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        time.sleep(self.slow_s)
        for layer in self.layers:
            rows = torch.relu(layer(rows))
        return rows


def meet(attempt: int) -> None:
    """Make the process group; a later attempt uses other keys of the store than the one before.

    Otherwise gloo sometimes connects to addresses of processes that have ended (torch 2.13).
    """
    if not attempt:
        dist.init_process_group("gloo")
        return
    server = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.PrefixStore(f"attempt{attempt}", server)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)


def parallel(model: Model, how: str) -> nn.Module:
    if how == "none":
        return model
    if how == "ddp":
        return DistributedDataParallel(model)
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def fail(how: str) -> None:
    sys.stdout.flush()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    raise RuntimeError("planted")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--parallel", choices=("ddp", "fsdp2", "none"), default="ddp")
    parser.add_argument("--slow", choices=("data", "forward", "sleep"))
    parser.add_argument("--slow-rank", type=int, default=1)
    parser.add_argument("--fail", choices=("kill", "stop", "raise"))
    parser.add_argument("--fail-rank", type=int, default=1)
    parser.add_argument("--fail-step", type=int, default=30)
    parser.add_argument("--fail-attempts", type=int, default=1, help="later ones come to their end")
    parser.add_argument("--keep-group", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    meet(attempt)
    rank = dist.get_rank()
    slow = arguments.slow if rank == arguments.slow_rank else None
    is_failing = arguments.fail and rank == arguments.fail_rank and attempt < arguments.fail_attempts

    rows = Rows(arguments.steps * BATCH * dist.get_world_size(), SLOW_S / BATCH if slow == "data" else 0.0)
    loader = DataLoader(rows, BATCH, sampler=DistributedSampler(rows))
    model = parallel(Model(SLOW_S if slow == "forward" else 0.0), arguments.parallel)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for step, batch in enumerate(loader):
        if is_failing and step == arguments.fail_step:
            fail(arguments.fail)
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if slow == "sleep":
            time.sleep(SLOW_S)
        if step % 10 == 9 and arguments.parallel != "none":
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            losses.append(mean.item())
    dist.barrier()
    # Counts every collective of the group, including those issued in C++.
    collectives = dist.distributed_c10d._get_default_group()._get_sequence_number_for_group()
    print(f"rank {rank}: {collectives} collectives, losses {losses}\n", end="", flush=True)
    if is_failing and arguments.fail_step >= arguments.steps:
        fail(arguments.fail)
    if not arguments.keep_group:
        # Gloo of torch 2.13 can deadlock if its group is destroyed while its thread releases the last collective.
        time.sleep(0.2)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
