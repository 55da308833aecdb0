"""What the benchmark's figures rest on."""

import itertools
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from bench_variants import balanced_order  # noqa: E402


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
