"""`lockstep.explain`: what ran where, line by line, with reasons, divergences and shares."""

import inspect
import json
import os
import subprocess
import sys

import lockstep
import pytest
import torch
from lockstep import _C

HERE = os.path.basename(__file__)
X = torch.linspace(-1, 1, 6).reshape(2, 3)


def line_of(fn, text):
    """The number of the line of `fn` that holds the text."""
    lines, first = inspect.getsourcelines(fn)
    (found,) = [first + i for i, line in enumerate(lines) if text in line]
    return found


def rows(explanation, fn, text):
    """The line of the explanation that stands for the line of `fn` with the text."""
    number = line_of(fn, text)
    (row,) = [line for line in explanation.lines if line["line"] == number]
    return row


@pytest.fixture
def step():
    """A step with a graph part, a read, an eager op, a view and a branch."""

    @lockstep.function(when="always")
    def step(x, way):
        h = x * 2  # scaled
        h = h.sin() if way else h.cos()  # branch
        flat = h.view(-1)  # a view
        total = flat.sum().item()  # the read
        h.resize_(1)  # eager
        return h + total  # the end

    return step


def test_lines_say_what_ran_where(step):
    for _ in range(5):
        step(X, True)
    e = lockstep.explain(step)
    scaled = rows(e, step, "# scaled")
    assert (scaled["asked"], scaled["in_graph"], scaled["eager"]) == (5, 4, 1)
    assert scaled["ops"] == {"aten::mul.Tensor": 5} and scaled["reasons"] == {"tracing": 1}
    assert scaled["function"].endswith("step") and scaled["file"] == __file__
    assert scaled["source"] == "h = x * 2  # scaled"
    read = rows(e, step, "# the read")
    assert read["fetched"] == 5 and read["asked"] == 10 and read["in_graph"] == 8
    eager = rows(e, step, "# eager")
    assert (eager["in_graph"], eager["eager"]) == (0, 5)
    assert eager["reasons"] == {"tracing": 1, "moves_storage": 4}
    resized = "aten::resize_"
    assert eager["eager_ops"] == {"tracing": {resized: 1}, "moves_storage": {resized: 4}}
    assert rows(e, step, "# a view")["in_graph"] == 4
    assert [line["line"] for line in e.lines] == sorted(line["line"] for line in e.lines)
    assert (
        sum(line["asked"] for line in e.lines) == e.counters["ops"] == lockstep.stats(step)["ops"]
    )
    assert sum(line["in_graph"] for line in e.lines) == e.counters["graph_ops"]
    assert sum(line["eager"] for line in e.lines) == e.counters["eager_ops"]


def test_shares_by_count_and_by_kernel_time(step):
    step(X, True)
    e = lockstep.explain(step)
    assert e.shares == {"ops": 0.0, "kernel_time": 0.0}
    assert sum(line["eager_seconds"] for line in e.lines) > 0
    lockstep.reset_stats(step)
    for _ in range(4):
        step(X, True)
    e = lockstep.explain(step)
    assert e.shares["ops"] == pytest.approx(6 / 7)
    assert 0 < e.shares["kernel_time"] < 1
    for line in e.lines:
        ran = line["graph_seconds"] if line["in_graph"] else line["eager_seconds"]
        idle = line["eager_seconds"] if line["in_graph"] else line["graph_seconds"]
        assert 0 < ran < 60 and idle == 0, line


def test_a_heavy_kernel_has_the_time():
    @lockstep.function(when="always")
    def heavy(x):
        y = x @ x @ x  # heavy
        return y[0, 0] + 1  # light

    for _ in range(4):
        heavy(torch.ones(300, 300))
    e = lockstep.explain(heavy)
    light = rows(e, heavy, "# light")
    assert rows(e, heavy, "# heavy")["graph_seconds"] > light["graph_seconds"]


def test_divergences_name_both_ways(step):
    step(X, True)
    step(X, True)
    step(X, False)
    e = lockstep.explain(step)
    (parted,) = e.divergences
    assert parted["call"] == 3
    assert parted["where"].endswith(f"{HERE}:{line_of(step, '# scaled')} in {step.__qualname__}")
    branch = line_of(step, "# branch")
    assert parted["expected"].startswith("aten::sin at ") and f":{branch} in" in parted["expected"]
    assert parted["found"].startswith("aten::cos at ") and f":{branch} in" in parted["found"]
    text = str(e)
    assert "call 3 parted after" in text
    assert "known way: aten::sin at" in text and "taken way: aten::cos at" in text


def test_calls_blocks_and_nodes(step):
    for way in (True, True, False, True, False):
        step(X, way)
    e = lockstep.explain(step)
    assert e.calls == {"traced": 2, "coexecuted": 3, "eager": 0}
    assert e.counters["nodes"] == 8
    assert e.counters["blocks"] == 4  # before the branch, its two ways, after it
    assert f"{step.core.name}: 5 calls: 2 traced, 3 co-executed, 0 eager" in str(e)
    assert "8 nodes in 4 blocks, 1 divergences" in str(e)


def test_backward_and_optimizer_stand_at_the_lines_that_called_them():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @lockstep.function(when="always")
    def train():
        optimizer.zero_grad()
        loss = model(X).square().mean()  # forward
        loss.backward()  # backward
        optimizer.step()  # update
        return loss

    for _ in range(3):
        train()
    e = lockstep.explain(train)
    assert "aten::addmm" in rows(e, train, "# forward")["ops"]
    assert rows(e, train, "# backward")["asked"] >= 6
    assert any("add" in name for name in rows(e, train, "# update")["ops"])
    assert {line["file"] for line in e.lines} == {__file__}


def test_text_is_for_people(step, monkeypatch):
    for _ in range(3):
        step(X, True)
    monkeypatch.chdir(os.path.dirname(__file__))
    text = str(lockstep.explain(step))
    assert f"  {HERE}:{line_of(step, '# eager')} in " in text
    assert os.path.dirname(__file__) not in text and "\t" not in text
    row = next(line for line in text.splitlines() if "# eager" in line)
    assert row.split()[:4] == ["3", "0", "3", "0"]
    assert row.endswith("h.resize_(1)  # eager  [tracing x 1, moves_storage x 2 (aten::resize_)]")
    assert f"eager: moves_storage x 2: {lockstep.REASONS['moves_storage']}" in text
    assert "the graph ran 57.1 % of 21 ops" in text
    assert str(lockstep.explain(step)) == repr(lockstep.explain(step))


def test_dict_and_json_hold_the_same(step):
    for way in (True, True, False):
        step(X, way)
    e = lockstep.explain(step)
    assert json.loads(e.to_json()) == e.to_dict()
    assert set(e.to_dict()) == {
        "name", "is_session", "is_disabled", "calls", "shares", "counters", "lines", "divergences",
        "auto",
    }  # fmt: skip
    assert e.to_dict()["counters"] == lockstep.stats(step)


def test_an_explanation_is_a_snapshot(step):
    step(X, True)
    e = lockstep.explain(step)
    before = e.to_json()
    step(X, False)
    assert e.to_json() == before != lockstep.explain(step).to_json()


def test_reset_stats_begins_anew(step):
    for _ in range(3):
        step(X, False)
    lockstep.reset_stats(step)
    e = lockstep.explain(step)
    assert e.lines == [] and e.divergences == [] and e.counters["nodes"] == 7
    assert "0 calls" in str(e)
    step(X, False)
    assert rows(lockstep.explain(step), step, "# scaled")["asked"] == 1


def test_reset_of_all_gives_back_what_is_known_of_shapes(step):
    step(X, True)
    assert _C.signature_count() > 0
    lockstep.reset(step)  # others may need it
    assert _C.signature_count() > 0
    with lockstep.session(when="always"):
        X + 1
        lockstep.reset()  # so does what runs
        assert _C.signature_count() > 0
    lockstep.reset()
    assert _C.signature_count() == 0
    assert step(X, True) is not None and _C.signature_count() > 0


def test_before_the_first_call(step):
    assert "0 calls: 0 traced, 0 co-executed, 0 eager" in str(lockstep.explain(step))


def test_what_auto_chose():
    @lockstep.function
    def tiny(x):
        return x + 1

    tiny(X)
    e = lockstep.explain(tiny)
    assert e.auto["is_auto"] and not e.auto["is_settled"]
    assert "auto has not measured enough calls yet" in str(e)
    while "slower" not in e.counters["reasons"]:
        tiny(X)
        e = lockstep.explain(tiny)
    assert not e.auto["is_settled"]  # run eagerly to measure: nothing measured slower yet
    assert "eager: slower x 1: run eagerly to measure, auto has not chosen yet" in str(e)
    for _ in range(20000):
        tiny(X)
        if lockstep.explain(tiny).auto["is_settled"]:
            break
    e = lockstep.explain(tiny)
    assert e.auto["is_settled"] and e.auto["measurements"] == 1
    assert e.auto["way"] in ("behind", "yielding", "inplace", "eager")
    figures = {name: value for name, value in e.auto.items() if name.endswith("_seconds")}
    assert "eager_seconds" in figures and all(value > 0 for value in figures.values()), figures
    assert f"auto chose {e.auto['way']}: " in str(e)
    says_slower = lockstep.REASONS["slower"] in str(e)
    assert "run eagerly to measure" in str(e) and says_slower == (e.auto["way"] == "eager")
    assert e.calls["eager"] > 0 and e.counters["reasons"]["slower"] == e.calls["eager"]
    assert sum(e.calls.values()) == e.counters["calls"]


def test_a_function_like_another_begins_with_its_choice():
    def decorated(numerics="strict"):
        @lockstep.function(numerics=numerics)
        def tiny(x):
            return (x + 1).cos()

        return tiny

    rests_on_gaps = True  # by chance: such a choice is not for others
    while rests_on_gaps:
        first = decorated()
        while not lockstep.explain(first).auto["is_settled"]:
            for _ in range(100):  # or else what lies between calls is most of the time
                first(X)
        rests_on_gaps = lockstep.explain(first).auto["rests_on_gaps"]
        assert rests_on_gaps == ("the time between calls decided" in str(lockstep.explain(first)))
    way = lockstep.explain(first).auto["way"]
    other = decorated()
    for _ in range(10):
        other(X)
    e = lockstep.explain(other)
    assert e.auto["is_settled"] and e.auto["measurements"] == 0 and e.auto["way"] == way
    assert f"auto began with {way}, which a function like this one chose before" in str(e)
    lockstep.reset(other)
    assert not lockstep.explain(other).auto["is_settled"]
    different = decorated(numerics="default")
    for _ in range(10):
        different(X)
    assert not lockstep.explain(different).auto["is_settled"]


def test_forced_functions_say_nothing_of_auto(step):
    step(X, True)
    assert "auto" not in str(lockstep.explain(step))


def test_explain_of_modules_and_sessions():
    module = lockstep.function(torch.nn.Linear(3, 2), when="always")
    module(X)
    assert lockstep.explain(module).name == "Linear"
    with lockstep.session(when="always") as s:
        X + 1
    e = lockstep.explain(s)
    assert e.name == "session" and [line["asked"] for line in e.lines] == [1]


def test_ops_of_inner_functions_count_for_the_outer_one():
    inner = lockstep.function(lambda x: x.sin(), when="always")
    outer = lockstep.function(lambda x: inner(x) * 2, when="always")
    outer(X)
    assert "no ops of its own: within a call of another" in str(lockstep.explain(inner))
    assert "no ops of its own: within" not in str(lockstep.explain(outer))
    inner(X)
    assert "no ops of its own: within" not in str(lockstep.explain(inner))
    switched_off = lockstep.function(lambda x: x.sin(), when="never")
    switched_off(X)
    with lockstep.session(when="always") as empty:
        pass
    assert "no ops" not in str(lockstep.explain(switched_off)) + str(lockstep.explain(empty))


def test_names_are_looked_for_in_ever_fewer_calls_without_ops(monkeypatch):
    looked = []
    module = sys.modules["lockstep.function"]
    monkeypatch.setattr(module, "name_origins", lambda *given: looked.append(given))
    call = lockstep.function(lambda x: x, when="always")
    for _ in range(1000):
        call(X)
    assert 1 <= len(looked) <= 30


def test_tensors_have_names_where_the_first_ops_come_later():
    w = torch.ones(3)
    step = lockstep.function(lambda way: w.sin() if way else None, when="always")
    for way in (False, False, True, True):
        step(way)
    assert 'feed "w"' in lockstep.graph_text(step)


def test_sessions_are_told_by_ops():
    s = lockstep.session(when="always")
    with s:
        for _ in range(50):
            y = X + 1  # again
    assert y is not X
    e = lockstep.explain(s)
    ops, traced = e.counters["ops"], e.counters["reasons"]["tracing"]
    ran = e.counters["graph_ops"]
    assert (ops, traced + ran) == (50, 50) and ran > 0
    assert str(e).startswith(f"session: 50 ops: {traced} traced, {ran} co-executed, 0 eager\n")
    assert e.is_session and "calls" not in str(e)
    with s:
        lockstep.reset_stats(s)
        y = X + 1
        text = str(lockstep.explain(s))
    assert text.startswith("session: 1 ops: ")
    assert not lockstep.explain(lockstep.function(lambda x: x)).is_session


def test_many_sizes_that_nobody_could_infer_are_named():
    @lockstep.function(when="always")
    def windows(x):
        return [torch.nn.functional.unfold(x[:, :, top:], 2) for top in range(12)]  # sizes

    for width in range(5, 9):
        windows(torch.rand(1, 1, 20, width))
    e = lockstep.explain(windows)
    row = rows(e, windows, "# sizes")
    assert row["reasons"]["new_sizes"] > 0 and "aten::im2col" in row["eager_ops"]["new_sizes"]
    assert f"new_sizes x {row['reasons']['new_sizes']} (aten::im2col)" in str(e)
    counted = e.counters["reasons"]
    assert counted["new_sizes"] == row["reasons"]["new_sizes"]
    assert e.counters["eager_ops"] == counted["new_sizes"] + counted["tracing"]


def test_long_lists_of_ops_are_cut():
    @lockstep.function(when="always")
    def parts(x):
        m = x.to("meta")
        return m.sin() + m.cos() * m.exp() - m.tan()  # on meta

    for _ in range(2):
        parts(X)
    e = lockstep.explain(parts)
    row = rows(e, parts, "# on meta")
    assert set(row["eager_ops"]["meta_tensor"]) == set(row["ops"]) and len(row["ops"]) == 7
    assert "meta_tensor x 14 (aten::add.Tensor, aten::cos, aten::exp, 4 more)" in str(e)


def test_the_readme_of_explain_shows_what_there_is(tmp_path):
    """A script in the working directory: places are relative to it."""
    (tmp_path / "train.py").write_text(
        "import lockstep, torch\n"
        "@lockstep.function(when='always')\n"
        "def step(x):\n"
        "    return x.exp()\n"
        "for _ in range(2): step(torch.ones(2))\n"
        "print(lockstep.explain(step))\n"
    )
    path = os.path.dirname(os.path.dirname(lockstep.__file__))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "train.py"],
        capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120, check=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[0] == "step: 2 calls: 1 traced, 1 co-executed, 0 eager"
    assert lines[-1].endswith("train.py:4 in step: return x.exp()  [tracing x 1]")
    assert str(tmp_path) not in done.stdout


def test_a_transform_of_somebody_else_moves_nothing_out_of_the_graph():
    """torch.func registers kernels in Python for vmap; other ops never meet them."""
    torch.func.vmap(torch.func.grad(lambda w, x: torch.nn.functional.huber_loss(w * x, x)))(
        torch.ones(3, 2), torch.ones(3, 2)
    )
    scores = torch.randn(6, 4, requires_grad=True)

    @lockstep.function(when="always")
    def step():
        loss = torch.nn.functional.cross_entropy(scores, torch.arange(6) % 4)
        loss = loss + torch.nn.functional.huber_loss(scores, torch.zeros(6, 4))
        loss.backward()
        return loss

    for _ in range(3):
        step()
    lockstep.reset_stats(step)
    step()
    assert lockstep.stats(step)["reasons"] == {}


_ONE_CORE = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import lockstep, torch

@lockstep.function(when=sys.argv[1])
def step(x):
    return (x * 2).exp().sum()

ways = set()
while len(ways) < int(sys.argv[2]) or lockstep.stats(step)["calls"] < 40:
    step(torch.ones(64))
    ways.add(lockstep.explain(step).to_dict()["auto"]["next_way"])
print(*sorted(ways))
print(lockstep.explain(step))
"""


@pytest.mark.parametrize(("when", "ways"), [("always", "inplace"), ("auto", "eager inplace")])
def test_nothing_runs_behind_on_one_core(when, ways, tmp_path):
    command = [sys.executable, "-c", _ONE_CORE, when, str(len(ways.split()))]
    environment = {**os.environ, "LOCKSTEP_CACHE": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.stdout.split("\n")[0] == ways, done.stderr
    assert "behind" not in done.stdout
