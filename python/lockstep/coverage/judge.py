"""Runs one program each way and says whether anything that a user could see differs.

Eager runs twice, the second time with freshly allocated memory filled with a pattern: a leaf in
which eager differs from itself (uninitialised memory) is compared by layout only. What looks wrong
is doubted first: eager runs again on a littered heap, as some kernels read what they never wrote;
and, where a way may round otherwise, with other last bits (sensitivity.py).
"""

from __future__ import annotations

import ctypes
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from . import sensitivity
from .case import Program, Run, Skip
from .snapshot import Leaves, alike, clean, describe, differing, freeze, rng_state, seed_all
from .ways import Eager

_FIRST_COUNTED = 2  # index of the third call
_MALLOPT_PERTURB = -6  # M_PERTURB of glibc's malloc.h
_DETAIL_LIMIT = 6
_SHAKES = 40
WAY_VARIABLE = "LOCKSTEP_COVERAGE_WAY"  # for programs that start other processes

Mark = Callable[[str], None]


@dataclass
class Call:
    """All that one call left behind."""

    leaves: Leaves
    error: tuple | None
    warnings: list[tuple[str, str]]
    rng: tuple
    seconds: float


@dataclass
class Record:
    """All calls of one run, and the counters of the way from the third call on."""

    calls: list[Call] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)

    @property
    def steady_s(self) -> float:
        return sum(c.seconds for c in self.calls[_FIRST_COUNTED:])


@contextmanager
def _patterned_memory(byte: int = 0xA5) -> Iterator[None]:
    libc = ctypes.CDLL(None)
    libc.mallopt(_MALLOPT_PERTURB, byte)
    try:
        yield
    finally:
        libc.mallopt(_MALLOPT_PERTURB, 0)


def _error_record(error: BaseException, step: Callable) -> tuple:
    """Type, message and the way from the step to the line that raised."""
    frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    code = getattr(step, "__code__", None) or getattr(type(step).__call__, "__code__", None)
    if code is not None:
        starts = [
            i for i, f in enumerate(frames) if f[0] == code.co_filename and f[2] == code.co_name
        ]
        frames = frames[starts[0] :] if starts else frames
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    return (kind, clean(str(error)), frames)


def _said(message: Any) -> str:
    """A warning's text; anomaly mode appends the whole stack, our frames included."""
    return clean(str(message).split("Traceback of forward call", 1)[0])


def _call(run: Run, fn: Callable, index: int, way: Eager) -> Call:
    args = run.inputs(index)
    error = out = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.perf_counter()
        try:
            with way.around_call():
                out = fn(*args) if run.drive is None else run.drive(fn, args)
        except BaseException as e:  # noqa: BLE001 - whatever a program raises is part of the result
            error = _error_record(e, run.step)
        seconds = time.perf_counter() - start
    leaves = freeze({"result": out, "args": args, "state": run.state})
    said = [(w.category.__name__, _said(w.message)) for w in caught]
    return Call(leaves, error, said, rng_state(), seconds)


def record(program: Program, way: Eager) -> Record:
    """Makes a fresh run of the program, steps it and keeps what every call left behind."""
    seed_all(program.seed)
    os.environ[WAY_VARIABLE] = way.name
    run = program.make()
    result = Record()
    fn = way.wrap(run.step)
    try:
        for index in range(run.calls):
            if index == _FIRST_COUNTED:
                way.start_counting(fn)
            result.calls.append(_call(run, fn, index, way))
            way.settle()
        result.counts = way.counts(fn)
    finally:
        way.close(fn)
        if run.close is not None:
            run.close()
    return result


def _leaf_differences(
    a: Call, b: Call, unstable: set[str], way: Eager, moved: list[Leaves]
) -> list[str]:
    lines = []
    for path in differing(a.leaves, b.leaves):
        x, y = a.leaves.get(path), b.leaves.get(path)
        if path in unstable and (x is None or y is None or x[:-1] == y[:-1] or x[0] == y[0]):
            continue
        if not way.exact and alike(x, y):
            continue
        if moved and sensitivity.is_within(x, y, [leaves.get(path) for leaves in moved]):
            continue
        lines.append(f"{path or '.'}: {describe(x, y)}")
    return lines


def _differences(
    a: Record,
    b: Record,
    c: Record,
    way: Eager,
    masks: list[set[str]],
    moved: list[list[Leaves]] | None = None,
) -> tuple[str, list[str]]:
    """Status of c against eager's two records, and a line for each difference."""
    status, lines = "equal", []
    for i, (x, y, z) in enumerate(zip(a.calls, b.calls, c.calls, strict=True)):
        found = []
        if x.error != z.error and x.error == y.error:
            if z.error is not None:
                status = "error"
            found.append(f"raised: eager {_show(x.error)}, the other {_show(z.error)}")
        found += _leaf_differences(x, z, masks[i], way, [run[i] for run in moved or ()])
        if x.rng != z.rng and x.rng == y.rng:
            found.append("the state of a random generator differs")
        if not way.is_peer and z.warnings != y.warnings:
            found.append(f"warnings: eager {y.warnings}, the other {z.warnings}"[:600])
        lines += [f"call {i + 1}: {line}" for line in found]
        if found and status == "equal":
            status = "wrong"
    return status, lines


def _masks(a: Record, b: Record) -> list[set[str]]:
    """For each call, the leaves in which two records of eager differ."""
    return [set(differing(x.leaves, y.leaves)) for x, y in zip(a.calls, b.calls, strict=True)]


class _Shaken(Eager):
    """Eager on a heap that is littered with zeros and ones before each call.

    Some kernels read what they never wrote (the pivots of LAPACK's gelsy), and a pattern of one
    value does not show all that can come of it.
    """

    def __init__(self, seed: int) -> None:
        self._random = np.random.RandomState(seed)

    def wrap(self, step: Callable) -> Callable:
        def litter_and_run(*args: Any) -> Any:
            sizes = self._random.randint(1, 400, size=200)
            litter = [torch.from_numpy(self._random.randint(0, 2, n, np.int32)) + 0 for n in sizes]
            del litter
            return step(*args)

        return litter_and_run


def _doubt(program: Program, a: Record, c: Record, way: Eager, masks: list[set[str]]) -> None:
    """Adds to the masks what eager does not repeat on a littered heap, until nothing is left."""
    with _patterned_memory(0xFF):  # glibc inverts it: zeros
        zeros = record(program, Eager())
    for mask, new in zip(masks, _masks(a, zeros), strict=True):
        mask |= new
    for seed in range(_SHAKES):
        wrong = [
            set(differing(x.leaves, z.leaves)) - m
            for x, z, m in zip(a.calls, c.calls, masks, strict=True)
        ]
        if not any(wrong):
            return
        for mask, new in zip(masks, _masks(a, record(program, _Shaken(seed))), strict=True):
            mask |= new


def _show(error: tuple | None) -> str:
    if error is None:
        return "nothing"
    where = f" at {error[2][-1][0].rsplit('/', 1)[-1]}:{error[2][-1][1]}" if error[2] else ""
    return f"{error[0]}: {error[1][:300]}{where}"


def _unstable(a: Record, b: Record) -> list[str]:
    """Where eager differs from itself."""
    found: list[str] = []
    for i, (x, y) in enumerate(zip(a.calls, b.calls, strict=True)):
        found += [f"call {i + 1}: {p}" for p in differing(x.leaves, y.leaves)]
        if x.rng != y.rng:
            found.append(f"call {i + 1}: random generator")
        if x.error != y.error:
            found.append(f"call {i + 1}: exception")
    return found


def _is_dense(leaves: Leaves) -> bool:
    heads = (r for r in leaves.values() if r[0] == "tensor")
    return all(h[2] == "cpu" and h[3] == "torch.strided" for h in heads)


def judge(program: Program, way: Eager, mark: Mark = lambda phase: None) -> dict[str, Any]:
    """Judges one program; mark(phase) is called before each phase, so that a crash has a place.

    The result has the keys program, status (equal, wrong, error, skip), detail, unstable, counts,
    eager_s and way_s (seconds of the calls from the third on).
    """
    result: dict[str, Any] = {"program": program.name, "status": "skip", "detail": []}
    mark("eager")
    try:
        a = record(program, Eager())
        mark("eager again")
        with _patterned_memory():
            b = record(program, Eager())
    except Skip as skip:
        return {**result, "detail": [str(skip)]}
    except Exception as e:  # noqa: BLE001 - the program itself is broken here, whatever the way
        return {**result, "detail": [f"cannot be made: {type(e).__name__}: {clean(str(e))[:200]}"]}
    mark(way.name)
    try:
        c = record(program, way)
    except Exception as e:  # noqa: BLE001
        last = traceback.format_exc().splitlines()[-12:]
        return {**result, "status": "error", "detail": [f"{type(e).__name__}: {e}"[:600], *last]}
    masks, unstable = _masks(a, b), _unstable(a, b)
    status, lines = _differences(a, b, c, way, masks)
    if status == "wrong" and not way.is_peer:
        _doubt(program, a, c, way, masks)
        status, lines = _differences(a, b, c, way, masks)
        if status == "equal":
            unstable = unstable or ["bits that depend on what the heap holds"]
    if status == "wrong" and not way.is_peer and not way.exact:
        moved = sensitivity.move(lambda other: record(program, other))
        status, lines = _differences(a, b, c, way, masks, moved)
        if status == "equal":
            unstable = [
                *unstable,
                "digits that eager does not have either when ops round otherwise",
            ]
    return {
        "program": program.name,
        "status": status,
        "detail": lines[:_DETAIL_LIMIT],
        "unstable": unstable[:_DETAIL_LIMIT],
        "counts": c.counts,
        "dense": program.dense and all(_is_dense(x.leaves) for x in a.calls),
        "repeats": program.repeats,
        "raised": sum(x.error is not None for x in a.calls),
        "all_raised": all(x.error is not None for x in a.calls),
        "eager_s": a.steady_s,
        "way_s": c.steady_s,
    }
