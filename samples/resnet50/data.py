"""Random crops of the photographs; the label is the photograph's index."""

from __future__ import annotations

import numpy as np
import torch

from ..common.images import photographs, random_crop, to_tensor


class CropBatches:
    """next() gives images float32 (batch, 3, size, size) and labels int64 (batch,)."""

    def __init__(self, size: int, batch: int, seed: int):
        self.images = photographs()
        self.size = size
        self.batch = batch
        self.random = np.random.default_rng(seed)

    @property
    def classes(self) -> int:
        return len(self.images)

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        labels = self.random.integers(0, self.classes, size=self.batch)
        crops = [random_crop(self.images[label], self.size, self.random) for label in labels]
        return to_tensor(np.stack(crops)), torch.from_numpy(labels)
