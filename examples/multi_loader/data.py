"""The data sets that the file can name, and a loader for each."""

import time

import torch
from torch.utils.data import DataLoader, Dataset

from examples.multi_loader.config import LoaderPlan
from examples.rectified_flow.data import load_splits

Item = tuple[torch.Tensor, torch.Tensor]


class Digits(Dataset[Item]):
    """Images of shape (1, 8, 8) and their digits; noisy ones are harder, and a delay stands for reading a file."""

    def __init__(self, plan: LoaderPlan, seed: int) -> None:
        train, held_out = load_splits(seed)
        self._items = held_out if plan.dataset == "held_out_digits" else train
        self._noise = 0.5 if plan.dataset == "noisy_digits" else 0.0
        self._delay_s = plan.delay_ms / 1e3
        self._seed = seed

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Item:
        image, digit = self._items[index]
        if self._delay_s:
            time.sleep(self._delay_s)
        if self._noise:
            generator = torch.Generator().manual_seed(self._seed * 10_000 + index)
            image = image + self._noise * torch.randn(image.shape, generator=generator)
        return image, digit


def make_loader(plan: LoaderPlan, seed: int, shuffles: bool) -> DataLoader[Item]:
    """Return the loader of one plan."""
    return DataLoader(
        Digits(plan, seed),
        plan.batch_size,
        shuffle=shuffles,
        num_workers=plan.num_workers,
        persistent_workers=plan.num_workers > 0,
        generator=torch.Generator().manual_seed(seed),
    )
