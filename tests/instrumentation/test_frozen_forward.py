"""Modules that are not trained, and whose outputs depend on a batch alone, are found; so is random data, by names."""

import contextlib
import random
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from training_profiler.inspections import frozen_forward
from training_profiler.inspections.frozen_forward import MOST_MODULES, draws_random_numbers

pytestmark = pytest.mark.flaky(reruns=2)  # shares of real time, and fewer batches on a busy machine

BATCHES, EPOCHS = 20, 2
DATA = TensorDataset(torch.randn(2 * BATCHES, 4))


def layers(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), *more, nn.Linear(16, 4))


class Training:
    """A frozen backbone and a head that is trained on its outputs."""

    def __init__(self, instrumented):
        self.instrumented = instrumented
        self.back, self.head = layers(), layers()
        self.trained = [*self.head.parameters()]

    def run(self, forward, data=DATA, after=None):
        optimizer = torch.optim.SGD(self.trained, lr=0.1)
        loader = DataLoader(data, batch_size=2, shuffle=True)
        for _ in range(EPOCHS):
            for (x,) in loader:
                loss = forward(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if after is not None:
                    after()
                self.instrumented.instrumentation.step_ended(self.instrumented.steps, counts_flops=False)
        return self.instrumented.instrumentation.program_facts().frozen

    def without_grad(self, x):
        with torch.no_grad():
            return self.back(x)


@pytest.fixture
def training(instrumented):
    torch.manual_seed(0)
    return Training(instrumented)


def test_a_backbone_without_gradients_is_found(training):
    facts = training.run(lambda x: training.head(training.without_grad(x)))
    assert (facts.module, facts.modules, facts.has_grad) == ("Sequential", 1, False)
    assert 0 < facts.part < 1
    assert 0 < facts.seconds < 10  # of under a millisecond, on a busy machine
    assert facts.batches > 15


def test_a_backbone_whose_parameters_need_no_gradient_is_found_also_if_the_optimizer_has_them(training):
    training.back.requires_grad_(False)
    training.trained += training.back.parameters()
    facts = training.run(lambda x: training.head(training.back(x)))
    assert (facts.module, facts.has_grad) == ("Sequential", True)


class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def profiler():
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])


@pytest.mark.parametrize("watch", [Counting, BaseTorchFunctionMode, profiler])
def test_a_profiler_or_mode_of_the_program_sees_nothing_of_the_looking(training, watch, monkeypatch):
    looked_at = []
    for name in ("generator_state", "first_values"):
        monkeypatch.setattr(frozen_forward, name, lambda *values: looked_at.append(values))
    with watch():
        assert training.run(lambda x: training.head(training.without_grad(x))) is None
    assert not looked_at


def test_a_default_device_is_not_a_watcher(training):
    with torch.device("cpu"):
        assert training.run(lambda x: training.head(training.without_grad(x))) is not None


class Whole(nn.Module):
    def __init__(self, first, head, between=lambda x: x):
        super().__init__()
        self.first, self.head, self.between = first, head, between

    def forward(self, x):
        return self.head(self.between(self.first(x)))


def test_the_frozen_layers_of_a_model_are_found_and_no_hook_stays(training):
    training.back.requires_grad_(False)
    model = Whole(training.back, training.head)
    facts = training.run(model)
    assert (facts.module, facts.modules) == ("first of Whole", 1)
    assert 0 < facts.part < 1
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_frozen_layers_in_a_row_are_counted(training, monkeypatch):
    monkeypatch.setattr(frozen_forward, "LEAST", 0.0)  # whatever their part is on a busy machine
    training.back[0].requires_grad_(False)
    training.back[2].requires_grad_(False)
    training.back.append(nn.Linear(4, 4))
    training.trained += training.back[3].parameters()
    facts = training.run(lambda x: training.head(training.back(x)))
    assert facts.modules == 2
    assert facts.module in ("0 of Sequential", "2 of Sequential")


class Detached(Whole):
    def forward(self, x):
        x = self.head(x)
        return x + self.first(x.detach())


@pytest.mark.parametrize("kind", [nn.Sequential, Detached])
def test_layers_behind_a_trained_one_are_not_frozen(training, kind):
    training.back.requires_grad_(False)
    model = kind(training.back, training.head) if kind is Detached else kind(training.head, training.back)
    assert training.run(model) is None


class Blocks(nn.Module):
    """A network in train mode with a normalization that uses the batch's statistics, or its own."""

    def __init__(self, training):
        super().__init__()
        self.first, self.norm, self.last = training.back, nn.BatchNorm1d(4, affine=False), layers()
        self.requires_grad_(False)
        self.head = training.head.requires_grad_(True)

    def forward(self, x):
        return self.head(self.last(self.norm(self.first(x))))


@pytest.mark.parametrize(("uses_own", "count"), [(True, 2), (False, 1)])
def test_layers_behind_statistics_of_the_batch_do_not_count(training, uses_own, count):
    model = Blocks(training)
    if uses_own:
        model.norm.eval()
    assert training.run(model).modules == count


def test_no_hook_stays_after_an_error(training):
    training.back.requires_grad_(False)
    model = Whole(training.back, training.head, lambda x: 1 / 0)

    def forward(x):
        with contextlib.suppress(ZeroDivisionError):
            model(x)
        assert not torch.nn.modules.module._global_forward_hooks
        return training.head(x)

    assert training.run(forward) is None


def test_compiled_models_get_no_hooks(training):
    training.back.requires_grad_(False)
    training.head._compiled_call_impl = training.head._call_impl  # as of nn.Module.compile
    model = Whole(training.back, training.head)
    assert training.run(model) is None


def test_layers_behind_random_numbers_are_not_frozen(training):
    training.back.requires_grad_(False)
    noisy = Whole(nn.Flatten(), training.back, lambda x: x + torch.randn_like(x))
    assert training.run(lambda x: nn.Sequential(noisy, training.head)(x)) is None


def test_a_teacher_after_its_student_has_the_same_input(training):
    student = layers(nn.Dropout(0.1))
    training.trained = [*student.parameters()]
    assert training.run(lambda x: student(x) - training.without_grad(x)) is not None


def trained_input(training):
    training.back.requires_grad_(False)
    return lambda x: training.back(training.head(x))


def input_without_its_graph(training):
    def forward(x):
        made = training.head(x)
        return made * training.without_grad(made.detach())

    return forward


def noise(training):
    return lambda x: training.head(training.without_grad(x + torch.randn_like(x)))


def dropout(training):
    training.back = layers(nn.Dropout(0.5))
    return lambda x: training.head(training.without_grad(x))


def statistics_of_the_batch(training):
    training.back = layers(nn.BatchNorm1d(16))
    return lambda x: training.head(training.without_grad(x))


def learned_prompt(training):
    training.back.requires_grad_(False)
    prompt = nn.Parameter(torch.zeros(4))
    training.trained.append(prompt)
    return lambda x: training.head(training.back(x + prompt))


def own_inputs(training):
    made = torch.randn(2, 4)
    return lambda x: training.head(training.without_grad(made + torch.randn(1)))


def only_in_evaluation(training):
    def forward(x):
        with torch.no_grad():
            for (other,) in DataLoader(DATA, batch_size=20):
                training.back(other)
        return training.head(x)

    return forward


def many(training):
    models = [layers() for _ in range(MOST_MODULES)]
    training.trained = [parameter for model in models for parameter in model.parameters()]
    return lambda x: sum(model(x) for model in models)


OTHERS = (trained_input, input_without_its_graph, noise, dropout, statistics_of_the_batch)


@pytest.mark.parametrize("other", [*OTHERS, learned_prompt, own_inputs, only_in_evaluation, many])
def test_what_depends_on_more_than_the_batch_is_not_found(training, other):
    assert training.run(other(training)) is None


@torch.no_grad()
def average(training):
    for own, trained in zip(training.back.parameters(), training.head.parameters(), strict=True):
        own.lerp_(trained, 0.1)


def average_of_data(training):
    for own, trained in zip(training.back.parameters(), training.head.parameters(), strict=True):
        own.data.mul_(0.9).add_(trained.data, alpha=0.1)


def rarely(training):
    if training.instrumented.steps == BATCHES * EPOCHS - 2:  # long after the steps that are looked at
        training.back.load_state_dict(training.head.state_dict())


def layers_that_are_trained_later(training):
    if training.instrumented.steps == BATCHES * EPOCHS - 2:
        training.back.requires_grad_(True)


@pytest.mark.parametrize("after", [average, average_of_data, rarely, layers_that_are_trained_later])
def test_a_module_that_changes_is_not_frozen(training, after):
    training.back.requires_grad_(False)
    forward = lambda x: training.head(training.back(x))  # noqa: E731
    assert training.run(forward, after=lambda: after(training)) is None


def test_a_discriminator_that_is_frozen_for_a_moment_is_not_found(training):
    of_head = torch.optim.SGD(training.back.parameters(), lr=0.1)

    def forward(x):
        training.back.requires_grad_(True)
        of_head.zero_grad()
        training.back(x).mean().backward()
        of_head.step()
        training.back.requires_grad_(False)
        return training.head(x) + training.back(x)

    assert training.run(forward) is None


class Made(Dataset):
    def __init__(self, add):
        self.add = add

    def __len__(self):
        return len(DATA)

    def __getitem__(self, index):
        return (self.add(DATA[index][0]),)


OWN_GENERATOR = torch.Generator()


def of_a_generator(x):
    return x + torch.randn(4, generator=OWN_GENERATOR)


@pytest.mark.parametrize("add", [lambda x: x + torch.randn(4), lambda x: x * random.random(), of_a_generator])
def test_augmented_samples_differ_from_epoch_to_epoch(training, add):
    assert training.run(lambda x: training.head(training.without_grad(x)), Made(add)) is None


def test_samples_that_a_function_makes_are_the_same(training):
    assert training.run(lambda x: training.head(training.without_grad(x)), Made(lambda x: x + 1)) is not None


def test_without_a_loader_nothing_is_known(training):
    optimizer = torch.optim.SGD(training.trained, lr=0.1)
    for _ in range(30):
        training.head(training.without_grad(torch.ones(2, 4))).mean().backward()
        optimizer.step()
        training.instrumented.instrumentation.step_ended(training.instrumented.steps, counts_flops=False)
    assert training.instrumented.instrumentation.program_facts().frozen is None


def test_nothing_of_the_program_is_kept(training):
    training.run(lambda x: training.head(training.without_grad(x)))
    frozen = training.instrumented.instrumentation.early_steps._frozen
    assert not frozen._known
    assert not frozen._clean
    assert training.instrumented.instrumentation.early_steps._open is None


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


class Sampler:
    """Draws in a method that its ``__getitem__`` calls."""

    def __getitem__(self, index):
        return self.change(index)

    def change(self, index):
        return noisy(index)


class Initialized:
    """Draws random numbers for its weights, and none for a sample."""

    def __init__(self):
        self.weights = noisy(torch.zeros(3))

    def __getitem__(self, index):
        return self.find(index)

    def find(self, index):
        return self.find(index - 1) if index else self.weights


def tokenizer(dropout):
    """Return an object like a tokenizer of transformers."""
    module = {"__module__": "tokenizers"}
    inner = type("Tokenizer", (), {**module, "model": SimpleNamespace(dropout=dropout)})()
    return type("Fast", (), {"__module__": "transformers.tokenization", "backend_tokenizer": inner})()


DROPPING = tokenizer(0.1)


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
        Sampler(),
        lambda x: DROPPING.encode(x),
        Sampler().change,
        tokenizer(0.1),
        SimpleNamespace(collate=SimpleNamespace(tokenizer=tokenizer(0.1))),
    ],
)
def test_random_numbers_are_found(value):
    assert draws_random_numbers(PLAIN, value)


@pytest.mark.parametrize(
    "value",
    [
        *(PLAIN, Subset(PLAIN, [0]), SimpleNamespace(transform=Resize()), [Resize()] * 1000, None, partial(len)),
        *(Initialized(), tokenizer(None)),
    ],
)
def test_plain_samples_are_the_same(value):
    assert not draws_random_numbers(value)


def test_a_loop_ends():
    value = SimpleNamespace()
    value.own = [value] * 3
    assert not draws_random_numbers(value)
