"""The state of a recurrent cell is not detached: the graph of each step reaches into all steps before."""

import json
import sys
import time

import torch
from torch import nn

STEPS = 150


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    cell, head = nn.LSTMCell(8, 16), nn.Linear(16, 8)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    hidden = (torch.zeros(4, 16), torch.zeros(4, 16))
    inputs = torch.randn(4, 8)
    begin = time.perf_counter()
    for _ in range(STEPS):
        optimizer.zero_grad()
        hidden = cell(inputs, hidden)
        head(hidden[0]).sub(inputs).square().mean().backward(retain_graph=True)
        optimizer.step()
        if "fixed" in sys.argv:
            hidden = (hidden[0].detach(), hidden[1].detach())
    print("TRUTH " + json.dumps({"seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    main()
