"""A resumed training that fetches what it was trained on before; from there on; or its data are read first."""

import json
import sys
import time
from itertools import islice

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

DONE, STEPS = 120, 40


class Files(Dataset):
    begun_s = 0.0  # before it, the profiler starts, which takes long on a busy machine

    def __len__(self) -> int:
        return 8 * (DONE + STEPS)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.begun_s = self.begun_s or time.perf_counter()
        time.sleep(0.001)  # a slow disk
        return torch.randn(64, generator=torch.Generator().manual_seed(index)), index % 10


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    way, data = next(iter(sys.argv[1:]), ""), Files()
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Subset(data, range(8 * DONE, len(data))) if way == "--fixed" else data, batch_size=8)
    batches, kept, first = iter(loader), [], 0 if way == "--fixed" else DONE
    if way == "--statistics":
        mean = sum(inputs.mean() for inputs, _ in loader) / len(loader)
        batches, first = ((inputs - mean, targets) for inputs, targets in islice(loader, STEPS)), 0
    elif way == "--buffer":
        kept = list(islice(batches, DONE))
        first = 0
    for at, (inputs, targets) in enumerate(batches):
        if at < first:
            continue
        if at == first:
            before_s = time.perf_counter() - data.begun_s
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.4f}", len(kept))
    print("TRUTH", json.dumps({"before_s": before_s}))


if __name__ == "__main__":
    main()
