"""Trains ResNet-50 with SGD, momentum, label smoothing and a learning rate schedule."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..common.program import Program
from ..common.streams import seed_all
from .data import CropBatches
from .model import ResNet

BLOCKS = (3, 4, 6, 3)

# width of the first stage, image size, batch
SIZES = {
    "small": (4, 32, 4),
    "bench": (64, 64, 8),
}


def make(size: str, seed: int) -> Program:
    """The program at size "small" or "bench"."""
    seed_all(seed)
    width, pixels, batch = SIZES[size]
    batches = CropBatches(pixels, batch, seed)
    model = ResNet(BLOCKS, width, batches.classes)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.005, momentum=0.9, weight_decay=1e-4, nesterov=True
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)

    def step(index: int) -> torch.Tensor:
        images, labels = batches.next()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    return Program("resnet50", step, {"model": model}, {"optimizer": optimizer})
