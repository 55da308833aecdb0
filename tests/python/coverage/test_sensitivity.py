"""What may differ where ops round otherwise, and what may not."""

from __future__ import annotations

import pytest
import torch
from lockstep.coverage import Program, Run
from lockstep.coverage.judge import judge
from lockstep.coverage.sensitivity import Moved
from torch import nn

UNSEEN = 1000  # a seed that no run of the yardstick has


class Tolerant(Moved):
    """Eager with other last bits, whose results `fault` changes on top."""

    name = "tolerant"
    exact = False

    def __init__(self, fault):
        super().__init__(UNSEEN)
        self.fault = fault

    def wrap(self, step):
        return lambda *args: self.fault(step(*args))


def train_on_rounding():
    """The keys' bias has a gradient of zero, but for rounding; Adam makes it a full step."""
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    optimizer = torch.optim.Adam(attention.parameters(), lr=0.01, eps=1e-20)
    x = torch.randn(2, 5, 8)

    def step():
        optimizer.zero_grad()
        loss = attention(x, x, x, need_weights=False)[0].square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach(), attention.in_proj_bias.detach().clone()

    return Run(step, state={"bias": attention.in_proj_bias})


def say_a_number():
    x = torch.arange(1.0, 40.0).log()

    def step():
        total = x.exp().div(3).log().sum()
        return f"after 3 steps {total.item():.9e}", total.item()

    return Run(step)


def train_in_bfloat16():
    """Each op of the update rounds there, or only the last one."""
    weight = torch.arange(1.0, 40.0).bfloat16()

    def step():
        return weight.mul(1.1).sub(weight)

    return Run(step)


@torch.library.custom_op("lockstep_test::shifted_exp", mutates_args=())
def shifted_exp(x: torch.Tensor) -> torch.Tensor:
    return x.exp() * 1e4 - 1e4


def call_a_python_body():
    """What rounds is inside an op that is written in Python."""
    x = torch.full((9,), 1e-3)
    return Run(lambda: shifted_exp(x))


FAULTS = [
    (train_in_bfloat16, lambda out: out, "equal"),
    (train_in_bfloat16, lambda out: out * 1.5, "wrong"),
    (call_a_python_body, lambda out: out, "equal"),
    (call_a_python_body, lambda out: out * 1.01, "wrong"),
    (train_on_rounding, lambda out: out, "equal"),
    (train_on_rounding, lambda out: (out[0] * 1.001, out[1]), "wrong"),
    (train_on_rounding, lambda out: (out[0], out[1].roll(8)), "wrong"),
    (train_on_rounding, lambda out: (out[0], out[1][:8]), "wrong"),
    (say_a_number, lambda out: out, "equal"),
    (say_a_number, lambda out: (out[0].replace("3", "4", 1), out[1]), "wrong"),
    (say_a_number, lambda out: (out[0].replace("after", "before"), out[1]), "wrong"),
    (say_a_number, lambda out: (out[0], out[1] * 1.0001), "wrong"),
    (say_a_number, lambda out: (out[0], str(out[1])), "wrong"),
]


@pytest.mark.parametrize(("make", "fault", "status"), FAULTS)
def test_status(make, fault, status):
    result = judge(Program("p", make), Tolerant(fault))
    assert result["status"] == status, result["detail"]
    assert status == "wrong" or any("digits" in line for line in result["unstable"])
