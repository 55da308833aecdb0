"""Generators, coroutines, asynchronous loops and contexts; in the step and as the step."""

from __future__ import annotations

import asyncio

import torch

from .world import World, program


def drain_generator(fn, args):
    """Runs a decorated generator function to its end; changes what it is sent on the way."""
    generator = fn(*args)
    values = [next(generator)]
    outside = torch.ones(3).cumsum(0)
    try:
        while True:
            values.append(generator.send(outside.sum()))
    except StopIteration as stop:
        values.append(stop.value)
    return values


def run_coroutine(fn, args):
    return asyncio.run(fn(*args))


@program
def generator_in_step(w: World):
    def pieces(x):
        for row in x:
            got = yield row * 2
            if got is not None:
                w.log.append(got.item())
        return "done"

    def chain(x):
        end = yield from pieces(x)
        w.log.append(end)

    def step(x, y):
        def local(v):
            yield v + 1
            yield from (v * k for k in range(2))

        g = pieces(x)
        first = next(g)
        second = g.send(first.sum())
        g.close()
        h = torch.stack(list(chain(x))) + first + second + sum(local(x))
        return w.train(h, y)

    return step


@program
def coroutine_in_step(w: World):
    class Scope:
        async def __aenter__(self):
            await asyncio.sleep(0)
            return 2.0

        async def __aexit__(self, *error):
            w.log.append("left")

    async def rows(x):
        for row in x:
            await asyncio.sleep(0)
            yield row

    def step(x, y):
        async def work(v):
            async with Scope() as k:
                v = v * k
            parts = []
            async for row in rows(v):
                parts.append(row + 1)
            more = [row async for row in rows(v)]
            a, b = await asyncio.gather(other(v, 1), other(v, 2))
            return torch.stack(parts) + torch.stack(more) + a + b

        async def other(v, n):
            await asyncio.sleep(0)
            w.log.append(n)
            return v * n

        return w.train(asyncio.run(work(x)), y)

    return step


@program(drive=drain_generator)
def generator_as_step(w: World):
    def step(x, y):
        h = x * 2
        got = yield h.sum().detach()
        h = h + got
        got = yield h.mean().detach()
        loss = w.train(h * 0.1 + got, y)
        return loss.detach()

    return step


@program(drive=run_coroutine)
def coroutine_as_step(w: World):
    async def step(x, y):
        h = x * 2
        await asyncio.sleep(0)
        h = torch.tanh(h)
        await asyncio.sleep(0)
        return w.train(h, y)

    return step


@program
def generator_that_lives_on(w: World):
    def numbers():
        total = torch.zeros(())
        while True:
            v = yield total
            total = total + v

    g = numbers()
    next(g)

    def step(x, y):
        loss = w.train(x, y)
        return loss, g.send(loss.detach())

    return step
