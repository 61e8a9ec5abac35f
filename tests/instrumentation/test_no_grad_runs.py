"""Calls without gradients that feed the next update, on real torch and beyond the rows of test_loops.py."""

import sys

import pytest
import torch
from torch import nn

from training_profiler.instrumentation.loop_detection.no_grad_runs import (
    MAX_FRAMES,
    Callers,
    Purpose,
    purpose_of_name,
)


@pytest.fixture(autouse=True)
def without_simulators(monkeypatch):
    for name in ("gymnasium", "gym"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def without_a_name(call, frames=MAX_FRAMES):
    """Call where the name of the test, which says that it evaluates, is too far away to be read."""
    return without_a_name(call, frames - 1) if frames else call()


def test_a_simulator_shows_that_the_model_acts(training, model, optimizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", sys)
    for _ in range(3):
        with training.no_grad():
            for _ in range(4):
                model(0)
        training.train(model, range(1), optimizer)
    assert training.finish().counts["rollout"] == 3


class Agent(nn.Module):
    """A policy that is not called itself: one of its methods calls two modules, which are one forward pass."""

    def __init__(self):
        super().__init__()
        self.actor, self.critic = nn.Linear(2, 2), nn.Linear(2, 1)

    def get_action_and_value(self, seen):
        return self.actor(seen), self.critic(seen)

    def get_value(self, seen):
        return self.critic(seen)


class Policy(Agent):
    """Acts by a call of its own, and learns by a method, as that of Stable-Baselines3."""

    def forward(self, seen):
        return self.get_action_and_value(seen)


def train_agent(agent, collect):
    seen, optimizer = torch.ones(4, 2), torch.optim.SGD(agent.parameters(), lr=0.1)
    for _ in range(3):
        collect(agent, seen)
        actions, values = agent.get_action_and_value(seen)
        (actions.sum() + values.sum()).backward()
        optimizer.step()


@pytest.mark.parametrize("has_bootstrap", [True, False])
def test_rollout_contains_calls_that_are_one_forward_pass(instrumented, has_bootstrap):
    def collect(agent, seen):
        with torch.no_grad():
            for _ in range(5):
                agent.get_action_and_value(seen)
            if has_bootstrap:  # the module called most often is the second one then
                agent.get_value(seen)

    without_a_name(lambda: train_agent(Agent(), collect))
    instrumented.instrumentation.close()
    sections = instrumented.run.totals().sections
    ids = {name: id for id, name in instrumented.run.names.names.items()}
    acting, calls = ids["rollout"], ids["forward_without_grad"]
    assert (sections.count[acting], sections.count[calls]) == (3, 18 if has_bootstrap else 15)
    assert (calls, acting) not in sections.parents
    assert sections.parents[acting, calls] >= 15


@torch.no_grad()
def collect_rollouts(policy, seen):
    for _ in range(5):
        policy(seen)
    policy.get_value(seen)


def test_policy_that_learns_through_its_parts_acts_in_every_rollout(instrumented):
    without_a_name(lambda: train_agent(Policy(), collect_rollouts))
    assert instrumented.counts()["rollout"] == 3


@pytest.mark.parametrize(
    ("name", "purpose"),
    [
        ("collect_rollouts", Purpose.ACTING),
        ("selectAction", Purpose.ACTING),
        ("evaluate_policy", Purpose.EVALUATING),
        ("estimate_val_loss", Purpose.EVALUATING),
        ("TestLoop", Purpose.EVALUATING),
        ("generate", Purpose.GENERATING),
        ("forward", Purpose.UNKNOWN),
        ("interval", Purpose.UNKNOWN),
        ("activation", Purpose.UNKNOWN),
    ],
)
def test_names_of_functions_say_their_purpose(name, purpose):
    assert purpose_of_name((lambda: 0).__code__.replace(co_name=name)) is purpose


def test_function_that_also_trains_does_not_evaluate():
    callers = Callers()

    def evaluate():
        return callers.named(sys._getframe())

    def test_training():
        inside = evaluate()
        own = callers.named(sys._getframe())
        return [callers.purpose(frames, has_training_event=True) for frames in (inside, own)]

    assert test_training() == [Purpose.EVALUATING, Purpose.UNKNOWN]
