"""A container whose quota of CPU time is a third of one CPU: the control group of a folder that is given as argument.

Prints the time of the steps in which the training thread had no CPU, as the thread itself sees it.
"""

import json
import os
import sys
import time
from pathlib import Path

if len(sys.argv) > 1:
    (Path(sys.argv[1]) / "cgroup.procs").write_text(str(os.getpid()))

import torch
from torch import nn

STEPS = 150


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(256, 256)
    begin, begin_cpu = time.perf_counter(), time.thread_time()
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    print("TRUTH " + json.dumps({"lost_s": time.perf_counter() - begin - (time.thread_time() - begin_cpu)}))


if __name__ == "__main__":
    main()
