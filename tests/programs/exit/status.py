"""The program ends by sys.exit with its own status."""

import sys

from _tiny import truth
from _train import train

import tests.chaos.programs.without_dynamo  # noqa: F401

truth(train())
sys.exit(5)
