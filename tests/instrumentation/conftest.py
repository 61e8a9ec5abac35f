"""Fixtures of the instrumentation tests."""

from collections.abc import Iterator

import pytest

from tests.support.fake_training import FakeLoader, FakeModule, FakeOptimizer, FakeTraining
from tests.support.instrumented import InstrumentedTorch, instrumented_torch
from training_profiler.inspections import early_steps, same_again


@pytest.fixture(autouse=True)
def patient_inspections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let counts alone end inspections, which end after some time of a busy machine as well."""
    for inspection in (early_steps, same_again):
        monkeypatch.setattr(inspection, "MOST_NS", 10**12)


@pytest.fixture
def training() -> FakeTraining:
    return FakeTraining()


@pytest.fixture
def model(training) -> FakeModule:
    return FakeModule(training)


@pytest.fixture
def optimizer() -> FakeOptimizer:
    return FakeOptimizer()


@pytest.fixture
def loader(training) -> FakeLoader:
    """A loader of three batches for the training."""
    return FakeLoader(training, 3)


@pytest.fixture
def instrumented() -> Iterator[InstrumentedTorch]:
    """The instrumentation of real torch, which is restored."""
    with instrumented_torch() as one:
        yield one
