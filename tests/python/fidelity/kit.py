"""Comparison kit: a case runs eagerly and in lockstep, and all that shows is compared.

A case is made twice from one seed, once per way of running. After every call the kit takes a
snapshot: the result or the exception, what the case declared as its state, and the generators of
torch, numpy and random. Snapshots are plain Python values; tensors are compared by their bytes, so
NaNs count by their bits. A snapshot never exposes a tensor's own storage (it copies first), because
exposed storages are handled with more care and would hide what the tests are after.
"""

from __future__ import annotations

import contextlib
import random
import traceback
from pathlib import Path

import lockstep
import numpy as np
import torch
from snapshot import Snapshot, differences

OPTIONS = {"numerics": "strict", "when": "always"}
SEED = 20
SHARE = 0.9
MEASURED_CALLS = 2
_OWN_FILES = (str(Path(__file__).resolve()), str(Path(lockstep.__file__).resolve().parent))


class Run:
    """One way of running a case. `wrap` decorates (or not), `seed` is the same for both ways."""

    def __init__(self, wrap, seed=SEED):
        self.wrap = wrap
        self.seed = seed

    @property
    def is_lockstep(self):
        return self.wrap is not identity


class Case:
    """The function under test, `inputs(i)` that makes the arguments of call i, and the state.

    State values are live objects (modules, optimizers, tensors, generators, lists, ...) or
    functions without arguments that give such objects.
    """

    def __init__(self, step, inputs=None, **state):
        self.step = step
        self.inputs = inputs or (lambda i: ())
        self.state = state


def identity(fn):
    return fn


def in_lockstep(fn):
    return lockstep.function(fn, **OPTIONS)


def seed_all(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def check(make_case, calls=5, share=SHARE, reason=None, raises=()):
    """Runs `make_case(run)` both ways over `calls` calls and compares every snapshot bit for bit.

    `share` is the least share of ops that the graph must have run in the last calls (None: not
    asked). `reason` is a fallback reason that must have been named; then `share` is not asked.
    `raises` names the exception types that a call may end with. Returns the eager snapshots.
    """
    eager, _ = _run(make_case, identity, calls, raises)
    strict, figures = _run(make_case, in_lockstep, calls, raises)
    for number, (want, got) in enumerate(zip(eager, strict, strict=True)):
        found = differences(want, got)
        assert not found, f"call {number}: " + "; ".join(found[:6])
    _check_figures(figures, share, reason)
    return eager


def check_whole(body, share=SHARE, reason=None, open_session=None):
    """Runs `body(run)` once eagerly and once in a session; what it returns is compared.

    For programs that cannot be cut into calls. `open_session` replaces `lockstep.session`.
    """
    with _ambient():
        seed_all(SEED)
        want = Snapshot().take((body(Run(identity)), generator_states()))
    with _ambient():
        seed_all(SEED)
        with (open_session or lockstep.session)(**OPTIONS) as opened:
            result = body(Run(in_lockstep))
        got = Snapshot().take((result, generator_states()))
    found = differences(want, got)
    assert not found, "; ".join(found[:6])
    if share is not None or reason is not None:
        _check_figures([lockstep.stats(opened)], share, reason)
    return want


def generator_states():
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _run(make_case, wrap, calls, raises):
    """Returns one snapshot per call, and the statistics before and within the measured calls."""
    with _ambient():
        seed_all(SEED)
        case = make_case(Run(wrap))
        step = wrap(case.step)
        shots, figures = [], []
        for number in range(calls):
            args = case.inputs(number)
            if wrap is in_lockstep and number == calls - MEASURED_CALLS:
                figures.append(lockstep.stats(step))
                lockstep.reset_stats(step)
            shots.append(_call(step, args, case, raises))
        if wrap is in_lockstep:
            figures.append(lockstep.stats(step))
        return shots, figures


def _call(step, args, case, raises):
    try:
        outcome = {"result": step(*args)}
    except raises as error:
        outcome = {"error": describe_error(error)}
        error.__traceback__ = None
    look = Snapshot()
    shot = {name: look.take(value) for name, value in outcome.items()}
    shot["generators"] = look.take(generator_states())
    shot["state"] = {name: look.take(_live(value)) for name, value in case.state.items()}
    return shot


def _live(value):
    is_function = callable(value) and type(value).__name__ in ("function", "method")
    return value() if is_function else value


def describe_error(error):
    """Type, message, causes and the frames below the caller of the function under test.

    Frames of the kit and of the decorator's entry at the top are left out. Frames of Lockstep
    further down stay in and make the comparison fail: tracebacks must not show them.
    """
    frames = [
        (frame.filename, frame.name, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    while frames and frames[0][0].startswith(_OWN_FILES):
        frames.pop(0)
    chain = [type(e).__qualname__ for e in (error.__cause__, error.__context__) if e is not None]
    return [type(error).__qualname__, str(error), frames, chain, getattr(error, "__notes__", [])]


def _check_figures(figures, share, reason):
    last = figures[-1]
    part = last["graph_ops"] / max(last["ops"], 1)
    if reason is not None:
        seen = sorted(set().union(*(figure["reasons"] for figure in figures)))
        ran_in_graph = reason.may_run_in_graph and part >= SHARE
        assert ran_in_graph or reason.name in seen, (
            f"expected the reason {reason.name!r}, the reasons were {seen}, graph share {part:.2f}"
        )
    elif share is not None:
        assert last["graph_ops"] > 0, f"nothing ran in the graph: {last}"
        assert part >= share, f"graph share {part:.2f} below {share}: {last}"


@contextlib.contextmanager
def _ambient():
    """Gives a case its own ambient state and puts back what it changed."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    grad, onednn = torch.is_grad_enabled(), torch.backends.mkldnn.enabled
    precision = torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        torch.set_flush_denormal(False)
        torch.use_deterministic_algorithms(False)
        torch.backends.mkldnn.enabled = onednn
        torch.set_float32_matmul_precision(precision)
