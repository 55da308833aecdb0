"""Expressions: operators, comprehensions, subscripts, strings, calls."""

from __future__ import annotations

import torch

from .world import World, program


@program
def binary_operators(w: World):
    def step(x, y):
        a, b = x.abs() + 1, (x * 3).round().abs() + 1
        h = a + b - a * b / (a // 2 + 1) + a % b + a**0.5
        h = h + (a @ b.T).sum()
        i, j = b.long(), y[:, None]
        k = (i << 1) | (i >> 1) & j ^ i
        return w.train(h * 0.01, y), k

    return step


@program
def unary_and_boolean(w: World):
    def step(x, y):
        h = -x + (+x)
        mask = ~(x > 0)
        if not mask.all() and (x.numel() or w.log):
            h = h + mask
        return w.train(h, y)

    return step


@program
def comparisons(w: World):
    def step(x, y):
        a, b = x[0, 0], x[0, 1]
        found = [a == b, a != b, a < b, a <= b, a > b, a >= b]
        item = a.item()
        flags = (item is None, item is not None, 0 < item < 1, item in (1, 2), item not in [3])
        w.log.append(flags)
        w.log.append([bool(f) for f in found])
        w.log.append(int(y[0]) in {0, 1})
        return w.train(x, y), found

    return step


@program
def comprehensions(w: World):
    def step(x, y):
        rows = [r * i for i, r in enumerate(x) if i % 2 == 0]
        table = {i: r.sum() for i, r in enumerate(rows)}
        kinds = {int(v) for v in y}
        total = sum(t for t in table.values())
        nested = [[c + 1 for c in r[:2]] for r in rows]
        w.log.append(sorted(kinds))
        return w.train(x + total, y), nested

    return step


@program
def subscripts(w: World):
    def step(x, y):
        parts = [x[1:3], x[::2], x[:, -1], x[..., None], x[None], x[[0, 2]], x[x > 0]]
        parts += [x[y], x[y, y], x[1, 2:5], x[torch.tensor(1)]]
        z = x.clone()
        z[0] = 1
        z[1:3, ::2] = z[0, 0]
        z[z < 0] = 0
        z[[4, 5]] *= 2
        z[..., -1] += 1
        return w.train(z, y), parts

    return step


@program
def strings(w: World):
    def step(x, y):
        loss = w.train(x, y)
        w.log.append(f"{loss:.6f} {loss.item()!r} {x.shape} {float(x.sum()):>10.3e}")
        w.log.append("%.4f" % loss.item())  # noqa: UP031
        w.log.append("{}".format(x[0, :2]))  # noqa: UP032
        w.log.append(repr(w.net[0].bias))
        w.log.append(str(x[:1] > 0))
        return loss

    return step


@program
def walrus_ifexp_lambda(w: World):
    def step(x, y):
        square = lambda v, *, by=2: v**by  # noqa: E731
        h = square(x) if (m := x.max().item()) > 1 else square(x, by=3)
        w.log.append(m > 1)
        return w.train(h, y)

    return step


@program
def displays_and_starred(w: World):
    def step(x, y):
        first, *middle, last = x
        pair = (first, last)
        items = [*middle, *pair]
        keyed = {"a": first, **{"b": last}}
        names = {*"ab", "c"}
        h = torch.stack([*items], 0) + sum(keyed.values())
        w.log.append(sorted(names))
        return w.train(h, y)

    return step


@program
def calls(w: World):
    def mix(a, b=1, /, c=2, *more, d, e=5, **named):
        return a * b + c + sum(more) + d * e + sum(named.values())

    def step(x, y):
        h = mix(x, 2, 3, 4, 5, d=x, **{"f": 0.5, "g": x.mean()})
        h = h + mix(*[x, 1], d=1)
        return w.train(h * 0.1, y)

    return step


@program
def constants(w: World):
    def step(x, y):
        h = x + 1 + 0.5 + True
        z = torch.complex(x, x) * 2j
        w.log.append((b"bytes", "text", None, ..., 10**30 % 7))
        return w.train(h, y), z

    return step


@program
def numbers_that_change(w: World):
    def step(x, y):
        n = w.box["n"] = w.box.get("n", 0) + 1
        h = x * (1 / n) + n
        h = torch.clamp(h, -n, n) if n % 2 else h.clamp(-n, n)
        return w.train(h, y)

    return step


@program(repeats=False)
def shapes_that_change(w: World):
    def step(x, y):
        n = w.box["n"] = w.box.get("n", 0) % 3 + 1
        h = x[: 2 * n]
        h = torch.cat([h, h.flip(0)])
        extra = torch.zeros(n, 3).nonzero()
        return w.train(h, torch.cat([y[: 2 * n]] * 2)), extra

    return step


@program(repeats=False)
def data_dependent_sizes(w: World):
    def step(x, y):
        keep = x.sum(1) > 0
        h, t = x[keep], y[keep]
        unique, counts = torch.unique(y, return_counts=True)
        picked = torch.masked_select(x, x > 0.5)
        w.log.append((h.shape[0], unique.tolist(), len(picked)))
        loss = w.train(h, t) if len(h) else x.sum()
        return loss, counts, picked.nonzero()

    return step
