"""A training program as the driver sees it: a step, and everything that the step may change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.optim import Optimizer


@dataclass
class Program:
    """One copy of a training program, with its own model, optimizers and data.

    name        of the folder under samples/
    step        the training step; called with the step's index, returns losses or other results
    modules     name -> module: all parameters, gradients and buffers are state
    optimizers  name -> optimizer: all their tensors and hyperparameters are state
    values      gives what else the step changes (counters, the environment, ...) by name
    fixed_flow  whether every step after the first ones takes a way that was taken before
    """

    name: str
    step: Callable[[int], object]
    modules: dict[str, nn.Module]
    optimizers: dict[str, Optimizer]
    values: Callable[[], dict[str, object]] = field(default=dict)
    fixed_flow: bool = True

    def state(self) -> dict[str, object]:
        """Everything that a step changes, as a flat dict name -> tensor or plain value."""
        state: dict[str, object] = {}
        for name, module in self.modules.items():
            state.update(_module_state(name, module))
        for name, optimizer in self.optimizers.items():
            state.update(_optimizer_state(name, optimizer))
        state.update(flatten("values", self.values()))
        return state


def _module_state(prefix: str, module: nn.Module) -> dict[str, object]:
    state: dict[str, object] = {}
    for name, parameter in module.named_parameters():
        state[f"{prefix}.{name}"] = parameter
        state[f"{prefix}.{name}.grad"] = parameter.grad
    for name, buffer in module.named_buffers():
        state[f"{prefix}.{name}"] = buffer
    return state


def _optimizer_state(prefix: str, optimizer: Optimizer) -> dict[str, object]:
    state: dict[str, object] = {}
    for group_index, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if key != "params":
                state.update(flatten(f"{prefix}.{group_index}.{key}", value))
        for index, parameter in enumerate(group["params"]):
            kept = optimizer.state.get(parameter, {})
            state.update(flatten(f"{prefix}.{group_index}.{index}", kept))
    return state


def flatten(prefix: str, value: object) -> dict[str, object]:
    """Spreads nested dicts, lists and tuples into a flat dict with dotted names."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        return {prefix: value}
    flat: dict[str, object] = {}
    for key, part in items:
        flat.update(flatten(f"{prefix}.{key}", part))
    return flat


def parameter_count(module: nn.Module) -> int:
    """Number of trainable scalars in `module`, tied ones counted once."""
    return sum(p.numel() for p in module.parameters() if isinstance(p, torch.Tensor))
