"""A training as people write it, and with nothing of the profiler in it: what ``watched_training`` runs.

``python plain_training.py SIZE BATCH BLOCK_STEPS``; the last makes it alternate with others.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.turns import Turns

SIZES = {"50 ms": (128, 3, 40), "5 ms": (32, 2, 12)}  # width, layers, words
WORDS, CLASSES = 1000, 10


class Classifier(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, words_BT: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(words_BT)).mean(1))


def make(size: str, batch: int) -> tuple[nn.Module, DataLoader]:
    torch.manual_seed(0)
    width, layers, length = SIZES[size]
    data = TensorDataset(torch.randint(WORDS, (64 * batch, length)), torch.randint(CLASSES, (64 * batch,)))
    return Classifier(width, layers), DataLoader(data, batch, shuffle=True)


def main(size: str, batch: int, block_steps: int) -> None:
    turns = Turns(block_steps)
    model, loader = make(size, batch)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    criterion = nn.CrossEntropyLoss()
    while True:
        for words, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(words), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if not turns.after_step():
                print(f"loss {loss.item():.4f}")
                return


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
