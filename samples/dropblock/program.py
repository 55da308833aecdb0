"""Trains the residual net while the drop probability rises from step to step."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..common.program import Program
from ..common.streams import seed_all
from ..resnet50.data import CropBatches
from .model import DropBlockNet

FINAL_DROP_PROB, RAMP_STEPS = 0.15, 100

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
    model = DropBlockNet(width, blocks, batches.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)

    def step(index: int) -> torch.Tensor:
        model.set_drop_prob(FINAL_DROP_PROB * min(1.0, index / RAMP_STEPS))
        images, labels = batches.next()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    return Program("dropblock", step, {"model": model}, {"optimizer": optimizer})
