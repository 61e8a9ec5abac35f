"""Accuracy on held-out data after each epoch, in eval mode and without ``torch.no_grad()``."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def pictures(count: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(count, 256), torch.randint(10, (count,))), batch_size=64)


def accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    hits = sum(int((model(x).argmax(1) == y).sum()) for x, y in loader)
    model.train()
    return hits / len(loader.dataset)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train, held_out = pictures(640), pictures(16_000)
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(8):
        for x, y in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        print(f"epoch {epoch}: {accuracy(model, held_out):.3f}")


if __name__ == "__main__":
    main()
