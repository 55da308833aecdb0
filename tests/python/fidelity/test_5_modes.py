"""Point 5, second part: checkpoints, modes, accumulation, forward mode, other threads."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from cases import batch, busy, small_net
from expected_reasons import EXPECTED
from kit import Case, check
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

item = pytest.mark.item


@pytest.mark.parametrize(
    "reentrant",
    [
        pytest.param(True, marks=item("5.checkpoint-reentrant")),
        pytest.param(False, marks=item("5.checkpoint")),
    ],
)
def test_checkpoint_with_dropout(reentrant):
    def make(run):
        first, second = small_net(0.5), nn.Sequential(nn.Linear(3, 6), nn.Dropout(0.5))
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
        calls = []

        def block(x):
            calls.append(len(calls))
            return second(first(x))

        def step(x, labels):
            optimizer.zero_grad()
            x.requires_grad_()
            hidden = checkpoint(block, x, use_reentrant=reentrant)
            hidden = checkpoint(block, hidden, use_reentrant=reentrant)
            hidden = checkpoint_sequential(list(first), 2, hidden, use_reentrant=reentrant)
            loss = F.cross_entropy(hidden, labels)
            loss.backward()
            optimizer.step()
            return loss, x.grad

        return Case(step, batch, first=first, second=second, calls=calls)

    check(make)


@item("5.saved-tensor-hooks")
@pytest.mark.parametrize("kind", ["packing", "on cpu", "numpy"])
def test_saved_tensor_hooks(kind):
    def make(run):
        net, log = small_net(), []

        def pack(tensor):
            log.append(tuple(tensor.shape))
            return tensor.detach().numpy().copy() if kind == "numpy" else tensor.double()

        def unpack(packed):
            log.append("unpack")
            return torch.from_numpy(packed) if kind == "numpy" else packed.to(torch.float32)

        def step(x, labels):
            hidden = net[:2](x)
            with save_on_cpu() if kind == "on cpu" else saved_tensors_hooks(pack, unpack):
                out = net[4](torch.tanh(hidden) * hidden.sigmoid())
            out.square().mean().backward()
            return out

        return Case(step, batch, net=net, log=log)

    check(make, share=0.8)  # what numpy takes and gives back enters and leaves the graph


@item("5.no-grad")
def test_no_grad():
    def make(run):
        net = small_net()

        @torch.no_grad()
        def evaluate(x):
            return net(x).argmax(1)

        def step(x, labels):
            before = evaluate(x)
            with torch.no_grad():
                target = net(x).softmax(1)
                with torch.enable_grad():
                    inside = net(x)
                net[0].bias.mul_(0.9)
            loss = (net(x).softmax(1) - target).square().sum() + inside.sum()
            loss.backward()
            return before, target, loss

        return Case(step, batch, net=net)

    check(make)


@item("5.inference-mode")
def test_inference_mode():
    def make(run):
        net = small_net()

        def step(x, labels):
            with torch.inference_mode():
                target = net(x).softmax(1)
                target.add_(1)
                view = target[1:]
                with torch.inference_mode(False):
                    usual = net(x)
            loss = (usual + target.clone()).square().sum()
            loss.backward()
            return target, view, loss, torch.is_inference_mode_enabled()

        return Case(step, batch, net=net)

    check(make)


@item("5.set-grad-enabled")
def test_set_grad_enabled():
    def make(run):
        net = small_net()

        def step(x, labels, enabled):
            torch.set_grad_enabled(enabled)
            out = net(x)
            torch.set_grad_enabled(True)
            with torch.set_grad_enabled(not enabled):
                other = net[0](x)
            if out.requires_grad:
                out.sum().backward()
            return out, other, torch.is_grad_enabled()

        return Case(step, lambda n: (*batch(), n % 2 == 0), net=net)

    check(make, calls=7)


@item("5.anomaly-mode")
def test_anomaly_mode():
    def make(run):
        net = small_net()

        def step(x, labels, is_bad):
            with torch.autograd.set_detect_anomaly(True):
                out = net(x).square()
                root = (out * (0 if is_bad else 1)).sum().sqrt()
                (root * root.new_zeros(()) if is_bad else root).backward()
            return out

        return Case(step, lambda n: (*batch(), n in (2, 5)), net=net)

    with pytest.warns(UserWarning, match="Anomaly|Error detected"):
        shots = check(make, calls=8, raises=(RuntimeError,), share=0.7)  # anomaly mode reads values
    assert ["error" in shot for shot in shots] == [n in (2, 5) for n in range(8)]


@item("5.gradient-accumulation")
@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradient_accumulation(set_to_none):
    def make(run):
        net = small_net()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)

        def step(x, labels):
            losses = []
            for part, part_labels in zip(x.split(2), labels.split(2), strict=True):
                loss = F.cross_entropy(net(part), part_labels) / 3
                loss.backward()
                losses.append(loss)
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
            return losses

        return Case(step, lambda n: batch(rows=6), net=net, optimizer=optimizer)

    check(make, calls=6)


@item("5.gradient-accumulation")
def test_gradients_accumulate_over_calls():
    def make(run):
        net = small_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x, labels, is_last):
            F.cross_entropy(net(x), labels).backward()
            kept = net[0].weight.grad
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
            return kept

        return Case(step, lambda n: (*batch(), n % 3 == 2), net=net)

    check(make, calls=9)


@item("5.forward-mode-ad")
def test_forward_mode_ad():
    def make(run):
        weight = torch.randn(6, 6)

        def step(x, labels):
            with forward_ad.dual_level():
                dual = forward_ad.make_dual(x, torch.ones_like(x))
                out = torch.tanh(dual @ weight).sum(1)
                value, tangent = forward_ad.unpack_dual(out)
                value, tangent = value.clone(), tangent.clone()
            return value, tangent, (x @ weight).sum()

        return Case(step, batch)

    check(make, reason=EXPECTED["forward-mode AD"])


@item("5.torch-func")
@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp", "jacrev", "per sample"])
def test_torch_func_transforms(transform):
    def make(run):
        weight = torch.randn(6, 3)

        def loss(w, x):
            return (x @ w).tanh().square().sum()

        def step(x, labels):
            before = busy(x)[0, :3]
            if transform == "grad":
                out = torch.func.grad(loss)(weight, x)
            elif transform == "vmap":
                out = torch.vmap(loss, in_dims=(None, 0))(weight, x)
            elif transform == "jvp":
                out = torch.func.jvp(lambda v: loss(weight, v), (x,), (torch.ones_like(x),))
            elif transform == "jacrev":
                out = torch.func.jacrev(lambda v: (v @ weight).sin())(x)
            else:
                out = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, x)
            return out, before

        return Case(step, batch)

    check(make, reason=EXPECTED["torch.func"])


@item("5.backward-from-another-thread")
def test_backward_called_from_another_thread():
    def make(run):
        net = small_net()

        def step(x, labels):
            loss = F.cross_entropy(net(x), labels) + busy(x).mean()
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
            return loss, net[0].weight.grad * 2

        return Case(step, batch, net=net)

    check(make, reason=EXPECTED["backward in another thread"])
