"""A child-sum TreeLSTM (Tai et al. 2015, arXiv 1503.00075)."""

from __future__ import annotations

import torch
from torch import nn

from .data import Tree


class ChildSumTreeLSTM(nn.Module):
    """Encodes a tree from its leaves to its root."""

    def __init__(self, kinds: int, hidden: int):
        super().__init__()
        self.hidden = hidden
        self.embedding = nn.Embedding(kinds, hidden)
        self.gates_x = nn.Linear(hidden, 3 * hidden)
        self.gates_h = nn.Linear(hidden, 3 * hidden, bias=False)
        self.forget_x = nn.Linear(hidden, hidden)
        self.forget_h = nn.Linear(hidden, hidden, bias=False)

    def forward(self, tree: Tree) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden state and memory of the root, (hidden,) each."""
        x = self.embedding(torch.tensor(tree.kind))
        gates = self.gates_x(x)
        if tree.children:
            states = [self(child) for child in tree.children]
            hiddens = torch.stack([h for h, _ in states])
            memories = torch.stack([c for _, c in states])
            gates = gates + self.gates_h(hiddens.sum(dim=0))
            forget = torch.sigmoid(self.forget_x(x) + self.forget_h(hiddens))
            kept = (forget * memories).sum(dim=0)
        else:
            kept = torch.zeros(self.hidden)
        enter, leave, new = gates.chunk(3)
        memory = kept + torch.sigmoid(enter) * torch.tanh(new)
        return torch.sigmoid(leave) * torch.tanh(memory), memory


class TreeClassifier(nn.Module):
    """Scores (classes,) of one tree."""

    def __init__(self, kinds: int, hidden: int, classes: int):
        super().__init__()
        self.encoder = ChildSumTreeLSTM(kinds, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, tree: Tree) -> torch.Tensor:
        hidden, _ = self.encoder(tree)
        return self.head(hidden)
