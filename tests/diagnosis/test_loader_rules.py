"""Rules about several loaders: each fires, is silent just below, and without data."""

from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.snapshot.snapshot import LoaderStats, Snapshot


def loader(name: str, data_avg_s: float | None = None, batches: int = 100, **others) -> LoaderStats:
    return LoaderStats(name, batches, None, (data_avg_s or 0.0) * batches, data_avg_s=data_avg_s, **others)


def found(code: str, *loaders: LoaderStats, steps: int = 100) -> Finding | None:
    run: Snapshot = replace(snapshot_of({"forward_pass": 0.4, "backward_pass": 0.55}, steps=steps), loaders=loaders)
    return next((finding for finding in diagnose(run) if finding.code == code), None)


def test_slow_loader_is_named_with_its_cost():
    finding = found("loader-slow", loader("main", 0.001), loader("aux", 0.016))
    assert finding.message == (
        "Loader aux is slow: 16.0 ms per batch, against 1.00 ms for main; it causes 94% of the wait for batches"
    )
    assert finding.potential_saving_s == pytest.approx(1.5)
    assert finding.step_if_gone_s == pytest.approx(0.085)


def test_a_slow_loader_is_compared_with_the_mean_batch_of_the_others():
    finding = found("loader-slow", loader("a", 0.001, batches=300), loader("b", 0.005), loader("d", 0.02))
    assert finding.evidence["others_avg_s"] == pytest.approx(0.002)
    assert "against 2.00 ms for the others" in finding.message


@pytest.mark.parametrize(
    "loaders",
    [
        [],
        [loader("main", 0.016)],
        [loader("main", 0.004), loader("aux", 0.008)],  # twice is not over twice
        [loader("main", None), loader("aux", 0.016)],
        [loader("main", 0.001), loader("aux", 0.016, batches=7)],
        [loader("main", 0.001), loader("aux", 0.016, phase="val")],
        [loader("main", 0.0001), loader("aux", 0.0009)],  # 0.9 % of the run
        [loader("main", 0.000001), loader("aux", 0.00016)],  # a trifle
    ],
)
def test_equally_fast_loaders_are_no_finding(loaders):
    assert found("loader-slow", *loaders) is None


def test_mix_that_differs_from_the_configured_one_is_found():
    finding = found(
        "loader-mix",
        loader("main", batches=800, proportion=0.8, asked_proportion=2 / 3),
        loader("aux", batches=200, proportion=0.2, asked_proportion=1 / 3),
    )
    assert finding.message == (
        "The mix of loaders differs from the configured one: main 80.0% instead of 66.7%, aux 20.0% instead of 33.3%"
    )


@pytest.mark.parametrize(
    "pair",
    [
        (0.51, 0.5),  # one point is not over one point
        (0.56, 0.5),  # of 200 batches that is chance: one standard deviation is 3.5 points
        (0.56, None),
        (None, 0.5),
    ],
)
def test_mix_as_configured_or_off_by_chance_has_no_finding(pair):
    proportion, asked = pair
    one = loader("main", batches=200, proportion=proportion, asked_proportion=asked)
    assert found("loader-mix", one) is None
