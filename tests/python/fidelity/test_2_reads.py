"""Point 2: every way to read a tensor, on placeholders, parameters, and views of either."""

from __future__ import annotations

import array
import contextlib
import copy
import ctypes
import io
import math
import pickle
import struct

import numpy as np
import pytest
import scipy.linalg
import scipy.special
import torch
from cases import busy
from kit import Case, check
from PIL import Image
from torch import nn

item = pytest.mark.item
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array"),
    pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad"),
]
NARROW = ("2.equal", "2.range-and-repeat")  # readers that may see the same in every call
TARGETS = ["placeholder", "parameter", "view of placeholder", "view of parameter"]


def _printed(value):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print(value, "and", value.sum())
    return out.getvalue()


def _branch_on_equality(tensor):
    if tensor == 2:
        return "two"
    return "other"


def _addressed(tensor):
    size = tensor.numel() * tensor.element_size()
    return ctypes.string_at(tensor.data_ptr(), size), tensor.untyped_storage().nbytes() > 0


def _through_storage(tensor):
    start = tensor.storage_offset() * tensor.element_size()
    return bytes(tensor.untyped_storage()[start : start + 8])


def _pickled(tensor):
    kept = pickle.loads(pickle.dumps(tensor))
    return kept, type(kept).__name__


def _saved(tensor):
    file = io.BytesIO()
    torch.save({"kept": tensor}, file)
    file.seek(0)
    return torch.load(file)


def _mapped(tensor, other):
    return tensor.clone().map_(other, lambda mine, theirs: mine * 2 - theirs)


def _in_image(tensor):
    image = Image.fromarray(np.asarray(tensor))
    return image.size, image.tobytes(), np.asarray(image.rotate(90)).sum()


# id of the item: (the reader, what it reads: "float" [2, 3] rows, or a 0-dim "scalar"/"index")
READERS = {
    "2.item": (lambda t: t.item(), "scalar"),
    "2.tolist": (lambda t: (t.tolist(), [v.tolist() for v in t]), "float"),
    "2.numpy": (lambda t: t.detach().numpy().copy(), "float"),
    "2.bool": (lambda t: (bool(t), not t, 1 if t else 2), "scalar"),
    "2.int": (lambda t: int(t), "scalar"),
    "2.float": (lambda t: float(t), "scalar"),
    "2.len": (lambda t: (len(t), len(t.nonzero()), len(t[t > 0])), "float"),
    "2.print": (_printed, "float"),
    "2.f-string": (lambda t: f"{t:.3f} {t!r} {t.item():.6e}", "scalar"),
    "2.repr": (lambda t: (repr(t), str(t)), "float"),
    "2.in": (lambda t: (t.max().item() in t, 77.0 in t, t.flatten()[0] in t), "float"),
    "2.equality-in-if": (_branch_on_equality, "index"),
    "2.index-of-a-list": (lambda t: ("a", "b", "c", "d")[t] + "wxyz"[t:], "index"),
    "2.array-protocol": (lambda t: (np.asarray(t.detach()), np.array(t.detach())), "float"),
    "2.dlpack": (lambda t: np.from_dlpack(t.detach()).copy(), "float"),
    "2.data-ptr": (_addressed, "float"),
    "2.untyped-storage": (_through_storage, "float"),
    "2.pickle": (_pickled, "float"),
    "2.deepcopy": (lambda t: copy.deepcopy(t.detach()), "float"),
    "2.torch-save": (_saved, "float"),
    "2.taken-by-numpy": (lambda t: np.stack([t.detach(), np.ones_like(t.detach())]), "float"),
    "2.taken-by-scipy": (
        lambda t: (scipy.special.expit(t.detach()), scipy.linalg.norm(t.detach())),
        "float",
    ),
    "2.torch-tensor": (
        lambda t: (
            torch.tensor([t[0, 0], t[1, 1]]),
            torch.as_tensor([[v.detach() for v in t[1]]]),
            t.new_tensor([t[0, 1], 2.0]),
            torch.Tensor([t[1, 0], t[1, 1]]),
        ),
        "float",
    ),
    "2.apply": (
        lambda t: (t.detach().clone().apply_(lambda v: v + 1), _mapped(t.detach(), t.detach())),
        "float",
    ),
    "2.storage-list": (
        lambda t: (list(t.detach().storage())[:5], t.untyped_storage().tolist()[:9]),
        "float",
    ),
    "2.math": (
        lambda t: (math.sqrt(t * t), round(t.item(), 3), complex(t), t // 2, pow(2, t)),
        "scalar",
    ),
    "2.struct-and-array": (
        lambda t: (struct.pack("2f", t[0, 0], t[1, 1]), array.array("f", t[0]).tobytes()),
        "float",
    ),
    "2.range-and-repeat": (lambda t: (list(range(t)), [0] * t, (4, 5, 6, 7)[:t]), "index"),
    "2.equal": (
        lambda t: (torch.equal(t, t + 0), torch.allclose(t, t * 2), t[0, 0].is_nonzero()),
        "float",
    ),
    "2.taken-by-pil": (_in_image, "image"),
}


class Targets(nn.Module):
    """Holds the parameters that the four kinds of targets need."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.randn(4, 3))
        self.whole = nn.Parameter(torch.zeros(4, 3, dtype=torch.int64), requires_grad=False)
        self.image = nn.Parameter(torch.zeros(4, 3, dtype=torch.uint8), requires_grad=False)

    def make(self, target, form, x):
        """A target with an update still pending. float: [3, 3] or [4, 3], scalar and index: []."""
        update = busy(x)[:4, :3] * x * 20
        if "placeholder" in target:
            made = {"index": update.abs().long() % 2 + 2, "image": update.abs().byte()}
            base = made.get(form, update)
            whole_base, part = base, base[1:]
        else:
            held = {"index": self.whole, "image": self.image}.get(form, self.rows)
            part = held[1:]
            with torch.no_grad():
                held.add_(update.abs().to(held.dtype))
                if form == "index":
                    held.remainder_(2).add_(2)
            whole_base = held
        if "view" in target:
            return part[0, 1] if form in ("scalar", "index") else part
        return whole_base.max() if form in ("scalar", "index") else whole_base


def _reading_case(read, target, form):
    def make(run):
        targets = Targets()

        def step(x):
            tensor = targets.make(target, form, x)
            value = read(tensor)
            return value, tensor, tensor.double() * 2

        return Case(step, lambda i: (torch.randn(4, 3),), targets=targets)

    return make


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [pytest.param(name, marks=item(name)) for name in READERS])
def test_reading(name, target):
    read, form = READERS[name]
    # a share of a half: the step is small beside what some readers run eagerly (printing, stacking)
    shots = check(_reading_case(read, target, form), calls=4, share=0.5)
    if name not in (
        "2.len",
        "2.equality-in-if",
        "2.bool",
        "2.in",
        "2.index-of-a-list",
        "2.int",
        *NARROW,
    ):
        assert len({repr(shot["result"][1]) for shot in shots}) > 1


@item("2.c-extension")
@pytest.mark.parametrize("target", TARGETS)
def test_c_extension_reads_the_raw_pointer(raw_pointer, target):
    def read(tensor):
        return raw_pointer.read(tensor.data_ptr(), tensor.numel() * tensor.element_size())

    shots = check(_reading_case(read, target, "float"))
    for shot in shots:
        _, read_bytes, tensor, _ = shot["result"]
        assert read_bytes == tensor["data"]


@item("2.c-extension")
@pytest.mark.parametrize("target", TARGETS)
def test_c_extension_writes_through_the_raw_pointer(raw_pointer, target):
    def read(tensor):
        raw_pointer.negate(tensor.data_ptr(), tensor.numel() * tensor.element_size())

    check(_reading_case(read, target, "float"))


@item("2.numpy-array-taken-earlier")
@pytest.mark.parametrize(
    "taken", ["before all calls", "in the call", "through DLPack", "by pointer"]
)
def test_numpy_array_read_after_optimizer_step(raw_pointer, taken):
    def make(run):
        layer = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
        kept = layer.weight.detach().numpy() if taken == "before all calls" else None
        address = layer.weight.data_ptr() if taken == "by pointer" else 0

        def step(x):
            alias = kept
            if taken == "in the call":
                alias = layer.weight.detach().numpy()
            if taken == "through DLPack":
                alias = np.from_dlpack(layer.weight.detach())
            optimizer.zero_grad()
            loss = layer(x).square().sum() + busy(x).mean()
            loss.backward()
            optimizer.step()
            if alias is None:
                return loss, raw_pointer.read(address, 72)
            return loss, alias.tobytes()

        return Case(step, lambda i: (torch.randn(5, 6),), layer=layer, optimizer=optimizer)

    for shot in check(make):
        assert shot["result"][2] == shot["state"]["layer"]["tensors"]["weight"]["data"]


@item("2.from-numpy-overwritten")
@pytest.mark.parametrize(
    "made", ["in the call", "before the call", "as_tensor", "frombuffer", "view"]
)
def test_buffer_overwritten_right_after_the_op_was_asked(made):
    def make(run):
        buffer = np.zeros((4, 3), np.float32)
        outside = torch.from_numpy(buffer)
        weight = nn.Parameter(torch.randn(3, 3))

        def tensor_on_buffer():
            if made == "in the call":
                return torch.from_numpy(buffer)
            if made == "as_tensor":
                return torch.as_tensor(buffer)
            if made == "frombuffer":
                return torch.frombuffer(buffer.data, dtype=torch.float32).reshape(4, 3)
            return outside[1:] if made == "view" else outside

        def step(values):
            buffer[:] = values
            before = busy(torch.from_numpy(values.copy()))[0, 0]
            x = tensor_on_buffer()
            asked = (x * before) @ weight
            buffer[:] = 5
            again = x @ weight
            buffer[:] = -7
            (asked * again).sum().backward()
            return asked, again, x

        draw = np.random.default_rng(4)
        return Case(
            step,
            lambda i: (draw.random((4, 3), np.float32),),
            weight=weight,
            buffer=buffer,
            outside=outside,
        )

    check(make)


@item("2.from-numpy-overwritten")
def test_tensor_written_while_numpy_looks_on():
    def make(run):
        buffer = np.zeros(6, np.float32)
        seen = []

        def step(x):
            target = torch.from_numpy(buffer)
            target.add_(busy(x)[0, :6] * x)
            seen.append(buffer.tobytes())
            target[1:3].mul_(2)
            buffer[0] = 1.5
            seen.append(buffer.copy())
            return (target * 3).sum()

        return Case(step, lambda i: (torch.randn(6),), buffer=buffer, seen=seen)

    check(make)


@item("2.tolist")
@pytest.mark.parametrize("view", ["conjugated", "negated"])
def test_reading_values_that_a_view_changes(view):
    """The numbers do not stand in memory: a read asks for the op that makes them."""

    def make(run):
        seen = []

        def step(x):
            complex_values = torch.complex(busy(x)[0, :6] * x, x).conj()
            values = complex_values if view == "conjugated" else complex_values.imag[1:]
            assert values.is_conj() or values.is_neg()
            seen.append(values.tolist())
            seen.append(values.reshape(2, -1)[1:].tolist() if values.numel() % 2 == 0 else 0)
            seen.append(values.numpy(force=True).copy())
            seen.append(
                (values[1].item(), list(values)[0].tolist(), repr(values), complex(values[2]))
            )
            seen.append(pickle.loads(pickle.dumps(values)))
            seen.append(torch.as_tensor(values[0]).resolve_neg() + 0)
            return values * 2

        return Case(step, lambda i: (torch.randn(6),), seen=seen)

    check(make)
