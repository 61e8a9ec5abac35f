"""A bank of features, in the loss of each step, grows by a batch; or (meters) lists do whose means are taken again.

With ``fixed``, the last features or values are kept.
"""

import sys

import torch
from torch import nn

STEPS = 600


class Bank(nn.Module):
    features: torch.Tensor

    def __init__(self, most: int) -> None:
        super().__init__()
        self.net, self.most = nn.Linear(64, 64), most
        self.register_buffer("features", torch.randn(64, 64))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        made = nn.functional.normalize(self.net(batch), dim=1)
        scores = made @ self.features.T
        self.features = torch.cat([self.features, made.detach()])[-self.most :]
        return scores


class Meter:
    def __init__(self, most: int) -> None:
        self.kept: list[torch.Tensor] = []
        self.most = most

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        self.kept.append(value)
        del self.kept[: -self.most]
        return sum(self.kept, torch.zeros(())) / len(self.kept)


class Trainer:
    def __init__(self, most_kept: int, most_features: int) -> None:
        self.model = Bank(most_features)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.meters = {name: Meter(most_kept) for name in ("loss", "accuracy")}

    def step(self, batch: torch.Tensor) -> None:
        loss = nn.functional.cross_entropy(self.model(batch), torch.arange(len(batch)))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        for meter in self.meters.values():
            meter.mean(loss.detach())


def main(*arguments: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    is_of_meters, is_fixed = "meters" in arguments, "fixed" in arguments
    trainer = Trainer(10**9 if is_of_meters and not is_fixed else 20, 64 if is_of_meters or is_fixed else 10**9)
    for _ in range((3 if is_of_meters and not is_fixed else 1) * STEPS):
        trainer.step(torch.randn(64, 64))


if __name__ == "__main__":
    main(*sys.argv[1:])
