import torch
from torch.utils.benchmark import Measurement, TaskSpec

from training_profiler.component_benchmark import result
from training_profiler.component_benchmark.result import ENOUGH, TorchStopwatch


class SlowTimer:
    """Replaces torch's timer: the first block fills the given time, later blocks take 1 ms each."""

    def __init__(self, statement, num_threads, **rest):
        self._spec = TaskSpec(statement, setup="pass", num_threads=num_threads)

    def blocked_autorange(self, min_run_time):
        return Measurement(2, [min_run_time], self._spec)

    def timeit(self, number):
        return Measurement(number, [0.001], self._spec)


def test_blocks_are_added_until_there_are_enough_for_quartiles(monkeypatch):
    monkeypatch.setattr(result, "Timer", SlowTimer)
    shown = []
    timing = TorchStopwatch(1, 0.05, shown.append)("a sum", lambda: sum(range(50)))
    assert timing.measurements == ENOUGH >= 5
    assert timing.median_s == 0.0005
    assert timing.iqr_s == 0
    assert shown == ["a sum"]


def test_torch_timer_measures_seconds():
    timing = TorchStopwatch(1, 0.001)("a sum", lambda: sum(range(50)))
    assert timing.measurements >= 1
    assert 0 < timing.median_s < 1


def test_number_of_threads_is_set_and_restored():
    thread_counts = set()
    before = torch.get_num_threads()
    TorchStopwatch(1, 0.001)("threads", lambda: thread_counts.add(torch.get_num_threads()))
    assert thread_counts == {1}
    assert torch.get_num_threads() == before
