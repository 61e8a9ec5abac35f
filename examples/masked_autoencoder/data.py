"""Digits, and drawings made in the loop that look a little like them."""

import math

import torch
from torch.utils.data import DataLoader

from examples.rectified_flow.data import IMAGE_SIZE, Digits, load_splits


def loaders(batch_size: int, num_workers: int, seed: int) -> tuple[DataLoader[tuple[torch.Tensor, ...]], Digits]:
    """Return a shuffling loader of the training images, and the validation images."""
    train, validation = load_splits(seed)
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(
        train,
        batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        pin_memory=torch.cuda.is_available(),
        generator=generator,
    )
    return loader, validation


def draw_strokes(count: int, generator: torch.Generator | None = None) -> torch.Tensor:
    """Return images of one arc each, of random place, bend and weight, shape (count, 1, 8, 8) in [-1, 1]."""
    random = torch.rand(count, 6, generator=generator)
    angle = 2 * math.pi * random[:, 0, None]
    bend = 3 * math.pi * (random[:, 1, None] - 0.5)
    radius = 1.5 + 2 * random[:, 2, None]
    along = torch.linspace(0, 1, 24)[None]
    turned = angle + bend * along
    x = IMAGE_SIZE / 2 + radius * torch.cos(turned) + 2 * (random[:, 3, None] - 0.5)
    y = IMAGE_SIZE / 2 + radius * torch.sin(turned) * (0.5 + random[:, 4, None]) + 2 * (random[:, 5, None] - 0.5)
    pixels = torch.arange(IMAGE_SIZE) + 0.5
    across = torch.exp(-((x[:, :, None] - pixels) ** 2))
    down = torch.exp(-((y[:, :, None] - pixels) ** 2))
    ink = torch.einsum("bth,btw->bhw", down, across).clamp(max=1)
    return (2 * ink - 1)[:, None]
