"""A training whose calls of torch a mode of the program sees; prints the last loss, and how often it saw each."""

import json
from collections import Counter

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils.data import DataLoader

SEEN: Counter[str] = Counter()


class Watch(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        SEEN[resolve_name(func) or str(func)] += 1
        return func(*args, **(kwargs or {}))


def main() -> None:
    torch.manual_seed(0)
    layers = nn.Embedding(50, 8), nn.Flatten(), nn.Linear(32, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1)
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    rows = [{"x": torch.randint(0, 50, (4,)), "y": torch.randn(1)} for _ in range(160)]
    pairs = [(row["x"], row["y"]) for row in rows]
    with Watch():
        for data in (rows, pairs) * 3:
            for batch in DataLoader(data, 4):
                x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
                loss = (model(x) - y).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    print(json.dumps([loss.item(), SEEN]))


if __name__ == "__main__":
    main()
