"""The digits as tensors, and the loaders that serve them."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

VALIDATION_IMAGES = 297
IMAGE_SIZE = 8
CLASSES = 10

Digits = Dataset[tuple[torch.Tensor, ...]]


def load_splits(seed: int) -> tuple[Digits, Digits]:
    """Return 1,500 training and 297 validation images.

    Each item is an image of shape (1, 8, 8) in [-1, 1] and its digit, a scalar of int64.
    """
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1  # pixels are 0 to 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    held_out, kept = order[:VALIDATION_IMAGES], order[VALIDATION_IMAGES:]
    return TensorDataset(images[kept], labels[kept]), TensorDataset(images[held_out], labels[held_out])


def training_loader(
    dataset: Digits, batch_size: int, steps: int, num_workers: int, seed: int
) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Return a loader of ``steps`` batches, drawn with replacement in an order that ``seed`` fixes."""
    generator = torch.Generator().manual_seed(seed)
    sampler = RandomSampler(dataset, replacement=True, num_samples=steps * batch_size, generator=generator)
    return DataLoader(
        dataset,
        batch_size,
        sampler=sampler,
        num_workers=num_workers,
        pin_memory=torch.cuda.is_available(),
        generator=generator,
    )


def validation_loader(dataset: Digits, batch_size: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Return a loader of all validation images, in order."""
    return DataLoader(dataset, batch_size)
