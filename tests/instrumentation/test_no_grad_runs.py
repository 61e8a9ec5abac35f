"""Calls without gradients that feed the next update are part of its step; only others are an evaluation."""

import sys

import pytest
import torch
from torch import nn

from tests.support.fake_training import FakeModule
from training_profiler.instrumentation.loop_detection.no_grad_runs import (
    MAX_FRAMES,
    MAX_TEACHER_CALLS,
    Callers,
    Purpose,
    purpose_of_name,
)
from training_profiler.instrumentation.loop_detection.pending_events import MAX_PENDING


@pytest.fixture(autouse=True)
def without_simulators(monkeypatch):
    for name in ("gymnasium", "gym"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def learn(training, model, optimizer, batch=0):
    model(batch)
    training.backward()
    training.update(optimizer)


def collect_rollout(training, model, steps=5):
    """Act without gradients; the environment takes a second for each action."""
    with training.no_grad():
        for _ in range(steps):
            model(0)
            training.spend(1)


def test_a_simulator_shows_that_the_model_acts(training, model, optimizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", sys)
    for _ in range(3):
        with training.no_grad():
            for _ in range(4):
                model(0)
        learn(training, model, optimizer)
    assert training.finish().counts["rollout"] == 3


def test_rollout_too_long_to_be_rewritten_is_still_one(training, optimizer):
    model = FakeModule(training, seconds=0.25)
    steps = MAX_PENDING // 4 + 1_000
    for _ in range(3):
        collect_rollout(training, model, 4)
        learn(training, model, optimizer)
    for _ in range(2):
        collect_rollout(training, model, steps)
        assert len(training.pending.events) < MAX_PENDING
        learn(training, model, optimizer)
    stats = training.finish()
    assert (stats.counts["rollout"], stats.counts["forward_without_grad"]) == (5, 2 * steps + 12)
    assert stats.step_s == [9.25] * 3 + [steps * 1.25 + 4.25] * 2


def without_a_name(call, frames=MAX_FRAMES):
    """Call where the name of the test, which says that it evaluates, is too far away to be read."""
    return without_a_name(call, frames - 1) if frames else call()


class Agent(nn.Module):
    """A policy that is not called itself: one of its methods calls two modules, which are one forward pass."""

    def __init__(self):
        super().__init__()
        self.actor, self.critic = nn.Linear(2, 2), nn.Linear(2, 1)

    def get_action_and_value(self, seen):
        return self.actor(seen), self.critic(seen)

    def get_value(self, seen):
        return self.critic(seen)


def train_agent(agent, has_bootstrap):
    seen, optimizer = torch.ones(4, 2), torch.optim.SGD(agent.parameters(), lr=0.1)
    for _ in range(3):
        with torch.no_grad():
            for _ in range(5):
                agent.get_action_and_value(seen)
            if has_bootstrap:  # the module called most often is the second one then
                agent.get_value(seen)
        actions, values = agent.get_action_and_value(seen)
        (actions.sum() + values.sum()).backward()
        optimizer.step()


@pytest.mark.parametrize("has_bootstrap", [True, False])
def test_rollout_contains_calls_that_are_one_forward_pass(instrumented, has_bootstrap):
    without_a_name(lambda: train_agent(Agent(), has_bootstrap))
    instrumented.instrumentation.close()
    sections = instrumented.run.totals().sections
    ids = {name: id for id, name in instrumented.run.names.names.items()}
    acting, calls = ids["rollout"], ids["forward_without_grad"]
    assert (sections.count[acting], sections.count[calls]) == (3, 18 if has_bootstrap else 15)
    assert (calls, acting) not in sections.parents
    assert sections.parents[acting, calls] >= 15


class Policy(Agent):
    """Acts by a call of its own, and learns by a method, as that of Stable-Baselines3."""

    def forward(self, seen):
        return self.get_action_and_value(seen)


def test_policy_that_learns_through_its_parts_acts_in_every_rollout(instrumented):
    def collect_rollouts(policy, seen):
        with torch.no_grad():
            for _ in range(5):
                policy(seen)
            policy.get_value(seen)

    def train(policy):
        seen, optimizer = torch.ones(4, 2), torch.optim.SGD(policy.parameters(), lr=0.1)
        for _ in range(3):
            collect_rollouts(policy, seen)
            actions, values = policy.get_action_and_value(seen)
            (actions.sum() + values.sum()).backward()
            optimizer.step()

    without_a_name(lambda: train(Policy()))
    assert instrumented.counts()["rollout"] == 3


@pytest.mark.parametrize("calls", [3, MAX_TEACHER_CALLS + 1])
def test_calls_in_train_mode_of_a_program_that_never_trains_are_no_evaluation(training, model, calls):
    """As in evolution strategies, which compute no gradients."""
    without_a_name(lambda: make_data(training, model, calls))
    stats = training.finish()
    assert stats.counts == {"forward_without_grad": calls}


@pytest.mark.parametrize("is_named", [True, False])
def test_calls_of_a_program_that_never_trains_are_an_evaluation_if_the_name_or_the_mode_says_so(
    training, model, is_named
):
    def validate():
        make_data(training, model, 3)

    model.train(is_named)
    without_a_name(validate if is_named else lambda: make_data(training, model, 3))
    assert training.finish().counts["validation_epoch"] == 1


def make_data(training, solver, calls=MAX_TEACHER_CALLS + 1):
    with training.no_grad():
        for _ in range(calls):
            solver(0)


@pytest.mark.parametrize("calls", [MAX_TEACHER_CALLS + 1, MAX_PENDING // 4 + 1_000])
def test_data_made_before_the_first_step_is_neither_a_step_nor_an_evaluation(training, model, optimizer, calls):
    solver = FakeModule(training, seconds=0.25)
    without_a_name(lambda: make_data(training, solver, calls))
    for _ in range(3):
        learn(training, model, optimizer)
    stats = training.finish()
    assert stats.step_s == [6.0] * 3
    assert stats.counts["forward_without_grad"] == calls
    assert "validation_epoch" not in stats.counts


def test_evaluation_before_the_first_step_shows_by_eval_mode(training, model, optimizer):
    model.training = False
    make_data(training, model)
    model.training = True
    for _ in range(3):
        learn(training, model, optimizer)
    assert training.finish().counts["validation_epoch"] == 1


class AdjointFunction:
    """Calls a module several times in its forward, as the patches of torch report it."""

    def __init__(self, training, module):
        self.training, self.module = training, module
        self.number = 0

    def __call__(self):
        self.number += 1
        number = self.number if self.training.is_grad_enabled else -self.number
        with self.training.no_grad():
            for _ in range(4):
                call = self.training.detector.call_begins(self.module, (), True, sys._getframe(), number)
                self.module.forward()
                self.training.detector.call_ends(call, self.module)
                self.training.spend(1)


def test_calls_of_an_autograd_function_are_one_forward_pass(training, model, optimizer):
    solve = AdjointFunction(training, model)
    for number in range(6):
        solve()
        training.backward()
        training.update(optimizer)
        if number % 3 == 0:
            with training.no_grad():
                solve()
    stats = training.finish()
    assert stats.counts["forward_pass"] == 6
    assert stats.total_s["forward_pass"] == 6 * (4 * 2 + 3 * 1)
    assert (stats.counts["validation_epoch"], stats.counts["validation_epoch/forward_pass"]) == (2, 2)


@pytest.mark.parametrize(
    ("name", "purpose"),
    [
        ("collect_rollouts", Purpose.ACTING),
        ("selectAction", Purpose.ACTING),
        ("get_action_and_value", Purpose.ACTING),
        ("evaluate_policy", Purpose.EVALUATING),
        ("validation_step", Purpose.EVALUATING),
        ("estimate_val_loss", Purpose.EVALUATING),
        ("TestLoop", Purpose.EVALUATING),
        ("generate", Purpose.GENERATING),
        ("forward", Purpose.UNKNOWN),
        ("interval", Purpose.UNKNOWN),
        ("activation", Purpose.UNKNOWN),
        ("<module>", Purpose.UNKNOWN),
    ],
)
def test_names_of_functions_say_their_purpose(name, purpose):
    assert purpose_of_name(name) is purpose


def test_function_that_also_trains_does_not_evaluate():
    callers = Callers()

    def evaluate():
        return callers.named(sys._getframe())

    def test_training():
        inside = evaluate()
        own = callers.named(sys._getframe())
        return [callers.purpose(frames, has_training_event=True) for frames in (inside, own)]

    assert test_training() == [Purpose.EVALUATING, Purpose.UNKNOWN]
