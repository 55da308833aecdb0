"""A residual net with a stochastic down-sampling point (Kuen et al. 2018, arXiv 1801.11335)."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import nn

RATIOS = (0.5, 0.75)


class PreActivationBlock(nn.Module):
    """Norm, ReLU and convolution, twice, with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.norm1(x))
        shortcut = x if self.shortcut is None else self.shortcut(out)
        out = self.conv1(out)
        out = self.conv2(F.relu(self.norm2(out)))
        return out + shortcut


class SDPointNet(nn.Module):
    """Images (batch, 3, size, size) to class scores (batch, classes)."""

    def __init__(self, width: int, blocks: int, classes: int):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        layers, inputs = [], width
        for stage in range(3):
            for position in range(blocks):
                stride = 2 if stage > 0 and position == 0 else 1
                layers.append(PreActivationBlock(inputs, width << stage, stride))
                inputs = width << stage
        self.blocks = nn.ModuleList(layers)
        self.norm = nn.BatchNorm2d(inputs)
        self.head = nn.Linear(inputs, classes)
        self.point = -1
        self.ratio = 1.0

    def draw_point(self) -> None:
        """Chooses the block after which to down-sample, or none, and the ratio."""
        self.point = random.randrange(-1, len(self.blocks))
        self.ratio = random.choice(RATIOS) if self.point >= 0 else 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.draw_point()
        x = self.stem(x)
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index == self.point:
                size = [max(1, round(side * self.ratio)) for side in x.shape[2:]]
                x = F.adaptive_avg_pool2d(x, size)
        x = F.relu(self.norm(x))
        return self.head(x.mean(dim=(2, 3)))
