"""KeyboardInterrupt in a program without an optimizer; the interpreter kills itself by SIGINT, which an exec loses."""

from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
model = net()
for inputs, targets in DataLoader(examples(80), batch_size=8, shuffle=True):
    model.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.1)
    count.update(STEP)
    show(loss)
    if count["backward_pass"] == 5:
        truth(count)
        raise KeyboardInterrupt
