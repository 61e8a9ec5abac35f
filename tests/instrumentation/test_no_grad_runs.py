"""Calls without gradients that feed the next update are part of its step; only others are an evaluation."""

import sys

import pytest
import torch
from torch import nn

from tests.support.fake_training import FakeLoader, FakeModule
from training_profiler.instrumentation.loop_detection.callers import MAX_FRAMES, Callers, Purpose, purpose_of_name
from training_profiler.instrumentation.loop_detection.no_grad_runs import MAX_TEACHER_CALLS
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


@pytest.mark.parametrize("mode", [True, False])
def test_what_is_collected_before_updates_is_part_of_the_step(training, model, optimizer, mode):
    for _ in range(2):
        model.train(mode)
        collect_rollout(training, model)
        model.train()
        for _ in range(3):
            learn(training, model, optimizer)
    stats = training.finish()
    assert "validation_epoch" not in stats.counts
    assert (stats.counts["rollout"], stats.counts["forward_without_grad"]) == (2, 10)
    assert stats.total_s["rollout"] == 2 * (5 * 2 + 4 * 1)  # the environment is part of it
    assert stats.step_s == [21.0, 6.0, 6.0] * 2


def test_a_simulator_shows_that_the_model_acts(training, model, optimizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", sys)
    for _ in range(3):
        with training.no_grad():
            for _ in range(4):
                model(0)
        learn(training, model, optimizer)
    assert training.finish().counts["rollout"] == 3


def test_targets_are_part_of_the_step_and_not_of_the_rollout(training, model, optimizer):
    target = FakeModule(training, seconds=5)
    for _ in range(3):
        collect_rollout(training, model, steps=4)
        with training.no_grad():
            target(0)
        learn(training, model, optimizer)
    stats = training.finish()
    assert stats.counts["forward_without_grad"] == 15
    assert stats.total_s["rollout"] == 3 * (4 * 2 + 3 * 1)
    assert stats.step_s == [23.0] * 3


def test_evaluation_by_its_name_is_none_of_the_rollouts(training, model, optimizer):
    def evaluate_policy():
        collect_rollout(training, model, steps=3)

    for number in range(4):
        collect_rollout(training, model, steps=3)
        learn(training, model, optimizer)
        if number % 2:
            evaluate_policy()
    stats = training.finish()
    assert (stats.counts["validation_epoch"], stats.counts["validation_epoch/forward_pass"]) == (2, 6)
    assert (stats.counts["rollout"], stats.counts["forward_without_grad"]) == (4, 12)


def compute_with_fixed_layers(training, model, calls=4):
    """Calls that nothing says anything of."""
    model.eval()
    with training.no_grad():
        for _ in range(calls):
            model(0)
    model.train()


def test_eval_mode_without_a_loader_is_evaluation(training, model, optimizer):
    for _ in range(3):
        learn(training, model, optimizer)
        compute_with_fixed_layers(training, model)
    stats = training.finish()
    assert (stats.counts["validation_epoch"], stats.counts["validation_epoch/forward_pass"]) == (3, 12)
    assert stats.step_s == [6.0] * 3


def test_eval_mode_before_each_single_update_feeds_it(training, model, optimizer):
    def make_data():
        compute_with_fixed_layers(training, model)

    for _ in range(5):
        make_data()
        learn(training, model, optimizer)
    stats = training.finish()
    assert stats.counts["validation_epoch"] == 1  # only the second shows what the first was
    assert stats.counts["forward_without_grad"] == 16
    assert stats.step_s == [6.0] + [14.0] * 4


@pytest.mark.parametrize(("updates", "calls"), [(2, 4), (1, 2)])
def test_eval_mode_before_some_updates_or_in_few_calls_is_evaluation(training, model, optimizer, updates, calls):
    for _ in range(4):
        compute_with_fixed_layers(training, model, calls)
        for _ in range(updates):
            learn(training, model, optimizer)
    assert training.finish().counts["validation_epoch"] == 4


def gather(training, model, environment):
    observations, rewards = [], []
    model.eval()
    with training.no_grad():
        for _ in range(4):
            model(0)
            training.spend(1)
            observations.append(environment)
            rewards.append(1)
    model.train()
    return observations, rewards


def test_variables_show_that_a_model_in_eval_mode_acts(training, model, optimizer):
    for _ in range(2):
        gather(training, model, 0)
        for _ in range(3):
            learn(training, model, optimizer)
    stats = training.finish()
    assert "validation_epoch" not in stats.counts
    assert (stats.counts["rollout"], stats.counts["forward_without_grad"]) == (2, 8)
    assert stats.step_s == [18.0, 6.0, 6.0] * 2


def test_other_functions_with_such_variables_evaluate(training, model, optimizer):
    def score():
        gather(training, model, 0)

    for _ in range(4):
        gather(training, model, 0)
        learn(training, model, optimizer)
        score()
        learn(training, model, optimizer)
    stats = training.finish()
    assert (stats.counts["rollout"], stats.counts["validation_epoch"]) == (4, 4)


def test_variables_of_both_kinds_say_evaluation(training, model, optimizer):
    def compare(rewards, correct):
        model.eval()
        with training.no_grad():
            for _ in range(rewards + correct):
                model(0)
        model.train()

    for _ in range(4):
        compare(1, 2)
        learn(training, model, optimizer)
    assert training.finish().counts["validation_epoch"] == 4


def test_calls_that_the_first_update_did_without_are_evaluation(training, model, optimizer):
    for number in range(12):
        learn(training, model, optimizer)
        if number % 4 == 0:
            with training.no_grad():
                model(0)
    stats = training.finish()
    assert stats.counts["validation_epoch"] == 3
    assert stats.step_s == [6.0] * 12


def test_texts_generated_for_each_update_are_part_of_its_step(training, model, optimizer):
    def generate():
        with training.no_grad():
            for _ in range(4):
                model(0)

    for _ in range(3):
        model.eval()
        generate()
        model.train()
        learn(training, model, optimizer)
    stats = training.finish()
    assert stats.counts["forward_without_grad"] == 12
    assert stats.step_s == [14.0] * 3


def test_loader_of_what_was_collected_follows_the_rollout(training, model, optimizer):
    for _ in range(2):
        collect_rollout(training, model)
        training.train(model, FakeLoader(training, 3), optimizer)
    stats = training.finish()
    assert (stats.counts["rollout"], stats.counts["forward_without_grad"]) == (2, 10)
    assert "validation_epoch" not in stats.counts
    assert stats.step_s == [22.0, 7.0, 7.0] * 2


def test_checkpoint_in_a_rollout_does_not_make_it_an_evaluation(training, model, optimizer):
    collect_rollout(training, model, steps=3)
    learn(training, model, optimizer)
    for _ in range(2):
        collect_rollout(training, model, steps=3)
        training.save(4)
        collect_rollout(training, model, steps=3)
        learn(training, model, optimizer)
    stats = training.finish()
    assert (stats.counts["rollout"], stats.counts["forward_without_grad"]) == (3, 15)
    assert stats.step_s == [15.0, 24.0, 24.0]


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


def test_rollout_at_the_end_of_the_run_is_not_an_evaluation(training, model, optimizer):
    for _ in range(2):
        collect_rollout(training, model, steps=3)
        learn(training, model, optimizer)
    collect_rollout(training, model, steps=3)
    stats = training.finish()
    assert "validation_epoch" not in stats.counts
    assert stats.counts["rollout"] == 3


def test_frozen_features_of_the_whole_data_set_are_no_step(training, model, optimizer):
    backbone = FakeModule(training, requires_grad=False, seconds=1)
    with training.no_grad():
        for _ in range(MAX_TEACHER_CALLS + 1):
            backbone(0)
    for _ in range(3):
        learn(training, model, optimizer)
    assert training.finish().step_s == [6.0] * 3


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
