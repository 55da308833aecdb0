"""Bad input: each mistake is met with one clear sentence that says where, what, and what to do."""

import os
import platform
import re
import reprlib
import subprocess
import sys
import threading
import types
import warnings
import zipfile
from pathlib import Path

import lockstep
import pytest
import torch
from lockstep import knobs
from lockstep._check import check_platform
from lockstep.knobs import warn_of_misspelt_names
from test_session import run_code
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent / "structure"))

from structure_files import SOURCE, files_with, text_of  # noqa: E402

PACKAGE_ROOT = Path(lockstep.__file__).parents[1]


def run_python(*arguments, path=PACKAGE_ROOT, cwd=None, **environment):
    """Runs Python in a process of its own; gives the CompletedProcess."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
    kept |= {"PYTHONPATH": str(path), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=kept, cwd=cwd, timeout=120
    )


def is_one_sentence(message):
    """One line, no repr of objects with addresses, not a stack of sentences."""
    return "\n" not in message and ". " not in message and len(message) < 250


class Refused:
    """What was raised, for checks of its parts."""

    def __init__(self, call):
        with pytest.raises(lockstep.Error) as caught:
            call()
        self.error = caught.value
        self.text = str(caught.value)
        assert self.text == f"{self.error.where}: {self.error.message}"
        assert is_one_sentence(self.text), self.text

    def says(self, kind, where, *words):
        """Checks the kind, the place, and that each word stands in the message."""
        assert (self.error.kind, self.error.where) == (kind, where), self.text
        for word in words:
            assert word in self.error.message, self.text


def plain(x):
    return x + 1


# ---- options


@pytest.mark.parametrize(
    "where, use",
    [
        ("lockstep.function", lambda **options: lockstep.function(plain, **options)),
        ("lockstep.function", lambda **options: lockstep.function(**options)),
        ("lockstep.session", lambda **options: lockstep.session(**options)),
        ("lockstep.config", lambda **options: lockstep.config(**options).__enter__()),
    ],
    ids=["decorator", "decorator with options", "session", "config"],
)
def test_options(where, use):
    Refused(lambda: use(numeric="strict")).says(
        "unknown_option", where, "no option 'numeric'", "did you mean 'numerics'?", "when"
    )
    Refused(lambda: use(zzz=1)).says("unknown_option", where, "no option 'zzz'", "numerics")
    Refused(lambda: use(strict=True)).says(
        "unknown_option", where, "no option 'strict'", "did you mean numerics='strict'?"
    )
    Refused(lambda: use(when="sometimes")).says(
        "bad_value", where, "when='sometimes'", "'auto'", "'always'", "'never'"
    )
    Refused(lambda: use(errors=["exact"])).says("bad_value", where, "errors=['exact']", "'late'")
    Refused(lambda: use(when=torch.ones(2))).says("bad_value", where, "tensor([1., 1.])", "'auto'")


def test_environment(monkeypatch):
    fast = lockstep.function(plain)
    monkeypatch.setenv("LOCKSTEP_WHEN", "sometimes")
    Refused(lambda: fast(torch.ones(2))).says(
        "bad_value", "environment variable LOCKSTEP_WHEN", "'sometimes'", "use one of", "'auto'"
    )
    monkeypatch.delenv("LOCKSTEP_WHEN")
    assert torch.equal(fast(torch.ones(2)), torch.full((2,), 2.0))  # nothing is left behind


def test_settings_are_those_in_force_at_each_call(monkeypatch):
    """They are kept from call to call while nothing about them changes."""
    made = []
    for_core = lockstep.knobs.for_core
    monkeypatch.setattr(
        lockstep.knobs, "for_core", lambda options: made.append(for_core(options)) or made[-1]
    )
    function = lockstep.function(plain, numerics="default")
    expected = []

    def call(when, runner, times=2):
        for _ in range(times):
            function(torch.ones(2))
        expected.append((when, runner))
        assert [(found, settings["runner"]) for found, settings in made] == expected

    monkeypatch.delenv("LOCKSTEP_WHEN", raising=False)
    call("auto", "auto")
    monkeypatch.setenv("LOCKSTEP_WHEN", "never")
    call("never", "auto")
    with lockstep.config(runner="inplace"):
        call("never", "inplace")
        os.environ["LOCKSTEP_WHEN"] = "always"
        call("always", "inplace")
        with lockstep.config(when="never"):
            call("never", "inplace")
    call("always", "auto")
    monkeypatch.setattr(os, "environ", {"LOCKSTEP_RUNNER": "yielding"})
    call("auto", "yielding")


def test_an_empty_variable_says_nothing(monkeypatch):
    for name in lockstep.KNOBS:
        monkeypatch.setenv(f"LOCKSTEP_{name.upper()}", " " if name == "fuse" else "")
    defaults = {name: knob.default for name, knob in lockstep.KNOBS.items()}
    assert lockstep.knobs.current({}) == defaults
    assert torch.equal(lockstep.function(plain)(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.parametrize("yes, no", [("1", "0"), ("true", "False"), ("yes", "no"), ("ON", "off")])
def test_words_for_yes_and_no(monkeypatch, yes, no):
    for word, truth in ((yes, True), (no, False), (f" {no} ", False)):
        monkeypatch.setenv("LOCKSTEP_DETERMINISTIC", word)
        assert lockstep.knobs.current({})["deterministic"] is truth
        monkeypatch.setenv("LOCKSTEP_DISABLE", word)
        assert (lockstep.function(plain) is plain) is truth


def test_unnamed_options():
    Refused(lambda: lockstep.config("always").__enter__()).says(
        "unknown_option", "lockstep.config", "'always' has no name", "config(when='always')"
    )
    Refused(lambda: lockstep.function(plain, "always")).says(
        "unknown_option", "lockstep.function", "'always' has no name"
    )
    Refused(lambda: lockstep.session(plain)).says(
        "unknown_option", "lockstep.session", "takes only options"
    )
    Refused(lambda: lockstep.session(when="always")(plain)).says(
        "not_callable", "lockstep.session", "is no decorator", "there is `lockstep.function`"
    )


def names_in_the_environment(monkeypatch, *names):
    """What is said of the names at import."""
    for name in names:
        monkeypatch.setenv(name, "1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_misspelt_names()
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    "name, meant",
    [
        ("WEN", "WHEN"), ("When", "WHEN"), ("NUMERIC", "NUMERICS"), ("ERROR", "ERRORS"),
        ("RUNNERS", "RUNNER"), ("LOGS", "LOG"), ("DISABLED", "DISABLE"),
        ("STRICT", "NUMERICS=strict"), ("NEVER", "WHEN=never"),
    ],
)  # fmt: skip
def test_misspelt_environment(monkeypatch, name, meant):
    (said,) = names_in_the_environment(monkeypatch, f"LOCKSTEP_{name}")
    assert said == f"LOCKSTEP_{name} is not read by Lockstep: did you mean LOCKSTEP_{meant}?"
    assert is_one_sentence(said)


def test_names_of_ours_and_of_others_are_no_mistakes(monkeypatch):
    knobs = [f"LOCKSTEP_{name.upper()}" for name in lockstep.KNOBS]
    ours = {"LOCKSTEP_LOG", "LOCKSTEP_DISABLE", *knobs}
    for path in files_with(SOURCE):
        ours.update(re.findall(r"\bLOCKSTEP_[A-Z_]*[A-Z]\b", text_of(path)))
    ours -= {"LOCKSTEP_WEN"}
    assert len(ours) > 8
    assert names_in_the_environment(monkeypatch, *ours, "LOCKSTEP_ZZZ", "OTHER_WEN") == []


def test_misspelt_environment_at_import():
    done = run_python("-c", "import lockstep, lockstep", LOCKSTEP_WEN="always")
    assert done.returncode == 0 and done.stderr.count("LOCKSTEP_WEN") == 1
    assert done.stderr.startswith("<string>:1: UserWarning: LOCKSTEP_WEN is not read by Lockstep:")


def test_log_kinds():
    done = run_python("-c", "import lockstep", LOCKSTEP_LOG="trace,tarce")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith(
        "lockstep.errors.Error: environment variable LOCKSTEP_LOG: no kind 'tarce'"
    )
    assert "use some of call, trace, diverge, fallback, wait, auto" in last


def test_conflicting_options():
    fast = lockstep.function(plain, when="always")
    assert lockstep.function(fast) is fast and lockstep.function(fast, when="always") is fast
    Refused(lambda: lockstep.function(fast, when="never")).says(
        "conflicting_options",
        "lockstep.function",
        "plain is decorated with {'when': 'always'}",
        "{'when': 'never'} conflicts",
        "decorate it once",
    )
    module = lockstep.function(torch.nn.Linear(2, 2))
    assert lockstep.function(module) is module
    Refused(lambda: lockstep.function(module, errors="late")).says(
        "conflicting_options", "lockstep.function", "Linear is decorated with no options"
    )


# ---- what is decorated


LONG = torch.optim.SGD([torch.ones(2)])  # its repr has lines


@pytest.mark.parametrize(
    "thing", [3, None, "text", [plain], torch.ones(2), LONG], ids=lambda thing: type(thing).__name__
)
def test_things_that_cannot_be_called(thing):
    Refused(lambda: lockstep.function(thing)).says(
        "not_callable",
        "lockstep.function",
        f"is a {type(thing).__name__}, not a callable",
        ("this" if thing is LONG else reprlib.repr(thing)) + " is a ",
        "decorate a function, a method or an nn.Module",
    )
    Refused(lambda: lockstep.function(when="always")(thing)).says(
        "not_callable", "lockstep.function"
    )


def test_classes():
    class Net(torch.nn.Module):
        pass

    Refused(lambda: lockstep.function(Net)).says(
        "not_callable", "lockstep.function", "Net is a class", "decorate a method of it", "instance"
    )


@pytest.mark.parametrize("name", ["stats", "reset_stats", "explain", "reset"])
def test_things_that_are_not_decorated(name):
    for thing in (plain, torch.nn.Linear(2, 2), 3):
        Refused(lambda thing=thing: getattr(lockstep, name)(thing)).says(
            "not_decorated", f"lockstep.{name}", "is not decorated", "put @lockstep.function on it"
        )
    Refused(lambda: getattr(lockstep, name)(torch.nn.Linear(2, 2))).says(
        "not_decorated", f"lockstep.{name}", "an object of type Linear"
    )


def test_reset_of_a_function_that_runs():
    @lockstep.function(when="always")
    def resets(x):
        Refused(lambda: lockstep.reset(resets)).says(
            "function_busy", "lockstep.reset", "resets runs now", "when it has returned"
        )
        return x + 1

    for _ in range(3):
        assert torch.equal(resets(torch.ones(2)), torch.full((2,), 2.0))
    lockstep.reset(resets)
    assert lockstep.stats(resets)["calls"] == 0


# ---- sessions


def test_session_closed_twice_or_never_opened():
    s = lockstep.session()
    for _ in range(2):
        Refused(s.close).says("session_closed", "lockstep.session", "not open", "close it once")
        with s:
            y = torch.ones(2) + 1
    with pytest.raises(lockstep.Error, match="not open"), s:
        s.close()
    assert torch.equal(y, torch.full((2,), 2.0))


def test_session_entered_twice():
    s = lockstep.session(when="always")
    with s:
        Refused(s.__enter__).says(
            "session_open", "lockstep.session", "open already", "close it first"
        )
        y = torch.ones(2) + 1
    assert torch.equal(y, torch.full((2,), 2.0))


def test_session_whose_setting_is_refused(monkeypatch):
    s = lockstep.session()
    monkeypatch.setenv("LOCKSTEP_WHEN", "sometimes")
    for _ in range(2):
        Refused(s.__enter__).says("bad_value", "environment variable LOCKSTEP_WHEN", "'sometimes'")
        Refused(s.close).says("session_closed", "lockstep.session", "not open")
    monkeypatch.delenv("LOCKSTEP_WHEN")
    with s:
        y = torch.ones(2) + 1
    assert torch.equal(y, torch.full((2,), 2.0)) and lockstep.stats(s)["ops"] == 2


def test_two_threads_that_enter_one_session(monkeypatch):
    s = lockstep.session(when="always")
    found = []
    for_core = knobs.for_core

    def slowly(options):
        if found:
            return for_core(options)
        thread = threading.Thread(target=lambda: found.append(Refused(s.__enter__)))
        thread.start()
        thread.join()
        return for_core(options)

    monkeypatch.setattr(knobs, "for_core", slowly)
    with s:
        y = torch.ones(2) + 1
    found[0].says("session_open", "lockstep.session", "open already", "close it first")
    assert torch.equal(y, torch.full((2,), 2.0)) and lockstep.stats(s)["ops"] == 2


def test_session_closed_by_another_thread():
    found = []
    with lockstep.session(when="always") as s:
        thread = threading.Thread(target=lambda: found.append(Refused(s.close)))
        thread.start()
        thread.join()
        y = torch.ones(2) + 1
    found[0].says("session_thread", "lockstep.session", "another thread", "close it there")
    assert torch.equal(y, torch.full((2,), 2.0))


# ---- import


def test_import_is_refused():
    done = run_python("-c", "import torch; torch.__version__ = '2.12.1'; import lockstep")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert last == (
        "ImportError: lockstep needs PyTorch 2.13, found 2.12.1: pip install torch==2.13.0"
    )


def refusal():
    """What the check that stands before every import says now."""
    with pytest.raises(ImportError) as caught:
        check_platform()
    return str(caught.value)


@pytest.mark.parametrize("version", ["2.12.1+cpu", "2.130.0", "3.13.0"])
def test_other_pytorch(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    assert refusal() == (f"lockstep needs PyTorch 2.13, found {version}: pip install torch==2.13.0")


def test_no_pytorch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    message = refusal()
    assert message.startswith("lockstep needs PyTorch 2.13, which does not import (")
    assert message.endswith("): pip install torch==2.13.0") and is_one_sentence(message)


def test_other_python(monkeypatch):
    monkeypatch.setattr(platform, "python_version", lambda: "3.12.1")
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    assert refusal() == (
        "lockstep needs CPython 3.11, this is cpython 3.12.1: make an environment with Python 3.11"
    )


def test_other_interpreter(monkeypatch):
    monkeypatch.setattr(platform, "python_version", lambda: "3.11.9")
    monkeypatch.setattr(sys, "implementation", types.SimpleNamespace(name="pypy"))
    assert "this is pypy 3.11.9: make an environment with Python 3.11" in refusal()


def test_other_machine(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert refusal() == ("lockstep runs on Linux x86-64, this is linux aarch64: use such a machine")


def test_no_library(tmp_path):
    package = tmp_path / "lockstep"
    package.mkdir()
    for file in Path(lockstep.__file__).parent.glob("*.py"):
        (package / file.name).write_bytes(file.read_bytes())
    done = run_python("-c", "import lockstep", path=tmp_path)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "ImportError: the C++ library of lockstep is not there or does not load ("
    )
    assert "build it with scripts/setup.sh" in last


# ---- python -m lockstep


def test_missing_script(tmp_path):
    done = run_python("-m", "lockstep", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "lockstep: the path of a script is missing: give one",
        "usage: python -m lockstep [--explain] script.py [arguments of the script]",
    ]
    done = run_python("-m", "lockstep", "nothing.py", "--more", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == (
        "lockstep: no script 'nothing.py': give the path of a file that exists"
    )


def test_unknown_option_before_a_script():
    done = run_python("-m", "lockstep", "--explian", "script.py")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == (
        "lockstep: no option '--explian': there are -h, --help and --explain"
    )


def test_an_archive_for_a_script(tmp_path):
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", "print('here')")
    done = run_python("-m", "lockstep", "app.zip", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == (
        "lockstep: 'app.zip' holds null bytes: give a script of Python's, no archive"
    )


def test_explain_where_there_is_no_standard_error(tmp_path):
    (tmp_path / "script.py").write_text("print('here')\n")
    command = f"{sys.executable} -m lockstep --explain script.py 2>&-"
    done = subprocess.run(
        command,
        shell=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
    )
    assert (done.returncode, done.stdout) == (0, "here\n")


def test_script_with_a_syntax_error(tmp_path):
    (tmp_path / "bad.py").write_text("x = = 1\n")
    done = run_python("-m", "lockstep", "bad.py", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "SyntaxError: invalid syntax"
    assert "__main__.py" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("numerics", ["strict", "default"])
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_a_word_that_a_kernel_does_not_know(numerics, needs_gradient):
    """At its line, also where the op ran with another word before."""
    x = torch.randn(64, requires_grad=needs_gradient)

    @lockstep.function(when="always", numerics=numerics)
    def curve(approximate):
        try:
            y = torch.nn.functional.gelu(x, approximate=approximate)
            return y + torch.ones(64) * 2
        except RuntimeError as error:
            return str(error)

    for word in ("none", "none", "Tanh", "none", "tanh", "Tanh", "none", "other"):
        result = curve(word)
        if word in ("Tanh", "other"):
            assert isinstance(result, str) and "approximate argument must be either" in result
        else:
            assert torch.allclose(result, torch.nn.functional.gelu(x, approximate=word) + 2)


@pytest.mark.parametrize("numerics", ["strict", "default"])
def test_what_deterministic_algorithms_refuse(numerics):
    """Also after calls in which nothing was refused, and as a warning."""

    def put(mode):
        torch.use_deterministic_algorithms(mode != "any", warn_only=mode == "warned")
        try:
            return torch.put(torch.zeros(4), torch.tensor([1]), torch.tensor([3.0])) + 1
        except RuntimeError as error:
            return str(error)
        finally:
            torch.use_deterministic_algorithms(False)

    in_lockstep = lockstep.function(when="always", numerics=numerics)(put)
    for mode in ("any", "any", "refused", "any", "warned", "refused", "warned", "any"):
        with warnings.catch_warnings(record=True) as eager_warnings:
            warnings.simplefilter("always")
            expected = put(mode)
        with warnings.catch_warnings(record=True) as own_warnings:
            warnings.simplefilter("always")
            result = in_lockstep(mode)
        assert not torch.are_deterministic_algorithms_enabled()
        assert len(own_warnings) == len(eager_warnings) == (mode == "warned")
        if mode == "refused":
            assert result == expected and "does not have a deterministic implementation" in result
        else:
            assert torch.equal(result, expected)


REFUSED_NUMBERS = {
    "softshrink": (F.softshrink, [0.5, 0.25, 0.0, 2.0], [-1.0, -0.25]),
    "celu": (F.celu, [0.5, 2.0, -1.0], [0.0]),
    "hardtanh": (lambda x, high: F.hardtanh(x, -1.0, high), [1.0, 2.0, 1e30], [1e39, 1.5e39]),
    "clamp": (lambda x, high: x.clamp(max=high), [1.0, 2.0, -300.0], [1e39]),
    "add": (lambda x, alpha: torch.add(x, x, alpha=alpha), [1.0, 0.5, -0.5], [-1e39, True, 1e300]),
    "rsub": (lambda x, number: number - x, [1.0, 3, -0.5, 0.0], [True]),
    "full_like": (torch.full_like, [1.0, 0.5, 3.0], [1e39]),
    "pad": (lambda x, value: F.pad(x, (1, 0), value=value), [1.0, 0.0, 3.0], [-1e39]),
    "scatter": (
        lambda x, value: x.scatter(0, torch.tensor([1]), value),
        [1.0, 0.5, 3.0],
        [1e39],
    ),
    "addmv": (
        lambda x, beta: torch.addmv(x, x[:, None] * torch.ones(len(x)), x, beta=beta),
        [1.0, 0.5, 3.0],
        [1e39],
    ),
    "integers": (lambda x, high: (x * 10).char().clamp(max=high), [1, 100, -3], [300, 10**6]),
    "least": (lambda x, low: (x * 10).char().clamp(min=low), [-1, -128], [-129, -200]),
    "long": (
        lambda x, value: torch.zeros(1000, dtype=torch.long).fill_(value),
        [1.0, 1e10, -1e18],
        [1e19],
    ),
    "power": (lambda x, power: (x * 10).int() ** power, [1, 2, 3, 0], [-1, -2]),
    "fill": (lambda x, value: torch.empty(64).fill_(value), [1.0, -1.0, 1e38], [1e39]),
    "smooth": (
        lambda x, beta: F.smooth_l1_loss(x, x + 1, beta=beta, reduction="none"),
        [1.0, 0.5, 0.0],
        [-1.0],
    ),
}


@pytest.mark.parametrize("numerics", ["strict", "default"])
@pytest.mark.parametrize("name", REFUSED_NUMBERS)
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_numbers_that_a_kernel_refuses(name, numerics, needs_gradient):
    """At their line, also where the op took other numbers before, and other sizes."""
    op, taken, refused = REFUSED_NUMBERS[name]

    def use(x, number):
        x = x * 2
        try:
            y = op(x, number)
        except (RuntimeError, ValueError) as error:
            return type(error), str(error)
        return y + 1

    in_lockstep = lockstep.function(when="always", numerics=numerics)(use)
    for size in (64, 64, 128):
        for number in [*taken, *taken, *refused, taken[0], *refused]:
            x = torch.randn(size, requires_grad=needs_gradient)
            expected, result = use(x, number), in_lockstep(x, number)
            if isinstance(expected, tuple):
                assert result == expected
            else:
                assert torch.allclose(result, expected)
            assert isinstance(expected, tuple) == any(number is one for one in refused)


@pytest.mark.parametrize("numerics", ["strict", "default"])
def test_more_memory_than_there_is_is_refused(numerics):
    """As in eager, and not once somebody touches it."""
    step = lockstep.function(
        lambda x, size: x.new_empty(size).numel(), when="always", numerics=numerics
    )
    x = torch.zeros(1)
    for _ in range(3):
        assert step(x, 10) == 10
    try:
        x.new_empty(1 << 36)
        pytest.skip("this system promises 256 GiB")
    except RuntimeError as error:
        expected = str(error)
    with pytest.raises(RuntimeError) as own:
        step(x, 1 << 36)
    assert str(own.value).splitlines()[0] == expected.splitlines()[0]
    assert step(x, 10) == 10


@pytest.mark.parametrize("runner", ["behind", "inplace"])
@pytest.mark.parametrize("numerics", ["strict", "default"])
def test_a_program_may_do_with_less_memory(numerics, runner):
    """What is refused is caught where eager catches it, and nothing is left of it."""
    x = torch.arange(4.0)

    def attempt(size):
        try:
            large = x[:1].expand(size).clone()
        except RuntimeError:
            large = torch.zeros(3)
        return large.numel(), [(x + k).sum().item() for k in range(3)], x * 2

    try:
        torch.zeros(1 << 37)
        pytest.skip("this system promises 512 GiB")
    except RuntimeError:
        pass
    step = lockstep.function(attempt, when="always", numerics=numerics, runner=runner)
    for size in (10, 10, 10, 11, 12, 1 << 37, 10, 1 << 37):
        size_now, sums, doubled = step(size)
        assert size_now == (3 if size == 1 << 37 else size)
        assert sums == [6.0, 10.0, 14.0]
        assert doubled.tolist() == [0.0, 2.0, 4.0, 6.0]
        assert not lockstep._C.is_active()


def late(number):
    """The number, after some time."""
    x = torch.zeros(400, 400)
    return (x @ x)[0, :2] + number


def divide_into_floats(number):
    whole, out = late(number).long(), torch.empty(2)
    torch.floor_divide(whole, whole, out=out)
    return out


def fill_halves(number):
    return torch.ones(2).half().masked_fill_(torch.ones(2) > 0, late(number)[0].long())


def fill_with(to, of):
    return lambda number: torch.ones(2).to(to).fill_(late(number)[0].to(of))


@pytest.mark.parametrize(
    ("write", "numbers"),
    [
        (divide_into_floats, (1, 1, 1, 0, 1)),
        (fill_halves, (1, 1, 1, 100000, 1)),
        (fill_with(torch.float8_e4m3fn, torch.int64), (1, 2, 3)),
        (fill_with(torch.complex64, torch.uint16), (1, 2, 3)),
    ],
    ids=["divide", "halves", "float8", "uint16"],
)
def test_errors_of_written_numbers_are_raised_where_they_are_asked_for(write, numbers):
    def run(decorate):
        state = torch.zeros(1)

        @decorate
        def step(number):
            try:
                result = write(number)
            except RuntimeError as error:
                return str(error)
            state.add_(1)
            return result

        return [(str(step(number)), state.item()) for number in numbers]

    assert run(lockstep.function(when="always", runner="behind")) == run(lambda step: step)


@pytest.mark.parametrize("numerics", ["strict", "default"])
@pytest.mark.parametrize("runner", ["behind", "inplace"])
def test_a_type_is_refused_though_it_was_not_for_empty_tensors(numerics, runner):
    """A kernel that has nothing to do looks at no type."""

    def step(count, log):
        try:
            torch.arange(count).normal_()
            log.append("drawn")
        except NotImplementedError as error:
            log.append(str(error))
        try:
            (torch.ones(count, 4) > 0).softmax(-1)
            log.append("normalized")
        except NotImplementedError as error:
            log.append(str(error))

    decorated = lockstep.function(step, when="always", numerics=numerics, runner=runner)
    for count in (0, 0, 0, 30000, 0, 40000):
        expected, found = [], []
        step(count, expected)
        decorated(count, found)
        assert found == expected


def test_sizes_that_follow_empty_ones_are_learned_once():
    """Only the first op with values after empty ones is waited for."""

    @lockstep.function(when="always", numerics="strict")
    def step(x):
        return (x * 2).sin()

    for _ in range(4):
        step(torch.ones(0, 8))
    step(torch.ones(500, 8))
    before = lockstep.stats(step)["waits"]
    for count in (0, 501, 0, 502, 0, 503):
        step(torch.ones(count, 8))
    calls = 6
    assert lockstep.stats(step)["waits"] - before <= calls  # one at the end of each


LITTLE_MEMORY = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (2200 << 20, 2200 << 20))
import lockstep, torch

torch.set_num_threads(1)
"""

SCARCE = """
w, done = torch.full((600, 600), 0.01), torch.zeros(4)

@lockstep.function(when="always")
def step(size):
    for _ in range(10):
        product = w @ w  # computed while Python goes on
    first = torch.ones(size)
    try:
        second = first * 2
    except RuntimeError as error:
        return "caught " + str("allocate memory" in str(error))
    done.add_(1)
    return first.numel() + second.numel()

print([step(size) for size in (10, 10, 10, 10, 280_000_000, 10)], done.tolist())
"""


@pytest.mark.parametrize("numerics", ["strict", "default"])
def test_what_was_asked_for_before_counts_where_memory_is_scarce(numerics):
    done = run_code(LITTLE_MEMORY + SCARCE, LOCKSTEP_NUMERICS=numerics)
    assert done.stdout == "[20, 20, 20, 20, 'caught True', 20] [5.0, 5.0, 5.0, 5.0]\n"


LATE = """
held = []

@lockstep.function(when="always", runner="behind")
def step(size):
    held.append(torch.full((size,), 1.0))
    return held[-1] * 2

try:
    for size in (10, 10, 10, 10, 100_000_000, 100_000_000, 100_000_000, 100_000_000):
        step(size)
except RuntimeError as error:
    print(error)
held.clear()
print(step(3).tolist())
"""


def test_a_failure_that_comes_late_names_the_op():
    done = run_code(LITTLE_MEMORY + LATE, LOCKSTEP_NUMERICS="strict")
    said, result = done.stdout.rsplit("\n", 2)[:2]
    assert "allocate memory" in said
    assert "computed by Lockstep after Python had gone on: aten::" in said
    assert " at <string>:1" in said
    assert result == "[2.0, 2.0, 2.0]"
