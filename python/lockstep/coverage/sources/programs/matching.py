"""`match` with every kind of pattern."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .world import World, program


@dataclass
class Scale:
    by: float


@dataclass
class Shift:
    by: float
    axis: int = 0


def _run(command, h, w):
    match command:
        case None:
            return h
        case True:
            return h + 1
        case 3 | 4 as n:
            return h * n
        case "double":
            return h * 2
        case Scale(by=b) if b > 1:
            return h * b
        case Scale():
            return h * 0.5
        case Shift(b, axis=0):
            return h + b
        case [first, *rest]:
            for c in rest:
                h = _run(c, h, w)
            return _run(first, h, w)
        case {"op": "tanh", **others}:
            w.log.append(sorted(others))
            return torch.tanh(h)
        case _:
            return -h


@program
def match_every_pattern(w: World):
    def step(x, y):
        commands = [None, True, 3, 4, "double", Scale(2.0), Scale(0.1), Shift(0.3), Shift(1.0, 1)]
        commands += [[Scale(3.0), Shift(0.1)], {"op": "tanh", "x": 1}, (), 2.5]
        h = x
        for command in commands:
            match command:
                case int() | None:
                    h = _run(command, h, w)
                case [Scale(by=b), *rest]:
                    h = _run(rest, h * b, w)
                case {"op": str() as name, **others}:
                    w.log.append((name, len(others)))
                    h = _run(command, h, w)
                case False | "no":
                    h = h * 0
                case _ if command:
                    h = _run(command, h, w)
                case other:
                    w.log.append(repr(other))
        return w.train(h * 0.01, y)

    return step


@program(repeats=False)
def match_on_a_tensor(w: World):
    def step(x, y):
        match (x > 0).sum().item() % 3:
            case 0:
                h = x * 2
            case 1:
                h = x.sin()
            case n:
                h = x + n
        match tuple(x.shape):
            case (6, 8):
                h = h + 1
            case (_, *_):
                h = h - 1
        return w.train(h, y)

    return step
