"""Snapshots of everything a program can reach, and the first difference between two of them.

A snapshot copies: it must not expose a storage (no `numpy()`, `data_ptr()` or `untyped_storage()`
on a live tensor), because an exposed storage is treated differently by what is tested here.
"""

import random

import numpy as np
import torch

IGNORED = []  # parts of paths that are not compared: to look behind a difference that is known


class Walk:
    """Flattens values into a list of (path, what) that can be compared with `==`."""

    def __init__(self):
        self.found = []
        self.tensors = []
        self.seen = {}
        self.alive = []  # an id stands for one object only as long as the object lives

    def add(self, path, what):
        self.found.append((path, what))

    def value(self, path, value):
        if isinstance(value, (torch.Tensor, list, dict)) or hasattr(value, "__dict__"):
            if id(value) in self.seen:
                self.add(path, f"same object as {self.seen[id(value)]}")
                return
            self.seen[id(value)] = path
            self.alive.append(value)
        if isinstance(value, torch.Tensor):
            self.tensor(path, value)
        elif isinstance(value, np.ndarray):
            self.add(path, ("array", value.dtype.str, value.shape, value.strides, value.tobytes()))
        elif isinstance(value, (float, np.floating)):
            self.add(path, (type(value).__name__, np.float64(value).tobytes(), repr(value)))
        elif isinstance(value, (list, tuple)):
            self.add(path, (type(value).__name__, len(value)))
            for index, item in enumerate(value):
                self.value(f"{path}[{index}]", item)
        elif isinstance(value, dict):
            self.add(path, ("dict", [k if isinstance(k, (str, int, float)) else 0 for k in value]))
            for index, item in enumerate(value.values()):
                self.value(f"{path}.values()[{index}]", item)
        elif isinstance(value, torch.Generator):
            self.add(path, ("generator", value.get_state().numpy().tobytes()))
        elif isinstance(value, torch.optim.Optimizer):
            self.value(f"{path}.groups", [dict(group, params=0) for group in value.param_groups])
            self.value(f"{path}.state", dict(value.state))
        elif isinstance(value, torch.nn.Module):
            self.value(f"{path}.parameters", dict(value.named_parameters()))
            self.value(f"{path}.buffers", dict(value.named_buffers()))
            self.add(path, repr(value))
        elif callable(value):
            self.add(path, type(value).__name__)
        elif hasattr(value, "__dict__"):
            for name, item in vars(value).items():
                self.value(f"{path}.{name}", item)
        else:
            self.add(path, repr(value))

    def tensor(self, path, tensor):
        shares = [name for name, other in self.tensors if torch._C._is_alias_of(tensor, other)]
        self.tensors.append((path, tensor))
        is_leaf, node = origin_of(tensor)
        layout = (str(tensor.dtype), tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
        self.add(f"{path} layout", layout)
        self.add(f"{path} shares memory with", shares[:1])
        self.add(f"{path} requires_grad, is_leaf, grad_fn", (tensor.requires_grad, is_leaf, node))
        self.add(f"{path} version", tensor._version)
        self.add(f"{path} bits", bits(tensor))
        if is_leaf and tensor.requires_grad:
            self.value(f"{path}.grad", tensor.grad)


def origin_of(tensor):
    """Whether it is a leaf, and the name of its autograd node; for a view that may not have one,
    what PyTorch says of it.
    """
    try:
        return tensor.is_leaf, type(tensor.grad_fn).__name__ if tensor.requires_grad else ""
    except RuntimeError as error:
        return False, str(error)


def bits(tensor):
    """The values as (bytes, text, type): the bytes decide, the text is for the reader."""
    with torch.no_grad():
        copy = (
            tensor.detach()
            .resolve_conj()
            .resolve_neg()
            .clone(memory_format=torch.contiguous_format)
        )
        text = "" if copy.numel() > 64 else str(copy.tolist())
        data = copy.reshape(-1).view(torch.uint8).numpy().tobytes()
        return data, text, str(tensor.dtype).removeprefix("torch.")


def rng_states():
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": repr(np.random.get_state()),
        "random": random.getstate(),
    }


def snapshot(values):
    """A list of (path, what) for a dict of values; shares nothing with them."""
    walk = Walk()
    for name, value in values.items():
        walk.value(name, value)
    for name, state in rng_states().items():
        walk.add(f"{name} random state", state)
    return walk.found


def are_near(left, right, tolerance):
    """Whether two entries hold floating numbers that agree, relative to the largest of them."""
    if not isinstance(left, tuple) or not isinstance(right, tuple):
        return False
    if left[0] == right[0] == "array" and left[1:4] == right[1:4] and left[1] in ("<f4", "<f8"):
        left, right = ((side[4], "", np.dtype(side[1]).name) for side in (left, right))
    if len(left) != 3:
        return False
    if isinstance(left[0], bytes):
        if left[2] != right[2] or left[2] not in ("float32", "float64", "complex64", "complex128"):
            return False
        a, b = (np.frombuffer(side[0], dtype=side[2]) for side in (left, right))
    elif left[0] == right[0] and str(left[0]).startswith("float"):
        a, b = (np.frombuffer(side[1], dtype="float64") for side in (left, right))
    else:
        return False
    if a.shape != b.shape:
        return False
    finite = np.abs(a[np.isfinite(a)])
    scale = max(1.0, float(finite.max(initial=0)))
    return np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def first_difference(eager, other, tolerance=None):
    """None, or a sentence that names the first path that differs and shows both sides."""
    for (path, left), (other_path, right) in zip(eager, other, strict=False):
        if any(part in path for part in IGNORED):
            continue
        if path != other_path:
            return f"path differs: eager has {path}, lockstep has {other_path}"
        if left != right and not (tolerance and are_near(left, right, tolerance)):
            return f"{path} differs:\n  eager    {show(left)}\n  lockstep {show(right)}"
    if len(eager) != len(other):
        return f"eager has {len(eager)} values, lockstep has {len(other)}"
    return None


def show(what):
    if isinstance(what, tuple) and what and isinstance(what[0], bytes):
        return what[1] or f"{len(what[0])} bytes"
    return str(what)[:600]
