"""`numerics="default"`: other kernels, the same training within float32's accuracy."""

import copy
import functools
import os

import lockstep
import numpy as np
import pytest
import torch
from lockstep import _C
from test_session import run_code
from torch import nn
from torch.nn import functional as F


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))


class ConvolutionNet(nn.Module):
    """Convolutions of all kinds, dropout, normalisation and a product at the end."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 5, stride=2, padding=2)
        self.norm = nn.BatchNorm2d(16)
        self.point = nn.Conv2d(16, 32, 1, bias=False)
        self.deep = nn.Conv2d(32, 32, 3, padding=1, groups=4)
        self.up = nn.ConvTranspose2d(32, 8, 4, stride=2, padding=1)
        self.down = nn.Conv2d(8, 16, 3, stride=3, padding=1, dilation=2)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x)))
        x = F.dropout(F.gelu(self.point(x)), 0.1, self.training)
        x = F.leaky_relu(self.deep(x) + x, 0.1)
        return self.head(F.silu(self.down(self.up(x))).mean((2, 3)))


def make_step(model, decorate):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    @decorate
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def train(model, decorate, steps):
    torch.manual_seed(3)
    step = make_step(model, decorate)
    losses = []
    for _ in range(steps):
        x, y = torch.randn(6, 3, 20, 20), torch.randint(10, (6,))
        losses.append(step(x, y).item())
    return losses, torch.get_rng_state(), step


def default(fn):
    return lockstep.function(fn, when="always", numerics="default")


def test_training_stays_with_eager(tmp_path):
    torch.manual_seed(0)
    model = ConvolutionNet()
    twin, exact = copy.deepcopy(model), copy.deepcopy(model)
    eager, eager_state, _ = train(model, lambda fn: fn, 24)
    groups = _C.fusion_statistics()["groups"]
    own, own_state, step = train(twin, default, 24)
    _C.wait_for_kernels()
    assert lockstep.stats(step)["graph_ops"] > 0.9 * lockstep.stats(step)["ops"]
    step(torch.randn(6, 3, 20, 20), torch.randint(10, (6,)))
    assert _C.fusion_statistics()["groups"] > groups
    assert (tmp_path / "kernel-choices-11.txt").exists()
    assert torch.equal(own_state, eager_state), "other random numbers were drawn"
    assert own[0] == pytest.approx(eager[0], rel=1e-5)
    assert own == pytest.approx(eager, rel=1e-3)
    strict, _, _ = train(
        exact, lambda fn: lockstep.function(fn, when="always", numerics="strict"), 24
    )
    assert strict == eager, "strict takes PyTorch's own kernels, whatever other functions do"


COMPUTES = """
import lockstep, torch
step = lockstep.function(lambda x: torch.conv2d(x, torch.ones(4, 3, 3, 3)).sum(), when="always")
for _ in range(40):
    found = step(torch.ones(2, 3, 16, 16))
print(found.item())
"""


def test_a_pipe_among_the_choices_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "kernel-choices-11.txt")
    done = run_code(COMPUTES, LOCKSTEP_CACHE=str(tmp_path), LOCKSTEP_NUMERICS="default")
    assert done.stdout == f"{2 * 4 * 14 * 14 * 27:.1f}\n"


def test_fast_rounds_products_and_nothing_else():
    torch.manual_seed(0)
    left, right = torch.randn(512, 600), torch.randn(600, 700)
    exact = left @ right
    products = {}
    for numerics in ("default", "fast"):

        @lockstep.function(when="always", numerics=numerics)
        def multiply():
            return left @ right, left * 1.1 - left

        for _ in range(40):
            product, pointwise = multiply()
        torch.testing.assert_close(pointwise, left * 1.1 - left, rtol=1e-6, atol=1e-6)
        products[numerics] = product
    torch.testing.assert_close(products["default"], exact, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(products["fast"], exact, rtol=2e-2, atol=0.5)
    model = ConvolutionNet()
    twin = copy.deepcopy(model)
    eager, eager_state, _ = train(model, lambda fn: fn, 12)
    fast = functools.partial(lockstep.function, when="always", numerics="fast")
    own, own_state, _ = train(twin, fast, 12)
    assert torch.equal(own_state, eager_state), "other random numbers were drawn"
    assert own == pytest.approx(eager, rel=3e-2)


def test_in_place_kernels_are_fused_too():
    torch.manual_seed(0)
    model = ConvolutionNet()
    twin = copy.deepcopy(model)
    eager, eager_state, _ = train(model, lambda fn: fn, 16)
    groups = _C.fusion_statistics()["groups"]
    in_place = functools.partial(
        lockstep.function, when="always", runner="inplace", numerics="default"
    )
    own, own_state, step = train(twin, in_place, 16)
    _C.wait_for_kernels()
    step(torch.randn(6, 3, 20, 20), torch.randint(10, (6,)))
    assert _C.fusion_statistics()["groups"] > groups
    assert torch.equal(own_state, eager_state), "other random numbers were drawn"
    assert own == pytest.approx(eager, rel=1e-3)


def count_groups(step, calls):
    """Groups that ran as kernels, and the result of the last call."""
    for _ in range(3):
        step()
        _C.wait_for_kernels()
    before = _C.fusion_statistics()["groups"]
    for _ in range(calls):
        result = step()
    return _C.fusion_statistics()["groups"] - before, result


def test_chains_of_elementwise_ops_are_fused():
    x, y = torch.randn(300, 200), torch.randn(200)
    x.add_(0.5)

    def chain():
        z = x * y + 1.5
        z = torch.where(z > 0, z, z * 0.1)
        return (z - x).sigmoid_().mul_(2.0)

    groups, own = count_groups(default(chain), 10)
    assert groups >= 10
    torch.testing.assert_close(own, chain(), rtol=1e-6, atol=1e-6)
    unfused = lockstep.function(chain, when="always", numerics="default", fuse="nothing")
    groups, other = count_groups(unfused, 10)
    assert groups == 0
    assert torch.equal(other, chain())


def test_what_is_read_on_the_way_is_there():
    x = torch.randn(50, 60)

    @default
    def step():
        y = x * 2
        z = y + 1
        total = float(z.sum())  # while others may wait for more to join them
        w = (y - z).abs()
        return y, w, total

    for _ in range(8):
        y, w, total = step()
        _C.wait_for_kernels()
        assert torch.equal(y, x * 2)
        assert torch.equal(w, (x * 2 - (x * 2 + 1)).abs())
        assert total == float((x * 2 + 1).sum())


def test_optimizers_agree_with_eager():
    for make in (
        lambda p: torch.optim.AdamW(p, 1e-2),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-3, nesterov=True),
        lambda p: torch.optim.RMSprop(p, 1e-3, momentum=0.5),
        lambda p: torch.optim.Adagrad(p, 1e-2),
    ):
        start = [torch.randn(30, 20), torch.randn(20), torch.randn(())]
        gradients = [[torch.randn_like(t) for t in start] for _ in range(8)]

        def train(decorate):
            parameters = [torch.nn.Parameter(t.clone()) for t in start]
            optimizer = make(parameters)

            @decorate
            def step(gradients):
                for p, g in zip(parameters, gradients, strict=True):
                    p.grad = g.clone()
                optimizer.step()

            for g in gradients:
                step(g)
                _C.wait_for_kernels()
            return parameters

        groups = _C.fusion_statistics()["groups"]
        own_parameters = train(default)
        assert _C.fusion_statistics()["groups"] > groups
        for own, eager in zip(own_parameters, train(lambda fn: fn), strict=True):
            torch.testing.assert_close(own, eager, rtol=1e-5, atol=1e-6)


def test_deterministic_algorithms_keep_eagers_kernels():
    torch.manual_seed(0)
    model = ConvolutionNet()
    twin = copy.deepcopy(model)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        x = torch.randn(4, 3, 20, 20)

        @default
        def convolve(net):
            return net.point(net.stem(x))

        for _ in range(12):
            own = convolve(twin)
        assert torch.equal(own, model.point(model.stem(x)))
    finally:
        torch.use_deterministic_algorithms(before)


def test_errors_are_eagers():
    weight = torch.randn(4, 3, 3, 3)

    @default
    def convolve(x):
        return F.conv2d(x, weight).sum()

    for _ in range(4):
        convolve(torch.randn(2, 3, 8, 8))
    for bad in (torch.randn(2, 4, 8, 8), torch.randn(2, 3, 2, 2)):
        with pytest.raises(RuntimeError) as eager:
            F.conv2d(bad, weight)
        with pytest.raises(RuntimeError) as own:
            convolve(bad)
        assert str(own.value) == str(eager.value)


def test_a_session_takes_the_option():
    weight = torch.randn(8, 8, 3, 3)
    x = torch.randn(2, 8, 6, 6)
    expected = F.conv2d(x, weight)
    with lockstep.session(numerics="default", when="always"):
        for _ in range(12):
            own = F.conv2d(x, weight)
    torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-5)


@pytest.fixture
def channels_innermost():
    """Every convolution goes with its channels innermost, as if that had measured fastest."""
    _C.force_kernel_way(1)
    yield
    _C.force_kernel_way(-1)


def test_maps_with_channels_innermost_show_to_nobody(channels_innermost):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3))
    x = torch.randn(2, 3, 9, 9)
    kept = []

    def step(look):
        first = net[:3](x)
        middle = first * 2
        if look == 1:
            assert first.is_contiguous() and first.stride() == (392, 49, 7, 1)
            kept.append(first.detach().numpy().copy())
        elif look == 2:
            kept.append(np.from_dlpack(middle.detach()))
        elif look == 3:
            kept.append(middle[1, 3, 2].tolist())
        elif look == 4:
            kept.append(middle.detach().view(-1)[100:110])
        last = net[3](middle)
        last.sum().backward()
        return first, last

    own_step = default(step)
    for look in (0, 0, 0, 1, 2, 3, 4, 0):
        results = []
        for run in (step, own_step):
            net.zero_grad()
            results.append((*run(look), *(p.grad.clone() for p in net.parameters())))
        _C.wait_for_kernels()
        for eager, own in zip(*results, strict=True):
            assert own.stride() == eager.stride()
            torch.testing.assert_close(own, eager, rtol=1e-4, atol=1e-4)
        if look:
            torch.testing.assert_close(*map(torch.as_tensor, kept[-2:]), rtol=1e-4, atol=1e-4)
    assert _C.fusion_statistics()["hidden_maps"] > 0


def frozen_maps_in_bfloat16():
    """What comes before the norm needs no gradient: PyTorch's kernel for that takes planes only."""
    conv = nn.Conv2d(3, 16, 3, padding=1).requires_grad_(False)
    norm = nn.GroupNorm(4, 16).to(torch.bfloat16)

    def step(x):
        norm.zero_grad()
        z = norm(conv(x).to(torch.bfloat16))
        z.sum().backward()
        return z.detach(), norm.weight.grad.clone()

    return step


def a_column_as_weight():
    """Of a table: its values are not one behind the other."""
    first, last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
    table = torch.randn(16, 2, requires_grad=True)

    def step(x):
        first.weight.grad = table.grad = None
        z = F.batch_norm(first(x), None, None, table[:, 0], table[:, 1], training=True)
        last(z.relu()).sum().backward()
        return z.detach(), first.weight.grad.clone(), table.grad.clone()

    return step


@pytest.mark.parametrize("make", [frozen_maps_in_bfloat16, a_column_as_weight])
def test_norms_that_are_left_to_pytorch_get_planes(channels_innermost, make):
    torch.manual_seed(0)
    step, x = make(), torch.randn(4, 3, 24, 24)
    expected, own_step = step(x), default(step)
    hidden = _C.fusion_statistics()["hidden_maps"]
    for _ in range(8):
        own = own_step(x)
        _C.wait_for_kernels()
    for ours, eager in zip(own, expected, strict=True):
        torch.testing.assert_close(ours, eager, rtol=2e-2, atol=2e-2)
    assert _C.fusion_statistics()["hidden_maps"] > hidden


def test_training_with_channels_innermost_stays_with_eager(channels_innermost):
    torch.manual_seed(0)
    model = ConvolutionNet()
    twin = copy.deepcopy(model)
    eager, _, _ = train(model, lambda fn: fn, 12)
    hidden = _C.fusion_statistics()["hidden_maps"]
    own, _, _ = train(twin, default, 12)
    assert own == pytest.approx(eager, rel=1e-3)
    assert _C.fusion_statistics()["hidden_maps"] > hidden


@pytest.fixture
def kernel_way(request):
    """Convolutions by one of their ways, where it can compute them."""
    _C.force_kernel_way(request.param)
    yield request.param
    _C.force_kernel_way(-1)


@pytest.mark.parametrize("kernel_way", range(6), indirect=True)
def test_a_bias_of_another_size_is_refused_as_in_eager(kernel_way):
    step = lockstep.function(
        lambda x, w, b: F.conv2d(x, w, b, padding=1), when="always", numerics="default"
    )
    x, weight = torch.randn(2, 15, 9, 9), torch.randn(15, 15, 3, 3)
    for _ in range(3):
        step(x, weight, torch.randn(15))
    for wrong in (torch.randn(1), torch.randn(14), torch.randn(15, 1)):
        with pytest.raises(RuntimeError) as eager:
            F.conv2d(x, weight, wrong, padding=1)
        with pytest.raises(RuntimeError) as ours:
            step(x, weight, wrong)
        assert str(ours.value) == str(eager.value)


@pytest.mark.parametrize("kernel_way", (-1, 0, 2, 5), indirect=True)
@pytest.mark.parametrize("size", (1, 3))
@pytest.mark.parametrize("wants_input", (False, True))
def test_a_bias_is_trained_without_its_weight(kernel_way, size, wants_input):
    weight = torch.randn(8, 5, size, size)

    def step(x, bias):
        x = x.detach().requires_grad_(wants_input)
        bias = bias.detach().requires_grad_()
        F.conv2d(x * 1, weight, bias).square().mean().backward()
        return bias.grad, x.grad

    fast = lockstep.function(step, when="always", numerics="default")
    for _ in range(5):
        arguments = torch.randn(2, 5, 6, 7), torch.randn(8)
        for want, got in zip(step(*arguments), fast(*arguments), strict=True):
            assert (want is None) == (got is None)
            if want is not None:
                torch.testing.assert_close(got, want)


def test_numbers_beyond_the_type_do_what_eager_does():
    programs = [
        lambda x, n: (x * 2 + 1) * n + 3,
        lambda x, n: ((x * 2 + 1) > n).float() * 2,
        lambda x, n: torch.add(x * 2, x, alpha=n),
        lambda x, n: (x * 2).masked_fill(x > 0, -n) + 3,
        lambda x, n: (x * 2).to(torch.uint8).fill_(int(min(n, 1e12))) + 1,
    ]

    def outcome(fn, *arguments):
        try:
            return fn(*arguments)
        except RuntimeError as error:
            return str(error)

    for number, program in enumerate(programs):
        fast = lockstep.function(program, when="always", numerics="default")
        for n in (2.0, 3.0, 2.0, 1e40, 2.0, 300.0, 1e40, True):
            x = torch.rand(50)
            want, got = outcome(program, x, n), outcome(fast, x, n)
            _C.wait_for_kernels()
            if isinstance(want, str):
                assert got == want, (number, n)
            else:
                torch.testing.assert_close(got, want, equal_nan=True)


def test_clamped_zeros_keep_their_signs():
    fast = lockstep.function(
        lambda x: (
            1 / (x * 2).clamp(min=0.0),
            1 / (x * 2).clamp_max(0.0),
            1 / (x * 2).clamp_min(0),
        ),
        when="always",
        numerics="default",
    )
    for zero in (-0.0, 0.0, -0.0, 0.0):
        x = torch.full((50,), zero)
        for got in fast(x):
            assert torch.equal(got, 1 / x)
        _C.wait_for_kernels()


def test_batch_norm_whose_weight_is_its_running_mean():
    fast = lockstep.function(
        lambda x, w: F.batch_norm(x, w, w.clone(), w, w, True, 0.1),
        when="always",
        numerics="default",
    )
    for _ in range(4):
        x, weight = torch.randn(2, 16, 9, 9), torch.randn(16)
        first, second = weight.clone(), weight.clone()
        torch.testing.assert_close(
            fast(x, first), F.batch_norm(x, second, second.clone(), second, second, True, 0.1)
        )
        torch.testing.assert_close(first, second)


def test_a_number_is_written_with_a_wider_one_as_in_eager():
    """Both are tensors without dims: PyTorch computes in the wider type and rounds once."""

    def step(x, y):
        product, difference, quotient = x.exp() * 1e-30, x.exp() * 1.0, x.exp() * 1e30
        product.mul_(y.exp() * 1e60)
        difference.sub_(y.exp() * 1.00000001)
        quotient.div_(y.exp() * 1e40)
        return [product, difference, quotient]

    own = default(step)
    for _ in range(4):
        numbers = torch.zeros(()), torch.zeros((), dtype=torch.float64)
        assert [t.item() for t in own(*numbers)] == [t.item() for t in step(*numbers)]
        _C.wait_for_kernels()


@pytest.mark.parametrize("numerics", ["strict", "default"])
def test_convolutions_lie_in_memory_as_in_eager(numerics):
    """Which kernel PyTorch takes, and so the strides, may depend on threads, samples and flags."""

    def step(x, w, volume, kernel):
        gradient = torch.autograd.grad(F.conv2d(x, w).sum(), w)[0]
        return gradient, F.conv3d(volume, kernel, groups=2, padding=1)

    own = lockstep.function(step, numerics=numerics, when="always")
    w, kernel = torch.randn(16, 3, 1, 1, requires_grad=True), torch.randn(2, 1, 1, 1, 1)
    threads = torch.get_num_threads()
    try:
        for count, samples in ((2, 2), (2, 2), (2, 3), (1, 3), (1, 2), (2, 17), (1, 17), (2, 4)):
            torch.set_num_threads(count)
            x = torch.randn(samples, 3, 6, 5).contiguous(memory_format=torch.channels_last)
            volume = torch.randn(samples, 2, 5, 6, 2).contiguous(
                memory_format=torch.channels_last_3d
            )
            for expected, found in zip(
                step(x, w, volume, kernel), own(x, w, volume, kernel), strict=True
            ):
                assert found.stride() == expected.stride(), (count, samples)
                torch.testing.assert_close(found, expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("is_shared", [False, True], ids=["plain memory", "memory of numpy"])
@pytest.mark.parametrize(
    "convolve, channels, weight",
    [
        (F.conv2d, 1, (32, 1, 3, 3)),
        (F.conv2d, 8, (8, 8, 1, 1)),
        (functools.partial(F.conv2d, groups=8, padding=1), 8, (8, 1, 3, 3)),
        (F.conv_transpose2d, 8, (8, 8, 1, 1)),
        (F.conv_transpose2d, 8, (8, 1, 3, 3)),
    ],
    ids=["one channel", "one pixel", "one a group", "one pixel turned", "to one channel"],
)
def test_default_shows_nobody_strides_that_eager_has_not(convolve, channels, weight, is_shared):
    """A weight with channels innermost and a dim of one element: what it makes has to be seen."""

    def given(x):
        return torch.from_numpy(x.numpy().copy()) if is_shared else x.clone()

    side = 68 if is_shared else 9  # more than 1 MB is not copied to be safe from others
    w = torch.empty(weight, memory_format=torch.channels_last).normal_().requires_grad_()

    def step(x):
        x.requires_grad_()
        y = convolve(x, w)
        return y, *torch.autograd.grad(y.square().mean(), [x, w])

    runs = [lockstep.function(step, numerics=n, when="always") for n in ("default", "strict")]
    for samples in (64, 64, 64, 64, 17, 17, 64):
        x = torch.randn(samples, channels, side, side)
        expected = step(given(x))
        for run in runs:
            for found, sought in zip(run(given(x)), expected, strict=True):
                assert found.stride() == sought.stride(), samples
                torch.testing.assert_close(found, sought, rtol=1e-4, atol=1e-5)
        _C.wait_for_kernels()


def test_batch_norm_whose_weight_overlaps_its_running_mean():
    def step(x, memory):
        mean, weight = memory[:4], memory[1:5]
        return F.batch_norm(x, mean, torch.ones(4), weight, None, True, 0.1, 1e-5)

    own = default(step)
    for _ in range(3):
        x, memory = torch.randn(8, 4, 6, 6), torch.rand(8) + 1
        twin = memory.clone()
        torch.testing.assert_close(own(x, twin), step(x, memory))
        assert torch.equal(twin, memory)


def test_gradients_that_lie_with_channels_innermost(channels_innermost):
    """As those of a head whose map is permuted before its loss: the map before it is hidden."""
    body, head = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 3, 1)

    def step(x):
        values = head(F.relu(body(x))).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 3)
        found = torch.autograd.grad(values.square().sum(), [*body.parameters(), *head.parameters()])
        return values.detach(), *found

    own = default(step)
    for _ in range(6):
        x = torch.randn(2, 8, 16, 16)
        for expected, found in zip(step(x), own(x), strict=True):
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        _C.wait_for_kernels()


@pytest.mark.parametrize("samples", [1, 2])
def test_norm_of_single_samples_with_channels_innermost(channels_innermost, samples):
    """PyTorch takes the gradient of a single one for contiguous, which it is not: so do we."""
    norm = nn.InstanceNorm2d(16, affine=True)
    head = nn.Conv2d(16, 4, 1).to(memory_format=torch.channels_last)

    def step(x):
        values = head(norm(x))
        loss = values.square().sum() + values.sum()
        return loss.detach(), *torch.autograd.grad(loss, [x, *norm.parameters()])

    own = default(step)
    for _ in range(6):
        x = torch.randn(samples, 16, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
        for expected, found in zip(step(x), own(x), strict=True):
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        _C.wait_for_kernels()


def test_gradients_of_norms_that_lie_otherwise_than_their_maps(channels_innermost):
    """PyTorch's kernels take strides (C, 1, ...) of a single sample for those of planes."""
    body = nn.Conv2d(8, 16, 3, padding=1)
    weight, aten = torch.rand(16) + 1, torch.ops.aten

    def step(x, gradient):
        with torch.no_grad():
            maps = body(x)
            _, mean, inverse = aten.native_batch_norm(
                maps, weight, None, None, None, True, 0.1, 1e-5
            )
            of_batch = aten.native_batch_norm_backward(
                gradient, maps, weight, None, None, mean, inverse, True, 1e-5, [True] * 3
            )
            _, mean, inverse = aten.native_group_norm(maps, weight, None, 1, 16, 64, 4, 1e-5)
            of_groups = aten.native_group_norm_backward(
                gradient, maps, mean, inverse, weight, 1, 16, 64, 4, [True] * 3
            )
        return *of_batch, *of_groups

    own = default(step)
    for _ in range(6):
        x, gradient = torch.randn(1, 8, 8, 8), torch.empty_strided((1, 16, 8, 8), (16, 1, 128, 16))
        gradient.normal_()
        for expected, found in zip(step(x, gradient), own(x, gradient), strict=True):
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        _C.wait_for_kernels()
