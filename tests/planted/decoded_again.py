"""Each epoch unpacks the same images; with ``--fixed`` once, before them; with ``--random`` each differs."""

import json
import random
import sys
import time
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDE, SIDE, SAMPLES, EPOCHS = 512, 32, 320, 5


class Packed(Dataset):
    def __init__(self) -> None:
        self.files = [zlib.compress(bytes((i * j) % 251 for j in range(WIDE * WIDE)), 1) for i in range(SAMPLES)]
        self.made = [self.unpack(i) for i in range(SAMPLES)] if "--fixed" in sys.argv else None

    def __len__(self) -> int:
        return SAMPLES

    def unpack(self, index: int) -> torch.Tensor:
        pixels = torch.frombuffer(bytearray(zlib.decompress(self.files[index])), dtype=torch.uint8).float()
        return nn.functional.interpolate(pixels.view(1, 1, WIDE, WIDE), SIDE, mode="bicubic", antialias=True)[0] / 255

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.unpack(index) if self.made is None else self.made[index], index % 10


class Flipped(Packed):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image, label = super().__getitem__(index)
        return image.flip(-1) if random.random() < 0.5 else image, label


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Flipped() if "--random" in sys.argv else Packed(), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.Adam(model.parameters())
    began_s = time.process_time()
    for _ in range(EPOCHS):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print("TRUTH", json.dumps({"cpu_s": time.process_time() - began_s, "loss": loss.item()}))


if __name__ == "__main__":
    main()
