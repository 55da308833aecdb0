"""Statements: loops, branches, context managers, assignments, imports, names."""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F

from .world import World, program

_TOTAL = 0.0


@program
def for_else_break_continue(w: World):
    def step(x, y):
        h = x
        for i in range(5):
            if i == 1:
                continue
            h = torch.tanh(h + i * 0.1)
            if i == 3:
                break
        else:
            h = h * 0
        for _ in ():
            pass
        else:
            h = h + 1
        return w.train(h, y)

    return step


@program(repeats=False)
def while_on_tensor(w: World):
    def step(x, y):
        count = 0
        h = x.abs()
        while h.sum() > 10:
            h = h * 0.7
            count += 1
        else:
            w.log.append(count)
        return w.train(h, y)

    return step


@program(repeats=False)
def if_elif_else_on_tensor(w: World):
    def step(x, y):
        m = x.mean()
        if m > 0.1:
            h, way = x * 2, "up"
        elif m < -0.1:
            h, way = x / 2, "down"
        else:
            h, way = x, "same"
        w.log.append(way)
        return w.train(h, y)

    return step


@program
def assignments(w: World):
    def step(x, y):
        a = b = x * 2
        c, (d, *rest) = x[0], (x[1], x[2], x[3])
        w.box["key"] = c + d
        w.box["attribute"] = value = a
        value[0, 0] = 5.0
        a += 1
        a -= b * 0.5
        a *= 2
        a /= 3
        a **= 2
        total: torch.Tensor = a.sum() + sum(r.sum() for r in rest)
        n: int
        n = 7
        n //= 2
        n %= 2
        n <<= 3
        n >>= 1
        n |= 1
        n &= 3
        n ^= 2
        m = torch.eye(x.shape[1])
        m @= m
        return w.train(x @ m, y), total, n

    return step


@program
def deletes(w: World):
    def step(x, y):
        parts = {"a": x + 1, "b": x - 1, "c": [x, x * 2]}
        h = parts["a"] * parts["b"]
        del parts["a"], parts["c"][0]
        loss = w.train(h, y)
        del h
        w.box["parts"] = parts
        return loss

    return step


@program
def with_statements(w: World):
    @contextlib.contextmanager
    def scaled(factor):
        w.log.append(("enter", factor))
        try:
            yield factor * 2
        finally:
            w.log.append(("leave", factor))

    class Suppress:
        def __enter__(self):
            return self

        def __exit__(self, kind, value, trace):
            w.log.append(kind.__name__ if kind else None)
            return kind is ZeroDivisionError

    def step(x, y):
        with scaled(1.5) as a, scaled(2.0) as (b), torch.no_grad():
            h = x * a + b
        with Suppress():
            h = h + 1
            1 / 0  # noqa: B018
            h = h * 0
        with Suppress(), torch.enable_grad():
            loss = w.train(h, y)
        return loss

    return step


@program(repeats=False)
def try_except_else_finally(w: World):
    def step(x, y):
        w.box["n"] = w.box.get("n", 0) + 1
        h = x
        try:
            h = h * 2
            if w.box["n"] % 2:
                raise KeyError(w.box["n"])
        except (KeyError, ValueError) as e:
            w.log.append(repr(e))
            h = h + 1
        except Exception:
            w.log.append("never")
        else:
            h = h - 1
        finally:
            w.log.append(float(h.sum()))
        return w.train(h, y)

    return step


@program
def try_star(w: World):
    def step(x, y):
        h = x
        try:
            h = h.exp()
            raise ExceptionGroup("two", [ValueError(1), TypeError("t")])
        except* ValueError as group:
            w.log.append(len(group.exceptions))
            h = h.log()
        except* TypeError:
            h = h + 0.5
        return w.train(h, y)

    return step


@program
def raise_from(w: World):
    def step(x, y):
        try:
            try:
                raise KeyError("inner")
            except KeyError as e:
                raise RuntimeError("outer") from e
        except RuntimeError as e:
            w.log.append((str(e), str(e.__cause__)))
        return w.train(x, y)

    return step


@program
def assert_import_global_nonlocal(w: World):
    count = 0

    def step(x, y):
        import math
        from math import sqrt as root

        global _TOTAL
        nonlocal count
        count += 1
        assert x.shape[1] == 8, "the width"
        loss = w.train(x * root(2) + math.pi, y)
        _TOTAL = loss.item()
        w.log.append((count, _TOTAL))
        return loss

    return step


@program
def class_in_step(w: World):
    def step(x, y):
        class Layer(torch.nn.Module):
            scale: float = 2.0

            def forward(self, v):
                return F.relu(v) * self.scale

        @torch.no_grad()
        def shift(v):
            return v + 1

        return w.train(Layer()(shift(x)), y)

    return step


@program(repeats=False)
def coin_flips(w: World):
    def step(x, y):
        h = x
        for i in range(4):
            if torch.rand(()) < 0.5:
                h = h * 1.1
            else:
                h = torch.sin(h) + i
        return w.train(h, y)

    return step
