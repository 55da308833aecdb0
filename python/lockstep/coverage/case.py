"""What the harness runs: a Case has Programs, a Program makes a Run, a Run is stepped.

A case is the unit of isolation (one forked process, one line of the journal): one op with one
dtype, one module, one optimizer, one model. A program is the unit of comparison: one sample of the
op, in one variant. A run is one fresh copy of a program: everything it reads and changes.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

CALLS = 4  # traced, merged, co-executed twice; shares are counted from the third call on


NOT_RUN_TAG = "not run"  # a case that is known to be skipped: listed, but in no sample


class Skip(Exception):
    """A program that cannot be judged; the message is the reason that the report lists."""


class BadInput(Exception):
    """What the user asked for does not exist; the message is one sentence."""


@dataclass
class Run:
    """One fresh copy of a program.

    step is the function that gets decorated; inputs(i) are the arguments of call i (made outside
    of the decorated function); state is a tree of tensors, modules and optimizers, and is compared
    after every call, as are the result and the arguments.
    """

    step: Callable[..., Any]
    inputs: Callable[[int], tuple] = lambda i: ()
    state: Any = None
    calls: int = CALLS
    close: Callable[[], None] | None = None
    drive: Callable[[Callable, tuple], Any] | None = None  # for generators and coroutines


@dataclass
class Program:
    """A recipe for runs: make() is called after seeding, once for each way of running."""

    name: str
    make: Callable[[], Run]
    seed: int = 0
    dense: bool = True  # computes on dense CPU tensors only: counts in the share of graph ops
    repeats: bool = True  # every call is the same call: no divergence after the second
    self_timed: bool = False  # not for the table of times


@dataclass
class Case:
    """`source/name`; programs() is called in the forked process only."""

    source: str
    name: str
    programs: Callable[[], Iterator[Program]]
    limit_s: float | None = None
    tags: tuple[str, ...] = field(default=())

    @property
    def id(self) -> str:
        return f"{self.source}/{self.name}"

    def matches(self, pattern: str) -> bool:
        """Glob over the id, or a plain part of it."""
        return fnmatch.fnmatchcase(self.id, pattern) or pattern in self.id


def one_program(source: str, name: str, make: Callable[[], Run], **options: Any) -> Case:
    """The case of a source in which each case is a single program."""
    limit_s = options.pop("limit_s", None)

    def programs() -> Iterator[Program]:
        yield Program(name, make, **options)

    return Case(source, name, programs, limit_s=limit_s)
