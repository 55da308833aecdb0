"""Fine-tunes a small BERT; the step reads its metrics and acts on them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ..common.bert import BertConfig
from ..common.program import Program
from ..common.streams import seed_all
from .data import PACKAGES, SnippetBatches
from .model import BertClassifier

# vocabulary, hidden, layers, heads, length, batch
SIZES = {
    "small": (500, 32, 2, 2, 24, 4),
    "bench": (4000, 256, 4, 4, 128, 8),
}


@dataclass
class Metrics:
    """Running accuracy and a confusion matrix, kept in Python and numpy."""

    confusion: np.ndarray = field(
        default_factory=lambda: np.zeros((len(PACKAGES), len(PACKAGES)), dtype=np.int64)
    )
    loss: float = 0.0
    accuracy: float = 0.0
    improvements: int = 0

    def update(self, loss: float, predicted: np.ndarray, labels: np.ndarray) -> bool:
        """Adds a batch; true if it was at least as accurate as the batches before it."""
        np.add.at(self.confusion, (labels, predicted), 1)
        batch_accuracy = float((predicted == labels).mean())
        better = batch_accuracy >= self.accuracy
        self.accuracy = 0.8 * self.accuracy + 0.2 * batch_accuracy
        self.loss = 0.9 * self.loss + 0.1 * loss
        self.improvements += better
        return better


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, rate: float) -> None:
    """Moves the averaged parameters towards those of `model`."""
    for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(parameter, rate)


def make(size: str, seed: int) -> Program:
    """The program at size "small" or "bench"."""
    seed_all(seed)
    words, hidden, layers, heads, length, batch = SIZES[size]
    batches = SnippetBatches(words, length, batch, seed)
    config = BertConfig(len(batches.vocabulary), hidden, layers, heads, length)
    model = BertClassifier(config, len(PACKAGES))
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    metrics = Metrics()

    def step(index: int) -> torch.Tensor:
        tokens, mask, labels = batches.next()
        optimizer.zero_grad()
        logits = model(tokens, mask)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        predicted = logits.argmax(dim=-1).numpy()
        if metrics.update(loss.item(), predicted, labels.numpy()):
            update_average(average, model, rate=0.1)
        return loss

    return Program(
        "bert_cls",
        step,
        {"model": model, "average": average},
        {"optimizer": optimizer},
        values=lambda: vars(metrics).copy(),
    )
