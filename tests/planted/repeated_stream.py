"""A stream of which each of two workers yields all samples: every sample is trained on twice."""

import sys
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __init__(self, samples: int, is_divided: bool) -> None:
        self.samples, self.is_divided = samples, is_divided

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if self.is_divided and info is not None else (0, 1)
        for index in range(first, self.samples, step):
            yield torch.randn(64, generator=torch.Generator().manual_seed(index)), index % 10


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Stream(800, "--divided" in sys.argv), batch_size=8, num_workers=2)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _epoch in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
    print(f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
