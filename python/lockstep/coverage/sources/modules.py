"""Every module of PyTorch's module database (`module_db`), training and evaluating.

One case is one module with one dtype in one mode. Training steps go forward, backward and through
SGD; evaluation only forward.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

from ..case import Case, Program, Run
from ..copying import copy_tree, tensors_in
from ..snapshot import is_plain, seed_all


def cases() -> Iterator[Case]:
    from torch.testing._internal.common_modules import module_db

    seen: dict[str, int] = {}
    for info in module_db:
        for dtype in sorted(info.supported_dtypes("cpu"), key=str):
            for training in (True, False):
                mode = "train" if training else "eval"
                name = f"{info.formatted_name}/{str(dtype).removeprefix('torch.')}/{mode}"
                seen[name] = seen.get(name, 0) + 1
                if seen[name] > 1:
                    name += f"/{seen[name]}"
                yield _case(name, info, dtype, training)


def _case(name: str, info: Any, dtype: torch.dtype, training: bool) -> Case:
    return Case("modules", name, lambda: _programs(info, dtype, training))


def _programs(info: Any, dtype: torch.dtype, training: bool) -> Iterator[Program]:
    seed_all(0)
    samples = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=training, training=training
    )
    for i, sample in enumerate(samples):
        if sample.forward_input is None:
            continue
        yield _program(f"{i}/{sample.desc}".rstrip("/"), info, sample, dtype, training)


def _program(name: str, info: Any, sample: Any, dtype: torch.dtype, training: bool) -> Program:
    built, given = sample.constructor_input, sample.forward_input

    def make() -> Run:
        constructed = copy.deepcopy((built.args, built.kwargs))
        module = info.module_cls(*constructed[0], **constructed[1]).to(dtype)
        module.train(training)
        parts = (tuple(given.args), dict(given.kwargs))
        if info.is_lazy:
            with torch.no_grad():
                module(*copy_tree(parts)[0], **copy_tree(parts)[1])
        step, optimizer = _training_step(module) if training else (_evaluation_step(module), None)
        return Run(step, lambda i: copy_tree(parts), state=(module, optimizer))

    tensors = tensors_in((given.args, given.kwargs))
    return Program(name, make, dense=all(is_plain(t) for t in tensors))


def _training_step(module: torch.nn.Module) -> tuple[Any, torch.optim.Optimizer | None]:
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, 0.01, momentum=0.9) if parameters else None

    def step(args: tuple, kwargs: dict) -> Any:
        if optimizer is not None:
            optimizer.zero_grad()
        result = module(*args, **kwargs)
        outputs = [t for t in tensors_in(result) if t.requires_grad]
        if outputs:
            loss = sum(t.abs().sum() for t in outputs)
            loss.backward()
            if optimizer is not None:
                optimizer.step()
        return result

    return step, optimizer


def _evaluation_step(module: torch.nn.Module) -> Any:
    def step(args: tuple, kwargs: dict) -> Any:
        with torch.no_grad():
            return module(*args, **kwargs)

    return step
