"""A worker that is a new interpreter and imports this program again."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader


def main():
    count = counts()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(examples(40), batch_size=8, num_workers=1, multiprocessing_context="spawn")
    for inputs, targets in loader:
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count.update(STEP)
        show(loss)
    truth(count)


if __name__ == "__main__":
    main()
