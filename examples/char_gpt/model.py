"""A small GPT, and how it generates text."""

import torch
from torch import nn
from torch.nn import functional as F

from examples.char_gpt.data import CHARACTERS


class SelfAttention(nn.Module):
    """Attention of several heads, each position to itself and to those before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        count, length, width = x_BTD.shape
        qkv = self.qkv(x_BTD).reshape(count, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(seen.transpose(1, 2).reshape(count, length, width))


class Block(nn.Module):
    """Attention and two layers, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        x_BTD = x_BTD + self.attention(self.norm1(x_BTD))
        return x_BTD + self.mlp(self.norm2(x_BTD))


class GPT(nn.Module):
    """Predicts the next character at each position of a text of at most ``context`` characters."""

    def __init__(self, context: int = 64, width: int = 64, depth: int = 2, heads: int = 2) -> None:
        super().__init__()
        self.context = context
        self.token = nn.Embedding(len(CHARACTERS), width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(CHARACTERS), bias=False)
        self.apply(_initialize)
        for block in self.blocks:  # the sum of all blocks must not grow with their number (Radford et al. 2019, 2.3)
            for last in (block.attention.out, block.mlp[-1]):
                nn.init.normal_(last.weight, std=(2 * depth * last.in_features) ** -0.5)
        self.head.weight = self.token.weight  # one table for reading and writing (Press and Wolf 2017)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next character, shape (B, T, characters)."""
        positions = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTD = self.token(tokens_BT) + self.position(positions)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.head(self.norm(x_BTD))


def next_character_loss(logits_BTC: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy in nats a character, computed in float32."""
    return F.cross_entropy(logits_BTC.flatten(0, 1).float(), targets_BT.flatten())


@torch.no_grad()
def write(model: GPT, beginning: torch.Tensor, length: int, temperature: float, seed: int) -> torch.Tensor:
    """Return ``beginning`` and ``length`` further characters, drawn one after the other.

    Args:
        temperature: below 1 the likely becomes likelier.
        seed: fixes what is drawn.
    """
    generator = torch.Generator().manual_seed(seed)
    device = model.head.weight.device
    text = beginning.long()
    for _ in range(length):
        logits = model(text[None, -model.context :].to(device))[0, -1]
        shares = torch.softmax(logits.float().cpu() / temperature, dim=0)
        text = torch.cat([text, torch.multinomial(shares, 1, generator=generator)])
    return text


def factory() -> tuple[GPT, torch.Tensor, torch.Tensor]:
    """Return the model, a micro-batch and its targets; ``training-profiler benchmark`` times it."""
    torch.manual_seed(0)
    model = GPT()
    tokens = torch.randint(len(CHARACTERS), (12, model.context + 1))
    return model, tokens[:, :-1], tokens[:, 1:]


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):  # keeps the variance of the input; 0.02 is for wide models
        nn.init.normal_(module.weight, std=module.in_features**-0.5)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=0.2)
