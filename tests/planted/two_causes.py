"""Two functions take equal parts of making a sample; with ``--fixed`` the second one is gone."""

import json
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader

VALUES = [float(at % 17) for at in range(4_000)]
spent_s = {"smoothed": 0.0, "squared": 0.0}


def smoothed(values: list[float]) -> list[float]:
    began_s, last, made = time.thread_time(), 0.0, []
    for value in values:
        last = 0.9 * last + 0.1 * value
        made.append(last)
    spent_s["smoothed"] += time.thread_time() - began_s
    return made


def squared(values: list[float]) -> list[float]:
    began_s, total, made = time.thread_time(), 0.0, []
    for value in values:
        total += value * value
        made.append(total)
    spent_s["squared"] += time.thread_time() - began_s
    return made


class Signals:
    def __len__(self) -> int:
        return 1_600

    def __getitem__(self, at: int) -> torch.Tensor:
        made = smoothed(VALUES)
        if "--fixed" not in sys.argv:
            made = squared(VALUES)
        return torch.tensor(made[-8:])


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    for batch in DataLoader(Signals(), batch_size=8):  # type: ignore[arg-type]
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("TRUTH", json.dumps(spent_s))


if __name__ == "__main__":
    main()
