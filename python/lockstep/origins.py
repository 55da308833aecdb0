"""Names for the tensors that a call takes from outside: parameters, arguments, globals, ..."""

import functools
import inspect

import torch

_MAX_DEPTH = 3


def _name_value(record, name: str, value, depth: int) -> None:
    if isinstance(value, torch.nn.Module):
        for path, parameter in value.named_parameters():
            record(parameter, f"{name}.{path}")
        for path, buffer in value.named_buffers():
            record(buffer, f"{name}.{path}")
    elif isinstance(value, torch.Tensor):
        record(value, name)
    elif depth < _MAX_DEPTH:
        if isinstance(value, (list, tuple)):
            for i, item in enumerate(value[:64]):
                _name_value(record, f"{name}[{i}]", item, depth + 1)
        elif isinstance(value, dict):
            for key, item in list(value.items())[:64]:
                _name_value(record, f"{name}[{key!r}]", item, depth + 1)


def name_origins(record, fn, args: tuple, kwargs: dict) -> None:
    """Calls `record(tensor, name)` for tensors that a call of `fn` can reach by a short path."""
    while isinstance(fn, functools.partial):
        args, kwargs, fn = fn.args + args, {**fn.keywords, **kwargs}, fn.func
    owner = getattr(fn, "__self__", None)
    if owner is not None:
        _name_value(record, "self", owner, 0)
    try:
        bound = inspect.signature(fn).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = dict(enumerate(args)) | kwargs
    for name, value in bound.items():
        _name_value(record, str(name), value, 0)
    fn = inspect.unwrap(getattr(fn, "__func__", fn))
    if not inspect.isfunction(fn):
        return
    code = fn.__code__
    for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=False):
        try:
            _name_value(record, name, cell.cell_contents, 0)
        except ValueError:  # an empty cell
            continue
    for name in code.co_names:
        if name in fn.__globals__:
            _name_value(record, name, fn.__globals__[name], 0)
