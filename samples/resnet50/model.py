"""ResNet with bottleneck blocks (He et al. 2015, arXiv 1512.03385), stride in the 3x3."""

from __future__ import annotations

import torch
from torch import nn

EXPANSION = 4


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution without bias, and batch norm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut around them."""

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        outputs = width * EXPANSION
        self.reduce = conv_norm(inputs, width, 1)
        self.middle = conv_norm(width, width, 3, stride)
        self.expand = conv_norm(width, outputs, 1)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = conv_norm(inputs, outputs, 1, stride)
        nn.init.zeros_(self.expand[1].weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.shortcut is None else self.shortcut(x)
        out = self.relu(self.reduce(x))
        out = self.relu(self.middle(out))
        out = self.expand(out)
        out += shortcut
        return self.relu(out)


class ResNet(nn.Module):
    """Images (batch, 3, height, width) to class scores (batch, classes).

    blocks: number of bottlenecks in each of the four stages; (3, 4, 6, 3) is ResNet-50.
    """

    def __init__(self, blocks: tuple[int, ...], width: int, classes: int):
        super().__init__()
        self.stem = nn.Sequential(conv_norm(3, width, 7, 2), nn.ReLU(inplace=True))
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        stages, inputs = [], width
        for index, count in enumerate(blocks):
            stage = []
            for position in range(count):
                stride = 2 if index > 0 and position == 0 else 1
                stage.append(Bottleneck(inputs, width << index, stride))
                inputs = (width << index) * EXPANSION
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stages(self.pool(self.stem(x)))
        return self.head(x.mean(dim=(2, 3)))
