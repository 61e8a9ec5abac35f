"""DARTS: each step updates the architecture on a validation batch, then the weights on a training batch."""

import torch
from _tiny import counts, examples, show, truth
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/data_loading", "metrics_computation")


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.choices = nn.ModuleList([nn.Linear(8, 3), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))])
        self.alphas = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return sum(weight * choice(x) for weight, choice in zip(self.alphas.softmax(0), self.choices, strict=True))


model = Network()
architect = torch.optim.Adam([model.alphas], lr=3e-2)
optimizer = torch.optim.SGD(model.choices.parameters(), lr=0.1, momentum=0.9)
train_queue, valid_queue = DataLoader(examples(40), 8, shuffle=True), DataLoader(examples(24), 8, shuffle=True)
for _epoch in range(2):
    for inputs, targets in train_queue:
        inputs_search, targets_search = next(iter(valid_queue))
        count["data_loading"] += 2
        architect.zero_grad()
        search_loss = F.cross_entropy(model(inputs_search), targets_search)
        search_loss.backward()
        architect.step()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.choices.parameters(), 5.0)
        count["metrics_computation"] += 1
        optimizer.step()
        count["forward_pass"] += 2
        count["backward_pass"] += 2
        count["steps"] += 1
        show(search_loss)
        show(loss)
    model.eval()
    with torch.no_grad():
        for inputs, targets in valid_queue:
            count["validation_epoch/data_loading"] += 1
            show(F.cross_entropy(model(inputs), targets))
truth(count)
