"""The loop forks: one child calls the model and leaves by os._exit, another by sys.exit; the parent trains on."""

import os
import sys

import torch
from _tiny import truth
from _train import train
from torch import nn


def fork(step):
    if step not in (3, 6):
        return
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        with torch.no_grad():
            nn.Linear(2, 2)(torch.ones(1, 2))
        if step == 3:
            os._exit(0)
        sys.exit(7)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


truth(train(each=fork))
