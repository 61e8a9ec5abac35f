"""What draws random numbers for a sample is known by names, without a call."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from training_profiler.inspections.frozen_forward import draws_random_numbers

PLAIN = TensorDataset(torch.zeros(4, 2))


class RandomCrop:
    """As of torchvision."""


class Resize:
    def __call__(self, x):
        return x[:1]


class Shifted:
    def __init__(self, rng):
        self.rng = rng

    def __getitem__(self, index):
        return index + self.rng.normal()


class Never:
    """Anything of it that is called raises."""

    def __getattribute__(self, name):
        raise AssertionError


def noisy(x):
    return x + torch.randn_like(x)


def with_noise():
    inner = noisy
    return lambda x: inner(x)


@pytest.mark.parametrize(
    "value",
    [
        SimpleNamespace(transform=SimpleNamespace(transforms=[Resize(), RandomCrop()])),
        Shifted(None),
        Subset(Shifted(None), [0]),
        {"transform": noisy},
        with_noise(),
        Shifted(None).__getitem__,
    ],
)
def test_random_numbers_are_found(value):
    assert draws_random_numbers(PLAIN, value)


@pytest.mark.parametrize(
    "value", [PLAIN, Subset(PLAIN, [0]), SimpleNamespace(transform=Resize()), [Resize()] * 1000, None, partial(len)]
)
def test_plain_samples_are_the_same(value):
    assert not draws_random_numbers(value)


def test_a_loop_ends():
    value = SimpleNamespace()
    value.own = [value] * 3
    assert not draws_random_numbers(value)
