"""A transformer with top-2 mixtures of experts (Shazeer et al. 2017, arXiv 1701.06538)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class MixtureOfExperts(nn.Module):
    """Sends each token to its two best experts and mixes their outputs.

    load   tokens that each expert has had so far, counted in Python
    balance_loss   of the last forward: small when all experts are used equally
    """

    def __init__(self, hidden: int, experts: int):
        super().__init__()
        self.router = nn.Linear(hidden, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.GELU(), nn.Linear(2 * hidden, hidden))
            for _ in range(experts)
        )
        self.load = [0] * experts
        self.balance_loss = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, -2)
        probabilities = self.router(tokens).softmax(dim=-1)
        weights, chosen = probabilities.topk(2, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == index)
            if len(rows) == 0:
                continue
            mixed = expert(tokens[rows]) * weights[rows, slots].unsqueeze(-1)
            out.index_add_(0, rows, mixed)
            self.load[index] += len(rows)
        share = F.one_hot(chosen[:, 0], len(self.experts)).float().mean(dim=0)
        self.balance_loss = len(self.experts) * (share * probabilities.mean(dim=0)).sum()
        return out.view_as(x)


class Block(nn.Module):
    """Causal self-attention and a mixture of experts, each behind a norm."""

    def __init__(self, hidden: int, heads: int, experts: int):
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = nn.MultiheadAttention(hidden, heads, batch_first=True)
        self.mixture_norm = nn.LayerNorm(hidden)
        self.mixture = MixtureOfExperts(hidden, experts)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        normed = self.attention_norm(x)
        attended, _ = self.attention(normed, normed, normed, attn_mask=mask, need_weights=False)
        x = x + attended
        return x + self.mixture(self.mixture_norm(x))


class MixtureModel(nn.Module):
    """Ids (batch, length) to scores (batch, length, vocabulary)."""

    def __init__(self, vocabulary: int, hidden: int, layers: int, heads: int, experts: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, experts) for _ in range(layers))
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)

    def balance_loss(self) -> torch.Tensor:
        """The balance losses of all layers, summed."""
        return sum(block.mixture.balance_loss for block in self.blocks)
