"""Trains a net whose shapes change at a random point in every step."""

from __future__ import annotations

from collections import Counter

import torch
import torch.nn.functional as F

from ..common.program import Program
from ..common.streams import seed_all
from ..resnet50.data import CropBatches
from .model import SDPointNet

# channels, blocks a stage, image size, batch
SIZES = {
    "small": (8, 1, 16, 4),
    "bench": (32, 2, 40, 16),
}


def make(size: str, seed: int) -> Program:
    """The program at size "small" or "bench"."""
    seed_all(seed)
    width, blocks, pixels, batch = SIZES[size]
    batches = CropBatches(pixels, batch, seed)
    model = SDPointNet(width, blocks, batches.classes)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4, nesterov=True
    )
    uses: Counter[tuple[int, float]] = Counter()

    def step(index: int) -> torch.Tensor:
        images, labels = batches.next()
        loss = F.cross_entropy(model(images), labels)
        uses[model.point, model.ratio] += 1
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return Program(
        "sdpoint",
        step,
        {"model": model},
        {"optimizer": optimizer},
        values=lambda: dict(uses),
        fixed_flow=False,
    )
