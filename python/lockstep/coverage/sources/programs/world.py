"""What each program has: a small net, its optimizer, a batch a call, a log and a box of values.

A program is a function `name(w: World) -> step` under `@program`; step(x, y) is what gets
decorated. What it leaves in w.log and w.box is compared after every call, beside its result, the
parameters and the random generators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from ...case import Run
from ...copying import copy_tree

BATCH, WIDTH, CLASSES = 6, 8, 4


@dataclass
class Entry:
    """A registered program."""

    build: Callable[[World], Callable]
    calls: int
    repeats: bool
    dense: bool
    drive: Callable[[Callable, tuple], Any] | None


ENTRIES: dict[str, Entry] = {}


def program(
    build: Callable | None = None,
    *,
    calls: int = 5,
    repeats: bool = True,
    dense: bool = True,
    drive: Callable | None = None,
) -> Callable:
    """Registers a program; repeats=False where its calls take different ways."""

    def register(build: Callable) -> Callable:
        name = build.__name__
        if name in ENTRIES and ENTRIES[name].build.__module__ != build.__module__:
            raise ValueError(f"two programs are called {name}")
        ENTRIES[name] = Entry(build, calls, repeats, dense, drive)
        return build

    return register if build is None else register(build)


class World:
    """A fresh copy of everything that a program may read and change."""

    def __init__(self) -> None:
        layers = [torch.nn.Linear(WIDTH, 16), torch.nn.Tanh(), torch.nn.Dropout(0.2)]
        self.net = torch.nn.Sequential(*layers, torch.nn.Linear(16, CLASSES))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.log: list[Any] = []
        self.box: dict[str, Any] = {}

    def train(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """One ordinary training step; the loss, attached."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        return loss

    def apply(self, loss: torch.Tensor) -> None:
        """The second half of a step: gradients and update."""
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def run(self, step: Callable, calls: int, drive: Callable | None) -> Run:
        batches = [
            (torch.randn(BATCH, WIDTH), torch.randint(0, CLASSES, (BATCH,))) for _ in range(calls)
        ]
        state = {"net": self.net, "optimizer": self.optimizer, "log": self.log, "box": self.box}
        return Run(step, lambda i: copy_tree(batches[i]), state, calls, drive=drive)
