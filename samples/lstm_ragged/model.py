"""An LSTM cell from matrix products, run over a ragged batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Cell(nn.Module):
    """One step of an LSTM: x (batch, inputs), h and c (batch, hidden) to the next h and c."""

    def __init__(self, inputs: int, hidden: int):
        super().__init__()
        self.weight_x = nn.Parameter(torch.empty(inputs, 4 * hidden))
        self.weight_h = nn.Parameter(torch.empty(hidden, 4 * hidden))
        self.bias = nn.Parameter(torch.zeros(4 * hidden))
        nn.init.xavier_uniform_(self.weight_x)
        nn.init.orthogonal_(self.weight_h)
        with torch.no_grad():
            self.bias[hidden : 2 * hidden] = 1.0  # remember at first

    def forward(
        self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gates = x @ self.weight_x + h @ self.weight_h + self.bias
        enter, forget, new, leave = gates.chunk(4, dim=1)
        c = torch.sigmoid(forget) * c + torch.sigmoid(enter) * torch.tanh(new)
        return torch.sigmoid(leave) * torch.tanh(c), c


class RaggedLanguageModel(nn.Module):
    """Predicts each character of each line from the ones before it."""

    def __init__(self, characters: int, hidden: int):
        super().__init__()
        self.embedding = nn.Embedding(characters, hidden)
        self.cell = Cell(hidden, hidden)
        self.dropout = nn.Dropout(0.1)
        self.output = nn.Linear(hidden, characters)
        self.hidden = hidden

    def forward(self, lines: list[torch.Tensor]) -> torch.Tensor:
        """lines: int64 tensors, longest first. Returns the mean loss of a character."""
        h = torch.zeros(len(lines), self.hidden)
        c = torch.zeros(len(lines), self.hidden)
        scores, targets = [], []
        active = len(lines)
        for position in range(len(lines[0]) - 1):
            while len(lines[active - 1]) <= position + 1:
                active -= 1
            h, c = h[:active], c[:active]
            inputs = torch.stack([line[position] for line in lines[:active]])
            h, c = self.cell(self.embedding(inputs), h, c)
            scores.append(self.output(self.dropout(h)))
            targets.append(torch.stack([line[position + 1] for line in lines[:active]]))
        return F.cross_entropy(torch.cat(scores), torch.cat(targets))
