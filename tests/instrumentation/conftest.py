"""Fixtures of the instrumentation tests."""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.fake_training import FakeLoader, FakeModule, FakeOptimizer, FakeTraining
from tests.support.instrumented import InstrumentedTorch, instrumented_torch
from tests.support.recording import IMPLEMENTATIONS, implementation_of


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
def val_loader(training) -> FakeLoader:
    """A loader of four batches for evaluation, each fetched in half a second."""
    return FakeLoader(training, 4, seconds=0.5)


FRONTS: Final = "C, with fronts"


@pytest.fixture(params=(*IMPLEMENTATIONS, FRONTS))
def instrumented(request: pytest.FixtureRequest) -> Iterator[InstrumentedTorch]:
    """The instrumentation of real torch, its fast paths in Python and in C, and with fronts; torch is restored."""
    has_fronts = request.param == FRONTS
    with instrumented_torch(implementation_of("C" if has_fronts else request.param)) as one:
        if has_fronts:
            one.place_fronts()
        yield one
