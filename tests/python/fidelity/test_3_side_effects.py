"""Point 3: side effects happen exactly once and in order, also when an op or the user raises."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch
from cases import busy
from kit import Case, check
from programs import run_program

item = pytest.mark.item
TROUBLES = ["none", "op by layout", "op by value", "user", "user, caught"]
ORDER = []


class UserError(Exception):
    pass


def make_trouble(trouble, x):
    """Raises in the way that `trouble` names."""
    if trouble == "op by layout":
        x @ torch.ones(99)
    if trouble == "op by value":
        x.index_select(0, torch.tensor([0, 77]))
    if trouble.startswith("user"):
        raise UserError(f"value {x.sum().item():.4f}")


def check_effects(make_effect, trouble, **options):
    """`make_effect(run)` gives (effect, state): `effect(name, tensor or None)` leaves a mark.

    Every second call runs into the trouble, after the first and before the last mark. The step
    itself changes a tensor before and after, so that a rerun or a skipped op would show too.
    """

    def make(run):
        effect, state = make_effect(run)
        counter = torch.zeros(3)

        def step(x, is_troubled):
            effect("begin", None)
            value = busy(x)[0, :3] * x
            counter.add_(value)
            effect("value", value.sum())
            try:
                try:
                    if is_troubled:
                        make_trouble(trouble, value)
                    effect("no trouble", None)
                finally:
                    effect("finally", counter.max())
            except UserError:
                effect("caught", None)
                if trouble != "user, caught":
                    raise
            counter.mul_(0.5)
            effect("end", counter.sum())
            return counter.clone()

        def inputs(number):
            return torch.randn(3), number % 2 == 1

        return Case(step, inputs, counter=counter, **state)

    return check(make, calls=6, raises=(UserError, RuntimeError, IndexError), share=0.5, **options)


def on_attributes(run):
    class Model:
        steps, names, last = 0, "", None

    model = Model()

    def effect(name, tensor):
        model.steps += 1
        model.names += name[0]
        setattr(model, "seen_" + name.replace(" ", "_"), None if tensor is None else tensor.item())

    return effect, {"attributes": lambda: list(vars(model).items())}


def on_globals(run):
    global ORDER
    ORDER = []

    def effect(name, tensor):
        global ORDER
        ORDER = [*ORDER, name, None if tensor is None else float(tensor)]

    return effect, {"globals": lambda: ORDER}


def on_lists(run):
    marks, tensors = [], []

    def effect(name, tensor):
        marks.append(name)
        if tensor is not None:
            tensors.append(tensor)
        if len(marks) > 12:
            del marks[::2]

    return effect, {"marks": marks, "tensors": tensors}


def on_closures(run):
    count, text, kept = 0, "", None

    def effect(name, tensor):
        nonlocal count, text, kept
        count += 1
        text += name
        kept = tensor if tensor is not None else kept

    return effect, {"cells": lambda: (count, text, kept)}


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize(
    "make_effect",
    [
        pytest.param(on_attributes, marks=item("3.attributes")),
        pytest.param(on_globals, marks=item("3.globals")),
        pytest.param(on_lists, marks=item("3.lists")),
        pytest.param(on_closures, marks=item("3.closures")),
    ],
)
def test_effects_in_memory(make_effect, trouble):
    shots = check_effects(make_effect, trouble)
    failed = ["error" in shot for shot in shots]
    assert failed == [trouble not in ("none", "user, caught") and n % 2 == 1 for n in range(6)]


@item("3.logging")
@pytest.mark.parametrize("trouble", TROUBLES)
def test_logging(trouble):
    def on_logging(run):
        logger = logging.Logger("fidelity", logging.INFO)
        records = []
        handler = logging.Handler()
        handler.emit = lambda record: records.append(
            (record.getMessage(), record.levelname, record.lineno, record.funcName)
        )
        logger.addHandler(handler)

        def effect(name, tensor):
            logger.info("%s %s", name, tensor)
            logger.debug("never %s", tensor)

        return effect, {"records": records}

    check_effects(on_logging, trouble)


@item("3.files")
@pytest.mark.parametrize("trouble", TROUBLES)
def test_files(tmp_path, trouble):
    def on_files(run):
        path = tmp_path / ("lockstep.txt" if run.is_lockstep else "eager.txt")

        def effect(name, tensor):
            with path.open("a") as file:
                print(name, tensor, file=file)

        return effect, {"text": path.read_text}

    check_effects(on_files, trouble)


def _warn(name, tensor):
    """A warning of Python, one of a kernel (std of one element), one of the torch API."""
    warnings.warn(f"mark {name}", UserWarning, stacklevel=2)
    if tensor is not None:
        tensor.reshape(1).std()
        torch.nn.functional.mse_loss(tensor.reshape(1), tensor.reshape(1, 1))


@item("3.warnings")
@pytest.mark.parametrize("trouble", TROUBLES)
def test_warnings(trouble):
    def on_warnings(run):
        shown = []

        def show(message, category, filename, lineno, file=None, line=None):
            shown.append(
                (str(message).split(" (Triggered")[0], category.__name__, filename, lineno)
            )

        warnings.showwarning = show
        return _warn, {"shown": shown}

    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            shots = check_effects(on_warnings, trouble)
    finally:
        torch.set_warn_always(False)
    texts = " ".join(message[1] for message in shots[-1]["state"]["shown"][1:])
    assert "degrees of freedom" in texts and "mark end" in texts and "target size" in texts


@item("3.warnings")
def test_warnings_that_were_given_once_and_are_wanted_always():
    def make(run):
        shown, caught = [], []

        def step(x):
            value = busy(x)[0, :3].to(torch.complex64)
            try:
                return value.to(torch.float32)  # warns once in a process
            except UserWarning:
                caught.append(len(caught))
            return value.real * 2

        def between(n):
            torch.set_warn_always(n % 9 > 5)
            warnings.simplefilter("error" if n % 9 > 7 else "always")
            return (torch.randn(3),)

        warnings.showwarning = lambda message, *rest, **names: shown.append(str(message)[:30])
        return Case(step, between, shown=shown, caught=caught)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.ones(1, dtype=torch.complex64).to(torch.float32)  # that once
            shots = check(make, calls=11)
    finally:
        torch.set_warn_always(False)
    state = shots[-1]["state"]
    assert len(state["shown"]) > 1 and len(state["caught"]) > 1


@item("3.warnings")
@pytest.mark.parametrize("once", ["default", "once", "module"])
def test_warning_filters_that_show_once(once):
    def make(run):
        shown, registry = [], {}

        def step(x):
            for _ in range(3):
                value = busy(x)[0, :3]
                warnings.warn_explicit("again", UserWarning, "file.py", 3, registry=registry)
                torch.zeros(1).mul(value.sum()).reshape(1).std()
            return value

        warnings.showwarning = lambda message, *rest, **names: shown.append(str(message)[:30])
        return Case(step, lambda n: (torch.randn(3),), shown=shown)

    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(once)
            warnings.filterwarnings("always", message="std")
            shots = check(make, share=0.5)
    finally:
        torch.set_warn_always(False)
    shown = shots[-1]["state"]["shown"][1:]
    assert shown.count("again") == 1 and len(shown) == 16


@item("3.warnings-as-errors")
@pytest.mark.parametrize("category", ["python", "kernel"])
def test_warnings_as_errors(category):
    def make(run):
        log = []

        def step(x, is_troubled):
            value = busy(x)[0, :3] * x
            log.append("before")
            try:
                if is_troubled and category == "python":
                    warnings.warn("mine", UserWarning, stacklevel=1)
                if is_troubled and category == "kernel":
                    value[:1].std()
                log.append("after")
            finally:
                log.append(value.sum().item())
            return value.exp()

        return Case(step, lambda n: (torch.randn(3), n % 2 == 1), log=log)

    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            shots = check(make, calls=6, raises=(UserWarning,), share=0.5)
    finally:
        torch.set_warn_always(False)
    assert ["error" in shot for shot in shots] == [False, True] * 3


PROGRAM_UNDER_W_ERROR = """
import warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
import lockstep

@lockstep.function(numerics="strict", when="always")
def step(x):
    y = (x @ x).tanh()
    try:
        y[0, :1].std()
        raise AssertionError("the kernel's warning did not become an error")
    except UserWarning as error:
        assert "degrees of freedom" in str(error)
    return y.sum()

torch.set_warn_always(True)
x = torch.arange(9.0).reshape(3, 3) / 9
print(*[step(x + n).item().hex() for n in range(4)])
print(*[(((x + n) @ (x + n)).tanh()).sum().item().hex() for n in range(4)])
"""


@item("3.warnings-as-errors")
def test_program_under_w_error():
    done = run_program(PROGRAM_UNDER_W_ERROR, flags=("-W", "error"))
    got, want = done.stdout.splitlines()
    assert got == want
