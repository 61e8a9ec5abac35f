"""Graphs that no backward pass goes through are found in early steps of real torch, and used ones are not."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

STEPS = 30


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


class Viewed(nn.Module):
    """Returns a view of what it computes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x).view(2, 3)


class Heads(nn.Module):
    """Returns several outputs, as a dictionary."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return {"first": self.first(x), "second": [self.second(x)]}


class Training:
    """A model, and what its loop does besides."""

    def __init__(self, instrumented):
        self.instrumented = instrumented
        self.model = layers()

    def run(self, besides=None, loss_of=None, model=None, steps=STEPS):
        self.model = model or self.model

        def loss():
            x = torch.randn(3, 4)
            if besides is not None:
                besides(x)
            return self.model(x).square().mean() if loss_of is None else loss_of(x)

        return self.instrumented.train(torch.optim.SGD(self.model.parameters(), lr=0.1), loss, steps).unused_graphs


@pytest.fixture
def training(instrumented):
    torch.manual_seed(0)
    return Training(instrumented)


def test_acting_with_gradients_is_found(training):
    policy = copy.deepcopy(training.model)

    def act(x):
        for _ in range(3):
            policy(x).argmax()

    facts = training.run(besides=act)
    assert facts.calls == pytest.approx(3 / 4 * facts.of, abs=3)
    assert facts.calls >= 3 * (facts.steps - 2)
    assert facts.module == "Sequential"
    assert 0 < facts.part < 1  # of their time, which a busy machine moves


def test_an_output_that_is_detached_is_found(training):
    teacher = layers()
    facts = training.run(loss_of=lambda x: (training.model(x) - teacher(x).detach()).square().mean())
    assert facts.calls == pytest.approx(facts.of / 2, abs=2)


def test_nothing_of_the_program_keeps_a_hook(training):
    policy = layers()
    training.run(besides=policy)
    assert not policy._forward_hooks
    assert not training.model._forward_hooks


def two_losses(training):
    def loss_of(x):
        output = training.model(x)
        output.sum().backward(retain_graph=True)
        return output.square().mean()

    return loss_of


def in_place(training):
    def loss_of(x):
        output = training.model(x)
        output[0] = 0.0
        return output.square().mean()

    return loss_of


def by_grad(training):
    def loss_of(x):
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(training.model(x).sum(), x, create_graph=True)
        return gradient.square().mean()

    return loss_of


@pytest.mark.parametrize(
    ("model", "loss_of"),
    [
        (layers(), None),
        (layers(), two_losses),
        (layers(), in_place),
        (Viewed(), None),
        (Viewed(), in_place),
        (layers(), by_grad),
        (layers(), lambda training: lambda x: checkpoint(training.model, x, use_reentrant=False).square().mean()),
        (Heads(), lambda training: lambda x: training.model(x)["second"][0].square().mean()),
        (layers(), lambda training: lambda x: training.model(x).squeeze().flatten().chunk(2)[0].square().mean()),
    ],
    ids=["plain", "two losses", "in place", "view", "view in place", "grad", "checkpoint", "heads", "chunk"],
)
def test_graphs_that_are_used_are_not_found(training, model, loss_of):
    training.model = model
    assert training.run(loss_of=None if loss_of is None else loss_of(training), model=model) is None


def test_graphs_that_are_used_some_steps_later_are_not_found(training):
    kept = []

    def loss_of(x):
        kept.append(training.model(x).square().mean())
        if len(kept) < 5:
            return torch.zeros(())
        loss = torch.stack(kept).sum()
        kept.clear()
        return loss

    assert training.run(loss_of=loss_of, steps=80) is None


def test_graphs_that_the_program_keeps_are_not_known_to_be_unused(training):
    kept = []
    assert training.run(besides=lambda x: kept.append(training.model(x))) is None


def test_calls_without_gradients_or_of_frozen_modules_have_no_graph(training):
    frozen = layers().requires_grad_(False)

    def besides(x):
        frozen(x)
        with torch.no_grad():
            training.model(x)

    assert training.run(besides=besides) is None


def test_the_fast_path_of_a_frozen_transformer_layer_stays(training):
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval().requires_grad_(False)
    x = torch.randn(2, 3, 4)
    before = layer(x)
    outputs = []
    training.run(besides=lambda _: outputs.append(layer(x)))
    assert all(torch.equal(before, output) for output in outputs)


def test_losses_are_the_same_with_an_error_in_the_forward_pass(training):
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            raise ValueError("no")

    failing = Failing()

    def besides(x):
        with pytest.raises(ValueError, match="no"):
            failing(x)

    assert training.run(besides=besides) is None
    assert not failing._forward_hooks
