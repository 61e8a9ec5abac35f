"""KeyboardInterrupt in a program without an optimizer; the interpreter kills itself by SIGINT, which an exec loses."""

from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
model = net()
for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    count["data_loading"] += 1
    model.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    count["forward_pass"] += 1
    loss.backward()
    count["backward_pass"] += 1
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.1)
    count["steps"] += 1
    show(loss)
    if count["backward_pass"] == 5:
        truth(count)
        raise KeyboardInterrupt
