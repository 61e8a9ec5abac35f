"""Words of a large vocabulary become one-hot vectors, which a layer multiplies with its weight."""

import torch
import torch.nn.functional as F
from torch import nn


class Bag(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.words = words
        self.rows = nn.Linear(words, 4, bias=False)
        self.out = nn.Linear(4, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        vectors = F.one_hot(ids, self.words)
        return self.out(self.rows(vectors.sum(1).float()))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Bag(4000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(450):  # enough samples of its lines
        loss = F.cross_entropy(model(torch.randint(4000, (32, 16))), torch.randint(10, (32,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
