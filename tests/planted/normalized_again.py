"""Each step computes means and deviations of all data again; once with ``--fixed``, of its batch with ``--batch``."""

import json
import sys
import time

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, data: torch.Tensor) -> None:
        super().__init__()
        self.data = data
        self.layers = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
        self.mean, self.deviation = data.mean(0), data.std(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "--batch" in sys.argv:
            x = (x - x.mean(0)) / x.std(0)
        elif "--fixed" in sys.argv:
            x = (x - self.mean) / self.deviation
        else:
            x = (x - self.data.mean(0)) / self.data.std(0)
        return self.layers(x)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = torch.randn(8_000, 32) * 3 + 1
    model = Net(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    began_s = time.process_time()
    for _ in range(300):
        x = data[torch.randint(len(data), (64,))]
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 1).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("TRUTH", json.dumps({"cpu_s": time.process_time() - began_s, "loss": loss.item()}))


if __name__ == "__main__":
    main()
