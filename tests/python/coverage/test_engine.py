"""The harness itself: what it calls equal, wrong, an error, a crash, a time-out; how it goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import numpy
import pytest
import torch
from conftest import PACKAGE_ROOT
from lockstep.coverage import Case, Program, Run, Skip
from lockstep.coverage.__main__ import ENVIRONMENT
from lockstep.coverage.case import BadInput
from lockstep.coverage.cli_text import reproduce
from lockstep.coverage.journal import Journal, read_journal
from lockstep.coverage.judge import judge
from lockstep.coverage.pool import Options, run_cases
from lockstep.coverage.snapshot import differing, freeze
from lockstep.coverage.ways import WAYS, Eager


class Faulty(Eager):
    """A way that does what `fault` says with the result of each call after the first."""

    name = "faulty"

    def __init__(self, fault=lambda out: out):
        self.fault = fault

    def wrap(self, step):
        calls = []

        def run(*args):
            out = step(*args)
            calls.append(1)
            return self.fault(out) if len(calls) > 1 else out

        return run


def program(step, name="p", **options):
    return Program(name, lambda: Run(step, lambda i: (torch.arange(4.0),)), **options)


def raising(error):
    def fault(out):
        raise error

    return fault


FAULTS = [
    (lambda out: out, "equal"),
    (lambda out: torch.nextafter(out, out + 1), "wrong"),
    (lambda out: out.double(), "wrong"),
    (lambda out: out.expand(2, 4), "wrong"),
    (lambda out: (out,), "wrong"),
    (lambda out: out + 0 * torch.rand(()), "wrong"),
    (raising(ValueError("new")), "error"),
]


@pytest.mark.parametrize(("fault", "status"), FAULTS)
def test_status(fault, status):
    result = judge(program(lambda x: x * 2), Faulty(fault))
    assert result["status"] == status, result["detail"]


def test_strides_gradients_and_state_are_compared():
    x = torch.ones(2, 3)
    assert differing(freeze(x), freeze(torch.ones(3, 2).t()))
    a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    b.load_state_dict(a.state_dict())
    assert not differing(freeze(a), freeze(b))
    b(torch.ones(1, 2)).sum().backward()
    assert any("grad" in p for p in differing(freeze(a), freeze(b)))
    assert differing(freeze({"v": 0.0}), freeze({"v": -0.0}))
    assert not differing(freeze(torch.tensor(numpy.nan)), freeze(torch.tensor(numpy.nan)))


def test_exceptions_are_results():
    def step(x):
        raise KeyError("same")

    assert judge(program(step), Faulty())["status"] == "equal"
    result = judge(program(step), Faulty(lambda out: out))
    assert result["raised"] == 4


def test_what_eager_does_not_repeat_is_listed_and_masked():
    result = judge(program(lambda x: torch.empty(64)), Faulty(lambda out: torch.zeros(64)))
    assert result["status"] == "equal"
    assert result["unstable"]
    assert (
        judge(program(lambda x: torch.empty(64)), Faulty(torch.Tensor.double))["status"] == "wrong"
    )


SMALL_BLOCKS = """
import ctypes
from lockstep.coverage.judge import _patterned_memory

libc, size = ctypes.CDLL(None), 40
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [libc.malloc(size) for _ in range(5)]
for block in blocks:
    ctypes.memset(block, 7, size)
    libc.free(block)
with _patterned_memory():
    print({byte for _ in blocks for byte in ctypes.string_at(libc.malloc(size), size)})
"""


def test_small_blocks_that_come_again_have_the_pattern():
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(PACKAGE_ROOT)}
    command = [sys.executable, "-c", SMALL_BLOCKS]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout == f"{{{0xA5 ^ 0xFF}}}\n", done.stderr


def test_skip_keeps_its_reason():
    def make():
        raise Skip("not here")

    result = judge(Program("p", make), Faulty())
    assert (result["status"], result["detail"]) == ("skip", ["not here"])


def die_under(way, how):
    def step(x):
        if os.environ["LOCKSTEP_COVERAGE_WAY"] == way:
            how()
        return x * 2

    return step


@pytest.fixture
def faulty_way(monkeypatch):
    monkeypatch.setitem(WAYS, "faulty", Faulty)
    return "faulty"


def run_all(cases, **options):
    found = {}
    run_cases(cases, Options(**options), lambda r: found.__setitem__(r["case"], r))
    return found


def case(name, *programs):
    return Case("test", name, lambda: iter(programs))


def test_crash_and_hang_cost_one_program(faulty_way):
    good = program(lambda x: x + 1, "good")
    crash = program(die_under("faulty", os.abort), "crash")
    hang = program(die_under("faulty", lambda: time.sleep(60)), "hang")
    cases = [case("a", crash, good), case("b", good, hang), case("c", good)]
    found = run_all(cases, way="faulty", limit_s=3, workers=2)
    assert found["test/a"]["counts"] == {"crash": 1, "equal": 1}
    assert "SIGABRT" in found["test/a"]["failures"][0]["detail"][0]
    assert found["test/b"]["counts"] == {"equal": 1, "timeout": 1}
    assert any(
        "die_under" in line or "test_engine" in line
        for line in found["test/b"]["failures"][0]["detail"]
    )
    assert found["test/c"]["status"] == "equal"


def test_a_crash_of_eager_is_a_skip(faulty_way):
    crash = program(die_under("eager", os.abort), "crash")
    found = run_all([case("a", crash)], way="faulty", limit_s=10)
    assert found["test/a"]["status"] == "skip"


def test_journal_resumes_behind_a_cut_line(tmp_path):
    path = tmp_path / "eager.jsonl"
    journal = Journal(path, {"way": "eager"}, resume=False)
    journal.add({"case": "test/a", "status": "equal"})
    journal.close()
    with open(path, "a") as file:
        file.write('{"case": "test/b", "sta')
    header, done = read_journal(path)
    assert header["way"] == "eager" and list(done) == ["test/a"]
    again = Journal(path, {"way": "eager"}, resume=True)
    again.add({"case": "test/b", "status": "equal"})
    again.close()
    assert list(read_journal(path)[1]) == ["test/a", "test/b"]
    with pytest.raises(BadInput, match="another journal"):
        Journal(path, {"way": "strict"}, resume=True)


def test_command_is_quoted():
    assert reproduce("ops/a b", "0/plain", "strict").endswith("--case 'ops/a b' --program 0/plain")


def test_results_are_json(faulty_way):
    found = run_all([case("a", program(lambda x: x + 1))], way="faulty", limit_s=10)
    assert json.loads(json.dumps(found))["test/a"]["programs"] == 1
