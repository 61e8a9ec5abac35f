"""Attention whose mask is filled number by number, again in each forward pass."""

import torch
import torch.nn.functional as F
from torch import nn


def causal_mask(length: int) -> torch.Tensor:
    mask = torch.zeros(length, length)
    for row in range(length):
        for column in range(row + 1, length):
            mask[row, column] = float("-inf")
    return mask


class Attention(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.project = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5 + causal_mask(x.shape[1])
        return self.out((scores.softmax(-1) @ v).mean(1))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Attention(64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(200):
        loss = F.cross_entropy(model(torch.randn(32, 32, 64)), torch.randint(10, (32,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
