"""Copies of a function with all that it reaches: what `lockstep.verify` runs."""

from __future__ import annotations

import collections
import copy
import copyreg
import functools
import io
import random
import sys
import threading
import types
import weakref
from typing import Any

import numpy
import torch

from lockstep.errors import Error
from lockstep.function import Function

_LIBRARIES = {"lockstep", "numpy", "torch", *sys.stdlib_module_names} - {"__main__"}
_STATE = (
    torch.Tensor,
    torch.nn.Module,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.amp.GradScaler,
    torch.Generator,
    numpy.ndarray,
    numpy.random.Generator,
    random.Random,
    collections.deque,
)
_OWN_STATE = ("state", "param_groups", "defaults")  # what an optimizer's copy has by itself
_CACHED = type(functools.lru_cache(len))
_LOCKS = {type(make()): make for make in (threading.Lock, threading.RLock)}
_KEPT = (io.IOBase, threading.Thread)  # both ways write to the same file


class Copier:
    """Copies a function with all that it reaches; what is shared stays shared.

    Functions of the same module are copied with their globals, as far as they name tensors,
    modules, optimizers, generators, containers, decorated functions or objects of their own module.
    A decorated function becomes a copy of the function in it. Classes, and what belongs to
    libraries, stay as they are.
    """

    def __init__(self) -> None:
        self._memo: dict[int, Any] = {id(torch.default_generator): torch.default_generator}
        self._kept: list[Any] = []  # alive, so that no other object gets an id of the memo
        self._globals: dict[int, dict[str, Any]] = {}
        self._partial_count = 0
        self.reached: dict[str, Any] = {}

    def copy(self, value: Any) -> Any:
        if id(value) in self._memo:
            return self._memo[id(value)]
        self._kept.append(value)
        return self._memo.setdefault(id(value), self._make(value))

    def _make(self, value: Any) -> Any:
        if isinstance(value, Function):
            return self.copy(value.__wrapped__)
        if isinstance(value, types.FunctionType):
            return value if _is_of_library(value) else self._copy_function(value)
        if isinstance(value, types.MethodType):
            return types.MethodType(self.copy(value.__func__), self.copy(value.__self__))
        if isinstance(value, _CACHED):
            return functools.lru_cache(**value.cache_parameters())(self.copy(value.__wrapped__))
        if type(value) is functools.partial:
            return self._copy_partial(value)
        if type(value) is weakref.ref:
            return value if value() is None else weakref.ref(self.copy(value()))
        if isinstance(value, torch.optim.Optimizer):
            return self._copy_optimizer(value)
        if isinstance(value, torch.Tensor) and not value.is_leaf:
            return value.detach().clone()
        if isinstance(value, torch.Generator):
            return value.clone_state()
        if type(value) in (list, tuple, dict):
            return self._copy_container(value)
        return self._copy_object(value)

    def copy_callable(self, fn: Any) -> Any:
        """The copy of what is called; the state of its object counts as reached."""
        made = self.copy(fn)
        owner = getattr(made, "__self__", made)
        if isinstance(owner, _STATE):
            self.reached["self"] = owner
        elif not isinstance(owner, (type, types.ModuleType, types.FunctionType)):
            own = getattr(owner, "__dict__", {}).items()
            self.reached |= {f"self.{name}": v for name, v in own if isinstance(v, _STATE)}
        return made

    def _copy_container(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self.copy(v) for v in value)
        made: Any = type(value)()
        self._memo[id(value)] = made
        if isinstance(value, list):
            made.extend(self.copy(v) for v in value)
        else:
            made.update((self.copy(k), self.copy(v)) for k, v in value.items())
        return made

    def _copy_object(self, value: Any) -> Any:
        """As `copy.deepcopy`, but for the functions that the object holds."""
        if isinstance(value, (type, types.ModuleType)):
            return value
        if type(value) in _LOCKS:
            return _LOCKS[type(value)]()
        by_table = type(value) in copy._deepcopy_dispatch or type(value) in copyreg.dispatch_table
        if by_table or hasattr(value, "__deepcopy__"):
            return copy.deepcopy(value, self._memo)
        try:
            parts = value.__reduce_ex__(4)
        except TypeError as error:  # cannot be pickled
            if isinstance(value, _KEPT):
                return value
            message = (
                f"the function reaches a {type(value).__qualname__}, which cannot be copied "
                f"({error}): make it within the function, or verify a function without it"
            )
            raise Error("verify", "fn", message) from error
        if isinstance(parts, str):
            return value  # known by its name
        self._kept.append(parts)
        return copy._reconstruct(value, self._memo, *parts, deepcopy=lambda v, memo: self.copy(v))

    def _copy_optimizer(self, value: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """With its hooks, and the `step` that a scheduler gave it, which a deep copy lacks."""
        made = self._copy_object(value)
        for name, own in value.__dict__.items():
            if name not in _OWN_STATE:
                made.__dict__[name] = self._copy_or_keep(own)
        return made

    def _copy_partial(self, value: functools.partial) -> functools.partial:
        made = functools.partial(
            self.copy(value.func), *self.copy(value.args), **self.copy(value.keywords)
        )
        made.__dict__.update(self.copy(value.__dict__))
        self.reached[f"partial {self._partial_count}"] = (made.args, made.keywords)
        self._partial_count += 1
        return made

    def _copy_function(self, fn: types.FunctionType) -> types.FunctionType:
        cells = tuple(types.CellType() for _ in fn.__closure__ or ())
        namespace = self._namespace(fn)
        code = fn.__code__.replace()  # its own, since compilers of others keep names by code
        made = types.FunctionType(code, namespace, fn.__name__, None, cells)
        self._memo[id(fn)] = made
        made.__kwdefaults__ = self.copy(fn.__kwdefaults__)
        made.__defaults__ = self.copy(fn.__defaults__)
        made.__qualname__, made.__module__ = fn.__qualname__, fn.__module__
        for name, value in fn.__dict__.items():
            made.__dict__[name] = self._copy_or_keep(value)
        for name, old, new in zip(
            fn.__code__.co_freevars, fn.__closure__ or (), cells, strict=True
        ):
            try:
                value = old.cell_contents
            except ValueError:
                continue  # a cell that is not filled yet
            new.cell_contents = self._reach(name, value)
        for name in _names(fn.__code__):
            value = fn.__globals__.get(name)
            if _is_state(value, fn.__module__):
                namespace[name] = self._reach(name, value)
        return made

    def _copy_or_keep(self, value: Any) -> Any:
        """For the attributes of functions, which wrappers fill with all kinds of things."""
        try:
            return self.copy(value)
        except (Error, TypeError):  # such as a mappingproxy
            return value

    def _namespace(self, fn: types.FunctionType) -> dict[str, Any]:
        return self._globals.setdefault(id(fn.__globals__), dict(fn.__globals__))

    def _reach(self, name: str, value: Any) -> Any:
        made = self.copy(value)
        if not isinstance(made, types.FunctionType):
            self.reached[name] = made
        return made


def _names(code: types.CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _is_of_library(fn: types.FunctionType) -> bool:
    """A closure of a library may hold something of the user's: `torch.no_grad()(step)`."""
    if str(fn.__module__).partition(".")[0] not in _LIBRARIES:
        return False
    return all(map(_holds_nothing, fn.__closure__ or ()))


def _holds_nothing(cell: types.CellType) -> bool:
    try:
        value = cell.cell_contents
    except ValueError:  # not filled yet
        return True
    if isinstance(value, types.FunctionType):
        return _is_of_library(value)
    return value is None or isinstance(value, (type, str, int, float, types.BuiltinFunctionType))


def _is_state(value: Any, module: str) -> bool:
    if isinstance(value, (*_STATE, list, dict, set, Function, functools.partial)):
        return True
    if isinstance(value, (types.FunctionType, _CACHED)):
        return value.__module__ == module
    if isinstance(value, types.MethodType):
        return isinstance(value.__func__, Function) or _is_state(value.__self__, module)
    return not isinstance(value, type) and type(value).__module__ == module
