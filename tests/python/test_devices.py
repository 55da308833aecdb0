"""Another device than the CPU, with a thread of its own in autograd, as GPUs have."""

import pathlib
import subprocess
import sys
import threading

import device_programs
import lockstep
import pytest
import torch

SCRIPT = pathlib.Path(device_programs.__file__)


@pytest.mark.parametrize("program", sorted(device_programs.PROGRAMS))
def test_device(program):
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), program], capture_output=True, text=True, timeout=120
    )
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stdout + ran.stderr


@pytest.mark.parametrize("runner", ["behind", "yielding", "inplace"])
def test_generators_are_seen_by_other_threads_as_in_eager(runner):
    def step(seen):
        drawn = torch.nn.functional.dropout(device_programs.busy(0), 0.5)
        thread = threading.Thread(target=lambda: seen.append(torch.get_rng_state()))
        thread.start()
        thread.join()
        return drawn.sum()

    ours = lockstep.function(step, when="always", numerics="strict", runner=runner)
    for seed in range(8):
        states = []
        for run in (step, ours):
            torch.manual_seed(seed)
            run(states)
        assert torch.equal(*states), seed
