"""Recorded calls run again without an interpreter, bit for bit; laws of real graphs."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import lockstep
import pytest
import torch
from lockstep import _C

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from samples.common.driver import Copy, lockstep_decorator  # noqa: E402

BUILD = Path(os.environ.get("LOCKSTEP_BUILD", ROOT / "build"))
REPLAY = BUILD / "lockstep_replay"
NAMES = sorted(
    p.parent.name for p in ROOT.glob("samples/*/program.py") if p.parent.name != "common"
)
RECORDED_STEP = 3  # the fourth


def run_replay(folder):
    return subprocess.run([REPLAY, folder], capture_output=True, text=True, timeout=300)


def check_graph(core):
    """The graph keeps all laws, and its text comes out of the parser as it went in."""
    assert _C.verify_graph(core) == []
    text = _C.graph_text(core)
    assert _C.check_text(text) == text


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_step_of_a_sample_replays_bit_for_bit(name, tmp_path):
    make = importlib.import_module(f"samples.{name}.program").make
    copy = Copy(make, "small", 0, lockstep_decorator("always"))
    for index in range(RECORDED_STEP):
        copy.advance(index)
    lockstep.reset_stats(copy.step)
    with lockstep.record_call(copy.step, tmp_path) as recorder:
        copy.advance(RECORDED_STEP)
    assert recorder.event_count == lockstep.stats(copy.step)["ops"]
    assert recorder.opaque_count == 0
    check_graph(copy.step.core)
    outcome = run_replay(tmp_path)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.startswith(f"equal: {recorder.event_count} events, 0 opaque")


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.RMSprop])
def test_other_numerics_are_recorded_with_pytorchs_kernels(optimizer, tmp_path):
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.GELU(), torch.nn.Linear(16, 3)
    )
    parameters = optimizer(net.parameters())

    @lockstep.function(when="always", numerics="default")
    def step(x, y):
        parameters.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        parameters.step()
        return loss.item()

    batch = torch.randn(32, 8), torch.randint(0, 3, (32,))
    for _ in range(3):
        step(*batch)
        _C.wait_for_kernels()
    with lockstep.record_call(step, tmp_path) as recorder:
        step(*batch)
    assert recorder.opaque_count == 0
    outcome = run_replay(tmp_path)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    step(*batch)  # goes on as before
    assert "_fused_" in lockstep.graph_text(step)


def test_the_replay_links_no_interpreter():
    lines = subprocess.run(["ldd", REPLAY], capture_output=True, text=True, check=True).stdout
    names = [line.split()[0] for line in lines.splitlines()]
    assert "libtorch_cpu.so" in names
    assert not any("python" in name for name in names)


def record(fn, folder, *args, calls=3):
    for _ in range(calls):
        fn(*args)
    with lockstep.record_call(fn, folder) as recorder:
        fn(*args)
    check_graph(fn.core)
    outcome = run_replay(folder)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return recorder, outcome.stdout


def test_views_metadata_and_in_place_ops(tmp_path):
    @lockstep.function(when="always")
    def step(x):
        y = x.clone()
        y[1:].mul_(2).add_(x[:2].t().t())
        z = y.squeeze_(0).t().contiguous()
        z.unsqueeze_(0)
        a, b = z.split(2, dim=1)
        torch.add(a, 1, out=b)
        c = torch.view_as_complex(torch.randn(3, 2)).conj()
        return z.resize_(2), (c * 2).sum(), y[x[:, 0] > 0]

    recorder, _ = record(step, tmp_path, torch.randn(3, 4))
    assert recorder.opaque_count == 0


def test_the_same_tensor_as_several_arguments(tmp_path):
    encoder = torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).eval()

    @lockstep.function(when="always")
    def step(x):
        with torch.no_grad():
            return encoder(x) * 2

    recorder, _ = record(step, tmp_path, torch.randn(2, 3, 8))
    assert recorder.opaque_count == 0

    @lockstep.function(when="always")
    def square(x):
        return x * x

    (tmp_path / "square").mkdir()
    record(square, tmp_path / "square", torch.randn(3))
    assert " same 0\n" in (tmp_path / "square" / "way.txt").read_text()


def test_generators(tmp_path):
    private = torch.Generator().manual_seed(7)

    @lockstep.function(when="always")
    def step():
        a = torch.rand(3)
        torch.manual_seed(3)
        return a + torch.randn(3, generator=private) + torch.rand(3)

    record(step, tmp_path)
    assert (tmp_path / "way.txt").read_text().count("\nstate ") == 3


def test_numbers_that_change_are_written_into_the_way(tmp_path):
    factor = [0.0]

    @lockstep.function(when="always")
    def step(x):
        factor[0] += 0.5
        return x * factor[0]

    record(step, tmp_path, torch.ones(3))
    assert "  arg 1 0x1p+1" not in (tmp_path / "graph.txt").read_text()
    assert (
        "0x1p+1" in (tmp_path / "way.txt").read_text()
        or "~wrapped" in (tmp_path / "way.txt").read_text()
    )


def test_what_python_changes_in_the_middle_is_fed_again(tmp_path):
    buffer = torch.zeros(4).numpy()
    shared = torch.from_numpy(buffer)

    @lockstep.function(when="always")
    def step():
        first = shared + 1
        buffer[:] += 3
        return first, shared + 1

    recorder, _ = record(step, tmp_path)
    assert recorder.refeed_count == 1


def test_an_op_that_raises(tmp_path):
    @lockstep.function(when="always")
    def step(x):
        try:
            x.view(5)
        except RuntimeError:
            x = x + 1
        return x * 2

    record(step, tmp_path, torch.ones(4))
    assert " throws\n" in (tmp_path / "way.txt").read_text()


def test_what_only_the_program_can_run_is_opaque(tmp_path):
    @lockstep.function(when="always")
    def step(x):
        sparse = x.to_sparse()
        return (sparse * 2).to_dense() + 1

    recorder, _ = record(step, tmp_path, torch.eye(3))
    assert recorder.opaque_count > 0


def test_the_first_call_can_be_recorded_too(tmp_path):
    @lockstep.function(when="always")
    def step(x):
        return (x @ x).relu().sum().item()

    _, printed = record(step, tmp_path, torch.randn(4, 4), calls=0)
    assert "1 fetches" in printed


def test_a_session_is_recorded_from_open_to_close(tmp_path):
    session = lockstep.session(when="always")
    with lockstep.record_call(session, tmp_path), session:
        torch.randn(3).exp_()
    outcome = run_replay(tmp_path)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.parametrize(
    ("file", "old", "new", "status", "words"),
    [
        (
            "graph.txt",
            "const 1 0x1p+1",
            "const 1 0x1p+2",
            1,
            "left other bytes: event 1, aten::pow",
        ),
        ("way.txt", "value 0x1", "value 0x2", 1, "fetched"),
        ("way.txt", "lockstep-way 2", "lockstep-way 9", 2, "format version 9"),
        ("way.txt", "complete\n", "", 2, "cut off"),
        ("graph.txt", "aten::sum", "aten::no_such_op", 2, "no_such_op"),
    ],
)
def test_a_recording_that_was_changed_is_found_out(tmp_path, file, old, new, status, words):
    @lockstep.function(when="always")
    def step(x):
        y = torch.pow(x, 2.0)
        return y, torch.nn.functional.leaky_relu(y, 2.0).mul_(y).sum().item()

    record(step, tmp_path, torch.randn(4))
    text = (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new, 1))
    outcome = run_replay(tmp_path)
    assert outcome.returncode == status
    assert words in outcome.stdout + outcome.stderr


def test_bad_use_is_one_clear_sentence(tmp_path):
    @lockstep.function(when="always")
    def step():
        return torch.ones(1)

    with pytest.raises(lockstep.Error, match="not called"), lockstep.record_call(step, tmp_path):
        pass
    with pytest.raises(lockstep.Error, match="not decorated"):
        lockstep.graph_text(len)
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(lockstep.Error, match="written"),
        lockstep.record_call(step, tmp_path / "file" / "x"),
    ):
        pass
    outcome = run_replay(tmp_path / "none")
    assert outcome.returncode == 2
    assert "cannot be read" in outcome.stderr


def test_a_call_has_its_result_where_it_cannot_be_written(tmp_path):
    @lockstep.function(when="always")
    def step(x):
        return x + 1

    found = None
    with (
        pytest.raises(lockstep.Error, match="written: give a folder"),
        lockstep.record_call(step, tmp_path / "gone"),
    ):
        shutil.rmtree(tmp_path / "gone")
        found = step(torch.ones(3))
    assert found.tolist() == [2, 2, 2]
    assert step(torch.ones(3)).tolist() == [2, 2, 2]


def test_one_call_has_one_recorder(tmp_path):
    @lockstep.function(when="always")
    def step(x):
        return x + 1

    with lockstep.record_call(step, tmp_path / "outer") as outer:
        with (
            pytest.raises(lockstep.Error, match="waits for the next call"),
            lockstep.record_call(step, tmp_path / "inner"),
        ):
            pass
        step(torch.ones(3))
        with lockstep.record_call(step, tmp_path / "later") as later:  # the outer one has its call
            step(torch.ones(3))
    assert outer.is_done and later.is_done
    for name in ("outer", "later"):
        assert run_replay(tmp_path / name).returncode == 0


def test_a_block_without_a_call_leaves_what_was_recorded(tmp_path):
    @lockstep.function(when="always")
    def step(x):
        return x * torch.rand(3)

    record(step, tmp_path, torch.ones(3))
    with pytest.raises(lockstep.Error, match="not called"), lockstep.record_call(step, tmp_path):
        pass
    assert run_replay(tmp_path).returncode == 0
