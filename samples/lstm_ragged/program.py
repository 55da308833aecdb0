"""Trains the ragged LSTM with RMSprop and clipped gradients."""

from __future__ import annotations

import torch
from torch import nn

from ..common.program import Program
from ..common.streams import seed_all
from .data import CHARACTERS, LineBatches
from .model import RaggedLanguageModel

# hidden, shortest and longest line, batch
SIZES = {
    "small": (16, 4, 10, 3),
    "bench": (192, 8, 48, 24),
}


def make(size: str, seed: int) -> Program:
    """The program at size "small" or "bench"."""
    seed_all(seed)
    hidden, shortest, longest, batch = SIZES[size]
    batches = LineBatches(shortest, longest, batch)
    model = RaggedLanguageModel(CHARACTERS, hidden)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)

    def step(index: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batches.next())
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        return loss.detach()

    return Program(
        "lstm_ragged", step, {"model": model}, {"optimizer": optimizer}, fixed_flow=False
    )
