"""DCGAN's generator and discriminator (Radford et al. 2015, arXiv 1511.06434)."""

from __future__ import annotations

import torch
from torch import nn


class Generator(nn.Module):
    """Noise (batch, noise, 1, 1) to images (batch, 1, size, size) from -1 to 1."""

    def __init__(self, noise: int, width: int, size: int):
        super().__init__()
        doublings = (size // 8).bit_length()
        channels = width << (doublings - 1)
        layers: list[nn.Module] = [
            nn.ConvTranspose2d(noise, channels, 4, 1, 0, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(True),
        ]
        for _ in range(doublings - 1):
            layers += [
                nn.ConvTranspose2d(channels, channels // 2, 4, 2, 1, bias=False),
                nn.BatchNorm2d(channels // 2),
                nn.ReLU(True),
            ]
            channels //= 2
        layers += [nn.ConvTranspose2d(channels, 1, 4, 2, 1, bias=False), nn.Tanh()]
        self.main = nn.Sequential(*layers)

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.main(noise)


class Discriminator(nn.Module):
    """Images (batch, 1, size, size) to probabilities of being real, (batch,)."""

    def __init__(self, width: int, size: int):
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(1, width, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
        ]
        channels = width
        for _ in range((size // 8).bit_length() - 1):
            layers += [
                nn.Conv2d(channels, channels * 2, 4, 2, 1, bias=False),
                nn.BatchNorm2d(channels * 2),
                nn.LeakyReLU(0.2, inplace=True),
            ]
            channels *= 2
        layers += [nn.Conv2d(channels, 1, 4, 1, 0, bias=False), nn.Sigmoid()]
        self.main = nn.Sequential(*layers)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.main(images).view(-1)


def initialize(module: nn.Module) -> None:
    """The paper's initial weights, for Module.apply."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)
