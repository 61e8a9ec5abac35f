"""Federated averaging: each client of each round trains a copy of the model with its own optimizer."""

import copy

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
server = net()
clients = [DataLoader(examples(32), batch_size=8, shuffle=True) for _ in range(3)]
for _round in range(2):
    states = []
    for loader in clients:
        model = copy.deepcopy(server)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            count.update(STEP)
            show(loss)
        states.append(model.state_dict())
    server.load_state_dict({name: sum(state[name] for state in states) / 3 for name in states[0]})
truth(count)
