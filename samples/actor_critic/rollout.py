"""Plays an environment with the current policy and keeps what learning needs."""

from __future__ import annotations

import gymnasium
import torch
from torch import nn
from torch.distributions import Categorical


class Player:
    """An environment in the middle of an episode.

    returns: undiscounted returns of the episodes that are over.
    """

    def __init__(self, name: str, seed: int):
        self.environment = gymnasium.make(name)
        self.observation, _ = self.environment.reset(seed=seed)
        self.total = 0.0
        self.returns: list[float] = []

    def play(self, model: nn.Module, steps: int) -> dict[str, list]:
        """Plays `steps` actions. Gives lists of log-probabilities, values, entropies, rewards
        and whether the episode ended there; the first three hold scalars with gradients."""
        kept: dict[str, list] = {
            "log_probs": [],
            "values": [],
            "entropies": [],
            "rewards": [],
            "ends": [],
        }
        for _ in range(steps):
            scores, value = model(torch.from_numpy(self.observation))
            policy = Categorical(logits=scores)
            action = policy.sample()
            observation, reward, terminated, truncated, _ = self.environment.step(action.item())
            kept["log_probs"].append(policy.log_prob(action))
            kept["values"].append(value)
            kept["entropies"].append(policy.entropy())
            kept["rewards"].append(float(reward))
            kept["ends"].append(terminated or truncated)
            self.total += float(reward)
            self.observation = observation
            if terminated or truncated:
                self.returns.append(self.total)
                self.total = 0.0
                self.observation, _ = self.environment.reset()
        return kept

    def state(self) -> dict[str, object]:
        """What the environment and the episode look like now."""
        return {
            "environment": self.environment.unwrapped.state,
            "observation": self.observation,
            "total": self.total,
            "returns": list(self.returns[-5:]),
        }
