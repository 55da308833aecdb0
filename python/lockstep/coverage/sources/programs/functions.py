"""Functions: recursion, closures, methods, decorators, operators of classes, callbacks."""

from __future__ import annotations

import functools
import itertools
import operator

import torch

from .world import World, program


@program(repeats=False)
def recursion_on_trees(w: World):
    def grow(depth):
        if depth == 0 or torch.rand(()).item() < 0.2:
            return None
        return grow(depth - 1), grow(depth - 1)

    def fold(tree, x):
        if tree is None:
            return torch.tanh(x)
        left, right = tree
        return fold(left, x) * 0.5 + fold(right, x + 0.1)

    def step(x, y):
        return w.train(fold(grow(4), x), y)

    return step


@program
def mutual_recursion(w: World):
    def even(x, n):
        return x if n == 0 else odd(x + 1, n - 1)

    def odd(x, n):
        return x * 0 if n == 0 else even(x * 0.9, n - 1)

    def step(x, y):
        return w.train(even(x, 30), y)

    return step


@program
def closures(w: World):
    def counter():
        total = torch.zeros(())

        def add(v):
            nonlocal total
            total = total + v
            return total

        return add

    add = counter()

    def step(x, y):
        loss = w.train(x, y)
        return loss, add(loss.detach()), add(1)

    return step


@program
def operators_of_a_class(w: World):
    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

        def __add__(self, other):
            return Pair(self.a + other.a, self.b + other.b)

        def __mul__(self, k):
            return Pair(self.a * k, self.b * k)

        def __getitem__(self, i):
            return (self.a, self.b)[i]

        def __len__(self):
            return 2

        def __bool__(self):
            return bool(self.a.sum() > 0)

        def __eq__(self, other):
            return bool(torch.equal(self.a, other.a))

        def __iter__(self):
            yield self.a
            yield self.b

        def __contains__(self, v):
            return any(v is u for u in self)

        __hash__ = None

    def step(x, y):
        p = Pair(x, x * 2) + Pair(x, x) * 3
        w.log.append((len(p), bool(p), p == p, p.a in p))
        a, b = p
        return w.train(a + b * p[1], y)

    return step


@program
def descriptors_and_getattr(w: World):
    class Lazy:
        @property
        def scale(self):
            w.log.append("scale")
            return 2.0

        def __getattr__(self, name):
            return len(name)

        def __setattr__(self, name, value):
            w.log.append(name)
            object.__setattr__(self, name, value)

        @staticmethod
        def double(v):
            return v * 2

        @classmethod
        def name(cls):
            return cls.__name__

    def step(x, y):
        o = Lazy()
        o.last = x.sum().item()
        return w.train(Lazy.double(x) * o.scale + o.four, y), o.name()

    return step


@program
def library_functions(w: World):
    def step(x, y):
        h = functools.reduce(operator.add, [x * i for i in range(3)])
        for a, b in itertools.pairwise(list(h)):
            w.box["dot"] = torch.dot(a, b)
        rows = sorted(x, key=lambda r: r.sum().item())
        big = max(x, key=torch.norm)
        h = torch.stack(list(map(torch.sin, rows))) + big
        signs = list(filter(lambda v: v > 0, x[0]))
        for i, (a, b) in enumerate(zip(rows, reversed(rows), strict=True)):
            h[i] += a * b
        return w.train(h, y), len(signs), any(v > 1 for v in x[1]), all(v > -9 for v in x[1])

    return step


@program
def cached_function(w: World):
    @functools.lru_cache(maxsize=2)
    def table(n):
        w.log.append(("made", n))
        return torch.arange(n, dtype=torch.float32).sin()

    def step(x, y):
        return w.train(x + table(8), y)

    return step


@program(repeats=False)
def varying_operands(w: World):
    def step(x, y):
        n = w.box["n"] = w.box.get("n", 0) + 1
        a, b = x * 2, x + 1
        h = a if n % 2 else b
        g = torch.add(a, a) if n % 3 else torch.add(a, b)
        return w.train(h * g, y)

    return step


@program(repeats=False)
def code_made_at_run_time(w: World):
    def step(x, y):
        n = w.box["n"] = w.box.get("n", 0) + 1
        h = eval(f"x * {n % 3 + 1}", {"x": x})
        space = {"h": h, "torch": torch}
        exec("h = torch.tanh(h)\nfor i in range(2): h = h + i", space)
        return w.train(space["h"], y)

    return step


@program
def output_kept_for_later(w: World):
    def step(x, y):
        before = w.box.get("last")
        h = w.net(x)
        w.box["last"] = h.detach()
        w.box.setdefault("all", []).append(h.mean().detach())
        loss = torch.nn.functional.cross_entropy(h, y)
        if before is not None:
            loss = loss + 0.1 * (h - before).pow(2).mean()
        w.apply(loss)
        return loss

    return step


@program
def exponential_average(w: World):
    average = [p.detach().clone() for p in w.net.parameters()]
    w.box["average"] = average

    def step(x, y):
        loss = w.train(x, y)
        with torch.no_grad():
            for a, p in zip(average, w.net.parameters(), strict=True):
                a.mul_(0.9).add_(p, alpha=0.1)
        return loss

    return step
