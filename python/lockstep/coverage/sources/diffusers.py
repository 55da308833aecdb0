"""Models of the package diffusers, tiny and randomly initialised; one case a model, trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..case import Case, Run, one_program
from ..copying import copy_tree, tensors_in
from .diffusers_table import MODELS


def cases() -> Iterator[Case]:
    for name, (kind, config, inputs) in MODELS.items():
        yield one_program("diffusers", name, _maker(kind, config, inputs))


def _maker(kind: str, config: dict[str, Any], inputs: Any) -> Any:
    def make() -> Run:
        from diffusers import models

        model = getattr(models, kind)(**config)
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        batches = [inputs() for _ in range(2)]

        def step(batch: dict[str, Any]) -> Any:
            optimizer.zero_grad()
            out = model(**batch)
            out = out.to_tuple() if hasattr(out, "to_tuple") else out
            floats = [t for t in tensors_in(out) if t.is_floating_point() and t.requires_grad]
            loss = sum(t.pow(2).mean() for t in floats)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss, norm

        return Run(step, lambda i: (copy_tree(batches[i % 2]),), state=(model, optimizer))

    return make
