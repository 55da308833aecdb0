"""`lockstep.function`: the decorator, and what it makes of functions, modules and generators."""

import asyncio
import collections.abc
import copy
import functools
import inspect
import reprlib
import sys
import types
import weakref

import torch

from lockstep import knobs
from lockstep._check import load_library
from lockstep.errors import Error
from lockstep.knobs import is_disabled
from lockstep.origins import name_origins

_C = load_library()

_all_functions: "weakref.WeakSet[Function]" = weakref.WeakSet()

# What a decorated callable has itself; all else is an attribute of the callable in it.
_OF_FUNCTIONS = ("__code__", "__defaults__", "__kwdefaults__")  # they decide what a call does
_OWN_NAMES = frozenset(("__wrapped__", *_OF_FUNCTIONS, *functools.WRAPPER_ASSIGNMENTS))
_IMPLICIT_KINDS = {  # what a class makes of plain functions of these names
    "__new__": staticmethod,
    "__init_subclass__": classmethod,
    "__class_getitem__": classmethod,
}
_WITHOUT_ATTRIBUTES = (types.MethodType, types.BuiltinFunctionType)
_MAX_WRAPPERS = 100
_NOTHING = object()  # options come first, what is decorated later


def _name_of(fn) -> str:
    name = getattr(fn, "__qualname__", None)
    return name if isinstance(name, str) and name else type(fn).__name__


class Function(_C.Callable):
    """A decorated callable. Its `__call__` is a C function: no frame of ours in a traceback."""

    def __init__(self, fn, options: dict):
        super().__init__(fn, _name_of(fn))
        functools.update_wrapper(self, fn, updated=())
        self.__dict__["_options"] = options
        self.__dict__["_known_settings"] = (None, None)  # and where they were in force
        if inspect.isfunction(fn):  # so that `inspect` sees what kind of function it is
            for name in _OF_FUNCTIONS:
                self.__dict__[name] = getattr(fn, name)
        if asyncio.iscoroutinefunction(fn):
            self.__dict__["_is_coroutine"] = asyncio.coroutines._is_coroutine
        _all_functions.add(self)

    def __getattr__(self, name):
        try:
            wrapped = self.__dict__["__wrapped__"]
        except KeyError:  # not made yet
            raise AttributeError(name) from None
        return getattr(wrapped, name)

    def __setattr__(self, name, value):
        if name in _OF_FUNCTIONS and inspect.isfunction(self.__wrapped__):
            setattr(self.__wrapped__, name, value)
        if self._keeps(name):
            super().__setattr__(name, value)
        else:
            setattr(self.__wrapped__, name, value)

    def __delattr__(self, name):
        if name in _OF_FUNCTIONS and inspect.isfunction(self.__wrapped__):
            delattr(self.__wrapped__, name)
        if self._keeps(name):
            super().__delattr__(name)
        else:
            delattr(self.__wrapped__, name)

    def _keeps(self, name) -> bool:
        """Whether to keep an attribute here; AttributeError for one that the calls need."""
        if name in _OWN_NAMES:
            return True
        if name in ("_options", "_known_settings", "_is_coroutine") or hasattr(type(self), name):
            message = f"{name} is Lockstep's own here: set it on __wrapped__, the callable itself"
            raise AttributeError(message)
        return isinstance(self.__wrapped__, _WITHOUT_ATTRIBUTES)

    def __prepare_scriptable__(self):
        """What `torch.jit.script` compiles in place of this."""
        return self.__wrapped__

    def __dir__(self):
        return sorted({*super().__dir__(), *dir(self.__wrapped__)})

    def _settings(self) -> tuple[str, dict]:
        found = knobs.surroundings()
        known, answer = self._known_settings
        if known != found:
            answer = knobs.for_core(self._options)
            self.__dict__["_known_settings"] = (found, answer)
        return answer

    def _name_origins(self, args: tuple, kwargs: dict) -> None:
        name_origins(self.core.name_origin, self.__wrapped__, args, kwargs)

    def __get__(self, instance, owner=None):
        wrapped = self.__wrapped__
        binds = hasattr(type(wrapped), "__get__") and not inspect.ismethod(wrapped)
        return types.MethodType(self, instance) if binds and instance is not None else self

    def __set_name__(self, owner, name):
        kind = _IMPLICIT_KINDS.get(name)
        if kind and inspect.isfunction(self.__wrapped__):
            type.__setattr__(owner, name, kind(self))

    def __repr__(self):
        return f"<lockstep.function {self.core.name}>"

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        if inspect.isfunction(self.__wrapped__):
            return self  # as functions are
        return _decorate(copy.deepcopy(self.__wrapped__, memo), self._options)

    def __reduce__(self):
        name = getattr(self, "__qualname__", None)
        if name and _find(getattr(self, "__module__", None), name) is self:
            return name  # by its name, as functions are
        return _decorate, (self.__wrapped__, self._options)


def _find(module: str | None, name: str):
    """What stands under a dotted name in a module that is imported; None where there is nothing."""
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


class _Stepwise(Function):
    """A decorated generator or coroutine function: each step up to `yield` or `await` is a call."""

    _make = None

    def __call__(self, *args, **kwargs):
        return self._make(self, self.__wrapped__(*args, **kwargs))


class _Running(_C.Steps):
    """A generator or coroutine that runs; frames, names and code are those of the one in it."""

    def __init__(self, function, inner):
        super().__init__(function, inner)
        self._inner = inner

    def __getattr__(self, name):
        return _attribute_of_inner(self, name)


def _attribute_of_inner(running, name: str):
    try:
        inner = running.__dict__["_inner"]
    except KeyError:  # not made yet
        raise AttributeError(name) from None
    return getattr(inner, name)


class _Generator(_Running):
    pass


class _Coroutine(_Running):
    def __await__(self):
        return self


class _AsyncGenerator(collections.abc.AsyncGenerator):
    """A running async generator: each step up to an `await` or `yield` is a call."""

    def __init__(self, function, inner):
        self._function = function
        self._inner = inner

    def __getattr__(self, name):
        return _attribute_of_inner(self, name)

    def __anext__(self):
        return _Coroutine(self._function, self._inner.__anext__())

    def asend(self, value):
        return _Coroutine(self._function, self._inner.asend(value))

    def athrow(self, *error):
        return _Coroutine(self._function, self._inner.athrow(*error))

    def aclose(self):
        return _Coroutine(self._function, self._inner.aclose())


class _GeneratorFunction(_Stepwise):
    _make = _Generator


class _CoroutineFunction(_Stepwise):
    _make = _Coroutine


class _AsyncGeneratorFunction(_Stepwise):
    _make = _AsyncGenerator


collections.abc.Generator.register(_Generator)
collections.abc.Coroutine.register(_Coroutine)


def _shown(thing) -> str:
    text = reprlib.repr(thing)
    return "this" if "\n" in text else text


def _check_target(fn) -> None:
    if inspect.isclass(fn):
        raise Error(
            "not_callable",
            "lockstep.function",
            f"{fn.__qualname__} is a class: decorate a method of it (forward, for an nn.Module) "
            "or an instance",
        )
    if not callable(fn):
        raise Error(
            "not_callable",
            "lockstep.function",
            f"{_shown(fn)} is a {type(fn).__name__}, not a callable: "
            "decorate a function, a method or an nn.Module",
        )


def _check_same_options(decorated: Function, options: dict) -> None:
    if options and options != decorated._options:
        raise Error(
            "conflicting_options",
            "lockstep.function",
            f"{decorated.core.name} is decorated with {decorated._options or 'no options'}, "
            f"{options} conflicts with that: decorate it once, with all options",
        )


def _decorate_module(module: torch.nn.Module, options: dict) -> torch.nn.Module:
    # nn.Module.__call__ looks here first; attributes, hooks and state_dict stay as they are
    inner = module._compiled_call_impl
    if isinstance(inner, Function):
        _check_same_options(inner, options)
    else:
        module._compiled_call_impl = Function(inner or module._call_impl, options)
        module._compiled_call_impl.core.name = type(module).__name__
    return module


def _decorate(fn, options: dict):
    if isinstance(fn, (classmethod, staticmethod)):
        return type(fn)(_decorate(fn.__func__, options))
    _check_target(fn)
    if is_disabled():
        return fn
    if isinstance(fn, Function):
        _check_same_options(fn, options)
        return fn
    if isinstance(fn, torch.nn.Module):
        return _decorate_module(fn, options)
    if inspect.isasyncgenfunction(fn):
        return _AsyncGeneratorFunction(fn, options)
    if inspect.isgeneratorfunction(fn):
        return _GeneratorFunction(fn, options)
    if inspect.iscoroutinefunction(fn):
        return _CoroutineFunction(fn, options)
    return Function(fn, options)


def function(fn=_NOTHING, *unnamed, **options):
    """Makes a callable run in lockstep: `@function`, or with options `@function(errors="late")`.

    Args:
        fn: a function, method, lambda, closure, `nn.Module` instance, `functools.partial`,
            classmethod, staticmethod, generator, coroutine or async generator function. Each step
            of a generator or coroutine is a call: the caller's code in between is not intercepted.
        **options: see `lockstep.KNOBS`.

    Returns:
        A callable with the same name, doc and signature (an `nn.Module` itself for a module).

    Raises:
        Error: for an unknown option, a value that is not allowed, something that cannot be called,
            or something that is decorated already with other options.
    """
    if unnamed:
        message = f"{unnamed[0]!r} has no name: name the option, as in function(fn, when='always')"
        raise Error("unknown_option", "lockstep.function", message)
    options = knobs.check_knobs("lockstep.function", options)
    if fn is _NOTHING:
        return lambda real: _decorate(real, options)
    return _decorate(fn, options)


def _find_core(fn):
    """Looks below wrappers (`functools.wraps`, `torch.no_grad()`), partials and bound methods.

    A module, or another object that can be called, stands for the decorated method of its class.
    """
    for _ in range(_MAX_WRAPPERS):
        if isinstance(fn, torch.nn.Module):
            fn = fn._compiled_call_impl or getattr(fn, "forward", None)
        elif isinstance(inspect.getattr_static(type(fn), "__call__", None), Function):
            fn = type(fn).__call__
        elif isinstance(fn, types.MethodType):
            fn = fn.__func__
        core = getattr(fn, "core", None)
        if isinstance(core, _C.Function):
            return core
        fn = fn.func if isinstance(fn, functools.partial) else getattr(fn, "__wrapped__", None)
        if fn is None:
            break
    return None


def core_of(fn, where: str):
    """The C++ record of a decorated function or module or of a session; Error for anything else.

    A wrapper around a decorated function, or a partial of one, stands for it.
    """
    core = _find_core(fn)
    if core is None and is_disabled() and callable(fn):
        return _C.Function()  # nothing was decorated: nothing has happened
    if core is None:
        name = getattr(fn, "__qualname__", None) or f"an object of type {type(fn).__name__}"
        message = f"{name} is not decorated: put @lockstep.function on it"
        raise Error("not_decorated", where, message)
    return core


def reset(fn=None) -> None:
    """Forgets the graph and the counters of a function, or of all of them and the sizes they met.

    What is known of sizes stays as long as a call or a session goes on somewhere.

    Args:
        fn: a decorated function or module, or a session; None for all decorated functions.

    Raises:
        Error: where `fn` is not decorated, or runs now.
    """
    named = [] if fn is None else [core_of(fn, "lockstep.reset")]
    for one in named or [f.core for f in _all_functions]:
        try:
            one.reset()
        except ValueError:
            message = (
                f"{one.name} runs now and cannot be forgotten: call reset when it has returned"
            )
            raise Error("function_busy", "lockstep.reset", message) from None
    if fn is None:
        _C.forget_shapes()


def reset_stats(fn) -> None:
    """Sets the counters of a function to zero and keeps its graph."""
    core_of(fn, "lockstep.reset_stats").reset_counters()


def stats(fn) -> dict:
    """The counters of a function or session since the last reset; see docs/explain.md for each.

    Args:
        fn: a decorated function or module, or a session.

    Returns:
        A dict with calls, traced_calls, ops, graph_ops, eager_ops, feeds, fetches, waits,
        wait_seconds, divergences, blocks, nodes and reasons (a dict from reason to count).

    Raises:
        Error: where `fn` is none of these.
    """
    return _C.counters(core_of(fn, "lockstep.stats"))
