"""Trains MusicTransformer with the learning rate schedule of the original Transformer."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..common.program import Program
from ..common.streams import seed_all
from .data import VOCABULARY, ChoraleBatches
from .model import MusicTransformer

WARM_UP = 100
DROPOUT = 0.1

# hidden, layers, heads, lengths, batch
SIZES = {
    "small": (32, 2, 2, (16, 24), 2),
    "bench": (128, 4, 4, (96, 128), 6),
}


def smoothed_loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy against targets smoothed by 0.1."""
    return F.cross_entropy(scores.transpose(1, 2), targets, label_smoothing=0.1)


def make(size: str, seed: int) -> Program:
    """The program at size "small" or "bench"."""
    seed_all(seed)
    hidden, layers, heads, lengths, batch = SIZES[size]
    batches = ChoraleBatches(lengths, batch)
    model = MusicTransformer(VOCABULARY, hidden, layers, heads, max(lengths), DROPOUT)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    history: list[float] = []

    def step(index: int) -> torch.Tensor:
        rate = hidden**-0.5 * min((index + 1) ** -0.5, (index + 1) * WARM_UP**-1.5)
        for group in optimizer.param_groups:
            group["lr"] = rate
        inputs, targets = batches.next()
        scores = model(inputs)
        loss = smoothed_loss(scores, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if index % 10 == 0:
            history.append((scores.argmax(-1) == targets).float().mean().item())
        return loss

    def values() -> dict[str, object]:
        weights = [layer.attention.last_weights for layer in model.layers]
        return {"seen": model.tokens_seen, "weights": weights, "accuracy": history[-1:]}

    return Program(
        "music_transformer", step, {"model": model}, {"optimizer": optimizer}, values, False
    )
