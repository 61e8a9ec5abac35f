"""A model of energies whose forward differentiates by the positions: forces, learned with a double backward."""

import torch
from _tiny import PASSES, counts, show, truth
from torch import nn
from torch.nn import functional as F

count = counts()


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, positions):
        positions.requires_grad_(True)
        energy = self.energy(positions).sum()
        (gradient,) = torch.autograd.grad(energy, positions, create_graph=True)
        count["backward_pass"] += 1
        return energy, -gradient


model = Potential()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(12):
    positions = torch.randn(16, 3)
    optimizer.zero_grad()
    energy, forces = model(positions)
    loss = F.mse_loss(forces, -positions.detach()) + (energy - positions.detach().square().sum() / 2).square() * 1e-3
    loss.backward()
    optimizer.step()
    count.update(PASSES)
    show(loss)
truth(count)
