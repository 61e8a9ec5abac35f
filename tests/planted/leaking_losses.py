"""The loss on a probe batch is kept each step for a plot, which also keeps the graph and all activations."""

import torch
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    probe = torch.randn(128, 256)
    probe_losses = []
    for _ in range(400):
        x = torch.randn(256, 256)
        loss = (model(x) - x.mean(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        probe_losses.append(model(probe).square().mean())
    print(f"probe {sum(loss.item() for loss in probe_losses) / len(probe_losses):.4f}")


if __name__ == "__main__":
    main()
