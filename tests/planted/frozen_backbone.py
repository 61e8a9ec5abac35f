"""A frozen backbone computes the same features in each epoch; ``--kept``: it computes them once."""

import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 6


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    backbone = nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 256))
    backbone.requires_grad_(False).eval()
    model = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(60 * 64, 256), torch.randint(10, (60 * 64,))
    is_kept = "--kept" in sys.argv
    if is_kept:
        x = torch.cat([backbone(part) for part in x.split(64)])
    for _ in range(EPOCHS):
        for inputs, labels in DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True):
            features = inputs if is_kept else backbone(inputs)
            loss = cross_entropy(model(features), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
