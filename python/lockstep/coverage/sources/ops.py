"""Every sample of every op of PyTorch's operator database (`op_db`).

One case is one op with one dtype. Its programs are the samples, each out of place (with gradients
in float32, float64 and complex64), in place and into `out=` where the op has these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..case import Case, Program, Run
from ..copying import copy_tree, tensors_in
from ..snapshot import is_plain, seed_all

_GRAD_DTYPES = (torch.float32, torch.float64, torch.complex64)


def cases() -> Iterator[Case]:
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        for dtype in sorted(op.supported_dtypes("cpu"), key=str):
            name = f"{op.formatted_name}/{str(dtype).removeprefix('torch.')}"
            yield Case("ops", name, lambda op=op, dtype=dtype: _programs(op, dtype))


def _programs(op: Any, dtype: torch.dtype) -> Iterator[Program]:
    with_grad = dtype in _GRAD_DTYPES and dtype in op.supported_backward_dtypes("cpu")
    seed_all(0)
    for i, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=with_grad)):
        name = f"{i}"
        parts = (sample.input, tuple(sample.args), dict(sample.kwargs))
        yield _program(f"{name}/plain", call_step(op.op, with_grad), parts)
        if op.inplace_variant is not None and not sample.broadcasts_input:
            yield _program(f"{name}/inplace", inplace_step(op.inplace_variant, with_grad), parts)
        if op.supports_out:
            yield from out_programs(name, op, detached(parts))


def _program(name: str, step: Callable, parts: tuple) -> Program:
    dense = all(is_plain(t) for t in tensors_in(parts))

    def make() -> Run:
        return Run(fresh(step), lambda i: copy_tree(parts))

    return Program(name, make, dense=dense)


def fresh(step: Callable) -> Callable:
    """A function object of its own, so that each program has a graph of its own."""
    return type(step)(
        step.__code__, step.__globals__, step.__name__, step.__defaults__, step.__closure__
    )


def _outputs(result: Any) -> list[torch.Tensor]:
    return [t for t in tensors_in(result) if t.requires_grad]


def _gradients(result: Any, leaves: list[torch.Tensor]) -> Any:
    outputs = _outputs(result)
    if not outputs or not leaves:
        return None
    weights = [t.detach().clone() for t in outputs]
    return torch.autograd.grad(outputs, leaves, weights, allow_unused=True)


def call_step(fn: Callable, with_grad: bool) -> Callable:
    def step(value: Any, args: tuple, kwargs: dict) -> Any:
        result = fn(value, *args, **kwargs)
        if not with_grad:
            return result
        leaves = [t for t in tensors_in((value, args, kwargs)) if t.requires_grad]
        return result, _gradients(result, leaves)

    return step


def inplace_step(fn: Callable, with_grad: bool) -> Callable:
    def step(value: Any, args: tuple, kwargs: dict) -> Any:
        target = value.clone() if with_grad else value
        result = fn(target, *args, **kwargs)
        if not with_grad:
            return result
        leaves = [t for t in tensors_in((value, args, kwargs)) if t.requires_grad]
        return result, _gradients(result, leaves)

    return step


def detached(parts: tuple) -> tuple:
    copy = copy_tree(parts)
    for t in tensors_in(copy):
        t.requires_grad_(False)
    return copy


def out_programs(name: str, op: Any, parts: tuple, resized: bool = False) -> Iterator[Program]:
    """Into `out=` of the right size, or an empty one that the op resizes."""
    value, args, kwargs = copy_tree(parts)
    try:
        expected = op.op(value, *args, **kwargs)
    except Exception:  # noqa: BLE001 - the plain program of this sample compares what it raises
        return
    outs = tensors_in(expected)
    if not outs or not all(is_plain(t) for t in outs):
        return
    single = isinstance(expected, torch.Tensor)
    if not single and not isinstance(expected, tuple):
        return
    targets = [t.new_empty(0) if resized else torch.zeros_like(t) for t in map(_detach, outs)]
    yield _out_program(f"{name}/{'resized' if resized else 'out'}", op.op, parts, targets, single)


def _detach(t: torch.Tensor) -> torch.Tensor:
    return t.detach()


def _out_program(
    name: str, fn: Callable, parts: tuple, targets: list[torch.Tensor], single: bool
) -> Program:
    def make() -> Run:
        def step(value: Any, args: tuple, kwargs: dict, out: tuple) -> Any:
            return fn(value, *args, **kwargs, out=out[0] if single else out)

        return Run(step, lambda i: (*copy_tree(parts), copy_tree(tuple(targets))))

    return Program(name, make, dense=all(is_plain(t) for t in tensors_in(parts)))
