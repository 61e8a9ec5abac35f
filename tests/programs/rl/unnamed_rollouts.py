"""A policy in eval mode acts before the updates, in a function whose name does not say so."""

import torch
from _tiny import PASSES, counts, show, truth
from torch import nn
from torch.nn import functional as F

count = counts("rollout", "forward_without_grad")
policy = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
moves = torch.randn(3, 6)


@torch.no_grad()
def gather(length):
    policy.eval()
    observation, seen, actions, rewards = torch.randn(4, 6), [], [], []
    for _ in range(length):
        action = policy(observation).softmax(-1).multinomial(1).squeeze(1)
        count["forward_without_grad"] += 1
        seen.append(observation)
        actions.append(action)
        rewards.append(observation.sum(1))
        observation = (observation + moves[action]).tanh()
    policy.train()
    count["rollout"] += 1
    return torch.cat(seen), torch.cat(actions), torch.cat(rewards)


for _ in range(3):
    observations, actions, rewards = gather(8)
    for _ in range(4):
        loss = (F.cross_entropy(policy(observations), actions, reduction="none") * rewards).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count.update(PASSES)
        show(loss)
truth(count)
