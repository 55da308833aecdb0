"""A BERT encoder with scores for the first and the last token of an answer."""

from __future__ import annotations

import torch
from torch import nn

from ..common.bert import Bert, BertConfig


class BertForSpans(nn.Module):
    """Gives two score tensors (batch, length), very low outside of the context."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.bert = Bert(config)
        self.spans = nn.Linear(config.hidden, 2)

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.bert(ids, mask, segments)
        scores = self.spans(hidden).masked_fill(segments.unsqueeze(-1) == 0, -1e4)
        first, last = scores.unbind(dim=-1)
        return first, last
