"""MusicTransformer (Huang et al. 2018, arXiv 1809.04281): attention with relative positions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class RelativeGlobalAttention(nn.Module):
    """Causal attention whose scores also depend on the distance of two tokens.

    length         of the last input; the skewing reads it
    last_weights   attention weights of the last forward, kept for inspection
    """

    def __init__(self, hidden: int, heads: int, longest: int):
        super().__init__()
        self.heads = heads
        self.longest = longest
        self.length = 0
        self.last_weights: torch.Tensor | None = None
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.distances = nn.Parameter(torch.randn(longest, hidden // heads) * 0.02)
        self.output = nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, self.length, hidden = x.shape
        query, key, value = (
            part(x).view(batch, self.length, self.heads, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        recent = self.distances[self.longest - self.length :]
        relative = self.skew(torch.einsum("bhld,md->bhlm", query, recent))
        scores = (query @ key.transpose(-1, -2) + relative) / math.sqrt(query.shape[-1])
        weights = scores.masked_fill(mask, float("-inf")).softmax(dim=-1)
        self.last_weights = weights.detach()
        mixed = (weights @ value).transpose(1, 2).reshape(batch, self.length, hidden)
        return self.output(mixed)

    def skew(self, scores: torch.Tensor) -> torch.Tensor:
        """Turns scores by distance into scores by position, (batch, heads, length, length)."""
        padded = F.pad(scores, (1, 0))
        batch, heads, rows, columns = padded.shape
        return padded.reshape(batch, heads, columns, rows)[:, :, 1:, :]


class Layer(nn.Module):
    """Relative attention and a feed-forward net, with norms after the residuals."""

    def __init__(self, hidden: int, heads: int, longest: int, dropout: float):
        super().__init__()
        self.attention = RelativeGlobalAttention(hidden, heads, longest)
        self.feed = nn.Sequential(
            nn.Linear(hidden, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden)
        )
        self.norm1 = nn.LayerNorm(hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.dropout(self.attention(x, mask)))
        return self.norm2(x + self.dropout(self.feed(x)))


class MusicTransformer(nn.Module):
    """Tokens (batch, length) to scores (batch, length, vocabulary).

    masks         causal masks made so far, by length
    tokens_seen   number of tokens that went through the model in training
    """

    def __init__(
        self, vocabulary: int, hidden: int, layers: int, heads: int, longest: int, dropout: float
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads, longest, dropout) for _ in range(layers))
        self.head = nn.Linear(hidden, vocabulary)
        self.scale = math.sqrt(hidden)
        self.masks: dict[int, torch.Tensor] = {}
        self.tokens_seen = 0

    def causal_mask(self, length: int) -> torch.Tensor:
        """True where a token must not look, (length, length)."""
        if length not in self.masks:
            self.masks[length] = torch.ones(length, length, dtype=torch.bool).triu(1)
        return self.masks[length]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = self.causal_mask(tokens.shape[1])
        if self.training:
            self.tokens_seen += tokens.numel()
        x = self.embedding(tokens) * self.scale
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)
