"""The reports: counts, shares, what is listed; and a page that loads nothing."""

from __future__ import annotations

import gzip
import json

import pytest
from lockstep.coverage.case import BadInput
from lockstep.coverage.journal import Journal
from lockstep.coverage.report import share_of, write_reports

EQUAL = {
    "case": "ops/a", "way": "strict", "status": "equal", "programs": 2, "counts": {"equal": 2},
    "eager_s": 1.0, "way_s": 0.5, "dense_ops": 200, "dense_graph_ops": 199, "ops": 200,
    "graph_ops": 199, "reasons": {"resizes_output": 1}, "reason_examples": {"resizes_output": "0"},
}  # fmt: skip
WRONG = {
    "case": "ops/<b>", "way": "strict", "status": "wrong", "programs": 1, "counts": {"wrong": 1},
    "eager_s": 1.0, "way_s": 2.0, "dense_ops": 10, "dense_graph_ops": 5,
    "failures": [{"program": "0", "status": "wrong", "detail": ["call 2: result | differs"]}],
    "late_divergences": 1, "late_divergences_in": ["0"],
}  # fmt: skip
SKIP = {
    "case": "models/c", "way": "strict", "status": "skip", "programs": 1, "counts": {"skip": 1},
    "skips": {"needs more": 1},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    journal = Journal(tmp_path / "strict.jsonl", {"way": "strict", "torch": "2.13"}, False)
    for entry in (EQUAL, WRONG, SKIP):
        journal.add(entry)
    journal.close()
    peer = Journal(tmp_path / "compile-eager.jsonl", {"way": "compile-eager"}, False)
    peer.add({**EQUAL, "way": "compile-eager", "graph_breaks": 3})
    peer.close()
    return tmp_path


def test_share():
    assert share_of(EQUAL) == 199 / 200
    assert share_of({**EQUAL, "status": "crash"}) == 0.0
    assert share_of(SKIP) is None


def test_reports(folder):
    written = write_reports(folder)
    with gzip.open(written[0], "rt") as file:
        data = json.load(file)
    strict = data["summary"]["strict"]
    assert strict["all"]["cases"] == 3
    assert strict["sources"]["ops"]["counts"]["wrong"] == 1
    assert strict["all"]["share"]["at_least_99"] == 0.5
    assert strict["late_divergences"] == ["ops/<b>"]
    assert data["summary"]["compile-eager"]["all"]["graph_breaks"] == 3
    table = written[1].read_text()
    assert "| ops | 2 | 1 | 1 |" in table
    assert "result \\| differs" in table
    assert "models: needs more" in table
    page = written[2].read_text()
    assert "ops/&lt;b&gt;" in page and "Side by side" in page
    assert "src=" not in page and "href=" not in page


def test_nothing_to_report(tmp_path):
    with pytest.raises(BadInput, match="run the harness first"):
        write_reports(tmp_path)
