"""A full-batch training as on graphs: no loader; train and test alternate, each with one call of the model."""

import torch
from _tiny import PASSES, counts, net, show, truth
from torch.nn import functional as F

count = counts("validation_epoch/forward_pass")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y, is_train = torch.randn(50, 8), torch.randint(3, (50,)), torch.arange(50) < 30


def train():
    model.train()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x)[is_train], y[is_train])
    loss.backward()
    optimizer.step()
    count.update(PASSES)
    return loss


@torch.no_grad()
def test():
    model.eval()
    outputs = model(x)
    count["validation_epoch/forward_pass"] += 1
    return (outputs.argmax(1) == y)[~is_train].float().mean()


for _epoch in range(12):
    show(train())
    show(test())
truth(count)
