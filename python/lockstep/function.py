"""`lockstep.function`: the decorator, and what it makes of functions, modules, generators and coroutines."""

import asyncio
import collections.abc
import functools
import inspect
import os
import types
import weakref

import torch

from lockstep import knobs
from lockstep._check import load_library
from lockstep.errors import Error
from lockstep.origins import name_origins

_C = load_library()

_all_functions: "weakref.WeakSet[Function]" = weakref.WeakSet()


def is_disabled() -> bool:
    """Whether LOCKSTEP_DISABLE switches everything off."""
    return os.environ.get("LOCKSTEP_DISABLE", "") not in ("", "0")


def _name_of(fn) -> str:
    return getattr(fn, "__qualname__", None) or type(fn).__name__


class Function(_C.Callable):
    """A decorated callable. Its `__call__` is a C function, so that no frame of ours stands in a traceback."""

    def __init__(self, fn, options: dict):
        super().__init__(fn, _name_of(fn))
        functools.update_wrapper(self, fn)
        self._options = options
        if asyncio.iscoroutinefunction(fn):
            self._is_coroutine = asyncio.coroutines._is_coroutine
        _all_functions.add(self)

    def _settings(self) -> tuple[str, bool, str]:
        """What is in force for the next call: (when, waits_for_errors, runner)."""
        settings = knobs.current(self._options)
        return settings["when"], settings["errors"] == "exact", settings["runner"]

    def _name_origins(self, args: tuple, kwargs: dict) -> None:
        name_origins(self.core.name_origin, self.__wrapped__, args, kwargs)

    def __get__(self, instance, owner=None):
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self):
        return f"<lockstep.function {self.core.name}>"

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        return self.__qualname__  # by its name, as functions are


class _Stepwise(Function):
    """A decorated generator or coroutine function: each step up to the next `yield` or `await` is a call."""

    _make = None

    def __call__(self, *args, **kwargs):
        return self._make(self, self.__wrapped__(*args, **kwargs))


class _Generator(_C.Steps):
    pass


class _Coroutine(_C.Steps):
    def __await__(self):
        return self


class _GeneratorFunction(_Stepwise):
    _make = _Generator


class _CoroutineFunction(_Stepwise):
    _make = _Coroutine


collections.abc.Generator.register(_Generator)
collections.abc.Coroutine.register(_Coroutine)


def _decorate(fn, options: dict):
    if not callable(fn):
        raise Error(
            "not_callable",
            "lockstep.function",
            f"{fn!r} is a {type(fn).__name__}, not a callable: decorate a function, a method or an nn.Module",
        )
    if is_disabled() or isinstance(fn, Function):
        return fn
    if isinstance(fn, torch.nn.Module):
        # nn.Module.__call__ looks here first; attributes, hooks and state_dict stay as they are
        fn._compiled_call_impl = Function(fn._call_impl, options)
        return fn
    if inspect.isgeneratorfunction(fn):
        return _GeneratorFunction(fn, options)
    if inspect.iscoroutinefunction(fn):
        return _CoroutineFunction(fn, options)
    return Function(fn, options)


def function(fn=None, **options):
    """Makes a callable run in lockstep. Use bare (`@function`) or with options (`@function(when="always")`).

    Args:
        fn: a function, method, lambda, closure, `nn.Module` instance, generator or coroutine function.
        **options: see `lockstep.KNOBS`.

    Returns:
        A callable with the same name, doc and signature (an `nn.Module` itself for a module).

    Raises:
        Error: for an unknown option, a value that is not allowed, or something that cannot be called.
    """
    knobs.check_knobs("lockstep.function", options)
    if fn is None:
        return lambda real: _decorate(real, options)
    return _decorate(fn, options)


def core_of(fn, where: str):
    """The C++ record of a decorated function, a decorated module or a session; raises Error for anything else."""
    if isinstance(fn, torch.nn.Module):
        fn = getattr(fn, "_compiled_call_impl", None)
    if isinstance(fn, types.MethodType):
        fn = fn.__func__
    core = getattr(fn, "core", None)
    if core is None and is_disabled() and callable(fn):
        return _C.Function()  # nothing was decorated: nothing has happened
    if not isinstance(core, _C.Function):
        raise Error("not_decorated", where, f"{fn!r} is not decorated: put @lockstep.function on it")
    return core


def reset(fn=None) -> None:
    """Forgets the graph and the counters of a function, or of all of them."""
    for one in [core_of(fn, "lockstep.reset")] if fn is not None else [f.core for f in _all_functions]:
        one.reset()


def reset_stats(fn) -> None:
    """Sets the counters of a function to zero and keeps its graph."""
    core_of(fn, "lockstep.reset_stats").reset_counters()


def stats(fn) -> dict:
    """The counters of a function or session since the last reset; see docs/explain.md for each."""
    return _C.counters(core_of(fn, "lockstep.stats"))
