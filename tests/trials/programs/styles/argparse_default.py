import argparse

import torch
from parts import BATCH, Net, Samples
from torch import nn
from torch.utils.data import DataLoader


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("--workers", type=int, default=0)
    return parser.parse_args()


def main(args):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Samples(args.steps), batch_size=BATCH, shuffle=True, num_workers=args.workers, drop_last=True)
    model = Net(40)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for features, targets in loader:
        loss = nn.functional.mse_loss(model(features), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex(), flush=True)


if __name__ == "__main__":
    main(parse())
