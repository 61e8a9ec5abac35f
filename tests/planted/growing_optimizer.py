"""Averages of rows that are seen no more decay to subnormal floats; or (added) parameters are given to SGD again."""

import sys

import torch
from torch import nn


def main(*arguments: str) -> None:
    torch.set_flush_denormal("fixed" in arguments)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Embedding(12_000, 16), nn.Flatten(), nn.Linear(128, 10))
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.95))
    added = "added" in arguments
    if added:
        optimizer = torch.optim.SGD(model[2].parameters(), lr=1e-5)
    for step in range(1000 if added else 2500):
        if added and "fixed" not in arguments:
            optimizer.param_groups[0]["params"].extend(model[2].parameters())
        ids = torch.randint(0, 12_000, (600, 8)) if step < 100 and not added else torch.randint(0, 1_200, (16, 8))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids), ids[:, 0] % 10).backward()
        optimizer.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
