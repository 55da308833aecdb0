"""Turns whatever a call leaves behind into plain records that compare bit for bit.

Reading must not change what is read: only `clone` touches a live tensor (numpy or a storage would
expose it, and an exposed tensor is treated with more care than the one we want to test).
"""

from __future__ import annotations

import argparse
import array
import collections
import dataclasses
import random
import re
import struct
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

_MAX_DEPTH = 12
_ALIAS_LIMIT = 10  # aliasing is compared between the first tensors of a call only
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")

Leaves = dict[str, tuple]


def _bits(t: torch.Tensor) -> bytes:
    """The elements in logical order as bytes; t is a private dense copy."""
    if t.numel() == 0:
        return b""
    flat = torch.empty(t.numel(), dtype=t.dtype)
    flat.view(t.shape).copy_(t)
    return flat.view(torch.uint8).numpy().tobytes()


def _dense_record(t: torch.Tensor) -> tuple:
    plain = t.detach()
    flags = (plain.is_conj(), plain.is_neg())
    copy = plain.clone().resolve_conj().resolve_neg()
    layout = (str(t.dtype), tuple(t.shape), tuple(t.stride()), t.storage_offset(), flags)
    return (*layout, _bits(copy))


def _parts(t: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The dense tensors that a sparse or quantized tensor consists of."""
    t = t.detach()
    if t.is_quantized:
        yield "int_repr", t.int_repr()
    elif t.layout == torch.sparse_coo:
        yield "indices", t._indices()
        yield "values", t._values()
    elif t.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield "crow", t.crow_indices()
        yield "col", t.col_indices()
        yield "values", t.values()
    elif t.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield "ccol", t.ccol_indices()
        yield "row", t.row_indices()
        yield "values", t.values()
    elif t.layout == torch._mkldnn:
        yield "dense", t.to_dense()


def _grad_name(t: torch.Tensor) -> str:
    return type(t.grad_fn).__name__ if t.grad_fn is not None else ""


def is_plain(t: torch.Tensor) -> bool:
    """A dense CPU tensor of PyTorch's own type: what the graph is there for."""
    return (
        type(t) in (torch.Tensor, torch.nn.Parameter)
        and t.device.type == "cpu"
        and t.layout == torch.strided
        and not t.is_quantized
        and not t.is_nested
    )


def _tensor_records(path: str, t: torch.Tensor, leaves: Leaves, with_grad: bool) -> None:
    head = (type(t).__name__, str(t.device), str(t.layout), t.requires_grad, _grad_name(t))
    leaves[path] = ("tensor", *head)
    if t.device.type == "meta":
        leaves[path + ".meta"] = (str(t.dtype), tuple(t.shape), tuple(t.stride()))
    elif t.is_nested:
        for i, part in enumerate(t.detach().unbind()):
            leaves[f"{path}.part{i}"] = _dense_record(part)
    elif t.layout == torch.strided and not t.is_quantized:
        leaves[path + ".data"] = _dense_record(t)
    else:
        leaves[path + ".shape"] = (str(t.dtype), tuple(t.shape))
        for name, part in _parts(t):
            leaves[f"{path}.{name}"] = _dense_record(part)
    if with_grad and t.is_leaf and t.grad is not None:
        _tensor_records(path + ".grad", t.grad, leaves, False)


def _children(value: Any) -> Iterator[tuple[str, Any]] | None:
    """Named parts of a container; None for what is no container."""
    if isinstance(value, torch.nn.Module):
        return _module_children(value)
    if isinstance(value, torch.optim.Optimizer):
        return _optimizer_children(value)
    if isinstance(value, Mapping):
        return ((str(k), v) for k, v in value.items())
    if isinstance(value, torch.Size):
        return None
    if isinstance(value, (list, tuple, collections.deque)):
        return ((str(i), v) for i, v in enumerate(value))
    if isinstance(value, (types.SimpleNamespace, argparse.Namespace)):
        return iter(vars(value).items())
    if isinstance(value, torch.Generator):
        return iter([("state", value.get_state())])
    if isinstance(value, random.Random):
        return iter([("state", hash(value.getstate()))])
    if isinstance(value, np.random.RandomState):
        return iter([("state", value.get_state())])
    if isinstance(value, np.random.Generator):
        return iter([("state", value.bit_generator.state)])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ((f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value))
    return None


def _module_children(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    yield "training", module.training
    yield from module.named_parameters()
    yield from module.named_buffers()


def _optimizer_children(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    for i, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if key != "params":
                yield f"group{i}.{key}", value
        for j, p in enumerate(group["params"]):
            for key, value in optimizer.state.get(p, {}).items():
                yield f"state{i}.{j}.{key}", value


def _scalar_record(value: Any) -> tuple:
    if isinstance(value, float):
        return ("float", struct.pack("<d", value))
    if isinstance(value, complex):
        return ("complex", struct.pack("<dd", value.real, value.imag))
    if isinstance(value, np.ndarray):
        return ("ndarray", str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, np.generic):
        return ("npscalar", str(value.dtype), value.tobytes())
    if value is None or isinstance(value, (bool, int, str, bytes, torch.Size)):
        return (type(value).__name__, value)
    if isinstance(value, (set, frozenset)):
        return (type(value).__name__, sorted(map(repr, value)))
    if isinstance(value, (bytearray, array.array)):
        return (type(value).__name__, getattr(value, "typecode", ""), bytes(value))
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return ("torch", str(value))
    return ("object", type(value).__name__)


def freeze(tree: Any) -> Leaves:
    """All leaves of a tree as records, by path, and which of its first tensors share memory."""
    leaves: Leaves = {}
    tensors: list[tuple[str, torch.Tensor]] = []
    seen: set[int] = set()

    def visit(path: str, value: Any, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            if id(value) in seen:
                leaves[path] = ("seen",)
                return
            seen.add(id(value))
            tensors.append((path, value))
            _tensor_records(path, value, leaves, True)
            return
        children = _children(value)
        if children is None or depth > _MAX_DEPTH:
            leaves[path] = _scalar_record(value)
            return
        if id(value) in seen:
            return
        seen.add(id(value))
        leaves[path] = ("container", type(value).__name__)
        for name, child in children:
            visit(f"{path}.{name}", child, depth + 1)

    visit("", tree, 0)
    leaves["aliases"] = ("aliases", *_aliases(tensors))
    return leaves


def _aliases(tensors: list[tuple[str, torch.Tensor]]) -> list[str]:
    plain = [(p, t) for p, t in tensors if is_plain(t)][:_ALIAS_LIMIT]
    return [
        f"{p}={q}"
        for i, (p, a) in enumerate(plain)
        for q, b in plain[i + 1 :]
        if torch._C._is_alias_of(a, b)
    ]


def rng_state() -> tuple:
    """The states of the generators that a step may draw from: PyTorch's (of the CPU, and of each
    GPU that is in use), NumPy's and Python's."""
    torch_state = torch.get_rng_state().numpy().tobytes()
    numpy_state = np.random.get_state()
    on_gpus = tuple(state.numpy().tobytes() for state in gpu_rng_states())
    return (
        torch_state, numpy_state[1].tobytes(), numpy_state[2], hash(random.getstate()), *on_gpus
    )  # fmt: skip


def gpu_rng_states() -> list[torch.Tensor]:
    """Does not begin to use a GPU."""
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def clean(message: str) -> str:
    """A message without addresses, which differ from run to run."""
    return _ADDRESS.sub("0x*", message)


def differing(a: Leaves, b: Leaves) -> list[str]:
    """Paths of the leaves that differ, in order of appearance, those that only one has included."""
    return [k for k in {**a, **b} if a.get(k) != b.get(k)]


def _describe_bits(a: tuple, b: tuple) -> str:
    dtype = getattr(torch, a[0].removeprefix("torch."))
    raw = [np.frombuffer(r[-1], np.uint8).reshape(-1, dtype.itemsize) for r in (a, b)]
    where = np.flatnonzero((raw[0] != raw[1]).any(axis=1))
    x, y = (torch.frombuffer(bytearray(r[where[0]].tobytes()), dtype=dtype) for r in raw)
    return (
        f"{len(where)} of {len(raw[0])} elements differ in {a[0]}{list(a[1])}; at flat index "
        f"{where[0]} eager has {x.item()!r}, the other {y.item()!r}"
    )


def alike(a: tuple | None, b: tuple | None) -> bool:
    """Whether two records differ only in what a peer may change: grad_fn, bits within tolerance."""
    if a is None or b is None:
        return False
    if a[0] == b[0] == "tensor":
        return a[:-1] == b[:-1]
    values = isinstance(a[-1], bytes) and str(a[0]).startswith("torch.") and a[:-1] == b[:-1]
    if not values:
        return False
    dtype = getattr(torch, a[0].removeprefix("torch."))
    x, y = (torch.frombuffer(bytearray(r[-1]), dtype=dtype) for r in (a, b))
    try:
        torch.testing.assert_close(y, x, equal_nan=True)
    except AssertionError:
        return False
    return True


def describe(a: tuple | None, b: tuple | None) -> str:
    """One line about how two records of one leaf differ."""
    if a is None or b is None:
        return "only in " + ("the other" if a is None else "eager")
    both_data = isinstance(a[-1], bytes) and isinstance(b[-1], bytes)
    if both_data and a[:-1] == b[:-1] and str(a[0]).startswith("torch."):
        try:
            return _describe_bits(a, b)
        except (RuntimeError, TypeError, ValueError):
            return f"bits differ in {a[0]}{list(a[1])}"
    short = [tuple(x if not isinstance(x, bytes) else "<bits>" for x in r) for r in (a, b)]
    return f"eager has {short[0]}, the other {short[1]}"
