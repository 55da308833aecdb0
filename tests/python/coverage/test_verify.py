"""`verify`: finds a fault of one ulp in one op, names it, and leaves everything as it was."""

from __future__ import annotations

import argparse
import array
import collections
import functools
import importlib
import inspect
import itertools
import queue as queues
import random
import sys
import threading
import types

import lockstep
import numpy
import pytest
import torch
from lockstep.verify import compare_ways, verify

net = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Sigmoid(), torch.nn.Linear(16, 4)
)
optimizer = torch.optim.Adam(net.parameters())
history = []


def note(loss):
    history.append(loss.item())


def step(x):
    optimizer.zero_grad()
    h = net[0](x)
    h = torch.sigmoid(net[1](h))
    loss = net[3](h).pow(2).sum()
    loss.backward()
    optimizer.step()
    note(loss)
    return loss


@pytest.fixture
def faulty():
    """A way in which `sigmoid` is one unit in the last place too high."""
    planted = [False]
    library = torch.library.Library("aten", "IMPL")

    def sigmoid(t):
        out = 1 / (1 + (-t).exp())
        return torch.nextafter(out, out + 1) if planted[0] else out

    library.impl("sigmoid", sigmoid, "CPU")

    def wrap(fn):
        def run(*args):
            planted[0] = True
            try:
                return fn(*args)
            finally:
                planted[0] = False

        return run

    yield wrap
    library._destroy()


def test_equal_and_nothing_changed():
    x = torch.randn(5, 8)
    before = [p.detach().clone() for p in net.parameters()]
    random = torch.get_rng_state()
    found = verify(step, x)
    assert found and "equal to the last bit in 5 steps" in str(found)
    assert history == []
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert not optimizer.state
    assert torch.equal(random, torch.get_rng_state())


@pytest.mark.filterwarnings("ignore")
def test_a_fault_of_one_ulp_is_named(faulty):
    found = compare_ways(step, (torch.randn(5, 8),), {}, 3, faulty)
    assert not found
    assert found.step == 1
    assert found.op == "aten.sigmoid.default"
    source, first = inspect.getsourcelines(step)
    asked = first + next(i for i, line in enumerate(source) if "torch.sigmoid" in line)
    assert (found.file, found.line) == (__file__, asked)


def test_python_state_that_differs_is_found():
    def wrap(fn):
        def run(*args):
            out = fn(*args)
            fn.__globals__["history"].append("extra")
            return out

        return run

    found = compare_ways(step, (torch.randn(5, 8),), {}, 2, wrap)
    assert found.step == 1 and found.op is None
    assert any("history" in line for line in found.differences)


def test_closures_methods_and_modules():
    class Trainer:
        def __init__(self):
            self.net = torch.nn.Linear(3, 1)
            self.count = 0

        def step(self, x):
            self.count += 1
            return self.net(x).sum() * self.count

    trainer = Trainer()
    assert verify(trainer.step, torch.ones(2, 3), steps=3)
    assert trainer.count == 0
    total = torch.zeros(())

    def add(x):
        nonlocal total
        total = total + x.sum()
        return total

    assert verify(add, torch.ones(3))
    assert total.item() == 0
    assert verify(torch.nn.Linear(3, 2), torch.ones(1, 3))


def test_bad_input():
    with pytest.raises(lockstep.Error, match="not callable"):
        verify(3)
    with pytest.raises(lockstep.Error, match="number of steps"):
        verify(step, steps=0)


# ---- decorated functions, wrappers, exceptions


model = torch.nn.Linear(3, 1)
descent = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.LambdaLR(descent, lambda epoch: 0.9**epoch)
watches = []  # filled where calls note whether they co-execute
active = []
X = torch.ones(2, 3)


def plain_train(x):
    if watches:
        active.append(lockstep._C.is_active())
    descent.zero_grad()
    loss = model(x).square().sum()
    loss.backward()
    descent.step()
    schedule.step()
    return loss


train = lockstep.function(plain_train, when="always")


class Trainer:
    """Reaches the function by its attributes, and has a decorated method."""

    def __init__(self):
        self.train, self.bound, self.net = train, lockstep.function(self.twice), model
        self.calls = 0

    def twice(self, x):
        return self.train(x) * 2

    @lockstep.function(when="always")
    def step(self, x):
        self.calls += 1
        return self.train(x) + self.net(x).sum() * self.calls

    def through_an_attribute(self, x):
        return self.bound(x)


trainer = Trainer()

REACHED = {
    "itself": train,
    "a global": lambda x: train(x) + 1,
    "a closure": (lambda fn: lambda x: fn(x) + 1)(train),
    "a default": lambda x, fn=train: fn(x),
    "an argument": functools.partial(lambda fn, x: fn(x), train),
    "a keyword": functools.partial(lambda x, fns: fns["a"][0](x), fns={"a": [train]}),
    "partial": functools.partial(functools.partial(train)),
    "a cache": functools.lru_cache(train),
    "a wrapper": torch.enable_grad()(train),
    "a decorated method": trainer.step,
    "an attribute": trainer.through_an_attribute,
    "a decorated attribute": trainer.bound,
    "not decorated": functools.partial(plain_train),
}


ONE_CALL = "  but all 23 ops ran eagerly: more steps may show more"  # the other two are looked up


@pytest.mark.parametrize("way", REACHED)
def test_decorated_functions_are_copied(way):
    before = str((model.state_dict(), descent.state_dict(), schedule.state_dict()))
    lockstep.reset_stats(train)
    found = verify(REACHED[way], X, steps=3)
    first, *more = str(found).splitlines()
    assert found and first == "equal to the last bit in 3 steps"
    assert more == [ONE_CALL] if way == "a cache" else not more
    assert before == str((model.state_dict(), descent.state_dict(), schedule.state_dict()))
    assert lockstep.stats(train)["calls"] == 0 and trainer.calls == 0 and active == []


@pytest.mark.parametrize("way", REACHED)
def test_one_way_is_eager_and_the_other_in_lockstep(way, monkeypatch):
    monkeypatch.setitem(globals(), "watches", [True])
    found = verify(REACHED[way], X, steps=1)
    (line,) = found.differences
    assert line == "state.active.0: eager has ('bool', False), the other ('bool', True)"
    assert active == []


class Decorated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)

    @lockstep.function(when="always")
    def forward(self, x):
        active.append(lockstep._C.is_active())
        return self.norm(x)


@pytest.mark.parametrize("is_outer", [False, True])
def test_decorated_methods_of_classes_run_eagerly_too(is_outer):
    net = Decorated()
    step = net if is_outer else lambda x: net(x)
    try:
        assert verify(step, X, steps=3)
        assert active == [False] * 3 + [True] * 3  # a class is not copied, nor is its global
    finally:
        active.clear()
    assert net.norm.num_batches_tracked == 0
    ways = lockstep.stats(Decorated.forward)["reasons"]
    assert ways["switched_off"] > 0 and lockstep.stats(Decorated.forward)["ops"] == 0
    lockstep.reset(Decorated.forward)


def test_the_state_of_the_object_is_compared():
    net = torch.nn.BatchNorm1d(3)

    def wrap(module):
        def run(x):
            module.num_batches_tracked.add_(1)
            return module(x)

        return run

    found = compare_ways(net, (X,), {}, 2, wrap)
    assert found.step == 1 and "num_batches_tracked" in str(found)
    owner = Trainer()
    owner.net = net

    found = compare_ways(
        types.MethodType(lambda self, x: self.net(x), owner),
        (X,),
        {},
        2,
        lambda method: wrap_method(method, lambda self: self.net.num_batches_tracked.add_(1)),
    )
    assert found.step == 1 and "self.net" in str(found)


def wrap_method(method, change):
    def run(x):
        change(method.__self__)
        return method(x)

    return run


def test_a_bound_decorated_method_runs():
    found = compare_ways(trainer.step, (X,), {}, 2, lambda step: lambda x: step(x) * 2)
    assert found.step == 1  # both ways ran, and one result is twice the other
    assert any(line.startswith("result.data:") for line in found.differences)


def test_other_wrappers_are_verified_with_the_function():
    grad_modes = []

    @torch.no_grad()
    def step(x):
        return torch.is_grad_enabled()

    def wrap(fn):
        return lambda x: grad_modes.append(fn(x))

    compare_ways(step, (X,), {}, 1, wrap)
    assert set(grad_modes) == {False}


def raises(x):
    raise ValueError("always")


@lockstep.function
def misses(x, y):
    return x + y


@pytest.mark.parametrize("fn, error", [(raises, "ValueError: always"), (misses, "TypeError: ")])
def test_nothing_is_equal_where_no_step_comes_to_its_end(fn, error):
    found = verify(fn, X, steps=3)
    assert not found and not found.equal and found.step is None
    assert str(found).startswith(
        f"nothing to compare, no step came to its end: raised in both ways: {error}"
    )
    assert list(found.raised) == [1, 2, 3]


def test_exceptions_in_some_steps_are_said():
    calls = [0]

    def step(x):
        calls[0] += 1
        if calls[0] in (2, 3):
            raise ValueError(f"call {calls[0]} of {object()}"[:6])
        return x * calls[0]

    found = verify(step, X, steps=4)
    assert found and found.raised == {2: "ValueError: call 2", 3: "ValueError: call 3"}
    assert str(found) == (
        "equal to the last bit in 4 steps, 2 of which raised in both ways; "
        "in step 2: ValueError: call 2"
    )


def test_addresses_in_messages_do_not_differ():
    held = [X, X]

    def step(x):
        if held:
            held.pop()
            return x
        raise ValueError(f"nothing in {object()}")

    found = verify(step, X, steps=3)
    assert found and "ValueError: nothing in <object object at 0x*>" in str(found)


def test_functions_that_torch_compiled():
    def plain(x):
        return torch.relu(x) * 2

    compiled = torch.compile(plain, backend="eager")
    for fn in (compiled, lambda x: compiled(x), lockstep.function(compiled)):
        found = verify(fn, X, steps=2)
        assert found and not found.raised
    torch._dynamo.reset()


class Logged:
    """What training code holds beside tensors: a lock, a log file, a thread."""

    def __init__(self, path):
        self.lock, self.again, self.log = threading.Lock(), threading.RLock(), open(path, "w")
        self.thread = threading.current_thread()
        self.weight = torch.ones(3)

    def step(self, x):
        with self.lock, self.again:
            self.weight += x.sum()
            print("step", file=self.log)
        return self.weight * x


def test_locks_and_files_that_are_reached(tmp_path):
    trainer = Logged(tmp_path / "log")
    with trainer.log, trainer.lock:  # held by somebody else: the copies have locks of their own
        found = verify(trainer.step, torch.ones(2, 3), steps=3)
    assert found and not found.raised
    assert torch.equal(trainer.weight, torch.ones(3))
    assert (tmp_path / "log").read_text() == 6 * "step\n"


def test_what_cannot_be_copied_is_named():
    batches = (torch.ones(2) for _ in range(3))
    with pytest.raises(
        lockstep.Error, match="reaches by .batches. a generator, which cannot be copied"
    ):
        verify(lambda: next(batches) * 2)


def test_what_cannot_be_compared_is_refused():
    def numbers(x):
        yield x

    for fn in (numbers, lockstep.function(numbers)):
        with pytest.raises(lockstep.Error, match="give a function that runs it"):
            verify(fn, X)
    with lockstep.session(when="always"):
        with pytest.raises(lockstep.Error, match="call it outside of sessions"):
            verify(step, X)


# ---- what Python and the program's other modules keep


namespace = types.SimpleNamespace(count=0, nested=argparse.Namespace(count=0))
numbers = itertools.count()
weights = itertools.cycle([1.0, 2.0, 3.0])
flags, values = bytearray(2), array.array("d", [0.0])
drawn, draws = random.Random(3), numpy.random.RandomState(3)
queue = collections.deque([1.0, 2.0], maxlen=2)
mapping = collections.UserDict(count=0)
add_to_history = history.append


def uses_all(x):
    namespace.count += 1
    namespace.nested.count += 1
    mapping["count"] += 1
    flags[0] += 1
    values[0] += 1
    queue.append(queue[0] + 1)
    add_to_history(namespace.count)
    sums = (namespace.count, namespace.nested.count, mapping["count"], flags[0], values[0])
    drawings = (next(numbers), next(weights), queue[0], drawn.random(), draws.rand())
    return x * sum(sums) * sum(drawings), len(history)


def state_of_all():
    states = (namespace, mapping, flags, values, queue, history, numbers, drawn.getstate())
    return repr((*states, draws.get_state(), weights.__reduce__()))


def test_what_python_counts_with():
    before = state_of_all()
    found = verify(uses_all, X, steps=3)
    assert found, str(found)
    assert state_of_all() == before


ENGINE = """
import torch

losses = []
settings = {"scale": 1.0}

class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value):
        self.sum += value
        self.count += 1
        return self.sum / self.count

meter = Meter()
calls = 0

def scaled(x):
    global calls
    calls += 1
    losses.append(x.sum().item())
    settings["scale"] += 1
    return x * settings["scale"] + calls
"""


TRAINING = """
import engine_of_a_program as engine
from engine_of_a_program import losses, meter, scaled

def by_module(x):
    y = engine.scaled(x)
    return y * engine.meter.update(len(engine.losses)) * engine.calls

def by_name(x):
    y = scaled(x)
    return y * meter.update(len(losses))
"""


@pytest.fixture
def training(tmp_path, monkeypatch):
    """A program of two modules: one trains, the other keeps losses, a meter and settings."""
    names = ("engine_of_a_program", "training_of_a_program")
    for name, text in zip(names, (ENGINE, TRAINING), strict=True):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(names[1])
    for name in names:
        del sys.modules[name]


@pytest.mark.parametrize("way", ["by_module", "by_name"])
def test_other_modules_of_the_program(training, way):
    found = verify(getattr(training, way), X, steps=3)
    assert found, str(found)
    engine = training.engine
    assert (engine.calls, engine.losses, engine.meter.count) == (0, [], 0)
    assert engine.settings == {"scale": 1.0}


class Buffer:
    """An object of the program whose tensors a step changes."""

    def __init__(self):
        self.kept = torch.zeros(3)


buffer = Buffer()


def test_tensors_of_objects_are_compared():
    def wrap(fn):
        def run(x):
            fn.__globals__["buffer"].kept.add_(1)
            return fn(x)

        return run

    step = eval("lambda x: x * len(buffer.kept)", globals())
    found = compare_ways(step, (X,), {}, 2, wrap)
    assert found.step == 1 and "buffer.kept" in str(found)
    assert torch.equal(buffer.kept, torch.zeros(3))


def test_loaders_with_a_generator_of_their_own(monkeypatch):
    generator = torch.Generator().manual_seed(3)
    data = torch.randn(8, 3)
    loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True, generator=generator)
    monkeypatch.setitem(globals(), "loader", loader)
    before = generator.get_state()
    found = verify(eval("lambda: [batch * 2 for batch in loader]", globals()), steps=3)
    assert found, str(found)
    assert torch.equal(generator.get_state(), before)


def test_iterators_that_cannot_be_copied_are_named(monkeypatch):
    loader = torch.utils.data.DataLoader(torch.ones(8, 3), batch_size=2)
    for batches in (iter(loader), (torch.ones(3) for _ in range(9))):
        monkeypatch.setitem(globals(), "batches", batches)
        step = eval("lambda: next(batches) * 2", globals())
        with pytest.raises(lockstep.Error, match="lockstep.verify: the function reaches by 'batc"):
            verify(step)
        assert len(next(batches)) > 0  # nothing was taken from it by then


def test_threads_that_run_are_named():
    class Prefetcher:
        def __init__(self):
            self.stopped, self.batches = threading.Event(), queues.Queue()
            self.thread = threading.Thread(target=self.stopped.wait, daemon=True)
            self.thread.start()

        def step(self, x):
            return x + self.batches.qsize()

    prefetcher = Prefetcher()
    try:
        with pytest.raises(lockstep.Error, match="reaches a thread that runs"):
            verify(prefetcher.step, X)
    finally:
        prefetcher.stopped.set()
        prefetcher.thread.join()
    assert verify(prefetcher.step, X)  # a condition and its lock are copied together


def test_what_has_nothing_to_compare_says_so(monkeypatch):
    found = verify(lambda: 3)
    assert found and "no tensor op was asked for" in str(found)
    found = verify(lambda x: x + 1, X, steps=1)
    assert found and "ops ran eagerly: more steps may show more" in str(found)
    found = verify(lambda x: x + 1, X)
    assert found.graph_ops > 0 and str(found) == "equal to the last bit in 5 steps"
    monkeypatch.setenv("LOCKSTEP_DISABLE", "1")
    with pytest.raises(lockstep.Error, match="LOCKSTEP_DISABLE is set"):
        verify(lambda x: x + 1, X)
