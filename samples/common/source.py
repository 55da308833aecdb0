"""The Python standard library's own source as text data."""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from functools import lru_cache
from pathlib import Path

TOKEN = re.compile(r"[A-Za-z_]\w*|\d+|\n|[^\s\w]")


@lru_cache(maxsize=64)
def source_of(module: str) -> str:
    """The source text of a standard library module or package file, such as "json/decoder"."""
    path = Path(sysconfig.get_path("stdlib")) / f"{module}.py"
    return path.read_text(encoding="utf-8")


def tokenize(text: str) -> list[str]:
    """Identifiers, numbers, line ends and single punctuation characters, in order."""
    return TOKEN.findall(text)


class Vocabulary:
    """The most frequent tokens of a corpus; 0 is padding, 1 stands for every other token.

    extra: names of special tokens that get the ids 2, 3, ...
    """

    padding = 0
    unknown = 1

    def __init__(self, texts: list[str], size: int, extra: tuple[str, ...] = ()):
        counts = Counter(token for text in texts for token in tokenize(text))
        words = ["<pad>", "<unk>", *extra]
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        words += [token for token, _ in ranked[: size - len(words)]]
        self.words = words
        self.ids = {word: index for index, word in enumerate(words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, text: str) -> list[int]:
        """The ids of the tokens of `text`."""
        return [self.ids.get(token, self.unknown) for token in tokenize(text)]
