"""Trains a DCGAN in the manner of PyTorch's own example."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ..common.images import scaled_digits
from ..common.program import Program
from ..common.streams import seed_all
from .model import Discriminator, Generator, initialize

NOISE = 32
REAL_LABEL, FAKE_LABEL = 0.9, 0.0

# channels, image size (a power of two, at least 16), batch
SIZES = {
    "small": (8, 16, 8),
    "bench": (32, 32, 64),
}


def endless(loader: DataLoader):
    """Yields batches epoch after epoch."""
    while True:
        yield from loader


def make(size: str, seed: int) -> Program:
    """The program at size "small" or "bench"."""
    seed_all(seed)
    width, pixels, batch = SIZES[size]
    digits, labels = scaled_digits(pixels)
    data = TensorDataset(digits, labels)
    batches = endless(DataLoader(data, batch, shuffle=True, drop_last=True))
    generator, discriminator = Generator(NOISE, width, pixels), Discriminator(width, pixels)
    generator.apply(initialize)
    discriminator.apply(initialize)
    criterion = nn.BCELoss()
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    discriminator_optimizer = torch.optim.Adam(
        discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999)
    )
    log: list[tuple[float, ...]] = []

    def update_discriminator(real: torch.Tensor, fake: torch.Tensor) -> tuple[float, float]:
        discriminator.zero_grad()
        label = torch.full((batch,), REAL_LABEL)
        output = discriminator(real)
        loss_real = criterion(output, label)
        loss_real.backward()
        score = output.mean().item()
        label.fill_(FAKE_LABEL)
        loss_fake = criterion(discriminator(fake.detach()), label)
        loss_fake.backward()
        discriminator_optimizer.step()
        return (loss_real + loss_fake).item(), score

    def update_generator(fake: torch.Tensor) -> tuple[float, float]:
        generator.zero_grad()
        output = discriminator(fake)
        loss = criterion(output, torch.full((batch,), 1.0))
        loss.backward()
        generator_optimizer.step()
        return loss.item(), output.mean().item()

    def step(index: int) -> tuple[float, ...]:
        real, _ = next(batches)
        fake = generator(torch.randn(batch, NOISE, 1, 1))
        log.append(update_discriminator(real, fake) + update_generator(fake))
        return log[-1]

    return Program(
        "dcgan",
        step,
        {"generator": generator, "discriminator": discriminator},
        {"generator": generator_optimizer, "discriminator": discriminator_optimizer},
        values=lambda: {"log": log[-1:], "steps": len(log)},
    )
