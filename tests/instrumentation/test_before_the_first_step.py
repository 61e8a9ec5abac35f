"""Loaders before the first step: batches that nothing is computed of, features, a first validation."""

from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from training_profiler.recording.data_loader import LoaderRegistry

X = torch.randn(24, 4)
SKIPPED = 10
LOADER = DataLoader(TensorDataset(X), batch_size=1)


class Validation(TensorDataset):
    """Another data set."""


def loader_of(data=X, kind=TensorDataset):
    return DataLoader(kind(data), batch_size=4)


class Training:
    """A backbone, a head that is trained, and loaders of its batches, recorded on real torch."""

    def __init__(self, instrumented):
        self.instrumented = instrumented
        instrumented.loaders = LoaderRegistry()
        self.back, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.head.parameters(), lr=0.1)
        self.train, self.other, self.third = loader_of(), loader_of(), loader_of()

    def on(self, batches, forward=None):
        """Train on batches."""
        for (x,) in batches:
            self.optimizer.zero_grad()
            (forward or self.head)(x).square().mean().backward()
            self.optimizer.step()

    def functional(self, x):
        return F.linear(x, self.head.weight)

    def over(self, batches, model=None):
        """Compute outputs without gradients."""
        with torch.no_grad():
            return torch.cat([(model or self.back.eval())(x) for (x,) in batches])

    def fit(self, loader=None, then=lambda: None):
        """Train for two epochs."""
        for _ in range(2):
            self.on(loader or self.train)
            then()

    def validate(self, batches=None):
        self.over(batches or self.other, self.head)


@pytest.fixture
def training(instrumented):
    torch.manual_seed(0)
    return Training(instrumented)


# Batches that nothing is computed of: skipped by a resume, or gone through


def by_next(t):
    batches = iter(LOADER)
    for _ in range(SKIPPED):
        next(batches)
    t.on(batches)


def kept(t):
    batches = iter(LOADER)
    buffer = [next(batches) for _ in range(SKIPPED)]
    t.on(batches)
    t.on(buffer)


def kept_by_sample(t):
    """Views keep the memory of a batch that is gone."""
    batches = iter(LOADER)
    buffer = [x[0] for (x,) in islice(batches, SKIPPED)]
    t.on(batches)
    t.on([(x,) for x in buffer])


def calibration(t):
    batches = iter(LOADER)
    t.over(islice(batches, SKIPPED), t.head)
    t.on(batches)


def accumulation(t):
    """Batches of a step are fetched before its first forward pass, as Hugging Face's trainer does."""
    batches = iter(LOADER)
    while group := list(islice(batches, 12)):
        for (x,) in group:
            t.head(x).square().mean().backward()
        t.optimizer.step()


def resumed(t, forward=None):
    for at, batch in enumerate(LOADER):
        if at >= SKIPPED:
            t.on([batch], forward)


NOTHING = (None, None)
FETCHED = {
    "by continue": (resumed, (SKIPPED, True)),
    "by next": (by_next, (SKIPPED, True)),
    "by islice": (lambda t: t.on(islice(LOADER, SKIPPED, None)), (SKIPPED, True)),
    "without modules": (lambda t: resumed(t, t.functional), (SKIPPED, True)),
    "statistics": (lambda t: (sum(x.mean() for (x,) in LOADER), t.on(LOADER)), (24, False)),
    "statistics of some": (
        lambda t: (sum(x.mean() for (x,) in islice(LOADER, SKIPPED)), t.on(LOADER)),
        (SKIPPED, False),
    ),
    "few": (lambda t: t.on(islice(LOADER, 5, None)), NOTHING),
    "one": (lambda t: (next(iter(LOADER)), t.on(LOADER)), NOTHING),
    "kept": (kept, NOTHING),
    "kept by sample": (kept_by_sample, NOTHING),
    "cached": (lambda t: t.on(list(LOADER)), NOTHING),
    "calibration": (calibration, NOTHING),
    "validation": (lambda t: (t.over(LOADER, t.head.eval()), t.head.train(), t.on(LOADER)), NOTHING),
    "accumulation": (accumulation, NOTHING),
    "between steps": (
        lambda t: [t.on([batch]) for at, batch in enumerate(LOADER) if at == 0 or at > SKIPPED],
        NOTHING,
    ),
}


@pytest.mark.parametrize(("program", "found"), FETCHED.values(), ids=FETCHED)
def test_batches_that_nothing_is_computed_of_are_counted(training, program, found):
    program(training)
    facts = training.instrumented.instrumentation.program_facts().fetched_before
    assert (facts and facts.batches, facts and facts.is_skipped) == found
    assert facts is None or facts.seconds > 0


# Passes over loaders that may be features or a first validation


def made_again(t):
    """A loader that is gone may be taken for another one with the same kind of data."""
    t.validate(loader_of())
    t.fit(then=lambda: t.validate(loader_of()))


PASSES = {
    "features": (lambda t: t.fit(loader_of(t.over(t.other))), 1),
    "features of two sets": (lambda t: (t.over(t.other), t.fit(loader_of(t.over(t.third)))), 2),
    "features and validations": (
        lambda t: (t.over(t.other), t.fit(then=lambda: t.validate(loader_of(kind=Validation)))),
        1,
    ),
    "the loader of the training itself": (lambda t: (t.over(t.train), t.fit()), 1),
    "a first validation": (lambda t: (t.validate(), t.fit(then=t.validate)), 0),
    "a first validation of a part": (lambda t: (t.validate(islice(t.other, 2)), t.fit(then=t.validate)), 0),
    "loaders made again": (made_again, 0),
    "validations later": (lambda t: t.fit(then=t.validate), 0),
    "a last test": (lambda t: (t.fit(), t.validate()), 0),
    "without a loader": (lambda t: (t.over([(X,)]), t.fit()), 0),
}


@pytest.mark.parametrize(("program", "count"), PASSES.values(), ids=PASSES)
def test_passes_before_the_first_step_that_nothing_repeats_are_found(training, program, count):
    program(training)
    instrumentation = training.instrumented.instrumentation
    facts = instrumentation.program_facts().passes_before
    assert (0 if facts is None else facts.passes) == count
    if count:
        assert facts.seconds > 0
        instrumentation.close()
        assert instrumentation.program_facts().passes_before == facts
