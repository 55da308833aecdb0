"""About 300 cases of all sources, strict against eager: none may be wrong, crash or hang."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import PACKAGE_ROOT
from lockstep.coverage.journal import read_journal

CASES = 300


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("coverage")
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
    command = [sys.executable, "-m", "lockstep.coverage", "--sample", str(CASES), "--limit", "60"]
    command += ["--workers", str(min(2, os.cpu_count() or 1)), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode in (0, 1), done.stderr[-2000:]
    return list(read_journal(out / "strict.jsonl")[1].values())


def names(results, status):
    return [
        r["case"] + ": " + "; ".join(r["failures"][0]["detail"][:2])
        for r in results
        if r["status"] == status
    ]


@pytest.mark.parametrize("status", ["wrong", "error", "crash", "timeout"])
def test_no_case_is(results, status):
    assert names(results, status) == []


def test_cases_ran(results):
    assert len(results) > 0.9 * CASES
    assert sum(r["status"] == "skip" for r in results) < 0.1 * len(results)


def test_no_case_that_repeats_diverges_after_the_second_call(results):
    assert [r["case"] for r in results if r.get("late_divergences")] == []


def test_ops_are_in_the_graph(results):
    shares = [
        r["dense_graph_ops"] / r["dense_ops"]
        for r in results
        if r.get("dense_ops") and not r["case"].startswith(("resized/", "sizes/"))
    ]
    assert sum(s >= 0.99 for s in shares) >= 0.95 * len(shares)
