import torch

from training_profiler.component_benchmark.stopwatch import TorchStopwatch


def test_a_run_is_timed_often_enough_to_tell_the_spread():
    said = []
    timing = TorchStopwatch(1, 0.05, said.append)("a sum", lambda: sum(range(50)))
    assert timing.measurements >= 5
    assert 0 < timing.median_s < 1
    assert timing.iqr_s is not None
    assert said == ["a sum"]


def test_the_number_of_threads_is_as_asked_and_set_back():
    seen = set()
    before = torch.get_num_threads()
    TorchStopwatch(1, 0.001)("threads", lambda: seen.add(torch.get_num_threads()))
    assert seen == {1}
    assert torch.get_num_threads() == before
