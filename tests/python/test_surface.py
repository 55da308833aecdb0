"""What can be decorated, and that it stays what it was: values, names, copies, pickles, hooks."""

import asyncio
import copy
import functools
import gc
import inspect
import pickle
import weakref

import lockstep
import pytest
import torch
from both_ways import bits
from torch.fx.experimental.proxy_tensor import make_fx

X = torch.arange(6.0).reshape(2, 3)


@lockstep.function
def at_module_level(x, scale: float = 2.0, *, shift=1):
    """Scales and shifts."""
    return x * scale + shift


class Holder:
    """Methods of every kind, decorated."""

    factor = 3

    def __init__(self):
        self.calls = 0

    @lockstep.function(when="always")
    def method(self, x):
        self.calls += 1
        return x * self.factor

    @classmethod
    @lockstep.function(when="always")
    def inside_classmethod(cls, x):
        return x + cls.factor

    @lockstep.function(when="always")
    @classmethod
    def outside_classmethod(cls, x):
        return x - cls.factor

    @staticmethod
    @lockstep.function(when="always")
    def inside_staticmethod(x):
        return x.sin()

    @lockstep.function(when="always")
    @staticmethod
    def outside_staticmethod(x):
        return x.cos()


def plain(x, y=2):
    """A plain function."""
    return (x + y).tanh()


def agrees(fast, slow, *arguments, calls=4):
    """Calls both some times and compares; returns the counters of the decorated one."""
    for _ in range(calls):
        assert bits(fast(*arguments)) == bits(slow(*arguments))
    return lockstep.stats(fast)


def ran_in_graph(fn):
    """Whether the graph ran at least the ops of one call."""
    return lockstep.stats(fn)["graph_ops"] > 0


# ---- kinds of callables


def test_bare_and_with_options():
    bare = lockstep.function(plain)
    with_options = lockstep.function(when="always", numerics="strict")(plain)
    empty = lockstep.function()(plain)
    for fast in (bare, with_options, empty):
        stats = agrees(fast, plain, X)
        assert (stats["calls"], stats["ops"]) == (4, 8)
        assert stats["traced_calls"] == 1 and stats["graph_ops"] == 6, stats


def test_never_runs_eagerly_under_a_name():
    fast = lockstep.function(plain, when="never")
    stats = agrees(fast, plain, X)
    assert stats["ops"] == 0 and stats["reasons"] == {"switched_off": 4}


def test_methods():
    holder = Holder()
    for _ in range(3):
        assert torch.equal(holder.method(X), X * 3)
    assert holder.calls == 3
    assert torch.equal(Holder.method(holder, X), X * 3)
    assert lockstep.stats(holder.method) == lockstep.stats(Holder.method)
    assert lockstep.stats(Holder.method)["calls"] == 4


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_classmethod_and_staticmethod(where):
    class Child(Holder):
        factor = 5

    for _ in range(3):
        by_class = getattr(Child, f"{where}_classmethod")
        assert torch.equal(by_class(X), X + 5 if where == "inside" else X - 5)
        assert torch.equal(
            getattr(Holder(), f"{where}_classmethod")(X), X + 3 * (-1) ** (where != "inside")
        )
        for owner in (Holder, Holder()):
            static = getattr(owner, f"{where}_staticmethod")
            assert torch.equal(static(X), X.sin() if where == "inside" else X.cos())
    assert ran_in_graph(by_class) and ran_in_graph(static)


def test_methods_that_a_class_makes_static_or_of_itself():
    class Base:
        @lockstep.function(when="always")
        def __new__(cls, factor):
            made = super().__new__(cls)
            made.value = X * factor
            return made

        @lockstep.function(when="always")
        def __init_subclass__(cls, factor=1):
            super().__init_subclass__()
            cls.scaled = X * factor

        @lockstep.function(when="always")
        def __class_getitem__(cls, factor):
            return cls.__name__, X * factor

    class Child(Base, factor=5):
        pass

    assert torch.equal(Child.scaled, X * 5)
    for factor in (2, 3, 4):
        assert type(Child(factor)) is Child and torch.equal(Child(factor).value, X * factor)
        name, value = Child[factor]
        assert name == "Child" and torch.equal(value, X * factor)
    assert ran_in_graph(Base.__new__) and ran_in_graph(Base.__class_getitem__)


def test_bound_method_and_callable_object():
    class Scale:
        factor = 4.0

        def __call__(self, x):
            return x * self.factor

        def method(self, x):
            return x / self.factor

    scale = Scale()
    for slow in (scale, scale.method):
        stats = agrees(lockstep.function(slow, when="always"), slow, X)
        assert stats["graph_ops"] == 3


def test_what_does_not_bind_does_not_bind_when_decorated():
    class Box:
        bound = lockstep.function(Holder().method)
        partial = lockstep.function(functools.partial(plain, y=1))

    assert torch.equal(Box().bound(X), X * 3)
    assert torch.equal(Box().partial(X), plain(X, 1))


def test_forward_of_a_module():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 2)

        @lockstep.function(when="always")
        def forward(self, x, scale=1.0):
            return self.linear(x).relu() * scale

    net = Net()
    for _ in range(3):
        net.zero_grad()
        net(X, scale=2.0).sum().backward()
        got = [net(X), net.linear.weight.grad]
        net.zero_grad()
        (net.linear(X).relu() * 2.0).sum().backward()
        assert bits(got) == bits([net.linear(X).relu(), net.linear.weight.grad])
    assert ran_in_graph(Net.forward)


def test_closures_and_lambdas():
    total = torch.zeros(2, 3)
    count = 0

    def accumulate(x):
        nonlocal count
        count += 1
        total.add_(x)
        return total * count

    fast = lockstep.function(accumulate, when="always")
    for i in range(1, 5):
        assert torch.equal(fast(X), X * i * i)
    assert count == 4
    assert (
        agrees(lockstep.function(lambda x: x * 2, when="always"), lambda x: x * 2, X)["nodes"] == 1
    )


def test_partial():
    partial = functools.partial(plain, y=5)
    fast = lockstep.function(partial, when="always")
    assert agrees(fast, partial, X)["graph_ops"] == 6
    assert functools.partial(lockstep.function(plain), y=5)(X).equal(partial(X))
    assert "plain" in repr(fast) or "partial" in repr(fast)


# ---- a module instance


class Noted(torch.nn.Module):
    """A module with a buffer and a note of its own."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.note = "kept"

    def forward(self, x):
        self.seen += 1
        return self.linear(x).sigmoid()


def test_module_instance_keeps_attributes_hooks_and_keys():
    module = Noted()
    before = set(dir(module))
    keys, parameters = list(module.state_dict()), list(module.parameters())
    decorated = lockstep.function(module, when="always")
    assert decorated is module and type(module) is Noted and module.note == "kept"
    assert list(module.state_dict()) == keys
    assert all(a is b for a, b in zip(module.parameters(), parameters, strict=True))
    assert set(dir(module)) - before <= {"_compiled_call_impl"}
    assert [name for name, _ in module.named_modules()] == ["", "linear"]
    seen = []
    module.register_forward_pre_hook(lambda m, args: seen.append("before"))
    module.register_forward_hook(lambda m, args, result: result * 2)
    module.linear.register_full_backward_hook(lambda m, gi, go: seen.append("backward"))
    for i in range(1, 4):
        x = X.clone().requires_grad_()
        result = module(x)
        assert torch.equal(result, module.linear(X).sigmoid() * 2)
        result.sum().backward()
        assert module.seen.item() == i
    assert seen == ["before", "backward"] * 3
    assert ran_in_graph(module)
    assert lockstep.explain(module).name == "Noted"


def test_module_instance_train_eval_and_loading():
    module = lockstep.function(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5)))
    other = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5))
    other.load_state_dict(module.state_dict())
    for training in (True, False, True, True, False):
        module.train(training), other.train(training)
        torch.manual_seed(1)
        want = other(X)
        torch.manual_seed(1)
        assert bits(module(X)) == bits(want)


def test_copies_of_a_module_are_independent():
    module = lockstep.function(Noted(), when="always")
    module(X)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        want = module.linear(X).sigmoid()
        assert torch.equal(twin(X), want)
        with torch.no_grad():
            twin.linear.weight.zero_()
        assert not torch.equal(twin(X), want)
        assert torch.equal(module(X), want)


# ---- an epoch, generators, coroutines


def test_an_epoch_with_a_data_loader():
    data = torch.utils.data.TensorDataset(torch.randn(20, 3), torch.randn(20, 2))

    def make():
        torch.manual_seed(7)
        model = torch.nn.Linear(3, 2)
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def epoch(model, optimizer):
        losses = []
        loader = torch.utils.data.DataLoader(data, batch_size=6, shuffle=True)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    fast = lockstep.function(epoch, when="always")
    results = []
    for train in (epoch, fast):
        state = make()
        results.append([[train(*state) for _ in range(3)], bits(list(state[0].parameters()))])
    assert results[0] == results[1]
    stats = lockstep.stats(fast)
    assert stats["graph_ops"] > 0.5 * stats["ops"], stats


def test_generators():
    def count(x, steps):
        """Yields."""
        received = []
        try:
            for i in range(steps):
                received.append((yield x * i + 1))
        except KeyError as error:
            yield str(error)
        finally:
            received.append("end")
        return received

    fast = lockstep.function(count, when="always")
    assert inspect.isgeneratorfunction(fast) and fast.__doc__ == "Yields."
    for _ in range(3):
        assert bits(list(fast(X, 3))) == bits(list(count(X, 3)))

    def delegate(made):
        return (yield from made)

    def drive(made):
        results = [next(made), made.send("a"), made.send("b")]
        with pytest.raises(StopIteration) as stop:
            made.send("c")
        return results, stop.value.value

    assert bits(drive(delegate(fast(X, 3)))) == bits(drive(delegate(count(X, 3))))
    steps = fast(X, 3)
    next(steps)
    assert steps.throw(KeyError("k")) == "'k'"
    steps.close()
    assert ran_in_graph(fast)


def test_the_caller_of_a_generator_is_not_intercepted():
    @lockstep.function(when="always")
    def produce(x):
        yield x + 1
        yield x + 2

    for _ in range(3):
        for item in produce(X):
            item.exp()
    stats = lockstep.stats(produce)
    assert stats["ops"] == 6 and stats["nodes"] == 2, stats


def test_coroutines():
    async def work(x, log):
        y = x * 2
        await asyncio.sleep(0)
        log.append(y.sum().item())
        return y + 1

    fast = lockstep.function(work, when="always")
    assert asyncio.iscoroutinefunction(fast) and inspect.iscoroutinefunction(fast)

    async def main(function):
        log = []
        first = await function(X, log)
        others = await asyncio.gather(*(function(X + i, log) for i in range(4)))
        task = asyncio.create_task(function(X, log))
        return first, others, await asyncio.wait_for(task, None), log

    for _ in range(2):
        assert bits(asyncio.run(main(fast))) == bits(asyncio.run(main(work)))
    assert ran_in_graph(fast)


def test_async_generators():
    async def produce(x, log):
        try:
            for i in range(3):
                await asyncio.sleep(0)
                log.append((yield x + i))
        finally:
            log.append("closed")

    fast = lockstep.function(produce, when="always")
    assert inspect.isasyncgenfunction(fast)

    async def main(function):
        log = []
        items = [item async for item in function(X, log)]
        made = function(X, log)
        items += [await made.__anext__(), await made.asend("sent")]
        await made.aclose()
        return items, log

    for _ in range(2):
        assert bits(asyncio.run(main(fast))) == bits(asyncio.run(main(produce)))
    assert ran_in_graph(fast)


# ---- identity


def test_name_doc_and_signature():
    fast = at_module_level
    assert (fast.__name__, fast.__qualname__) == ("at_module_level", "at_module_level")
    assert fast.__doc__ == "Scales and shifts." and fast.__module__ == __name__
    assert str(inspect.signature(fast)) == "(x, scale: float = 2.0, *, shift=1)"
    assert str(inspect.signature(Holder().method)) == "(x)"
    assert fast.__wrapped__(X).equal(fast(X))
    assert "at_module_level" in repr(fast) and callable(fast)


def test_defaults_that_are_set_later():
    @lockstep.function
    def scale(x, by, *, plus=0):
        return x * by + plus

    scale.__defaults__ = (3,)
    scale.__kwdefaults__ = {"plus": 1}
    for _ in range(3):
        assert scale(torch.ones(2)).tolist() == [4, 4]
    assert str(inspect.signature(scale)) == "(x, by=3, *, plus=1)"


def test_torchscript_compiles_what_is_decorated():
    def scale(x, times: int = 2):
        for _ in range(times):
            x = x * 3
        return x

    compiled = torch.jit.script(lockstep.function(scale))
    assert compiled.code == torch.jit.script(scale).code
    assert compiled(torch.ones(2)).tolist() == [9, 9]


def test_wrong_arguments_raise_as_before():
    for call in (lambda f: f(), lambda f: f(X, 1, 2, 3), lambda f: f(X, wrong=1)):
        with pytest.raises(TypeError) as fast:
            call(at_module_level)
        with pytest.raises(TypeError) as slow:
            call(at_module_level.__wrapped__)
        assert str(fast.value) == str(slow.value)


def test_copies():
    assert copy.copy(at_module_level) is at_module_level
    assert copy.deepcopy(at_module_level) is at_module_level
    module = torch.nn.Linear(3, 3)
    twin = copy.deepcopy(lockstep.function(module.forward))
    want = module(X)
    with torch.no_grad():
        module.weight.zero_()
    assert torch.equal(twin(X), want)


def test_pickles():
    assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level
    again = pickle.loads(pickle.dumps(lockstep.function(plain, when="always")))
    assert agrees(again, plain, X)["graph_ops"] == 6
    partial = pickle.loads(pickle.dumps(lockstep.function(functools.partial(plain, y=3))))
    assert torch.equal(partial(X), plain(X, 3))
    method = pickle.loads(pickle.dumps(Holder().method))
    assert torch.equal(method(X), X * 3)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(lockstep.function(lambda x: x))


def test_nested_and_recursive_decorated_functions():
    @lockstep.function(when="always")
    def inner(x):
        return x.sin() * 2

    @lockstep.function(when="always")
    def outer(x, depth):
        return inner(x) if depth == 0 else outer(inner(x), depth - 1) + 1

    def want(x, depth):
        x = x.sin() * 2
        return x if depth == 0 else want(x, depth - 1) + 1

    for depth in (0, 2, 3, 3, 1):
        assert bits(outer(X, depth)) == bits(want(X, depth))
    assert ran_in_graph(outer)


def test_memory_goes_with_the_function():
    def make():
        def recursive(x, n):
            return x if n == 0 else fast(x, n - 1) + 1

        fast = lockstep.function(recursive, when="always")
        module = lockstep.function(Noted(), when="always")
        for _ in range(2):
            fast(X, 2)
            module(X)
        steps = lockstep.function(iter_of)(X)
        next(steps)
        return weakref.ref(fast), weakref.ref(module), weakref.ref(steps)

    def iter_of(x):
        yield x + 1
        yield x

    references = make()
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


def test_least_recently_used_nodes_go_first():
    @lockstep.function(when="always")
    def run(x, lines):
        for line in lines:
            x = eval(line, {"x": x})
        return x

    run.core.max_nodes = 16
    hot = ["x + 1", "x * 2", "x.sin()"]
    for i in range(60):
        lines = [*hot, f"x - {i}", f"x / {i + 1}"]
        want = X
        for line in lines:
            want = eval(line, {"x": want})
        assert bits(run(X, lines)) == bits(want)
        assert lockstep.stats(run)["nodes"] <= 16
    lockstep.reset_stats(run)
    run(X, hot)
    stats = lockstep.stats(run)
    assert stats["divergences"] == 0 and stats["graph_ops"] == 3, stats  # the hot ones stayed


@pytest.mark.parametrize("is_decorated", [False, True])
def test_sizes_may_be_symbols_where_programs_are_traced(is_decorated):
    layer = torch.nn.Linear(8, 4)
    compiled = torch.compile(layer, backend="aot_eager")  # from the second size on for all sizes
    call = lockstep.function(compiled, when="always") if is_decorated else compiled
    for rows in (4, 4, 3, 5, 6):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(call(x), layer(x))
    torch._dynamo.reset()
    square = make_fx(lambda x: (x @ x.T).relu(), tracing_mode="symbolic")(x)
    torch.testing.assert_close(square(x[:2]), (x[:2] @ x[:2].T).relu())


def test_errors_are_pickled_and_copied():
    """As a pool of processes does with what its workers raise."""
    with pytest.raises(lockstep.Error) as caught:
        lockstep.function(lambda x: x, wen="always")
    error = caught.value
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is lockstep.Error and str(twin) == str(error)
        assert (twin.kind, twin.where, twin.message) == (error.kind, error.where, error.message)
