"""Ten updates of one optimizer, then ten of another that is created later."""

import torch
from _tiny import STEP, counts, examples, show, truth
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
encoder, decoder, head = nn.Linear(8, 4), nn.Linear(4, 8), nn.Linear(4, 3)
autoencoder, classifier = nn.Sequential(encoder, nn.Tanh(), decoder), nn.Sequential(encoder, nn.Tanh(), head)
loader = DataLoader(examples(40), batch_size=8, shuffle=True)


def train(model, loss_of):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _epoch in range(2):
        for inputs, targets in loader:
            loss = loss_of(model(inputs), inputs, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count.update(STEP)
            show(loss)


train(autoencoder, lambda outputs, inputs, targets: F.mse_loss(outputs, inputs))
train(classifier, lambda outputs, inputs, targets: F.cross_entropy(outputs, targets))
truth(count)
