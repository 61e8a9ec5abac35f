"""PyTorch's actor-critic: a forward a step of the episode, with two heads, and one update at its end."""

import torch
from _tiny import counts, show, truth
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F

count = counts()


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1, self.action_head, self.value_head = nn.Linear(4, 16), nn.Linear(16, 2), nn.Linear(16, 1)
        self.saved_actions, self.rewards = [], []

    def forward(self, x):
        x = F.relu(self.affine1(x))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)


model = Policy()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)


def select_action(state):
    probs, state_value = model(state)
    count["forward_pass"] += 1
    choice = Categorical(probs)
    action = choice.sample()
    model.saved_actions.append((choice.log_prob(action), state_value))
    return action.item()


def finish_episode():
    returns = torch.tensor(model.rewards).flip(0).cumsum(0).flip(0)
    policy_losses, value_losses = [], []
    for (log_prob, value), R in zip(model.saved_actions, returns, strict=True):
        policy_losses.append(-log_prob * (R - value.item()))
        value_losses.append(F.smooth_l1_loss(value, R.view(1)))
    optimizer.zero_grad()
    loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
    loss.backward()
    count["backward_pass"] += 1
    optimizer.step()
    count["steps"] += 1
    show(loss)
    del model.saved_actions[:], model.rewards[:]


for episode in range(10):
    state = torch.randn(4)
    for _ in range(4 + episode):
        action = select_action(state)
        state = torch.randn(4)
        model.rewards.append(float(action))
    finish_episode()
truth(count)
