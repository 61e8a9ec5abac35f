"""The program leaves by os._exit, which runs no exit handler."""

import os

from _tiny import truth
from _train import train

truth(train(updates=120))
os._exit(3)
