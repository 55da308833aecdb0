"""Lines of standard library source as character ids, each of its own length."""

from __future__ import annotations

import random

import torch

from ..common.source import source_of

FILES = ("bisect", "calendar", "fractions", "heapq", "statistics", "textwrap")
CHARACTERS = 128  # ASCII codes; 0 ends a line


class LineBatches:
    """next() gives a list of int64 tensors, longest first, each a line with its end mark."""

    def __init__(self, shortest: int, longest: int, batch: int):
        text = "\n".join(source_of(file) for file in FILES)
        lines = {line.strip() for line in text.splitlines() if line.isascii()}
        self.lines = sorted(line for line in lines if shortest <= len(line) <= longest)
        self.batch = batch

    def next(self) -> list[torch.Tensor]:
        lines = random.sample(self.lines, self.batch)
        lines.sort(key=len, reverse=True)
        return [torch.tensor([*line.encode("ascii"), 0]) for line in lines]
