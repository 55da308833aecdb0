"""Point 7, third part: observers (pdb, profilers, tracers), exit, reload, EMA, resuming."""

from __future__ import annotations

import bdb
import copy
import cProfile
import io
import pdb
import pstats
import sys

import pytest
import torch
from cases import batch, busy, small_net, train
from kit import Case, check
from programs import run_program

item = pytest.mark.item


EXIT_WITH_WORK_PENDING = """
import atexit, sys, torch, lockstep

weight = torch.ones(700, 700)

@lockstep.function(numerics="strict", when="always")
def step(x, way):
    deep = weight * x
    for _ in range(6):
        deep = torch.tanh(deep @ weight * 1e-3)
    weight.add_(deep * 0)
    if way == "exit":
        sys.exit(3)
    if way == "raise":
        raise KeyError("left")
    return deep

kept = [step(torch.tensor(1.0 + n), "") for n in range(3)]
atexit.register(lambda: print("sum", weight.sum().item()))
way = sys.argv[1]
if way == "session":
    opened = lockstep.session(numerics="strict", when="always")
    opened.__enter__()
    kept.append(weight @ weight)
    weight.mul_(2)
elif way == "thread":
    import threading
    threading.Thread(target=step, args=(torch.tensor(2.0), "")).start()
else:
    kept.append(step(torch.tensor(9.0), way))
"""


@item("7.interpreter-exit")
@pytest.mark.parametrize("way, status", [("session", 0), ("exit", 3), ("raise", 1), ("thread", 0)])
def test_interpreter_exit_with_work_pending(way, status):
    done = run_program(EXIT_WITH_WORK_PENDING, way, expect=status)
    assert done.stdout == ("sum 980000.0\n" if way == "session" else "sum 490000.0\n")
    assert ("KeyError" in done.stderr) == (way == "raise")
    assert "Fatal" not in done.stderr and "terminate" not in done.stderr


RELOAD_WITH_WORK_PENDING = """
import importlib, torch, lockstep
torch.manual_seed(1)
weight = torch.randn(300, 300)

def step(x):
    deep = weight * x
    for _ in range(4):
        deep = torch.tanh(deep @ weight)
    return deep

want = step(torch.tensor(2.0))
decorated = lockstep.function(step, numerics="strict", when="always")
for _ in range(3):
    assert torch.equal(decorated(torch.tensor(2.0)), want)

def reloading(x):
    deep = step(x)
    importlib.reload(lockstep)
    return deep, deep.sum().item()

deep, total = lockstep.function(reloading, numerics="strict", when="always")(torch.tensor(2.0))
with lockstep.session(numerics="strict", when="always"):
    pending = step(torch.tensor(2.0))
    importlib.reload(lockstep)
    assert torch.equal(pending, want)
assert torch.equal(deep, want) and total == want.sum().item()
fresh = lockstep.function(step, numerics="strict", when="always")
for _ in range(3):
    assert torch.equal(fresh(torch.tensor(2.0)), want)
    assert torch.equal(decorated(torch.tensor(2.0)), want)
print("graph ops", lockstep.stats(fresh)["graph_ops"] > 0)
"""


@item("7.reload")
def test_reload_with_work_pending():
    assert run_program(RELOAD_WITH_WORK_PENDING).stdout == "graph ops True\n"


@item("7.pdb")
def test_pdb():
    def make(run):
        typed, shown = "p work.sum().item()\np labels\nn\np (work * 2)[0, :3]\nc\n", []

        def step(x, labels):
            work = busy(x)[:5, :6] * x
            out = io.StringIO()
            debugger = pdb.Pdb(stdin=io.StringIO(typed), stdout=out, nosigint=True, readrc=False)
            debugger.set_trace()
            work = work + 1
            result = work.sum()
            sys.settrace(None)
            shown.append(out.getvalue())
            return result

        return Case(step, batch, shown=shown)

    tracer = sys.gettrace()
    try:
        shots = check(make, calls=6, share=0.3)  # the debugger's own lines run as Python pleases
    except bdb.BdbQuit:
        pytest.fail("the debugger did not read its input")
    finally:
        sys.settrace(tracer)
    assert all(text.count("tensor(") == 2 for text in shots[-1]["state"]["shown"][1:])


def _observed_training(run, around):
    net = small_net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

    def step(x, labels):
        with around():
            return train(net, optimizer, x, labels) + busy(x).mean()

    return Case(step, batch, net=net, optimizer=optimizer)


@item("7.cprofile")
def test_cprofile():
    profiles = {}

    def make(run):
        profile = profiles[run.is_lockstep] = cProfile.Profile()
        return _observed_training(run, lambda: profile)

    check(make)
    calls = [
        {
            key[2]: value[0]
            for key, value in pstats.Stats(profile).stats.items()
            if "cases" in key[0]
        }
        for profile in profiles.values()
    ]
    assert calls[0] == calls[1] and calls[0]["train"] == 5


@item("7.coverage")
def test_coverage(tmp_path):
    coverage = pytest.importorskip("coverage")
    lines = {}

    def make(run):
        observer = coverage.Coverage(data_file=None, include="*cases.py")

        class Around:
            def __enter__(self):
                observer.start()

            def __exit__(self, *_):
                observer.stop()
                data = observer.get_data()
                lines[run.is_lockstep] = {f: sorted(data.lines(f)) for f in data.measured_files()}

        return _observed_training(run, Around)

    tracer = sys.gettrace()
    try:
        check(make)
    finally:
        sys.settrace(tracer)
    assert lines[True] == lines[False] and len(next(iter(lines[True].values()))) >= 8


@item("7.settrace-and-profiler")
def test_settrace_and_torch_profiler_at_the_same_time():
    events = {}

    def make(run):
        seen = events[run.is_lockstep] = []

        def tracer(frame, event, argument):
            if "cases" in frame.f_code.co_filename:
                seen.append((event, frame.f_lineno))
            return tracer

        class Around:
            def __enter__(self):
                self.profile = torch.profiler.profile(
                    activities=[torch.profiler.ProfilerActivity.CPU]
                )
                self.profile.__enter__()
                sys.settrace(tracer)

            def __exit__(self, *_):
                sys.settrace(None)
                self.profile.__exit__(None, None, None)
                names = [event.key for event in self.profile.key_averages()]
                assert "aten::linear" in names and any("Backward" in name for name in names)

        return _observed_training(run, Around)

    tracer = sys.gettrace()
    try:
        check(make)
    finally:
        sys.settrace(tracer)
    assert events[True] == events[False] and len(events[True]) > 50


@item("7.ema")
@pytest.mark.parametrize("kind", ["by hand", "AveragedModel"])
def test_ema(kind):
    def make(run):
        net = small_net()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        if kind == "AveragedModel":
            shadow = torch.optim.swa_utils.AveragedModel(
                net, multi_avg_fn=average, use_buffers=True
            )
        else:
            shadow = copy.deepcopy(net).requires_grad_(False)

        def step(x, labels):
            loss = train(net, optimizer, x, labels)
            if kind == "AveragedModel":
                shadow.update_parameters(net)
            else:
                with torch.no_grad():
                    for mine, theirs in zip(shadow.parameters(), net.parameters(), strict=True):
                        mine.lerp_(theirs, 0.1)
            return loss, shadow(x)

        return Case(step, batch, net=net, shadow=shadow)

    check(make, calls=7, share=0.8 if kind == "AveragedModel" else 0.9)  # it reads its counter


@item("7.save-and-resume")
@pytest.mark.parametrize("place", ["in the call", "between calls"])
def test_save_in_the_middle_and_resume(place):
    def make(run):
        net = small_net()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        saved, calls = [], []

        def save():
            file = io.BytesIO()
            kept = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
            kept |= {"scheduler": scheduler.state_dict(), "generator": torch.get_rng_state()}
            torch.save(kept, file)
            saved.append(file)

        def resume():
            saved[0].seek(0)
            kept = torch.load(saved[0])
            net.load_state_dict(kept["net"])
            optimizer.load_state_dict(kept["optimizer"])
            scheduler.load_state_dict(kept["scheduler"])
            torch.set_rng_state(kept["generator"])

        def step(x, labels):
            calls.append(1)
            loss = train(net, optimizer, x, labels)
            if place == "in the call" and len(calls) in (3, 6):
                save() if len(calls) == 3 else resume()
            loss = loss + train(net, optimizer, x, labels)
            scheduler.step()
            return loss

        def inputs(number):
            if place == "between calls" and number in (3, 6):
                save() if number == 3 else resume()
            return batch()

        return Case(step, inputs, net=net, optimizer=optimizer, scheduler=scheduler)

    check(make, calls=10)
