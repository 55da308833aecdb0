"""Point 6, third part: parameters replaced in the middle, and decorated generators."""

from __future__ import annotations

import copy

import lockstep
import pytest
import torch
import torch.nn.functional as F
from cases import batch, busy, small_net
from kit import OPTIONS, Case, check
from snapshot import Snapshot, differences
from torch import nn
from torch.nn.utils import parameters_to_vector, parametrizations, prune, vector_to_parameters

item = pytest.mark.item


def _replace_layer(net, saved):
    net[4] = copy.deepcopy(net[4])


def _load(net, saved):
    net.load_state_dict(saved, assign=False)


def _assign(net, saved):
    net.load_state_dict({k: v * 0.5 for k, v in saved.items()}, assign=True, strict=True)


def _through_a_vector(net, saved):
    vector = parameters_to_vector(net.parameters())
    vector_to_parameters(vector * 0.9, net.parameters())


def _to_double_and_back(net, saved):
    net.double()
    net.float()


def _new_parameter(net, saved):
    net[0].weight = nn.Parameter(net[0].weight.detach() * 0.5)


def _own_gradient(net, saved):
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.grad is None else None


def _prune(net, saved):
    prune.l1_unstructured(net[4], "weight", 0.3)
    prune.remove(net[4], "weight")


CHANGES = [_replace_layer, _load, _assign, _through_a_vector, _to_double_and_back, _new_parameter]
CHANGES += [_own_gradient, _prune]


@item("6.stored-in-the-model")
@pytest.mark.parametrize("place", ["before forward", "after backward"])
@pytest.mark.parametrize("change", CHANGES)
def test_parameters_replaced_in_the_middle(change, place):
    def make(run):
        net = small_net()
        saved = copy.deepcopy(net.state_dict())

        def step(x, labels, is_changing):
            if is_changing and place == "before forward":
                change(net, saved)
            loss = F.cross_entropy(net(x), labels) * busy(x)[0, 0]
            loss.backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.sub_(parameter.grad, alpha=0.1)
            if is_changing and place == "after backward":
                change(net, saved)
            return loss

        return Case(step, lambda n: (*batch(), n % 3 == 2), net=net)

    check(make, calls=11, share=0.8)  # the last but one call changes what some of these never saw


@item("6.stored-in-the-model")
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "lazy", "dropped layers"])
def test_modules_that_make_their_weights(kind):
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

        def forward(self, x):
            for layer in self.layers:
                if torch.rand(()) > 0.3:
                    x = x + layer(x).tanh()
            return self.layers[0](x)

    def make(run):
        net = {
            "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(6, 3)),
            "spectral_norm": lambda: parametrizations.spectral_norm(nn.Linear(6, 3)),
            "lazy": lambda: nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.Linear(5, 3)),
            "dropped layers": Dropping,
        }[kind]()
        optimizers = []

        def step(x, labels):
            loss = F.cross_entropy(net(x), labels)
            if not optimizers:
                optimizers.append(torch.optim.AdamW(net.parameters(), lr=0.01))
            optimizers[0].zero_grad()
            loss.backward()
            optimizers[0].step()
            return loss

        return Case(step, batch, net=net, optimizers=optimizers)

    def initialised(run):
        """Lazy modules make their parameters in an eager first call."""
        case = make(run)
        case.step(*batch())
        return case

    if kind == "dropped layers":
        check(make, calls=30, share=0.5)  # each call may take a new way
    else:
        check(initialised if kind == "lazy" else make, calls=6)


@item("6.yielded")
def test_decorated_generator_ends_a_call_at_each_yield():
    """The caller's code between two yields runs as ever, on tensors that are complete."""
    weight = torch.randn(6, 6)

    def walk(x, log):
        hidden = x @ weight
        try:
            for index in range(4):
                hidden = torch.tanh(hidden @ weight) + busy(x)[0, 0]
                received = yield hidden, hidden[0]
                log.append((index, received))
        except KeyError as error:
            yield hidden.sum(), str(error)
        finally:
            log.append("closed")

    def drive(function, seed):
        torch.manual_seed(seed)
        log, seen = [], []
        steps = function(torch.randn(5, 6), log)
        value, row = next(steps)
        for number in range(3):
            value.mul_(0.5)
            seen.append((value.clone(), row.numpy().copy(), torch.rand(2)))
            if number == 2 and seed % 2:
                seen.append(steps.throw(KeyError("thrown")))
                break
            value, row = steps.send(number)
        steps.close()
        return log, seen

    decorated = lockstep.function(walk, **OPTIONS)
    for seed in range(6):
        want = Snapshot().take(drive(walk, seed))
        got = Snapshot().take(drive(decorated, seed))
        assert not differences(want, got)
    figures = lockstep.stats(decorated)
    assert figures["graph_ops"] > figures["ops"] / 3
