import pytest
import torch

from training_profiler.runtime.health import LEAST_SPEED_S, MOST_SPEED_S, SPEED_SHARE, budget_s, measure


@pytest.mark.parametrize(("run_s", "seconds"), [(1.0, 0.0), (20.0, 20.0 * SPEED_SHARE), (3600.0, MOST_SPEED_S)])
def test_measuring_takes_a_small_part_of_the_run(run_s, seconds):
    assert budget_s(run_s) == seconds
    assert budget_s(LEAST_SPEED_S / SPEED_SHARE) == LEAST_SPEED_S


def test_speed_is_measured_without_random_numbers():
    before = torch.get_rng_state()
    speed = measure(torch, "float32", 0.01)
    assert speed.dtype == "float32"
    assert speed.gflops > 0
    assert 0 < speed.operator_s < 1
    assert torch.equal(torch.get_rng_state(), before)
    assert measure(torch, "int64", 0.01) is None


@pytest.mark.parametrize(("dtype", "is_compared"), [("float32", False), ("float64", False), ("bfloat16", True)])
def test_half_precision_is_measured_beside_float32(dtype, is_compared):
    assert (measure(torch, dtype, 0.01).float32_gflops > 0) == is_compared
