"""Activations and losses that are fused: as eager in a training step, and bit for bit in strict."""

import lockstep
import pytest
import torch
from lockstep import _C
from torch import nn
from torch.nn import functional as F

CALLS = 6

ACTIVATIONS = {
    "relu6": (nn.ReLU6, {"hardtanh", "hardtanh_backward"}),
    "relu6_in_place": (lambda: nn.ReLU6(inplace=True), {"hardtanh_", "hardtanh_backward"}),
    "hardswish": (nn.Hardswish, {"hardswish", "hardswish_backward"}),
    "hardsigmoid": (nn.Hardsigmoid, {"hardsigmoid", "hardsigmoid_backward"}),
    "hardshrink": (nn.Hardshrink, {"hardshrink", "hardshrink_backward"}),
    "softshrink": (nn.Softshrink, {"softshrink", "softshrink_backward"}),
    "threshold": (lambda: nn.Threshold(0.1, 0.2), {"threshold", "threshold_backward"}),
    "elu": (nn.ELU, {"elu", "elu_backward"}),
    "elu_in_place": (lambda: nn.ELU(inplace=True), {"elu_", "elu_backward"}),
    "celu": (lambda: nn.CELU(0.7), {"celu", "elu_backward"}),
    "selu": (nn.SELU, {"elu", "elu_backward"}),
    "softplus": (nn.Softplus, {"softplus", "softplus_backward"}),
    "mish": (nn.Mish, {"mish", "mish_backward"}),
    "log_sigmoid": (nn.LogSigmoid, {"log_sigmoid_forward", "log_sigmoid_backward"}),
    "prelu": (nn.PReLU, {"_prelu_kernel", "_prelu_kernel_backward"}),
    "prelu_by_channel": (lambda: nn.PReLU(96), {"_prelu_kernel", "_prelu_kernel_backward"}),
}
LOSSES = {
    "mse": (nn.MSELoss, {"mse_loss", "mse_loss_backward"}),
    "smooth_l1": (nn.SmoothL1Loss, {"smooth_l1_loss", "smooth_l1_loss_backward"}),
    "huber": (nn.HuberLoss, {"huber_loss", "huber_loss_backward"}),
    "bce": (nn.BCELoss, {"binary_cross_entropy_backward"}),
    "bce_with_logits": (nn.BCEWithLogitsLoss, {"binary_cross_entropy_with_logits"}),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))


def make_step(activation, loss):
    """A training step with its net, and what is compared after each call."""
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(96, 96), activation, nn.Linear(96, 96))
    x, wanted = torch.randn(64, 96), torch.rand(64, 96)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step(count=64):
        optimizer.zero_grad()
        y = net[1](net[0](x[:count]) * 2 + 0.25) + 0.5
        y = net[2](y)
        if isinstance(loss, nn.BCELoss):
            y = torch.sigmoid(y)
        value = loss(y, wanted[:count])
        value.backward()
        optimizer.step()
        return value

    return step, net


def train(activation, loss, **options):
    """All losses and parameters as float64; and what the profile says, by op."""
    step, net = make_step(activation, loss)
    run = lockstep.function(step, when="always", **options) if options else step
    losses = [run().detach() for _ in range(CALLS)]
    losses.append(run(40).detach())
    losses.append(run(23).detach())
    result = torch.cat([t.double().flatten() for t in [*losses, *net.state_dict().values()]])
    if not options:
        return result, {}
    with lockstep.profile(run) as profile:
        run()
    return result, {row["op"].split(".")[0].removeprefix("aten::"): row for row in profile.by_op()}


CASES = [(name, make, nn.MSELoss, ops) for name, (make, ops) in ACTIVATIONS.items()]
CASES += [(name, nn.Tanh, make, ops) for name, (make, ops) in LOSSES.items()]
CASES += [
    (f"{name}_sum", nn.Tanh, lambda make=make: make(reduction="sum"), ops)
    for name, (make, ops) in LOSSES.items()
]


@pytest.mark.parametrize(("make", "loss", "ops"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_step_is_as_eager(make, loss, ops):
    eager, _ = train(make(), loss())
    own, rows = train(make(), loss(), numerics="default", deterministic=True, runner="inplace")
    torch.testing.assert_close(own, eager, rtol=1e-4, atol=1e-5)
    for op in ops:
        assert rows[op]["fused"] == rows[op]["kernels"] > 0, (op, rows.get(op))
    strict, _ = train(make(), loss(), numerics="strict")
    assert torch.equal(strict, eager)


def test_unreduced_losses_and_weights():
    torch.manual_seed(2)
    y, wanted, weight = torch.randn(32, 80, requires_grad=True), torch.rand(32, 80), torch.rand(80)

    def step():
        y.grad = None
        total = F.mse_loss(y, wanted, reduction="none").mul(weight).sum()
        total = total + F.smooth_l1_loss(y, wanted, reduction="none", beta=0.5).exp().mean()
        total = total + F.huber_loss(y, wanted, reduction="sum", delta=0.3)
        total = total + F.binary_cross_entropy_with_logits(y, wanted, weight, pos_weight=weight * 2)
        total = total + F.binary_cross_entropy(torch.sigmoid(y), wanted, weight, reduction="sum")
        total.backward()
        return total, y.grad

    eager = step()
    run = lockstep.function(step, when="always", numerics="default", deterministic=True)
    for _ in range(4):
        for own, other in zip(run(), eager, strict=True):
            torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5)


def test_numbers():
    torch.manual_seed(2)
    x, y = torch.randn(33, 65), torch.randn(33, 65)

    def step():
        a = torch.round(x * 3) + torch.trunc(y) * torch.sign(x) + torch.frac(x * 5)
        a = torch.clamp(a, y - 1, y + 1)
        a = torch.where(torch.isnan(a / 0), a * 2, a) + torch.pow(2.5, y)
        a = torch.pow(a.abs() + 0.1, y) + torch.logit(torch.sigmoid(x), eps=1e-6)
        return torch.nan_to_num(a), torch.lerp(x, y, torch.sigmoid(a))

    eager = step()
    run = lockstep.function(step, when="always", numerics="default", deterministic=True)
    for _ in range(4):
        for own, other in zip(run(), eager, strict=True):
            torch.testing.assert_close(own, other, rtol=2e-5, atol=2e-5)


def test_kernels_serve_all_sizes_of_a_loss():
    """The share of each element in a mean is given at each run."""
    weights = torch.randn(70, requires_grad=True)

    def step(x):
        weights.grad = None
        F.mse_loss(x * weights, x + 1).backward()
        return weights.grad

    run = lockstep.function(
        step, when="always", numerics="default", deterministic=True, runner="inplace"
    )
    batches = [torch.randn(n, 70) for n in (9, 11, 13, 17, 19, 23, 29)]
    for batch in batches[:3]:
        run(batch)
    before = _C.fusion_statistics()["compiled"]
    for batch in batches:
        eager = step(batch).clone()
        torch.testing.assert_close(run(batch), eager, rtol=1e-5, atol=1e-6)
    assert _C.fusion_statistics()["compiled"] == before


@pytest.mark.parametrize(
    ("function", "good", "bad"),
    [
        (F.celu, (0.5, 0.6, 1.0), (0.0, 1e-46, 1e39)),
        (F.softshrink, (0.5, 0.6, 0.0), (-1.0, float("nan"))),
        (lambda x, v: F.smooth_l1_loss(x, x + 1, beta=v), (0.5, 0.6, 1.0), (-1.0,)),
        (lambda x, v: F.huber_loss(x, x + 1, delta=v), (0.5, 0.6, 1.0), (-1.0, 0.0)),
    ],
)
def test_numbers_that_eager_refuses_are_refused_later_too(function, good, bad):
    def step(x, number):
        return function(x * 2, number) + 1

    for wrong in bad:
        run = lockstep.function(step, when="always")
        for call in range(6):
            x = torch.randn(64, 70)
            torch.testing.assert_close(run(x, good[call % 3]), step(x, good[call % 3]))
        with pytest.raises(RuntimeError) as eager:
            step(x, wrong)
        with pytest.raises(RuntimeError) as own:
            run(x, wrong).sum().item()
        assert str(eager.value).splitlines()[0] in str(own.value)
        torch.testing.assert_close(run(x, good[0]), step(x, good[0]))


def gradient_by(function):
    """Of a map, where the gradient that comes in lies in the order of its dims."""

    def step(x):
        x = x.detach().requires_grad_()
        y = function(x)
        return torch.autograd.grad(y, x, torch.ones(y.shape))[0]

    return step


@pytest.mark.parametrize("numerics", ["strict", "default"])
@pytest.mark.parametrize(
    "step",
    [
        lambda x: x.masked_fill(x > 0, 1.0),
        lambda x: torch.pow(2.0, x),
        gradient_by(F.relu),
        gradient_by(F.hardswish),
        gradient_by(F.elu),
        gradient_by(lambda x: F.threshold(x, 0.1, 0.2)),
    ],
    ids=["masked_fill", "pow", "relu", "hardswish", "elu", "threshold"],
)
def test_an_order_that_comes_later_gives_the_strides_of_eager(step, numerics):
    run = lockstep.function(step, when="always", numerics=numerics)
    for _ in range(3):
        run(torch.randn(5, 70))
    for x in (torch.randn(8, 3).t(), torch.randn(9, 4).t(), torch.randn(1, 6)[:, ::2].t()):
        own, eager = run(x), step(x)
        assert own.stride() == eager.stride()
        torch.testing.assert_close(own, eager)


class OwnLayerNorm(nn.Module):
    """As it is often written by hand."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        variance = x.var(-1, keepdim=True, unbiased=False)
        return self.weight * (x - x.mean(-1, keepdim=True)) / (variance + 1e-5) ** 0.5


class Directions(nn.Module):
    def forward(self, x):
        return F.normalize(x, dim=-1) * F.cosine_similarity(x, x.roll(1, 0), dim=-1)[:, None]


class LogSumExp(nn.Module):
    def forward(self, x):
        largest = x.detach().amax(-1, keepdim=True)
        return x - ((x - largest).exp().sum(-1).log().unsqueeze(-1) + largest)


ROWS = {
    "rms_norm": (lambda: nn.RMSNorm(96), {"mean", "pow", "rsqrt", "sum"}),
    "layer_norm_by_hand": (lambda: OwnLayerNorm(96), {"var", "mean", "sum"}),
    "directions": (Directions, {"linalg_vector_norm", "sum"}),
    "log_sum_exp": (LogSumExp, {"amax", "sum"}),
}


@pytest.mark.parametrize("name", ROWS)
def test_values_of_rows(name):
    make, ops = ROWS[name]
    expected, _ = train(make(), nn.MSELoss())
    assert torch.equal(train(make(), nn.MSELoss(), numerics="strict")[0], expected)
    fused = {"numerics": "default", "deterministic": True, "runner": "inplace"}
    result, rows = train(make(), nn.MSELoss(), **fused)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    for op in ops:
        assert rows[op]["fused"] > 0, (op, rows[op])
