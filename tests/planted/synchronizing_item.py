"""Each step reads the norm of every gradient. The device is fake: a read waits until its work is done."""

import functools
import time

import torch
from torch import nn

DEVICE_IS_BEHIND_S = 0.002


class OnDevice:
    """A number that a device has not computed yet: reading it waits, as ``Tensor.item`` does."""

    item = functools.partial(time.sleep, DEVICE_IS_BEHIND_S)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(150):
        loss = nn.functional.cross_entropy(model(torch.randn(256, 256)), torch.randint(10, (256,)))
        optimizer.zero_grad()
        loss.backward()
        for _parameter in model.parameters():
            norm = OnDevice()
            norm.item()
        optimizer.step()
    print(f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
