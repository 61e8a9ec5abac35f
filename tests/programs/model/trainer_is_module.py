"""The trainer is a module that trains inside its __call__: the forwards are the calls of the model."""

import torch
from _tiny import EVALUATION, STEP, counts, examples, net, show, truth
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/data_loading", "validation_epoch/forward_pass")


class Trainer(nn.Module):
    def __init__(self, model, loader, val_loader):
        super().__init__()
        self.model, self.loader, self.val_loader = model, loader, val_loader
        self.optimizer = torch.optim.Adam(model.parameters())
        self.register_buffer("step", torch.tensor(0))

    def forward(self, epochs):
        for _ in range(epochs):
            for inputs, targets in self.loader:
                self.optimizer.zero_grad()
                loss = F.cross_entropy(self.model(inputs), targets)
                loss.backward()
                self.optimizer.step()
                count.update(STEP)
                self.step += 1
                show(loss)
            with torch.no_grad():
                for inputs, targets in self.val_loader:
                    show(F.cross_entropy(self.model(inputs), targets))
                    count.update(EVALUATION)


trainer = Trainer(net(), DataLoader(examples(40), batch_size=8, shuffle=True), DataLoader(examples(16), batch_size=8))
trainer(epochs=2)
truth(count)
