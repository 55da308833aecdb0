"""Detection scenes: handwritten digits placed on crops of real photographs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from .images import digits, photographs, random_crop, to_tensor


@dataclass
class Scenes:
    """A batch: images (batch, 3, size, size); for each image boxes and labels.

    boxes    float32 arrays (count, 4): left, top, right, bottom in pixels
    labels   int64 arrays (count,), digits from 0 to 9
    """

    images: torch.Tensor
    boxes: list[np.ndarray]
    labels: list[np.ndarray]


class SceneBatches:
    """next() gives Scenes with one to `most` digits an image, enlarged 2 to 4 times."""

    classes = 10

    def __init__(self, size: int, most: int, batch: int, seed: int):
        self.size = size
        self.most = most
        self.batch = batch
        self.random = np.random.default_rng(seed)

    def next(self) -> Scenes:
        scenes = [self.draw() for _ in range(self.batch)]
        images, boxes, labels = zip(*scenes, strict=True)
        return Scenes(to_tensor(np.stack(images)), list(boxes), list(labels))

    def draw(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One image as uint8 (size, size, 3), its boxes and labels."""
        all_images, all_labels = digits()
        photograph = photographs()[self.random.integers(len(photographs()))]
        image = random_crop(photograph, self.size, self.random).astype(np.float32)
        boxes: list[tuple[int, int, int, int]] = []
        labels: list[int] = []
        for _ in range(int(self.random.integers(1, self.most + 1))):
            scale = int(self.random.integers(2, 5))
            box = self.find_place(8 * scale, boxes)
            if box is None:
                continue
            chosen = int(self.random.integers(len(all_images)))
            self.paste(image, np.kron(all_images[chosen], np.ones((scale, scale))), box)
            boxes.append(box)
            labels.append(int(all_labels[chosen]))
        array = np.array(boxes, dtype=np.float32).reshape(-1, 4)
        return image.astype(np.uint8), array, np.array(labels, dtype=np.int64)

    def find_place(self, side: int, taken: list) -> tuple[int, int, int, int] | None:
        """A free square of `side` pixels, or None after ten attempts."""
        for _ in range(10):
            left, top = (int(v) for v in self.random.integers(0, self.size - side + 1, size=2))
            box = (left, top, left + side, top + side)
            if not any(overlap(box, other) for other in taken):
                return box
        return None

    def paste(self, image: np.ndarray, digit: np.ndarray, box: tuple[int, int, int, int]) -> None:
        """Paints the digit (values 0 to 1) in a random colour over the image, in place."""
        left, top, right, bottom = box
        color = self.random.integers(0, 256, size=3)
        region = image[top:bottom, left:right]
        alpha = digit[..., None]
        region[:] = region * (1 - alpha) + color * alpha


def overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    """Whether two boxes share a pixel."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
