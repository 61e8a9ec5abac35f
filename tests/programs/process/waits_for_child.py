"""A child, started as the argument says, does the training; the parent, which has torch, only waits for it."""

import multiprocessing
import sys

from _tiny import truth
from _train import train


def main():
    truth(train())


if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=main)
    child.start()
    child.join()
    raise SystemExit(child.exitcode)
