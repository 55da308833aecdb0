"""Snippets of standard library source, labelled with the package that they come from."""

from __future__ import annotations

import numpy as np
import torch

from ..common.source import Vocabulary, source_of

# One class a package; the last file of each could serve for validation.
PACKAGES = (
    ("json", ("json/decoder", "json/encoder", "json/scanner")),
    ("email", ("email/message", "email/header", "email/parser")),
    ("asyncio", ("asyncio/tasks", "asyncio/queues", "asyncio/locks")),
    ("unittest", ("unittest/case", "unittest/suite", "unittest/runner")),
    ("logging", ("logging/__init__", "logging/handlers")),
    ("http", ("http/client", "http/cookies", "http/server")),
)


class SnippetBatches:
    """Random snippets of fixed or shorter length with a class token in front.

    next() gives tokens int64 (batch, length), mask bool (batch, length) and labels (batch,).
    """

    def __init__(self, vocabulary: int, length: int, batch: int, seed: int):
        texts = ["\n".join(source_of(file) for file in files) for _, files in PACKAGES]
        self.vocabulary = Vocabulary(texts, vocabulary, extra=("<cls>",))
        self.corpora = [np.array(self.vocabulary.encode(text), dtype=np.int64) for text in texts]
        self.length = length
        self.batch = batch
        self.random = np.random.default_rng(seed)

    def next(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        tokens = np.zeros((self.batch, self.length), dtype=np.int64)
        labels = self.random.integers(0, len(self.corpora), size=self.batch)
        tokens[:, 0] = self.vocabulary.ids["<cls>"]
        for row, label in zip(tokens, labels, strict=True):
            corpus = self.corpora[label]
            count = int(self.random.integers(self.length // 2, self.length))
            start = int(self.random.integers(0, len(corpus) - count))
            row[1 : count + 1] = corpus[start : start + count]
        ids = torch.from_numpy(tokens)
        return ids, ids != Vocabulary.padding, torch.from_numpy(labels)
