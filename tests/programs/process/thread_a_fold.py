"""Cross-validation with a thread a fold, each started while the one before still trains, and each with a validation."""

import threading

import torch
from _tiny import counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts("validation_epoch/data_loading", "validation_epoch/forward_pass")
models = [net() for _ in range(3)]
folds = [(examples(40), examples(16)) for _ in models]


class Fold(threading.Thread):
    def __init__(self, fold, before):
        super().__init__()
        self.model, (self.training, self.validation), self.before = models[fold], folds[fold], before

    def run(self):
        if self.before is not None:
            self.before.join()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        for inputs, targets in DataLoader(self.training, batch_size=8):
            count["data_loading"] += 1
            optimizer.zero_grad()
            loss = F.cross_entropy(self.model(inputs), targets)
            count["forward_pass"] += 1
            loss.backward()
            count["backward_pass"] += 1
            optimizer.step()
            count["steps"] += 1
            show(loss)
        self.model.eval()
        with torch.no_grad():
            for inputs, targets in DataLoader(self.validation, batch_size=8):
                count["validation_epoch/data_loading"] += 1
                show(F.cross_entropy(self.model(inputs), targets))
                count["validation_epoch/forward_pass"] += 1


threads = []
for number in range(3):
    threads.append(Fold(number, threads[-1] if threads else None))
    threads[-1].start()
for thread in threads:
    thread.join()
truth(count)
