"""Generator and critic of a small convolutional GAN; the critic has no batch norm."""

from __future__ import annotations

import torch
from torch import nn


class Generator(nn.Module):
    """Noise (batch, noise) to images (batch, 1, size, size) from -1 to 1; size is 8, 16 or 32."""

    def __init__(self, noise: int, width: int, size: int):
        super().__init__()
        self.width = width
        self.start = nn.Linear(noise, 2 * width * 4 * 4)
        layers: list[nn.Module] = []
        channels = 2 * width
        for _ in range((size // 4).bit_length() - 1):
            layers += [
                nn.BatchNorm2d(channels),
                nn.ReLU(),
                nn.Upsample(scale_factor=2),
                nn.Conv2d(channels, width, 3, padding=1),
            ]
            channels = width
        layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 1, 3, padding=1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        x = self.start(noise).view(-1, 2 * self.width, 4, 4)
        return torch.tanh(self.layers(x))


class Critic(nn.Module):
    """Images (batch, 1, size, size) to unbounded scores (batch,)."""

    def __init__(self, width: int, size: int):
        super().__init__()
        layers: list[nn.Module] = []
        channels, outputs = 1, width
        while size > 4:
            layers += [nn.Conv2d(channels, outputs, 3, 2, padding=1), nn.LeakyReLU(0.2)]
            channels, outputs, size = outputs, outputs * 2, size // 2
        layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.LeakyReLU(0.2), nn.Flatten()]
        self.features = nn.Sequential(*layers)
        self.score = nn.Linear(outputs * size * size, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.score(self.features(images)).squeeze(1)
