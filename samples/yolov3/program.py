"""Trains YOLOv3 on scenes with digits."""

from __future__ import annotations

import torch
from torch import nn

from ..common.program import Program
from ..common.scenes import SceneBatches
from ..common.streams import seed_all
from .model import YoloV3
from .targets import assign, level_loss

# channels of the stem, image size, digits an image at most, batch
SIZES = {
    "small": (2, 64, 3, 1),
    "bench": (12, 128, 6, 4),
}


def make(size: str, seed: int) -> Program:
    """The program at size "small" or "bench"."""
    seed_all(seed)
    width, pixels, most, batch = SIZES[size]
    batches = SceneBatches(pixels, most, batch, seed)
    model = YoloV3(width, batches.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)
    counts = {"boxes": 0, "assigned": 0}

    def step(index: int) -> torch.Tensor:
        scenes = batches.next()
        predictions = model(scenes.images)
        targets = assign(predictions, scenes.boxes, scenes.labels)
        losses = [level_loss(p, t) for p, t in zip(predictions, targets, strict=True)]
        loss = torch.stack(losses).sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        counts["boxes"] += sum(len(boxes) for boxes in scenes.boxes)
        counts["assigned"] += sum(int(level.objects.sum()) for level in targets)
        return loss

    return Program(
        "yolov3",
        step,
        {"model": model},
        {"optimizer": optimizer},
        values=lambda: dict(counts),
        fixed_flow=False,
    )
