"""Point 5: custom functions, hooks, and gradients of gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from cases import batch, small_net, train
from kit import Case, check
from torch import nn

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
            step,
            batch,
            critic=critic,
            generator=generator,
            optimizers=[critic_optimizer, generator_optimizer],
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
                [logits.sum(), logits.square().mean()],
                [x, spare],
                allow_unused=True,
                retain_graph=True,
            )
            zero = torch.autograd.grad(
                logits, spare, torch.ones(5, 3), materialize_grads=True, allow_unused=True
            )
            rows = torch.autograd.grad(
                logits[:2], x, torch.eye(6).reshape(6, 2, 3), is_grads_batched=True
            )
            return some, zero, rows

        return Case(step, batch, net=net)

    check(make, share=None)  # is_grads_batched goes through vmap, which may run eagerly
