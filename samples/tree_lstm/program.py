"""Trains the tree classifier on a few trees a step."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..common.program import Program
from ..common.streams import seed_all
from .data import MODULES, TreeSamples
from .model import TreeClassifier

# hidden, smallest and largest tree, batch
SIZES = {
    "small": (16, 8, 28, 2),
    "bench": (96, 20, 120, 8),
}


def make(size: str, seed: int) -> Program:
    """The program at size "small" or "bench"."""
    seed_all(seed)
    hidden, smallest, largest, batch = SIZES[size]
    samples = TreeSamples(smallest, largest, batch)
    model = TreeClassifier(len(samples.kinds), hidden, len(MODULES))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    correct = [0, 0]

    def step(index: int) -> torch.Tensor:
        optimizer.zero_grad()
        losses = []
        for tree, label in samples.next():
            scores = model(tree)
            losses.append(F.cross_entropy(scores, torch.tensor(label)))
            correct[int(scores.argmax() == label)] += 1
        loss = torch.stack(losses).mean()
        loss.backward()
        optimizer.step()
        return loss

    return Program(
        "tree_lstm",
        step,
        {"model": model},
        {"optimizer": optimizer},
        values=lambda: {"wrong_and_right": list(correct)},
        fixed_flow=False,
    )
