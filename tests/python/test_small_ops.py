"""What the leading thread computes itself stays on that thread."""

import os

import lockstep
import pytest
import torch


def thread_count():
    return len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(torch.get_num_threads() < 2, reason="kernels have one thread in any case")
@pytest.mark.parametrize("numerics", ["strict", "default"])
def test_a_small_op_makes_no_workers(numerics):
    counts = []

    @lockstep.function(when="always", runner="behind", numerics=numerics)
    def step():
        ones = torch.ones(64, 64, dtype=torch.bool)
        before = thread_count()
        causal = ones.tril()  # PyTorch shares its rows, however few they are
        counts.append((before, thread_count()))
        return causal

    for _ in range(6):
        causal = step()
    assert torch.equal(causal, torch.ones(64, 64, dtype=torch.bool).tril())
    assert lockstep.stats(step)["graph_ops"] > 0
    assert all(before == after for before, after in counts[2:]), counts
