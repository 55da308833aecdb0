"""Trains Faster R-CNN end to end on scenes with digits."""

from __future__ import annotations

import torch
from torch import nn

from ..common.program import Program
from ..common.scenes import SceneBatches
from ..common.streams import seed_all
from .losses import head_loss, proposal_loss, sample_rois
from .model import FasterRCNN

# channels, image size, digits an image at most, batch
SIZES = {
    "small": (4, 64, 3, 1),
    "bench": (32, 128, 6, 2),
}


def make(size: str, seed: int) -> Program:
    """The program at size "small" or "bench"."""
    seed_all(seed)
    width, pixels, most, batch = SIZES[size]
    batches = SceneBatches(pixels, most, batch, seed)
    model = FasterRCNN(width, pixels, batches.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    counts = {"proposals": 0, "correct": 0}

    def image_losses(features, scores, deltas, boxes, labels) -> tuple[torch.Tensor, torch.Tensor]:
        first = proposal_loss(scores, deltas, model.anchors, boxes)
        proposals = model.propose(scores, deltas)
        counts["proposals"] += len(proposals)
        rois, targets, matched = sample_rois(proposals, boxes, labels)
        class_scores, box_deltas = model.classify(features, rois)
        counts["correct"] += int((class_scores.argmax(dim=1) == targets).sum())
        return first, head_loss(class_scores, box_deltas, rois, targets, matched)

    def step(index: int) -> dict[str, torch.Tensor]:
        scenes = batches.next()
        features = model.backbone(scenes.images)
        scores, deltas = model.proposal_net(features)
        first, second = [], []
        for image in range(len(features)):
            losses = image_losses(
                features[image : image + 1],
                scores[image],
                deltas[image],
                torch.from_numpy(scenes.boxes[image]),
                torch.from_numpy(scenes.labels[image]),
            )
            first.append(losses[0])
            second.append(losses[1])
        proposal, head = torch.stack(first).mean(), torch.stack(second).mean()
        optimizer.zero_grad()
        (proposal + head).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        return {"proposal": proposal, "head": head}

    return Program(
        "faster_rcnn",
        step,
        {"model": model},
        {"optimizer": optimizer},
        values=lambda: dict(counts),
        fixed_flow=False,
    )
