"""Copies of tensors that keep layout and aliasing, made of plain ops only.

`copy.deepcopy` reaches for the storage, which marks the original as exposed for good.
"""

from __future__ import annotations

from typing import Any

import torch


def _extent(t: torch.Tensor) -> int:
    if t.numel() == 0:
        return t.storage_offset()
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return t.storage_offset() + last + 1


def copy_tensor(t: torch.Tensor) -> torch.Tensor:
    """A leaf of its own memory with the same values, sizes, strides and offset as t."""
    plain = t.detach()
    if t.layout != torch.strided or t.is_quantized or t.is_nested or t.device.type == "meta":
        copy = plain.clone()
    elif t.is_conj() or t.is_neg():
        copy = _copy_lazy(plain)
    else:
        flat = plain.as_strided((_extent(plain),), (1,), 0).clone()
        copy = flat.as_strided(t.shape, t.stride(), t.storage_offset()).detach()
    if isinstance(t, torch.nn.Parameter):
        return torch.nn.Parameter(copy, t.requires_grad)
    return copy.requires_grad_(t.requires_grad)


def _copy_lazy(t: torch.Tensor) -> torch.Tensor:
    if t.is_neg():
        return torch._neg_view(copy_tensor(torch._neg_view(t)))
    return copy_tensor(t.conj()).conj()


def copy_tree(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """A copy of nested lists, tuples and dicts; the same tensor twice stays the same twice."""
    memo = {} if memo is None else memo
    if isinstance(value, torch.Tensor):
        if id(value) not in memo:
            memo[id(value)] = copy_tensor(value)
        return memo[id(value)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(copy_tree(v, memo) for v in value))
    if type(value) in (list, tuple):
        return type(value)(copy_tree(v, memo) for v in value)
    if type(value) is dict:
        return {k: copy_tree(v, memo) for k, v in value.items()}
    return value


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors of a tree, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors_in(v)]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors_in(v)]
    return []
