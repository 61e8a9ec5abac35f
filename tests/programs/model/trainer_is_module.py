"""The trainer is a module and the whole training happens in its __call__: the model's own calls are the forwards."""

import torch
from _tiny import counts, examples, net, show, truth
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
                count["data_loading"] += 1
                self.optimizer.zero_grad()
                loss = F.cross_entropy(self.model(inputs), targets)
                count["forward_pass"] += 1
                loss.backward()
                count["backward_pass"] += 1
                self.optimizer.step()
                count["steps"] += 1
                self.step += 1
                show(loss)
            with torch.no_grad():
                for inputs, targets in self.val_loader:
                    count["validation_epoch/data_loading"] += 1
                    show(F.cross_entropy(self.model(inputs), targets))
                    count["validation_epoch/forward_pass"] += 1


trainer = Trainer(net(), DataLoader(examples(40), batch_size=8, shuffle=True), DataLoader(examples(16), batch_size=8))
trainer(epochs=2)
truth(count)
