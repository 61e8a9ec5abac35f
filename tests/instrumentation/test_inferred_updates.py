"""Updates that the program makes itself end steps, on real torch."""

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from training_profiler.instrumentation.loop_detection import inferred_updates
from training_profiler.instrumentation.loop_detection.pending_events import MAX_PENDING

INPUTS, TARGETS = torch.ones(4, 2), torch.zeros(4, 1)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


def learn(model):
    model.zero_grad()
    (model(INPUTS) - TARGETS).square().sum().backward()


def in_place(parameter):
    with torch.no_grad():
        parameter -= 0.1 * parameter.grad


def by_data(parameter):
    parameter.data.sub_(0.1 * parameter.grad)


def by_new_data(parameter):
    parameter.data = parameter.data - 0.1 * parameter.grad


@pytest.mark.parametrize(
    ("update", "events", "steps"),
    [
        (in_place, 5 * "bu", 5),
        (by_data, 5 * "bu", 5),
        (by_new_data, 5 * "bu", 5),
        (in_place, 2 * "bbbu", 2),
        (in_place, "bbbb", 0),
        (in_place, 4 * "bu" + "o", 1),  # an optimizer of torch reports its updates itself; the program clamps weights
    ],
)
def test_changed_parameters_end_a_step(instrumented, model, update, events, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if "o" in events else None
    for event in events:
        if event == "b":
            learn(model)
        elif event == "o":
            optimizer.step()
        else:
            for parameter in model.parameters():
                update(parameter)
    counts = instrumented.counts()
    assert instrumented.steps == steps
    assert counts["forward_pass"] == counts["backward_pass"] == events.count("b")


def test_inputs_are_looked_at_in_the_first_64_steps_and_some_later_ones(instrumented, model):
    for _ in range(80):
        learn(model)
        for parameter in model.parameters():
            in_place(parameter)
    # The next backward pass shows an update, which is after the forward pass.
    assert {number for number, _ in instrumented.instrumentation.pop_work().input_sizes} == set(range(1, 66))


@pytest.mark.parametrize(("passes", "a_step", "steps"), [(4, 1, 4), (6, 2, 3), (5, 2, 2)])
def test_last_step_of_a_function_that_has_returned_is_counted_if_it_is_whole(instrumented, passes, a_step, steps):
    def train():
        weights = torch.ones(3, requires_grad=True)
        for number in range(passes):
            (weights * weights).sum().backward()
            if number % a_step == a_step - 1:
                weights.data -= 0.1 * weights.grad

    train()
    instrumented.counts()
    assert instrumented.steps == steps


def test_values_are_not_read_while_updates_replace_parameters(instrumented, monkeypatch):
    read, original = [], inferred_updates._norm
    monkeypatch.setattr(inferred_updates, "_norm", lambda tensor: read.append(1) or original(tensor))

    def gradient(weights):
        return grad(lambda w: (INPUTS @ w).square().sum())(weights)

    weights = torch.ones(2)
    for _ in range(10):  # each of the samples has a gradient of its own
        weights = weights - 0.1 * sum(gradient(weights) for _ in range(4))
    reads_first = len(read)
    assert reads_first < 4 * 4 * inferred_updates.MOST_READ
    weights.requires_grad_()
    for _ in range(20):
        (gradients,) = torch.autograd.grad((INPUTS @ weights).square().sum(), weights)
        weights.data -= 0.1 * gradients
    instrumented.counts()
    assert len(read) > reads_first
    assert 22 <= instrumented.steps <= 30  # up to two updates as long as before pass until values are read again


def test_models_that_vmap_trains_at_once_end_steps_together(instrumented, model):
    weights = torch.ones(3, 2)
    for _ in range(6):
        gradients = vmap(grad(lambda w: (INPUTS @ w).square().sum()))(weights)
        weights = weights - 0.1 * gradients
    instrumented.counts()
    assert instrumented.steps in (5, 6)  # nothing follows the last update


def validate(model, clock, seconds):
    loader = torch.utils.data.DataLoader([(INPUTS[0], TARGETS[0])] * 4)
    model.eval()
    with torch.no_grad():
        for inputs, _ in loader:
            model(inputs)
            clock.advance(seconds)
    model.train()


@pytest.mark.parametrize("seconds", [0.001, 3])
def test_update_before_an_evaluation_ends_a_step_however_long_the_evaluation_takes(instrumented, model, seconds):
    for _ in range(3):
        for _ in range(2):
            learn(model)
            for parameter in model.parameters():
                in_place(parameter)
        validate(model, instrumented.clock, seconds)
    assert instrumented.counts()["validation_epoch"] == 3
    assert instrumented.steps == 6


def test_events_of_a_long_evaluation_are_handed_out_if_there_are_too_many(instrumented, model):
    learn(model)
    model.eval()
    instrumented.run.recorder.on_full = lambda: None  # each drain would search all events that wait
    with torch.no_grad():
        for _ in torch.utils.data.DataLoader(range(MAX_PENDING // 8 + 100)):
            model(INPUTS)
    assert len(instrumented.run.recorder.buffer().events) > MAX_PENDING // 2
    instrumented.run.drain()
    assert len(instrumented.run.recorder.buffer().events) < MAX_PENDING
