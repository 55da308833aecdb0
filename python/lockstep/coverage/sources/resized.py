"""Every op of the operator database into an empty `out=` that it has to resize.

One case is one op: its first sample whose result is not empty. Resizing gives a tensor another
memory, so these ops are expected to run eagerly, under a name; they are kept apart for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..case import Case, Program
from ..snapshot import seed_all
from .ops import detached, out_programs


def cases() -> Iterator[Case]:
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        if op.supports_out:
            yield Case("resized", op.formatted_name, lambda op=op: _programs(op))


def _programs(op: Any) -> Iterator[Program]:
    dtypes = sorted(op.supported_dtypes("cpu"), key=str)
    dtype = torch.float32 if torch.float32 in dtypes else dtypes[0]
    seed_all(0)
    for i, sample in enumerate(op.sample_inputs("cpu", dtype)):
        parts = detached((sample.input, tuple(sample.args), dict(sample.kwargs)))
        found = list(out_programs(f"{i}", op, parts, resized=True))
        if found:
            yield found[0]
            return
