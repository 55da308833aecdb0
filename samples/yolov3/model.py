"""YOLOv3 (Redmon and Farhadi 2018, arXiv 1804.02767) with a Darknet-53 of scaled width."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

RESIDUALS = (1, 2, 8, 8, 4)


class ConvNorm(nn.Sequential):
    """Convolution, batch norm and a leaky ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1):
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
            nn.BatchNorm2d(outputs),
            nn.LeakyReLU(0.1),
        )


class Residual(nn.Module):
    """1x1 and 3x3 convolutions with a shortcut."""

    def __init__(self, channels: int):
        super().__init__()
        self.reduce = ConvNorm(channels, channels // 2, 1)
        self.expand = ConvNorm(channels // 2, channels, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.expand(self.reduce(x))


class Darknet53(nn.Module):
    """Images to the feature maps of strides 8, 16 and 32, with 8, 16 and 32 times `width`
    channels."""

    def __init__(self, width: int):
        super().__init__()
        self.stem = ConvNorm(3, width, 3)
        self.stages = nn.ModuleList()
        channels = width
        for count in RESIDUALS:
            residuals = (Residual(2 * channels) for _ in range(count))
            self.stages.append(
                nn.Sequential(ConvNorm(channels, 2 * channels, 3, stride=2), *residuals)
            )
            channels *= 2

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = self.stem(x)
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps[2:]


class Neck(nn.Sequential):
    """Five alternating 1x1 and 3x3 convolutions."""

    def __init__(self, inputs: int, channels: int):
        super().__init__(
            ConvNorm(inputs, channels, 1),
            ConvNorm(channels, 2 * channels, 3),
            ConvNorm(2 * channels, channels, 1),
            ConvNorm(channels, 2 * channels, 3),
            ConvNorm(2 * channels, channels, 1),
        )


class YoloV3(nn.Module):
    """Images (batch, 3, size, size) to three predictions, coarse to fine.

    A prediction is (batch, anchors, height, width, 5 + classes): x and y in the cell, width and
    height against the anchor's, objectness and classes, all before their activations.
    """

    def __init__(self, width: int, classes: int, anchors: int = 3):
        super().__init__()
        self.anchors = anchors
        self.backbone = Darknet53(width)
        outputs = anchors * (5 + classes)
        channels = [16 * width, 8 * width, 4 * width]
        inputs = [32 * width, 16 * width + channels[0] // 2, 8 * width + channels[1] // 2]
        self.necks = nn.ModuleList(Neck(i, c) for i, c in zip(inputs, channels, strict=True))
        self.heads = nn.ModuleList(
            nn.Sequential(ConvNorm(c, 2 * c, 3), nn.Conv2d(2 * c, outputs, 1)) for c in channels
        )
        self.laterals = nn.ModuleList(ConvNorm(c, c // 2, 1) for c in channels[:-1])

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        predictions, upper = [], None
        for level, features in enumerate(reversed(self.backbone(images))):
            if upper is not None:
                upper = F.interpolate(self.laterals[level - 1](upper), scale_factor=2)
                features = torch.cat([upper, features], dim=1)
            upper = self.necks[level](features)
            out = self.heads[level](upper)
            batch, _, height, width = out.shape
            out = out.view(batch, self.anchors, -1, height, width)
            predictions.append(out.permute(0, 1, 3, 4, 2))
        return predictions
