import numpy as np
import pytest

from training_profiler.statistics.compare import FORGOTTEN_S, STATE_STD, span_needed, unseen_variance, variance_of_mean


def test_a_short_run_sees_nothing_of_the_drift_and_a_long_one_nearly_all():
    assert unseen_variance(0.0) == STATE_STD**2
    spans = [unseen_variance(span_s) / STATE_STD**2 for span_s in (0.001, 0.1, 1, 10, 50, 1000)]
    assert spans == sorted(spans, reverse=True)
    assert spans[0] == pytest.approx(1.0, abs=0.001)
    assert spans[-1] < 0.001


@pytest.mark.parametrize("span_s", [2.0, 10.0, 40.0])
def test_what_is_unseen_and_what_the_run_shows_add_up_to_the_variance_of_the_mean(span_s):
    random = np.random.default_rng(0)
    steps, runs = 400, 600
    kept = np.exp(-span_s / steps / FORGOTTEN_S)
    states = np.empty((runs, steps))
    states[:, 0] = random.standard_normal(runs)
    for i in range(1, steps):
        states[:, i] = kept * states[:, i - 1] + np.sqrt(1 - kept**2) * random.standard_normal(runs)
    states *= STATE_STD
    seen = np.mean([variance_of_mean(row)[0] for row in states])
    assert seen + unseen_variance(span_s) == pytest.approx(states.mean(axis=1).var(), rel=0.2)


def test_a_smaller_difference_needs_longer_runs():
    needed = [span_needed(difference, 0.01, 1.0, 0.96) for difference in (0.06, 0.03, 0.02)]
    assert needed == sorted(needed)
    assert needed[0] > 1
    assert span_needed(0.0001, 0.01, 1.0, 0.96) is None
