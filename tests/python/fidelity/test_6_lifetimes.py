"""Point 6, second part: tensors that live longer than a call, or are seen by other threads."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from cases import batch, busy, small_net, train
from kit import Case, check
from torch import nn

item = pytest.mark.item


@item("6.outlives-the-call")
def test_tensors_that_outlive_the_call():
    def make(run):
        kept = []

        def step(x, labels):
            work = busy(x)[:6, :6].requires_grad_()
            out = (x @ work).tanh()
            kept.append((work[1:], out))
            total = sum(pair[1].sum() for pair in kept[-3:])
            if len(kept) > 2:
                kept[-2][0].detach().mul_(2)
            return total

        return Case(step, batch, kept=kept)

    check(make, calls=7)


@item("6.stored-in-the-model")
def test_tensors_stored_in_the_model():
    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.memory, self.trail = nn.Linear(6, 6), None, {}
            self.register_buffer("state", torch.zeros(5, 6))

        def forward(self, x):
            hidden = self.layer(x + (0 if self.memory is None else self.memory))
            self.memory = hidden.detach().tanh()
            self.state = self.state * 0.5 + self.memory
            self.trail[len(self.trail) % 3] = hidden.mean()
            return hidden

    def make(run):
        net = Remembering()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x, labels):
            return train(net, optimizer, x, labels)

        return Case(step, batch, net=net, kept=lambda: (net.memory, net.trail))

    check(make, calls=8)


@item("6.returned")
def test_returned_tensors_keep_their_ways_of_sharing():
    def make(run):
        net = small_net()

        def step(x, labels):
            out = net(x)
            parts = out.split(1, 1)
            return {"out": out, "same": out, "parts": parts, "x": x, "flat": out.view(-1)}, [x[1:]]

        return Case(step, batch, net=net)

    check(make)


@item("6.returned")
def test_returned_tensor_is_changed_by_the_caller():
    def make(run):
        weight = torch.ones(6, 6)
        results = []

        def step(x, labels):
            out = busy(x)[:6, :6] @ weight
            weight.mul_(0.9)
            results.append(out)
            return out

        def inputs(number):
            if results:
                results[-1].add_(100)
                results[-1][0].numpy()[0] = 7
            return batch()

        return Case(step, inputs, weight=weight, results=results)

    check(make)


@item("6.yielded")
def test_yielded_tensors():
    def make(run):
        weight = nn.Parameter(torch.randn(6, 6))

        def numbers(x):
            hidden = x @ weight
            for index in range(3):
                hidden = (hidden @ weight).tanh() + index
                received = yield hidden, hidden[0]
                if received is not None:
                    hidden = hidden * received
            return hidden.sum()

        def step(x, labels):
            running, results = numbers(x), []
            value, row = next(running)
            while True:
                results.append((value, row))
                try:
                    value, row = running.send(row.detach().mean())
                except StopIteration as stop:
                    stop.value.backward()
                    return results, stop.value

        return Case(step, batch, weight=weight)

    check(make)


@item("6.captured-by-a-closure")
def test_tensors_captured_by_a_closure_and_used_in_a_later_call():
    def make(run):
        later = []
        weight = nn.Parameter(torch.randn(6, 6))

        def step(x, labels):
            work = busy(x)[:6, :6] @ weight
            values = [action(x) for action in later[-2:]]

            def action(y):
                work.detach().mul_(0.5)
                return (y @ work).sum()

            later.append(action)
            return values

        def inputs(number):
            if len(later) == 4:
                later[0](torch.ones(6))
            return batch()

        return Case(step, inputs, weight=weight)

    check(make, calls=8)


@item("6.graph-of-a-later-backward")
def test_graph_of_a_later_backward():
    def make(run):
        net, losses = small_net(), []

        def step(x, labels):
            losses.append(F.cross_entropy(net(x), labels))
            if len(losses) % 2 == 0:
                (losses[-2] + losses[-1] * 2).backward()
            return losses[-1]

        def inputs(number):
            if number == 5:
                (losses[-1] * 3).backward(retain_graph=True)
            return batch()

        net[1].eval()
        return Case(step, inputs, net=net)

    check(make, calls=9)


@item("6.from-another-thread")
@pytest.mark.parametrize("kind", ["made", "parameter", "view", "alive thread"])
def test_tensor_read_from_another_thread_is_never_half_written(kind):
    def make(run):
        state = torch.zeros(300, 300)

        def step(x, labels):
            box, seen, turn = [], [], threading.Semaphore(0)

            def read():
                turn.acquire()
                tensor = box[0]
                seen.append(
                    (tensor.sum().item(), tensor.tolist()[0][:2], (tensor * 2).mean().item())
                )
                seen.append(tensor.numpy().tobytes())

            thread = threading.Thread(target=read)
            if kind == "alive thread":
                thread.start()
            work = busy(x, size=300, times=2)
            if kind == "parameter":
                state.add_(work)
            box.append({"parameter": state, "view": work[7:, 3:]}.get(kind, work))
            turn.release()
            if kind != "alive thread":
                thread.start()
            thread.join()
            return seen, work.sum()

        return Case(step, batch, state=state)

    shots = check(make, share=0.5)  # what the other thread does runs there, eagerly
    assert len({repr(shot["result"][1]) for shot in shots}) == len(shots)


@item("6.from-another-thread")
def test_queue_to_a_worker_thread_during_the_call():
    """A logger thread reads losses while the step goes on updating what they came from."""
    import queue

    def make(run):
        net = small_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        inbox, log = queue.Queue(), []

        def worker():
            while (tensor := inbox.get()) is not None:
                log.append((float(tensor), repr(tensor.detach())))
                inbox.task_done()
            inbox.task_done()

        def step(x, labels):
            thread = threading.Thread(target=worker)
            thread.start()
            for _ in range(3):
                loss = train(net, optimizer, x, labels)
                inbox.put(loss)
            inbox.put(None)
            inbox.join()
            thread.join()
            return loss

        return Case(step, batch, net=net, log=log)

    check(make, share=0.5)  # what the other thread does (repr: 30 ops) runs there, eagerly
