"""Windows of standard library source as token ids."""

from __future__ import annotations

import torch

from ..common.source import Vocabulary, source_of

FILES = ("argparse", "ast", "dataclasses", "difflib", "heapq", "inspect", "textwrap", "typing")


class SourceWindows:
    """next() gives inputs and targets, both int64 (batch, length), targets one token ahead."""

    def __init__(self, vocabulary: int, length: int, batch: int):
        texts = [source_of(file) for file in FILES]
        self.vocabulary = Vocabulary(texts, vocabulary)
        self.tokens = torch.tensor([id for text in texts for id in self.vocabulary.encode(text)])
        self.length = length
        self.batch = batch

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(self.tokens) - self.length, (self.batch,)).tolist()
        rows = torch.stack([self.tokens[start : start + self.length + 1] for start in starts])
        return rows[:, :-1], rows[:, 1:]
