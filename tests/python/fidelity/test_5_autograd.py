"""Point 5: autograd in all its forms."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from cases import batch, busy, small_net, train
from expected_reasons import EXPECTED
from kit import Case, check
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

item = pytest.mark.item


@item("5.custom-function")
def test_custom_function_with_side_effects_in_backward():
    def make(run):
        log, weight = [], nn.Parameter(torch.randn(6, 6))

        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, factor):
                ctx.save_for_backward(x)
                ctx.factor = factor
                log.append(("forward", x.sum().item()))
                return x * factor, x.relu()

            @staticmethod
            def backward(ctx, grad, grad_relu):
                (x,) = ctx.saved_tensors
                log.append(("backward", float(grad.norm()), ctx.needs_input_grad))
                return grad * ctx.factor + grad_relu * (x > 0), None

        class InPlace(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.mark_dirty(x)
                return x.mul_(3)

            @staticmethod
            @torch.autograd.function.once_differentiable
            def backward(ctx, grad):
                log.append("once")
                return grad * 3

        def step(x, labels):
            out, relu = Scaled.apply(x @ weight, len(log) % 3 + 1)
            out = InPlace.apply(out * 1)
            (out.square().mean() + relu.sum()).backward()
            return out, relu

        return Case(step, batch, weight=weight, log=log)

    shots = check(make, share=0.8)  # the items of the forward and the norm are read at once
    assert len(shots[-1]["state"]["log"]) == 1 + 3 * 5


@item("5.tensor-hooks")
def test_tensor_hooks():
    def make(run):
        net, log = small_net(), []
        handle = net[0].weight.register_hook(lambda grad: grad.clamp(-0.1, 0.1))

        def double(grad):
            log.append(grad.abs().max().item())
            return grad * 2

        def step(x, labels):
            hidden = net[0](x)
            inner = hidden.register_hook(double)
            hidden.register_hook(lambda grad: log.append(tuple(grad.shape)))
            out = net[1:](hidden)
            out.grad_fn.register_hook(lambda gi, go: log.append(len(gi)))
            out.grad_fn.register_prehook(lambda go: (go[0] * 1.5,))
            F.cross_entropy(out, labels).backward()
            inner.remove()
            if len(log) > 9:
                handle.remove()
            return out

        return Case(step, batch, net=net, log=log)

    check(make, calls=8)


@item("5.module-hooks")
def test_module_hooks():
    def make(run):
        net, log = small_net(), []
        net[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        net[2].register_forward_hook(lambda m, args, out: out + args[0].mean())
        net[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 0.5,))
        net[4].register_full_backward_pre_hook(lambda m, go: log.append(go[0].sum().item()))
        net[1].register_forward_hook(lambda m, a, out: log.append(float(out.detach().max())))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        return Case(lambda x, y: train(net, optimizer, x, y), batch, net=net, log=log)

    check(make)


@item("5.post-accumulate-hooks")
def test_post_accumulate_grad_hooks_step_the_optimizer_in_backward():
    def make(run):
        net, log = small_net(), []
        optimizers = {p: torch.optim.Adam([p], lr=0.01, foreach=False) for p in net.parameters()}

        def step_and_clear(parameter):
            optimizers[parameter].step()
            log.append(parameter.grad.sum().item())
            parameter.grad = None

        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(step_and_clear)

        def step(x, labels):
            loss = F.cross_entropy(net(x), labels)
            loss.backward()
            return loss

        return Case(step, batch, net=net, log=log, optimizers=list(optimizers.values()))

    check(make)


@item("5.retain-graph")
def test_retain_graph():
    def make(run):
        net = small_net()

        def step(x, labels):
            logits = net(x)
            loss = F.cross_entropy(logits, labels)
            loss.backward(retain_graph=True)
            logits.sum().backward(retain_graph=True)
            loss.backward()
            return loss

        return Case(step, batch, net=net)

    check(make)


@item("5.create-graph")
def test_create_graph_and_gradient_penalty():
    def make(run):
        net = small_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)

        def step(x, labels):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), labels)
            grads = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
            penalty = sum(g.square().sum() for g in grads)
            (loss + 0.1 * penalty).backward()
            optimizer.step()
            return loss, penalty

        return Case(step, batch, net=net)

    check(make)


@item("5.double-backward")
def test_double_and_triple_backward():
    def make(run):
        weight = nn.Parameter(torch.randn(6, 6))

        def step(x, labels):
            out = (x @ weight).tanh().prod(1).sum()
            (first,) = torch.autograd.grad(out, weight, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), weight, create_graph=True)
            third = torch.autograd.grad(second.sin().sum(), weight, retain_graph=True)
            second.sum().backward()
            return first, second, third

        return Case(step, batch, weight=weight)

    check(make)


@item("5.triple-backward-wgan-gp")
def test_wgan_gp():
    def make(run):
        critic = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.LayerNorm(8), nn.Linear(8, 1))
        generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
        critic_optimizer = torch.optim.Adam(critic.parameters(), betas=(0.0, 0.9))
        generator_optimizer = torch.optim.Adam(generator.parameters(), betas=(0.0, 0.9))

        def step(real, labels):
            fake = generator(torch.randn(5, 4))
            mix = torch.rand(5, 1)
            between = (mix * real + (1 - mix) * fake.detach()).requires_grad_()
            ones = torch.ones(5, 1)
            (slope,) = torch.autograd.grad(critic(between), between, ones, create_graph=True)
            penalty = (slope.norm(2, 1) - 1).square().mean()
            loss = critic(fake.detach()).mean() - critic(real).mean() + 10 * penalty
            critic_optimizer.zero_grad()
            loss.backward()
            critic_optimizer.step()
            generator_optimizer.zero_grad()
            (-critic(fake).mean()).backward()
            generator_optimizer.step()
            return loss, penalty

        return Case(
            step, batch, critic=critic, generator=generator, optimizers=[critic_optimizer, generator_optimizer]
        )

    check(make)


@item("5.maml")
def test_maml():
    def make(run):
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

        def adapt(weights, x, labels):
            out = torch.func.functional_call(net, weights, (x,))
            grads = torch.autograd.grad(
                F.cross_entropy(out, labels), list(weights.values()), create_graph=True
            )
            return {k: w - 0.1 * g for (k, w), g in zip(weights.items(), grads, strict=True)}

        def step(x, labels):
            optimizer.zero_grad()
            total = 0
            for task in range(2):
                weights = dict(net.named_parameters())
                for _ in range(2):
                    weights = adapt(weights, x + task, labels)
                total += F.cross_entropy(torch.func.functional_call(net, weights, (x,)), labels)
            total.backward()
            optimizer.step()
            return total

        return Case(step, batch, net=net, optimizer=optimizer)

    check(make)


@item("5.autograd-grad")
def test_autograd_grad():
    def make(run):
        net = small_net()
        spare = nn.Parameter(torch.ones(2))

        def step(x, labels):
            x.requires_grad_()
            logits = net(x)
            some = torch.autograd.grad(
                [logits.sum(), logits.square().mean()], [x, spare], allow_unused=True, retain_graph=True
            )
            zero = torch.autograd.grad(logits, spare, torch.ones(5, 3), materialize_grads=True, allow_unused=True)
            rows = torch.autograd.grad(logits[:2], x, torch.eye(6).reshape(6, 2, 3), is_grads_batched=True)
            return some, zero, rows

        return Case(step, batch, net=net)

    check(make, share=None)  # is_grads_batched goes through vmap, which may run eagerly


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
