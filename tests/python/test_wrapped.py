"""What is wrapped shows: attributes, running generators, wrappers above, names of origins."""

import asyncio
import collections
import collections.abc
import copy
import functools
import inspect
import pickle

import lockstep
import pytest
import torch

X = torch.arange(6.0).reshape(2, 3)
LOOKS = {
    "stats": lockstep.stats,
    "reset_stats": lockstep.reset_stats,
    "reset": lockstep.reset,
    "explain": lockstep.explain,
    "graph_text": lockstep.graph_text,
    "profile": lockstep.profile,
    "memory": lockstep.memory,
}


# ---- attributes


class Scale:
    """A callable object that changes."""

    def __init__(self):
        self.factor = 1.0

    def __call__(self, x):
        self.factor += 1
        return x * self.factor

    def half(self):
        return self.factor / 2


def test_attributes_of_a_callable_object_are_those_of_the_object():
    scale = Scale()
    fast = lockstep.function(scale, when="always")
    assert fast.__doc__ == "A callable object that changes."
    for i in range(2, 5):
        assert torch.equal(fast(X), X * i)
        assert fast.factor == scale.factor == i and fast.half() == i / 2
    fast.factor = 10.0
    assert scale.factor == 10.0 and torch.equal(fast(X), X * 11)
    fast.note = "new"
    assert scale.note == "new" and "note" in dir(fast) and "half" in dir(fast)
    del fast.note
    assert not hasattr(scale, "note") and not hasattr(fast, "note")
    with pytest.raises(AttributeError, match="'Scale' object has no attribute 'nothing'"):
        fast.nothing  # noqa: B018
    twin = copy.deepcopy(fast)
    twin.factor = 1.0
    assert fast.factor == 11.0 and pickle.loads(pickle.dumps(fast)).factor == 11.0


def test_attributes_of_a_function_are_those_of_the_function():
    def count(x):
        count.calls += 1
        return x * count.calls

    count.calls = 0
    fast = lockstep.function(count, when="always")
    for i in range(1, 4):
        assert torch.equal(fast(X), X * i) and fast.calls == i
    fast.calls = 10
    assert torch.equal(fast(X), X * 11)


@pytest.mark.parametrize("name", ["_settings", "_name_origins", "_options", "core"])
def test_attributes_of_the_names_of_ours_are_no_danger(name):
    def plain(x):
        return x + 1

    scale = Scale()
    for target in (plain, scale):
        setattr(target, name, "theirs")
    fast, of_object = lockstep.function(plain, when="always"), lockstep.function(scale)
    with pytest.raises(AttributeError, match=f"{name} is Lockstep's own here: set it on"):
        setattr(fast, name, "theirs")
    with pytest.raises(AttributeError, match=f"{name} is Lockstep's own here"):
        delattr(fast, name)
    for _ in range(3):
        assert torch.equal(fast(X), X + 1)
        of_object(X)
    assert lockstep.stats(fast)["graph_ops"] == 2
    assert lockstep.stats(of_object)["calls"] == 3 and scale.factor == 4
    assert getattr(scale, name) == getattr(plain, name) == "theirs"


def test_attributes_where_a_method_has_none():
    fast = lockstep.function(Scale().half)
    fast.note = "kept"
    assert fast.note == "kept" and fast() == 0.5
    del fast.note
    assert not hasattr(fast, "note")


# ---- what is wrapped once more


def wrapped_again(fast):
    """The ways to call a decorated function under another object."""

    @functools.wraps(fast)
    def wrapper(*args):
        return fast(*args)

    return {
        "no_grad": torch.no_grad()(fast),
        "wraps": wrapper,
        "partial": functools.partial(fast, X),
        "all": functools.partial(torch.enable_grad()(functools.partial(wrapper)), X),
    }


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("way", ["no_grad", "wraps", "partial", "all"])
def test_looks_go_through_wrappers(look, way):
    fast = lockstep.function(lambda x: x * 2, when="always")
    wrapped = wrapped_again(fast)[way]
    for _ in range(3):
        wrapped(*(() if isinstance(wrapped, functools.partial) else (X,)))
    assert lockstep.stats(wrapped) == lockstep.stats(fast)
    assert lockstep.stats(wrapped)["calls"] == 3
    LOOKS[look](wrapped)
    assert lockstep.stats(fast)["calls"] == (0 if look.startswith("reset") else 3)


class Doubling(torch.nn.Module):
    @lockstep.function(when="always")
    def forward(self, x):
        return x * 2


class Tripling:
    @lockstep.function(when="always")
    def __call__(self, x):
        return x * 3


@pytest.mark.parametrize("kind", [Doubling, Tripling])
def test_an_object_stands_for_the_decorated_method_of_its_class(kind):
    method = kind.__dict__["forward" if kind is Doubling else "__call__"]
    lockstep.reset(method)
    one = kind()
    for _ in range(3):
        one(X)
    assert lockstep.stats(one) == lockstep.stats(method)
    assert lockstep.stats(one)["calls"] == 3
    with pytest.raises(lockstep.Error, match="an object of type Linear is not decorated"):
        lockstep.stats(torch.nn.Linear(1, 1))


def test_wrappers_of_what_is_not_decorated_are_refused():
    around_itself = functools.wraps(lambda x: x)(lambda x: x)
    around_itself.__wrapped__ = around_itself
    for thing in (functools.partial(len), torch.no_grad()(lambda x: x), around_itself):
        with pytest.raises(lockstep.Error, match="is not decorated: put @lockstep.function on it"):
            lockstep.stats(thing)


# ---- running generators and coroutines


@lockstep.function(when="always")
def numbers(x):
    yield x + 1
    yield x + 2


@lockstep.function(when="always")
async def later(x):
    await asyncio.sleep(0)
    return x + 1


@lockstep.function(when="always")
async def numbers_later(x):
    yield x + 1


def test_a_running_generator_shows_frame_code_and_name():
    running = numbers(X)
    assert (running.__name__, running.__qualname__) == ("numbers", "numbers")
    assert running.gi_code is numbers.__code__ and running.gi_yieldfrom is None
    assert inspect.getgeneratorstate(running) == inspect.GEN_CREATED
    next(running)
    assert inspect.getgeneratorstate(running) == inspect.GEN_SUSPENDED and not running.gi_running
    assert running.gi_frame.f_locals["x"] is X
    running.close()
    assert running.gi_frame is None
    assert inspect.getgeneratorstate(running) == inspect.GEN_CLOSED
    assert isinstance(running, collections.abc.Generator)
    with pytest.raises(AttributeError, match="nothing"):
        running.nothing  # noqa: B018


def test_a_running_coroutine_shows_frame_code_and_name():
    running = later(X)
    assert (running.__name__, running.__qualname__) == ("later", "later")
    assert running.cr_code is later.__code__ and running.cr_frame.f_locals["x"] is X
    assert inspect.getcoroutinestate(running) == inspect.CORO_CREATED
    running.close()
    assert inspect.getcoroutinestate(running) == inspect.CORO_CLOSED

    async def main():
        return await asyncio.create_task(later(X))

    assert torch.equal(asyncio.run(main()), X + 1)


def test_a_running_async_generator_shows_frame_code_and_name():
    running = numbers_later(X)
    assert (running.__name__, running.__qualname__) == ("numbers_later", "numbers_later")
    assert running.ag_code is numbers_later.__code__ and running.ag_frame.f_locals["x"] is X
    assert running.ag_await is None and not running.ag_running


# ---- names of origins


def refuse(*args, **kwargs):
    raise RuntimeError("code of the user's")


class Row(list):
    __getitem__ = __iter__ = __len__ = refuse


class Pair(tuple):
    __getitem__ = __iter__ = __len__ = refuse


class Table(dict):
    items = __iter__ = __getitem__ = __len__ = refuse


class Key:
    __repr__ = __str__ = refuse


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 2)

    named_parameters = named_buffers = refuse

    def forward(self, x):
        return self.inner(x)


class Hidden:
    __class__ = property(refuse)


class Signed:
    __signature__ = property(refuse)

    def __call__(self, value):
        return X + 1


VALUES = {
    "row": Row([X]),
    "pair": Pair([X]),
    "table": Table(a=X),
    "key": {Key(): X, "b": X},
    "module": Net(),
    "class": Hidden(),
    "several": [Row([X]), {"b": Table(a=X)}, (Net(), Pair())],
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("place", ["argument", "closure", "partial", "global"])
def test_names_of_origins_run_nothing_of_the_users(name, place, monkeypatch):
    value = VALUES[name]
    if place == "global":
        monkeypatch.setitem(globals(), "somewhere", value)
    steps = {
        "argument": lambda v: X + 1,
        "closure": lambda: (value, X + 1)[1],
        "partial": functools.partial(lambda v: X + 1, value),
        "global": lambda: (somewhere, X + 1)[1],  # noqa: F821
    }
    fast = lockstep.function(steps[place], when="always")
    for _ in range(3):
        assert torch.equal(fast(*([value] if place == "argument" else [])), X + 1)
    assert lockstep.stats(fast)["graph_ops"] == 2


def test_a_signature_that_raises_does_not_end_the_call():
    assert torch.equal(lockstep.function(Signed(), when="always")(3), X + 1)


def test_names_of_origins_reach_into_containers_and_modules():
    names = {}
    net, row, pair = Net(), Row([X.clone()]), collections.namedtuple("Point", "x")(X.clone())
    table = collections.OrderedDict(a=X.clone())

    def step(net, row, *rest, table):
        pass

    lockstep.origins.name_origins(
        lambda tensor, name: names.update({name: tensor}), step, (net, row, pair), {"table": table}
    )
    assert names["net.inner.weight"] is net.inner.weight
    assert names["row[0]"] is list.__getitem__(row, 0)
    assert names["rest[0][0]"] is pair.x and names["table['a']"] is table["a"]
