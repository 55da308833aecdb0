"""Joins the steps of torch.optim: what updates one parameter after the other becomes one op.

Eager mode on the CPU loops over parameters in Python, a dozen ops for each; Adam on eight tensors
asks for a hundred. `torch._fused_adam_` and its kin do the same to all of them, and for RMSprop
`torch.ops.lockstep._fused_rmsprop_`. The loop runs where they do not fit: other types than float32,
gradients laid out otherwise than their parameters, rates that are tensors, `capturable`,
`differentiable`, modes that watch each op.
"""

import functools
import types
from importlib import import_module

import torch

# What the loops over single parameters treat apart; each off or absent.
_SPECIAL = (
    "grad_scale", "found_inf", "has_complex", "has_sparse_grad", "capturable", "differentiable",
)  # fmt: skip
_FLAGS = ("amsgrad", "centered", "decoupled_weight_decay", "maximize", "nesterov")
_LARGEST = 2**53  # of the integers that are floats


def _is_plain(name: str, number) -> bool:
    if name in _SPECIAL:
        return number is None or number is False
    kind = type(number)
    if kind is bool:
        return name in _FLAGS  # as a rate, PyTorch refuses it
    return kind is float or (kind is int and abs(number) < _LARGEST)


def _are_plain(lists: tuple, numbers: dict) -> bool:
    return all(type(tensors) is list for tensors in lists) and all(
        map(_is_plain, numbers.keys(), numbers.values())
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


def _rmsprop(library, params, grads, squares, means, buffers, steps, **n) -> bool:
    return library.try_rmsprop(
        params, grads, squares, means, buffers, steps, n["lr"], n["alpha"], n["eps"],
        n["weight_decay"], n["momentum"], n["centered"], n["maximize"],
    )  # fmt: skip


def _join(library, optimizer: str, list_count: int, join) -> None:
    module, name = import_module(f"torch.optim.{optimizer}"), f"_single_tensor_{optimizer}"
    single = getattr(module, name)

    are_plain = _are_plain

    def step(*lists, **numbers):
        if (
            torch.compiler.is_compiling()
            or not library.is_active()
            or len(lists) != list_count
            or not are_plain(lists, numbers)
            or not join(library, *lists, **numbers)
        ):
            single(*lists, **numbers)

    # TorchScript compiles what is wrapped, by the names of the module around the wrapper.
    there = types.FunctionType(step.__code__, vars(module), name, None, step.__closure__)
    setattr(module, name, functools.update_wrapper(there, single))


def install(library) -> None:
    """Stands in for the loops over single parameters. Call once, with the C++ library."""
    _join(library, "adam", 6, _adam)
    _join(library, "sgd", 3, _sgd)
    _join(library, "adagrad", 4, _adagrad)
    _join(library, "rmsprop", 6, _rmsprop)
