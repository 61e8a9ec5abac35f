"""Writes images."""

import torch
from PIL import Image


def save_image(tensor: torch.Tensor, fp: str) -> None:
    """Write an image of shape [channels, height, width] and values from 0 to 1."""
    pixels = (tensor * 255 + 0.5).clamp(0, 255).to("cpu", torch.uint8)
    Image.fromarray(pixels.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()).save(fp)
