"""WGAN-GP (Gulrajani et al. 2017, arXiv 1704.00028): two critic updates, one of the generator."""

from __future__ import annotations

import torch
from torch import nn

from ..common.images import scaled_digits
from ..common.program import Program
from ..common.streams import seed_all
from .model import Critic, Generator

NOISE = 32
CRITIC_UPDATES = 2
PENALTY = 10.0

# channels, image size, batch
SIZES = {
    "small": (8, 8, 8),
    "bench": (24, 32, 32),
}


def gradient_penalty(critic: nn.Module, real: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
    """How far the critic's gradient norm is from 1 between real and fake images; a scalar."""
    mix = torch.rand(real.shape[0], 1, 1, 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    scores = critic(between)
    (gradient,) = torch.autograd.grad(
        scores, between, grad_outputs=torch.ones_like(scores), create_graph=True
    )
    return ((gradient.flatten(1).norm(2, dim=1) - 1) ** 2).mean()


def make(size: str, seed: int) -> Program:
    """The program at size "small" or "bench"."""
    seed_all(seed)
    width, pixels, batch = SIZES[size]
    digits, _ = scaled_digits(pixels)
    generator, critic = Generator(NOISE, width, pixels), Critic(width, pixels)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.0, 0.9))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.0, 0.9))

    def update_critic() -> torch.Tensor:
        real = digits[torch.randint(len(digits), (batch,))]
        with torch.no_grad():
            fake = generator(torch.randn(batch, NOISE))
        critic_optimizer.zero_grad()
        distance = critic(real).mean() - critic(fake).mean()
        loss = PENALTY * gradient_penalty(critic, real, fake) - distance
        loss.backward()
        critic_optimizer.step()
        return distance

    def update_generator() -> torch.Tensor:
        generator_optimizer.zero_grad()
        loss = -critic(generator(torch.randn(batch, NOISE))).mean()
        loss.backward()
        generator_optimizer.step()
        return loss

    def step(index: int) -> dict[str, torch.Tensor]:
        for _ in range(CRITIC_UPDATES):
            distance = update_critic()
        return {"distance": distance, "generator": update_generator()}

    return Program(
        "wgan_gp",
        step,
        {"generator": generator, "critic": critic},
        {"generator_optimizer": generator_optimizer, "critic_optimizer": critic_optimizer},
    )
