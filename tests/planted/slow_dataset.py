"""A dataset with too much Python work per sample. Prints the CPU time of it for each batch."""

import json
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, count: int) -> None:
        self.seeds = list(range(count))
        self.cpu_s = 0.0

    def __len__(self) -> int:
        return len(self.seeds)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        begin_s = time.thread_time()
        pixels = [(self.seeds[index] * 7919 + i * 104729) % 255 / 255 for i in range(2 * 3 * 16 * 16)]
        image = torch.tensor(pixels).view(2, 3, 16, 16).mean(0)
        self.cpu_s += time.thread_time() - begin_s
        return image, index % 10


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    pictures = Pictures(1920)
    loader = DataLoader(pictures, batch_size=32)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 14 * 14, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.4f}")
    print("TRUTH " + json.dumps({"making_cpu_s": pictures.cpu_s / len(loader)}))


if __name__ == "__main__":
    main()
