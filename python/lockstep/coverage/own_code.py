"""A user's own code as a case: `--function my_module:make_case`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .case import BadInput, Case, Program, Run

_FORMS = (
    "it must return a step to call, a tuple (step, inputs), or a lockstep.coverage.Run, all of it "
    "made afresh each time"
)


def load_function(name: str) -> Case:
    """The case of `module:factory`; raises BadInput where there is no such factory."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise BadInput(f"--function takes my_module:make_case, not {name!r}")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as e:  # whatever the module raises
        raise BadInput(f"cannot import {module_name!r}: {type(e).__name__}: {e}") from None
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise BadInput(f"the module {module_name!r} has no function {attribute!r}")

    def programs() -> Iterator[Program]:
        yield Program(attribute, lambda: as_run(factory, name))

    return Case("function", name, programs)


def as_run(factory: Callable[[], Any], name: str) -> Run:
    """What the factory makes, as a run; raises BadInput where it makes something else."""
    made = factory()
    if isinstance(made, Run):
        return made
    if callable(made):
        return Run(made, state=state_of(made))
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        step, inputs = made
        if not callable(inputs):
            return Run(step, lambda i: tuple(inputs), state=state_of(step))
        return Run(step, _checked(inputs, name), state=state_of(step))
    raise BadInput(f"{name} returned {type(made).__name__}; {_FORMS}")


def _checked(inputs: Callable[[int], Any], name: str) -> Callable[[int], tuple]:
    def checked(i: int) -> tuple:
        args = inputs(i)
        if not isinstance(args, (tuple, list)):
            kind = type(args).__name__
            raise BadInput(f"{name}: inputs({i}) returned {kind}, not the tuple of its arguments")
        return tuple(args)

    return checked


def state_of(step: Callable) -> dict[str, Any]:
    """What a step can reach by itself: its closure, its defaults and the object it belongs to."""
    code = getattr(step, "__code__", None) or getattr(
        getattr(step, "__func__", None), "__code__", None
    )
    cells = getattr(step, "__closure__", None) or ()
    state: dict[str, Any] = {}
    if code is not None:
        for name, cell in zip(code.co_freevars, cells, strict=False):
            try:
                state[name] = cell.cell_contents
            except ValueError:
                continue  # a cell that is not filled yet
    owner = getattr(step, "__self__", None)
    if owner is not None:
        state["self"] = owner if hasattr(owner, "parameters") else vars(owner)
    if hasattr(step, "parameters"):
        state["module"] = step
    return state
