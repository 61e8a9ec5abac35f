"""Rows that a library makes, or texts that one tokenizes, again in each epoch; each way beside its remedy."""

import sys

import pandas as pd
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from torch.utils.data import DataLoader

WAY, COUNT, WIDTH, COLUMNS = sys.argv[1], 512, 192, 24
BATCH, EPOCHS = (64, 80) if WAY.startswith("datasets") else (16, 10)  # a batch of 16 would be quick
WORDS = [f"word{number}" for number in range(500)]
TEXTS = [" ".join(WORDS[(7 * at + 3 * row) % 500] for at in range(WIDTH)) for row in range(COUNT)]
ROWS = {f"c{column}": [float(row % (column + 2)) for row in range(COUNT)] for column in range(WIDTH)}

tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="word0"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()


class Rows:
    """Makes each row when it is asked for."""

    def __init__(self):
        self.frame, self.table = pd.DataFrame(ROWS), torch.tensor(pd.DataFrame(ROWS).to_numpy()).float()
        self.ids = [torch.tensor(tokenizer.encode(text).ids) for text in TEXTS] if WAY == "tokenized" else []

    def __len__(self):
        return COUNT

    def __getitem__(self, at):
        if WAY == "pandas":
            return torch.tensor([float(self.frame.iloc[at][name]) for name in self.frame.columns[:9]])
        if WAY == "tokenizer":
            return torch.tensor(tokenizer.encode(TEXTS[at]).ids).float()
        return self.ids[at].float() if self.ids else self.table[at]


class Shifted(Rows):
    """Tokenizes another text in each epoch."""

    def __getitem__(self, at):
        text = TEXTS[int(torch.randint(COUNT, ()))]
        return torch.tensor(tokenizer.encode(text).ids).float()


class Texts(Rows):
    """Returns texts, which ``collate`` tokenizes."""

    def __getitem__(self, at):
        return TEXTS[at]


def collate(texts):
    return torch.tensor([each.ids for each in tokenizer.encode_batch(texts)]).float()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = {"tokenizer-random": Shifted, "tokenizer-collate": Texts}.get(WAY, Rows)()
    if WAY.startswith("datasets"):
        rows = [float(row) for row in range(COUNT)]
        data = Dataset.from_dict({f"x{at}": rows for at in range(COLUMNS)}).with_format(WAY.partition("-")[2])
    model, loss = nn.LazyLinear(4), torch.zeros(())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    loader = DataLoader(data, BATCH, shuffle=True, collate_fn=collate if isinstance(data, Texts) else None)
    for _ in range(EPOCHS):
        for batch in loader:
            loss = model(torch.stack([*batch.values()], 1) if isinstance(batch, dict) else batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"{loss.item():.4f}")


main()
