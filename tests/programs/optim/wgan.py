"""WGAN: the critic at every batch, the generator at every fifth."""

import torch
from _tiny import counts, examples, show, truth
from torch import nn
from torch.utils.data import DataLoader

count = counts()
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
optimizer_G = torch.optim.RMSprop(generator.parameters(), lr=5e-5)
optimizer_C = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
batches_done = 0
for _epoch in range(2):
    for real, _ in DataLoader(examples(88), batch_size=8, shuffle=True):
        count["data_loading"] += 1
        optimizer_C.zero_grad()
        fake = generator(torch.randn(len(real), 4)).detach()
        loss_C = -critic(real).mean() + critic(fake).mean()
        count["forward_pass"] += 3
        loss_C.backward()
        count["backward_pass"] += 1
        optimizer_C.step()
        count["steps"] += 1
        show(loss_C)
        with torch.no_grad():
            for p in critic.parameters():
                p.clamp_(-0.01, 0.01)
        batches_done += 1
        if batches_done % 5 == 0:
            optimizer_G.zero_grad()
            loss_G = -critic(generator(torch.randn(len(real), 4))).mean()
            count["forward_pass"] += 2
            loss_G.backward()
            count["backward_pass"] += 1
            optimizer_G.step()
            show(loss_G)
truth(count)
