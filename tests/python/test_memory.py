"""`lockstep.memory`: what the memory of a step is for."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import lockstep
import pytest
import torch
from lockstep import _C, Error
from lockstep.memory import ROLES
from lockstep.places import describe_line
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

WIDTH, BATCH, DEPTH = 64, 512, 3
LAYER = 4 * (WIDTH * WIDTH + WIDTH)  # bytes
MAP = 4 * BATCH * WIDTH


def make_step(optimizer_type=torch.optim.Adam, **options):
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)]
    net = nn.Sequential(*(part for layer in layers for part in (layer, nn.Sigmoid())))
    optimizer = optimizer_type(net.parameters(), lr=1e-3)

    @lockstep.function(**({"when": "always"} | options))
    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, net, optimizer


def record(step, calls=1, warm_up=3):
    x = torch.randn(BATCH, WIDTH)
    for _ in range(warm_up):
        step(x)
    gc.collect()  # what other tests have left
    with lockstep.memory(step) as m:
        for _ in range(calls):
            step(x)
    return m


@pytest.mark.parametrize("runner", ["behind", "inplace"])
def test_roles(runner):
    step, net, optimizer = make_step(runner=runner)
    m = record(step)
    most = {role: max(m.curve(role)[1], default=0) for role in ROLES}
    assert most["weights"] == pytest.approx(DEPTH * LAYER, rel=0.01)
    assert 2 * DEPTH * LAYER <= most["optimizer state"] <= (2 * DEPTH + 3) * LAYER  # temporaries
    assert DEPTH * MAP <= most["activations"] <= (DEPTH + 3) * MAP  # what sigmoid gives is kept
    assert DEPTH * LAYER <= most["gradients"] <= DEPTH * LAYER + 4 * MAP
    assert sum(m.by_role().values()) == m.peak_bytes
    assert m.by_role()["activations"] == max(m.by_role().values())


def test_lines_of_the_peak():
    step, _, _ = make_step()
    m = record(step)
    rows = {row["source"]: row for row in m.by_line()}
    forward = rows["loss = net(x).square().sum()"]
    assert forward["roles"]["activations"] >= DEPTH * MAP
    assert forward["bytes"] == sum(forward["roles"].values())
    assert "loss = net(x).square().sum()" in str(m) and "activations" in str(m)


def test_the_curve_goes_up_and_down_and_ends_where_it_began():
    step, _, _ = make_step(torch.optim.SGD)
    m = record(step, calls=3)
    times, live = m.curve()
    assert times == sorted(times) and times[0] == 0 and len(times) == len(live)
    assert all(bytes_now >= 0 for bytes_now in live)
    assert max(live) == m.peak_bytes and times[live.index(max(live))] == m.peak_time()
    resting = live[0]
    assert abs(live[-1] - resting) < 0.05 * m.peak_bytes  # the last result is another one
    assert times[-1] <= 1e6 * m.seconds


# With counting on before the first tensor, the allocator knows all of them.
AGREES = """
import json, sys
import lockstep, torch
lockstep._C.count_memory(True)
sys.path.insert(0, {folder!r})
import test_memory as t
step, net, optimizer = t.make_step(numerics={numerics!r})
m = t.record(step, calls=2)
print(json.dumps([m.peak_bytes, lockstep._C.memory_count()["peak_bytes"]]))
"""


@pytest.mark.parametrize("numerics", ["strict", "default"])
def test_the_sum_agrees_with_the_allocator(numerics, tmp_path):
    code = AGREES.format(folder=str(Path(__file__).parent), numerics=numerics)
    environment = {**os.environ, "LOCKSTEP_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    peak, counted = json.loads(done.stdout.splitlines()[-1])
    assert peak == pytest.approx(counted, rel=0.01)


def test_a_group_without_a_kernel_keeps_no_more_than_eager(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    x = torch.randn(256, 1024)

    def chain():
        y = x
        for _ in range(8):
            y = torch.sin(y * 1.5 + 0.5)
        return float(y.sum())

    def peak(fn):
        _C.count_memory(True)
        fn()
        _C.count_memory(False)
        return _C.memory_count()["peak_bytes"]

    step = lockstep.function(chain, when="always", numerics="default")
    step()
    assert peak(step) <= peak(chain)  # what it had to compile is not there yet, or just so


AHEAD = """
import sys
import lockstep
import torch

X = torch.rand(8 << 20)

def copies(count):
    total = X.new_zeros(())
    for _ in range(count):
        copy = torch.empty_like(X)
        copy.copy_(X)
        copy.sqrt_()
        total = total + copy.sum()
    return total

step = lockstep.function(copies, when="always", numerics=sys.argv[1], runner=sys.argv[2])
for _ in range(3):
    step(3).item()
lockstep._C.count_memory(True)
step(60).item()
print(lockstep._C.memory_count()["peak_bytes"])
"""


@pytest.mark.parametrize(
    ("numerics", "runner"), [("strict", "behind"), ("default", "behind"), ("default", "inplace")]
)
def test_what_is_ahead_holds_little_memory(numerics, runner):
    """Buffers of 32 MB, of which eager has two at a time; the leading thread asks for 60, in place
    for 8 before it computes. Strict and in place nothing is ahead.
    """
    done = subprocess.run(
        [sys.executable, "-c", AHEAD, numerics, runner], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 7 * 32 << 20


def test_a_plot(tmp_path):
    pytest.importorskip("matplotlib")
    step, _, _ = make_step()
    m = record(step)
    m.plot(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    m.plot(tmp_path / "memory.svg")
    assert "peak" in (tmp_path / "memory.svg").read_text()


def test_a_plot_of_nothing_warns_of_nothing(tmp_path, recwarn):
    pytest.importorskip("matplotlib")
    with lockstep.memory(lockstep.function(lambda: None)) as m:
        pass
    m.blocks.clear()  # what the process had before
    m.plot(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    assert not recwarn.list


def test_no_one_sees_the_memory_by_it():
    """Looking at addresses does not make the step wait for ever after."""
    step, _, _ = make_step()
    record(step)
    lockstep.reset_stats(step)
    x = torch.randn(BATCH, WIDTH)
    for _ in range(3):
        step(x)
    assert lockstep.stats(step)["eager_ops"] == 0


def test_before_a_call_and_without_one():
    step, _, _ = make_step()
    with lockstep.memory(step) as m:
        pass
    assert m.by_role()["weights"] == pytest.approx(DEPTH * LAYER, rel=0.3)  # other modules may live
    assert "peak" in str(m)


def test_a_session():
    with lockstep.session(when="always") as s:
        x = torch.randn(1000)
        with lockstep.memory(s) as m:
            y = x.exp()
    assert any(block.op == "aten::exp" and block.bytes == 4000 for block in m.blocks)
    assert y.sum() > 0


def test_bad_input(monkeypatch, tmp_path):
    step, _, _ = make_step()
    with pytest.raises(Error, match="is not decorated"):
        lockstep.memory(len)
    with lockstep.memory(step) as m:
        with pytest.raises(Error, match="another lockstep.memory is open: close it first"):
            lockstep.memory(step).__enter__()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(Error, match="matplotlib is not installed: pip install matplotlib"):
        m.plot(tmp_path / "memory.png")


class Loud(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise ValueError("not supported by Loud")


def test_classes_of_the_program_are_not_asked():
    step = lockstep.function(lambda x: x + 1, when="always")
    unfinished = torch.optim.SGD.__new__(torch.optim.SGD)  # has no state
    kept = [torch.ones(3).as_subclass(Loud), unfinished]
    with lockstep.memory(step) as recorded:
        step(torch.ones(1000))
        kept.append(torch.ones(3).as_subclass(Loud))
    assert recorded.peak_bytes >= 4000


@pytest.mark.parametrize("tool", ["memory", "profile"])
def test_what_could_not_begin_is_not_open(tool, monkeypatch):
    step = lockstep.function(lambda x: x + 1, when="always")
    start = "start_memory_log" if tool == "memory" else "start_timeline"

    def interrupt():
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_C, start, interrupt)
        with pytest.raises(KeyboardInterrupt), getattr(lockstep, tool)(step):
            pass
    with getattr(lockstep, tool)(step):
        assert step(torch.ones(3)).tolist() == [2, 2, 2]


def test_calls_that_ran_eagerly_are_named():
    step = lockstep.function(lambda x: (x * 2).relu(), when="never")
    m = record(step, calls=2)
    assert m.eager_calls == 2 and "2 calls ran eagerly, which hides what was asked for" in str(m)
    step = lockstep.function(lambda x: (x * 2).relu(), when="always")
    m = record(step)
    assert m.eager_calls == 0 and "ran eagerly, which" not in str(m)


def test_a_role_that_there_is_not():
    m = record(lockstep.function(lambda x: x + 1, when="always"))
    with pytest.raises(Error, match="no role 'weigths': use one of weights, gradients"):
        m.curve("weigths")


def test_long_lines_are_cut():
    source = "lambda x: (" + " + ".join(["x"] * 60) + ")"
    line = describe_line({"where": "a.py:3 in f", "source": source})
    assert line.startswith("a.py:3 in f: lambda x: (x + x") and line.endswith("…")
    assert len(line) == len("a.py:3 in f: ") + 60
    assert describe_line({"where": "a.py:3 in f", "source": "x + 1"}) == "a.py:3 in f: x + 1"


def test_objects_that_ops_take_do_not_live_as_long_as_the_graph():
    """Storages, packed weights, process groups: the graph keeps numbers and text, no objects."""

    def step(x, storage):
        return torch.empty(0).set_(storage).sum() + x.sum()

    for run in (step, lockstep.function(step, when="always")):
        storage = torch.ones(64).untyped_storage()
        for _ in range(6):
            run(torch.ones(3), storage)
        kept = StorageWeakRef(storage)
        del storage
        gc.collect()
        assert kept.expired()
