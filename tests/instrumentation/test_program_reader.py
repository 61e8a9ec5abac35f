"""What the program has set is read in the first step, and the detector is as before afterwards."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from training_profiler.inspections import program_reader
from training_profiler.instrumentation.call_sites import optimizer_facts
from training_profiler.model.program import ConvolutionFacts, OptimizerFacts


def train(instrumented, optimizer, model, steps=3, autocast=False):
    def loss_of():
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return model(torch.randn(8, 4)).float().square().mean()

    return instrumented.train(optimizer, loss_of, steps)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_optimizer_autocast_and_anomaly_detection_are_read_once(instrumented):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    with torch.autograd.detect_anomaly(check_nan=False):
        facts = train(instrumented, optimizer, model, steps=40, autocast=True)
    assert facts.finds_anomalies
    assert facts.optimizer == OptimizerFacts("Adam", 2, ("float32",), ("cpu",), False, None, True, True, 10)
    assert (facts.autocast, facts.convolutions) == ("bfloat16", None)
    detector = instrumented.instrumentation.context.detector
    assert not {"update_ends", "call_ends"} & vars(detector).keys()


def test_backward_passes_that_keep_the_graph_are_counted(instrumented):
    model = nn.Linear(4, 2)
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward(retain_graph=True)
    loss.backward(create_graph=True)
    loss.backward()
    assert instrumented.instrumentation.program_facts().kept_graphs == 1


@pytest.mark.parametrize(("is_apart", "past"), [(True, 3), (False, 0)])
def test_graphs_that_are_kept_past_an_update_are_counted(instrumented, is_apart, past):
    shared, first, second = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
    for _ in range(3):
        hidden = shared(torch.randn(8, 4))
        one, two = first(hidden).square().mean(), second(hidden).square().mean()
        optimizers = [torch.optim.SGD(first.parameters(), lr=0.1) for _ in range(1 if is_apart else 2)]
        one.backward(retain_graph=True)
        for work in (optimizers[0].step, two.backward) if is_apart else (two.backward, *(o.step for o in optimizers)):
            work()
    facts = instrumented.instrumentation.program_facts()
    assert (facts.kept_graphs, facts.kept_past_updates) == (3, past)


def gradients(loss, model):
    return torch.autograd.grad(loss, [*model.parameters()], create_graph=True)


def set_by_grad(loss, model):
    for parameter, gradient in zip(model.parameters(), gradients(loss, model), strict=True):
        parameter.grad = gradient


def set_by_func(loss, model):
    def loss_of(parameters):
        return torch.func.functional_call(model, parameters, (torch.randn(8, 4),)).square().mean()

    detached = {name: each.detach() for name, each in model.named_parameters()}
    for name, gradient in torch.func.grad(loss_of)(detached).items():
        model.get_parameter(name).grad = gradient.detach()


def penalty(loss, model):
    return sum(gradient.square().sum() for gradient in gradients(loss, model))


class Curvature(torch.optim.SGD):
    """Uses the graph of the gradients within its update, as AdaHessian does."""

    def step(self, closure=None):
        parameters = self.param_groups[0]["params"]
        gradients = [parameter.grad for parameter in parameters]
        torch.autograd.grad(gradients, parameters, grad_outputs=[torch.ones_like(each) for each in gradients])
        super().step(closure)


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize(
    ("backward", "optimizer", "unused"),
    [
        (lambda loss, model: loss.backward(create_graph=True), torch.optim.SGD, 9),
        (set_by_grad, torch.optim.SGD, 9),
        (set_by_func, torch.optim.SGD, 0),  # torch.func asks for that graph itself
        (lambda loss, model: (loss + penalty(loss, model)).backward(), torch.optim.SGD, 0),
        (lambda loss, model: loss.backward(), torch.optim.SGD, 0),
        (lambda loss, model: loss.backward(create_graph=True), Curvature, 0),
    ],
)
def test_graphs_of_gradients_that_nothing_uses_are_counted(instrumented, backward, optimizer, unused):
    model = nn.Sequential(nn.Linear(4, 2), nn.Tanh())
    optimizer = optimizer(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        backward(model(torch.randn(8, 4)).square().mean(), model)
        optimizer.step()
    assert instrumented.instrumentation.program_facts().created_graphs == unused


def test_an_optimizer_without_torchs_arguments_is_described():
    class Own(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})

    model = nn.Linear(4, 2).double()
    assert optimizer_facts(Own(model.parameters())) == OptimizerFacts("Own", 2, ("float64",), ("cpu",), numbers=10)
    for momentum in (0.0, 0.9):
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        assert optimizer_facts(sgd).has_momentum is (momentum > 0)


def test_an_optimizer_that_cannot_be_described_harms_nothing(instrumented, monkeypatch):
    monkeypatch.setattr(program_reader, "optimizer_facts", lambda optimizer: optimizer.missing)
    model = nn.Linear(4, 2)
    assert train(instrumented, torch.optim.SGD(model.parameters(), lr=0.1), model).optimizer is None
    assert instrumented.instrumentation.missing == {}


def embedding_of(instrumented, loss_of, *modules):
    """Train each module by an optimizer of its own; return the facts of a large table."""
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in modules]
    for step in range(1, 3):
        loss_of().backward()
        for optimizer in optimizers:
            optimizer.step()
        instrumented.instrumentation.step_ended(step, counts_flops=False)
    return instrumented.instrumentation.program_facts().embedding


@pytest.mark.parametrize(
    ("is_sparse", "loss_of", "used"),
    [
        (False, lambda table: table(torch.arange(200)).mean(), 0.01),
        (False, lambda table: table(torch.arange(200)).mean() + table.weight.square().mean(), 1.0),  # it is tied
        (True, lambda table: table(torch.arange(200)).mean(), None),
        (False, lambda table: 0.0 * table(torch.arange(20)).sum(), None),  # as behind a layer that begins with zeros
    ],
)
def test_rows_of_a_large_table_that_a_step_uses_are_read(instrumented, is_sparse, loss_of, used):
    table = nn.Embedding(20_000, 64, sparse=is_sparse)
    embedding = embedding_of(instrumented, lambda: loss_of(table), table)
    assert (None if embedding is None else embedding.used) == (None if used is None else pytest.approx(used))


def test_a_table_is_not_read_where_the_program_watches_operations(instrumented):
    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            operations.append(str(function))
            return function(*args, **(kwargs or {}))

    operations = []
    table = nn.Embedding(20_000, 64)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1, foreach=False)
    with Log():
        table(torch.arange(200)).mean().backward()
        before = len(operations)
        optimizer.step()
    assert [name for name in operations[before:] if name.startswith("aten")] == ["aten.add_.Tensor"]
    instrumented.instrumentation.step_ended(1, counts_flops=False)
    assert instrumented.instrumentation.program_facts().embedding is None


class Embedding(nn.Module):
    """A class of the user's with that name, which has not the attributes of torch's."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def forward(self, x):
        return self.table(x)

    def __getattr__(self, name):
        assert name in ("table",), name
        return super().__getattr__(name)


def test_a_table_within_a_class_of_its_name_is_read_and_can_be_swapped(instrumented):
    model = Embedding(nn.Embedding(20_000, 64))
    embedding = embedding_of(instrumented, lambda: model(torch.arange(200)).mean(), model.table)
    assert embedding.used == pytest.approx(0.01)
    assert 0 < embedding.gradient_s < 1
    torch.utils.swap_tensors(model.table.weight, nn.Parameter(torch.zeros(20_000, 64)))


def test_a_table_shares_the_time_of_all_optimizers(instrumented):
    table, other = nn.Embedding(20_000, 64), nn.Linear(1280, 1000, bias=False)
    loss_of = lambda: table(torch.arange(20)).mean() + other(torch.ones(1, 1280)).mean()  # noqa: E731
    assert embedding_of(instrumented, loss_of, table, other).part == pytest.approx(0.5)


@pytest.mark.parametrize("is_model_last", [False, True])
@pytest.mark.parametrize("are_inputs_last", [False, True])
def test_the_order_of_convolutions_and_of_images_is_read(instrumented, is_model_last, are_inputs_last):
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),  # its order is not defined, and neither is that of a kernel of one pixel
        nn.Conv2d(4, 8, 1),
        nn.Conv2d(8, 8, 3, groups=8),  # another kernel
        nn.Conv2d(8, 8, 3),
        nn.ConvTranspose2d(8, 4, 3),
        nn.Conv2d(4, 4, 3).requires_grad_(False),
    )
    layers = nn.Sequential(nn.Conv2d(3, 1, 3), model)
    if is_model_last:
        layers = layers.to(memory_format=torch.channels_last)
    images = torch.randn(2, 3, 16, 16)
    if are_inputs_last:
        images = images.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD([each for each in layers.parameters() if each.requires_grad], lr=0.1)
    facts = instrumented.train(optimizer, lambda: layers(images).square().mean(), steps=3).convolutions
    assert facts == ConvolutionFacts(0 if is_model_last else 3, 3 if is_model_last else 0, are_inputs_last)


def made_after(instrumented, first, second):
    """Return the facts of a run with so many steps of SGD and of a later Adam."""
    model = nn.Linear(4, 2)
    train(instrumented, torch.optim.SGD(model.parameters(), lr=0.1), model, steps=first)
    return train(instrumented, torch.optim.Adam(model.parameters(), fused=True), model, steps=second)


@pytest.mark.parametrize(
    ("first", "second", "name", "fused"),
    [
        (10, 60, "Adam", True),  # after a learning rate finder
        (40, 12, "SGD", None),  # few updates at the end
        (30, 0, "SGD", None),
    ],
)
def test_the_optimizer_of_the_training_counts(instrumented, first, second, name, fused):
    facts = made_after(instrumented, first, second)
    assert (facts.optimizer.name, facts.optimizer.fused) == (name, fused)
    instrumented.instrumentation.close()
    assert instrumented.instrumentation.program_facts().optimizer == facts.optimizer


def test_optimizers_made_in_each_epoch_are_those_of_the_first(instrumented):
    model = nn.Linear(4, 2)
    for _ in range(5):
        facts = train(instrumented, torch.optim.Adam(model.parameters()), model, steps=10)
    assert facts.optimizer.name == "Adam"
    assert instrumented.steps == 50


def test_a_second_optimizer_used_together_with_the_first_is_not_the_main_one(instrumented):
    model, other = nn.Linear(4, 2), nn.Linear(4, 2)
    first = torch.optim.SGD(model.parameters(), lr=0.1)
    train(instrumented, first, model, steps=2)
    second = torch.optim.Adam(other.parameters())
    for _ in range(20):
        (model(torch.randn(8, 4)) + other(torch.randn(8, 4))).square().mean().backward()
        first.step()
        second.step()
    assert instrumented.instrumentation.program_facts().optimizer.name == "SGD"
