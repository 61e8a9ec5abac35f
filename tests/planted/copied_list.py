"""Workers read a list of many Python objects, and copy it so; or (fixed) a NumPy array; or (cached) keep their own."""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLES, EACH = 6_400, 250


class Texts(Dataset[torch.Tensor]):
    def __init__(self, kind: str) -> None:
        self.kind = kind
        numbers = np.arange(SAMPLES * EACH, dtype=np.float64)
        self.numbers = numbers if kind else numbers.tolist()
        self.cache: list[list[float]] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        part = self.numbers[index * EACH : (index + 1) * EACH]
        if self.kind == "cached":
            self.cache.append([float(number) for number in part])
        return torch.tensor(part, dtype=torch.float32)


def main(kind: str = "") -> None:
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(EACH, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    loader = DataLoader(Texts(kind), 16, shuffle=True, num_workers=2, persistent_workers=True)
    for _ in range(5):
        for texts in loader:
            optimizer.zero_grad()
            model(texts).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
