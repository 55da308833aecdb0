"""Point 2, second part: where a read may stand, and buffers of other owners."""

from __future__ import annotations

import array
import mmap

import numpy as np
import pytest
import torch
from cases import busy, small_net
from kit import Case, check
from torch import nn

item = pytest.mark.item
READS = {
    "2.item": lambda t: t.detach().sum().item(),
    "2.tolist": lambda t: t.detach().tolist(),
    "2.numpy": lambda t: t.detach().numpy().tobytes(),
    "2.float": lambda t: float(t.detach().sum()),
    "2.repr": lambda t: repr(t.detach()),
}


class Reading(torch.autograd.Function):
    """Reads its input in forward and its gradient in backward."""

    @staticmethod
    def forward(ctx, x, read, log):
        ctx.read, ctx.log = read, log
        log.append(read(x))
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        ctx.log.append(ctx.read(grad))
        return grad * 2, None, None


class AtDeath:
    """Reads a tensor when it dies."""

    def __init__(self, tensor, read, log):
        self.tensor, self.read, self.log = tensor, read, log

    def __del__(self):
        self.log.append(self.read(self.tensor))


def _place_in(place, net, read, log):
    """A step that reads in the given place; returns its loss."""

    def in_generator(x):
        for row in net[0](x):
            log.append(read(row))
            yield row.sum()

    def step(x):
        if place == "custom function":
            return Reading.apply(net[0](x), read, log).square().sum()
        hidden = net[0](x)
        if place == "tensor hook":
            hidden.register_hook(lambda grad: log.append(read(grad)))
        if place == "comprehension":
            log.extend([read(part) for part in hidden.split(2)])
        if place == "generator":
            return sum(in_generator(x))
        if place == "del":
            AtDeath(hidden * 3, read, log)
        if place == "finally":
            try:
                hidden = hidden.exp()
                raise KeyError("handled")
            except KeyError:
                hidden = hidden + 1
            finally:
                log.append(read(hidden))
        if place == "deep recursion":
            _descend(60, lambda: log.append(read(hidden)))
        if place == "sort key":
            rows = sorted(hidden, key=lambda row: row.sum().item())
            log.append(read(rows[0]))
        return hidden.square().sum()

    return step


def _descend(depth, action):
    return _descend(depth - 1, action) if depth else action()


@pytest.mark.parametrize("name", [pytest.param(name, marks=item(name)) for name in READS])
@pytest.mark.parametrize(
    "place",
    ["custom function", "tensor hook", "comprehension", "generator", "del", "finally"]
    + ["deep recursion", "sort key"],
)
def test_reading_in_a_place(place, name):
    def make(run):
        net, log = small_net(), []
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        inner = _place_in(place, net, READS[name], log)

        def step(x):
            optimizer.zero_grad()
            loss = inner(x * busy(x)[0, 0])
            loss.backward()
            optimizer.step()
            return loss

        return Case(step, lambda n: (torch.randn(5, 6),), net=net, log=log)

    shots = check(make, share=0.3)  # printing and reading row by row is most of what these do
    assert len(shots[-1]["state"]["log"]) > 5


def _owner(kind, tmp_path):
    """A buffer of 12 floats of another owner: (the tensor on it, a writable numpy view)."""
    if kind == "bytearray":
        raw = bytearray(48)
        return torch.frombuffer(raw, dtype=torch.float32), np.frombuffer(raw, np.float32)
    if kind == "array":
        raw = array.array("f", [0.0] * 12)
        return torch.frombuffer(raw, dtype=torch.float32), np.frombuffer(raw, np.float32)
    if kind == "shared memory":
        tensor = torch.zeros(12).share_memory_()
        return tensor, tensor.numpy()
    if kind == "file":
        path = tmp_path / "values"
        path.write_bytes(bytes(48))
        file = path.open("r+b")
        mapped = mmap.mmap(file.fileno(), 48)
        tensor = torch.from_file(str(path), shared=True, size=12, dtype=torch.float32)
        return tensor, np.frombuffer(mapped, np.float32)
    if kind == "dlpack":
        raw = np.zeros(12, np.float32)
        return torch.from_dlpack(raw), raw
    if kind == "storage":
        tensor = torch.zeros(12)
        return torch.empty(0).set_(tensor.untyped_storage(), 0, (12,)), tensor.numpy()
    tensor = torch.zeros(12)
    return tensor, np.asarray(memoryview(tensor.numpy()))


@item("2.from-numpy-overwritten")
@pytest.mark.parametrize(
    "kind", ["bytearray", "array", "shared memory", "file", "dlpack", "storage", "memoryview"]
)
def test_memory_of_another_owner_is_written_by_both_sides(kind, tmp_path):
    def make(run):
        folder = tmp_path / str(run.is_lockstep)
        folder.mkdir()
        tensor, outside = _owner(kind, folder)
        weight, seen = nn.Parameter(torch.randn(12)), []

        def step(values):
            outside[:] = values
            factor = busy(torch.ones(1))[0, 0]
            asked = tensor * factor + weight
            outside[:6] = -1
            tensor.add_(factor)
            seen.append(outside.tobytes())
            view = tensor[4:8]
            view.mul_(factor)
            outside[7] = 0.25
            again = (tensor * weight).sum()
            (again + asked.sum()).backward()
            return asked, again, outside.copy()

        draw = np.random.default_rng(4)
        return Case(step, lambda n: (draw.random(12, np.float32),), weight=weight, seen=seen)

    check(make, share=0.5)  # writes to memory of others complete before Python goes on
