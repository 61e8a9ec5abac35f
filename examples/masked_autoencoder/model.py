"""A small vision transformer that sees few patches, and a smaller one that fills in the rest."""

import torch
from torch import nn
from torch.nn import functional as F

from examples.masked_autoencoder.patches import PATCH, patchify


class Block(nn.Module):
    """Attention and two layers, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads = heads

    def forward(self, x_BND: torch.Tensor) -> torch.Tensor:
        x_BND = x_BND + self.out(self.attend(self.norm1(x_BND)))
        return x_BND + self.mlp(self.norm2(x_BND))

    def attend(self, x_BND: torch.Tensor) -> torch.Tensor:
        count, tokens, width = x_BND.shape
        qkv = self.qkv(x_BND).reshape(count, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(count, tokens, width)


class MaskedAutoencoder(nn.Module):
    """Predicts the hidden patches of images from the visible ones.

    Only visible patches go through the encoder, which is what makes it cheap; the decoder is narrow and gets one
    learnt token for all hidden patches (He et al. 2021, section 3).
    """

    def __init__(self, size: int = 8, width: int = 64, depth: int = 4, decoder_width: int = 48) -> None:
        super().__init__()
        self.size = size
        self.patches = (size // PATCH) ** 2
        self.embed = nn.Linear(PATCH * PATCH, width)
        self.position = nn.Parameter(0.02 * torch.randn(1, self.patches, width))
        self.encoder = nn.Sequential(*(Block(width, 4) for _ in range(depth)), nn.LayerNorm(width))
        self.to_decoder = nn.Linear(width, decoder_width)
        self.hidden = nn.Parameter(0.02 * torch.randn(1, 1, decoder_width))
        self.decoder_position = nn.Parameter(0.02 * torch.randn(1, self.patches, decoder_width))
        self.decoder = nn.Sequential(Block(decoder_width, 4), Block(decoder_width, 4), nn.LayerNorm(decoder_width))
        self.to_pixels = nn.Linear(decoder_width, PATCH * PATCH)

    def forward(self, images_B1HW: torch.Tensor, order_BN: torch.Tensor, visible: int) -> torch.Tensor:
        """Return all patches as predicted from the first ``visible`` of ``order_BN``, shape (B, N, pixels)."""
        tokens = self.embed(patchify(images_B1HW)) + self.position
        seen = self.encoder(_take(tokens, order_BN[:, :visible]))
        seen = self.to_decoder(seen)
        hidden = self.hidden.expand(len(seen), self.patches - visible, -1)
        in_order = torch.cat([seen, hidden], dim=1)
        in_place = _take(in_order, order_BN.argsort(dim=1))
        return self.to_pixels(self.decoder(in_place + self.decoder_position))

    def loss(self, images_B1HW: torch.Tensor, order_BN: torch.Tensor, visible: int) -> torch.Tensor:
        """Return the mean squared error on the hidden patches; visible patches do not count."""
        predicted = self(images_B1HW, order_BN, visible)
        hidden = order_BN[:, visible:]
        return F.mse_loss(_take(predicted, hidden), _take(patchify(images_B1HW), hidden))


def _take(tokens_BND: torch.Tensor, at_BK: torch.Tensor) -> torch.Tensor:
    return tokens_BND.gather(1, at_BK[:, :, None].expand(-1, -1, tokens_BND.shape[2]))
