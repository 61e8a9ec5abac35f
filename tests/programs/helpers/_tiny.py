"""What the programs here share: small data, a small model, and the line of counts that each of them ends with."""

import json

import torch
from torch import nn
from torch.utils.data import TensorDataset

torch.manual_seed(0)


def counts(*more):
    """Return the counts that a program keeps by its own hand, all 0."""
    return dict.fromkeys(("steps", "data_loading", "forward_pass", "backward_pass", *more), 0)


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def examples(size):
    return TensorDataset(torch.randn(size, 8), torch.randint(3, (size,)))


def show(loss):
    """Print the loss, every bit of it."""
    print("loss", loss.item().hex(), flush=True)


def truth(count):
    """Print the counts; a list holds all values that are right, ``a+b`` the sum of two counts."""
    print("TRUTH", json.dumps(count), flush=True)
