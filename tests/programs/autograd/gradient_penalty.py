"""WGAN-GP: the penalty is a gradient of its own, and the backward goes through it."""

import torch
from _tiny import counts, examples, show, truth
from torch import nn
from torch.utils.data import DataLoader

count = counts()
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
optimizer_G = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
optimizer_D = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))


def gradient_penalty(real, fake):
    alpha = torch.rand(len(real), 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = critic(mixed)
    count["forward_pass"] += 1
    (gradients,) = torch.autograd.grad(scores, mixed, torch.ones_like(scores), create_graph=True, retain_graph=True)
    count["backward_pass"] += 1
    return (gradients.norm(2, dim=1) - 1).square().mean()


for i, (real, _) in enumerate(DataLoader(examples(80), batch_size=8, shuffle=True)):
    count["data_loading"] += 1
    optimizer_D.zero_grad()
    fake = generator(torch.randn(len(real), 4))
    d_loss = critic(fake.detach()).mean() - critic(real).mean() + 10 * gradient_penalty(real, fake.detach())
    count["forward_pass"] += 3
    d_loss.backward()
    count["backward_pass"] += 1
    optimizer_D.step()
    count["steps"] += 1
    show(d_loss)
    if i % 3 == 0:
        optimizer_G.zero_grad()
        g_loss = -critic(generator(torch.randn(len(real), 4))).mean()
        count["forward_pass"] += 2
        g_loss.backward()
        count["backward_pass"] += 1
        optimizer_G.step()
        show(g_loss)
truth(count)
