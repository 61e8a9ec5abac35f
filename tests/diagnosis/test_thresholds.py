"""Thresholds as they are by default, and as a run sets them."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import THRESHOLDS, diagnose, epoch_warnings
from training_profiler.snapshot.snapshot import EpochStats


def codes(snapshot):
    return [finding.code for finding in diagnose(snapshot)]


def test_these_are_the_thresholds():
    assert dict(THRESHOLDS) == {
        "data-loading-bound": 0.15,
        "anomaly-detection": 0.03,
        "backward-hooks": 0.10,
        "forward-hooks": 0.10,
        "needless-create-graph": 0.02,
        "unused-gradients": 0.05,
        "unused-graphs": 0.1,
        "recomputation": 0.10,
        "python-in-backward": 0.10,
        "frozen-forward": 0.15,
        "time-step-loop": 0.10,
        "parameter-loop": 0.10,
        "slow-startup": 0.50,
        "outside-steps": 0.40,
        "dense-embedding": 0.15,
        "data-generation-bound": 0.30,
        "data-transfer": 0.10,
        "loader-slow": 2.0,
        "loader-mix": 0.01,
        "loader-restarted": 0.05,
        "few-threads": 0.15,
        "forward-dominates": 0.60,
        "backward-slow": 3.0,
        "optimizer-heavy": 0.15,
        "metrics-heavy": 0.05,
        "logging-heavy": 0.05,
        "ema-heavy": 0.05,
        "synchronization-heavy": 0.10,
        "rank-silent": 0.0,
        "straggler": 0.10,
        "host-slow": 0.10,
        "uneven-work": 0.10,
        "validation-heavy": 0.10,
        "passes-before-training": 0.10,
        "sampling-heavy": 0.10,
        "checkpointing-heavy": 0.05,
        "workers-restarted": 0.02,
        "validation-workers-restarted": 0.02,
        "validation-tiny-batches": 0.05,
        "slow-precision": 0.10,
        "full-precision": 0.10,
        "channels-first": 0.10,
        "profiler-records": 0.5,
        "batch-norm-update-heavy": 0.05,
        "unexplained": 0.10,
        "waits-for-device": 0.05,
        "gpu-utilization": 0.80,
        "shared-gpu": 0.10,
        "host-memory": 0.85,
        "gpu-memory-high": 0.90,
        "gpu-memory-low": 0.50,
        "memory-growth": 0.05,
        "memory-rises-since": 0.05,
        "step-time-varies": 0.10,
        "cpu-oversubscribed": 0.2,
        "machine-busy": 0.1,
        "slower-since": 0.05,
        "slowing-down": 0.05,
        "steps-do-more": 0.05,
        "validation-with-gradients": 0.0,
        "first-batch-slow": 5.0,
        "warm-up": 3.0,
        "small-operators": 0.25,
        "sampler-slow": 0.05,
        "python-in-forward": 0.15,
        "double-precision": 0.10,
        "repeated-backward": 0.10,
        "repeated-forward": 0.05,
        "tiny-batches": 0.25,
        "kept-graphs": 0.9,
        "recompiles": 0.03,
        "lock-held-by-thread": 0.10,
        "garbage-collection": 0.03,
        "page-faults": 0.05,
        "allocator-retries": 0.01,
    }


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
