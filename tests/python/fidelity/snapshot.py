"""Snapshots: everything a program could see of nested values, as plain Python values.

A tensor becomes its type, layout, autograd facts and bytes, and two numbers that tell which tensors
of one snapshot are the same object and which share a storage. The snapshot keeps what it saw alive
until it is done, so that no address is used twice.
"""

from __future__ import annotations

import struct

import numpy as np
import torch

_PLAIN = (str, bytes, int, bool, type(None), torch.dtype, torch.device, torch.layout, type)
_GRAPH_NODES = 64


class Snapshot:
    """One look at nested values. `take` may be called for several roots of one look."""

    def __init__(self):
        self._kept = []
        self._objects = {}
        self._storages = {}

    def take(self, value):
        """Returns plain values. Raises TypeError for what it has no way to compare."""
        if isinstance(value, (float, complex)):
            number = complex(value)
            return ("number", type(value).__name__, struct.pack("<dd", number.real, number.imag))
        if isinstance(value, _PLAIN):
            return value
        self._kept.append(value)
        for kind, taker in _TAKERS:
            if isinstance(value, kind):
                return taker(self, value)
        raise TypeError(f"a snapshot cannot compare a {type(value).__name__}: {value!r}")

    def _take_tensor(self, tensor):
        facts = self._take_layout(tensor)
        facts |= self._take_autograd(tensor)
        facts["object"] = self._objects.setdefault(id(tensor), len(self._objects))
        if tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_quantized:
            address = torch._C._storage_address(tensor)
            facts["storage"] = self._storages.setdefault(address, len(self._storages))
        facts["data"] = data_bytes(tensor)
        if (tensor.is_leaf or tensor.retains_grad) and tensor.grad is not None:
            facts["grad"] = self.take(tensor.grad)
        return facts

    def _take_layout(self, tensor):
        facts = {
            "type": type(tensor).__qualname__,
            "dtype": str(tensor.dtype),
            "shape": tuple(tensor.shape),
            "layout": str(tensor.layout),
            "device": str(tensor.device),
            "bits": (tensor.is_conj(), tensor.is_neg(), tensor.is_inference()),
        }
        if tensor.layout is torch.strided:
            facts["stride"] = tensor.stride()
            facts["offset"] = tensor.storage_offset()
        return facts

    def _take_autograd(self, tensor):
        return {
            "requires_grad": tensor.requires_grad,
            "is_leaf": tensor.is_leaf,
            "version": None if tensor.is_inference() else tensor._version,
            "graph": node_names(tensor.grad_fn),
        }

    def _take_module(self, module):
        named = {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
        }
        training = {name: part.training for name, part in module.named_modules()}
        return {
            "type": type(module).__qualname__,
            "tensors": {n: self.take(t) for n, t in named.items()},
            "training": training,
        }

    def _take_stateful(self, value):
        state = {k: v for k, v in value.state_dict().items() if not callable(v)}
        return {"type": type(value).__qualname__, "state": self.take(state)}

    def _take_generator(self, generator):
        return ("generator", data_bytes(generator.get_state()))

    def _take_array(self, array):
        return ("array", str(array.dtype), array.shape, array.strides, array.tobytes())

    def _take_mapping(self, mapping):
        items = [(self.take(key), self.take(value)) for key, value in mapping.items()]
        return {"type": type(mapping).__qualname__, "items": items}

    def _take_sequence(self, sequence):
        return [type(sequence).__qualname__, *(self.take(value) for value in sequence)]

    def _take_set(self, values):
        return [type(values).__qualname__, *sorted(repr(self.take(value)) for value in values)]


_TAKERS = (
    (torch.Tensor, Snapshot._take_tensor),
    (torch.nn.Module, Snapshot._take_module),
    (torch.optim.Optimizer, Snapshot._take_stateful),
    (torch.optim.lr_scheduler.LRScheduler, Snapshot._take_stateful),
    (torch.amp.GradScaler, Snapshot._take_stateful),
    (torch.Generator, Snapshot._take_generator),
    ((np.ndarray, np.generic), Snapshot._take_array),
    (dict, Snapshot._take_mapping),
    ((list, tuple), Snapshot._take_sequence),
    ((set, frozenset), Snapshot._take_set),
)


def data_bytes(tensor):
    """The elements' bytes in logical order, of a copy; sparse and quantized parts one by one."""
    with torch.no_grad():
        if tensor.is_meta:
            return None
        if tensor.layout is torch.sparse_coo:
            parts = (tensor._indices(), tensor._values())
            return (tensor.is_coalesced(), *(data_bytes(part) for part in parts))
        if tensor.layout is not torch.strided:
            parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
            return tuple(data_bytes(part) for part in parts)
        if tensor.is_quantized:
            return (tensor.q_scale(), tensor.q_zero_point(), data_bytes(tensor.int_repr()))
        copy = (
            tensor.detach().as_subclass(torch.Tensor).clone(memory_format=torch.contiguous_format)
        )
        copy = copy.resolve_conj().resolve_neg()
        copy = torch.view_as_real(copy) if copy.is_complex() else copy
        return copy.reshape(-1).view(torch.uint8).numpy().tobytes()


def node_names(node):
    """Class names of the first nodes of an autograd graph, breadth first."""
    names, queue, seen = [], [node] if node is not None else [], set()
    while queue and len(names) < _GRAPH_NODES:
        current = queue.pop(0)
        if current in seen:
            continue
        seen.add(current)
        names.append(type(current).__name__)
        queue += [parent for parent, _ in current.next_functions if parent is not None]
    return names


def differences(want, got, path="snapshot"):
    """The places where two snapshots part, as `path: eager ..., lockstep ...`, outermost first."""
    if type(want) is not type(got):
        return [f"{path}: eager {_short(want)}, lockstep {_short(got)}"]
    if isinstance(want, dict) and want.keys() == got.keys():
        pairs = [(f"{path}.{key}", want[key], got[key]) for key in want]
    elif isinstance(want, (list, tuple)) and len(want) == len(got):
        pairs = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(want, got, strict=True))]
    else:
        return [] if want == got else [f"{path}: eager {_short(want)}, lockstep {_short(got)}"]
    return [line for name, a, b in pairs for line in differences(a, b, name)]


def _short(value, limit=160):
    text = value.hex() if isinstance(value, bytes) else repr(value)
    return text if len(text) <= limit else text[:limit] + "..."
