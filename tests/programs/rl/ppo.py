"""CleanRL's PPO: a rollout without gradient, then epochs of minibatches; the agent is two networks and two methods."""

import torch
from _tiny import PASSES, counts, show, truth
from torch import nn
from torch.distributions import Categorical

count = counts("metrics_computation")


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        self.actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
obs, actions, logprobs = torch.zeros(16, 4, 4), torch.zeros(16, 4), torch.zeros(16, 4)
values, next_obs = torch.zeros(16, 4), torch.randn(4, 4)
for _update in range(3):
    for step in range(16):
        obs[step] = next_obs
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
            values[step] = value.flatten()
        actions[step], logprobs[step] = action, logprob
        next_obs = torch.randn(4, 4) + action[:, None]
    with torch.no_grad():
        returns = obs.sum(2).flip(0).cumsum(0).flip(0) + agent.get_value(next_obs).flatten()
    advantages = (returns - values).flatten()
    for _epoch in range(2):
        for mb_inds in torch.randperm(64).split(16):
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                obs.view(64, 4)[mb_inds], actions.flatten()[mb_inds]
            )
            ratio = (newlogprob - logprobs.flatten()[mb_inds]).exp()
            pg_loss = -(advantages[mb_inds] * ratio.clamp(0.8, 1.2)).mean()
            v_loss = (newvalue.view(-1) - returns.flatten()[mb_inds]).square().mean()
            loss = pg_loss - 0.01 * entropy.mean() + 0.5 * v_loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            count["metrics_computation"] += 1
            optimizer.step()
            count.update(PASSES)
            show(loss)
truth(count)
