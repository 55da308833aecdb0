"""Policy and value nets with a common body."""

from __future__ import annotations

import torch
from torch import nn


class ActorCritic(nn.Module):
    """Observations (..., observations) to action scores (..., actions) and values (...)."""

    def __init__(self, observations: int, actions: int, hidden: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(observations, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh()
        )
        self.policy = nn.Linear(hidden, actions)
        self.value = nn.Linear(hidden, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.body(x)
        return self.policy(x), self.value(x).squeeze(-1)
