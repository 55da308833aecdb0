"""Small programs about Python itself, each around a training step.

Together they contain every statement and expression class of `ast` in Python 3.11 (a test lists
the classes) and every door through which the outside can see or change a pending tensor.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from ..case import Case, one_program
from .programs.world import ENTRIES, Entry, World

MODULES = (
    "statements", "expressions", "matching", "functions", "resuming",
    "exposure", "ambient", "failures", "threads", "composites", "autograd", "views",
)  # fmt: skip


def load_entries() -> dict[str, Entry]:
    """All programs by name, in the order of their modules."""
    for name in MODULES:
        importlib.import_module(f".programs.{name}", __package__)
    return ENTRIES


def cases() -> Iterator[Case]:
    for name, entry in load_entries().items():
        yield one_program("python", name, _maker(entry), repeats=entry.repeats, dense=entry.dense)


def _maker(entry: Entry):
    def make():
        world = World()
        return world.run(entry.build(world), entry.calls, entry.drive)

    return make
