"""Trains the agent with n-step advantages (Mnih et al. 2016, arXiv 1602.01783)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ..common.program import Program
from ..common.streams import seed_all
from .model import ActorCritic
from .rollout import Player

DISCOUNT, VALUE_WEIGHT, ENTROPY_WEIGHT = 0.99, 0.5, 0.01

# hidden, actions a step
SIZES = {
    "small": (16, 12),
    "bench": (128, 128),
}


def discounted(rewards: list[float], ends: list[bool], last: float) -> torch.Tensor:
    """The discounted return from each step on; `last` is the value after the final step."""
    returns = []
    for reward, end in zip(reversed(rewards), reversed(ends), strict=True):
        last = reward + DISCOUNT * (0.0 if end else last)
        returns.append(last)
    return torch.tensor(returns[::-1])


def make(size: str, seed: int) -> Program:
    """The program at size "small" or "bench"."""
    seed_all(seed)
    hidden, actions = SIZES[size]
    player = Player("CartPole-v1", seed)
    model = ActorCritic(4, 2, hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(index: int) -> dict[str, torch.Tensor]:
        kept = player.play(model, actions)
        with torch.no_grad():
            _, last = model(torch.from_numpy(player.observation))
        returns = discounted(kept["rewards"], kept["ends"], last.item())
        values = torch.stack(kept["values"])
        advantages = returns - values
        policy_loss = -(torch.stack(kept["log_probs"]) * advantages.detach()).mean()
        value_loss = F.smooth_l1_loss(values, returns)
        entropy = torch.stack(kept["entropies"]).mean()
        loss = policy_loss + VALUE_WEIGHT * value_loss - ENTROPY_WEIGHT * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return {"policy": policy_loss, "value": value_loss, "entropy": entropy}

    return Program(
        "actor_critic",
        step,
        {"model": model},
        {"optimizer": optimizer},
        values=player.state,
        fixed_flow=False,
    )
