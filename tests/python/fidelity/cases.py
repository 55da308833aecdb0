"""Small models and steps that several fidelity tests share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

FEATURES, CLASSES, ROWS = 6, 3, 5


def small_net(dropout=0.25):
    """Linear, BatchNorm, Tanh, Dropout, Linear: parameters, buffers and a draw. [rows, 6] -> 3."""
    return nn.Sequential(
        nn.Linear(FEATURES, 8),
        nn.BatchNorm1d(8),
        nn.Tanh(),
        nn.Dropout(dropout),
        nn.Linear(8, CLASSES),
    )


def batch(_number=0, rows=ROWS):
    """Fresh random inputs [rows, 6] and labels [rows]."""
    return torch.randn(rows, FEATURES), torch.randint(0, CLASSES, (rows,))


def busy(x, size=128, times=3):
    """Work that keeps a runner busy for a while: returns [size, size], a function of x's values."""
    matrix = torch.ones(size, size) * 0.01 + x.reshape(-1)[0] * 0.001
    for _ in range(times):
        matrix = torch.tanh(matrix @ matrix)
    return matrix


def train(net, optimizer, x, labels):
    """One plain training step; returns the loss."""
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x), labels)
    loss.backward()
    optimizer.step()
    return loss
