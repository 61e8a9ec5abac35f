"""time_sequence_prediction: LBFGS evaluates its closure twenty times inside one step."""

import torch
from _tiny import counts, show, truth
from torch import nn
from torch.nn import functional as F

count = counts("validation_epoch/forward_pass")
x = torch.randn(50, 4)
y = torch.sin(x @ torch.randn(4, 2)) + 0.3 * torch.randn(50, 2)
model = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 2))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=20, tolerance_grad=0, tolerance_change=0)


def closure():
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    count["forward_pass"] += 1
    loss.backward()
    count["backward_pass"] += 1
    show(loss)
    return loss


for step in range(4):
    print("step", step, "after", count["forward_pass"], "evaluations")
    optimizer.step(closure)
    count["steps"] += 1
    with torch.no_grad():
        show(F.mse_loss(model(x + 1), y))
        count["validation_epoch/forward_pass"] += 1
truth(count)
