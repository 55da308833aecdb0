"""Boxes as (count, 4) tensors: left, top, right, bottom in pixels."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F

LARGEST_LOG_SCALE = math.log(1000 / 16)


def pairwise_iou(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Intersection over union of every box of a with every box of b, (len(a), len(b))."""
    top_left = torch.maximum(a[:, None, :2], b[None, :, :2])
    bottom_right = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = (bottom_right - top_left).clamp(min=0).prod(dim=2)
    area_a = (a[:, 2:] - a[:, :2]).prod(dim=1)
    area_b = (b[:, 2:] - b[:, :2]).prod(dim=1)
    return shared / (area_a[:, None] + area_b[None] - shared)


def encode(boxes: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    """The deltas (count, 4) that lead from the anchors to the boxes."""
    sizes, anchor_sizes = boxes[:, 2:] - boxes[:, :2], anchors[:, 2:] - anchors[:, :2]
    centers = (boxes[:, 2:] + boxes[:, :2]) / 2
    anchor_centers = (anchors[:, 2:] + anchors[:, :2]) / 2
    moves = (centers - anchor_centers) / anchor_sizes
    return torch.cat([moves, torch.log(sizes / anchor_sizes)], dim=1)


def decode(deltas: torch.Tensor, anchors: torch.Tensor, size: int) -> torch.Tensor:
    """The boxes that the deltas lead to, cut to an image of `size` pixels."""
    anchor_sizes = anchors[:, 2:] - anchors[:, :2]
    centers = (anchors[:, 2:] + anchors[:, :2]) / 2 + deltas[:, :2] * anchor_sizes
    sizes = torch.exp(deltas[:, 2:].clamp(max=LARGEST_LOG_SCALE)) * anchor_sizes
    return torch.cat([centers - sizes / 2, centers + sizes / 2], dim=1).clamp(0, size)


def non_maximum_suppression(boxes: np.ndarray, scores: np.ndarray, limit: float) -> np.ndarray:
    """Indices of the boxes to keep, best first; boxes that overlap a better one more than
    `limit` go."""
    order = scores.argsort(kind="stable")[::-1]
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    keep = []
    while order.size:
        best, rest = order[0], order[1:]
        keep.append(best)
        left_top = np.maximum(boxes[best, :2], boxes[rest, :2])
        right_bottom = np.minimum(boxes[best, 2:], boxes[rest, 2:])
        shared = np.clip(right_bottom - left_top, 0, None).prod(axis=1)
        overlap = shared / (areas[best] + areas[rest] - shared + 1e-9)
        order = rest[overlap <= limit]
    return np.array(keep, dtype=np.int64)


def roi_align(features: torch.Tensor, boxes: torch.Tensor, size: int, output: int) -> torch.Tensor:
    """Features (1, channels, height, width) of an image of `size` pixels, sampled bilinearly
    in each box: (count, channels, output, output)."""
    steps = (torch.arange(output) + 0.5) / output
    x = boxes[:, 0:1] + (boxes[:, 2:3] - boxes[:, 0:1]) * steps
    y = boxes[:, 1:2] + (boxes[:, 3:4] - boxes[:, 1:2]) * steps
    x = (x * 2 / size - 1)[:, None, :].expand(-1, output, -1)
    y = (y * 2 / size - 1)[:, :, None].expand(-1, -1, output)
    grid = torch.stack([x, y], dim=-1)
    tall = grid.reshape(1, -1, output, 2)
    sampled = F.grid_sample(features, tall, align_corners=False)
    channels = features.shape[1]
    return sampled.view(channels, len(boxes), output, output).transpose(0, 1)
