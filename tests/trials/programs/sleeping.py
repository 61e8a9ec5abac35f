"""A training whose steps mostly sleep, so their time is known; writes a file that must not stay."""

import random
import sys
import time
from pathlib import Path

import torch
from torch import nn

import tests.chaos.programs.without_dynamo  # noqa: F401

SLEEP_S = 0.01
STEPS = 2000


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    torch.set_num_threads(1)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        x = torch.randn(16, 8) * random.random()
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(SLEEP_S)
        if step % 10 == 0:
            Path("checkpoint.txt").write_text(str(step))
    print(f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
