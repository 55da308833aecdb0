"""Trains GPT-2 with accumulated, clipped gradients and a learning rate that Python sets."""

from __future__ import annotations

import math

import torch
from torch import nn

from ..common.program import Program
from ..common.streams import seed_all
from .data import SourceWindows
from .model import GPT, GPTConfig

MICRO_BATCHES = 2
WARM_UP, TOTAL = 10, 500
PEAK_RATE, FINAL_RATE = 6e-4, 6e-5

# vocabulary, hidden, layers, heads, length, batch
SIZES = {
    "small": (256, 32, 2, 2, 16, 2),
    "bench": (4096, 256, 4, 4, 64, 4),
}


def learning_rate(index: int) -> float:
    """A linear warm-up, then half a cosine down to the final rate."""
    if index < WARM_UP:
        return PEAK_RATE * (index + 1) / WARM_UP
    progress = min(1.0, (index - WARM_UP) / (TOTAL - WARM_UP))
    return FINAL_RATE + 0.5 * (PEAK_RATE - FINAL_RATE) * (1 + math.cos(math.pi * progress))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW that decays matrices, and neither biases nor norms."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95))


def make(size: str, seed: int) -> Program:
    """The program at size "small" or "bench"."""
    seed_all(seed)
    words, hidden, layers, heads, length, batch = SIZES[size]
    windows = SourceWindows(words, length, batch)
    model = GPT(GPTConfig(len(windows.vocabulary), hidden, layers, heads, length))
    optimizer = make_optimizer(model)

    def step(index: int) -> dict[str, torch.Tensor]:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(index)
        total = 0.0
        for _ in range(MICRO_BATCHES):
            inputs, targets = windows.next()
            _, loss = model(inputs, targets)
            (loss / MICRO_BATCHES).backward()
            total = total + loss.detach() / MICRO_BATCHES
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return {"loss": total, "norm": norm}

    return Program("gpt2", step, {"model": model}, {"optimizer": optimizer})
