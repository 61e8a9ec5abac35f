"""The version of torch, and marks for tests of what the oldest one lacks."""

from typing import Final

import pytest
import torch

TORCH: Final = tuple(int(part) for part in torch.__version__.split(".")[:2])


def needs_torch(major: int, minor: int, reason: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test before this version of torch, with the reason."""
    return pytest.mark.skipif((major, minor) > TORCH, reason=f"torch {major}.{minor}: {reason}")
