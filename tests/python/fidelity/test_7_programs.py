"""Point 7, second part: nesting, threads, processes, event loops, observers, resuming, sessions."""

from __future__ import annotations

import asyncio
import bdb
import copy
import cProfile
import io
import os
import pdb
import pstats
import sys
import threading

import lockstep
import pytest
import torch
import torch.nn.functional as F
from cases import batch, busy, small_net, train
from kit import OPTIONS, Case, check, check_whole
from programs import run_program
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

item = pytest.mark.item


@item("7.nested-and-recursive")
def test_nested_decorated_functions():
    def make(run):
        net = small_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        @run.wrap
        def forward(x):
            return net(x)

        @run.wrap
        def loss_of(x, labels):
            return F.cross_entropy(forward(x), labels) + forward(x).mean()

        def step(x, labels):
            optimizer.zero_grad()
            loss = loss_of(x, labels)
            loss.backward()
            optimizer.step()
            return loss, forward(x)

        return Case(step, batch, net=net)

    check(make)


@item("7.nested-and-recursive")
def test_recursive_decorated_function():
    def make(run):
        weight = nn.Parameter(torch.randn(6, 6))

        @run.wrap
        def fold(tree):
            if isinstance(tree, torch.Tensor):
                return torch.tanh(tree @ weight)
            return torch.tanh(fold(tree[0]) @ weight + fold(tree[1]))

        def step(tree):
            out = fold(tree)
            out.sum().backward()
            return out

        def inputs(number):
            leaves = [torch.randn(6) for _ in range(5)]
            if number % 2:
                return (((leaves[0], leaves[1]), (leaves[2], (leaves[3], leaves[4]))),)
            return ((leaves[0], (leaves[1], leaves[2])),)

        return Case(step, inputs, weight=weight)

    check(make, calls=8)


@item("7.eight-threads")
def test_the_same_function_from_eight_threads_at_once():
    def work(step, number, results):
        generator = torch.Generator().manual_seed(number)
        weight = torch.randn(6, 6, generator=generator, requires_grad=True)
        for _ in range(6):
            x = torch.randn(5, 6, generator=generator)
            results[number].append(step(weight, x))

    def step(weight, x):
        loss = (busy(x)[:5, :6] * (x @ weight).tanh()).square().sum()
        loss.backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
            weight.grad = None
        return loss.item(), weight.detach().clone()

    def run_all(function, threaded):
        results = [[] for _ in range(8)]
        threads = [threading.Thread(target=work, args=(function, n, results)) for n in range(8)]
        for thread in threads:
            thread.start()
            if not threaded:
                thread.join()
        for thread in threads:
            thread.join(timeout=60)
            assert not thread.is_alive()
        return results

    want = run_all(step, threaded=False)
    decorated = lockstep.function(step, **OPTIONS)
    got = run_all(decorated, threaded=True)
    for mine, theirs in zip(want, got, strict=True):
        assert [a[0].hex() for a in mine] == [b[0].hex() for b in theirs]
        assert all(torch.equal(a[1], b[1]) for a, b in zip(mine, theirs, strict=True))
    assert lockstep.stats(decorated)["calls"] == 48


@item("7.fork-after-use")
@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_fork_after_use():
    def in_child(step, x):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                answer = step(x).detach().numpy().tobytes()
                os.write(writing, answer)
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
        assert os.waitpid(child, 0)[1] == 0
        return answer

    def make(run):
        weight = torch.randn(6, 6)

        def inner(x):
            return (x @ weight).tanh()

        inner = run.wrap(inner)
        for _ in range(3):
            inner(torch.randn(5, 6))

        def step(x):
            work = busy(x)[:5, :6] * x
            weight.add_(work.mean())
            answer = in_child(inner, x)
            return answer, inner(x), work

        return Case(step, lambda n: (torch.randn(5, 6),), weight=weight)

    for shot in check(make):
        assert shot["result"][1] == shot["result"][2]["data"]


@item("7.dataloader-in-a-session")
@pytest.mark.parametrize("style", ["tensors", "persistent"])
def test_data_loader_with_two_workers_inside_a_session(style):
    def body(run):
        torch.manual_seed(7)
        net = small_net()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        data = TensorDataset(torch.randn(24, 6), torch.randint(0, 3, (24,)))
        loader = DataLoader(
            data, 4, shuffle=True, num_workers=2, persistent_workers=style == "persistent"
        )
        losses = []
        for _ in range(2):
            for x, labels in loader:
                losses.append(train(net, optimizer, x, labels).item())
        del loader
        return losses, net, optimizer

    check_whole(body, share=0.5)  # each batch is a feed of its own, and twelve steps is not long


@item("7.asyncio")
def test_asyncio_inside():
    def make(run):
        weight = nn.Parameter(torch.randn(6, 6))
        order = []

        async def part(name, x):
            hidden = x @ weight
            for index in range(3):
                hidden = torch.tanh(hidden @ weight)
                order.append((name, index))
                await asyncio.sleep(0)
            return hidden.sum()

        async def both(x):
            first, second = await asyncio.gather(part("a", x), part("b", x * 2))
            order.append(first.item() > second.item())
            return first + second

        def step(x, labels):
            loss = asyncio.run(both(x))
            loss.backward()
            return loss

        return Case(step, batch, weight=weight, order=order)

    check(make)


@item("7.asyncio")
def test_decorated_coroutine_functions_take_turns():
    async def walk(weight, x, trail):
        for index in range(4):
            x = torch.tanh(x @ weight)
            await asyncio.sleep(0)
            trail.append((index, x.sum().item()))
        return x

    async def all_of(function):
        generator = torch.Generator().manual_seed(3)
        weight = torch.randn(6, 6, generator=generator)
        trails = [[], [], []]
        starts = [torch.randn(2, 6, generator=generator) for _ in trails]
        walks = [function(weight, x, t) for x, t in zip(starts, trails, strict=True)]
        ends = await asyncio.gather(*walks)
        outside = torch.ones(3).cumsum(0)
        return [end.tolist() for end in ends], trails, outside.tolist()

    want = asyncio.run(all_of(walk))
    decorated = lockstep.function(walk, **OPTIONS)
    assert asyncio.iscoroutinefunction(decorated)
    for _ in range(3):
        assert asyncio.run(all_of(decorated)) == want


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
        {key[2]: value[0] for key, value in pstats.Stats(profile).stats.items() if "cases" in key[0]}
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
                self.profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
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
            shadow = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=average, use_buffers=True)
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


@item("7.evaluation-function")
def test_decorated_evaluation_function():
    def make(run):
        net = small_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        train_step = run.wrap(lambda x, y: train(net, optimizer, x, y))

        @torch.no_grad()
        def evaluate(x, labels):
            net.eval()
            try:
                logits = net(x)
                right = (logits.argmax(1) == labels).float().mean().item()
                return right, F.cross_entropy(logits, labels), logits
            finally:
                net.train()

        def inputs(number):
            train_step(*batch())
            return batch()

        return Case(evaluate, inputs, net=net)

    check(make)


@item("7.nested-sessions")
def test_nested_sessions():
    def body(run):
        net = small_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        step = run.wrap(lambda x, y: train(net, optimizer, x, y))
        open_session = lockstep.session if run.is_lockstep else NoSession
        losses = []
        for _ in range(4):
            with open_session(**OPTIONS):
                losses.append(train(net, optimizer, *batch()))
                with open_session(**OPTIONS):
                    losses.append(step(*batch()))
                losses.append(losses[-1] + losses[-2])
        return losses, net

    check_whole(body, share=None)  # which session counts an op of a nested one is its own affair


class NoSession:
    def __init__(self, **options):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


@item("7.exception-through-a-session")
def test_exception_through_a_session():
    def body(run):
        open_session = lockstep.session if run.is_lockstep else NoSession
        state, marks = torch.zeros(5, 6), []
        for number in range(6):
            x = torch.randn(5, 6)
            try:
                with open_session(**OPTIONS):
                    state.add_(busy(x)[:5, :6])
                    with open_session(**OPTIONS):
                        state.mul_(0.5)
                        if number % 2:
                            x.index_select(0, torch.tensor([99]))
                        marks.append("not raised")
                        state.sub_(1)
            except IndexError as error:
                marks.append(str(error))
            marks.append(state.sum().item())
        return state, marks

    check_whole(body, share=None, open_session=NoSession)  # the sessions are those of the body
