"""`lockstep.verify(fn, steps=5)`: does my function compute the same with and without Lockstep?

The function runs both ways on copies of everything that it reaches, from the same random state;
nothing of the original changes. Where a bit differs, both ways run once more, op by op, and the
first op whose result differs is named with file and line.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep import knobs
from lockstep.copier import Copier

_OURS = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)
_DIFFERENCE_LIMIT = 10

Wrap = Callable[[Callable], Callable]


@dataclass
class Verification:
    """What `verify` found; true where nothing differs and at least one step came to its end.

    Attributes:
        steps: that ran in each way.
        step: the first one, from 1, after which something differs.
        differences: a line for each thing that differs after it.
        op, file, line: the first op whose result differs, and who asked for it.
        raised: step -> what both ways raised in it.
        ops, graph_ops: asked for under Lockstep, and those of them that the graph ran.
    """

    steps: int
    step: int | None = None
    differences: list[str] = field(default_factory=list)
    op: str | None = None
    file: str | None = None
    line: int | None = None
    raised: dict[int, str] = field(default_factory=dict)
    ops: int | None = None
    graph_ops: int | None = None

    @property
    def equal(self) -> bool:
        return self.step is None and len(self.raised) < self.steps

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        if self.step is None:
            return self._equal_text()
        where = f"{self.op} at {self.file}:{self.line}" if self.op else "no single op: run one "
        where += "" if self.op else "by one, all ops agree"
        lines = [f"differs in step {self.step}; first op that differs: {where}"]
        return "\n  ".join([*lines, *self.differences[:_DIFFERENCE_LIMIT]])

    def _equal_text(self) -> str:
        text = f"equal to the last bit in {self.steps} steps"
        if self.raised:
            step, error = next(iter(self.raised.items()))
            if not self.equal:
                return f"nothing to compare, no step came to its end: raised in both ways: {error}"
            text += f", {len(self.raised)} of which raised in both ways; in step {step}: {error}"
        return text + self._graph_text()

    def _graph_text(self) -> str:
        if self.graph_ops is None or self.graph_ops:
            return ""
        if not self.ops:
            return "\n  but no tensor op was asked for: Lockstep had nothing to do"
        return f"\n  but all {self.ops} ops ran eagerly: more steps may show more"


def verify(fn: Callable, *args: Any, steps: int = 5, **kwargs: Any) -> Verification:
    """Calls fn(*args, **kwargs) `steps` times eagerly and under Lockstep, and compares every bit.

    Compared after each step: the result, the arguments, everything that fn reaches through its
    closure, defaults, globals and object, and the random generators. An exception is a result like
    others, but where each step raises, the verdict is not "equal". Raises lockstep.Error where fn
    is not callable, computes later (a generator) or reaches what cannot be copied, where steps is
    less than 1, in a session, and where LOCKSTEP_DISABLE switches everything off.
    """
    import lockstep

    if not callable(fn):
        message = f"{type(fn).__name__} is not callable: give a function"
        raise lockstep.Error("not_callable", "lockstep.verify", message)
    if not isinstance(steps, int) or steps < 1:
        message = f"steps={steps!r} is not a number of steps from 1 on"
        raise lockstep.Error("bad_value", "lockstep.verify", message)
    if _runs_later(fn):
        message = "a generator or coroutine function computes later: give a function that runs it"
        raise lockstep.Error("not_callable", "lockstep.verify", message)
    if lockstep._C.is_active():
        message = "here all runs in lockstep: call it outside of sessions and decorated functions"
        raise lockstep.Error("verify", "lockstep.verify", message)
    if knobs.is_disabled():
        message = "LOCKSTEP_DISABLE is set, so that both ways would be eager: unset it"
        raise lockstep.Error("verify", "lockstep.verify", message)
    counted: list[Callable] = []

    def wrap(step: Callable) -> Callable:
        counted.append(lockstep.function(step, when="always", numerics="strict"))
        return counted[-1]

    found = compare_ways(fn, args, kwargs, steps, wrap)
    counters = lockstep.stats(counted[0])
    found.ops, found.graph_ops = counters["ops"], counters["graph_ops"]
    return found


def _runs_later(fn: Callable) -> bool:
    kinds = (
        inspect.isgeneratorfunction,
        inspect.iscoroutinefunction,
        inspect.isasyncgenfunction,
    )
    return any(is_kind(fn) for is_kind in kinds)


def compare_ways(fn: Callable, args: tuple, kwargs: dict, steps: int, wrap: Wrap) -> Verification:
    """The body of `verify` for any other way to run; wrap(fn) is that way."""
    state = _random_state()
    try:
        found = _compare(fn, args, kwargs, steps, wrap, state)
        if found.step is not None:
            _name_first_op(found, fn, args, kwargs, steps, wrap, state)
    finally:
        _set_random_state(state)
    return found


def _compare(
    fn: Callable, args: tuple, kwargs: dict, steps: int, wrap: Wrap, state: tuple
) -> Verification:
    from .coverage.snapshot import describe, differing

    eager = _run(fn, args, kwargs, steps, _eagerly, state)
    other = _run(fn, args, kwargs, steps, wrap, state)
    for i, (a, b) in enumerate(zip(eager, other, strict=True)):
        paths = differing(a, b)
        if paths:
            lines = [f"{p.lstrip('.') or 'result'}: {describe(a.get(p), b.get(p))}" for p in paths]
            return Verification(steps, i + 1, lines)
    errors = ((i + 1, a[".raised"][1]) for i, a in enumerate(eager))
    return Verification(steps, raised={i: error for i, error in errors if error is not None})


def _eagerly(step: Callable) -> Callable:
    """Decorated methods of classes, which are not copied, co-execute nothing either."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with knobs.switched_off():
            return step(*args, **kwargs)

    return run


def _run(
    fn: Callable, args: tuple, kwargs: dict, steps: int, wrap: Wrap, state: tuple
) -> list[dict[str, tuple]]:
    """The records after each step of a fresh copy."""
    from .coverage.snapshot import clean, freeze, rng_state

    copier = Copier()
    step, args, kwargs = copier.copy_callable(fn), copier.copy(args), copier.copy(kwargs)
    wrapped = wrap(step)
    _set_random_state(state)
    records = []
    for _ in range(steps):
        try:
            out, error = wrapped(*args, **kwargs), None
        except Exception as e:  # noqa: BLE001 - an exception is a result to compare
            out, error = None, clean(f"{type(e).__name__}: {e}")
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
    for way in (_eagerly, wrap):
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
