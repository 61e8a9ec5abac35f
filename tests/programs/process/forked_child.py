"""A forked child of multiprocessing does the training; the parent, which has imported torch, only waits for it."""

import multiprocessing

from _tiny import truth
from _train import train


def main():
    truth(train())


if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=main)
    child.start()
    child.join()
    raise SystemExit(child.exitcode)
