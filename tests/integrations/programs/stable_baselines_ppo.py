"""PPO: 256 steps in the environment without gradient, then 16 updates by a method of the policy, three times."""

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.policies import ActorCriticPolicy
from tally import Tally, updates

tally = Tally()


class Policy(ActorCriticPolicy):
    def evaluate_actions(self, obs: torch.Tensor, actions: torch.Tensor):
        tally.forward()
        values, log_prob, entropy = super().evaluate_actions(obs, actions)
        print(f"value {tally.watch(values).sum().item().hex()}")
        return values, log_prob, entropy


agent = PPO(Policy, "CartPole-v1", n_steps=256, batch_size=64, n_epochs=4, seed=0, device="cpu")
agent.learn(768)
tally.steps = updates(agent.policy.optimizer)
agent.save("agent")
tally.print()
