"""torchdiffeq's demo: the loop calls the solver, whose forward runs without gradient, and tests it at times."""

import torch
from _adjoint import odeint_adjoint
from _tiny import PASSES, counts, show, truth
from torch import nn

count = counts("validation_epoch", "validation_epoch/forward_pass")
func = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.RMSprop(func.parameters(), lr=1e-3)
for itr in range(12):
    batch_y0 = torch.randn(8, 2)
    optimizer.zero_grad()
    loss = (odeint_adjoint(func, batch_y0) - batch_y0.flip(1)).abs().mean()
    loss.backward()
    optimizer.step()
    count.update(PASSES)
    show(loss)
    if itr % 4 == 0:
        with torch.no_grad():
            show(odeint_adjoint(func, batch_y0).abs().mean())
        count["validation_epoch"] += 1
        count["validation_epoch/forward_pass"] += 1
truth(count)
