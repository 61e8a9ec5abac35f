"""A data set with a loop of Python for each sample, between two operators of torch that give up the GIL for moments."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Vectors(Dataset):
    def __init__(self, count: int) -> None:
        self.vectors = torch.randn(count, 64)

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        total = 0
        for number in range(700):
            total += number * number % 7
        return self.vectors[index] + total % 2, index % 10


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Vectors(64 * 600), batch_size=64)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for vectors, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(vectors), labels)
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
