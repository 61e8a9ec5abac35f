"""SIGINT arrives after five steps; the program prints so and exits with its own status."""

import signal
import sys

from _tiny import truth
from _train import train

import tests.chaos.programs.without_dynamo  # noqa: F401


def interrupt(step):
    if step == 5:
        signal.raise_signal(signal.SIGINT)


try:
    train(each=interrupt)
except KeyboardInterrupt:
    print("interrupted")
    truth({"steps": 5, "data_loading": 5, "forward_pass": 5, "backward_pass": 5})
    sys.exit(4)
