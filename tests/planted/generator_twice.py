"""A generator that makes the same samples twice: once for the discriminator, and once for its own loss."""

import torch
from torch import nn
from torch.nn.functional import softplus

STEPS = 60


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 784))
    discriminator = nn.Sequential(nn.Linear(784, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    learns = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (discriminator, generator)]
    real = torch.randn(256, 784)  # once: making it took as long as the second call of the generator
    for _ in range(STEPS):
        noise = torch.randn(256, 64)
        made = generator(noise)
        loss = softplus(-discriminator(real)).mean() + softplus(discriminator(made.detach())).mean()
        learns[0].zero_grad()
        loss.backward()
        learns[0].step()
        made = generator(noise)  # again
        loss = softplus(-discriminator(made)).mean()
        learns[1].zero_grad()
        loss.backward()
        learns[1].step()
    print(f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
