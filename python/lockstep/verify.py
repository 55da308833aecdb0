"""`lockstep.verify(fn, steps=5)`: does my function compute the same with and without Lockstep?

The function runs both ways on copies of everything that it reaches, from the same random state;
nothing of the original changes. Where a bit differs, both ways run once more, op by op, and the
first op whose result differs is named with file and line.
"""

from __future__ import annotations

import copy
import hashlib
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_OURS = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)
_DIFFERENCE_LIMIT = 10

Wrap = Callable[[Callable], Callable]


@dataclass
class Verification:
    """What `verify` found; true where nothing differs."""

    steps: int
    step: int | None = None  # the first step, from 1, after which something differs
    differences: list[str] = field(default_factory=list)
    op: str | None = None  # the first op whose result differs
    file: str | None = None
    line: int | None = None

    @property
    def equal(self) -> bool:
        return self.step is None

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        if self.equal:
            return f"equal to the last bit in {self.steps} steps"
        where = f"{self.op} at {self.file}:{self.line}" if self.op else "no single op: run one "
        where += "" if self.op else "by one, all ops agree"
        lines = [f"differs in step {self.step}; first op that differs: {where}"]
        return "\n  ".join([*lines, *self.differences[:_DIFFERENCE_LIMIT]])


def verify(fn: Callable, *args: Any, steps: int = 5, **kwargs: Any) -> Verification:
    """Calls fn(*args, **kwargs) `steps` times eagerly and under Lockstep, and compares every bit.

    Compared after each step: the result, the arguments, everything that fn reaches through its
    closure, defaults, globals and object, and the random generators. Raises lockstep.Error where
    fn is not callable or steps is less than 1.
    """
    import lockstep

    if not callable(fn):
        raise lockstep.Error(
            "verify", "fn", f"{type(fn).__name__} is not callable: give a function"
        )
    if not isinstance(steps, int) or steps < 1:
        raise lockstep.Error("verify", "steps", f"{steps!r} is not a number of steps from 1 on")

    def wrap(step: Callable) -> Callable:
        return lockstep.function(step, when="always", numerics="strict")

    return compare_ways(fn, args, kwargs, steps, wrap)


def compare_ways(fn: Callable, args: tuple, kwargs: dict, steps: int, wrap: Wrap) -> Verification:
    """The body of `verify` for any other way to run; wrap(fn) is that way."""
    fn = getattr(fn, "__wrapped__", fn) if not isinstance(fn, torch.nn.Module) else fn
    state = _random_state()
    try:
        found = _compare(fn, args, kwargs, steps, wrap, state)
        if not found.equal:
            _name_first_op(found, fn, args, kwargs, steps, wrap, state)
    finally:
        _set_random_state(state)
    return found


def _compare(
    fn: Callable, args: tuple, kwargs: dict, steps: int, wrap: Wrap, state: tuple
) -> Verification:
    from .coverage.snapshot import describe, differing

    eager = _run(fn, args, kwargs, steps, lambda step: step, state)
    other = _run(fn, args, kwargs, steps, wrap, state)
    for i, (a, b) in enumerate(zip(eager, other, strict=True)):
        paths = differing(a, b)
        if paths:
            lines = [f"{p.lstrip('.') or 'result'}: {describe(a.get(p), b.get(p))}" for p in paths]
            return Verification(steps, i + 1, lines)
    return Verification(steps)


def _run(
    fn: Callable, args: tuple, kwargs: dict, steps: int, wrap: Wrap, state: tuple
) -> list[dict[str, tuple]]:
    """The records after each step of a fresh copy."""
    from .coverage.snapshot import freeze, rng_state

    copier = Copier()
    step, args, kwargs = copier.copy(fn), copier.copy(args), copier.copy(kwargs)
    wrapped = wrap(step)
    _set_random_state(state)
    records = []
    for _ in range(steps):
        try:
            out, error = wrapped(*args, **kwargs), None
        except Exception as e:  # noqa: BLE001 - an exception is a result to compare
            out, error = None, f"{type(e).__name__}: {e}"
        reached = {"result": out, "raised": error, "args": args, "kwargs": kwargs}
        record = freeze({**reached, "state": copier.reached})
        record["random generators"] = ("rng", *map(str, map(hash, rng_state())))
        records.append(record)
    return records


def _name_first_op(
    found: Verification,
    fn: Callable,
    args: tuple,
    kwargs: dict,
    steps: int,
    wrap: Wrap,
    state: tuple,
) -> None:
    logs = []
    for way in (lambda step: step, wrap):
        recorder = OpRecorder()
        _run(fn, args, kwargs, found.step or steps, _recorded(way, recorder), state)
        logs.append(recorder.log)
    for a, b in zip(*logs, strict=False):
        if a[0] != b[0] or a[2] != b[2]:
            found.op, (found.file, found.line) = a[0], a[1]
            return


def _recorded(wrap: Wrap, recorder: OpRecorder) -> Wrap:
    def wrap_and_record(step: Callable) -> Callable:
        wrapped = wrap(step)

        def run(*args: Any, **kwargs: Any) -> Any:
            with recorder:
                return wrapped(*args, **kwargs)

        return run

    return wrap_and_record


class OpRecorder(TorchDispatchMode):
    """Notes each op, the user's line that asked for it, and a digest of what it returned.

    A dispatch mode changes some of PyTorch's own decisions, so it runs in both ways or in none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[str, tuple[str, int], str]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        outs = [*_tensors(result), *(_tensors(args) if func._schema.is_mutable else ())]
        if "empty" in str(func):  # its memory has no value yet
            outs = []
        self.log.append((str(func), _user_line(), _digest(outs)))
        return result


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []


def _digest(tensors: list[torch.Tensor]) -> str:
    from .coverage.snapshot import freeze

    records = freeze([t.detach() for t in tensors])
    return hashlib.sha256(repr(sorted(records.items(), key=str)).encode()).hexdigest()


def _user_line() -> tuple[str, int]:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _random_state() -> tuple:
    import random

    import numpy

    from .coverage.snapshot import gpu_rng_states

    return torch.get_rng_state(), numpy.random.get_state(), random.getstate(), gpu_rng_states()


def _set_random_state(state: tuple) -> None:
    import random

    import numpy

    torch.set_rng_state(state[0])
    numpy.random.set_state(state[1])
    random.setstate(state[2])
    if state[3]:
        torch.cuda.set_rng_state_all(state[3])


class Copier:
    """Copies a function with all that it reaches; what is shared stays shared.

    Functions of the same module are copied with their globals, as far as they name tensors,
    modules, optimizers, generators, containers or objects of their own module. What belongs to
    libraries stays as it is.
    """

    def __init__(self) -> None:
        self._memo: dict[int, Any] = {id(torch.default_generator): torch.default_generator}
        self._globals: dict[int, dict[str, Any]] = {}
        self.reached: dict[str, Any] = {}

    def copy(self, value: Any) -> Any:
        if isinstance(value, types.MethodType):
            return types.MethodType(self.copy(value.__func__), self.copy(value.__self__))
        if isinstance(value, types.FunctionType):
            return self._copy_function(value)
        if isinstance(value, torch.Tensor) and not value.is_leaf:
            return self._memo.setdefault(id(value), value.detach().clone())
        if isinstance(value, torch.Generator):
            return self._memo.setdefault(id(value), value.clone_state())
        if type(value) in (list, tuple, dict) and id(value) not in self._memo:
            return self._copy_container(value)
        return copy.deepcopy(value, self._memo)

    def _copy_container(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self.copy(v) for v in value)
        made: Any = type(value)()
        self._memo[id(value)] = made
        if isinstance(value, list):
            made.extend(self.copy(v) for v in value)
        else:
            made.update((k, self.copy(v)) for k, v in value.items())
        return made

    def _copy_function(self, fn: types.FunctionType) -> types.FunctionType:
        if id(fn) in self._memo:
            return self._memo[id(fn)]
        cells = tuple(types.CellType() for _ in fn.__closure__ or ())
        namespace = self._namespace(fn)
        made = types.FunctionType(fn.__code__, namespace, fn.__name__, None, cells)
        made.__kwdefaults__ = self.copy(fn.__kwdefaults__)
        made.__defaults__ = self.copy(fn.__defaults__)
        made.__dict__.update(fn.__dict__)
        made.__qualname__, made.__module__ = fn.__qualname__, fn.__module__
        self._memo[id(fn)] = made
        for name, old, new in zip(
            fn.__code__.co_freevars, fn.__closure__ or (), cells, strict=True
        ):
            try:
                new.cell_contents = self._reach(name, old.cell_contents)
            except ValueError:
                continue  # a cell that is not filled yet
        for name in _names(fn.__code__):
            value = fn.__globals__.get(name)
            if _is_state(value, fn.__module__):
                namespace[name] = self._reach(name, value)
        return made

    def _namespace(self, fn: types.FunctionType) -> dict[str, Any]:
        return self._globals.setdefault(id(fn.__globals__), dict(fn.__globals__))

    def _reach(self, name: str, value: Any) -> Any:
        made = self.copy(value)
        if not isinstance(made, types.FunctionType):
            self.reached[name] = made
        return made


def _names(code: types.CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _is_state(value: Any, module: str) -> bool:
    kinds = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch.Generator)
    if isinstance(value, (*kinds, list, dict, set)):
        return True
    if isinstance(value, types.FunctionType):
        return value.__module__ == module
    return not isinstance(value, type) and type(value).__module__ == module
