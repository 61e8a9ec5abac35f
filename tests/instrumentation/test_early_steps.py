"""Calls with an input that a module had before, and graphs that are kept, are found in early steps of real torch."""

import contextlib
import logging
import random
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from training_profiler.inspections import early_steps, inspection
from training_profiler.inspections.growth import GrowthWatch
from training_profiler.inspections.repeated_forward import RepeatedForward
from training_profiler.model.program import KeptGraphs

STEPS = 40
METHODS = ("call_begins", "call_ends", "update_ends", "backward_ends")  # shadowed early


class Training:
    """A small model and what its loop does besides the update."""

    def __init__(self, instrumented, model=None, trained=None):
        self.instrumented = instrumented
        self.model = model or nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.optimizer = torch.optim.SGD((trained or self.model).parameters(), lr=0.1)
        self.losses = []
        self.total = 0.0

    def run(self, before=None, after=None, again=None, steps=STEPS):
        def loss_of():
            self.x = torch.randn(3, 4)
            if before is not None:
                before(self.x)
            output = self.model(self.x)
            return (output if again is None else output + again(self.x)).square().mean()

        return self.instrumented.train(self.optimizer, loss_of, steps, after and (lambda loss: after(self.x, loss)))


def without_grad(model):
    @torch.no_grad()
    def call(x):
        return model(x).sum()

    return call


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.view(3, 4)])
def test_the_same_input_is_found_behind_a_view(instrumented, view):
    training = Training(instrumented)
    facts = training.run(after=lambda x, loss: without_grad(training.model)(view(x)))
    assert facts.repeats.calls == facts.repeats.without_grad == facts.repeats.after_update >= 24
    assert facts.repeats.random == 0
    detector = instrumented.instrumentation.context.detector
    assert not set(METHODS) & vars(detector).keys()
    assert isinstance(instrumented.instrumentation.context.backward_watch, GrowthWatch)


@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.utils._python_dispatch.TorchDispatchMode])
def test_no_sample_is_read_where_a_mode_of_the_program_would_see_it(instrumented, monkeypatch, mode):
    class Seeing(mode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    training, read = Training(instrumented), []
    samples = instrumented.instrumentation.context.trained_samples
    monkeypatch.setattr(samples, "call_begins", lambda *given: read.append(given))
    with Seeing():
        training.run(steps=4)
    assert bool(read) == (mode is contextlib.nullcontext)


class Kind(Enum):
    SMALL = 1


class Configured(nn.Module):
    """Holds what most models hold: a configuration, functions, a logger, and a table of numbers."""

    def __init__(self):
        super().__init__()
        self.inner, self.act, self.log = nn.Linear(4, 2), nn.functional.relu, logging.getLogger("model")
        self.config = SimpleNamespace(size=4, kind=Kind.SMALL, dtype=torch.float32, labels={"a": 1})
        self.sizes = list(range(20))
        self.register_buffer("table", torch.ones(2))

    def forward(self, x):
        return self.act(self.inner(x)) * self.table


class Skipping(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (random.random() > 0.5)


@pytest.mark.parametrize(
    ("model", "is_random"),
    [
        (nn.Linear(4, 2), False),
        (nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), False),  # running statistics are no switch
        (nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)), True),
        (Skipping(4, 2), True),  # by random numbers of Python
        (Configured(), False),
    ],
)
def test_two_passes_for_one_backward_pass_are_found(instrumented, model, is_random):
    training = Training(instrumented, model)
    repeats = training.run(again=training.model).repeats
    assert repeats.calls >= 24
    assert (repeats.without_grad, repeats.after_update, repeats.random) == (0, 0, is_random * repeats.calls)


def test_samples_of_what_is_random_are_not_taken_for_repeated(instrumented):
    training = Training(instrumented, nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)))
    pool = torch.randn(3, 4)
    assert training.run(after=lambda x, loss: [without_grad(training.model)(pool) for _ in range(3)]).repeats is None


def changed_input(training):
    def change(x):
        without_grad(training.model)(x)
        x.mul_(2)

    return {"before": change}


def evaluation(training):
    def evaluate(x, loss):
        training.model.eval()
        without_grad(training.model)(x)
        training.model.train()

    return {"after": evaluate}


@torch.no_grad()
def move(model):
    for parameter in model.parameters():
        parameter.add_(0.01)


def move_data(model):
    for parameter in model.parameters():
        parameter.data = parameter.data + 0.01


def attack(training, how=move):
    def climb(x):
        training.model(x).square().mean().backward()
        how(training.model)

    return {"before": climb}


def line_search(training):
    def search(x):
        training.model(x).square().mean().backward()
        for _ in range(3):
            move(training.model)
            without_grad(training.model)(x)
        move(training.model)

    return {"before": search}


def evolution(training):
    def search(x):
        noise = [torch.randn_like(parameter) for parameter in training.model.parameters()]
        pool = x.clone()
        for sign in (1, -2):
            for parameter, each in zip(training.model.parameters(), noise, strict=True):
                parameter.data.add_(0.01 * sign * each)  # leaves no trace in the parameter
            without_grad(training.model)(pool)

    return {"before": search}


@pytest.mark.parametrize(
    "program",
    [
        lambda training: {"again": lambda x: training.model(x + 1)},
        changed_input,
        evaluation,
        attack,
        lambda training: attack(training, move_data),
        lambda training: attack(training, lambda model: None),
        line_search,
        evolution,
    ],
)
def test_other_calls_are_not_taken_for_repeated_ones(instrumented, program):
    training = Training(instrumented)
    assert training.run(**program(training)).repeats is None


def test_updates_of_a_small_trained_part_are_seen(instrumented):
    class Tuned(nn.Module):
        def __init__(self):
            super().__init__()
            self.tuned = nn.Linear(4, 2)
            self.frozen = nn.ModuleList(nn.Linear(2, 2).requires_grad_(False) for _ in range(8))

        def forward(self, x):
            x = self.tuned(x)
            for layer in self.frozen:
                x = layer(x)
            return x

    probe = torch.randn(3, 4)
    training = Training(instrumented, Tuned())
    assert training.run(before=lambda x: without_grad(training.model)(probe)).repeats is None


def test_calls_with_other_keyword_arguments_differ(instrumented):
    class Coder(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 2)

        def forward(self, x, encode=False, decode=False):
            return self.inner(x) * (1 + encode + 2 * decode)

    training = Training(instrumented, Coder())
    training.model(torch.randn(3, 4))
    facts = training.run(again=lambda x: training.model(x, encode=True) + training.model(x, decode=True))
    assert facts.repeats is None


def test_a_generator_that_runs_twice_for_the_same_noise_is_found(instrumented):
    """Once for the discriminator, without a backward pass through it, and once for its own loss."""
    generator, discriminator = nn.Linear(4, 4), nn.Linear(4, 1)
    training = Training(instrumented, generator)
    learns = torch.optim.SGD(discriminator.parameters(), lr=0.1)

    def train_discriminator(x):
        loss = discriminator(x + 1).mean() - discriminator(generator(x).detach()).mean()
        learns.zero_grad()
        loss.backward()
        learns.step()

    repeats = training.run(before=train_discriminator, steps=40).repeats
    assert repeats.calls == repeats.steps_with >= 24
    assert repeats.steps - 1 <= repeats.steps_with <= repeats.steps
    assert repeats.without_grad == repeats.after_update == repeats.random == 0


def through_it(training, x):
    training.model(x).square().mean().backward()


def gradient_alone(training, x):
    torch.autograd.grad(training.model(x).square().mean(), list(training.model.parameters()))


def gradient_of_some(training, x):
    training.model(x).square().mean().backward(inputs=list(training.model.parameters()))


def zeroed_after(training, x):
    through_it(training, x)
    training.optimizer.zero_grad()


@pytest.mark.parametrize("backward", [through_it, gradient_alone, gradient_of_some, zeroed_after])
def test_a_graph_that_has_been_used_is_needed_again(instrumented, backward):
    training = Training(instrumented)
    other = nn.Linear(4, 1)

    def before(x):
        backward(training, x)
        other(x).mean().backward()

    assert training.run(before=before).repeats is None


class Switched(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.mode, self.settings, self.scale = nn.Linear(4, 2), 0, [0], torch.ones(1)
        self.register_buffer("mask", torch.ones(2))

    def forward(self, x):
        return self.inner(x) * self.scale + self.mask + self.mode + self.settings[0]


@pytest.mark.parametrize(
    "switch",
    [
        lambda model, step: setattr(model, "mode", step),
        lambda model, step: setattr(model, "settings", [step]),
        lambda model, step: setattr(model, "scale", torch.ones(1) * step),
        lambda model, step: model.mask.fill_(step),
    ],
    ids=["number", "list", "tensor", "buffer"],
)
def test_a_module_that_is_switched_between_two_calls_is_not_repeated(instrumented, switch):
    def again(x):
        switch(training.model, 1)
        output = training.model(x)
        switch(training.model, 0)
        return output

    training = Training(instrumented, Switched())
    switch(training.model, 0)
    assert training.run(again=again).repeats is None


class Spiking(nn.Module):
    """Keeps its potential in one of many places; the same input gives another output in each call."""

    def __init__(self, place):
        super().__init__()
        self.inner, self.place = nn.Linear(4, 2), place
        self.memories, self.states, self.cell = {"v": 0.0}, [0.0] * 12, Cell()
        self.register_buffer("potential", torch.zeros(1))

    def forward(self, x):
        x, cell = self.inner(x), self.cell
        if self.place == "dictionary":
            self.memories["v"] = state = 0.5 * self.memories["v"] + x.mean().detach()
        elif self.place == "list":
            self.states[0] = state = 0.5 * self.states[0] + x.mean().detach()
        elif self.place == "object":
            cell.state = state = 0.5 * cell.state + x.mean().detach()
        elif self.place == "array":
            cell.array += 1
            state = cell.array[0]
        elif self.place == "buffer":
            self.potential = state = (0.5 * self.potential + x).mean().detach()
        else:
            self.state = getattr(self, "state", 0.0) * 0.5 + x.mean().detach()
            self.state = state = self.state - (self.state > 1) * 1.0
        return x + state


class Cell:
    def __init__(self):
        self.state, self.array = 0.0, np.zeros(1)


@pytest.mark.parametrize("place", ["dictionary", "list", "object", "array", "buffer", "assigned twice"])
def test_a_module_that_keeps_a_state_is_not_repeated(instrumented, place):
    model = Spiking(place)
    training = Training(instrumented, model)
    facts = training.run(again=lambda x: sum(model(x) for _ in range(6)))
    assert facts.repeats is None


@pytest.mark.parametrize("place", ["dictionary", "list", "object", "array", "buffer", "assigned twice"])
def test_parts_for_a_module_that_keeps_a_state_are_not_counted(instrumented, place):
    assert slices_of(instrumented, Spiking(place), one_by_one) is None


def test_the_look_at_a_call_is_in_no_forward_pass(instrumented, monkeypatch):
    looks = []
    follow = RepeatedForward.follow
    under_way = lambda: looks.append(len(instrumented.instrumentation.context.detector.calls))  # noqa: E731

    def look(inspection, seen):
        under_way()
        yield from follow(inspection, seen)
        under_way()

    monkeypatch.setattr(RepeatedForward, "follow", look)
    Training(instrumented).run()
    assert len(looks) >= 48
    assert set(looks) == {0}


@dataclass
class Batch:
    tensors: list
    is_first: bool = True


class OfManyInputs(nn.Linear):
    def forward(self, batch):
        return super().forward(sum(batch.tensors)) * (1 + batch.is_first)


@pytest.mark.parametrize(("is_first", "is_repeated"), [(True, True), (False, False)])
def test_inputs_of_many_tensors_and_flags_are_compared(instrumented, is_first, is_repeated):
    others = [torch.randn(3, 4) for _ in range(4)]
    model = OfManyInputs(4, 2)
    training = Training(instrumented, nn.Identity(), model)
    again = lambda x: model(Batch([x, *others])) + model(Batch([x, *others], is_first))  # noqa: E731
    repeats = training.run(again=lambda x: again(x).mean()).repeats
    assert (repeats is not None and repeats.calls >= 24) == is_repeated


def one_by_one(model, x):
    return torch.cat([model(x[i : i + 1]) for i in range(len(x))])


def two_by_two(model, x):
    return torch.cat([model(x[i : i + 2]) for i in range(0, len(x), 2)])


def in_chunks(model, x):
    return torch.cat([model(part) for part in x.chunk(2)])


@pytest.mark.parametrize(("way", "calls", "rows"), [(one_by_one, 8, 1.0), (two_by_two, 4, 2.0), (in_chunks, 2, 4.0)])
def test_calls_with_parts_of_a_batch_are_counted(instrumented, way, calls, rows):
    slices = slices_of(instrumented, nn.Linear(4, 2), way)
    assert (slices.rows, slices.of_rows) == (rows, 8)
    assert calls * (slices.steps - 1) <= slices.slices <= calls * slices.steps


def slices_of(instrumented, model, way):
    training = Training(instrumented, nn.Identity(), model)
    batch = torch.randn(8, 4)
    return training.run(again=lambda x: way(model, batch).mean()).slices


class Remembering(nn.Linear):
    state = 0.0

    def forward(self, x):
        self.state = torch.tanh(super().forward(x)) + 0.5 * self.state
        return self.state


def forgetting(model, x):
    model.state = 0.0
    return one_by_one(model, x)


def moments(model, x):
    return torch.stack([model(each) for each in x])


def some_rows(model, x):
    return torch.cat([model(x[i : i + 1]) for i in (0, 2, 3, 5, 6)])


def next_rows(model, x):
    model.at = at = getattr(model, "at", 0) + 2
    return torch.cat([model(x[(at + i) % 8 :][:1]) for i in range(2)])


class Recurrent(nn.Linear):
    def forward(self, x, state=None):
        hidden = torch.tanh(super().forward(x) + (0.0 if state is None else state["hidden"]))
        return hidden, {"hidden": hidden}


def unrolled_with_state(model, x):
    outputs, state = [], None
    for i in range(len(x)):
        output, state = model(x[i : i + 1], state)
        outputs.append(output)
    return torch.cat(outputs)


class Caching(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.cache = []

    def forward(self, x):
        self.cache.append(super().forward(x).detach())
        return torch.tanh(super().forward(x)) + sum(self.cache)


def with_new_cache(model, x):
    model.cache.clear()
    return one_by_one(model, x)


def of_two_models(model, x):
    return model[0](x[:4]) + model[1](x[4:])


@pytest.mark.parametrize(
    ("model", "way"),
    [
        (Remembering(4, 2), forgetting),
        (Recurrent(4, 2), unrolled_with_state),
        (Caching(4, 2), with_new_cache),
        (nn.Linear(4, 2), moments),
        (nn.Linear(4, 2), some_rows),
        (nn.Linear(4, 2), next_rows),
        (nn.Sequential(nn.Linear(4, 2), nn.Linear(4, 2)), of_two_models),
        (nn.Linear(4, 2), lambda model, x: one_by_one(model, x) + 2 * model(x) + 3 * model(x + 1)),
    ],
)
def test_parts_that_cannot_be_put_together_are_not_counted(instrumented, model, way):
    assert slices_of(instrumented, model, way) is None


def keep(training):
    return {"after": lambda x, loss: training.losses.append(loss)}


def add_up(training):
    def add(x, loss):
        training.total += loss

    return {"after": add}


def keep_values(training):
    return {"after": lambda x, loss: training.losses.append(loss.detach())}


def keep_some(training):
    return {"after": lambda x, loss: training.losses.append(loss) or training.losses.__delitem__(slice(None, -4))}


@pytest.mark.parametrize(("program", "kept"), [(keep, 16), (add_up, 16), (keep_values, 0), (keep_some, 0)])
def test_kept_graphs_are_counted(instrumented, program, kept):
    training = Training(instrumented)
    graphs = training.run(**program(training), steps=40).graphs
    assert graphs == KeptGraphs(16, kept, 8, graphs.place, graphs.backward)


def test_of_several_optimizers_one_counts(instrumented):
    training = Training(instrumented)
    others = [torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1) for _ in range(10)]

    def step_others(x, loss):
        training.losses = [loss]  # until the next step
        for other in others:
            other.step()

    assert training.run(after=step_others, steps=40).graphs.kept == 0


def test_parameters_can_be_swapped_while_calls_are_compared(instrumented):
    training = Training(instrumented)

    def swap(x, loss):
        training.model(x)  # its graph is not used
        for parameter in training.model.parameters():
            torch.utils.swap_tensors(parameter, nn.Parameter(parameter.detach().clone()))

    training.run(after=swap, steps=3)


def test_comparing_calls_ends_after_a_time(instrumented, monkeypatch):
    monkeypatch.setattr(early_steps, "MOST_NS", 0)
    training = Training(instrumented)
    assert training.run(after=lambda x, loss: without_grad(training.model)(x)).repeats is None


def test_modules_are_looked_through_once(instrumented, monkeypatch):
    walks = []
    modules_within = inspection.modules_within
    monkeypatch.setattr(inspection, "modules_within", lambda module: [walks.append(module), modules_within(module)][1])
    training = Training(instrumented)
    training.run(again=nn.Linear(4, 2), steps=24)  # later ones are looked through for another inspection
    assert len(walks) == 2


def test_a_module_that_is_compiled_meanwhile_is_recognized(instrumented):
    program = inspection.UserProgram(instrumented.instrumentation.context)
    model = nn.Linear(4, 2)
    assert not program.may_be_compiled(model)
    model._compiled_call_impl = model._call_impl
    assert program.may_be_compiled(model)
