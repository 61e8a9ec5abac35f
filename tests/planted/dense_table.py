"""A table of embeddings with dense gradients, of whose rows each step uses a few."""

import torch
from torch import nn

STEPS = 40


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    table, head = nn.EmbeddingBag(60_000, 64, mode="sum"), nn.Linear(64, 2)
    optimizer = torch.optim.Adam([*table.parameters(), *head.parameters()], lr=1e-3, foreach=True)
    for _ in range(STEPS):
        words, labels = torch.randint(60_000, (32, 20)), torch.randint(2, (32,))
        loss = nn.functional.cross_entropy(head(table(words)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
