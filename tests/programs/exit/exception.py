"""An uncaught exception ends the training after five steps."""

from _tiny import truth
from _train import train

import tests.chaos.programs.without_dynamo  # noqa: F401


def fail(step):
    if step == 5:
        truth({"steps": 5, "data_loading": 5, "forward_pass": 5, "backward_pass": 5})
        raise ValueError(f"step {step} is one too many")


train(each=fail)
