"""Weights that are computed at each use are found in early steps of real torch."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

USES = 8


class Cell(nn.Module):
    def __init__(self, wrap=parametrizations.orthogonal, uses=USES):
        super().__init__()
        self.uses, self.turn = uses, wrap(nn.Linear(48, 48, bias=False))

    def forward(self, x):
        for _ in range(self.uses):
            x = torch.tanh(self.turn(x))
        return x


@pytest.fixture
def weights(instrumented):
    """Train for some steps, and return what was found."""
    torch.manual_seed(0)

    def train(model, around=contextlib.nullcontext, micro_batches=1):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(12):
            optimizer.zero_grad()
            for _ in range(micro_batches):
                with around():
                    loss = model(torch.randn(4, 48)).square().mean()
                loss.backward()
            optimizer.step()
            instrumented.instrumentation.step_ended(instrumented.steps, counts_flops=False)
        assert not nn.modules.module._global_forward_hooks
        assert not nn.modules.module._global_forward_pre_hooks
        return instrumented.instrumentation.program_facts().weights

    return train


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("wrap", [parametrizations.orthogonal, parametrizations.weight_norm])
def test_a_weight_that_is_computed_at_each_use_is_found(weights, wrap, micro_batches):
    facts = weights(Cell(wrap), micro_batches=micro_batches)
    assert (facts.name, facts.weights, facts.calls) == ("turn.weight", 1, USES)
    assert 0 < facts.part < 1
    assert 0 < facts.part_of_backward < 1


def test_most_of_the_time_may_be_theirs(weights):
    facts = weights(Cell())
    assert facts.part > 0.25
    assert facts.part_of_backward > 0.25


def test_two_weights_are_two(weights):
    facts = weights(nn.Sequential(Cell(), Cell()))
    assert (facts.name, facts.weights, facts.calls) == ("0.turn.weight", 2, USES)


def test_a_weight_that_is_computed_once_is_not_found(weights):
    assert weights(Cell(uses=1), micro_batches=3) is None
    assert weights(Cell(lambda layer: layer)) is None


def test_kept_weights_are_not_found(weights):
    assert weights(Cell(), parametrize.cached) is None
