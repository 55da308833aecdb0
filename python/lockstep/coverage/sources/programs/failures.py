"""Doors 4 and 8: errors that depend on values, errors that escape, warnings of kernels."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F

from .world import World, program


@program
def caught_errors_by_value(w: World):
    def attempt(name, fn):
        try:
            return fn()
        except Exception as e:
            w.log.append((name, type(e).__name__, str(e).splitlines()[0]))
            return None

    def step(x, y):
        h = x * 2
        attempt("index", lambda: h[torch.tensor([9])])
        attempt("gather", lambda: h.gather(1, y[:, None] + 50))
        attempt("embedding", lambda: F.embedding(y + 100, torch.ones(4, 2)))
        attempt("label", lambda: F.cross_entropy(h, y + 50))
        attempt("singular", lambda: torch.linalg.inv(torch.zeros(3, 3)))
        attempt("cholesky", lambda: torch.linalg.cholesky(-torch.eye(3)))
        attempt("probability", lambda: torch.multinomial(torch.zeros(3), 1))
        attempt("bernoulli", lambda: torch.bernoulli(h * 0 + 2))
        attempt("shape", lambda: h @ h)
        attempt("dtype", lambda: torch.dot(h[0], y.double()))
        attempt("item", lambda: h.item())
        attempt("bool", lambda: bool(h))
        attempt("one_hot", lambda: F.one_hot(y + 3, 2))
        attempt("scatter", lambda: torch.zeros(3).scatter(0, y + 8, 1.0))
        attempt("bincount", lambda: torch.bincount(y - 9))
        attempt("repeat", lambda: torch.repeat_interleave(x, y - 9, 0))
        good = attempt("good", lambda: h.gather(1, h.argmax(1, keepdim=True)))
        return w.train(h, y), good

    return step


@program
def escaping_error_by_value(w: World):
    def step(x, y):
        loss = w.train(x, y)
        w.log.append(loss.item())
        labels = y + 100
        w.net[0].weight.grad.zero_()
        F.cross_entropy(w.net(x), labels)
        w.log.append("never")
        w.net[0].weight.data.zero_()

    return step


@program
def error_in_the_middle_of_the_optimizer(w: World):
    def step(x, y):
        loss = F.cross_entropy(w.net(x), y)
        w.optimizer.zero_grad()
        loss.backward()
        with torch.no_grad():
            for i, p in enumerate(w.net.parameters()):
                p.sub_(p.grad, alpha=0.1)
                w.log.append(i)
                if i == 1:
                    torch.zeros(2)[torch.tensor(5)]

    return step


@program
def user_error_leaves_state(w: World):
    def step(x, y):
        w.box["seen"] = w.box.get("seen", 0) + 1
        with torch.no_grad():
            w.net[0].bias.add_(1)
        h = torch.rand(3)
        w.box["h"] = h
        raise ValueError(f"seen {w.box['seen']}")

    return step


@program
def error_in_backward(w: World):
    class Fragile(torch.autograd.Function):
        @staticmethod
        def forward(ctx, v):
            return v * 2

        @staticmethod
        def backward(ctx, g):
            w.log.append(g.sum().item())
            raise ArithmeticError("in backward")

    def step(x, y):
        w.optimizer.zero_grad()
        loss = F.cross_entropy(Fragile.apply(w.net(x)), y)
        try:
            loss.backward()
        except ArithmeticError as e:
            w.log.append(str(e))
        return w.train(x, y)

    return step


@program
def version_error(w: World):
    def step(x, y):
        h = w.net[0](x).exp()
        h.add_(1)
        try:
            h.sum().backward()
        except RuntimeError as e:
            w.log.append(str(e)[:60])
        return w.train(x, y)

    return step


@program
def kernel_warnings(w: World):
    def step(x, y):
        h = x[:1].std(0)
        torch.set_warn_always(True)
        try:
            one = torch.empty(3)
            torch.add(torch.ones(2, 2), 1, out=one)
            z = torch.complex(x, x).to(torch.float32)
        finally:
            torch.set_warn_always(False)
        return w.train(z, y), torch.isnan(h).all()

    return step


@program
def warnings_as_errors(w: World):
    def step(x, y):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                x[:1].std(0)
            except UserWarning as e:
                w.log.append(str(e)[:30])
            loss = w.train(x, y)
        warnings.warn("from the user", RuntimeWarning, stacklevel=1)
        return loss

    return step


@program
def keyboard_interrupt(w: World):
    def step(x, y):
        h = x * 2
        try:
            w.box["h"] = h
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            w.log.append("stopped")
        loss = w.train(h, y)
        if len(w.log) == 3:
            raise SystemExit(3)
        return loss

    return step


@program
def anomaly_mode(w: World):
    def step(x, y):
        v = x.clone().requires_grad_()
        with torch.autograd.detect_anomaly(check_nan=True):
            try:
                (v * 0).sqrt().sum().mul(0).sqrt().backward()
            except RuntimeError as e:
                w.log.append(str(e))
        return w.train(x, y)

    return step
