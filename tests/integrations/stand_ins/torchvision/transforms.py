"""Transforms of PIL images; those that are modules in torchvision are modules here."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.nn import Module


class Compose:
    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class Lambda:
    def __init__(self, lambd: Callable[[Any], Any]) -> None:
        self.lambd = lambd

    def __call__(self, image: Any) -> Any:
        return self.lambd(image)


class ToTensor:
    def __call__(self, image: Image.Image) -> torch.Tensor:
        pixels = torch.from_numpy(np.array(image, copy=True)).float() / 255
        return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


class Resize(Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, image: Image.Image) -> Image.Image:
        scale = self.size / min(image.size)
        return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)


class CenterCrop(Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, image: Image.Image) -> Image.Image:
        left, top = (image.width - self.size) // 2, (image.height - self.size) // 2
        return image.crop((left, top, left + self.size, top + self.size))


class RandomHorizontalFlip(Module):
    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, image: Image.Image) -> Image.Image:
        return ImageOps.mirror(image) if torch.rand(1) < self.p else image
