"""Matching, sampling and the losses of both stages, for one image at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .boxes import encode, pairwise_iou

FOREGROUND, BACKGROUND = 0.5, 0.3
ANCHOR_SAMPLES, ROI_SAMPLES = 32, 16


def sample(candidates: torch.Tensor, count: int) -> torch.Tensor:
    """At most `count` of the indices, at random."""
    if len(candidates) <= count:
        return candidates
    return candidates[torch.randperm(len(candidates))[:count]]


def proposal_loss(
    scores: torch.Tensor, deltas: torch.Tensor, anchors: torch.Tensor, boxes: torch.Tensor
) -> torch.Tensor:
    """Objectness and box loss of a sample of anchors; boxes are the true ones."""
    overlap = pairwise_iou(anchors, boxes)
    best, matched = overlap.max(dim=1)
    positive = best >= FOREGROUND
    positive[overlap.argmax(dim=0)] = True  # every box gets its best anchor
    matched[overlap.argmax(dim=0)] = torch.arange(len(boxes))
    negative = (best < BACKGROUND) & ~positive
    chosen = sample(torch.nonzero(positive).squeeze(1), ANCHOR_SAMPLES // 2)
    others = sample(torch.nonzero(negative).squeeze(1), ANCHOR_SAMPLES - len(chosen))
    wanted = torch.cat([torch.ones(len(chosen)), torch.zeros(len(others))])
    found = scores[torch.cat([chosen, others])]
    loss = F.binary_cross_entropy_with_logits(found, wanted)
    true_deltas = encode(boxes[matched[chosen]], anchors[chosen])
    return loss + F.smooth_l1_loss(deltas[chosen], true_deltas, beta=1 / 9)


@torch.no_grad()
def sample_rois(
    proposals: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Proposals to learn from, their labels (0 is background), and their true boxes."""
    rois = torch.cat([proposals, boxes])
    best, matched = pairwise_iou(rois, boxes).max(dim=1)
    positive = sample(torch.nonzero(best >= FOREGROUND).squeeze(1), ROI_SAMPLES // 4)
    negative = sample(torch.nonzero(best < FOREGROUND).squeeze(1), ROI_SAMPLES - len(positive))
    chosen = torch.cat([positive, negative])
    targets = labels[matched[chosen]] + 1
    targets[len(positive) :] = 0
    return rois[chosen], targets, boxes[matched[chosen]]


def head_loss(
    scores: torch.Tensor,
    deltas: torch.Tensor,
    rois: torch.Tensor,
    targets: torch.Tensor,
    boxes: torch.Tensor,
) -> torch.Tensor:
    """Class loss of all sampled proposals and box loss of those that hold an object."""
    loss = F.cross_entropy(scores, targets)
    rows = torch.nonzero(targets > 0).squeeze(1)
    true_deltas = encode(boxes[rows], rois[rows])
    box_loss = F.smooth_l1_loss(deltas[rows, targets[rows]], true_deltas, reduction="sum")
    return loss + box_loss / len(targets)
