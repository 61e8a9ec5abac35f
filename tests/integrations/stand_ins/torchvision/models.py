"""Empty stand-ins for names that are imported."""

from enum import Enum


class VGG16_Weights(Enum):
    DEFAULT = "IMAGENET1K_V1"
