"""Texts that are padded to the longest of the data set, with ``--longest`` to the longest of their batch.

With ``--tokens`` nothing says that 0 is padding: it is a token like others.
"""

import json
import sys
import time
from itertools import pairwise
from statistics import median

import torch
from torch import nn
from torch.utils.data import DataLoader

TEXTS, LONGEST, WIDTH = 800, 96, 48
IS_PADDING, IS_CUT = "--tokens" not in sys.argv, "--longest" in sys.argv


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(500, WIDTH, padding_idx=0 if IS_PADDING else None)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 96, dropout=0.0, batch_first=True)
        self.layers, self.last = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(WIDTH, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        unseen = ids == 0 if IS_PADDING else None
        return self.last(self.layers(self.words(ids), src_key_padding_mask=unseen)[:, 0])


def collate(texts: list[torch.Tensor]) -> torch.Tensor:
    longest = max(map(len, texts)) if IS_CUT else LONGEST
    ids = torch.zeros(len(texts), longest, dtype=torch.long)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    return ids


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    lengths = (6 + torch.empty(TEXTS).exponential_(1 / 8)).long().clamp(max=LONGEST)
    texts = [torch.randint(1, 500, (int(length),)) for length in lengths]
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    positions, padding, ends_s = 0, 0, []
    for ids in DataLoader(texts, batch_size=16, shuffle=True, collate_fn=collate):  # type: ignore[arg-type]
        loss = nn.functional.cross_entropy(model(ids), ids[:, 0] % 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        positions, padding = positions + ids.numel(), padding + int((ids == 0).sum())
        ends_s.append(time.thread_time())
    # The first steps are longer: memory is new, and what watches a program looks at them.
    steps_s = [end - begin for begin, end in pairwise(ends_s[20:])]
    figures = {"padding": padding / positions, "step_s": median(steps_s), "loss": loss.item()}
    print("TRUTH", json.dumps(figures))


if __name__ == "__main__":
    main()
