"""makemore: the parameters are a list of tensors; there is neither a module nor an optimizer."""

import torch
from _tiny import counts, show, truth
from torch.nn import functional as F

count = counts()
X, Y = torch.randint(20, (200, 3)), torch.randint(20, (200,))
C, W1, b1 = torch.randn(20, 4), torch.randn(12, 16), torch.randn(16)
parameters = [C, W1, b1, torch.randn(16, 20)]
for p in parameters:
    p.requires_grad = True
for i in range(20):
    ix = torch.randint(len(X), (16,))
    h = torch.tanh(C[X[ix]].view(-1, 12) @ W1 + b1)
    loss = F.cross_entropy(h @ parameters[3], Y[ix])
    for p in parameters:
        p.grad = None
    loss.backward()
    count["backward_pass"] += 1
    for p in parameters:
        p.data += -(0.1 if i < 10 else 0.01) * p.grad
    count["steps"] += 1
    show(loss)
truth(count)
