"""Every optimizer of PyTorch's optimizer database, with each of its configurations.

One case is one optimizer; its programs are the configurations, each in a loop over the parameters,
with `foreach` and fused where it has these, and with the schedulers that the database names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..case import Case, Program, Run


def cases() -> Iterator[Case]:
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        yield Case("optims", info.optim_cls.__name__, lambda info=info: _programs(info))


def _implementations(info: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "loop", {"foreach": False} if "foreach" in info.supported_impls else {}
    if "foreach" in info.supported_impls:
        yield "foreach", {"foreach": True}
    if "fused" in info.supported_impls and "cpu" in info.supports_fused_on:
        yield "fused", {"fused": True}
    if "differentiable" in info.supported_impls:
        yield "default", {}


def _programs(info: Any) -> Iterator[Program]:
    for i, config in enumerate(info.optim_inputs_func("cpu")):
        for implementation, options in _implementations(info):
            if {**config.kwargs, **options}.get("fused") and config.kwargs.get("foreach"):
                continue
            kwargs = {**config.kwargs, **options}
            for dtype in (torch.float32, torch.float64):
                short = str(dtype).removeprefix("torch.")
                name = f"{i}/{config.desc or 'default'}/{implementation}/{short}"
                yield _program(name, info, kwargs, dtype, None)
    for i, schedulers in enumerate(info.scheduler_inputs):
        if not isinstance(schedulers, (list, tuple)):
            schedulers = [schedulers]
        yield _program(f"schedulers/{i}", info, {}, torch.float32, schedulers)


def _net(info: Any, dtype: torch.dtype) -> torch.nn.Module:
    if info.only_supports_sparse_grads:
        embedding = torch.nn.Embedding(20, 8, sparse=True)
        return torch.nn.Sequential(embedding, torch.nn.Flatten()).to(dtype)
    bias = info.optim_cls.__name__ != "Muon"  # takes matrices only
    layers = [torch.nn.Linear(6, 16, bias=bias), torch.nn.Tanh(), torch.nn.Dropout(0.2)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(16, 4, bias=bias)).to(dtype)


def _program(name: str, info: Any, kwargs: dict, dtype: torch.dtype, schedulers: Any) -> Program:
    sparse = info.only_supports_sparse_grads

    def make() -> Run:
        net = _net(info, dtype)
        given = dict(kwargs)
        if isinstance(given.get("lr"), torch.Tensor):
            given["lr"] = given["lr"].clone()
        given.setdefault("lr", 0.01)
        optimizer = info.optim_cls(net.parameters(), **given)
        followers = [make(optimizer) for make in schedulers or ()]
        batches = [_batch(sparse, dtype) for _ in range(6)]
        step = _step(net, optimizer, followers, info.step_requires_closure)
        return Run(step, lambda i: batches[i], state=(net, optimizer), calls=6)

    # RAdam changes its way after five steps, LBFGS by what it finds
    repeats = info.optim_cls.__name__ not in ("RAdam", "LBFGS")
    return Program(name, make, dense=not sparse, repeats=repeats)


def _batch(sparse: bool, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    if sparse:
        return torch.randint(0, 20, (5, 3)), torch.randn(5, 24, dtype=dtype)
    return torch.randn(5, 6, dtype=dtype), torch.randn(5, 4, dtype=dtype)


def _step(net: Any, optimizer: Any, followers: list, with_closure: bool) -> Any:
    def closure_of(x: torch.Tensor, y: torch.Tensor) -> Any:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(x), y)
            loss.backward()
            return loss

        return closure

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        closure = closure_of(x, y)
        loss = optimizer.step(closure) if with_closure else closure()
        if not with_closure:
            optimizer.step()
        for scheduler in followers:
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                scheduler.step(float(loss))
            else:
                scheduler.step()
        return loss, [g["lr"] for g in optimizer.param_groups]

    return step
