"""The program ends by sys.exit with a status of its own."""

import sys

from _tiny import truth
from _train import train

truth(train())
sys.exit(5)
