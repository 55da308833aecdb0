"""Autograd in its forms: functions, hooks, higher orders, accumulation, transforms."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .world import World, program


class _Clipped(torch.autograd.Function):
    log: list = []

    @staticmethod
    def forward(ctx, v, log):
        ctx.save_for_backward(v)
        ctx.log = log
        return v.clamp(-1, 1)

    @staticmethod
    def backward(ctx, g):
        (v,) = ctx.saved_tensors
        ctx.log.append(("backward", v.abs().max().item()))
        return g * (v.abs() < 1), None


@program
def custom_function(w: World):
    def step(x, y):
        loss = F.cross_entropy(_Clipped.apply(w.net(x) * 3, w.log), y)
        w.apply(loss)
        return loss

    return step


@program
def hooks_of_every_kind(w: World):
    w.net[0].register_forward_hook(lambda m, a, out: out * 1.1)
    w.net[1].register_forward_pre_hook(lambda m, a: (a[0] + 0.1,))
    w.net[3].register_full_backward_hook(lambda m, gi, go: w.log.append(go[0].sum().item()))
    w.net[0].weight.register_hook(lambda g: g * 0.5)
    bias = w.net[0].bias
    bias.register_post_accumulate_grad_hook(lambda p: w.log.append(p.grad.norm().item()))

    def step(x, y):
        h = w.net(x)
        h.register_hook(lambda g: w.log.append(g.abs().max().item()))
        h.retain_grad()
        loss = F.cross_entropy(h, y)
        w.apply(loss)
        return loss, h.grad

    return step


@program
def double_and_triple_backward(w: World):
    def step(x, y):
        v = x.clone().requires_grad_()
        out = (w.net(v) ** 3).sum()
        (g1,) = torch.autograd.grad(out, v, create_graph=True)
        (g2,) = torch.autograd.grad(g1.pow(2).sum(), v, create_graph=True)
        (g3,) = torch.autograd.grad(g2.sum(), v, retain_graph=True, allow_unused=True)
        loss = F.cross_entropy(w.net(x), y) + g1.norm()
        w.apply(loss)
        return loss, g2.detach(), g3

    return step


@program
def inner_loop_of_meta_learning(w: World):
    def step(x, y):
        names = dict(w.net.named_parameters())
        fast = names
        for _ in range(2):
            inner = F.cross_entropy(torch.func.functional_call(w.net, fast, x[:3]), y[:3])
            grads = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
            fast = {k: p - 0.1 * g for (k, p), g in zip(fast.items(), grads, strict=True)}
        loss = F.cross_entropy(torch.func.functional_call(w.net, fast, x[3:]), y[3:])
        w.apply(loss)
        return loss

    return step


@program
def accumulation(w: World):
    def step(x, y):
        w.optimizer.zero_grad(set_to_none=False)
        total = 0.0
        for a, b in zip(x.split(2), y.split(2), strict=True):
            loss = F.cross_entropy(w.net(a), b) / 3
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(w.net.parameters(), 0.5)
        w.optimizer.step()
        return total, norm

    return step


@program
def retained_graph(w: World):
    def step(x, y):
        w.optimizer.zero_grad()
        h = w.net(x)
        F.cross_entropy(h, y).backward(retain_graph=True)
        h.mean().backward(retain_graph=True)
        h.backward(torch.ones_like(h) * 0.1, inputs=[w.net[0].weight])
        w.optimizer.step()
        return h

    return step


@program
def saved_tensor_hooks(w: World):
    def step(x, y):
        def pack(t):
            w.log.append(tuple(t.shape))
            return t.clone()

        with torch.autograd.graph.saved_tensors_hooks(pack, torch.clone):
            loss = F.cross_entropy(w.net(x), y)
        w.apply(loss)
        return loss

    return step


@program(dense=False)
def functional_transforms(w: World):
    def step(x, y):
        f = lambda v: (torch.tanh(v) * v).sum()  # noqa: E731
        g = torch.func.vmap(torch.func.grad(f))(x)
        j = torch.func.jacrev(lambda v: v**2)(x[0, :3])
        _, t = torch.func.jvp(lambda v: v.sin(), (x,), (torch.ones_like(x),))
        with torch.autograd.forward_ad.dual_level():
            d = torch.autograd.forward_ad.make_dual(x, x)
            e = torch.autograd.forward_ad.unpack_dual(d.exp()).tangent
        return w.train(x + g, y), j, t, e

    return step


@program(repeats=False)
def frozen_and_thawed(w: World):
    def step(x, y):
        n = w.box["n"] = w.box.get("n", 0) + 1
        w.net[0].requires_grad_(n % 2 == 0)
        loss = w.train(x, y)
        w.net[0].requires_grad_(True)
        return loss, [p.grad is None for p in w.net.parameters()]

    return step


@program
def two_optimizers(w: World):
    critic = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    second = torch.optim.RMSprop(critic.parameters(), 0.01)
    w.box["critic"], w.box["second"] = critic, second

    def step(x, y):
        fake = w.net(x)
        second.zero_grad()
        real = F.one_hot(y, 4).float()
        (critic(fake.detach()).mean() - critic(real).mean()).backward()
        second.step()
        w.apply(-critic(fake).mean())
        return fake

    return step


@program
def batch_norm_and_schedule(w: World):
    norm = torch.nn.BatchNorm1d(8)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(w.optimizer, 10)
    w.box["norm"] = norm

    def step(x, y):
        loss = w.train(norm(x), y)
        schedule.step()
        norm.eval()
        with torch.no_grad():
            v = norm(x)
        norm.train()
        return loss, v, schedule.get_last_lr()

    return step
