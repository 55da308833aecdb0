"""Bach chorales as token sequences: four voices an eighth, pitch, hold or rest."""

from __future__ import annotations

import random
from functools import lru_cache

import torch

CHORALES = ("bach/bwv66.6", "bach/bwv269", "bach/bwv10.7", "bach/bwv101.7", "bach/bwv104.6")
HOLD, REST = 0, 1
LOWEST, HIGHEST = 30, 90  # MIDI pitches
FIRST_PITCH = 2
VOCABULARY = FIRST_PITCH + HIGHEST - LOWEST
STEPS_A_QUARTER = 2


@lru_cache(maxsize=1)
def chorales() -> tuple[tuple[int, ...], ...]:
    """The tokens of each chorale, soprano to bass for each eighth in turn."""
    return tuple(encode(parse(name)) for name in CHORALES)


def parse(name: str):
    """The score of that name in music21's corpus, of its source.

    `corpus.parse` writes a copy into the temporary folder and reads it back, which breaks where
    two processes do so at once.
    """
    from music21 import converter, corpus

    reader = converter.Converter()
    reader.parseFileNoPickle(corpus.getWork(name))
    return reader.stream


def encode(score) -> tuple[int, ...]:
    """The tokens of a music21 score."""
    voices = [voice_tokens(part) for part in list(score.parts)[:4]]
    return tuple(token for column in zip(*voices, strict=False) for token in column)


def voice_tokens(part) -> list[int]:
    """One token an eighth: a pitch where a note starts, then holds; rests elsewhere."""
    flat = part.flatten()
    tokens = [REST] * int(flat.highestTime * STEPS_A_QUARTER)
    for note in flat.notes:
        pitch = max(note.pitches).midi
        first = int(note.offset * STEPS_A_QUARTER)
        last = min(int((note.offset + note.quarterLength) * STEPS_A_QUARTER), len(tokens))
        tokens[first:last] = [HOLD] * (last - first)
        tokens[first] = FIRST_PITCH + min(max(pitch, LOWEST), HIGHEST - 1) - LOWEST
    return tokens


class ChoraleBatches:
    """next() gives int64 inputs and targets (batch, length); length is one of `lengths`."""

    def __init__(self, lengths: tuple[int, ...], batch: int):
        self.pieces = [torch.tensor(tokens) for tokens in chorales()]
        self.lengths = lengths
        self.batch = batch

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        length = random.choice(self.lengths)
        rows = []
        for _ in range(self.batch):
            piece = random.choice(self.pieces)
            start = random.randrange((len(piece) - length - 1) // 4) * 4
            rows.append(transpose(piece[start : start + length + 1], random.randint(-3, 3)))
        tokens = torch.stack(rows)
        return tokens[:, :-1], tokens[:, 1:]


def transpose(tokens: torch.Tensor, semitones: int) -> torch.Tensor:
    """Moves all pitches; holds and rests stay."""
    moved = (tokens + semitones).clamp(FIRST_PITCH, VOCABULARY - 1)
    return torch.where(tokens >= FIRST_PITCH, moved, tokens)
