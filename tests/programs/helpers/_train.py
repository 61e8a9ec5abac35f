"""One small training as a function, for programs about where a training runs."""

import torch
from _tiny import STEP, counts, examples, net, show
from torch.nn import functional as F
from torch.utils.data import DataLoader


def train(updates=10, each=lambda step: None):
    """Train for some updates, call ``each`` after every one, and return the counts."""
    count = counts()
    torch.manual_seed(1)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in DataLoader(examples(8 * updates), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
        each(count["steps"])
    return count
