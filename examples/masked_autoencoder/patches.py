"""Images as patches, and which of them the encoder sees."""

import torch

PATCH = 2  # pixels on a side


def patchify(images_B1HW: torch.Tensor) -> torch.Tensor:
    """Return the patches of each image, row after row, shape (B, N, PATCH * PATCH)."""
    count, _, height, width = images_B1HW.shape
    grid = images_B1HW.reshape(count, height // PATCH, PATCH, width // PATCH, PATCH)
    return grid.transpose(2, 3).reshape(count, -1, PATCH * PATCH)


def unpatchify(patches_BND: torch.Tensor, size: int) -> torch.Tensor:
    """Return images of ``size`` pixels on a side, shape (B, 1, size, size)."""
    side = size // PATCH
    grid = patches_BND.reshape(-1, side, side, PATCH, PATCH).transpose(2, 3)
    return grid.reshape(-1, 1, size, size)


def draw_order(count: int, patches: int, generator: torch.Generator | None = None) -> torch.Tensor:
    """Return a random order of the patches of each image, shape (B, N), on the CPU; the first are kept."""
    return torch.rand(count, patches, generator=generator).argsort(dim=1)
