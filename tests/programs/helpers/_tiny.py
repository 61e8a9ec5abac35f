"""Shared by the programs: small data, a small model, and the line of counts at the end."""

import json
from collections import Counter

import torch
from torch import nn
from torch.utils.data import TensorDataset

torch.manual_seed(0)
# What a step has of each, and a batch of an evaluation: ``count.update(STEP)``.
STEP = ("data_loading", "forward_pass", "backward_pass", "steps")
PASSES = STEP[1:]  # of a step without a loader
EVALUATION = ("validation_epoch/data_loading", "validation_epoch/forward_pass")


def counts(*more):
    """Return the counts that a program keeps itself, all 0."""
    return Counter(dict.fromkeys((*STEP, *more), 0))


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def examples(size):
    return TensorDataset(torch.randn(size, 8), torch.randint(3, (size,)))


def show(loss):
    """Print all bits of the loss."""
    print("loss", loss.item().hex(), flush=True)


def truth(count):
    """Print the counts; a list holds all correct values, ``a+b`` the sum of two counts."""
    print("TRUTH", json.dumps(count), flush=True)
