"""Names that are looked up at import, and nothing behind them."""

from enum import Enum


class VGG16_Weights(Enum):
    DEFAULT = "IMAGENET1K_V1"
