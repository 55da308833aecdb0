"""Questions about standard library source: where is the body of the function with this name?"""

from __future__ import annotations

import ast
import bisect
import random
import re
from dataclasses import dataclass

import torch

from ..common.source import TOKEN, Vocabulary, source_of

FILES = ("argparse", "calendar", "difflib", "fractions", "shlex", "statistics", "textwrap")
QUESTION = 8  # tokens at most


@dataclass
class Function:
    """A function's name, the file that defines it, and its body as a range of file tokens."""

    name: str
    file: int
    first: int
    last: int


@dataclass
class Batch:
    """ids, segments (0 question, 1 context), mask (batch, length); first, last (batch,)."""

    ids: torch.Tensor
    segments: torch.Tensor
    mask: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor


def find_functions(text: str, file: int, longest: int) -> list[Function]:
    """All functions in `text` whose body has at most `longest` tokens."""
    starts = [match.start() for match in TOKEN.finditer(text)]
    line_starts = [0]
    for line in text.splitlines(keepends=True):
        line_starts.append(line_starts[-1] + len(line))
    functions = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            begin = line_starts[node.body[0].lineno - 1] + node.body[0].col_offset
            end = line_starts[node.end_lineno - 1] + node.end_col_offset
            first = bisect.bisect_left(starts, begin)
            last = bisect.bisect_left(starts, end) - 1
            if last - first < longest:
                functions.append(Function(node.name, file, first, last))
    return functions


class QuestionBatches:
    """next() gives a Batch; every context holds the whole answer."""

    def __init__(self, vocabulary: int, length: int, batch: int):
        texts = [source_of(file) for file in FILES]
        self.vocabulary = Vocabulary(texts, vocabulary, extra=("<cls>", "<sep>"))
        self.files = [self.vocabulary.encode(text) for text in texts]
        self.context = length - QUESTION - 3
        self.functions = [
            function
            for file, text in enumerate(texts)
            for function in find_functions(text, file, self.context // 2)
        ]
        self.length = length
        self.batch = batch

    def next(self) -> Batch:
        examples = [self.encode(function) for function in random.sample(self.functions, self.batch)]
        ids, segments, first, last = zip(*examples, strict=True)
        tokens = torch.tensor(ids)
        return Batch(
            tokens,
            torch.tensor(segments),
            tokens != Vocabulary.padding,
            torch.tensor(first),
            torch.tensor(last),
        )

    def encode(self, function: Function) -> tuple[list[int], list[int], int, int]:
        """Ids and segments of length `length`, and the answer's first and last position."""
        word_ids = self.vocabulary.ids
        words = [word for word in re.split(r"_+", function.name) if word][:QUESTION]
        question = [self.vocabulary.ids.get(word, Vocabulary.unknown) for word in words]
        ids = [word_ids["<cls>"], *question, word_ids["<sep>"]]
        segments = [0] * len(ids)
        earliest = max(0, function.last + 1 - self.context)
        start = random.randint(earliest, function.first)
        context = self.files[function.file][start : start + self.context]
        offset = len(ids) - start
        ids += [*context, word_ids["<sep>"]]
        segments += [1] * (len(ids) - len(segments))
        padding = [Vocabulary.padding] * (self.length - len(ids))
        return ids + padding, segments + padding, function.first + offset, function.last + offset
