"""Calls with an input that a module had before, and graphs that are kept, are found in early steps of real torch."""

import contextlib
import logging
import random
from dataclasses import dataclass
from enum import Enum
from functools import partial
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
POOL, BATCH, OTHERS = torch.randn(3, 4), torch.randn(8, 4), [torch.randn(3, 4) for _ in range(4)]


def layers():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


class Training:
    """A small model and what its loop does besides the update."""

    def __init__(self, instrumented, model=None, trained=None):
        self.instrumented, self.model, self.losses, self.total = instrumented, model or layers(), [], 0.0
        self.optimizer = torch.optim.SGD((trained or self.model).parameters(), lr=0.1)

    def run(self, before=None, after=None, again=None, steps=STEPS):
        def loss_of():
            self.x = torch.randn(3, 4)
            if before is not None:
                before(self.x)
            output = self.model(self.x)
            return (output if again is None else output + again(self.x)).square().mean()

        return self.instrumented.train(self.optimizer, loss_of, steps, after and (lambda loss: after(self.x, loss)))

    @torch.no_grad()
    def look(self, x):
        return self.model(x).sum()

    def climb(self, x):
        self.loss(x).backward()

    def loss(self, x):
        return self.model(x).square().mean()

    @torch.no_grad()
    def move(self):
        for parameter in self.model.parameters():
            parameter.add_(0.01)

    def move_data(self):
        for parameter in self.model.parameters():
            parameter.data = parameter.data + 0.01

    def evolve(self, x):
        noise, pool = [torch.randn_like(parameter) for parameter in self.model.parameters()], x.clone()
        for sign in (1, -2):
            for parameter, each in zip(self.model.parameters(), noise, strict=True):
                parameter.data.add_(0.01 * sign * each)  # leaves no trace in the parameter
            self.look(pool)

    def add(self, loss):
        self.total += loss


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.view(3, 4)])
def test_the_same_input_is_found_behind_a_view(instrumented, view):
    training = Training(instrumented)
    facts = training.run(after=lambda x, loss: training.look(view(x)))
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


def dropping():
    return nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5))


@pytest.mark.parametrize(
    ("model", "is_random"),
    [
        (nn.Linear(4, 2), False),
        (nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), False),  # running statistics are no switch
        (dropping(), True),
        (Skipping(4, 2), True),  # by random numbers of Python
        (Configured(), False),
    ],
)
def test_two_passes_for_one_backward_pass_are_found(instrumented, model, is_random):
    training = Training(instrumented, model)
    repeats = training.run(again=training.model).repeats
    assert repeats.calls >= 24
    assert (repeats.without_grad, repeats.after_update, repeats.random) == (0, 0, is_random * repeats.calls)


class Tuned(nn.Module):
    """A small part of it is trained."""

    def __init__(self):
        super().__init__()
        self.tuned = nn.Linear(4, 2)
        self.frozen = nn.Sequential(*(nn.Linear(2, 2).requires_grad_(False) for _ in range(8)))

    def forward(self, x):
        return self.frozen(self.tuned(x))


class Coder(nn.Linear):
    def forward(self, x, encode=False, decode=False):
        return super().forward(x) * (1 + encode + 2 * decode)


class Switched(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.mode, self.settings, self.scale = nn.Linear(4, 2), 0, [0], torch.zeros(1)
        self.register_buffer("mask", torch.zeros(2))

    def forward(self, x):
        return self.inner(x) * self.scale + self.mask + self.mode + self.settings[0]


SWITCHES = {
    "number": lambda model, step: setattr(model, "mode", step),
    "list": lambda model, step: setattr(model, "settings", [step]),
    "tensor": lambda model, step: setattr(model, "scale", torch.ones(1) * step),
    "buffer": lambda model, step: model.mask.fill_(step),
}


class Cell:
    def __init__(self):
        self.state, self.array = 0.0, np.zeros(1)


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


STATES = {
    place: partial(Spiking, place) for place in ("dictionary", "list", "object", "array", "buffer", "assigned twice")
}
# After each of these a graph that has been used is needed again.
BACKWARDS = {
    "a backward pass": lambda t, x: t.climb(x),
    "gradients alone": lambda t, x: torch.autograd.grad(t.loss(x), list(t.model.parameters())),
    "gradients of some": lambda t, x: t.loss(x).backward(inputs=list(t.model.parameters())),
    "gradients that are zeroed": lambda t, x: (t.climb(x), t.optimizer.zero_grad()),
}
OTHER = nn.Linear(4, 1)


def before(work):
    return lambda t: {"before": lambda x: work(t, x)}


def switched(switch):
    return lambda t: {"again": lambda x: (switch(t.model, 1), t.model(x), switch(t.model, 0))[1]}


SILENT = {
    "random outputs for a pool": (dropping, lambda t: {"after": lambda x, loss: [t.look(POOL) for _ in range(3)]}),
    "another input": (layers, lambda t: {"again": lambda x: t.model(x + 1)}),
    "an input that changes": (layers, before(lambda t, x: (t.look(x), x.mul_(2)))),
    "an evaluation": (layers, lambda t: {"after": lambda x, loss: (t.model.eval(), t.look(x), t.model.train())}),
    "an attack": (layers, before(lambda t, x: (t.climb(x), t.move()))),
    "an attack by new data": (layers, before(lambda t, x: (t.climb(x), t.move_data()))),
    "two backward passes": (layers, before(lambda t, x: t.climb(x))),
    "a line search": (layers, before(lambda t, x: (t.climb(x), [(t.move(), t.look(x)) for _ in "123"], t.move()))),
    "evolution": (layers, before(lambda t, x: t.evolve(x))),
    "a small trained part": (Tuned, before(lambda t, x: t.look(POOL))),
    "other keyword arguments": (
        partial(Coder, 4, 2),
        lambda t: (t.model(POOL), {"again": lambda x: t.model(x, encode=True) + t.model(x, decode=True)})[1],
    ),
    **{
        name: (layers, before(lambda t, x, work=work: (work(t, x), OTHER(x).mean().backward())))
        for name, work in BACKWARDS.items()
    },
    **{f"a switched {name}": (Switched, switched(switch)) for name, switch in SWITCHES.items()},
    **{
        f"a state in {place}": (make, lambda t: {"again": lambda x: sum(t.model(x) for _ in range(6))})
        for place, make in STATES.items()
    },
}


@pytest.mark.parametrize(("make", "program"), SILENT.values(), ids=SILENT)
def test_other_calls_are_not_taken_for_repeated_ones(instrumented, make, program):
    training = Training(instrumented, make())
    assert training.run(**program(training)).repeats is None


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

    repeats = training.run(before=train_discriminator).repeats
    assert repeats.calls == repeats.steps_with >= 24
    assert repeats.steps - 1 <= repeats.steps_with <= repeats.steps
    assert repeats.without_grad == repeats.after_update == repeats.random == 0


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
    model = OfManyInputs(4, 2)
    training = Training(instrumented, nn.Identity(), model)
    again = lambda x: model(Batch([x, *OTHERS])) + model(Batch([x, *OTHERS], is_first))  # noqa: E731
    repeats = training.run(again=lambda x: again(x).mean()).repeats
    assert (repeats is not None and repeats.calls >= 24) == is_repeated


def parts(rows):
    return lambda model, x: torch.cat([model(x[i : i + rows]) for i in range(0, len(x), rows)])


class Remembering(nn.Linear):
    state = 0.0

    def forward(self, x):
        self.state = torch.tanh(super().forward(x)) + 0.5 * self.state
        return self.state


class Recurrent(nn.Linear):
    def forward(self, x, state=None):
        hidden = torch.tanh(super().forward(x) + (0.0 if state is None else state["hidden"]))
        return hidden, {"hidden": hidden}


class Caching(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.cache = []

    def forward(self, x):
        self.cache.append(super().forward(x).detach())
        return torch.tanh(super().forward(x)) + sum(self.cache)


def next_rows(model, x):
    model.at = at = getattr(model, "at", 0) + 2
    return torch.cat([model(x[(at + i) % 8 :][:1]) for i in range(2)])


def unrolled_with_state(model, x):
    outputs, state = [], None
    for i in range(len(x)):
        output, state = model(x[i : i + 1], state)
        outputs.append(output)
    return torch.cat(outputs)


ONE_BY_ONE = parts(1)
# A model, how it gets a batch of 8 rows, and how many calls it makes with how many rows if they can be put together.
SLICES = {
    "one by one": (nn.Linear(4, 2), ONE_BY_ONE, (8, 1.0)),
    "two by two": (nn.Linear(4, 2), parts(2), (4, 2.0)),
    "in chunks": (nn.Linear(4, 2), lambda model, x: torch.cat([model(part) for part in x.chunk(2)]), (2, 4.0)),
    "a state that is reset": (
        Remembering(4, 2),
        lambda model, x: (setattr(model, "state", 0.0), ONE_BY_ONE(model, x))[1],
        None,
    ),
    "a state that is passed on": (Recurrent(4, 2), unrolled_with_state, None),
    "a new cache": (Caching(4, 2), lambda model, x: (model.cache.clear(), ONE_BY_ONE(model, x))[1], None),
    "moments": (nn.Linear(4, 2), lambda model, x: torch.stack([model(each) for each in x]), None),
    "some rows": (nn.Linear(4, 2), lambda model, x: torch.cat([model(x[i : i + 1]) for i in (0, 2, 3, 5, 6)]), None),
    "next rows": (nn.Linear(4, 2), next_rows, None),
    "of two models": (
        nn.Sequential(nn.Linear(4, 2), nn.Linear(4, 2)),
        lambda model, x: model[0](x[:4]) + model[1](x[4:]),
        None,
    ),
    "all of it as well": (
        nn.Linear(4, 2),
        lambda model, x: ONE_BY_ONE(model, x) + 2 * model(x) + 3 * model(x + 1),
        None,
    ),
    **{f"a state in {place}": (make(), ONE_BY_ONE, None) for place, make in STATES.items()},
}


@pytest.mark.parametrize(("model", "way", "found"), SLICES.values(), ids=SLICES)
def test_calls_with_parts_of_a_batch_that_can_be_put_together_are_counted(instrumented, model, way, found):
    slices = Training(instrumented, nn.Identity(), model).run(again=lambda x: way(model, BATCH).mean()).slices
    assert (slices is None) == (found is None)
    if found is not None:
        calls, rows = found
        assert (slices.rows, slices.of_rows) == (rows, 8)
        assert calls * (slices.steps - 1) <= slices.slices <= calls * slices.steps


def step_others(training):
    others = [torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1) for _ in range(10)]
    return lambda x, loss: (setattr(training, "losses", [loss]), [other.step() for other in others])


KEPT = {
    "losses": (lambda t: lambda x, loss: t.losses.append(loss), 16),
    "a sum": (lambda t: lambda x, loss: t.add(loss), 16),
    "values": (lambda t: lambda x, loss: t.losses.append(loss.detach()), 0),
    "some": (lambda t: lambda x, loss: t.losses.append(loss) or t.losses.__delitem__(slice(None, -4)), 0),
    "a loss until the next step, of several optimizers": (step_others, 0),
}


@pytest.mark.parametrize(("program", "kept"), KEPT.values(), ids=KEPT)
def test_kept_graphs_are_counted(instrumented, program, kept):
    training = Training(instrumented)
    graphs = training.run(after=program(training)).graphs
    assert graphs == KeptGraphs(16, kept, 8, graphs.place, graphs.backward)


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
    assert training.run(after=lambda x, loss: training.look(x)).repeats is None


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
