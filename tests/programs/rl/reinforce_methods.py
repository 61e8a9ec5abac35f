"""REINFORCE, one update an episode; the policy's __call__ is never used, its act() calls its parts."""

import torch
from _tiny import counts, show, truth
from torch import nn
from torch.distributions import Categorical

count = counts()


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 16), nn.Linear(16, 2)

    def act(self, observation):
        hidden = torch.relu(self.body(observation))
        return Categorical(logits=self.head(hidden))


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for episode in range(10):
    observation, log_probs, rewards = torch.randn(4), [], []
    for _ in range(5 + episode % 4):
        choice = policy.act(observation)
        count["forward_pass"] += 1
        action = choice.sample()
        log_probs.append(choice.log_prob(action))
        observation = torch.randn(4) + action
        rewards.append(observation[0].item())
    returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
    loss = -(torch.stack(log_probs) * returns).sum()
    optimizer.zero_grad()
    loss.backward()
    count["backward_pass"] += 1
    optimizer.step()
    count["steps"] += 1
    show(loss)
truth(count)
