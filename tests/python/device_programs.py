"""Programs on the device of fake_device.cpp, each in a process: the name of a device is global.

    python tests/python/device_programs.py NAME

Prints what differs from eager; nothing, if all is well. For test_devices.py.
"""

import sys
import types

import lockstep
import torch
from extensions import load
from torch import nn

WAYS = [{"runner": runner} for runner in ("behind", "yielding", "inplace")]


def install():
    """The extension, with its device named "fake"."""
    extension = load("lockstep_fake_device")
    device = types.ModuleType("torch.fake")
    device.is_available = device.is_initialized = lambda: True
    device.current_device = lambda: 0
    device.device_count = lambda: 1
    device._is_in_bad_fork = lambda: False
    device.manual_seed_all = lambda seed: None
    torch.utils.rename_privateuse1_backend("fake")
    torch._register_device_module("fake", device)
    return extension


def busy(number):
    """Takes the graph runner some time."""
    big = torch.full((300, 300), 0.01)
    for _ in range(4):
        big = torch.tanh(big @ big + number)
    return big


def check(make, extension=None, numerics="strict", calls=8):
    """Compares what the function of `make()` returns, call by call, and by which threads."""
    for way in WAYS:
        torch.manual_seed(0)
        eager = make()
        expected = [eager(i) for i in range(calls)]
        threads = set(extension.take_threads()) if extension else None
        torch.manual_seed(0)
        ours = lockstep.function(make(), when="always", numerics=numerics, **way)
        for i in range(calls):
            if not torch.equal(ours(i), expected[i]):
                print(f"{way}: call {i} differs")
        if extension and (others := set(extension.take_threads()) - threads):
            print(f"{way}: {others} worked on the device, and in eager {threads}")


def results_on_the_device(extension):
    """Of ops without operands there, with sizes and numbers that are new."""

    def make():
        def step(i):
            value = busy(i)
            made = [
                torch.full((4 + i,), float(i), device="fake"),
                torch.ones(i + 1, device="fake"),
                torch.arange(i + 2, device="fake", dtype=torch.float32),
                torch.zeros_like(value[: i + 1, 0], device="fake"),
                value[: i + 1, 0].to("fake"),
                value[0, : i + 1].to("fake", non_blocking=True),
            ]
            return torch.cat([tensor.cpu() for tensor in made])

        return step

    check(make, extension)


def backward_on_its_thread(extension):
    """A model with a part on each device: gradients come from the device's thread."""
    names = []

    def make():
        torch.manual_seed(1)
        first, second = nn.Linear(20, 30), nn.Linear(30, 5).to("fake")
        third = nn.Linear(5, 3)
        parameters = [*first.parameters(), *second.parameters(), *third.parameters()]
        optimizer = torch.optim.SGD(parameters, 0.1, momentum=0.9, foreach=False)

        def step(i):
            optimizer.zero_grad()
            x = torch.randn(7 + i // 4, 20)
            hidden = nn.functional.dropout(torch.relu(first(x)), 0.3)
            loss = third(second(hidden.to("fake")).cpu()).square().mean()
            loss.backward()
            optimizer.step()
            names.extend(extension.take_threads())
            return torch.cat(
                [p.detach().cpu().flatten() for p in parameters] + [loss.detach()[None]]
            )

        return step

    check(make, calls=12)
    if not any(name.startswith("pt_autograd") for name in names):
        print(f"no device thread ran: {set(names)}")
    if "lockstep-runner" in names:
        print("the graph runner worked on the device")


def generator_on_its_thread(extension):
    """A hook there looks at the CPU's generator while draws of the main thread are pending."""
    one = torch.ones(4).to("fake")

    def make():
        seen = []

        def step(i):
            leaf = torch.ones(4, requires_grad=True).to("fake")
            leaf.register_hook(lambda gradient: seen.append(torch.get_rng_state()))
            drawn = nn.functional.dropout(busy(i), 0.3)
            torch.autograd.backward([leaf], [one])
            return torch.cat([seen[-1].float(), drawn.sum()[None]])

        return step

    check(make)


def nothing_is_gained(extension):
    """auto gives up a function that works on the device, and not one that works beside it."""

    def make(works):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 5)).to("fake")
        optimizer = torch.optim.Adam(net.parameters(), foreach=False)

        def step(i):
            extra = busy(i).sum() if works else torch.zeros(())
            optimizer.zero_grad()
            loss = net(torch.randn(7, 20).to("fake")).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach().cpu() + extra

        return step

    for works in (False, True):
        torch.manual_seed(0)
        eager = make(works)
        expected = [eager(i) for i in range(12)]
        torch.manual_seed(0)
        ours = lockstep.function(make(works), numerics="strict")
        if not all(torch.equal(ours(i), expected[i]) for i in range(12)):
            print(f"works={works}: results differ")
        auto = lockstep.explain(ours).auto
        if (auto["is_pointless"], auto["next_way"] == "eager") != (not works, not works):
            print(f"works={works}: {auto}")
        if ("auto runs it eagerly" in str(lockstep.explain(ours))) == works:
            print(lockstep.explain(ours))


PROGRAMS = {
    program.__name__: program
    for program in (
        results_on_the_device,
        backward_on_its_thread,
        generator_on_its_thread,
        nothing_is_gained,
    )
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](install())
