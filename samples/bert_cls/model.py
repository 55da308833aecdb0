"""A BERT encoder with a pooler and a classification head."""

from __future__ import annotations

import torch
from torch import nn

from ..common.bert import Bert, BertConfig


class BertClassifier(nn.Module):
    """Class scores (batch, classes) from the hidden state of the first token."""

    def __init__(self, config: BertConfig, classes: int):
        super().__init__()
        self.bert = Bert(config)
        self.pooler = nn.Linear(config.hidden, config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden, classes)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.bert(tokens, mask, torch.zeros_like(tokens))
        pooled = torch.tanh(self.pooler(hidden[:, 0]))
        return self.classifier(self.dropout(pooled))
