"""Trains the mixture of experts on windows of source."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..common.program import Program
from ..common.streams import seed_all
from ..gpt2.data import SourceWindows
from .model import MixtureModel

BALANCE_WEIGHT = 0.01

# vocabulary, hidden, layers, heads, experts, length, batch
SIZES = {
    "small": (200, 16, 1, 2, 4, 12, 2),
    "bench": (2000, 128, 2, 4, 8, 64, 8),
}


def make(size: str, seed: int) -> Program:
    """The program at size "small" or "bench"."""
    seed_all(seed)
    words, hidden, layers, heads, experts, length, batch = SIZES[size]
    windows = SourceWindows(words, length, batch)
    model = MixtureModel(len(windows.vocabulary), hidden, layers, heads, experts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(index: int) -> torch.Tensor:
        ids, targets = windows.next()
        scores = model(ids)
        loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten())
        total = loss + BALANCE_WEIGHT * model.balance_loss()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        return loss.detach()

    return Program(
        "moe",
        step,
        {"model": model},
        {"optimizer": optimizer},
        values=lambda: {"load": [list(block.mixture.load) for block in model.blocks]},
        fixed_flow=False,
    )
