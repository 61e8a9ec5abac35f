"""A training that overwrites its checkpoint every 10 steps and resumes from it: ``training.py``."""

import os
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

CHECKPOINT = "checkpoint.pt"


def main() -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(128, 8)), batch_size=4, num_workers=2)
    for step, (batch,) in enumerate(loader, start=1):
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
        if step % 10 == 0:
            torch.save({"step": step, "net": net.state_dict()}, CHECKPOINT)
            torch.save(net.state_dict(), Path("über.pt"))
            saved = torch.load(CHECKPOINT, mmap=True)
            assert saved["step"] == step
            net.load_state_dict(torch.load("über.pt"))
    assert sorted(path.name for path in Path().glob("*.pt")) == ["checkpoint.pt", "über.pt"]
    weights = torch.from_file("weights.bin", shared=True, size=4)
    weights[0] = 1
    assert torch.from_file("weights.bin", shared=False, size=4).tolist() == [1, 0, 0, 0]
    print("done", os.getpid())


if __name__ == "__main__":
    main()
