"""The few names of torchvision that rectified-flow-pytorch touches; torchvision has no wheel for the CPU build."""

from torchvision import models, transforms, utils

__all__ = ["models", "transforms", "utils"]
