"""Trains BERT to find answer spans; the step decodes and scores them in Python."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ..common.bert import BertConfig
from ..common.program import Program
from ..common.streams import seed_all
from .data import QuestionBatches
from .model import BertForSpans

LONGEST_ANSWER = 40
TOTAL_STEPS = 1000

# vocabulary, hidden, layers, heads, length, batch
SIZES = {
    "small": (500, 32, 2, 2, 48, 2),
    "bench": (4000, 256, 4, 4, 160, 6),
}


def decode(first: list[float], last: list[float]) -> tuple[int, int]:
    """The span with the best sum of scores that is neither empty nor too long."""
    best, span = float("-inf"), (0, 0)
    candidates = sorted(range(len(first)), key=first.__getitem__, reverse=True)[:5]
    for begin in candidates:
        for end in range(begin, min(begin + LONGEST_ANSWER, len(last))):
            if first[begin] + last[end] > best:
                best, span = first[begin] + last[end], (begin, end)
    return span


def overlap(predicted: tuple[int, int], answer: tuple[int, int]) -> float:
    """F1 of the predicted tokens, 0 to 1."""
    shared = min(predicted[1], answer[1]) - max(predicted[0], answer[0]) + 1
    if shared <= 0:
        return 0.0
    lengths = predicted[1] - predicted[0] + 1, answer[1] - answer[0] + 1
    return 2 * shared / sum(lengths)


def make(size: str, seed: int) -> Program:
    """The program at size "small" or "bench"."""
    seed_all(seed)
    words, hidden, layers, heads, length, batch_size = SIZES[size]
    batches = QuestionBatches(words, length, batch_size)
    model = BertForSpans(BertConfig(len(batches.vocabulary), hidden, layers, heads, length))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * max(0.0, 1 - step / TOTAL_STEPS)
    )
    scores = {"exact": 0, "f1": 0.0, "answers": 0}

    def evaluate(first: torch.Tensor, last: torch.Tensor, answers: list) -> None:
        for row_first, row_last, answer in zip(first.tolist(), last.tolist(), answers, strict=True):
            span = decode(row_first, row_last)
            scores["exact"] += span == answer
            scores["f1"] += overlap(span, answer)
            scores["answers"] += 1

    def step(index: int) -> torch.Tensor:
        batch = batches.next()
        first, last = model(batch.ids, batch.mask, batch.segments)
        loss = (F.cross_entropy(first, batch.first) + F.cross_entropy(last, batch.last)) / 2
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        answers = list(zip(batch.first.tolist(), batch.last.tolist(), strict=True))
        evaluate(first.log_softmax(-1), last.log_softmax(-1), answers)
        return loss

    return Program(
        "bert_qa", step, {"model": model}, {"optimizer": optimizer}, values=lambda: dict(scores)
    )
