"""Thresholds as a run sets them; tests/docs compares the defaults with the guide."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import diagnose, epoch_warnings
from training_profiler.snapshot.snapshot import EpochStats


def codes(snapshot):
    return [finding.code for finding in diagnose(snapshot)]


@pytest.mark.parametrize(("threshold", "fires"), [(0.30, False), (0.20, True)])
def test_a_threshold_of_the_run_wins_over_the_default(threshold, fires):
    run = snapshot_of({"data_loading": 0.25, "forward_pass": 0.35, "backward_pass": 0.4})
    found = codes(replace(run, thresholds={"data-loading-bound": threshold}))
    assert ("data-loading-bound" in found) == fires
    assert ("data-loading-efficient" in found) == (not fires)


def test_the_warnings_of_an_epoch_have_the_threshold_of_the_run():
    epoch = EpochStats(1, 10.0, 100, 100, None, 0.1, {"data_generation": 4.0}, None, None)
    assert epoch_warnings(epoch, {"data-generation-bound": 0.5}) == []
    assert len(epoch_warnings(epoch, {"data-generation-bound": 0.35})) == 1
