"""DQN: two updates after every four steps in the environment; the target network answers without gradient."""

import torch
from stable_baselines3 import DQN
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from tally import Tally, updates

tally = Tally()


class CountedNetwork(QNetwork):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        values = super().forward(obs)
        if torch.is_grad_enabled():
            tally.forward()
            print(f"value {tally.watch(values).sum().item().hex()}")
        return values


class Policy(DQNPolicy):
    def make_q_net(self) -> CountedNetwork:
        arguments = self._update_features_extractor(self.net_args, features_extractor=None)
        return CountedNetwork(**arguments).to(self.device)


agent = DQN(
    Policy, "CartPole-v1", learning_starts=60, target_update_interval=40, gradient_steps=2, seed=0, device="cpu"
)
agent.learn(200)
tally.steps = updates(agent.policy.optimizer)
assert tally.steps == agent._n_updates
tally.print()
