"""Cross-validation with a thread per fold, each started while the previous one still trains, each with a validation."""

import threading

import torch
from _tiny import EVALUATION, STEP, counts, examples, net, show, truth
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
            optimizer.zero_grad()
            loss = F.cross_entropy(self.model(inputs), targets)
            loss.backward()
            optimizer.step()
            count.update(STEP)
            show(loss)
        self.model.eval()
        with torch.no_grad():
            for inputs, targets in DataLoader(self.validation, batch_size=8):
                show(F.cross_entropy(self.model(inputs), targets))
                count.update(EVALUATION)


threads = []
for number in range(3):
    threads.append(Fold(number, threads[-1] if threads else None))
    threads[-1].start()
for thread in threads:
    thread.join()
truth(count)
