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

    def run(self, forward, data=DATA, after=None, batches=None, epochs=EPOCHS):
        optimizer = torch.optim.SGD(self.trained, lr=0.1)
        for _ in range(epochs):
            for (x,) in batches or DataLoader(data, batch_size=2, shuffle=True):
                loss = forward(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if after is not None:
                    after(self)
                self.instrumented.instrumentation.step_ended(self.instrumented.steps, counts_flops=False)
        assert not torch.nn.modules.module._global_forward_hooks
        assert not torch.nn.modules.module._global_forward_pre_hooks
        return self.instrumented.instrumentation.program_facts().frozen

    def without_grad(self, x):
        with torch.no_grad():
            return self.back(x)

    def fed(self, x):
        return self.head(self.without_grad(x))

    def is_about_to_end(self):
        """Return whether the steps that are looked at are long over."""
        return self.instrumented.steps == BATCHES * EPOCHS - 2


@pytest.fixture
def training(instrumented):
    torch.manual_seed(0)
    return Training(instrumented)


def test_a_backbone_without_gradients_is_found_and_nothing_of_the_program_kept(training):
    facts = training.run(training.fed)
    assert (facts.module, facts.modules, facts.has_grad) == ("Sequential", 1, False)
    assert 0 < facts.part < 1
    assert 0 < facts.seconds < 10  # of under a millisecond, on a busy machine
    assert facts.batches > 15
    early_steps = training.instrumented.instrumentation.early_steps
    assert not early_steps._frozen._known
    assert not early_steps._frozen._clean
    assert early_steps._open is None


def test_short_epochs_are_looked_at_after_their_first_batches(training):
    data = TensorDataset(DATA.tensors[0][:10])
    assert training.run(lambda x: training.head(training.without_grad(x)), data, epochs=12) is not None
    assert training.instrumented.instrumentation.program_facts().same_fetches > 9


def test_a_backbone_whose_parameters_need_no_gradient_is_found_also_if_the_optimizer_has_them(training):
    training.back.requires_grad_(False)
    training.trained += training.back.parameters()
    with torch.device("cpu"):  # a default device is not a watcher
        facts = training.run(lambda x: training.head(training.back(x)))
    assert (facts.module, facts.has_grad) == ("Sequential", True)


class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


CPU = torch.profiler.ProfilerActivity.CPU


@pytest.mark.parametrize("watch", [Counting, BaseTorchFunctionMode, lambda: torch.profiler.profile(activities=[CPU])])
def test_a_profiler_or_mode_of_the_program_sees_nothing_of_the_looking(training, watch, monkeypatch):
    looked_at = []
    for name in ("generator_state", "first_values"):
        monkeypatch.setattr(frozen_forward, name, lambda *values: looked_at.append(values))
    with watch():
        assert training.run(training.fed) is None
    assert not looked_at


class Whole(nn.Module):
    def __init__(self, first, head, between=lambda x: x):
        super().__init__()
        self.first, self.head, self.between = first, head, between

    def forward(self, x):
        return self.head(self.between(self.first(x)))


def test_the_frozen_layers_of_a_model_are_found(training):
    training.back.requires_grad_(False)
    facts = training.run(Whole(training.back, training.head))
    assert (facts.module, facts.modules) == ("first of Whole", 1)
    assert 0 < facts.part < 1


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


def test_a_teacher_after_its_student_has_the_same_input(training):
    student = layers(nn.Dropout(0.1))
    training.trained = [*student.parameters()]
    assert training.run(lambda x: student(x) - training.without_grad(x)) is not None


def input_without_its_graph(t, x):
    made = t.head(x)
    return made * t.without_grad(made.detach())


def only_in_evaluation(t, x):
    for (other,) in DataLoader(DATA, batch_size=20):
        t.without_grad(other)
    return t.head(x)


def an_error(t, x):
    with contextlib.suppress(ZeroDivisionError):
        Whole(t.back, t.head, lambda x: 1 / 0)(x)
    assert not torch.nn.modules.module._global_forward_hooks
    return t.head(x)


def frozen_for_a_moment(t, x):
    t.back.requires_grad_(True)
    t.of_back.zero_grad()
    t.back(x).mean().backward()
    t.of_back.step()
    t.back.requires_grad_(False)
    return t.head(x) + t.back(x)


def learned_prompt(t):
    t.prompt = nn.Parameter(torch.zeros(4))
    t.trained.append(t.prompt)


def many(t):
    t.models = [layers() for _ in range(MOST_MODULES)]
    t.trained = [parameter for model in t.models for parameter in model.parameters()]


def compiled(t):
    t.head._compiled_call_impl = t.head._call_impl  # as of nn.Module.compile


def noisy(x):
    return x + torch.randn_like(x)


MADE = torch.randn(2, 4)
# What is set before, and how a batch is computed; the parameters of the backbone need no gradient.
OTHERS = {
    "a trained input": (None, lambda t, x: t.back(t.head(x))),
    "an input without its graph": (None, input_without_its_graph),
    "noise": (None, lambda t, x: t.fed(noisy(x))),
    "dropout": (lambda t: setattr(t, "back", layers(nn.Dropout(0.5))), lambda t, x: t.fed(x)),
    "statistics of the batch": (lambda t: setattr(t, "back", layers(nn.BatchNorm1d(16))), lambda t, x: t.fed(x)),
    "a learned prompt": (learned_prompt, lambda t, x: t.head(t.back(x + t.prompt))),
    "own inputs": (None, lambda t, x: t.fed(MADE + torch.randn(1))),
    "only in evaluation": (None, only_in_evaluation),
    "many modules": (many, lambda t, x: sum(model(x) for model in t.models)),
    "layers behind random numbers": (
        lambda t: setattr(t, "model", nn.Sequential(Whole(nn.Flatten(), t.back, noisy), t.head)),
        lambda t, x: t.model(x),
    ),
    "layers behind a trained one": (
        lambda t: setattr(t, "model", nn.Sequential(t.head, t.back)),
        lambda t, x: t.model(x),
    ),
    "a detached output of a trained one": (
        lambda t: setattr(t, "model", Detached(t.back, t.head)),
        lambda t, x: t.model(x),
    ),
    "an error": (None, an_error),
    "compiled models, which get no hooks": (
        lambda t: (compiled(t), setattr(t, "model", Whole(t.back, t.head))),
        lambda t, x: t.model(x),
    ),
    "a discriminator that is frozen for a moment": (
        lambda t: setattr(t, "of_back", torch.optim.SGD(t.back.parameters(), lr=0.1)),
        frozen_for_a_moment,
    ),
}


@pytest.mark.parametrize(("prepare", "forward"), OTHERS.values(), ids=OTHERS)
def test_what_depends_on_more_than_the_batch_is_not_found(training, prepare, forward):
    training.back.requires_grad_(False)
    if prepare is not None:
        prepare(training)
    assert training.run(lambda x: forward(training, x)) is None


@torch.no_grad()
def average(t):
    for own, trained in zip(t.back.parameters(), t.head.parameters(), strict=True):
        own.lerp_(trained, 0.1)


def average_of_data(t):
    for own, trained in zip(t.back.parameters(), t.head.parameters(), strict=True):
        own.data.mul_(0.9).add_(trained.data, alpha=0.1)


CHANGES = {
    "an average": average,
    "an average of data": average_of_data,
    "loaded rarely": lambda t: t.is_about_to_end() and t.back.load_state_dict(t.head.state_dict()),
    "trained later": lambda t: t.is_about_to_end() and t.back.requires_grad_(True),
}


@pytest.mark.parametrize("after", CHANGES.values(), ids=CHANGES)
def test_a_module_that_changes_is_not_frozen(training, after):
    training.back.requires_grad_(False)
    assert training.run(lambda x: training.head(training.back(x)), after=after) is None


class Made(Dataset):
    def __init__(self, add):
        self.add = add

    def __len__(self):
        return len(DATA)

    def __getitem__(self, index):
        return (self.add(DATA[index][0]),)


GENERATOR = torch.Generator()
ADDED = {
    "by torch": (lambda x: x + torch.randn(4), True),
    "by Python": (lambda x: x * random.random(), True),
    "by a generator": (lambda x: x + torch.randn(4, generator=GENERATOR), True),
    "nothing random": (lambda x: x + 1, False),
}


@pytest.mark.parametrize(("add", "is_random"), ADDED.values(), ids=ADDED)
def test_augmented_samples_differ_from_epoch_to_epoch(training, add, is_random):
    assert (training.run(training.fed, Made(add)) is None) == is_random


def test_without_a_loader_nothing_is_known(training):
    assert training.run(training.fed, batches=[(torch.ones(2, 4),)] * BATCHES) is None


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


def with_noise():
    inner = noisy
    return lambda x: inner(x)


def looped():
    value = SimpleNamespace()
    value.own = [value] * 3
    return value


DROPPING = tokenizer(0.1)
DRAWS = [
    SimpleNamespace(transform=SimpleNamespace(transforms=[Resize(), RandomCrop()])),
    *(Shifted(None), Subset(Shifted(None), [0]), Shifted(None).__getitem__, Sampler(), Sampler().change),
    *({"transform": noisy}, with_noise(), lambda x: DROPPING.encode(x), lambda x: x[: PLAIN.epoch]),
    *(DROPPING, SimpleNamespace(collate=SimpleNamespace(tokenizer=DROPPING))),
]
DRAWS_NOT = [
    *(PLAIN, Subset(PLAIN, [0]), SimpleNamespace(transform=Resize()), [Resize()] * 1000, None, partial(len)),
    *(Initialized(), tokenizer(None), looped()),
]


@pytest.mark.parametrize(
    ("value", "draws"), [*((value, True) for value in DRAWS), *((value, False) for value in DRAWS_NOT)]
)
def test_random_numbers_are_found_by_names(value, draws):
    assert draws_random_numbers(*[PLAIN] * draws, value) is draws
