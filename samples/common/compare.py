"""Bit-for-bit comparison of two states (see Program.state)."""

from __future__ import annotations

import math
import struct

import numpy as np
import torch

# Bits are compared as integers: 0.0 and -0.0 differ, equal NaNs do not.
_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def differences(eager: dict[str, object], other: dict[str, object]) -> list[str]:
    """One sentence for each name whose value differs; an empty list if all bits are equal."""
    found = [f"{name} exists in one copy only" for name in sorted(eager.keys() ^ other.keys())]
    for name in eager.keys() & other.keys():
        difference = _difference(eager[name], other[name])
        if difference:
            found.append(f"{name}: {difference}")
    return sorted(found)


def largest_distance(eager: dict[str, object], other: dict[str, object]) -> float:
    """How far floating values of the same name are apart, over eager's magnitude where that is
    above 1; infinite where only one of two is a NaN; 0.0 if there are none."""
    largest = 0.0
    for name in eager.keys() & other.keys():
        a, b = eager[name], other[name]
        if isinstance(a, float) and isinstance(b, float):
            a, b = torch.tensor(a), torch.tensor(b)
        if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
            continue
        if a.is_floating_point() and a.numel() > 0 and a.shape == b.shape:
            exact = a.detach().double()
            apart = (exact - b.detach().double()).abs() / exact.abs().clamp(min=1)
            same = (a == b) | (a.isnan() & b.isnan())
            largest = max(largest, apart.masked_fill(same, 0).nan_to_num(math.inf).max().item())
    return largest


def _difference(a: object, b: object) -> str | None:
    if type(a) is not type(b):
        return f"{type(a).__name__} and {type(b).__name__}"
    if isinstance(a, torch.Tensor):
        return _tensor_difference(a.detach(), b.detach())
    if isinstance(a, np.ndarray):
        same = a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        return None if same else "the arrays differ"
    if isinstance(a, float):
        return None if struct.pack("d", a) == struct.pack("d", b) else f"{a!r} and {b!r}"
    return None if a == b else f"{str(a)[:60]} and {str(b)[:60]}"


def _tensor_difference(a: torch.Tensor, b: torch.Tensor) -> str | None:
    if a.dtype != b.dtype or a.shape != b.shape or a.stride() != b.stride():
        return f"{_layout(a)} and {_layout(b)}"
    bits_a, bits_b = _bits(a), _bits(b)
    if torch.equal(bits_a, bits_b):
        return None
    count = int((bits_a != bits_b).sum())
    distance = (a.double() - b.double()).abs().max().item()
    return f"{count} of {bits_a.numel()} numbers differ, by up to {distance:.3g}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.dim() == 0:
        tensor = tensor.reshape(1)
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return tensor.view(_INTEGER_OF_SIZE[tensor.element_size()])


def _layout(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)} with strides {list(tensor.stride())}"
