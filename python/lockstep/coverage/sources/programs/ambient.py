"""Doors 2 and 3: random generators, and the state that kernels read while they run."""

from __future__ import annotations

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from .world import World, program


@program
def seeds_in_the_middle(w: World):
    def step(x, y):
        a = torch.rand(3)
        torch.manual_seed(7)
        h = F.dropout(x, 0.3)
        state = torch.get_rng_state()
        b = torch.randn(3)
        torch.set_rng_state(state)
        c = torch.randn(3)
        w.log.append(bool((b == c).all()))
        return w.train(h, y), a, b, torch.randperm(5), torch.multinomial(torch.ones(4), 2)

    return step


@program
def private_generators(w: World):
    g = torch.Generator().manual_seed(3)

    def step(x, y):
        a = torch.randn(6, 8, generator=g)
        state = g.get_state()
        b = torch.rand(4, generator=g)
        g.set_state(state)
        c = torch.rand(4, generator=g)
        g.manual_seed(int(b[0] * 100))
        w.log.append((g.initial_seed(), torch.initial_seed() >= 0))
        return w.train(x + a, y), b, c, torch.normal(0.0, 1.0, (2,), generator=g)

    return step


@program
def generator_methods_taken_early(w: World):
    g = torch.Generator()
    seed, get = g.manual_seed, g.get_state
    wrap = torch.from_numpy

    def step(x, y):
        seed(11)
        a = torch.rand(3, generator=g)
        w.log.append(get().sum().item())
        noise = wrap(np.full((6, 8), 0.5, np.float32))
        h = x + noise
        torch.default_generator.manual_seed(5)
        return w.train(h, y), a

    return step


@program
def draws_of_three_libraries(w: World):
    def step(x, y):
        h = x * random.random() + torch.from_numpy(np.random.rand(6, 8).astype(np.float32))
        with torch.random.fork_rng():
            torch.manual_seed(1)
            a = torch.rand(2)
        return (
            w.train(h, y),
            a,
            torch.rand(2),
            torch.empty(3).uniform_(),
            torch.bernoulli(x.sigmoid()),
        )

    return step


@program
def checkpoint_with_dropout(w: World):
    def step(x, y):
        x = x.requires_grad_()
        h = checkpoint(w.net, x, use_reentrant=False)
        g = checkpoint(w.net, x, use_reentrant=True)
        loss = F.cross_entropy(h + g, y)
        w.apply(loss)
        return loss

    return step


@program
def default_dtype(w: World):
    def step(x, y):
        a = torch.ones(3) * 0.1
        torch.set_default_dtype(torch.float64)
        try:
            b = torch.ones(3) * 0.1 + torch.arange(3) / 3
        finally:
            torch.set_default_dtype(torch.float32)
        return w.train(x, y), a, b, torch.arange(3) / 3

    return step


@program
def flush_denormal(w: World):
    def step(x, y):
        tiny = x * 1e-39
        a = tiny * 2
        torch.set_flush_denormal(True)
        try:
            b = tiny * 2
        finally:
            torch.set_flush_denormal(False)
        return w.train(x, y), a, b, tiny * 2

    return step


@program
def thread_count_and_determinism(w: World):
    big = torch.linspace(0, 1, 70_000)

    def step(x, y):
        before = torch.get_num_threads()
        a = big.sin().sum()
        torch.set_num_threads(1)
        b = big.sin().sum()
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(True)
        try:
            c = torch.zeros(4).index_add(0, y, x[:, 0])
            d = torch.empty(5)
        finally:
            torch.use_deterministic_algorithms(False)
        return w.train(x, y), a, b, c, d

    return step


@program
def precision_flags(w: World):
    a, b = torch.randn(64, 64), torch.randn(64, 64)

    def step(x, y):
        c = a @ b
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("medium")
        d = a @ b
        torch.set_float32_matmul_precision(before)
        with torch.backends.mkldnn.flags(enabled=False):
            e = F.conv1d(a[None], b[:, :, None])
        return w.train(x, y), c, d, e, F.conv1d(a[None], b[:, :, None])

    return step


@program
def attention_backends(w: World):
    q, k, v = (torch.randn(2, 2, 6, 8) for _ in range(3))

    def step(x, y):
        outs = [F.scaled_dot_product_attention(q + x, k, v, is_causal=True)]
        for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
            with sdpa_kernel(backend):
                outs.append(F.scaled_dot_product_attention(q + x, k, v))
        return w.train(x + outs[0][0, 0], y), outs

    return step


@program
def autocast(w: World):
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)

    def step(x, y):
        w.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            h = w.net(x)
            with torch.autocast("cpu", enabled=False):
                g = w.net(x)
        loss = F.cross_entropy(h.float() + g, y)
        scaler.scale(loss).backward()
        scaler.step(w.optimizer)
        scaler.update()
        return loss, h.dtype, scaler.get_scale()

    return step


@program
def grad_modes(w: World):
    def step(x, y):
        with torch.no_grad():
            a = w.net(x)
        with torch.inference_mode():
            b = w.net(x) * 2
        torch.set_grad_enabled(False)
        c = w.net(x)
        torch.set_grad_enabled(True)
        w.net.eval()
        d = w.net(x).detach()
        w.net.train()
        return w.train(x, y), a, b, c.requires_grad, d

    return step
