"""What the benchmark's figures rest on."""

import itertools
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from bench_report import times_table  # noqa: E402
from bench_variants import balanced_order  # noqa: E402
from gradient_errors import gradient_errors  # noqa: E402


@pytest.mark.parametrize("count", range(1, 8))
def test_each_variant_follows_each_other_one_equally_often(count):
    names = [f"v{i}" for i in range(count)]
    orders = [balanced_order(names, index) for index in range(2 * count)]
    assert all(sorted(order) == names for order in orders)
    places = Counter((place, name) for order in orders for place, name in enumerate(order))
    assert set(places.values()) == {2}
    pairs = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert set(pairs) == {(a, b) for a in names for b in names if a != b}
    assert len(set(pairs.values())) <= 1


def test_tables_say_how_far_cores_were_apart_where_that_is_known():
    def alone(*distances):
        run = {"median": 1.0, "p10": 1.0, "p90": 1.0}
        if distances:
            run["core_ns"] = list(distances)
        return {"alone": {"eager_a": {"variants": {"eager_a": {"runs": [run]}}}}}

    programs = {"near": alone(38, 41), "far": alone(171, 40), "unknown": alone(None, None)}
    lines = times_table(programs, "alone").splitlines()
    assert len({line.count("|") for line in lines}) == 1, "each row has all columns"
    assert [line.split("|")[-2].strip() for line in lines[2:]] == ["38-41", "40-171", "-", ""]
    assert "ns between cores" in lines[0]
    assert "ns between cores" not in times_table({"old": alone()}, "alone")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.maps = nn.Sequential(nn.Conv2d(3, 24, 3), nn.BatchNorm2d(24), nn.GELU())
        self.rows = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 32), nn.Dropout(0.5))

    def forward(self, x):
        rows = self.maps(x).permute(0, 2, 3, 1).flatten(0, 2)
        return self.rows(rows).softmax(1).square().sum()


def test_gradients_are_as_near_to_exact_ones_as_those_of_eager():
    torch.manual_seed(0)
    batch = {"x": torch.randn(4, 3, 34, 34)}

    found = gradient_errors(
        Net(), batch, lambda of, given: of(**given), lambda: torch.manual_seed(1)
    )
    assert 1e-8 < found["eager"] < 1e-5, "those of a twin in float64, without dropout"
    assert 0 < found["default"] <= 2 * found["eager"]


def test_there_are_no_exact_gradients_of_what_does_not_run_in_float64():
    class Narrow(Net):
        def forward(self, x):
            return super().forward(x.float())

    found = gradient_errors(
        Narrow(), {"x": torch.randn(2, 3, 8, 8)}, lambda of, given: of(**given), lambda: None
    )
    assert found is None
