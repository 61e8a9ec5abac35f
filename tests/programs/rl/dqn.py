"""CleanRL's DQN: the network also chooses actions, with gradients enabled; learning starts late, every fourth step."""

import random

import torch
from _tiny import PASSES, counts, show, truth
from torch import nn
from torch.nn import functional as F

random.seed(0)
count = counts("validation_epoch/forward_pass+forward_without_grad")


class QNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.network(x)


q_network, target_network = QNetwork(), QNetwork()
target_network.load_state_dict(q_network.state_dict())
optimizer = torch.optim.Adam(q_network.parameters(), lr=2.5e-4)
memory, obs = [], torch.randn(4)
for global_step in range(80):
    if random.random() < 0.3:
        action = random.randrange(2)
    else:
        action = int(torch.argmax(q_network(obs)))
        count["forward_pass"] += 1
    next_obs = torch.randn(4) + action
    memory.append((obs, next_obs, action, next_obs[0].item()))
    obs = next_obs
    if global_step >= 20 and global_step % 4 == 0:
        states, next_states, actions, rewards = zip(*random.sample(memory, 8), strict=True)
        with torch.no_grad():
            target_max, _ = target_network(torch.stack(next_states)).max(dim=1)
            td_target = torch.tensor(rewards) + 0.99 * target_max
        count["validation_epoch/forward_pass+forward_without_grad"] += 1
        old_val = q_network(torch.stack(states)).gather(1, torch.tensor(actions)[:, None]).squeeze()
        loss = F.mse_loss(td_target, old_val)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count.update(PASSES)
        show(loss)
    if global_step % 10 == 0:
        for target_p, p in zip(target_network.parameters(), q_network.parameters(), strict=True):
            target_p.data.copy_(p.data)
truth(count)
