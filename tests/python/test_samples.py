"""Every sample trains bit for bit as in eager, and in its steady state the graph runs its ops."""

import importlib
import subprocess
import sys
from pathlib import Path

import lockstep
import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from samples.common.compare import differences, largest_distance  # noqa: E402
from samples.common.driver import Copy, lockstep_decorator, main, run_compare  # noqa: E402
from samples.common.program import Program  # noqa: E402
from samples.common.streams import RandomStreams, seed_all  # noqa: E402

PROGRAMS = [path.parent.name for path in ROOT.glob("samples/*/program.py")]
NAMES = sorted(name for name in PROGRAMS if name != "common")
FIXED_STEPS, DYNAMIC_STEPS = 25, 60


@pytest.mark.parametrize("name", NAMES)
def test_sample_equals_eager_and_runs_in_the_graph(name):
    make = importlib.import_module(f"samples.{name}.program").make
    program = make("small", 0)
    assert program.name == name
    steps = FIXED_STEPS if program.fixed_flow else DYNAMIC_STEPS
    outcome = run_compare(make, "small", steps, when="always", show=False)
    assert outcome.differences == []
    assert outcome.steps == steps
    strict = outcome.columns["strict"]
    assert strict.graph_share() >= 0.99, strict.stats
    if program.fixed_flow:
        assert strict.stats["divergences"] == 0, strict.stats


@pytest.mark.parametrize("name", ["lstm_ragged", "music_transformer", "sdpoint", "tree_lstm"])
def test_a_way_that_was_taken_does_not_diverge_again(name):
    """The random streams alone choose the ways of these: rewound, they choose the same again."""
    make = importlib.import_module(f"samples.{name}.program").make
    copy = Copy(make, "small", 1, lockstep_decorator("always"))
    start = copy.streams.duplicate()
    for index in range(30):
        copy.advance(index)
    lockstep.reset_stats(copy.step)
    copy.streams = start
    for index in range(30):
        copy.advance(index)
    assert lockstep.stats(copy.step)["divergences"] == 0


def test_reading_data_leaves_no_files_that_another_process_could_meet(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    modules = ", ".join(f"samples.{name}.program" for name in NAMES)
    code = f"import {modules}\nfor name in {NAMES}: getattr(samples, name).program.make('small', 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("name", NAMES)
def test_sample_folder_is_complete(name):
    folder = ROOT / "samples" / name
    assert (folder / "main.py").is_file()
    assert f"samples/{name}/main.py" in (folder / "README.md").read_text()


def test_command_line_trains_eagerly_without_options_of_lockstep():
    command = [sys.executable, "samples/bert_cls/main.py", "--mode", "eager", "--size", "small"]
    result = subprocess.run([*command, "--steps", "4"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "step 1 to 4" in result.stdout


def test_command_line_refuses_a_step_count_below_one():
    command = [sys.executable, "samples/bert_cls/main.py", "--steps", "0"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2
    assert "--steps is 0" in result.stderr


def shown_by(capsys, make, *arguments, status=0):
    """What the command line of a sample prints at its small size."""
    assert main(make, ["--size", "small", *arguments]) == status
    return capsys.readouterr().out


def test_a_difference_ends_the_run_with_status_one(capsys):
    numbers = iter(range(100))

    def make(size, seed):
        weight = torch.nn.Parameter(torch.ones(2))
        module = torch.nn.ParameterDict({"weight": weight})
        return Program("different", lambda index: next(numbers), {"module": module}, {})

    shown = shown_by(capsys, make, "--steps", "3", "--when", "always", status=1)
    assert "after step 0: returned: 0 and 1" in shown
    assert "step 1 to 1" in shown


def test_compare_shows_strict_and_default_beside_eager(capsys):
    make = importlib.import_module("samples.gpt2.program").make
    shown = shown_by(capsys, make, "--steps", "6", "--when", "always")
    header = next(line for line in shown.splitlines() if "eager" in line)
    assert header.index("eager") < header.index("strict") < header.index("default")
    assert "all bits equal" in shown
    assert "losses within" in shown


def test_default_alone_trains(capsys):
    make = importlib.import_module("samples.gpt2.program").make
    shown = shown_by(capsys, make, "--steps", "4", "--mode", "default")
    assert "default" in shown and "strict" not in shown


def test_largest_distance_is_over_the_magnitude_where_that_is_large():
    eager = {"a": torch.tensor([1.0, 200.0]), "b": 1.0, "c": torch.tensor(3), "d": None}
    other = {"a": torch.tensor([1.0, 202.0]), "b": 1.005, "c": torch.tensor(9), "d": None}
    assert largest_distance(eager, eager) == 0.0
    assert largest_distance(eager, other) == pytest.approx(0.01)
    assert largest_distance({"b": 0.001}, {"b": 0.0}) == pytest.approx(0.001)
    assert largest_distance({"b": 1.0}, {"b": float("nan")}) == float("inf")


def test_differences_compares_bits():
    nan = torch.tensor([float("nan"), 1.0])
    assert differences({"a": nan}, {"a": nan.clone()}) == []
    assert differences({"a": torch.tensor(0.0)}, {"a": torch.tensor(-0.0)}) != []
    assert differences({"a": 0.0}, {"a": -0.0}) != []
    assert differences({"a": torch.zeros(2)}, {"a": torch.zeros(2).double()}) != []
    assert differences({"a": torch.zeros(2, 3).t()}, {"a": torch.zeros(3, 2)}) != []
    assert differences({"a": np.arange(3)}, {"a": np.arange(3)}) == []
    assert differences({"a": 1}, {}) == ["a exists in one copy only"]


def test_random_streams_of_two_copies_do_not_touch_each_other():
    seed_all(7)
    first, second = RandomStreams(1), RandomStreams(1)
    with first:
        drawn = torch.rand(3), np.random.rand(), torch.rand(1)
    outside = torch.rand(1)
    with second:
        again = torch.rand(3), np.random.rand(), torch.rand(1)
    assert torch.equal(drawn[0], again[0]) and drawn[1] == again[1]
    assert differences(first.state(), second.state()) == []
    seed_all(7)
    assert torch.equal(outside, torch.rand(1))
