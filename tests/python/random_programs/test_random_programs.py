"""300 random programs, eager against lockstep in strict mode, bit for bit after each call; 100 of
them in default mode, within tolerance, with all kernels compiled that a call asked for.

The programs run in forked children, so that a crash is a failure with a seed. See README.md for
how to reproduce and reduce one.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from random_compare import first_difference, snapshot  # noqa: E402
from random_program import program_text  # noqa: E402
from random_runner import check_seeds, run_eager  # noqa: E402
from random_shrink import deletions, simplification, unwrapping  # noqa: E402

CHUNK = 20
COUNT, FUSED_COUNT = 300, 100


@pytest.mark.parametrize("first", range(0, COUNT, CHUNK))
def test_programs(first):
    stats, failures = {}, []
    for seed, failure in check_seeds(range(first, first + CHUNK), timeout=30.0, stats=stats):
        if failure:
            failures.append(f"seed {seed}: {failure['text']}")
    assert not failures, "\n".join(failures)
    assert stats["graph_ops"] > 0.3 * stats["ops"], f"hardly anything ran in the graph: {stats}"


@pytest.mark.parametrize("first", range(0, FUSED_COUNT, CHUNK))
def test_programs_with_other_kernels(first, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    options, failures = {"numerics": "default"}, []
    for seed, failure in check_seeds(range(first, first + CHUNK), options, timeout=30.0):
        if failure:
            failures.append(f"seed {seed}: {failure['text']}")
    assert not failures, "\n".join(failures)


def test_a_program_is_a_function_of_its_seed():
    for seed in range(COUNT):
        assert program_text(seed) == program_text(seed)


def test_two_eager_runs_are_equal():
    """What the comparison rests on: the programs and the snapshots are deterministic."""
    for seed in range(0, COUNT, 10):
        text = program_text(seed)
        for first, second in zip(run_eager(text, "a", 3), run_eager(text, "a", 3), strict=True):
            assert first_difference(first, second) is None


def test_a_snapshot_sees_one_changed_bit():
    import torch

    tensor = torch.ones(3)
    before = snapshot({"tensor": [tensor]})
    tensor.data[1] = 1.0000001
    assert "bits differs" in first_difference(before, snapshot({"tensor": [tensor]}))


def test_programs_use_what_they_are_meant_to_use():
    text = "\n".join(program_text(seed) for seed in range(COUNT))
    for word in (
        "backward()", "create_graph", "checkpoint(", "manual_seed(", "set_rng_state", ".item()",
        ".numpy()", "from_numpy", "except", "finally", "match ", "nonlocal", "while ", "elif ",
        ".diagonal()", ".unbind(", ".expand(", ".t_()", "out=", "multinomial", "s.kept.append",
        "_foreach_", "s.held.append", "from_dlpack", ".chunk(", "s.heavy", "saved(",
    ):  # fmt: skip
        assert word in text, word


def test_a_shorter_program_is_a_program():
    for rule in (deletions, unwrapping, simplification):
        made = []
        for text in map(program_text, range(5)):
            make, count = rule(text)
            made += [make(text, position) for position in range(0, count(text), 7)]
        for candidate in filter(None, made):
            compile(candidate, "candidate", "exec")
        assert any(made)
