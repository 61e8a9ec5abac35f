"""Photos of many sizes are padded to the largest of the data set; or (fixed) to the largest of their batch.

With ``digits`` all have one size, and objects lie on a background.
"""

import json
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader

LARGEST = 96


class Photos:
    def __init__(self) -> None:
        sizes = torch.randint(24, 56, (640, 2)).tolist()
        self.images = [torch.rand(3, *size) + 0.1 for size in sizes]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, at: int) -> torch.Tensor:
        return self.images[at]


def collate(images: list[torch.Tensor]) -> torch.Tensor:
    largest = max(max(each.shape[1:]) for each in images) if "fixed" in sys.argv else LARGEST
    batch, first = torch.zeros(len(images), 3, largest, largest), 8 if "digits" in sys.argv else 0
    for made, image in zip(batch, images, strict=True):
        height, width = image.shape[1:]
        made[:, first : first + height, first : first + width] = image
    return batch


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = (nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    began_s = time.thread_time()
    for _ in range(2):
        for batch in DataLoader(Photos(), 8, shuffle=True, collate_fn=collate):  # type: ignore[arg-type]
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print("TRUTH", json.dumps({"cpu_s": time.thread_time() - began_s}))


if __name__ == "__main__":
    main()
