"""A small Faster R-CNN (Ren et al. 2015, arXiv 1506.01497)."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from .boxes import decode, non_maximum_suppression, roi_align

STRIDE = 8
ANCHOR_SIDES = (14.0, 20.0, 30.0)
CANDIDATES, PROPOSALS = 60, 24
NMS_LIMIT = 0.7
SMALLEST_SIDE = 4.0
ROI_SIZE = 5


class Backbone(nn.Sequential):
    """Images (batch, 3, size, size) to features (batch, 4 * width, size / 8, size / 8)."""

    def __init__(self, width: int):
        layers: list[nn.Module] = []
        inputs = 3
        for outputs in (width, 2 * width, 4 * width):
            layers += [
                nn.Conv2d(inputs, outputs, 3, padding=1),
                nn.GroupNorm(min(8, outputs // 2), outputs),
                nn.ReLU(inplace=True),
                nn.Conv2d(outputs, outputs, 3, stride=2, padding=1),
                nn.ReLU(inplace=True),
            ]
            inputs = outputs
        super().__init__(*layers)


class ProposalNet(nn.Module):
    """Features to objectness (batch, anchors) and box deltas (batch, anchors, 4)."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.objectness = nn.Conv2d(channels, len(ANCHOR_SIDES), 1)
        self.deltas = nn.Conv2d(channels, 4 * len(ANCHOR_SIDES), 1)

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(self.conv(features))
        batch = len(features)
        scores = self.objectness(hidden).permute(0, 2, 3, 1).reshape(batch, -1)
        deltas = self.deltas(hidden).permute(0, 2, 3, 1).reshape(batch, -1, 4)
        return scores, deltas


class BoxHead(nn.Module):
    """Pooled features to class scores (count, 1 + classes) and deltas (count, 1 + classes, 4)."""

    def __init__(self, channels: int, hidden: int, classes: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * ROI_SIZE**2, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
        )
        self.classes = nn.Linear(hidden, 1 + classes)
        self.deltas = nn.Linear(hidden, 4 * (1 + classes))

    def forward(self, pooled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.body(pooled)
        return self.classes(hidden), self.deltas(hidden).view(len(pooled), -1, 4)


class FasterRCNN(nn.Module):
    """The three nets, and the anchors of an image of `size` pixels."""

    def __init__(self, width: int, size: int, classes: int):
        super().__init__()
        self.size = size
        self.backbone = Backbone(width)
        self.proposal_net = ProposalNet(4 * width)
        self.box_head = BoxHead(4 * width, 16 * width, classes)
        self.register_buffer("anchors", make_anchors(size))

    @torch.no_grad()
    def propose(self, scores: torch.Tensor, deltas: torch.Tensor) -> torch.Tensor:
        """Boxes (count, 4) for one image, from scores (anchors,) and deltas (anchors, 4)."""
        scores, order = scores.topk(CANDIDATES)
        boxes = decode(deltas[order], self.anchors[order], self.size)
        large = ((boxes[:, 2:] - boxes[:, :2]) >= SMALLEST_SIDE).all(dim=1)
        boxes, scores = boxes[large], scores[large]
        keep = non_maximum_suppression(boxes.numpy(), scores.numpy(), NMS_LIMIT)
        return boxes[torch.from_numpy(keep[:PROPOSALS])]

    def classify(
        self, features: torch.Tensor, boxes: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Class scores and deltas of boxes in one image; features (1, channels, h, w)."""
        return self.box_head(roi_align(features, boxes, self.size, ROI_SIZE))


def make_anchors(size: int) -> torch.Tensor:
    """Square anchors in the order of ProposalNet's outputs, (anchors, 4)."""
    centers = (np.arange(size // STRIDE) + 0.5) * STRIDE
    y, x, side = np.meshgrid(centers, centers, ANCHOR_SIDES, indexing="ij")
    boxes = np.stack([x - side / 2, y - side / 2, x + side / 2, y + side / 2], axis=-1)
    return torch.from_numpy(boxes.reshape(-1, 4)).float()
