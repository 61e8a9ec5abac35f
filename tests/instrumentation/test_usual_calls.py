"""The short way of a module call records what the long way does, and is taken where it should be."""

import sys

import pytest

from tests.support.fake_training import FakeLoader, FakeModule, FakeOptimizer, FakeTraining, Loss
from training_profiler.instrumentation.loop_detection.callers import NEAREST, is_nearest, nearest

STEPS = 70  # past those that are looked at one by one


class Batch:
    """An input of so many rows."""

    def __init__(self, rows):
        self.shape = (rows, 2)


class Policy(FakeModule):
    """Several modules, called by a method that is not ``forward``."""

    def __init__(self, training, **named):
        super().__init__(training, FakeModule(training), FakeModule(training, seconds=3.0), **named)
        self.actor, self.critic = self._modules.values()
        self.loss = Loss(training)

    def step(self, batch):
        self.actor(batch)
        self.world.spend(0.5)
        self.critic(batch)
        self.loss(batch)

    def twice(self, batch):
        self.actor(batch)
        self.actor(batch)
        self.critic(batch)

    def apart(self, batch):
        self.actor(batch)
        with self.world.run.section("augment"):
            self.world.spend(1)
        self.critic(batch)

    def outer(self, batch):
        self.step(batch)


def plain_function(training):
    model, loss = FakeModule(training), Loss(training)
    return lambda batch: (model(batch), loss(batch))


def a_loss_after_other_work(training):
    model, loss = FakeModule(training), Loss(training)

    def step(batch):
        model(batch)
        with training.run.section("augment"):
            training.spend(1)
        loss(batch)

    return step


def method(training):
    return Policy(training).step


def a_module_twice_in_a_method(training):
    return Policy(training).twice


def modules_apart_in_a_method(training):
    return Policy(training).apart


def a_method_of_a_method(training):
    return Policy(training).outer


def methods_in_turns(training):
    policy, number = Policy(training), iter(range(1000))
    return lambda batch: (policy.step, policy.twice, policy.apart)[next(number) % 3](batch)


def a_method_and_a_function(training):
    policy = Policy(training)

    def step(batch):
        policy.step(batch)
        policy.actor(batch)

    return step


def eval_mode_now_and_then(training):
    policy, number = Policy(training), iter(range(1000))

    def step(batch):
        policy.actor.train(next(number) % 5 > 0)
        policy.step(batch)

    return step


def without_gradients_in_between(training):
    policy = Policy(training)

    def step(batch):
        with training.no_grad():
            policy.step(batch)
        policy.step(batch)

    return step


PROGRAMS = [
    plain_function,
    a_loss_after_other_work,
    method,
    a_module_twice_in_a_method,
    modules_apart_in_a_method,
    a_method_of_a_method,
    methods_in_turns,
    a_method_and_a_function,
    eval_mode_now_and_then,
    without_gradients_in_between,
]


def trained(program, is_fast):
    """Return the figures of a training, the sizes of its inputs, and how many calls took the short way."""
    training = FakeTraining()
    detector, taken = training.detector, []
    begins = detector.usual_call_begins

    def counted(*call):
        found = begins(*call) if is_fast else None
        taken.append(found is not None)
        return found

    detector.usual_call_begins = counted
    step, optimizer = program(training), FakeOptimizer()
    for number, _ in enumerate(FakeLoader(training, STEPS)):
        step(Batch(number + 1))
        training.backward()
        training.update(optimizer)
    return training.finish(), detector.input_sizes.pop(), sum(taken)


@pytest.mark.parametrize("program", PROGRAMS)
def test_short_way_records_what_the_long_way_does(program):
    *fast, taken = trained(program, is_fast=True)
    *slow, none = trained(program, is_fast=False)
    assert fast == slow
    assert none == 0
    assert taken >= STEPS // 2


@pytest.mark.parametrize("program", [plain_function, method])
def test_nearly_all_steps_take_the_short_way(program):
    _, _, taken = trained(program, is_fast=True)
    calls = {plain_function: 2, method: 3}[program]
    assert taken >= calls * (STEPS - 10)  # all but those after which the modules are looked at again


def test_module_that_gets_its_parameters_later_has_forward_passes(training, optimizer):
    model, other = FakeModule(training, parameters=0), FakeModule(training)

    def step():
        other(0)
        with training.run.section("augment"):
            training.spend(1)
        model(0)
        training.backward()
        training.update(optimizer)

    step()
    model._parameters["weight"] = next(iter(other._parameters.values()))
    for _ in range(9):
        step()
    assert training.finish().counts["forward_pass"] == 20 - 1


def called(depth, check):
    return check(sys._getframe()) if not depth else called(depth - 1, check)


@pytest.mark.parametrize("depth", range(NEAREST + 2))
def test_nearest_functions_are_recognized_without_a_new_key(depth):
    key = called(0, nearest)
    assert called(depth, lambda frame: is_nearest(nearest(frame), frame))
    assert called(depth, lambda frame: is_nearest(key, frame)) == (called(depth, nearest) == key)
    assert not called(depth, lambda frame: is_nearest(nearest(frame), None))
    assert is_nearest(nearest(None), None)
