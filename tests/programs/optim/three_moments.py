"""Soft actor-critic: critics learn at every iteration, the actor at every second, the temperature at every third."""

import torch
from _tiny import counts, show, truth
from torch import nn
from torch.nn import functional as F

count = counts("validation_epoch/forward_pass+forward_without_grad")


class SoftQNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4 + 2, 16), nn.Linear(16, 1)

    def forward(self, x, a):
        return self.fc2(F.relu(self.fc1(torch.cat([x, a], 1))))


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.mean, self.logstd = nn.Linear(4, 16), nn.Linear(16, 2), nn.Linear(16, 2)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        return self.mean(x), torch.tanh(self.logstd(x))

    def get_action(self, x):
        mean, log_std = self(x)
        normal = torch.distributions.Normal(mean, log_std.exp())
        x_t = normal.rsample()
        return torch.tanh(x_t), normal.log_prob(x_t).sum(1, keepdim=True)


actor, qf1, qf2, qf1_target = Actor(), SoftQNetwork(), SoftQNetwork(), SoftQNetwork()
qf1_target.load_state_dict(qf1.state_dict())
log_alpha = torch.zeros(1, requires_grad=True)
q_optimizer = torch.optim.Adam([*qf1.parameters(), *qf2.parameters()], lr=1e-3)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
a_optimizer = torch.optim.Adam([log_alpha], lr=1e-3)
for iteration in range(20):
    x, a, r, x_next = torch.randn(8, 4), torch.randn(8, 2), torch.randn(8, 1), torch.randn(8, 4)
    with torch.no_grad():
        a_next, log_pi = actor.get_action(x_next)
        target = r + 0.99 * (qf1_target(x_next, a_next) - log_alpha.exp() * log_pi)
    count["validation_epoch/forward_pass+forward_without_grad"] += 2
    qf_loss = F.mse_loss(qf1(x, a), target) + F.mse_loss(qf2(x, a), target)
    count["forward_pass"] += 2
    q_optimizer.zero_grad()
    qf_loss.backward()
    count["backward_pass"] += 1
    q_optimizer.step()
    count["steps"] += 1
    show(qf_loss)
    if iteration % 2 == 0:
        for _ in range(2):
            pi, log_pi = actor.get_action(x)
            actor_loss = (log_alpha.exp().detach() * log_pi - torch.min(qf1(x, pi), qf2(x, pi))).mean()
            count["forward_pass"] += 3
            actor_optimizer.zero_grad()
            actor_loss.backward()
            count["backward_pass"] += 1
            actor_optimizer.step()
            show(actor_loss)
    if iteration % 3 == 0:
        with torch.no_grad():
            _, log_pi = actor.get_action(x)
        count["validation_epoch/forward_pass+forward_without_grad"] += 1
        alpha_loss = (-log_alpha.exp() * (log_pi - 2)).mean()
        a_optimizer.zero_grad()
        alpha_loss.backward()
        count["backward_pass"] += 1
        a_optimizer.step()
    for p, target_p in zip(qf1.parameters(), qf1_target.parameters(), strict=True):
        target_p.data.copy_(0.005 * p.data + 0.995 * target_p.data)
truth(count)
