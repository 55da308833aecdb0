"""The knobs: one table, read from the environment, set by `config`, or given to `function`."""

import contextlib
import contextvars
import difflib
import os
import sys
import types
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep._check import load_library
from lockstep.errors import Error

PASSES: dict[str, str] = dict(load_library().passes())


@dataclass(frozen=True)
class Knob:
    """One setting.

    Attributes:
        default: the value where nobody says anything.
        meaning: one sentence.
        choices: the values that are allowed.
        takes_several: any number of them: a list, or one string with commas between.
    """

    default: Any
    meaning: str
    choices: tuple
    takes_several: bool = False


KNOBS: dict[str, Knob] = {
    "numerics": Knob(
        "default",
        "default: the fastest kernels within float32's accuracy; "
        "strict: PyTorch's own kernels in eager's order with eager's thread count, "
        "bit for bit equal; "
        "fast: as default, and matrix products of bfloat16 where the processor has them and they "
        "are faster: results are within 0.5 %",
        ("default", "strict", "fast"),
    ),
    "fuse": Knob(
        "pointwise",
        "what becomes one kernel where numerics is not strict: "
        "pointwise, chains of elementwise ops; nothing",
        ("pointwise", "nothing"),
    ),
    "without": Knob(
        (),
        "passes of the graph runner that are switched off where numerics is not strict, such as "
        '["split", "drop_results"] or "split,drop_results": to find out which one a difference '
        "comes from",
        tuple(PASSES),
        takes_several=True,
    ),
    "optimizers": Knob(
        "joined",
        "steps of torch.optim's Adam, AdamW, SGD, Adagrad and RMSprop where numerics is not "
        "strict: "
        "joined, one op for all parameters; single, one parameter after the other",
        ("joined", "single"),
    ),
    "deterministic": Knob(
        False,
        "True: two runs with the same seed give the same bits also where numerics is not strict, "
        "whatever was measured or compiled before: kernels are chosen from a fixed table, the "
        "first calls wait for those that are compiled, and auto does not measure",
        (False, True),
    ),
    "when": Knob(
        "auto",
        "auto: co-execute where it measures faster than eager; always: force it; "
        "never: run eagerly",
        ("auto", "always", "never"),
    ),
    "runner": Knob(
        "auto",
        "where kernels run when co-execution is forced: "
        "behind, on a thread that trails the leading one; "
        "yielding, the same, but its workers sleep between parallel loops and a thread that waits "
        "takes parts of them; "
        "auto, the one of these two in which Python asks for more ops in a second; "
        "inplace, on the leading thread whenever it waits "
        '(`when="auto"` measures all)',
        ("auto", "behind", "yielding", "inplace"),
    ),
    "errors": Knob(
        "exact",
        "exact: an error that depends on values is raised by the line that asked, as in eager; "
        "late: it may be raised at the next read or at the end of the call",
        ("exact", "late"),
    ),
}

_TRUTHS = {  # in the environment
    "0": False, "false": False, "no": False, "off": False,
    "1": True, "true": True, "yes": True, "on": True,
}  # fmt: skip

_OTHER_WORDS = {  # what others call a variable
    "ENABLE": "DISABLE, its opposite", "ENABLED": "DISABLE, its opposite",
    "VERBOSE": "LOG", "DEBUG": "LOG",
}  # fmt: skip

_VARIABLES = {name: f"LOCKSTEP_{name.upper()}" for name in KNOBS}

_overrides: contextvars.ContextVar[Mapping] = contextvars.ContextVar(
    "lockstep_config", default=types.MappingProxyType({})
)
_is_switched_off = contextvars.ContextVar("lockstep_switched_off", default=False)


def check_knobs(where: str, knobs: dict) -> dict:
    """The knobs, several values sorted in a tuple; raises Error for an unknown name or value."""
    checked = {}
    for name, value in knobs.items():
        if name not in KNOBS:
            near = difflib.get_close_matches(str(name), KNOBS, 1)
            hint = ""
            if near:
                hint = f"did you mean {near[0]!r}? "
            elif option := _option_with(str(name)):
                hint = f"did you mean {option}={name!r}? "
            message = f"no option {name!r}: {hint}there are {', '.join(KNOBS)}"
            raise Error("unknown_option", where, message)
        knob = KNOBS[name]
        several = _names_in(value) if knob.takes_several else None
        given = [value] if several is None else several
        if not all(_is_one_of(knob.choices, item) for item in given):
            allowed = ", ".join(map(repr, knob.choices))
            number = "some" if knob.takes_several else "one"
            message = f"{name}={value!r} cannot be: use {number} of {allowed}"
            raise Error("bad_value", where, message)
        checked[name] = value if several is None else tuple(sorted({*several}))
    return checked


def _option_with(value: str) -> str | None:
    """The first option that can be this."""
    return next((name for name, knob in KNOBS.items() if value in knob.choices), None)


def _is_one_of(choices: tuple, value: Any) -> bool:
    try:
        return bool(value in choices)
    except Exception:  # arrays have no truth of their own
        return False


def _names_in(value: Any) -> list[str]:
    if isinstance(value, str):
        return [word.strip() for word in value.split(",") if word.strip()]
    if isinstance(value, Collection) and all(isinstance(item, str) for item in value):
        return list(value)
    return [repr(value)]  # the name of nothing


def is_disabled() -> bool:
    """Whether LOCKSTEP_DISABLE switches everything off: by any word but those that say no."""
    value = os.environ.get("LOCKSTEP_DISABLE", "").strip()
    return value != "" and _TRUTHS.get(value.lower(), True)


def _from_environment(name: str) -> Any:
    value = os.environ.get(_VARIABLES[name], "").strip()
    if not value:  # as if it were not there
        return None
    if KNOBS[name].choices == (False, True):
        value = _TRUTHS.get(value.lower(), value)
    check_knobs(f"environment variable {_VARIABLES[name]}", {name: value})
    return value


def current(own: dict) -> dict:
    """The settings in force: the decorator's own, else `config`, the environment, the default."""
    overrides = _overrides.get()
    settings = {}
    for name, knob in KNOBS.items():
        if name in own:
            settings[name] = own[name]
        elif name in overrides:
            settings[name] = overrides[name]
        else:
            found = _from_environment(name)
            settings[name] = knob.default if found is None else found
    return settings


def for_core(own: dict) -> tuple[str, dict]:
    """What is in force: `when`, and the rest as the core takes it."""
    settings = current(own)
    is_strict = settings["numerics"] == "strict"
    return "never" if _is_switched_off.get() else settings["when"], {
        "runner": settings["runner"],
        "waits_for_errors": settings["errors"] == "exact",
        "is_strict": is_strict,
        "fuses": not is_strict and settings["fuse"] != "nothing",
        "without": _names_in(settings["without"]),
        "is_deterministic": not is_strict and bool(settings["deterministic"]),
        "joins_steps": not is_strict and settings["optimizers"] == "joined",
        "rounds_products": settings["numerics"] == "fast",
    }


_encoded: dict[Any, tuple] = {}  # the names of the variables, by what encodes them


def surroundings() -> tuple:
    """What `for_core` looks at besides a decorator's own options: equal where its answer is.

    Each call of a decorated function asks. So this goes past what `os.environ` does for each
    variable, to the dict in it.
    """
    held, encode = getattr(os.environ, "_data", os.environ), getattr(os.environ, "encodekey", str)
    if encode not in _encoded:
        _encoded[encode] = tuple(map(encode, _VARIABLES.values()))
    return (_is_switched_off.get(), _overrides.get(), *map(held.get, _encoded[encode]))


@contextlib.contextmanager
def switched_off():
    """Whatever is called inside of the `with` block runs eagerly, also where it says otherwise."""
    token = _is_switched_off.set(True)
    try:
        yield
    finally:
        _is_switched_off.reset(token)


def check_environment() -> None:
    """Raises Error for a variable with a value that is not allowed. Call at import."""
    if not is_disabled():
        for name in KNOBS:
            _from_environment(name)


def warn_of_misspelt_names() -> None:
    """Warns of each environment variable that is nearly named as one of ours. Call at import."""
    known = [*(name.upper() for name in KNOBS), "LOG", "DISABLE", "CACHE"]
    for variable in sorted(os.environ):
        name = variable.removeprefix("LOCKSTEP_")
        if name == variable or name in known:
            continue
        near = difflib.get_close_matches(name.upper(), known, 1)
        if name.upper() in _OTHER_WORDS:
            meant = _OTHER_WORDS[name.upper()]
        elif near:
            meant = near[0]
        elif option := _option_with(name.lower()):
            meant = f"{option.upper()}={name.lower()}"
        else:
            continue
        message = f"{variable} is not read by Lockstep: did you mean LOCKSTEP_{meant}?"
        warnings.warn(message, stacklevel=3)  # the line that imports


def install_log(library) -> None:
    """Switches on the lines on standard error that LOCKSTEP_LOG names. Call once, at import.

    Raises:
        Error: for a kind of line that there is not.
    """
    words = os.environ.get("LOCKSTEP_LOG", "").split(",")
    wanted = [word.strip() for word in words if word.strip()]
    if not wanted:
        return
    kinds = [name for name, _ in library.log_kinds()]
    for kind in wanted:
        if kind not in kinds:
            where = "environment variable LOCKSTEP_LOG"
            message = f"no kind {kind!r} of lines: use some of {', '.join(kinds)} (commas between)"
            raise Error("unknown_option", where, message)
    library.set_log(wanted)


class config(contextlib.ContextDecorator):
    """Sets knobs for what is called inside of the `with` block and does not set them itself.

        with lockstep.config(when="always"):
            train()

    It decorates functions, too, and then holds for each of their calls.

    Args:
        **knobs: see `lockstep.KNOBS`.

    Raises:
        Error: for an unknown name or a value that is not allowed.
    """

    def __init__(self, *unnamed, **knobs):
        self._is_used = True  # where it is refused, nothing more is to be said
        if unnamed:
            message = f"{unnamed[0]!r} has no name: name the option, as in config(when='always')"
            raise Error("unknown_option", "lockstep.config", message)
        self._knobs = check_knobs("lockstep.config", knobs)
        self._tokens: list[contextvars.Token] = []
        self._is_used = False

    def _recreate_cm(self):  # each call of what it decorates enters one of its own
        self._is_used = True
        return config(**self._knobs)

    def __enter__(self):
        self._is_used = True
        self._tokens.append(_overrides.set({**_overrides.get(), **self._knobs}))

    def __exit__(self, kind, error, traceback):
        _overrides.reset(self._tokens.pop())

    def __del__(self):
        warn_unless_used(self._is_used, "config")


def warn_unless_used(is_used: bool, name: str) -> None:
    """Call in `__del__` of what does nothing without `with`; the warning names its line."""
    if not is_used and not sys.is_finalizing():
        message = f"lockstep.{name}(...) does nothing by itself: use it in a `with` statement"
        warnings.warn(message, stacklevel=3)
