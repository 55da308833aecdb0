"""Names for the tensors that a call takes from outside: parameters, arguments, globals, ...

Names are only shown. So nothing here runs a method of the user's classes where it can be helped,
and no exception comes out.
"""

import contextlib
import functools
import inspect
import itertools
import types

import torch

_MAX_DEPTH = 3
_MAX_ITEMS = 64
_PLAIN_KEYS = (str, int, float, bool, bytes, type(None))


def _key_text(key) -> str:
    return repr(key) if type(key) in _PLAIN_KEYS else f"<{type(key).__name__}>"


def _items(name: str, value):
    """Names and values of what a container holds, by the container's own methods."""
    kind = type(value)
    if issubclass(kind, (list, tuple)):
        builtin = list if issubclass(kind, list) else tuple
        for i, item in enumerate(builtin.__getitem__(value, slice(_MAX_ITEMS))):
            yield f"{name}[{i}]", item
    elif issubclass(kind, dict):
        for key, item in list(itertools.islice(dict.items(value), _MAX_ITEMS)):
            yield f"{name}[{_key_text(key)}]", item


def _name_value(record, name: str, value, depth: int = 0) -> None:
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        record(value, name)
    elif issubclass(kind, torch.nn.Module):
        for members in (torch.nn.Module.named_parameters, torch.nn.Module.named_buffers):
            for path, tensor in members(value):
                record(tensor, f"{name}.{path}")
    elif depth < _MAX_DEPTH:
        for path, item in _items(name, value):
            with contextlib.suppress(Exception):
                _name_value(record, path, item, depth + 1)


def _arguments(fn, args: tuple, kwargs: dict):
    """Names and values of the object that a method belongs to, and of the arguments."""
    if type(fn) is types.MethodType:
        yield "self", fn.__self__
    try:
        bound = inspect.signature(fn).bind_partial(*args, **kwargs).arguments
    except Exception:  # no signature, or other arguments than it says
        bound = dict(enumerate(args)) | kwargs
    yield from bound.items()


def _surroundings(fn):
    """Names and values of what the code of a function reaches through closure and globals."""
    fn = inspect.unwrap(getattr(fn, "__func__", fn))
    if not inspect.isfunction(fn):
        return
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # an empty cell
            yield name, cell.cell_contents
    for name in fn.__code__.co_names:
        if name in fn.__globals__:
            yield name, fn.__globals__[name]


def _named_values(fn, args: tuple, kwargs: dict):
    while issubclass(type(fn), functools.partial):
        args, kwargs, fn = fn.args + args, {**fn.keywords, **kwargs}, fn.func
    yield from _arguments(fn, args, kwargs)
    yield from _surroundings(fn)


def name_origins(record, fn, args: tuple, kwargs: dict) -> None:
    """Calls `record(tensor, name)` for tensors that a call of `fn` can reach by a short path."""
    with contextlib.suppress(Exception):
        for name, value in _named_values(fn, args, kwargs):
            with contextlib.suppress(Exception):
                _name_value(record, str(name), value)
