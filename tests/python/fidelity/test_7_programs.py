"""Point 7, second part: nesting, threads, processes, event loops, evaluation, sessions."""

from __future__ import annotations

import asyncio
import os
import threading

import lockstep
import pytest
import torch
import torch.nn.functional as F
from cases import batch, busy, small_net, train
from kit import OPTIONS, Case, check, check_whole
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
