import sys

import torch
from parts import BATCH, Net
from torch import nn


class Trainer:
    def __init__(self, tensors: int, lr: float = 1e-4) -> None:
        self.net = Net(tensors)
        self.optimizer = torch.optim.AdamW( self.net.parameters(), lr = lr, foreach = False )  # one by one

    def step(self) -> float:
        features = torch.randn(BATCH, 8)
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.net(features), features.sum(1, keepdim=True))
        loss.backward()
        self.optimizer.step()
        return loss.item()


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    trainer = Trainer(600)
    for _ in range(int(sys.argv[1])):
        print("loss", trainer.step().hex(), flush=True)
