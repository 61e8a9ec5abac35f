"""A data set of many small objects, and new ones in each step: full garbage collections go through all of them.

Prints the time of its collections as the program itself sees it. With ``freeze`` they leave out the data set.
"""

import gc
import json
import sys
import time
from collections import deque

import torch
from torch import nn

STEPS = 150


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = [[index] for index in range(400_000)]
    kept: deque[list[list[int]]] = deque(maxlen=3)
    gc.collect()
    if "freeze" in sys.argv:
        gc.freeze()
    seconds = dict.fromkeys(("generation 0", "generation 1", "generation 2"), 0.0)
    begins: list[float] = []

    def seen(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            begins.append(time.perf_counter())
        else:
            seconds[f"generation {info['generation']}"] += time.perf_counter() - begins[-1]

    gc.callbacks.insert(0, seen)
    begin = time.perf_counter()
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.tensor(data[step : step + 384], dtype=torch.float32).expand(384, 64)).square().mean().backward()
        optimizer.step()
        kept.append([[step] for _ in range(10_000)])  # survives some young collections, as a replay buffer does
    took = time.perf_counter() - begin
    gc.callbacks.remove(seen)
    print("TRUTH " + json.dumps({**seconds, "steps": took}))


if __name__ == "__main__":
    main()
