"""Trainings that are killed: each writes when its run began and when each step ended into a file that survives.

Arguments: a kind of ``MANUAL`` and the file; or ``launch``, under ``training-profiler run``, which starts a child for
each line "kind rank file" of its standard input, in the folder of the file, and prints the child's process id.
"""

import mmap
import os
import random
import signal
import struct
import sys
import time
from pathlib import Path

MOST_STEPS = 20_000
LONG_S = 600.0  # until it is killed
MANUAL = ("manual", "one long section")


class Truth:
    """Begin of the run and ends of its steps, in ns of the wall clock."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(8 * (MOST_STEPS + 2)))
        with path.open("r+b") as file:
            self._data = mmap.mmap(file.fileno(), 0)
        self._steps = 0

    def begin(self) -> None:
        """Note that the run begins now."""
        struct.pack_into("q", self._data, 0, time.time_ns())

    def step(self) -> None:
        """Note that a step has ended."""
        self._steps += 1
        struct.pack_into("q", self._data, 8 * (1 + self._steps), time.time_ns())
        struct.pack_into("q", self._data, 8, self._steps)


def manual(kind: str, truth: Truth) -> None:
    """Train with sections of its own."""
    from training_profiler import profile_section, profile_step, start_training_profiling

    truth.begin()
    start_training_profiling(log_every=10**9)
    while True:
        with profile_section("forward_pass"), profile_section("attention"):
            time.sleep(LONG_S if kind == MANUAL[1] else random.uniform(0, 0.02))
        truth.step()
        profile_step()


def inferred(kind: str, truth: Truth, rank: int, port: int) -> None:
    """Train without a word of the profiler's."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    pause_s = {"steps": 0.005, "slow steps": 0.7, "first step": LONG_S}.get(kind, 0.02)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            time.sleep(random.uniform(pause_s / 2, pause_s))
            return self.layer(batch)

    model: torch.nn.Module = Model()
    if kind == "compile":
        layers = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()) for _ in range(40)]
        model = torch.compile(torch.nn.Sequential(*layers, torch.nn.Linear(4, 1)), backend="aot_eager")
    if kind == "ranks":
        torch.distributed.init_process_group("gloo", init_method=f"tcp://localhost:{port}", rank=rank, world_size=2)
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(1 << 20, 4)), batch_size=8)
    truth.begin()
    for (batch,) in loader:
        model(batch).sum().backward()
        optimizer.step()
        truth.step()


def launch() -> None:
    """Start children as they are asked for."""
    import torch  # before the forks, once

    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        kind, rank, port, path = line.rstrip("\n").split("\t")
        child = os.fork()
        if not child:
            os.chdir(Path(path).parent)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            random.seed()
            inferred(kind, Truth(Path(path)), int(rank), int(port))
        print(child, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "launch":
        launch()
    else:
        manual(sys.argv[1], Truth(Path(sys.argv[2])))
