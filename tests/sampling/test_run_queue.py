"""The wait for a CPU, from files as Linux's scheduler writes them; ns."""

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

    def end(self, thread: int) -> None:
        (self._folder / str(thread) / "schedstat").unlink()
        (self._folder / str(thread)).rmdir()


def queue_of(root: Path, python_threads: tuple[int, ...] = (TRAINING,)) -> RunQueue:
    queue = RunQueue(root, lambda: python_threads)
    queue.use_thread(TRAINING)
    return queue


def test_wait_is_that_since_the_previous_reading(tmp_path):
    tasks, queue = Tasks(tmp_path), queue_of(tmp_path)
    tasks.set(TRAINING, ran=100, waited=50)
    assert queue.read() is None
    tasks.set(TRAINING, ran=200, waited=80)
    assert queue.read() == (30, 30, 30)
    tasks.set(TRAINING, ran=300, waited=85)
    assert queue.read() == (5, 5, 5)


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


def test_thread_that_ends_or_is_new_is_left_out(tmp_path):
    tasks, queue = Tasks(tmp_path), queue_of(tmp_path)
    tasks.set(TRAINING, ran=1, waited=0)
    tasks.set(11, ran=1, waited=0)
    queue.read()
    tasks.end(11)
    tasks.set(12, ran=500, waited=400)
    tasks.set(TRAINING, ran=2, waited=3)
    assert queue.read() == (3, 3, 3)


def test_another_training_thread_begins_again(tmp_path):
    tasks, queue = Tasks(tmp_path), queue_of(tmp_path, (TRAINING, 11))
    tasks.set(TRAINING, ran=1, waited=0)
    tasks.set(11, ran=1, waited=900)
    queue.read()
    queue.use_thread(11)
    assert queue.read() is None
    tasks.set(11, ran=2, waited=905)
    assert queue.read() == (5, 5, 5)


def test_system_without_such_files_knows_nothing(tmp_path):
    queue = RunQueue(tmp_path)
    assert (queue.read(), queue.read()) == (None, None)


def test_this_system_is_read():
    queue = RunQueue()
    first, second = queue.read(), queue.read()
    assert first is None
    assert second is None or second.training_ns >= 0
