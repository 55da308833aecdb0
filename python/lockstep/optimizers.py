"""Joins the steps of torch.optim: what updates one parameter after the other becomes one op.

Eager mode on the CPU loops over parameters in Python, a dozen ops for each; Adam on eight tensors
asks for a hundred. `torch._fused_adam_` and its kin do the same to all of them. The loop runs where
they do not fit: other types than float32, gradients laid out otherwise than their parameters,
rates that are tensors, `capturable`, `differentiable`, modes that watch each op.
"""

import functools
from importlib import import_module

import torch

_PLAIN = (float, int, bool, type(None))
# What the loops over single parameters treat apart; each off or absent.
_SPECIAL = (
    "grad_scale", "found_inf", "has_complex", "has_sparse_grad", "capturable", "differentiable",
)  # fmt: skip


def _is_plain(numbers: dict) -> bool:
    return all(type(number) in _PLAIN for number in numbers.values()) and not any(
        map(numbers.get, _SPECIAL)
    )


def _adam(library, params, grads, means, squares, largest, steps, **n) -> bool:
    return library.try_adam(
        params, grads, means, squares, largest, steps, n["lr"], n["beta1"], n["beta2"],
        n["weight_decay"], n["eps"], n["amsgrad"], n["maximize"], n["decoupled_weight_decay"],
    )  # fmt: skip


def _sgd(library, params, grads, buffers, **n) -> bool:
    return library.try_sgd(
        params, grads, buffers, n["weight_decay"], n["momentum"], n["lr"], n["dampening"],
        n["nesterov"], n["maximize"],
    )  # fmt: skip


def _adagrad(library, params, grads, sums, steps, **n) -> bool:
    return library.try_adagrad(
        params, grads, sums, steps, n["lr"], n["weight_decay"], n["lr_decay"], n["eps"],
        n["maximize"],
    )  # fmt: skip


def _join(library, optimizer: str, list_count: int, join) -> None:
    module, name = import_module(f"torch.optim.{optimizer}"), f"_single_tensor_{optimizer}"
    single = getattr(module, name)

    @functools.wraps(single)
    def step(*lists, **numbers):
        if (
            torch.compiler.is_compiling()
            or not library.is_active()
            or len(lists) != list_count
            or not _is_plain(numbers)
            or not join(library, *lists, **numbers)
        ):
            single(*lists, **numbers)

    setattr(module, name, step)


def install(library) -> None:
    """Stands in for the loops over single parameters. Call once, with the C++ library."""
    _join(library, "adam", 6, _adam)
    _join(library, "sgd", 3, _sgd)
    _join(library, "adagrad", 4, _adagrad)
