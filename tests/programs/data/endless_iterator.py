"""minGPT: an exhausted iterator is recreated, over a sampler of 10,000,000,000 draws and a small one."""

import time

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler

count = counts("metrics_computation")


class Trainer:
    def __init__(self, model, train_loader, max_iters):
        self.model, self.train_loader, self.max_iters = model, train_loader, max_iters
        self.optimizer = torch.optim.AdamW(model.parameters())

    def run(self):
        self.model.train()
        self.iter_num, self.iter_time = 0, time.time()
        data_iter = iter(self.train_loader)
        while True:
            try:
                batch = next(data_iter)
            except StopIteration:
                data_iter = iter(self.train_loader)
                batch = next(data_iter)
            x, y = batch
            loss = F.cross_entropy(self.model(x), y)
            self.model.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            count["metrics_computation"] += 1
            self.optimizer.step()
            count.update(STEP)
            show(loss)
            self.iter_num += 1
            self.iter_dt, self.iter_time = time.time() - self.iter_time, time.time()
            if self.iter_num >= self.max_iters:
                break


model, data = net(), examples(40)
Trainer(model, DataLoader(data, 8, sampler=RandomSampler(data, replacement=True, num_samples=int(1e10))), 6).run()
Trainer(model, DataLoader(data, 8, shuffle=True), 12).run()
truth(count)
