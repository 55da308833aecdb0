"""The table items.toml and the collected tests agree; expected reasons exist."""

from __future__ import annotations

import ast
import json
import tomllib
from collections import defaultdict

import lockstep
import pytest
from conftest import HERE
from expected_reasons import EXPECTED
from programs import run_program

ITEMS = tomllib.loads((HERE / "items.toml").read_text())
COLLECT = """
import json, os, pytest, sys

class Collected:
    def pytest_collection_finish(self, session):
        self.marks = [
            [test.nodeid, [mark.args[0] for mark in test.iter_markers("item")]]
            for test in session.items
        ]

collected = Collected()
status = pytest.main(["-q", "--collect-only", "-p", "no:cacheprovider", sys.argv[1]], [collected])
with open(sys.argv[2], "w") as file:
    json.dump(collected.marks, file)
sys.exit(status)
"""


@pytest.fixture(scope="module")
def marks(tmp_path_factory):
    """The items that each collected test covers: {node id: [item id]}."""
    path = tmp_path_factory.mktemp("items") / "marks.json"
    run_program(COLLECT, HERE, path)
    return dict(json.loads(path.read_text()))


def test_every_item_has_a_test_and_every_mark_an_item(marks):
    covered = defaultdict(list)
    for node, ids in marks.items():
        for name in ids:
            covered[name].append(node)
    assert sorted(set(ITEMS) - set(covered)) == [], "items without a test"
    assert sorted(set(covered) - set(ITEMS)) == [], "marks that the table does not know"


def test_every_test_covers_one_item_of_the_point_of_its_file(marks):
    for node, ids in marks.items():
        file = node.split("::")[0].rsplit("/")[-1]
        if file == "test_items.py":
            continue
        assert len(ids) == 1, f"{node} covers {ids}"
        assert file.startswith(f"test_{ITEMS[ids[0]]['point']}_"), f"{node} covers {ids}"


def test_the_table_is_well_formed():
    for name, entry in ITEMS.items():
        assert set(entry) == {"point", "text", "named"}, name
        assert name.startswith(f"{entry['point']}."), name
        assert entry["text"], name
    assert {entry["point"] for entry in ITEMS.values()} == set(range(1, 9))
    texts = [(entry["point"], entry["text"]) for entry in ITEMS.values()]
    assert len(set(texts)) == len(texts)


def test_only_named_items_ask_for_a_reason():
    """Tests that expect a reason are those of the items marked (named), and all of these."""
    asking = set()
    for path in HERE.glob("test_[1-8]_*.py"):
        for function in ast.parse(path.read_text()).body:
            source = ast.dump(function)
            if isinstance(function, ast.FunctionDef) and "id='EXPECTED'" in source:
                asking |= {
                    node.args[0].value
                    for decorator in function.decorator_list
                    for node in ast.walk(decorator)
                    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "item"
                }
    assert asking == {name for name, entry in ITEMS.items() if entry["named"]}


def test_expected_reasons_stand_in_the_table_of_reasons():
    unknown = {reason.name for reason in EXPECTED.values()} - set(lockstep.REASONS)
    assert not unknown, f"the package has no reasons {sorted(unknown)}"
