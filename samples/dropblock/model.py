"""A residual net with DropBlock (Ghiasi et al. 2018, arXiv 1810.12890)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class DropBlock(nn.Module):
    """Drops square regions of a feature map (batch, channels, height, width).

    drop_prob is the share of features to drop and may be changed at any time.
    """

    def __init__(self, block_size: int):
        super().__init__()
        self.block_size = block_size
        self.drop_prob = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or self.drop_prob == 0.0:
            return x
        size = min(self.block_size, x.shape[2], x.shape[3])
        gamma = self.drop_prob / size**2
        centers = (torch.rand(x.shape[0], *x.shape[2:], device=x.device) < gamma).float()
        dropped = F.max_pool2d(centers[:, None], size, stride=1, padding=size // 2)
        if size % 2 == 0:
            dropped = dropped[:, :, :-1, :-1]
        kept = 1 - dropped
        return x * kept * (kept.numel() / kept.sum().clamp(min=1.0))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, drop: DropBlock | None):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.drop = drop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        if self.drop is not None:
            out = self.drop(out)
        out = self.norm2(self.conv2(out))
        if self.drop is not None:
            out = self.drop(out)
        return F.relu(out + self.shortcut(x))


class DropBlockNet(nn.Module):
    """Images (batch, 3, size, size) to class scores; DropBlock in the last two stages."""

    def __init__(self, width: int, blocks: int, classes: int):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        layers, inputs = [], width
        for stage in range(3):
            for position in range(blocks):
                stride = 2 if stage > 0 and position == 0 else 1
                drop = DropBlock(block_size=5) if stage > 0 else None
                layers.append(ResidualBlock(inputs, width << stage, stride, drop))
                inputs = width << stage
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)

    def set_drop_prob(self, probability: float) -> None:
        """Sets the share of dropped features in every DropBlock."""
        for module in self.modules():
            if isinstance(module, DropBlock):
                module.drop_prob = probability

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(F.relu(self.norm(self.stem(x))))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
