"""The program ends by os._exit, which runs no exit handler."""

import os

from _tiny import truth
from _train import train

import tests.chaos.programs.without_dynamo  # noqa: F401

truth(train(updates=120))
os._exit(3)
