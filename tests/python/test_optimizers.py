"""Steps of torch.optim as one op: where they are joined, and what they leave."""

import copy
from importlib import import_module

import lockstep
import numpy as np
import pytest
import torch
from lockstep import _C
from torch import nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

KINDS = {
    "adam": lambda p: torch.optim.Adam(p, 1e-2),
    "adam_l2": lambda p: torch.optim.Adam(p, 1e-2, betas=(0.0, 0.9), weight_decay=0.1),
    "adam_max": lambda p: torch.optim.Adam(p, 1e-2, amsgrad=True, maximize=True),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.01),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, maximize=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.1, lr_decay=0.01, weight_decay=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, alpha=0.4, weight_decay=0.1),
    "rmsprop_momentum": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.9, maximize=True),
    "rmsprop_centered": lambda p: torch.optim.RMSprop(p, 0.01, centered=True),
    "rmsprop_all": lambda p: torch.optim.RMSprop(
        p, 0.01, centered=True, momentum=0.5, alpha=0.9, weight_decay=0.01
    ),
}
JOINED = "::_fused_"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))


def default(fn, **options):
    return lockstep.function(fn, **{"when": "always", "numerics": "default", **options})


def eager(fn):
    return fn


def is_joined(step):
    return JOINED in lockstep.graph_text(step)


def some_tensors():
    torch.manual_seed(5)
    image = torch.randn(2, 3, 5, 7).contiguous(memory_format=torch.channels_last)
    return [torch.randn(70, 33), torch.randn(7), torch.randn(()), torch.randn(9, 4).t(), image]


def everything_of(parameters, optimizer):
    """Tensors of an optimizer and its parameters, and how often each was written."""
    states = [value for state in optimizer.state.values() for value in state.values()]
    tensors = [t for t in [*parameters, *states] if isinstance(t, torch.Tensor)]
    versions = [t._version for t in tensors] + [p.grad._version for p in parameters]
    return [t.detach().clone() for t in tensors], versions


def train(make, decorate, calls=8, starts=None, before=None):
    """Steps of an optimizer on drawn gradients; what is left, and the step."""
    parameters = [nn.Parameter(t.clone()) for t in starts or some_tensors()]
    optimizer = make(parameters)
    gradients = torch.Generator().manual_seed(3)

    @decorate
    def step():
        for parameter in parameters:
            drawn = torch.randn(parameter.shape, generator=gradients).to(parameter.dtype)
            parameter.grad = torch.empty_like(parameter).copy_(drawn)
        optimizer.step()

    for index in range(calls):
        if before:
            before(index, optimizer)
        step()
        if decorate is not eager:
            _C.wait_for_kernels()
    return everything_of(parameters, optimizer), step


def expect_same(make, joined=True, decorate=default, **how):
    (own, own_versions), step = train(make, decorate, **how)
    (theirs, versions), _ = train(make, eager, **how)
    assert is_joined(step) == joined
    assert own_versions == versions, "a version counter tells how often a tensor was written"
    for mine, other in zip(own, theirs, strict=True):
        assert mine.dtype == other.dtype and mine.stride() == other.stride()
        torch.testing.assert_close(mine, other, rtol=2e-6, atol=2e-6)
    return step


@pytest.mark.parametrize("kind", KINDS)
def test_step_is_one_op(kind):
    step = expect_same(KINDS[kind])
    asked = [line for line in lockstep.graph_text(step).splitlines() if "aten::lerp" in line]
    assert not asked, "parameters were updated one after the other"
    stats = lockstep.stats(step)
    assert stats["graph_ops"] > 0.5 * stats["ops"]
    assert set(stats["reasons"]) == {"tracing"}


@pytest.mark.parametrize("kind", ["sgd", "momentum", "nesterov"])
def test_rounds_as_the_loop_does(kind):
    """No square roots: PyTorch's vector functions for these round otherwise than its own loop."""
    (own, _), _ = train(KINDS[kind], default)
    (theirs, _), _ = train(KINDS[kind], eager)
    for mine, other in zip(own, theirs, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("runner", ["behind", "yielding", "inplace"])
def test_same_bits_whoever_computes(runner):
    (want, _), _ = train(KINDS["adamw"], default)
    (got, _), _ = train(KINDS["adamw"], lambda fn: default(fn, runner=runner))
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


def test_rates_may_change_from_step_to_step():
    def before(index, optimizer):
        optimizer.param_groups[0]["lr"] = 0.01 / (index + 1)
        optimizer.param_groups[0]["betas"] = (0.9 - 0.01 * index, 0.99)

    step = expect_same(KINDS["adam"], before=before)
    assert lockstep.stats(step)["traced_calls"] == 2, (
        "states are made in the first call; then nothing is new"
    )


@pytest.mark.parametrize("kind", ["adam", "momentum", "adagrad", "rmsprop"])
def test_nothing_is_kept_of_a_rate(kind):
    counts = []

    def before(index, optimizer):
        optimizer.param_groups[0]["lr"] = 0.01 / (index + 1)
        counts.append(_C.signature_count())

    train(KINDS[kind], default, calls=12, before=before)
    assert counts[4] == counts[-1]


def test_nothing_is_kept_of_numbers_in_lists():
    """Those that count steps are others in each step."""
    counts = []
    train(
        lambda p: torch.optim.NAdam(p, foreach=True),
        default,
        calls=12,
        before=lambda *_: counts.append(_C.signature_count()),
    )
    assert counts[4] == counts[-1]


@pytest.mark.parametrize("optimizers", ["joined", "single"])
def test_counting_by_hand_raises_versions(optimizers):
    @lockstep.function(when="always", numerics="default", optimizers=optimizers)
    def step(weight):
        count = torch.tensor(3.0)
        product = weight * count  # keeps the count for the weight's gradient
        torch._foreach_add_([count], 1.0)
        product.backward()

    for _ in range(4):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            step(torch.tensor(2.0, requires_grad=True))


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 1.5},
        {"eps": 1e-50},
        {"eps": 1e39},
        {"weight_decay": 1e-46},
        {"lr": 1e-46, "momentum": 0.5},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("size", [1.0, 1e25, float("inf")])
def test_rates_out_of_the_ordinary(options, size):
    starts = [size * t for t in some_tensors()]
    results = []
    for decorate in (default, eager):
        parameters = [nn.Parameter(t.clone()) for t in starts]
        optimizer = torch.optim.RMSprop(parameters, **{"lr": 0.01, "centered": True} | options)

        @decorate
        def step():
            for parameter, start in zip(parameters, starts, strict=True):
                parameter.grad = 0.5 * start
            optimizer.step()

        for _ in range(6):
            step()
            _C.wait_for_kernels()
        results.append(everything_of(parameters, optimizer)[0])
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-6, atol=2e-6, equal_nan=True)


def test_a_loaded_state_goes_on():
    kept = {}

    def before(index, optimizer):
        if index == 3:
            kept.update(copy.deepcopy(optimizer.state_dict()))
        if index == 6:
            optimizer.load_state_dict(kept)

    expect_same(KINDS["adamw"], before=before)


def test_groups_and_parameters_without_gradient():
    def run(decorate):
        parameters = [nn.Parameter(t) for t in some_tensors()]
        optimizer = torch.optim.Adam(
            [{"params": parameters[:2], "lr": 0.1}, {"params": parameters[2:], "weight_decay": 0.1}]
        )

        @decorate
        def step(index):
            optimizer.zero_grad()
            used = [p for number, p in enumerate(parameters) if (number + index) % 3]
            sum((p * p).sum() for p in used).backward()
            optimizer.step()

        for index in range(9):
            step(index)
        return [p.detach() for p in parameters], step

    (own, step), (theirs, _) = run(default), run(eager)
    assert is_joined(step)
    for mine, other in zip(own, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adam(p, torch.tensor(1e-2)),
        lambda p: torch.optim.Adam(p, 1e-2, foreach=True),
        lambda p: torch.optim.Adamax(p, 1e-2),
    ],
    ids=["rate_is_a_tensor", "foreach", "adamax"],
)
def test_what_is_not_joined_goes_as_it_went(make):
    expect_same(make, joined=False)


def test_other_types_and_layouts_are_not_joined():
    starts = [t.double() for t in some_tensors()]
    expect_same(KINDS["adam"], joined=False, starts=starts)

    def gradient_laid_out_otherwise(decorate):
        parameter = nn.Parameter(torch.arange(12.0).view(3, 4))
        optimizer = torch.optim.SGD([parameter], 0.1)

        @decorate
        def step():
            parameter.grad = torch.arange(12.0).view(4, 3).t()
            optimizer.step()

        for _ in range(4):
            step()
        return parameter.detach(), step

    (own, step), (theirs, _) = (
        gradient_laid_out_otherwise(default),
        gradient_laid_out_otherwise(eager),
    )
    assert not is_joined(step)
    assert torch.equal(own, theirs)


def test_strides_of_single_items_say_nothing():
    """Gradients of depthwise convolutions' weights have other ones than the weights."""

    def run(decorate):
        torch.manual_seed(0)
        net = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        optimizer = torch.optim.SGD(net.parameters(), 1e-5, momentum=0.9)
        maps = torch.randn(4, 9, 9, 16).permute(0, 3, 1, 2)

        @decorate
        def step():
            optimizer.zero_grad()
            net(maps).square().sum().backward()
            optimizer.step()
            return net.weight.grad.stride()

        strides = [step() for _ in range(5)]
        return net.weight.detach(), strides, step

    own, strides, step = run(lambda fn: default(fn, without="choose_kernels"))
    theirs, eager_strides, _ = run(eager)
    assert strides == eager_strides
    assert strides[0] != own.stride(), "this PyTorch gives the strides of the weights"
    assert is_joined(step)
    torch.testing.assert_close(own, theirs, rtol=2e-6, atol=2e-6)


def test_parameters_that_share_memory_are_updated_in_order():
    def run(decorate):
        flat = torch.arange(10.0)
        parameters = [nn.Parameter(flat[:6]), nn.Parameter(flat[4:])]
        optimizer = torch.optim.SGD(parameters, 0.1, weight_decay=0.5)

        @decorate
        def step():
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()

        for _ in range(5):
            step()
        return flat, step

    (own, step), (theirs, _) = run(default), run(eager)
    assert not is_joined(step)
    assert torch.equal(own, theirs)


def test_gradients_may_be_needed_again():
    """A step writes no gradient, as its op's schema has it: whoever saved one can go on."""

    def run(decorate):
        parameter = nn.Parameter(torch.arange(1.0, 5.0))
        optimizer = torch.optim.SGD([parameter], 0.1)

        @decorate
        def step():
            optimizer.zero_grad()
            (parameter.grad,) = torch.autograd.grad(
                (parameter**3).sum(), parameter, create_graph=True
            )
            penalty = (parameter.grad * parameter.grad).sum()
            optimizer.param_groups[0]["lr"] = 0.0
            (found,) = torch.autograd.grad(penalty, parameter, retain_graph=True)
            optimizer.step()
            return found

        return [step() for _ in range(4)], step

    own, step = run(default)
    theirs, _ = run(eager)
    assert is_joined(step)
    for mine, other in zip(own, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_modes_see_each_op():
    class Names(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    def run(decorate):
        parameter = nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([parameter], 0.1, momentum=0.9)
        parameter.grad = torch.ones(4)
        seen = []

        @decorate
        def step():
            with Names() as mode:
                optimizer.step()
            seen.append(mode.names)

        for _ in range(4):
            step()
        return seen

    assert run(default) == run(eager)


def test_strict_and_the_knob_switch_it_off():
    for options in ({"numerics": "strict"}, {"optimizers": "single"}):
        _, step = train(KINDS["adam"], lambda fn, o=options: default(fn, **o))
        assert not is_joined(step)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        _, step = train(KINDS["adam"], default)
    finally:
        torch.use_deterministic_algorithms(before)
    assert not is_joined(step)


def test_errors_are_those_of_the_loop():
    parameter = nn.Parameter(torch.ones(3))
    single = import_module("torch.optim.sgd")._single_tensor_sgd

    @default
    def step():  # with gradients enabled: a leaf is written in place
        single(
            [parameter], [torch.ones(3)], [], None, None, weight_decay=0.0, momentum=0.0, lr=0.1,
            dampening=0.0, nesterov=False, maximize=False, has_sparse_grad=False,
        )  # fmt: skip

    for _ in range(3):
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            step()
    assert torch.equal(parameter.detach(), torch.ones(3))


def run_sgd(decorate, prepare, calls=5, **options):
    """Steps of SGD after `prepare(parameters)`, which may give gradients; the parameters."""
    parameters = [nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))]
    for parameter in parameters:
        parameter.grad = torch.full((4,), 2.0)
    replaced = prepare(parameters)
    parameters = replaced or parameters
    optimizer = torch.optim.SGD(parameters, **{"lr": 0.1, "momentum": 0.5, **options})

    @decorate
    def step():
        optimizer.step()

    for _ in range(calls):
        step()
    return torch.stack([p.detach().clone() for p in parameters]), step


class Zeroing(torch.Tensor):
    """Says itself what adding to another tensor does."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") == "add_":
            with torch._C.DisableTorchFunctionSubclass():
                return args[0].zero_()
        return super().__torch_function__(func, types, args, kwargs or {})


def share_a_buffer(parameters):
    buffer = np.zeros(4, dtype=np.float32)
    parameters[:] = [nn.Parameter(torch.from_numpy(buffer)) for _ in parameters]
    for parameter in parameters:
        parameter.grad = torch.ones(4)


def lend_gradients(parameters):
    for parameter in parameters:
        parameter.grad = torch.from_numpy(parameter.detach().numpy())


def make_gradients_special(parameters):
    for parameter in parameters:
        parameter.grad = parameter.grad.as_subclass(Zeroing)


@pytest.mark.parametrize("prepare", [share_a_buffer, lend_gradients, make_gradients_special])
def test_memory_and_types_of_others_are_left_to_the_loop(prepare):
    own, step = run_sgd(default, prepare)
    theirs, _ = run_sgd(eager, prepare)
    assert not is_joined(step)
    assert torch.equal(own, theirs)


def test_what_shares_memory_until_written_is_not_written_through():
    def run(decorate):
        parameter = nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([parameter], 0.1)
        kept = []

        @decorate
        def step():
            kept.append(torch._lazy_clone(parameter.detach()))
            parameter.grad = torch.ones(4)
            optimizer.step()

        for _ in range(5):
            step()
        return torch.stack(kept)

    assert torch.equal(run(default), run(eager))


def test_tangents_are_carried_along():
    def run(decorate):
        parameter = nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([parameter], 0.1)

        @decorate
        def step():
            with forward_ad.dual_level():
                parameter.grad = forward_ad.make_dual(torch.ones(4), torch.full((4,), 2.0))
                optimizer.step()
                return forward_ad.unpack_dual(parameter).tangent.clone()

        return torch.stack([step() for _ in range(4)])

    assert torch.equal(run(default), run(eager))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda p: torch.optim.SGD(p, 1e39), RuntimeError),
        (lambda p: torch.optim.Adam(p, 1e38), RuntimeError),
        (lambda p: torch.optim.Adagrad(p, 0.1, weight_decay=1e39), RuntimeError),
        (lambda p: torch.optim.SGD(p, 10**400), OverflowError),
        (lambda p: torch.optim.SGD(p, 0.1, weight_decay=True), RuntimeError),
        (lambda p: torch.optim.RMSprop(p, 0.1, weight_decay=True), RuntimeError),
    ],
    ids=["rate", "corrected_rate", "weight_decay", "integer", "truth", "truth_rmsprop"],
)
def test_numbers_that_do_not_fit_are_errors(make, error):
    def run(decorate):
        parameter = nn.Parameter(torch.ones(4))
        optimizer = make([parameter])

        @decorate
        def step():
            parameter.grad = torch.ones(4)
            optimizer.step()

        messages = []
        for _ in range(3):
            with pytest.raises(error) as caught:
                step()
            messages.append(str(caught.value))
        return messages, parameter.detach().tolist()

    assert run(default) == run(eager)


def test_functional_forms_take_what_they_took():
    sgd = import_module("torch.optim.sgd").sgd
    numbers = dict(
        weight_decay=0.0, momentum=0.0, lr=0.1, dampening=0.0, nesterov=False, maximize=False
    )
    parameter = torch.ones(3)

    @default
    def step():
        with torch.no_grad():
            sgd((parameter,), [torch.ones(3)], [None], **numbers)

    for _ in range(4):
        step()
    torch.testing.assert_close(parameter, torch.full((3,), 0.6))


def test_tracers_see_the_loop():
    sgd = import_module("torch.optim.sgd").sgd

    def update(parameter, gradient):
        result = parameter.clone()
        with torch.no_grad():
            sgd(
                [result], [gradient], [], weight_decay=0.0, momentum=0.0, lr=0.1, dampening=0.0,
                nesterov=False, maximize=False,
            )  # fmt: skip
        return result + 1

    @default
    def step():
        traced = torch.jit.trace(update, (torch.ones(3), torch.ones(3)), check_trace=False)
        return traced(torch.zeros(3), torch.full((3,), 5.0))

    for _ in range(3):
        assert torch.equal(step(), torch.full((3,), 0.5))


@pytest.mark.parametrize("name", ["adam", "sgd", "adagrad", "rmsprop"])
def test_loops_can_be_scripted(name):
    torch.jit.script(getattr(import_module(f"torch.optim.{name}"), name))
