"""`verify`: finds a fault of one ulp in one op, names it, and leaves everything as it was."""

from __future__ import annotations

import inspect

import lockstep
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
