"""Batches of sequences that are eight times as long from one step on."""

import json
import statistics
import time

import torch
from torch import nn

STEPS, SINCE = 300, 150


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    taken_s = []
    for step in range(STEPS):
        began_s = time.perf_counter()
        sequences = torch.randn(16, 8 if step < SINCE else 64, 128)
        optimizer.zero_grad()
        model(sequences).square().mean().backward()
        optimizer.step()
        taken_s.append(time.perf_counter() - began_s)
    short, long = (statistics.quantiles(half, n=4) for half in (taken_s[:SINCE], taken_s[SINCE:]))
    print("TRUTH", json.dumps({"short_s": short, "long_s": long}), flush=True)


if __name__ == "__main__":
    main()
