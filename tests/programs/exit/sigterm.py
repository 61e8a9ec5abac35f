"""SIGTERM ends the training after five steps; the program has no handler."""

import signal

from _tiny import truth
from _train import train

import tests.chaos.programs.without_dynamo  # noqa: F401


def terminate(step):
    if step == 5:
        truth({"steps": 5, "data_loading": 5, "forward_pass": 5, "backward_pass": 5})
        signal.raise_signal(signal.SIGTERM)


train(each=terminate)
