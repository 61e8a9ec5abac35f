"""Passes over loaders before the training, that may be features or a first validation."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from training_profiler.model.program import PassesBefore
from training_profiler.recording.data_loader import LoaderRegistry

X = torch.randn(24, 4)


class Validation(TensorDataset):
    """Another data set."""


class Training:
    """A backbone, a head, and loaders of its batches, recorded on real torch."""

    def __init__(self, instrumented):
        self.instrumented = instrumented
        instrumented.loaders = LoaderRegistry()
        self.back, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.train, self.other, self.third = (DataLoader(TensorDataset(X), batch_size=4) for _ in range(3))

    def over(self, loader, model=None):
        with torch.no_grad():
            return torch.cat([(model or self.back.eval())(x) for (x,) in loader])

    def fit(self, loader=None, epochs=2, then=lambda: None):
        optimizer = torch.optim.SGD(self.head.parameters(), lr=0.1)
        for _ in range(epochs):
            for (x,) in loader or self.train:
                loss = self.head(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            then()

    def facts(self) -> PassesBefore | None:
        return self.instrumented.instrumentation.program_facts().passes_before


@pytest.fixture
def training(instrumented):
    torch.manual_seed(0)
    return Training(instrumented)


def features(training):
    kept = training.over(training.other)
    training.fit(DataLoader(TensorDataset(kept), batch_size=4))


def features_of_two_sets(training):
    training.over(training.other)
    kept = training.over(training.third)
    training.fit(DataLoader(TensorDataset(kept), batch_size=4))


def features_and_validations(training):
    training.over(training.other)
    training.fit(then=lambda: training.over(DataLoader(Validation(X), batch_size=4), training.head))


def features_of_training_data(training):
    """The loader of the training itself is read once before it."""
    training.over(training.train)
    training.fit()


def first_validation(training):
    training.over(training.other, training.head)
    training.fit(then=lambda: training.over(training.other, training.head))


def first_validation_of_part(training):
    for _, (x,) in zip(range(2), training.other, strict=False):
        with torch.no_grad():
            training.head(x)
    training.fit(then=lambda: training.over(training.other, training.head))


def loaders_made_again(training):
    """A loader that is gone may be taken for another one with the same kind of data."""

    def evaluate():
        training.over(DataLoader(TensorDataset(X), batch_size=4), training.head)

    evaluate()
    training.fit(then=evaluate)


def validations_later(training):
    training.fit(then=lambda: training.over(training.other, training.head))


def last_test(training):
    training.fit()
    training.over(training.other, training.head)


def without_a_loader(training):
    with torch.no_grad():
        training.back.eval()(X)
    training.fit()


@pytest.mark.parametrize(
    ("program", "count"),
    [(features, 1), (features_of_two_sets, 2), (features_and_validations, 1), (features_of_training_data, 1)],
)
def test_passes_that_nothing_repeats_are_found(training, program, count):
    program(training)
    facts = training.facts()
    training.instrumented.instrumentation.close()
    assert training.facts() == facts
    assert facts.passes == count
    assert facts.seconds > 0


REPEATED = [
    first_validation,
    first_validation_of_part,
    loaders_made_again,
    validations_later,
    last_test,
    without_a_loader,
]


@pytest.mark.parametrize("program", REPEATED)
def test_a_first_validation_is_one(training, program):
    program(training)
    assert training.facts() is None
