"""Graphs and gradients that nothing uses are found in early steps of real torch, and used ones are not."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.overrides import BaseTorchFunctionMode
from torch.utils.checkpoint import checkpoint

from training_profiler.inspections import early_steps, unused

STEPS = 30


def layers(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


class Training:
    """A model, a teacher, and what its loop does besides."""

    def __init__(self, instrumented):
        self.instrumented, self.model, self.teacher, self.kept = instrumented, layers(), layers(32), []
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def use(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run(self, besides=None, loss_of=None, after=None, steps=STEPS):
        number = itertools.count()

        def loss():
            x = torch.randn(3, 4)
            if besides is not None:
                besides(x)
            return self.model(x).square().mean() if loss_of is None else loss_of(x)

        after_step = after and (lambda loss: after(next(number)))
        return self.instrumented.train(self.optimizer, loss, steps, after_step)

    def gradients(self, target=None, before=lambda x: x, after=None):
        """Return the unused gradients of a student that learns from its teacher, or from a ``target``."""

        def loss_of(x):
            x = before(x)
            return (self.model(x) - (target or self.teacher)(x)).square().mean()

        return self.run(loss_of=loss_of, after=after).unused_gradients

    def without_grad(self, model, x):
        with torch.no_grad():
            return model(x)


@pytest.fixture
def training(instrumented):
    torch.manual_seed(0)
    return Training(instrumented)


# Graphs


def test_acting_with_gradients_is_found_and_no_hook_stays(training):
    policy = copy.deepcopy(training.model)
    facts = training.run(besides=lambda x: [policy(x).argmax() for _ in range(3)]).unused_graphs
    assert facts.calls == pytest.approx(3 / 4 * facts.of, abs=3)
    assert facts.calls >= 3 * (facts.steps - 2)
    assert facts.module == "Sequential"
    assert 0 < facts.part < 1  # of their time, which a busy machine moves
    assert not policy._forward_hooks
    assert not training.model._forward_hooks


def test_an_output_that_is_detached_is_found(training):
    teacher = layers()
    facts = training.run(loss_of=lambda x: (training.model(x) - teacher(x).detach()).square().mean()).unused_graphs
    assert facts.calls == pytest.approx(facts.of / 2, abs=2)


class Viewed(nn.Linear):
    """Returns a view of what it computes."""

    def forward(self, x):
        return super().forward(x).view(2, 3)


class Heads(nn.Module):
    """Returns several outputs, as a dictionary."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return {"first": self.first(x), "second": [self.second(x)]}


class Failing(nn.Linear):
    def forward(self, x):
        raise ValueError("no")


def two_losses(t, x):
    output = t.model(x)
    output.sum().backward(retain_graph=True)
    return output.square().mean()


def in_place(t, x):
    output = t.model(x)
    output[0] = 0.0
    return output.square().mean()


def by_grad(t, x):
    (gradient,) = torch.autograd.grad(t.model(x.requires_grad_()).sum(), x, create_graph=True)
    return gradient.square().mean()


def some_steps_later(t, x):
    t.kept.append(t.model(x).square().mean())
    if len(t.kept) < 5:
        return torch.zeros(())
    loss = torch.stack(t.kept).sum()
    t.kept.clear()
    return loss


def fails(failing):
    def besides(t, x):
        with pytest.raises(ValueError, match="no"):
            failing(x)
        assert not failing._forward_hooks

    return besides


FROZEN = layers().requires_grad_(False)
# A model, how its loss is computed, and what happens besides.
USED = {
    "plain": (layers, None, None),
    "two losses": (layers, two_losses, None),
    "in place": (layers, in_place, None),
    "view": (lambda: Viewed(4, 2), None, None),
    "view in place": (lambda: Viewed(4, 2), in_place, None),
    "grad": (layers, by_grad, None),
    "checkpoint": (layers, lambda t, x: checkpoint(t.model, x, use_reentrant=False).square().mean(), None),
    "heads": (Heads, lambda t, x: t.model(x)["second"][0].square().mean(), None),
    "chunk": (layers, lambda t, x: t.model(x).squeeze().flatten().chunk(2)[0].square().mean(), None),
    "some steps later": (layers, some_steps_later, None),
    "kept by the program, perhaps for a use": (layers, None, lambda t, x: t.kept.append(t.model(x))),
    "calls without gradients or of frozen modules": (
        layers,
        None,
        lambda t, x: (FROZEN(x), t.without_grad(t.model, x)),
    ),
    "an error in another forward pass": (layers, None, fails(Failing(4, 2))),
}


@pytest.mark.parametrize(("make", "loss_of", "besides"), USED.values(), ids=USED)
def test_graphs_that_are_used_are_not_found(training, make, loss_of, besides):
    training.use(make())
    steps = 80 if loss_of is some_steps_later else STEPS
    facts = training.run(
        besides and (lambda x: besides(training, x)), loss_of and (lambda x: loss_of(training, x)), steps=steps
    )
    assert facts.unused_graphs is None


def test_the_fast_path_of_a_frozen_transformer_layer_stays(training):
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval().requires_grad_(False)
    x = torch.randn(2, 3, 4)
    before, outputs = layer(x), []
    training.run(besides=lambda _: outputs.append(layer(x)))
    assert all(torch.equal(before, output) for output in outputs)


# Gradients


def test_a_teacher_that_is_called_with_gradients_is_found_and_forgotten_once_it_changes(training):
    facts = training.gradients(lambda x: training.teacher(x) + training.teacher[0](x).mean())  # each counts once
    assert facts.numbers == sum(each.numel() for each in training.teacher.parameters())
    assert facts.of == facts.numbers + sum(each.numel() for each in training.model.parameters())
    assert (facts.is_whole, facts.passed_on, facts.module) == (True, 0.0, "Sequential")
    assert 0 < facts.part < 1
    assert not training.instrumented.instrumentation.early_steps._gradients._called
    del training.teacher[2]
    assert training.instrumented.instrumentation.program_facts().unused_gradients is None


@pytest.mark.parametrize("watch", [BaseTorchFunctionMode, torch.autograd.profiler.profile])
def test_a_profiler_or_mode_of_the_program_sees_nothing_of_the_looking(training, watch, monkeypatch):
    looked_at = []
    monkeypatch.setattr(unused, "first_values", looked_at.append)
    with watch():
        assert training.gradients() is None
    assert not looked_at


def test_a_profiler_of_the_first_steps_delays_the_looking(training):
    profiler = torch.autograd.profiler.profile()
    profiler.__enter__()
    assert training.gradients(after=lambda step: profiler.__exit__(None, None, None) if step == 9 else None) is not None


def test_gradients_that_are_cleared_after_an_update_are_found_where_the_looking_takes_too_long(training, monkeypatch):
    monkeypatch.setattr(early_steps, "thread_time_ns", itertools.count().__next__)
    monkeypatch.setattr(early_steps, "MOST_NS", 60)  # about ten steps
    both = nn.ModuleList([training.model, training.teacher])
    assert training.gradients(after=lambda step: both.zero_grad()) is not None


def test_gradients_that_are_cleared_are_found_too_on_a_default_device_which_is_not_a_watcher(training):
    both = nn.ModuleList([training.model, training.teacher])
    with torch.device("cpu"):
        assert training.gradients(before=lambda x: both.zero_grad() or x) is not None


def test_layers_that_the_optimizer_did_not_get_are_found_and_what_comes_after_them_is_timed(training, monkeypatch):
    now_ns = itertools.count(1_000, 1_000)  # begin, two gradients of the last layer, end
    for module in (unused, early_steps):
        monkeypatch.setattr(module, "perf_counter_ns", lambda: next(now_ns))
    training.optimizer = torch.optim.SGD(training.model[2].parameters(), lr=0.1)
    facts = training.gradients(target=lambda x: torch.zeros(3, 2))
    assert (facts.numbers, facts.of, facts.is_whole) == (40, 58, False)
    assert (facts.part, facts.after_trained) == (pytest.approx(40 / 58), pytest.approx(1 / 3))
    assert not any(each._backward_hooks for each in training.model.parameters())


def test_a_model_in_the_loss_passes_gradients_on(training):
    picture = nn.Parameter(torch.randn(3, 4))
    training.optimizer = torch.optim.Adam([picture])
    training.model.requires_grad_(False)
    facts = training.gradients(before=lambda x: picture, target=lambda x: training.teacher(picture))
    assert facts.passed_on == facts.part > 0
    assert not facts.is_whole


@torch.no_grad()
def moved_average(t, step):
    for own, trained in zip(t.teacher.parameters(), t.model.parameters(), strict=False):
        own.data.add_(trained.mean())


def updated_manually(t, step):
    for parameter in t.teacher.parameters():
        parameter.data.sub_(0.01 * parameter.grad)


class Odd(torch.optim.SGD):
    def __eq__(self, other):
        raise AssertionError


class Own(nn.Parameter):
    """As of tensors that are spread over ranks."""


def copied_optimizer(parameters):
    later = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0)
    copied = copy.copy(later)
    copied.param_groups = [{**later.param_groups[0], "params": parameters}]
    return copied


def by_another(make, every=1):
    """Return a program whose teacher has an optimizer, too."""

    def program(t):
        other = make(list(t.teacher.parameters()))
        return {"after": lambda step: other.step() if step % every == every - 1 else None}

    return program


def many(t):
    models = [layers() for _ in range(unused.MOST_MODULES)]
    return {"target": lambda x: sum(each(x) for each in models)}


def add(t, step):
    if step == 27:
        t.optimizer.add_param_group({"params": list(t.teacher.parameters())})


# Each returns arguments of the training.
SILENT = {
    "before the teacher was detached": lambda t: (
        t.teacher(torch.ones(3, 4)).sum().backward(),
        {"target": lambda x: t.teacher(x).detach()},
    )[1],
    "a moved average": lambda t: {"after": lambda step: moved_average(t, step)},
    "updated manually": lambda t: {"after": lambda step: updated_manually(t, step)},
    "another optimizer": by_another(lambda parameters: torch.optim.SGD(parameters, lr=0.1), 20),
    "a copied optimizer": by_another(copied_optimizer),
    "an optimizer with an equality of its own": by_another(lambda parameters: Odd(parameters, lr=0.1)),
    "added later": lambda t: {"after": lambda step: add(t, step)},
    "a frozen teacher": lambda t: (t.teacher.requires_grad_(False), {})[1],
    "16 bits may be a copy": lambda t: (
        t.teacher.bfloat16(),
        {"target": lambda x: t.teacher(x.bfloat16()).float()},
    )[1],
    "many modules": many,
    "parameters of another kind": lambda t: (setattr(t.teacher[0], "weight", Own(torch.randn(32, 4))), {})[1],
}


@pytest.mark.parametrize("program", SILENT.values(), ids=SILENT)
def test_gradients_that_are_used_are_not_found(training, program):
    assert training.gradients(**program(training)) is None
    assert training.instrumented.steps >= STEPS - 1  # the last one may go on
