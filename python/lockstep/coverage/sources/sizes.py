"""Every op of the operator database on one size after the other, at one place.

One case is one op with one type. Its program calls the op with all its samples, each also with a
row or a column less, in random order: ranks, sizes, strides, constants and numbers are others from
call to call, and some calls raise. So what is inferred of sizes never met before is compared with
what the op makes, and errors with where eager raises them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..case import Case, Program, Run
from ..copying import copy_tensor, copy_tree, tensors_in
from ..snapshot import is_plain, seed_all
from .ops import call_step, fresh, inplace_step

_DTYPES = (torch.float32, torch.int64)
_MOST_CALLS = 60
_READS_GAPS = {"lu_unpack"}  # reads pivots as if there were none: eager differs from itself


def cases() -> Iterator[Case]:
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        for dtype in _DTYPES:
            if dtype in op.supported_dtypes("cpu"):
                name = f"{op.formatted_name}/{str(dtype).removeprefix('torch.')}"
                yield Case("sizes", name, lambda op=op, dtype=dtype: _programs(op, dtype))


def _programs(op: Any, dtype: torch.dtype) -> Iterator[Program]:
    with_grad = dtype.is_floating_point and dtype in op.supported_backward_dtypes("cpu")
    seed_all(0)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=with_grad))
    plain = [(s.input, tuple(s.args), dict(s.kwargs)) for s in samples]
    gaps = (False,) if op.formatted_name in _READS_GAPS else (False, True)
    yield _program("plain", call_step(op.op, with_grad), plain, gaps)
    if op.inplace_variant is not None:
        kept = [parts for s, parts in zip(samples, plain, strict=True) if not s.broadcasts_input]
        yield _program("inplace", inplace_step(op.inplace_variant, with_grad), kept, gaps)


def _program(name: str, step: Callable, samples: list[tuple], gaps: tuple) -> Program:
    calls = [sized for parts in samples for sized in _sizes_of(parts, gaps)]
    random.Random(0).shuffle(calls)
    calls = calls[:_MOST_CALLS]
    dense = all(is_plain(t) for parts in calls for t in tensors_in(parts))

    def make() -> Run:
        return Run(fresh(step), lambda i: copy_tree(calls[i]), calls=len(calls))

    return Program(name, make, dense=dense, repeats=False)


def _sizes_of(parts: tuple, gaps: tuple) -> list[tuple]:
    if not all(is_plain(t) for t in tensors_in(parts)):
        return [parts]
    return [parts, _less(parts, 0, False), *(_less(parts, -1, gap) for gap in gaps)]


def _less(value: Any, dim: int, gap: bool) -> Any:
    """One less along a dim, of each tensor that has more there; with or without a gap in memory."""
    if isinstance(value, torch.Tensor):
        if value.dim() == 0 or value.shape[dim] < 2:
            return value
        view = value.detach().narrow(dim, 0, value.shape[dim] - 1)
        return copy_tensor(view if gap else view.contiguous()).requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(_less(item, dim, gap) for item in value)
    if type(value) is dict:
        return {key: _less(item, dim, gap) for key, item in value.items()}
    return value
