"""Real images that scikit-learn and scikit-image ship, as arrays, kept in memory."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

_COLOR_NAMES = ("astronaut", "chelsea", "coffee", "rocket", "hubble_deep_field", "retina")


@lru_cache(maxsize=1)
def photographs() -> tuple[np.ndarray, ...]:
    """Eight colour photographs as uint8 arrays of shape (height, width, 3), at least 256 wide."""
    from skimage import data
    from sklearn.datasets import load_sample_images

    images = list(load_sample_images().images)
    images += [getattr(data, name)() for name in _COLOR_NAMES]
    return tuple(np.ascontiguousarray(image[..., :3]) for image in images)


@lru_cache(maxsize=1)
def digits() -> tuple[np.ndarray, np.ndarray]:
    """1797 handwritten digits: float32 (1797, 8, 8) from 0 to 1, and int64 labels (1797,)."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return (data.images / 16.0).astype(np.float32), data.target.astype(np.int64)


def random_crop(image: np.ndarray, size: int, random: np.random.Generator) -> np.ndarray:
    """A square of `size` pixels from a random place of `image`, mirrored half of the time."""
    top = random.integers(0, image.shape[0] - size + 1)
    left = random.integers(0, image.shape[1] - size + 1)
    crop = image[top : top + size, left : left + size]
    return crop[:, ::-1] if random.random() < 0.5 else crop


def to_tensor(images: np.ndarray) -> torch.Tensor:
    """uint8 (batch, height, width, 3) to float32 (batch, 3, height, width) from -1 to 1."""
    tensor = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    return tensor.float().div_(127.5).sub_(1.0)


def scaled_digits(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The digits as float32 (1797, 1, size, size) from -1 to 1, and their labels (1797,)."""
    images, labels = digits()
    tensor = torch.from_numpy(images)[:, None] * 2 - 1
    if size != images.shape[-1]:
        tensor = torch.nn.functional.interpolate(tensor, size=(size, size), mode="bilinear")
    return tensor.contiguous(), torch.from_numpy(labels.copy())
