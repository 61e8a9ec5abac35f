"""The training is ended by KeyboardInterrupt after five steps."""

from _tiny import truth
from _train import train


def interrupt(step):
    if step == 5:
        truth({"steps": 5, "data_loading": 5, "forward_pass": 5, "backward_pass": 5})
        raise KeyboardInterrupt


train(each=interrupt)
