"""The wait for a CPU, from files as Linux's scheduler writes them; ns."""

import threading
from pathlib import Path

from training_profiler.sampling.run_queue import MOST_HELPERS, RunQueue

TRAINING = 10


class Tasks:
    """The threads of a process, as files."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "proc/self/task"

    def set(self, thread: int, ran: int, waited: int) -> None:
        folder = self._folder / str(thread)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedstat").write_text(f"{ran} {waited} 7\n")


def queue_of(root: Path, python_threads: tuple[int, ...] = (TRAINING,)) -> RunQueue:
    queue = RunQueue(root, lambda: python_threads)
    queue.use_thread(TRAINING)
    return queue


def test_helper_that_waits_longer_holds_the_training(tmp_path):
    tasks, queue = Tasks(tmp_path), queue_of(tmp_path)
    tasks.set(TRAINING, ran=100, waited=0)
    tasks.set(11, ran=100, waited=0)
    queue.read()
    tasks.set(TRAINING, ran=150, waited=10)
    tasks.set(11, ran=150, waited=40)
    assert queue.read() == (40, 50, 10)


def test_helper_that_did_not_run_and_threads_of_python_hold_nothing(tmp_path):
    tasks, queue = Tasks(tmp_path), queue_of(tmp_path, (TRAINING, 12))
    for thread in (TRAINING, 11, 12):
        tasks.set(thread, ran=100, waited=0)
    queue.read()
    tasks.set(TRAINING, ran=150, waited=10)
    tasks.set(11, ran=100, waited=40)
    tasks.set(12, ran=150, waited=90)
    assert queue.read() == (10, 10, 10)


def test_only_the_busiest_helpers_are_read(tmp_path):
    tasks, queue = Tasks(tmp_path), queue_of(tmp_path)
    tasks.set(TRAINING, ran=1, waited=0)
    for thread in range(20, 30):
        tasks.set(thread, ran=thread, waited=0)
    queue.read()
    tasks.set(TRAINING, ran=2, waited=1)
    for thread in range(20, 30):
        tasks.set(thread, ran=thread + 1, waited=2)
    assert queue.read() == (2, 1 + 2 * MOST_HELPERS, 1)


def test_threads_that_compute_with_the_training_are_counted(tmp_path):
    tasks, queue = Tasks(tmp_path), queue_of(tmp_path)
    assert queue.computing() == 0  # unknown
    for thread, ran in ((TRAINING, 1000), (11, 900), (12, 50), (13, 49), (14, 0), (threading.get_native_id(), 900)):
        tasks.set(thread, ran=ran, waited=0)
    assert queue.computing() == 3  # those that only wait and Python's do not count
