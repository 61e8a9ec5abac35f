"""A small U-Net that predicts a velocity for each pixel, given time and digit."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from examples.rectified_flow.data import CLASSES


def embed_time(t_B: torch.Tensor, width: int) -> torch.Tensor:
    """Return sines and cosines of the times in [0, 1], shape (B, width)."""
    frequencies = torch.exp(torch.linspace(0, math.log(1000.0), width // 2, device=t_B.device))
    angles = t_B[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Block(nn.Module):
    """Two convolutions with a residual connection; the condition shifts and scales in between."""

    def __init__(self, inputs: int, outputs: int, condition: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(8, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.modulation = nn.Linear(condition, 2 * outputs)
        self.norm2 = nn.GroupNorm(8, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x_BCHW: torch.Tensor, condition_BD: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x_BCHW)))
        scale, shift = self.modulation(condition_BD)[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.conv2(F.silu(h)) + self.skip(x_BCHW)


class VelocityUNet(nn.Module):
    """Velocity of the flow at a point, a time and for a digit; 8x8, then 4x4, then 8x8 again."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        condition = 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(2 * width, condition), nn.SiLU(), nn.Linear(condition, condition))
        self.digit = nn.Embedding(CLASSES, condition)
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.down = Block(width, width, condition)
        self.shrink = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = Block(2 * width, 2 * width, condition)
        self.grow = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.up = Block(2 * width, width, condition)
        self.out = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 1, 3, padding=1))

    def forward(self, x_B1HW: torch.Tensor, t_B: torch.Tensor, digit_B: torch.Tensor) -> torch.Tensor:
        condition = F.silu(self.time(embed_time(t_B, 2 * self.width)) + self.digit(digit_B))
        fine = self.down(self.stem(x_B1HW), condition)
        coarse = self.middle(self.shrink(fine), condition)
        return self.out(self.up(torch.cat([self.grow(coarse), fine], dim=1), condition))
