"""Point 8, first part: all of torch.optim in all its implementations, schedulers, clipping."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F
from cases import batch, small_net, train
from kit import Case, check
from torch import nn
from torch.optim import lr_scheduler

item = pytest.mark.item
OPTIMIZERS = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind)
    and issubclass(kind, torch.optim.Optimizer)
    and kind not in (torch.optim.Optimizer, torch.optim.SparseAdam)  # SparseAdam: 7.sparse
)
MARKS = {"default": "8.optim-default", "foreach": "8.optim-foreach", "fused": "8.optim-fused"}
OPTIONS_OF = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Adam": {"amsgrad": True, "weight_decay": 0.01},
    "ASGD": {"t0": 2},
    "Rprop": {},
    "LBFGS": {"max_iter": 3, "line_search_fn": "strong_wolfe"},
}
SCHEDULERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda n: 0.9**n),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda n: 0.95),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3], 0.5),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.3, total_iters=4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 8, 2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.1, 3, cycle_momentum=True),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=12),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=0.5),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.StepLR(o, 2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


def _supported():
    for name in OPTIMIZERS:
        accepted = inspect.signature(getattr(torch.optim, name)).parameters
        for way in MARKS:
            if way == "default" or (way in accepted and (way, name) != ("foreach", "Adafactor")):
                yield pytest.param(name, way, marks=item(MARKS[way]), id=f"{name}-{way}")


@pytest.mark.parametrize("name, way", list(_supported()))
def test_optimizers(name, way):
    def make(run):
        # Muon takes matrices only
        net = small_net() if name != "Muon" else nn.Sequential(nn.Linear(6, 3, bias=False))
        options = OPTIONS_OF.get(name, {}) | ({} if way == "default" else {way: True})
        optimizer = getattr(torch.optim, name)(net.parameters(), lr=0.02, **options)

        def closure(x, labels):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), labels)
            loss.backward()
            return loss

        def step(x, labels):
            if name == "LBFGS":
                return optimizer.step(lambda: closure(x, labels))
            return train(net, optimizer, x, labels)

        return Case(step, batch, net=net, optimizer=optimizer)

    # LBFGS takes another number of evaluations each time; RAdam changes its way after five steps
    check(make, calls=9, share=0.5 if name == "LBFGS" else 0.9)


@item("8.optim-default")
@pytest.mark.parametrize("options", [{"maximize": True}, {"differentiable": False, "lr": 0.5}])
@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adagrad"])
def test_optimizer_with_groups_and_changing_options(name, options):
    def make(run):
        net = small_net()
        groups = [{"params": net[0].parameters(), "lr": 0.05}, {"params": net[1:].parameters()}]
        optimizer = getattr(torch.optim, name)(groups, **{"lr": 0.01, **options})
        log = []
        optimizer.register_step_post_hook(lambda *_: log.append(net[0].bias.sum().item()))

        def step(x, labels):
            loss = train(net, optimizer, x, labels)
            optimizer.param_groups[0]["lr"] *= 0.9
            optimizer.param_groups[1]["weight_decay"] = 0.01 * len(log)
            if len(log) == 4:
                optimizer.add_param_group({"params": [extra], "lr": 0.1})
            return loss + (extra**2).sum()

        extra = nn.Parameter(torch.ones(2))
        return Case(step, batch, net=net, optimizer=optimizer, log=log)

    check(make, calls=8, share=0.5)  # a new group in call 3, and weight decay makes new ways


@item("8.schedulers")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(name):
    def make(run):
        net = small_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        scheduler = SCHEDULERS[name](optimizer)

        def step(x, labels):
            loss = train(net, optimizer, x, labels)
            scheduler.step(loss.item()) if name == "ReduceLROnPlateau" else scheduler.step()
            return loss, scheduler.get_last_lr()

        return Case(step, batch, net=net, optimizer=optimizer)

    shots = check(make, calls=6)
    assert len({repr(shot["result"][2]) for shot in shots}) > 1


@item("8.clipping")
@pytest.mark.parametrize(
    "kind", ["norm", "norm foreach", "norm inf", "norm error", "value", "by hand"]
)
def test_clipping(kind):
    def make(run):
        net = small_net()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)

        def clip():
            if kind == "value":
                return nn.utils.clip_grad_value_(net.parameters(), 0.01)
            if kind == "by hand":
                total = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
                if total > 0.5:
                    for parameter in net.parameters():
                        parameter.grad.mul_(0.5 / total)
                return total
            options = {
                "norm foreach": {"foreach": True},
                "norm inf": {"norm_type": float("inf")},
                "norm error": {"error_if_nonfinite": True},
            }.get(kind, {"foreach": False})
            return nn.utils.clip_grad_norm_(net.parameters(), 0.1, **options)

        def step(x, labels, factor):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), labels) * factor
            loss.backward()
            norm = clip()
            optimizer.step()
            return loss, norm

        factors = [
            1.0,
            1.0,
            0.01,
            1.0,
            float("nan") if kind == "norm error" else 3.0,
            1.0,
            0.01,
            1.0,
        ]
        return Case(step, lambda n: (*batch(), factors[n]), net=net, optimizer=optimizer)

    shots = check(make, calls=8, raises=(RuntimeError,))
    assert ["error" in shot for shot in shots] == [
        kind == "norm error" and n == 4 for n in range(8)
    ]
