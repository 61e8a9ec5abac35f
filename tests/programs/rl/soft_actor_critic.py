"""CleanRL's SAC as a script: acting, targets of copies and of the actor itself, all without gradient."""

import copy

import torch
from _tiny import counts, show, truth
from torch import nn
from torch.nn import functional as F

count = counts("rollout+forward_without_grad", "validation_epoch")


def network(inputs):
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 1))


actor, critic = network(4), network(5)
target = copy.deepcopy(critic)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
memory, state = [], torch.randn(4)
for step in range(60):
    with torch.no_grad():
        action = actor(state).tanh()
    count["rollout+forward_without_grad"] += 1
    following = torch.randn(4) + action
    memory.append((state, action, following))
    state = following
    if step < 10:
        continue
    states, actions, followings = (torch.stack(rows) for rows in zip(*memory[-8:], strict=True))
    with torch.no_grad():
        wanted = 0.99 * target(torch.cat([followings, actor(followings)], 1))
    count["rollout+forward_without_grad"] += 2
    loss = F.mse_loss(critic(torch.cat([states, actions], 1)), wanted)
    count["forward_pass"] += 1
    critic_optimizer.zero_grad()
    loss.backward()
    count["backward_pass"] += 1
    critic_optimizer.step()
    show(loss)
    if step % 2 == 0:
        loss = -critic(torch.cat([states, actor(states)], 1)).mean()
        count["forward_pass"] += 2
        actor_optimizer.zero_grad()
        loss.backward()
        count["backward_pass"] += 1
        actor_optimizer.step()
    with torch.no_grad():
        for mean, parameter in zip(target.parameters(), critic.parameters(), strict=True):
            mean.lerp_(parameter, 0.005)
    count["steps"] += 1
truth(count)
