"""What a program can know of itself: arguments, names, globals, pickles of its own classes, frames above it."""

import argparse
import os
import pickle
import sys
import traceback

import torch
from _tiny import truth
from _train import train


class Config:
    def __init__(self, lr):
        self.lr = lr


parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("rest", nargs="*")
print(parser.parse_args(), sys.argv[1:], os.path.basename(sys.argv[0]))
print(__name__, __package__, __spec__, os.path.basename(__file__), sys.path[0] == os.path.dirname(__file__))
print(sorted(globals()), sys.modules["__main__"].Config is Config, len(traceback.extract_stack()))
print(type(pickle.loads(pickle.dumps(Config(1.0)))) is Config, sys.flags, sys.stdin.isatty(), sys.stdout.isatty())
print(torch.is_grad_enabled(), torch.nn.Module.__call__ is torch.nn.Linear.__call__)
truth(train())
