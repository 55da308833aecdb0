"""The source `python` contains every statement and expression class of Python 3.11."""

from __future__ import annotations

import ast
import inspect

import pytest
from lockstep.coverage.sources import python_programs

DEPRECATED = {
    "Num", "Str", "Bytes", "NameConstant", "Ellipsis", "Index", "ExtSlice", "Suite", "AugLoad",
    "AugStore", "Param", "slice",
}  # fmt: skip
KINDS = (ast.stmt, ast.expr, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.pattern,
         ast.excepthandler, ast.comprehension, ast.expr_context)  # fmt: skip
DOORS = {
    1: "buffer_overwritten_after_the_op",
    2: "seeds_in_the_middle",
    3: "flush_denormal",
    4: "caught_errors_by_value",
    5: "pending_tensor_read_by_a_thread",
    6: "fork_in_the_step",
    7: "entry_with_the_lock_held",
    8: "kernel_warnings",
    9: "generator_methods_taken_early",
    10: "packed_sequences",
    11: "interpreter_exit_with_work_pending",
}


def classes():
    found = set()
    for kind in KINDS:
        below = kind.__subclasses__() or [kind]
        found.update(c.__name__ for c in below)
    return sorted(found - DEPRECATED)


def used():
    """Node classes inside the steps (and what is nested in them)."""
    names = set()
    for entry in python_programs.load_entries().values():
        tree = ast.parse(inspect.getsource(entry.build))
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == "step":
                names.update(type(n).__name__ for n in ast.walk(node))
    return names


@pytest.mark.parametrize("name", classes())
def test_class_of_the_grammar_is_in_a_program(name):
    assert name in used(), f"no program of the source `python` has a {name}"


@pytest.mark.parametrize("door", DOORS)
def test_door_has_a_program(door):
    assert DOORS[door] in python_programs.load_entries()
