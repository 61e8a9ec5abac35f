"""The rectified flow itself: points on straight paths, the loss, and the way from noise to an image."""

import torch
from torch import nn
from torch.nn import functional as F


def draw_noise_and_times(
    images: torch.Tensor, generator: torch.Generator | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noise like ``images`` and a time in [0, 1] for each, on the CPU, as each device would draw its own."""
    noise = torch.randn(images.shape, generator=generator)
    times = torch.rand(len(images), generator=generator)
    return noise, times


def flow_loss(
    model: nn.Module, images: torch.Tensor, digits: torch.Tensor, noise: torch.Tensor, times: torch.Tensor
) -> torch.Tensor:
    """Return the mean squared error of the predicted velocity.

    The path is x_t = (1 - t) noise + t image, so its velocity is image - noise everywhere on it
    (Liu et al. 2022, equation 1).
    """
    t = times[:, None, None, None]
    points = (1 - t) * noise + t * images
    return F.mse_loss(model(points, times, digits), images - noise)


@torch.no_grad()
def sample(model: nn.Module, digits: torch.Tensor, size: int, steps: int, seed: int) -> torch.Tensor:
    """Return one image a digit, shape (B, 1, size, size), by Heun's method from t=0 (noise) to t=1.

    Args:
        steps: steps of the solver; each evaluates the model twice.
        seed: fixes the noise.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(digits), 1, size, size, generator=generator).to(digits.device)
    for k in range(steps):
        t = torch.full((len(digits),), k / steps, device=digits.device)
        slope = model(x, t, digits)
        slope_ahead = model(x + slope / steps, t + 1 / steps, digits)
        x = x + (slope + slope_ahead) / (2 * steps)
    return x.clamp(-1, 1)
