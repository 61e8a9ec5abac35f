"""An optimizer of many small tensors that updates them one by one."""

import torch
from torch import nn

STEPS, LAYERS, WIDTH = 5000, 60, 24


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    for _ in range(STEPS):
        features = torch.randn(8, WIDTH)
        loss = nn.functional.mse_loss(model(features), features.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
