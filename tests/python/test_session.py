"""Sessions, knobs, LOCKSTEP_LOG, LOCKSTEP_DISABLE, and scripts under `python -m lockstep`."""

import copy
import io
import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading

import lockstep
import numpy as np
import pytest
import torch
from both_ways import bits

X = torch.arange(6.0).reshape(2, 3)
PACKAGE_ROOT = os.path.dirname(os.path.dirname(lockstep.__file__))


def run_python(*arguments, cwd=None, **environment):
    """Runs Python in a process of its own with one thread; gives the CompletedProcess."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
    path = os.pathsep.join([PACKAGE_ROOT, kept.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    kept |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=kept, cwd=cwd, timeout=120
    )


def run_code(code, *arguments, **environment):
    """The same for code in a string; fails where the process fails."""
    done = run_python("-c", textwrap.dedent(code), *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done


def train(steps, read=True):
    """A loop as in a notebook. Returns losses and parameters."""
    torch.manual_seed(3)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item() if read else loss)
    return losses, list(model.parameters())


# ---- sessions


@pytest.mark.parametrize("read", [True, False])
def test_session_around_a_loop(read):
    with lockstep.session(when="always") as s:
        got = train(6, read)
    assert bits(got) == bits(train(6, read))
    stats = lockstep.stats(s)
    assert stats["calls"] == 1 and stats["graph_ops"] > 0.5 * stats["ops"], stats
    assert lockstep.explain(s).name == "session"


def test_session_used_again():
    s = lockstep.session(when="always")
    with s:
        train(2)
    lockstep.reset_stats(s)
    with s:
        got = train(5)
    assert bits(got) == bits(train(5))
    stats = lockstep.stats(s)
    assert stats["calls"] == 1 and stats["graph_ops"] == stats["ops"] > 0, stats


def test_values_are_there_when_a_session_ends():
    with lockstep.session(when="always"):
        for _ in range(4):
            kept = (X @ X.t()).exp()
    assert kept.numpy().tobytes() == (X @ X.t()).exp().numpy().tobytes()


def test_nested_sessions_are_one():
    with lockstep.session(when="always") as outer:
        for _ in range(3):
            y = X + 1
            with lockstep.session(when="always") as inner:
                y = y * 2
            y = y - 3
    assert torch.equal(y, (X + 1) * 2 - 3)
    assert lockstep.stats(outer)["ops"] == 9 and lockstep.stats(inner)["ops"] == 0


def test_sessions_and_decorated_functions_inside_each_other():
    @lockstep.function(when="always")
    def double(x):
        return x * 2

    @lockstep.function(when="always")
    def with_session(x):
        with lockstep.session(when="always"):
            return double(x) + 1

    for _ in range(3):
        assert torch.equal(with_session(X), X * 2 + 1)
    with lockstep.session(when="always") as s:
        for _ in range(3):
            assert torch.equal(with_session(X), X * 2 + 1)
    assert lockstep.stats(s)["ops"] >= 6
    assert torch.equal(double(X), X * 2)


def test_an_exception_goes_through_a_session():
    def work(steps, log):
        y = X
        for i in range(steps):
            y = y * 2
            log.append(y)
            if i == 3:
                raise KeyError("mine")
            if i == 5:
                y @ torch.ones(7, 7)

    for steps, error in ((9, KeyError), (9, KeyError)):
        log, want = [], []
        with pytest.raises(error) as caught, lockstep.session(when="always"):
            work(steps, log)
        with pytest.raises(error) as expected:
            work(steps, want)
        assert str(caught.value) == str(expected.value) and bits(log) == bits(want)
    with lockstep.session(when="always") as s:  # and the next one is as good as new
        assert bits(train(3)) == bits(train(3))
    assert lockstep.stats(s)["ops"] > 0


def test_an_exception_through_nested_sessions():
    with lockstep.session(when="always") as outer:
        y = X + 1
        with pytest.raises(ZeroDivisionError), lockstep.session():
            y = y * 2
            raise ZeroDivisionError
        y = y * 3
    assert torch.equal(y, (X + 1) * 6) and lockstep.stats(outer)["ops"] == 3


def test_close_without_with():
    s = lockstep.session(when="always")
    s.__enter__()
    y = X * 2
    s.close()
    assert torch.equal(y, X * 2) and lockstep.stats(s)["ops"] == 1


def test_a_session_that_nobody_holds_is_closed():
    weight = torch.ones(64, 8)

    def enter():
        opened = lockstep.session(when="always")
        opened.__enter__()
        for _ in range(5):
            weight.mul_(2).sub_(1)
        return opened

    opened = enter()
    opened = enter()  # a cell of a notebook, run again
    del opened
    weight.mul_(2).sub_(1)
    with lockstep.session(when="always"):
        for _ in range(3):
            weight.mul_(2).sub_(1)
    assert torch.equal(weight, torch.ones(64, 8))


LOOKS = {
    "numpy": lambda p: p.detach().numpy().sum(),
    "asarray": lambda p: np.asarray(p.detach()),
    "view": lambda p: p.detach().numpy()[1:, ::2].T,
    "save": lambda p: torch.save({"p": p}, io.BytesIO()),
    "legacy save": lambda p: torch.save(p, io.BytesIO(), _use_new_zipfile_serialization=False),
    "pickle": pickle.dumps,
    "copy": copy.deepcopy,
    "copy of a state": lambda p: copy.deepcopy({"p": p.detach()}),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("inside", [False, True])
def test_a_look_at_the_memory_makes_nothing_wait_once_it_is_over(look, inside):
    weights = [torch.nn.Parameter(torch.randn(40, 40)) for _ in range(4)]
    optimizer = torch.optim.SGD(weights, 0.01)
    held = []

    @lockstep.function(when="always")
    def step(looks):
        optimizer.zero_grad()
        (weights[0] @ weights[1] @ weights[2] @ weights[3]).mean().backward()
        optimizer.step()
        if looks:
            held.extend(LOOKS[look](w) for w in weights)

    def waits():
        lockstep.reset_stats(step)
        for _ in range(3):
            step(False)
        return lockstep.stats(step)["waits"]

    for looks in (False, False, inside, inside, False):
        step(looks)
    if not inside:
        held.extend(LOOKS[look](w) for w in weights)
    if look == "view" and not inside:
        step(False)
        for number in range(4):  # aliases as long as somebody has them
            assert (held[number] == weights[number].detach().numpy()[1:, ::2].T).all()
    held.clear()
    assert waits() <= 9  # the end of each call, and a read or two that come too early


def test_sessions_in_threads():
    results = {}

    def work(name):
        with lockstep.session(when="always"):
            results[name] = bits(train(4))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {0: bits(train(4))}


# ---- knobs


def calls_by_way(fn):
    """How the last call ran: in lockstep or not."""
    lockstep.reset_stats(fn)
    fn(X)
    return "never" if lockstep.stats(fn)["reasons"].get("switched_off") else "ran"


def test_the_nearest_setting_wins(monkeypatch):
    plain = lockstep.function(lambda x: x + 1)
    own = lockstep.function(lambda x: x + 1, when="always")
    assert calls_by_way(plain) == "ran"
    monkeypatch.setenv("LOCKSTEP_WHEN", "never")
    assert calls_by_way(plain) == "never" and calls_by_way(own) == "ran"
    with lockstep.config(when="always"):
        assert calls_by_way(plain) == "ran"
        with lockstep.config(errors="late"):
            assert calls_by_way(plain) == "ran"
        with lockstep.config(when="never"):
            assert calls_by_way(plain) == "never" and calls_by_way(own) == "ran"
        assert calls_by_way(plain) == "ran"
    assert calls_by_way(plain) == "never"


def test_config_reaches_sessions_and_ends_with_an_exception():
    with pytest.raises(KeyError), lockstep.config(when="never"):
        with lockstep.session() as s:
            X + 1
        assert lockstep.stats(s)["ops"] == 0
        raise KeyError
    with lockstep.session() as s:
        X + 1
    assert lockstep.stats(s)["ops"] == 1


def test_config_belongs_to_its_context():
    seen = []
    fast = lockstep.function(lambda x: x + 1)
    with lockstep.config(when="never"):
        thread = threading.Thread(target=lambda: seen.append(calls_by_way(fast)))
        thread.start()
        thread.join()
    assert seen == ["ran"]


def test_knobs_have_default_and_meaning():
    assert {"numerics", "when", "errors"} <= set(lockstep.KNOBS)
    for knob in lockstep.KNOBS.values():
        assert len(knob.meaning) > 20
        if knob.takes_several:
            assert set(knob.default) <= set(knob.choices)
        else:
            assert knob.default in knob.choices


def test_all_runners_give_the_same():
    def step(x):
        y = (x @ x.t()).tanh()
        return y * y.sum().item()

    for runner in lockstep.KNOBS["runner"].choices:
        fast = lockstep.function(step, when="always", runner=runner)
        for i in range(4):
            assert bits(fast(X + i)) == bits(step(X + i))
        assert lockstep.stats(fast)["graph_ops"] == 18


def test_workers_sleep_where_python_is_what_a_session_waits_for():
    session = lockstep.session()
    x = torch.ones(4)
    with session:
        for _ in range(500):
            y = x
            for _ in range(10000):
                y = y * 1.0
            if lockstep.explain(session).auto["way"] == "yielding":
                break
        else:
            pytest.fail("they stay awake")
        assert bits(y) == bits(x)


# ---- environment

DISABLED = """
import sys, torch, lockstep

def f(x):
    return x + 1

def g(x):
    yield x

assert lockstep.function(f) is f and lockstep.function(when="always")(g) is g
module = torch.nn.Linear(2, 2)
assert lockstep.function(module) is module and module._compiled_call_impl is None
with lockstep.session(when="always") as s:
    f(torch.ones(2))
assert lockstep.stats(s)["ops"] == 0
assert lockstep.stats(f)["ops"] == 0 and "0 ops" in str(lockstep.explain(f))
for thing, name in ((f, "f"), (s, "session")):
    e = lockstep.explain(thing)
    assert e.name == name and str(e).startswith(name + ": 0 ") and e.is_disabled
    assert "eager: switched_off: LOCKSTEP_DISABLE is set" in str(e)
lockstep.reset_stats(f), lockstep.reset(f), lockstep.reset()
print("good")
"""


def test_disable():
    assert run_code(DISABLED, LOCKSTEP_DISABLE="1").stdout == "good\n"


LOGGED = """
import torch, lockstep

@lockstep.function(when="always")
def step(x, way):
    y = x.sin() if way else x.cos()
    y.resize_(1)
    return y.exp().sum().item()

for way in (0, 0, 1):
    step(torch.ones(3), way)
"""


def log_lines(kinds):
    done = run_code(LOGGED, LOCKSTEP_LOG=kinds)
    return done.stderr.splitlines()


def test_log_has_one_line_an_event():
    lines = log_lines("call, trace,diverge,fallback,wait,auto")
    assert all(line.startswith("lockstep ") for line in lines), lines
    by_kind = {}
    for line in lines:
        kind, text = line.removeprefix("lockstep ").split(": ", 1)
        by_kind.setdefault(kind, []).append(text)
    assert by_kind["call"] == [
        "step: call 1 is recorded",
        "step: call 2 runs in lockstep",
        "step: call 3 runs in lockstep",
    ]
    first, second = by_kind["trace"]
    assert first.startswith("step: call 1 was recorded: 5 new nodes, 5 in all")
    assert second.startswith("step: call 3 was recorded: 1 new nodes, 6 in all")
    (divergence,) = by_kind["diverge"]
    assert divergence.startswith(
        "step: call 3 took aten::sin at <string>:6 in step where aten::cos"
    )
    (fallback,) = by_kind["fallback"]  # in the other calls it was recorded
    assert fallback == "step: aten::resize_ at <string>:7 in step ran eagerly: moves_storage"
    assert set(by_kind) <= {"call", "trace", "diverge", "fallback", "wait"}


def test_log_names_only_what_was_asked_for():
    lines = log_lines("diverge")
    assert len(lines) == 1 and lines[0].startswith("lockstep diverge: step: ")


def test_log_of_waits_and_of_auto(tmp_path):
    code = """
    import torch, lockstep
    x = torch.ones(200, 200)

    @lockstep.function
    def step():
        return (x @ x @ x).sum().item()

    while not lockstep.explain(step).auto["is_settled"]:
        step()
    """
    lines = run_code(
        code, LOCKSTEP_LOG="wait,auto", LOCKSTEP_CACHE=str(tmp_path)
    ).stderr.splitlines()
    waits = [line for line in lines if line.startswith("lockstep wait: ")]
    assert waits and all(" ms after aten::" in line for line in waits)
    autos = [line for line in lines if line.startswith("lockstep auto: step: chose ")]
    assert len(autos) == 1 and " eager " in autos[0], lines[-5:]


@pytest.mark.parametrize("has_workers_of", ["the calls", "eager ops"])
def test_fork_while_workers_sleep(has_workers_of):
    code = """
    import os, sys, time, torch, lockstep
    torch.set_num_threads(2)

    @lockstep.function(when="always", runner="yielding" if sys.argv[1] == "the calls" else "behind")
    def step(x):
        return (x * 2).sum()

    x = torch.ones(8)
    if sys.argv[1] == "the calls":
        for _ in range(4):
            step(x)
    else:
        (torch.ones(500, 500) @ torch.ones(500, 500)).sin()
    child = os.fork()
    if child == 0:
        for _ in range(4):
            value = step(x).item()
        os._exit(int(value))
    for _ in range(3000):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        raise SystemExit("the child hangs")
    print(os.waitstatus_to_exitcode(status), step(x).item())
    """
    assert run_code(code, has_workers_of).stdout.split() == ["16", "16.0"]


@pytest.mark.parametrize("options", [{}, {"deterministic": True}])
def test_a_system_that_refuses_threads(options, tmp_path):
    code = """
    import ctypes, json, sys, threading, torch, lockstep
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, x = torch.nn.Linear(64, 64), torch.randn(64, 64)

    @lockstep.function(when="always", runner="behind", **json.loads(sys.argv[1]))
    def step():
        loss = net(x).tanh().mul(2).sin().square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= parameter.grad
        return loss.item()

    losses = [step()]
    libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_attr_init(attributes)
    libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(1 << 46))
    assert libc.pthread_setattr_default_np(attributes) == 0
    try:
        threading.Thread(target=print).start()
    except RuntimeError:
        pass  # so it is
    else:
        raise SystemExit("the system refuses no threads")
    losses += [step() for _ in range(4)]
    print(losses == sorted(losses, reverse=True), len(set(losses)), lockstep.stats(step)["calls"])
    if json.loads(sys.argv[1]):
        print(lockstep._C.fusion_statistics()["compiled"] > 0)
    """
    wanted = ["True", "5", "5", *(["True"] if options else [])]
    answer = run_code(code, json.dumps(options), LOCKSTEP_CACHE=str(tmp_path))
    assert answer.stdout.split() == wanted


# ---- python -m lockstep

SCRIPT = """
import os, pickle, sys
import beside
import lockstep
import torch

class Mine:
    pass

if __name__ == "__main__":
    assert sys.modules["__main__"].Mine is Mine
    assert type(pickle.loads(pickle.dumps(Mine()))) is Mine
    assert __file__ == sys.argv[0] and os.path.isabs(sys.path[0]), (sys.argv, sys.path[0])
    assert lockstep._C.is_active()
    x = torch.ones(3)
    for _ in range(4):
        x = x * beside.factor
    print(sys.argv[1:], x.tolist())
    if "exit" in sys.argv:
        sys.exit(int(sys.argv[-1]))
    if "words" in sys.argv:
        sys.exit("some words")
    if "fail" in sys.argv:
        x @ torch.ones(7)
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "beside.py").write_text("factor = 2\n")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def test_arguments_and_exit_status_of_a_script(script):
    done = run_python("-m", "lockstep", script, "a", "--b=1", "exit", "3")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout == "['a', '--b=1', 'exit', '3'] [16.0, 16.0, 16.0]\n"


def test_explain_of_a_script(script):
    done = run_python("-m", "lockstep", "--explain", script, "--explain", "-h")
    assert (done.returncode, done.stdout) == (0, "['--explain', '-h'] [16.0, 16.0, 16.0]\n")
    assert done.stderr.startswith("session: 5 ops: ") and "script.py:17 in <module>" in done.stderr
    assert "session" not in run_python("-m", "lockstep", script, "--explain").stderr


def test_explain_of_a_script_that_fails(script):
    done = run_python("-m", "lockstep", "--explain", script, "fail")
    assert done.returncode == 1 and done.stderr.startswith("session: ")
    assert done.stderr.splitlines()[-1].startswith("RuntimeError: ")
    done = run_python("-m", "lockstep", "--explain", script, "exit", "3")
    assert done.returncode == 3 and done.stderr.startswith("session: ")


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help(option):
    done = run_python("-m", "lockstep", option, "nothing.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: python -m lockstep [--explain] script.py [arguments")
    assert "--help" in done.stdout and "--explain " in done.stdout


def test_exit_with_words(script):
    done = run_python("-m", "lockstep", script, "words")
    assert (done.returncode, done.stderr) == (1, "some words\n")


def test_error_of_a_script_shows_its_own_frames_only(script):
    done = run_python("-m", "lockstep", script, "fail")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "Traceback (most recent call last):\n  File " + repr(script).replace("'", '"')
    )
    assert done.stderr.count("  File ") == 1 and "RuntimeError: " in done.stderr


@pytest.mark.parametrize("error", ["GeneratorExit()", "type('Own', (BaseException,), {})()"])
def test_what_is_no_exception_ends_a_script_as_ever(tmp_path, error):
    (tmp_path / "script.py").write_text(f"raise {error}\n")
    here, plain = (run_python(*how, "script.py", cwd=tmp_path) for how in (["-m", "lockstep"], []))
    assert here.returncode == plain.returncode == 1
    assert here.stderr == plain.stderr.replace(
        '"script.py"', repr(str(tmp_path / "script.py")).replace("'", '"')
    )


SCRIPT_WITH_PROCESSES = """
import dataclasses, multiprocessing, torch

@dataclasses.dataclass
class Part:
    weight: torch.Tensor

def doubled(part):
    return Part(part.weight * 2)

if __name__ == "__main__":
    print(__annotations__, __loader__.path == __file__, __cached__, __spec__)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (part,) = pool.map_async(doubled, [Part(torch.ones(2))]).get(timeout=60)
    print(type(part) is Part, part.weight.tolist())
"""


def test_processes_of_a_script_know_its_classes(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT_WITH_PROCESSES)
    done = run_python("-m", "lockstep", "script.py", cwd=tmp_path)
    assert done.stdout == "{} True None None\nTrue [2.0, 2.0]\n", done.stderr


def test_a_script_is_found_again_from_another_folder(script, tmp_path):
    code = """
import inspect, os, signal, sys
def f():
    return 7
os.chdir(os.sep)
print(__file__ == f.__code__.co_filename, inspect.getsource(f).split()[-1])
if sys.argv[1:]:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where it is ignored
    signal.raise_signal(signal.SIGINT)
"""
    (tmp_path / "found.py").write_text(code)
    done = run_python("-m", "lockstep", "found.py", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True 7\n", "")
    here, plain = (
        run_python(*how, "found.py", "stop", cwd=tmp_path) for how in (["-m", "lockstep"], [])
    )
    assert (here.returncode, here.stderr) == (plain.returncode, plain.stderr)
    assert here.returncode == -2 and here.stderr.endswith("KeyboardInterrupt\n")
