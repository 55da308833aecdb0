"""How far eager moves when each op rounds otherwise: the yardstick for numerics within tolerance.

A gradient that is nothing but rounding (the bias of attention's keys, say, whose exact gradient is
zero) and that Adam makes a full step has no right digits, in eager neither. So eager runs again,
several times, and after each op that Lockstep may round otherwise its results are moved by up to
one unit in the last place, at random. Where those runs part, the way that is judged may part as
far.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .snapshot import Leaves
from .ways import Eager

RUNS = 8
_FACTOR = 4.0  # of the largest distance seen among so many runs: it is a sample
_SCALAR_TOLERANCE = 1.3e-6  # of what was once a float32: torch.testing's for it
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|inf", re.IGNORECASE)


@cache
def _may_round_otherwise(op: Any, has_bfloat16: bool) -> bool:
    import lockstep

    schema = op._schema
    return lockstep._C.may_round_otherwise(schema.name, schema.overload_name, has_bfloat16)


def _body_in_python(op: Any) -> Callable | None:
    """Of an op that `torch.library.custom_op` made."""
    definition = OPDEFS.get(op._schema.name)
    return None if definition is None else definition._init_fn


class _Rounding(TorchDispatchMode):
    """Moves floating results of ops that Lockstep may round otherwise by up to one ulp."""

    def __init__(self, random: np.random.RandomState) -> None:
        super().__init__()
        self._random = random

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        body = _body_in_python(func)
        if body is not None:
            with self:  # the ops inside are Lockstep's, too
                return body(*args, **kwargs)
        out = func(*args, **kwargs)
        for tensor in tree_leaves(out):
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                continue
            if _may_round_otherwise(func, tensor.dtype is torch.bfloat16):
                self._move(tensor)
        return out

    def _move(self, tensor: torch.Tensor) -> None:
        signs = torch.from_numpy(self._random.randint(-1, 2, tuple(tensor.shape)))
        steps = signs.to(tensor.dtype) * torch.finfo(tensor.dtype).eps
        with torch.autograd._unsafe_preserve_version_counter(tensor):
            tensor.copy_(torch.where(torch.isfinite(tensor), tensor + tensor * steps, tensor))


class Moved(Eager):
    """Eager, with other last bits."""

    name = "moved"

    def __init__(self, seed: int) -> None:
        self._random = np.random.RandomState(seed)

    def around_call(self) -> AbstractContextManager:
        return _Rounding(self._random)


def _values(record: tuple | None) -> np.ndarray | None:
    """The floating numbers of a record; None where it holds none."""
    if record is None or not isinstance(record[-1], bytes):
        return None
    if record[0] == "float":
        return np.array(struct.unpack("<d", record[-1]))
    if record[0] == "complex":
        return np.array(struct.unpack("<dd", record[-1]))
    if record[0] in ("ndarray", "npscalar"):
        dtype = np.dtype(record[1])
        return np.frombuffer(record[-1], dtype).astype(float) if dtype.kind == "f" else None
    dtype = getattr(torch, str(record[0]).removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        return None
    if not (dtype.is_floating_point or dtype.is_complex):
        return None
    numbers = torch.frombuffer(bytearray(record[-1]), dtype=dtype) if record[-1] else torch.empty(0)
    numbers = torch.view_as_real(numbers) if dtype.is_complex else numbers
    return numbers.double().flatten().numpy()


def _tolerance(record: tuple, values: np.ndarray) -> np.ndarray:
    """torch.testing's, by the type; scalars of Python were tensors of float32 once."""
    dtype = getattr(torch, str(record[0]).removeprefix("torch."), torch.float32)
    relative, absolute = _SCALAR_TOLERANCE, 1e-5
    if isinstance(dtype, torch.dtype):
        relative, absolute = torch.testing._comparison.default_tolerances(dtype)
    return absolute + relative * np.abs(values)


def _is_spread_alike(distances: np.ndarray, moved: np.ndarray) -> bool:
    """Whether few, many and all elements are as near as they are in eager's own runs.

    Where a whole tensor is chaos (the gradient behind a batch norm over two values that are equal
    but for rounding), some element parts further than it happened to in so many runs.
    """
    shares = (0.25, 0.5, 0.75, 0.9, 0.99, 1)
    own = np.quantile(moved, shares, axis=1).max(axis=1)
    return bool(np.all(np.quantile(distances, shares) <= _FACTOR * own))


def _is_number_within(x: tuple, z: tuple, moved: list[tuple | None]) -> bool:
    a, b = _values(x), _values(z)
    if a is None or b is None or a.shape != b.shape or x[:-1] != z[:-1]:
        return False
    if a.size == 0:
        return True
    others = [v for v in map(_values, moved) if v is not None and v.shape == a.shape]
    with np.errstate(invalid="ignore"):
        spreads = np.abs(np.array(others or [a]) - a)
        beyond = np.maximum(np.abs(a - b) - _tolerance(x, a), 0)
    wild = ~np.isfinite(spreads).all(axis=0)  # eager has a number here and none there
    beyond[wild | (a == b) | (np.isnan(a) & np.isnan(b))] = 0
    spreads[:, wild] = 0
    largest = spreads.max(axis=0)
    near = beyond <= _FACTOR * np.maximum(largest, np.median(largest))
    return bool(near.all()) or _is_spread_alike(beyond, spreads)


def _is_text_within(x: tuple, z: tuple, moved: list[tuple | None]) -> bool:
    """The same words; and each number is as it is or one that no run of eager's repeats."""
    if len(x) != 2 or not isinstance(x[1], str) or not isinstance(z[1], str):
        return False
    if _NUMBER.split(x[1]) != _NUMBER.split(z[1]):
        return False
    numbers = [_NUMBER.findall(text) for text in (x[1], z[1])]
    others = [_NUMBER.findall(m[1]) for m in moved if m is not None and isinstance(m[1], str)]
    return all(
        a == b or any(len(o) != len(numbers[0]) or o[i] != a for o in others)
        for i, (a, b) in enumerate(zip(*numbers, strict=True))
    )


def is_within(x: tuple | None, z: tuple | None, moved: list[tuple | None]) -> bool:
    """Whether record z of a leaf is as near to eager's x as eager is to itself.

    `moved` are the records of the same leaf in the runs with other last bits. What is not a number
    (a shape, an integer, a path that only one has) has to be what eager or one of those has.
    """
    if any(z == m for m in moved):
        return True
    if x is None or z is None or x[0] != z[0]:
        return False
    return _is_number_within(x, z, moved) or _is_text_within(x, z, moved)


def move(run: Callable[[Eager], Any]) -> list[list[Leaves]]:
    """The leaves of all calls in several runs with other last bits; run(way) records one."""
    return [[call.leaves for call in run(Moved(seed)).calls] for seed in range(RUNS)]
