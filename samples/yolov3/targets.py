"""YOLOv3's targets, assigned box by box, and its loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

# Squares in pixels, three for each of the strides 32, 16 and 8.
ANCHORS = ((28, 32, 40), (20, 24, 26), (10, 14, 17))
STRIDES = (32, 16, 8)
IGNORE_ABOVE = 0.5


@dataclass
class LevelTargets:
    """Targets of one prediction level.

    objects, ignored  bool (batch, anchors, height, width)
    boxes             float32 (batch, anchors, height, width, 4)
    classes           int64 (batch, anchors, height, width)
    """

    objects: torch.Tensor
    ignored: torch.Tensor
    boxes: torch.Tensor
    classes: torch.Tensor


def square_overlap(a: float, b: float) -> float:
    """Intersection over union of two squares with a common centre."""
    small, large = sorted((a * a, b * b))
    return small / large


def empty_targets(predictions: list[torch.Tensor]) -> list[LevelTargets]:
    """Targets without any object, in the predictions' shapes."""
    levels = []
    for prediction in predictions:
        shape = prediction.shape[:-1]
        levels.append(
            LevelTargets(
                torch.zeros(shape, dtype=torch.bool),
                torch.zeros(shape, dtype=torch.bool),
                torch.zeros(*shape, 4),
                torch.zeros(shape, dtype=torch.int64),
            )
        )
    return levels


def assign(
    predictions: list[torch.Tensor], boxes: list[np.ndarray], labels: list[np.ndarray]
) -> list[LevelTargets]:
    """Gives each box to its best anchor, and lets other good anchors go unpunished."""
    levels = empty_targets(predictions)
    for image, (image_boxes, image_labels) in enumerate(zip(boxes, labels, strict=True)):
        for box, label in zip(image_boxes.tolist(), image_labels.tolist(), strict=True):
            side = box[2] - box[0]
            overlaps = [[square_overlap(side, anchor) for anchor in row] for row in ANCHORS]
            best = max(max(row) for row in overlaps)
            for level, row in enumerate(overlaps):
                for anchor, value in enumerate(row):
                    if value == best:
                        write(levels[level], image, anchor, level, box, label)
                    elif value > IGNORE_ABOVE:
                        cell = cell_of(box, level)
                        levels[level].ignored[image, anchor, cell[0], cell[1]] = True
    return levels


def cell_of(box: list[float], level: int) -> tuple[int, int]:
    """Row and column of the grid cell that holds the box's centre."""
    stride = STRIDES[level]
    return int((box[1] + box[3]) / 2 / stride), int((box[0] + box[2]) / 2 / stride)


def write(
    targets: LevelTargets, image: int, anchor: int, level: int, box: list[float], label: int
) -> None:
    """Writes one box into the targets."""
    row, column = cell_of(box, level)
    stride, side = STRIDES[level], ANCHORS[level][anchor]
    x = (box[0] + box[2]) / 2 / stride - column
    y = (box[1] + box[3]) / 2 / stride - row
    width = math.log((box[2] - box[0]) / side)
    height = math.log((box[3] - box[1]) / side)
    targets.objects[image, anchor, row, column] = True
    targets.boxes[image, anchor, row, column] = torch.tensor([x, y, width, height])
    targets.classes[image, anchor, row, column] = label


def level_loss(prediction: torch.Tensor, targets: LevelTargets) -> torch.Tensor:
    """Loss of one level, summed over cells and divided by the batch size."""
    objects = targets.objects
    background = ~(objects | targets.ignored)
    objectness = prediction[..., 4]
    loss = 0.5 * F.binary_cross_entropy_with_logits(
        objectness[background], torch.zeros_like(objectness[background]), reduction="sum"
    )
    if objects.any():
        found = prediction[objects]
        boxes = targets.boxes[objects]
        loss = loss + F.binary_cross_entropy_with_logits(
            found[:, 4], torch.ones_like(found[:, 4]), reduction="sum"
        )
        centers = torch.sigmoid(found[:, :2])
        loss = loss + 5 * F.mse_loss(centers, boxes[:, :2], reduction="sum")
        loss = loss + 5 * F.mse_loss(found[:, 2:4], boxes[:, 2:], reduction="sum")
        loss = loss + F.cross_entropy(found[:, 5:], targets.classes[objects], reduction="sum")
    return loss / len(prediction)
