"""Copies of a function with all that it reaches: what `lockstep.verify` runs."""

from __future__ import annotations

import argparse
import array
import collections
import collections.abc
import contextlib
import copy
import copyreg
import dis
import functools
import io
import os
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
    numpy.random.RandomState,
    random.Random,
    collections.deque,
    types.SimpleNamespace,
    argparse.Namespace,
    bytearray,
    array.array,
)
_TRIED = (  # of all libraries; shared where they cannot be copied
    collections.abc.MutableMapping,
    collections.abc.MutableSequence,
    collections.abc.MutableSet,
    torch.utils.data.DataLoader,
    torch.utils.data.Sampler,
)
_OWN_STATE = ("state", "param_groups", "defaults")  # what an optimizer's copy has by itself
_CACHED = type(functools.lru_cache(len))
_LOCKS = {type(make()): make for make in (threading.Lock, threading.RLock)}
_KEPT = (io.IOBase, threading.Thread)  # both ways write to the same file
_GLOBAL_READS = ("LOAD_GLOBAL", "LOAD_NAME")  # the latter in bodies of classes
_ATTRIBUTE_READS = ("LOAD_ATTR", "LOAD_METHOD")
_SHARED = (torch.default_generator, random._inst, numpy.random.mtrand._rand)  # set back by name


class Copier:
    """Copies a function with all that it reaches; what is shared stays shared.

    Functions of the program's modules are copied with their globals, as far as they name tensors,
    modules, optimizers, generators, containers, iterators, decorated functions, modules of the
    program or objects of its classes. A decorated function becomes a copy of the function in it.
    Classes, and what belongs to libraries, stay as they are.
    """

    def __init__(self) -> None:
        self._memo: dict[int, Any] = {id(one): one for one in _SHARED}
        self._kept: list[Any] = []  # alive, so that no other object gets an id of the memo
        self._modules: dict[int, types.ModuleType] = {}  # by their original's dict
        self._seen: dict[int, set[str]] = {}  # what was copied of each of these
        self._name = "fn"  # by which the function reaches what is being copied
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
        if _is_bound_builtin(value):
            return getattr(self.copy(value.__self__), value.__name__)
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
            self._reach_attributes("self", owner)
        return made

    def _reach_attributes(self, name: str, made: Any) -> None:
        own = getattr(made, "__dict__", {}).items()
        self.reached |= {f"{name}.{key}": v for key, v in own if isinstance(v, _STATE)}

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
        if isinstance(value, _KEPT):
            if isinstance(value, threading.Thread) and _runs_beside(value):
                raise self._refusal("thread that runs, which cannot be copied")
            return value
        try:
            parts = value.__reduce_ex__(4)
        except Exception as error:  # cannot be pickled, and each class says so by its own error
            kind = type(value).__qualname__
            raise self._refusal(f"{kind}, which cannot be copied ({error})") from error
        if isinstance(parts, str):
            return value  # known by its name
        self._kept.append(parts)
        return copy._reconstruct(value, self._memo, *parts, deepcopy=lambda v, memo: self.copy(v))

    def _refusal(self, what: str) -> Error:
        by = "" if self._name == "fn" else f" by {self._name!r}"
        message = (
            f"the function reaches{by} a {what}: make it within the function, "
            "or verify a function without it"
        )
        return Error("verify", "lockstep.verify", message)

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
        namespace = vars(self._module(fn.__globals__))
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
        names, attributes = _names(fn.__code__)
        self._copy_named(names, attributes, fn.__globals__, namespace, fn.__module__)
        return made

    def _copy_named(
        self, names: set[str], attributes: set[str], old: dict, new: dict, module: str
    ) -> None:
        """What code that reads these names, and these attributes, finds in a namespace."""
        for name in names:
            value = old.get(name)
            if isinstance(value, types.ModuleType):
                if _is_of_program(value.__name__):
                    new[name] = self._copy_module(value, attributes)
            elif _is_state(value, module) or isinstance(value, collections.abc.Iterator):
                new[name] = self._reach(name, value)
            elif isinstance(value, _TRIED):
                with contextlib.suppress(Error, TypeError):
                    new[name] = self._reach(name, value)

    def _copy_module(self, module: types.ModuleType, attributes: set[str]) -> types.ModuleType:
        made = self._module(vars(module))
        seen = self._seen.setdefault(id(made), set())
        names = attributes - seen
        seen |= names
        if names:
            self._copy_named(names, attributes, vars(module), vars(made), module.__name__)
        return made

    def _copy_or_keep(self, value: Any) -> Any:
        """For the attributes of functions, which wrappers fill with all kinds of things."""
        try:
            return self.copy(value)
        except (Error, TypeError):  # such as a mappingproxy
            return value

    def _module(self, namespace: dict[str, Any]) -> types.ModuleType:
        """The copy of the module that these are the globals of."""
        made = self._modules.get(id(namespace))
        if made is None:
            made = self._modules[id(namespace)] = types.ModuleType(namespace.get("__name__", ""))
            vars(made).update(namespace)
        return made

    def _reach(self, name: str, value: Any) -> Any:
        outer, self._name = self._name, name
        try:
            made = self.copy(value)
        finally:
            self._name = outer
        if isinstance(made, types.FunctionType):
            return made
        while self.reached.get(name, made) is not made:
            name += "'"  # of another module
        self.reached[name] = made
        if _is_of_program(type(made).__module__):
            self._reach_attributes(name, made)
        return made


def _names(code: types.CodeType) -> tuple[set[str], set[str]]:
    """The globals and the attributes that code names, that of inner functions included."""
    names, attributes = set(), set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _GLOBAL_READS:
            names.add(instruction.argval)
        elif instruction.opname in _ATTRIBUTE_READS:
            attributes.add(instruction.argval)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more = _names(inner)
            names |= more[0]
            attributes |= more[1]
    return names, attributes


def _is_standard(module: str | None) -> bool:
    return str(module).partition(".")[0] in _LIBRARIES


def _is_of_library(fn: types.FunctionType) -> bool:
    """A closure of a library may hold something of the user's: `torch.no_grad()(step)`."""
    return _is_standard(fn.__module__) and all(map(_holds_nothing, fn.__closure__ or ()))


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
        return _is_own(value.__module__, module)
    if isinstance(value, types.MethodType):
        return isinstance(value.__func__, Function) or _is_state(value.__self__, module)
    if _is_bound_builtin(value):
        return _is_state(value.__self__, module)
    return not isinstance(value, type) and _is_own(type(value).__module__, module)


def _is_own(name: str | None, module: str) -> bool:
    return name == module or _is_of_program(name)


def _is_of_program(module: str | None) -> bool:
    """Whether the module of this name is neither Python's nor an installed library's."""
    if _is_standard(module) or module not in sys.modules:
        return False
    file = getattr(sys.modules[module], "__file__", None) or ""
    return not {"site-packages", "dist-packages"} & set(file.split(os.sep))


def _is_bound_builtin(value: Any) -> bool:
    """Such as `losses.append`; of a module's function, `__self__` is the module."""
    owner = getattr(value, "__self__", None) if type(value) is types.BuiltinMethodType else None
    if owner is None or isinstance(owner, (type, types.ModuleType)):
        return False
    return hasattr(type(owner), value.__name__)  # not so where bindings keep data of their own


def _runs_beside(thread: threading.Thread) -> bool:
    is_ours = thread in (threading.current_thread(), threading.main_thread())
    return thread.is_alive() and not is_ours
