"""A BERT encoder (Devlin et al. 2018, arXiv 1810.04805), post-norm, with dropout."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class BertConfig:
    """Sizes of the encoder; all counts are per model, `dropout` is a probability."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    positions: int
    dropout: float = 0.1


class Embeddings(nn.Module):
    """Token, position and segment embeddings, summed and normalised."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.hidden, padding_idx=0)
        self.positions = nn.Embedding(config.positions, config.hidden)
        self.segments = nn.Embedding(2, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=1e-12)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        summed = self.tokens(tokens) + self.positions(positions) + self.segments(segments)
        return self.dropout(self.norm(summed))


class SelfAttention(nn.Module):
    """Multi-head attention, written out as in the paper's code."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.heads = config.heads
        self.query = nn.Linear(config.hidden, config.hidden)
        self.key = nn.Linear(config.hidden, config.hidden)
        self.value = nn.Linear(config.hidden, config.hidden)
        self.output = nn.Linear(config.hidden, config.hidden)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        shape = (batch, length, self.heads, hidden // self.heads)
        query = self.query(x).view(shape).transpose(1, 2)
        key = self.key(x).view(shape).transpose(1, 2)
        value = self.value(x).view(shape).transpose(1, 2)
        scores = query @ key.transpose(-1, -2) / math.sqrt(shape[-1]) + bias
        weights = self.dropout(scores.softmax(dim=-1))
        mixed = (weights @ value).transpose(1, 2).reshape(batch, length, hidden)
        return self.output(mixed)


class Layer(nn.Module):
    """Attention and a feed-forward net, each with a residual and a norm after it."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden, eps=1e-12)
        self.feed_forward = nn.Sequential(
            nn.Linear(config.hidden, 4 * config.hidden),
            nn.GELU(),
            nn.Linear(4 * config.hidden, config.hidden),
        )
        self.output_norm = nn.LayerNorm(config.hidden, eps=1e-12)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, bias)))
        return self.output_norm(x + self.dropout(self.feed_forward(x)))


class Bert(nn.Module):
    """The encoder: ids (batch, length) to hidden states (batch, length, hidden)."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.apply(_initialize)

    def forward(
        self, tokens: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor
    ) -> torch.Tensor:
        """mask is bool (batch, length), true where there is a token."""
        bias = torch.zeros(mask.shape, dtype=torch.float32).masked_fill(~mask, -1e9)
        bias = bias[:, None, None, :]
        x = self.embeddings(tokens, segments)
        for layer in self.layers:
            x = layer(x, bias)
        return x


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
