"""Includes point one way: graph <- tracer, graph <- dynamic, both <- coexec <- python."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from structure_files import CPP, files_with, text_of  # noqa: E402

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
MAY_INCLUDE = {
    "graph": {"graph"},
    "tracer": {"graph", "tracer"},
    "dynamic": {"graph", "dynamic"},
    "coexec": {"graph", "tracer", "dynamic", "coexec"},
    "python": {"graph", "tracer", "dynamic", "coexec", "python"},
}
# Headers that bring Python.h along.
NEEDS_PYTHON = ("Python.h", "pybind11/", "torch/extension.h", "torch/csrc/utils/pybind.h")
WITHOUT_PYTHON = ("graph", "dynamic")


def includes(path):
    return INCLUDE.findall(text_of(path))


@pytest.mark.parametrize("component", MAY_INCLUDE)
def test_a_component_includes_only_what_lies_below_it(component):
    wrong = [
        f"{path} includes {name}"
        for path in files_with(CPP, {component})
        for name in includes(path)
        if name.split("/")[0] in MAY_INCLUDE and name.split("/")[0] not in MAY_INCLUDE[component]
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("component", WITHOUT_PYTHON)
def test_a_component_that_links_no_interpreter_includes_no_python(component):
    wrong = [
        f"{path} includes {name}"
        for path in files_with(CPP, {component})
        for name in includes(path)
        if any(name == header or name.startswith(header) for header in NEEDS_PYTHON)
    ]
    assert not wrong, "\n".join(wrong)


def test_includes_of_our_files_start_at_the_root():
    ours = {str(path) for path in files_with(CPP)}
    names = {Path(path).name for path in ours}
    wrong = [
        f"{path} includes {name}"
        for path in files_with(CPP, set(MAY_INCLUDE))
        for name in includes(path)
        if Path(name).name in names and name not in ours and not name.startswith(("torch", "ATen"))
        and not name.startswith(("c10", "pybind11"))
    ]  # fmt: skip
    assert not wrong, "\n".join(wrong)


def test_the_components_are_there():
    for component in MAY_INCLUDE:
        assert files_with(CPP, {component}), f"no C++ file in {component}/"
