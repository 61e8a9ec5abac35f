"""Batches fetched before the first step that nothing is computed of: skipped by a resume, or gone through."""

from itertools import islice

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from training_profiler.recording.data_loader import LoaderRegistry

SKIPPED = 10
LOADER = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=1)


@pytest.fixture
def training(instrumented):
    instrumented.loaders = LoaderRegistry()
    return Training()


class Training:
    """A model that is trained on a few batches."""

    def __init__(self):
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def on(self, batches):
        for (x,) in batches:
            self.model(x).square().mean().backward()
            self.optimizer.step()


def by_continue(training):
    for at, batch in enumerate(LOADER):
        if at >= SKIPPED:
            training.on([batch])


def by_next(training):
    batches = iter(LOADER)
    for _ in range(SKIPPED):
        next(batches)
    training.on(batches)


def by_islice(training):
    training.on(islice(LOADER, SKIPPED, None))


def without_modules(training):
    for at, (x,) in enumerate(LOADER):
        if at >= SKIPPED:
            F.linear(x, training.model.weight).square().mean().backward()
            training.optimizer.step()


def statistics(training):
    sum(x.mean() for (x,) in LOADER)
    training.on(LOADER)


def statistics_of_some(training):
    sum(x.mean() for (x,) in islice(LOADER, SKIPPED))
    training.on(LOADER)


def few(training):
    training.on(islice(LOADER, 5, None))


def one(training):
    next(iter(LOADER))
    training.on(LOADER)


def kept(training):
    batches = iter(LOADER)
    buffer = [next(batches) for _ in range(SKIPPED)]
    training.on(batches)
    training.on(buffer)


def kept_by_sample(training):
    """Views keep the memory of a batch that is gone."""
    batches = iter(LOADER)
    buffer = [x[0] for (x,) in islice(batches, SKIPPED)]
    training.on(batches)
    training.on([(x,) for x in buffer])


def cached(training):
    batches = list(LOADER)
    training.on(batches)


def calibration(training):
    batches = iter(LOADER)
    with torch.no_grad():
        for (x,) in islice(batches, SKIPPED):
            training.model(x)
    training.on(batches)


def validation(training):
    with torch.no_grad():
        for (x,) in LOADER:
            training.model.eval()(x)
    training.model.train()
    training.on(LOADER)


def accumulation(training):
    """Batches of a step are fetched before its first forward pass, as Hugging Face's trainer does."""
    batches = iter(LOADER)
    while group := list(islice(batches, 12)):
        for (x,) in group:
            training.model(x).square().mean().backward()
        training.optimizer.step()


def later(training):
    """What is skipped between steps is not fetched before the first."""
    for at, batch in enumerate(LOADER):
        if at == 0 or at > SKIPPED:
            training.on([batch])


@pytest.mark.parametrize(
    ("program", "batches", "is_skipped"),
    [
        *((program, SKIPPED, True) for program in (by_continue, by_next, by_islice, without_modules)),
        (statistics, 24, False),
        (statistics_of_some, SKIPPED, False),
        *((each, None, None) for each in (few, one, kept, kept_by_sample, cached)),
        *((each, None, None) for each in (calibration, validation, accumulation, later)),
    ],
)
def test_batches_that_nothing_is_computed_of_are_counted(instrumented, training, program, batches, is_skipped):
    program(training)
    facts = instrumented.instrumentation.program_facts().fetched_before
    assert (facts and facts.batches, facts and facts.is_skipped) == (batches, is_skipped)
    assert facts is None or facts.seconds > 0
