"""A trainer that keeps a moving average of the weights in a new copy of the model after each step."""

import copy

import torch
from torch import nn


class Trainer:
    def __init__(self) -> None:
        layers = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.SiLU())]
        self.model = nn.Sequential(*layers, nn.Linear(64, 10))
        self.average = copy.deepcopy(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, foreach=True)

    def update_average(self) -> None:
        fresh = copy.deepcopy(self.model)
        with torch.no_grad():
            torch._foreach_lerp_(list(fresh.parameters()), list(self.average.parameters()), 0.99)
        self.average = fresh

    def train(self, steps: int) -> float:
        for _ in range(steps):
            loss = nn.functional.cross_entropy(self.model(torch.randn(64, 64)), torch.randint(10, (64,)))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.update_average()
        return loss.item()


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(f"{Trainer().train(300):.4f}")


if __name__ == "__main__":
    main()
