"""Stable-Baselines3's PPO: the policy is in eval mode while it acts, and evaluate_policy plays an episode."""

import torch
from _tiny import PASSES, counts, show, truth
from torch import nn
from torch.distributions import Categorical

count = counts("rollout", "forward_without_grad", "validation_epoch", "validation_epoch/forward_pass")


class Environment:
    def step(self, actions):
        return torch.randn(4, 6) + actions[:, None]


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.value, self.action = nn.Linear(6, 16), nn.Linear(16, 1), nn.Linear(16, 3)

    def forward(self, observations):
        hidden = self.body(observations).tanh()
        choice = Categorical(logits=self.action(hidden))
        actions = choice.sample()
        return actions, self.value(hidden), choice.log_prob(actions)


class Algorithm:
    def __init__(self):
        self.policy, self.env = Policy(), Environment()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=3e-4)
        self.last = torch.randn(4, 6)

    def collect_rollouts(self):
        self.policy.train(False)
        seen = []
        for _ in range(12):
            with torch.no_grad():
                actions, values, log_probs = self.policy(self.last)
            count["forward_without_grad"] += 1
            seen.append((self.last, values, log_probs))
            self.last = self.env.step(actions)
        count["rollout"] += 1
        return [torch.cat(parts) for parts in zip(*seen, strict=True)]

    def train(self, observations, values, log_probs):
        self.policy.train(True)
        for _epoch in range(2):
            for at in torch.randperm(len(observations)).split(16):
                _, new_values, new_log_probs = self.policy(observations[at])
                ratio = (new_log_probs - log_probs[at]).exp()
                loss = -ratio.mean() + (new_values - values[at]).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                count.update(PASSES)
                show(loss)

    def learn(self, iterations):
        for iteration in range(iterations):
            self.train(*self.collect_rollouts())
            if iteration % 2:
                evaluate_policy(self.policy, self.env)


def evaluate_policy(policy, env):
    policy.train(False)
    observations = torch.randn(4, 6)
    for _ in range(5):
        with torch.no_grad():
            actions, _, _ = policy(observations)
        count["validation_epoch/forward_pass"] += 1
        observations = env.step(actions)
    count["validation_epoch"] += 1


Algorithm().learn(4)
truth(count)
