"""The command line: lists, selections, and one clear sentence for bad input."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import PACKAGE_ROOT
from lockstep.coverage.cli import main, stratified
from lockstep.coverage.sources import SOURCES, load_source

MINE = """
import torch
def make_case():
    net = torch.nn.Linear(4, 2)
    x = torch.randn(3, 4)
    def step():
        loss = net(x).pow(2).sum()
        loss.backward()
        return loss
    return step
def number():
    return 5
def broken():
    raise ValueError("no data")
def rows():
    return (lambda x: x + 1), (lambda i: torch.ones(3, 2))
def raises():
    def step():
        raise ValueError("always")
    return step
def idle():
    return lambda: 3
"""


def run(*arguments, cwd=None):
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
    command = [sys.executable, "-m", "lockstep.coverage", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd)


BAD = [
    (["--source", "nothing"], "there is no source 'nothing'"),
    (["--way", "sideways"], "there is no way 'sideways'"),
    (["--workers", "0"], "--workers must be at least 1"),
    (["--limit", "-1"], "--limit must be more than 0"),
    (["--program", "x"], "give --case as well"),
    (["--case", "ops/nothing"], "no case matches"),
    (["--function", "mine"], "takes my_module:make_case"),
    (["--function", "mine:nothing"], "has no function 'nothing'"),
    (["--function", "nothing_here:f"], "cannot import 'nothing_here'"),
    (["--function", "wrong:f"], "cannot import 'wrong': ZeroDivisionError"),
    (["--function", "mine:number"], "mine:number returned int"),
    (["--function", "mine:broken"], "no data"),
    (["--function", "mine:rows"], "mine:rows: inputs(0) returned Tensor, not the tuple"),
    (
        ["--case", "python/for_else_break_continue", "--program", "nope"],
        "python/for_else_break_continue has no program 'nope'",
    ),
    (["--report", "--out", "nothing"], "there is no journal"),
    (["--shrink", "x"], "takes the seed"),
]


@pytest.mark.parametrize(("arguments", "sentence"), BAD)
def test_bad_input_gets_one_sentence(arguments, sentence, tmp_path, monkeypatch, capfd):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "wrong.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capfd.readouterr().err
    assert sentence in said
    assert len([x for x in said.splitlines() if x.startswith("lockstep.coverage: ")]) == 1
    assert "Traceback" not in said


def test_own_function(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    done = run("--function", "mine:make_case", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "status: equal" in done.stdout


@pytest.mark.parametrize(
    ("factory", "why"),
    [("raises", "each call raised in both ways"), ("idle", "no tensor op was asked for")],
)
def test_own_function_with_nothing_to_compare(factory, why, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    done = run("--function", f"mine:{factory}", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert f"nothing was compared: {why}" in done.stdout


def test_a_way_that_would_be_eager_is_refused(tmp_path, monkeypatch, capfd):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCKSTEP_DISABLE", "1")
    assert main(["--function", "mine:make_case"]) == 2
    assert "LOCKSTEP_DISABLE is set, so that all ways would be eager" in capfd.readouterr().err


def test_run_resume_and_report(tmp_path):
    arguments = ("--source", "python", "--filter", "python/c*", "--way", "eager", "--out", "out")
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("eager.jsonl", "results.json.gz", "coverage.md", "coverage.html"):
        assert (tmp_path / "out" / name).exists()
    before = (tmp_path / "out" / "eager.jsonl").read_text()
    done = run(*arguments, "--resume", cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "out" / "eager.jsonl").read_text() == before
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "out" / "eager.jsonl.old").read_text() == before


def test_ids_are_unique_and_a_sample_has_every_source():
    cases = [c for name in SOURCES for c in load_source(name)]
    ids = [c.id for c in cases]
    assert len(ids) == len(set(ids))
    chosen = stratified(cases, 300)
    assert {c.source for c in chosen} == set(SOURCES)
    assert 270 <= len(chosen) <= 330
    assert [c.id for c in chosen] == [c.id for c in stratified(cases, 300)]
