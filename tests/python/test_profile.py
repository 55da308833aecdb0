"""`lockstep.profile`: what both threads did and when."""

import json
import re

import lockstep
import pytest
import torch
from lockstep import _C, Error
from test_session import run_code
from torch import nn


def make_step(**options):
    net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(net.parameters())

    @lockstep.function(**options)
    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()  # the fetch

    return step


def profile_of(step, calls=3, warm_up=4):
    x = torch.randn(64, 16)
    for _ in range(warm_up):
        step(x)
    _C.wait_for_kernels()
    step(x)
    before = lockstep.stats(step)["ops"]
    with lockstep.profile(step) as p:
        for _ in range(calls):
            step(x)
    return p, lockstep.stats(step)["ops"] - before


def count(p, *kinds):
    return sum(span.kind in kinds for span in p.spans)


@pytest.mark.parametrize("runner", ["behind", "yielding", "inplace"])
def test_every_op_is_asked_and_runs_once(runner):
    p, ops = profile_of(make_step(when="always", runner=runner))
    assert count(p, "ask", "fetch") == ops and p.dropped == 0
    assert count(p, "kernel", "native", "member") == ops
    assert count(p, "call") == 3 and count(p, "fetch") == 15  # item, and Adam's four steps
    kernels = {span.thread for span in p.spans if span.kind == "kernel"}
    assert kernels <= ({"lockstep-runner"} if runner != "inplace" else {"leading thread"})
    assert {span.thread for span in p.spans if span.kind == "ask"} == {"leading thread"}


def test_spans_lie_within_their_calls_and_in_each_other():
    p, _ = profile_of(make_step(when="always"))
    calls = [span for span in p.spans if span.kind == "call"]
    for thread in {span.thread for span in p.spans}:
        open_until = []
        own = (span for span in p.spans if span.thread == thread)
        for span in sorted(own, key=lambda span: (span.begin, -span.duration)):
            while open_until and open_until[-1] <= span.begin + 0.01:
                open_until.pop()
            end = span.begin + span.duration
            assert not open_until or end <= open_until[-1] + 0.01, span
            open_until.append(end)
            assert any(
                c.begin - 0.01 <= span.begin and end <= c.begin + c.duration + 0.01 for c in calls
            )


def test_rows_add_up():
    p, ops = profile_of(make_step(when="always"))
    for rows in (p.by_op(), p.by_line()):
        assert sum(row["asked"] for row in rows) == ops
        assert sum(row["share"] for row in rows) == pytest.approx(1)
        whole = sum(s.duration for s in p.spans if s.kind in ("kernel", "native")) / 1e3
        assert sum(row["kernel_ms"] for row in rows) == pytest.approx(whole)
    assert {row["source"] for row in p.by_line()} >= {"loss.backward()", "optimizer.step()"}
    product = next(row for row in p.by_op() if row["op"] == "aten::addmm")
    assert product["asked"] == product["kernels"] == 6
    leading = sum(s.duration for s in p.spans if s.kind == "call") / 1e3
    parts = ("call", "ask", "fetch", "native", "wait")
    assert sum(p.totals().get(kind, 0.0) for kind in parts) == pytest.approx(leading, rel=1e-3)


def test_groups_and_their_members(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    # in place: behind, a runner that keeps up with Python finds one op at a time
    p, _ = profile_of(make_step(when="always", numerics="default", runner="inplace"))
    groups = [span for span in p.spans if span.kind == "group"]
    members = [span for span in p.spans if span.kind == "member"]
    assert groups and len(members) > len(groups)
    whole = sum(s.duration for s in groups)
    assert sum(s.duration for s in members) == pytest.approx(whole, rel=1e-3)
    assert any(row["fused"] for row in p.by_op())


def test_what_other_functions_do_is_left_out():
    one, other = make_step(when="always"), make_step(when="always")
    x = torch.randn(64, 16)
    for step in (one, one, other, other):
        step(x)
    with lockstep.profile(one) as p:
        one(x), other(x)
    assert count(p, "call") == 1


def test_calls_that_auto_ran_eagerly():
    step = make_step(when="auto")
    x = torch.randn(64, 16)
    for _ in range(2):
        step(x)
    while not lockstep.explain(step).calls["eager"]:  # the measurement tries all ways
        step(x)
    with lockstep.profile(step) as p:
        for _ in range(50):
            step(x)
    assert count(p, "eager call") > 0 and count(p, "call", "eager call") == 50
    assert f"50 calls ({count(p, 'eager call')} eager)" in str(p)


def test_a_session():
    with lockstep.session(when="always") as s:
        x = torch.randn(8)
        with lockstep.profile(s) as p:
            (x + 1).sum().item()
    assert count(p, "ask", "fetch") == 3
    assert "aten::sum" in str(p)


def test_files(tmp_path):
    p, _ = profile_of(make_step(when="always"))
    p.save(tmp_path / "step.json")
    trace = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    spans = [event for event in trace if event["ph"] == "X"]
    assert len(spans) == len(p.spans)
    assert all(event["dur"] >= 0 and event["name"] for event in spans)
    assert {event["args"]["name"] for event in trace if event["ph"] == "M"} == {
        "leading thread",
        "lockstep-runner",
    }
    p.save(tmp_path / "step.html")
    page = (tmp_path / "step.html").read_text()
    data = json.loads(re.search(r"^const data = (.*);$", page, re.M)[1].replace("<\\/", "</"))
    assert len(data["spans"]) == len(p.spans)
    assert data["threads"][0] == "leading thread"
    assert "aten::addmm" in {data["names"][span[2]] for span in data["spans"]}


def test_bad_input(tmp_path):
    step = make_step(when="always")
    with pytest.raises(Error, match="is not decorated"):
        lockstep.profile(len)
    with lockstep.profile(step) as p:
        with pytest.raises(Error, match="another profile is open: close it first"):
            lockstep.profile(step).__enter__()
    with pytest.raises(Error, match=r"neither \.json nor \.html: give it one of these"):
        p.save(tmp_path / "step.txt")
    assert str(p).startswith(f"{p.name}: 0 calls")
    p.save(tmp_path / "empty.html")


def test_calls_that_are_switched_off():
    step = make_step(when="never")
    with lockstep.profile(step) as p:
        for _ in range(3):
            step(torch.randn(4, 16))
    assert count(p, "eager call") == 3 and len(p.spans) == 3
    assert "3 calls (3 eager)" in str(p)


def test_an_error_closes_it():
    step = make_step(when="always")
    with pytest.raises(ZeroDivisionError):
        with lockstep.profile(step):
            raise ZeroDivisionError
    with lockstep.profile(step):
        pass


def test_what_the_collector_runs_while_a_profile_is_made():
    done = run_code(
        """
        import gc, torch, lockstep

        def fresh(number):
            space = {}
            exec(compile(f"def f(x): return x + {number}", f"file{number}", "exec"), space)
            return space["f"]

        @lockstep.function(when="always")
        def step(x, f):
            return f(x)

        class Last:
            count = 0

            def __init__(self):
                self.me = self  # for the collector alone

            def __del__(self):
                Last.count += 1
                step(x, fresh(1000 + Last.count))

        x = torch.ones(3)
        with lockstep.profile(step):
            for i in range(400):
                step(x, fresh(i % 50))
            gc.collect()
            for _ in range(300):
                Last()
        print(Last.count > 0)
        """
    )
    assert done.stdout == "True\n"
