"""Which thread has Python's lock while the training thread waits for it, from the CPU times of threads."""

import threading
from pathlib import Path

import pytest
import torch

from training_profiler.sampling.lock_watch import (
    LEAST_LOOK_NS,
    SEARCH_NS,
    LockWatch,
    PythonThread,
    helper_threads,
    lock_watch,
    python_threads,
    thread_cpu_ns,
)

TRAINING, OTHER, OWN = (
    PythonThread(1, 11, "MainThread"),
    PythonThread(2, 12, "reader"),
    PythonThread(3, 13, "training_profiler machine"),
)
TICK_NS = 20_000_000
LOOKS = 400


class Threads:
    """CPU times of threads that each use a constant part of the time."""

    def __init__(
        self,
        training: float,
        other: float,
        helpers: float = 0.0,
        while_looked_at: float = 0.0,
        known_helpers: dict[int, float] | None = None,
    ) -> None:
        self.now_ns = 0
        self.parts = {TRAINING.native_id: training, OTHER.native_id: other, OWN.native_id: 1.0}
        self.known_helpers = None if known_helpers is None else list(known_helpers)
        self.parts |= known_helpers or {}
        self.used_ns = dict.fromkeys(self.parts, 0.0)
        self.helpers, self.helpers_ns = helpers, 0.0
        self.while_looked_at = while_looked_at  # part of a look in which ``other`` computes
        self.watch = LockWatch(
            self.cpu_ns,
            self.process_ns,
            lambda: [TRAINING, OTHER, OWN],
            lambda: self.now_ns,
            lambda: self.known_helpers,
        )

    def cpu_ns(self, native_id: int) -> int | None:
        return None if native_id not in self.used_ns else int(self.used_ns[native_id])

    def process_ns(self) -> int:
        return int(self.used_ns[TRAINING.native_id] + self.used_ns[OTHER.native_id] + self.helpers_ns)

    def look(self) -> int | None:
        self.now_ns += TICK_NS
        for native_id, part in self.parts.items():
            self.used_ns[native_id] += part * TICK_NS
        self.helpers_ns += self.helpers * TICK_NS
        self.watch.look_begins(TRAINING.ident)
        self.now_ns += 2 * LEAST_LOOK_NS
        self.used_ns[OTHER.native_id] += self.while_looked_at * 2 * LEAST_LOOK_NS
        holder = self.watch.look_ends()
        self.watch.find_helpers()
        return holder

    def part_held(self) -> float:
        looks = [self.look() for _ in range(LOOKS)]
        assert set(looks) <= {None, OTHER.ident}
        settled = looks[SEARCH_NS // TICK_NS * 3 :]
        return sum(look is not None for look in settled) / len(settled)


@pytest.mark.parametrize(
    ("threads", "part"),
    [
        ({"training": 0.3, "other": 0.4}, 0.4),  # no longer than the other thread has run
        ({"training": 0.3, "other": 0.7, "while_looked_at": 1.0}, 0.0),  # it computes without the lock
        ({"training": 1.0, "other": 0.9}, 0.0),  # a training that computes does not wait
        ({"training": 0.3, "other": 0.1}, 0.0),  # a thread that mostly sleeps is not watched
        # Threads that spin between operators are not waited for, and one of autograd is.
        ({"training": 0.3, "other": 0.7, "helpers": 0.9, "known_helpers": {}}, 0.7),
        ({"training": 0.3, "other": 0.7, "helpers": 0.9, "known_helpers": {14: 0.5}}, 0.2),
    ],
)
def test_the_part_of_the_samples_in_which_the_other_thread_holds_the_lock(threads, part):
    assert Threads(**threads).part_held() == pytest.approx(part, abs=0.01 * bool(part))


def test_a_helper_that_begins_is_noticed_and_its_past_is_not_counted():
    threads = Threads(training=0.3, other=0.7, known_helpers={})
    threads.part_held()
    threads.known_helpers, threads.parts[14], threads.used_ns[14] = [14], 0.5, 5e9
    assert threads.part_held() == pytest.approx(0.2, abs=0.01)


def test_threads_of_openmp_are_no_helpers():
    torch.zeros(1000, 1000).exp().sum()
    helpers = helper_threads()
    if helpers is None:
        pytest.skip("no such files on this system")
    assert threading.get_native_id() not in helpers
    assert all(Path(f"/proc/self/task/{each}/comm").read_text().startswith("pt_") for each in helpers)


def test_a_thread_that_ends_is_forgotten():
    threads = Threads(training=0.3, other=0.7)
    threads.part_held()
    del threads.used_ns[OTHER.native_id], threads.parts[OTHER.native_id]
    threads.while_looked_at = 0.0
    threads.process_ns = lambda: 0  # type: ignore[method-assign]
    threads.now_ns += TICK_NS
    threads.watch.look_begins(TRAINING.ident)
    assert threads.watch.look_ends() is None


def test_cpu_times_are_those_of_the_system():
    this = threading.get_native_id()
    if lock_watch() is None:
        pytest.skip("no such figures on this system")
    before = thread_cpu_ns(this)
    sum(range(100_000))
    assert before < thread_cpu_ns(this)
    assert thread_cpu_ns(2**22 + 1) is None  # beyond the kernel's largest id
    assert threading.get_ident() in {thread.ident for thread in python_threads()}
