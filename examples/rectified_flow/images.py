"""Sample images as a PNG."""

from pathlib import Path

import torch
from PIL import Image

SCALE = 6  # pixels on a side for each pixel of a digit
GAP = 1


def save_grid(images_B1HW: torch.Tensor, columns: int, path: Path) -> None:
    """Write images in [-1, 1] as a grid, dark on light, row after row."""
    count, _, height, width = images_B1HW.shape
    rows = -(-count // columns)
    canvas = torch.full((rows * (height + GAP) + GAP, columns * (width + GAP) + GAP), 1.0)
    for i, image in enumerate(images_B1HW[:, 0].cpu()):
        top, left = (i // columns) * (height + GAP) + GAP, (i % columns) * (width + GAP) + GAP
        canvas[top : top + height, left : left + width] = (1 - image) / 2
    pixels = (canvas * 255).round().to(torch.uint8).numpy()
    picture = Image.fromarray(pixels)
    picture.resize((picture.width * SCALE, picture.height * SCALE), Image.Resampling.NEAREST).save(path)
