"""Point 4: errors arrive as in eager: type, message, line, handler, and the state left behind."""

from __future__ import annotations

import _thread
import signal
import threading
import traceback
from pathlib import Path

import lockstep
import pytest
import torch
import torch.nn.functional as F
from cases import batch, busy, small_net
from failing_ops import BY_VALUE
from kit import OPTIONS, Case, check
from torch import nn

item = pytest.mark.item
ERRORS = (RuntimeError, IndexError, ValueError, TypeError, KeyError, AssertionError)


def _fail_by_layout(x):
    return x @ torch.ones(99)


def _fail_by_type(x):
    return torch.add(x, "text")


def _fail_in_python(x):
    return {"a": 1}["b"] + x


def _fail_in_backward(x):
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value * 2

        @staticmethod
        def backward(ctx, grad):
            raise KeyError("in backward")

    Broken.apply(x.requires_grad_()).sum().backward()


def _fail_by_version(x):
    leaf = x.detach().requires_grad_()
    out = leaf.exp()
    out.add_(1)
    out.sum().backward()


def _fail_by_wanting_gradients(x):
    leaf = x.detach().mT.requires_grad_()
    return leaf.as_strided_scatter(torch.zeros(2, 2), (2, 2), (1, 2))


BY_LAYOUT = {
    "layout": _fail_by_layout,
    "gradients": _fail_by_wanting_gradients,
    "type": _fail_by_type,
    "python": _fail_in_python,
    "backward": _fail_in_backward,
    "version": _fail_by_version,
}
BY_NAME = {
    "overload": lambda x: torch.ops.aten.mm.default(x, x[:3]),
    "packet": lambda x: torch.ops.aten.mm(x, x[:3]),
}


def _failing_case(fail, handler, run):
    """Fails in every second call, in the middle of work that draws, updates and logs."""
    net = small_net()
    total, log = torch.zeros(6), []

    def step(x, labels, is_failing):
        work = busy(x)[:5, :6] * x
        total.add_(net[0](x).sum())
        drawn = F.dropout(work, 0.5)
        log.append("asked")
        try:
            if is_failing:
                fail(work)
                total.add_(1000)
                torch.rand(9)
        except ERRORS as error:
            log.append((type(error).__name__, str(error), error.__traceback__.tb_lineno))
            if handler == "caller":
                raise
            if handler == "caller, from":
                raise ValueError("translated") from error
        log.append(drawn.sum().item())
        total.mul_(0.5)
        return net(x), drawn, total.sum()

    def inputs(number):
        return *batch(), number % 2 == 1

    return Case(step, inputs, net=net, total=total, log=log)


def _check_failing(fail, handler):
    shots = check(
        lambda run: _failing_case(fail, handler, run), calls=6, raises=ERRORS, share=0.5
    )  # a share of a half: an op that may fail is computed at once, and backward may not be reached
    caught_inside = handler == "function"
    assert ["error" in shot for shot in shots] == [
        not caught_inside and n % 2 == 1 for n in range(6)
    ]
    assert sum(type(entry) is list for entry in shots[-1]["state"]["log"][1:]) == 3


@pytest.mark.parametrize(
    "handler",
    [
        pytest.param("function", marks=item("4.handler-in-the-function")),
        pytest.param("caller", marks=item("4.handler-in-a-caller")),
        pytest.param("caller, from", marks=item("4.handler-in-a-caller")),
    ],
)
@pytest.mark.parametrize("kind", BY_LAYOUT)
def test_errors(kind, handler):
    _check_failing(BY_LAYOUT[kind], handler)


@pytest.mark.parametrize("handler", ["function", "caller"])
@pytest.mark.parametrize("kind", [pytest.param(k, marks=item(v[0])) for k, v in BY_VALUE.items()])
def test_errors_by_value(kind, handler):
    _check_failing(BY_VALUE[kind][1], handler)


@item("4.type-message-line")
def test_type_message_and_line():
    def make(run):
        def step(kind, x):
            if kind == 0:
                return x.reshape(7, 7)
            if kind == 1:
                return torch.cat([x, x[:, :2]])
            if kind == 2:
                return F.linear(x, torch.ones(3, 5))
            if kind == 3:
                return x.sum(dim=5)
            return x.to(torch.int64).mean()

        return Case(step, lambda n: (n % 5, torch.randn(5, 6)))

    shots = check(make, calls=10, raises=ERRORS, share=None)  # no op of a call succeeds
    kinds = {tuple(shot["error"][1:3]) for shot in shots}
    lines = {shot["error"][3][-1][3] for shot in shots}
    assert len(kinds) == 5 and len(lines) == 5


@item("4.nothing-after-a-failing-op")
@pytest.mark.parametrize("fail", ["index_select", "inv", "cross_entropy"])
def test_nothing_asked_after_a_failing_op_has_happened(fail):
    """The ops after the failing one are on the known way, and must leave no mark when it fails."""

    def make(run):
        state = torch.zeros(3)
        generator = torch.Generator().manual_seed(4)

        def step(x, is_failing):
            work = busy(x)[:5, :6] * x
            state.add_(1)
            index = (torch.ones(2) * (777 if is_failing else 1) + work.sum() * 0).long()
            if fail == "index_select":
                out = work.index_select(0, index)
            elif fail == "inv":
                out = torch.linalg.inv(torch.eye(3) * (index.sum() < 100).float())
            else:
                out = F.cross_entropy(work[:2], index)
            state.add_(100 + torch.rand(3, generator=generator))
            state.mul_(torch.rand(3) + out.sum() * 0)
            return out, state

        inputs = lambda n: (torch.randn(5, 6), n in (3, 5))  # noqa: E731
        return Case(step, inputs, state=state, generator=generator)

    shots = check(make, calls=8, raises=ERRORS, share=0.8)  # some ops that may fail run at once
    assert ["error" in shot for shot in shots] == [n in (3, 5) for n in range(8)]


@item("4.state-as-in-eager")
@pytest.mark.parametrize("place", ["forward", "backward", "optimizer"])
def test_model_optimizer_and_generators_after_an_error(place):
    def make(run):
        net = small_net()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        failing = [False]

        def fail(*_):
            if failing[0]:
                raise ValueError(place)

        def hook_fails(grad):
            fail()
            return grad * 2

        def step(x, labels):
            optimizer.zero_grad()
            hidden = net[:3](x)
            if place == "forward":
                fail()
            if place == "backward":
                hidden.register_hook(hook_fails)
            F.cross_entropy(net[3:](hidden), labels).backward()
            optimizer.step()
            return hidden

        if place == "optimizer":
            optimizer.register_step_pre_hook(fail)

        def inputs(number):
            failing[0] = number in (3, 5)
            return batch()

        return Case(step, inputs, net=net, optimizer=optimizer)

    shots = check(make, calls=8, raises=(ValueError,))
    assert ["error" in shot for shot in shots] == [n in (3, 5) for n in range(8)]


def _simulated_signal():
    _thread.interrupt_main()


def _real_signal():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@pytest.fixture
def interruptible():
    """Python's own handler: in the background of a shell SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@item("4.keyboard-interrupt")
@pytest.mark.parametrize("interrupt", [_simulated_signal, _real_signal])
def test_keyboard_interrupt_during_a_wait(interrupt, interruptible):
    """The interrupted call leaves what was asked before the wait, and nothing of what follows."""

    def make_step(before_wait=lambda: None):
        weight, marks = torch.ones(900, 900), []
        total = torch.zeros(2)

        def step(x):
            total.add_(1)
            deep = weight * x
            for _ in range(8):
                deep = torch.tanh(deep @ weight * 1e-4)
            marks.append("asked")
            before_wait()
            value = deep.sum().item()
            marks.append("read")
            total.add_(value)
            return deep

        return step, total, marks

    plain, plain_total, _ = make_step()
    want = [plain(torch.tensor(float(n))) for n in (1, 2, 4)]
    timers = []
    inner, total, marks = make_step(lambda: [timer.start() for timer in timers])
    step = lockstep.function(inner, **OPTIONS)
    got = [step(torch.tensor(float(n))) for n in (1, 2)]
    before, marks[:] = total.clone(), []
    timers.append(threading.Timer(0.02, interrupt))
    with pytest.raises(KeyboardInterrupt):
        step(torch.tensor(3.0))
        while timers[0].is_alive():  # the call ended too early: let the interrupt hit here
            timers[0].join(0.01)
        marks.append("too late")
    timers.pop().join()
    assert marks == ["asked"]
    assert torch.equal(total, before + 1)
    total.sub_(1)
    got.append(step(torch.tensor(4.0)))
    assert torch.equal(total, plain_total)
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
    assert lockstep.stats(step)["graph_ops"] > 0


@item("4.tracebacks")
@pytest.mark.parametrize("trouble", ["layout", "python", "backward", "overload", "packet"])
def test_tracebacks_show_no_frames_of_ours(trouble):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x):
            return (BY_LAYOUT | BY_NAME)[trouble](self.layer(x))

    model = Model()

    def step(x):
        return model(busy(x)[:5, :6] * x)

    def frames(function):
        with pytest.raises(ERRORS) as caught:
            function(torch.randn(5, 6))
        listed = traceback.extract_tb(caught.value.__traceback__)
        return [(frame.filename, frame.name, frame.lineno) for frame in listed]

    want = frames(step)
    decorated = lockstep.function(step, **OPTIONS)
    package = str(Path(lockstep.__file__).parent)
    for _ in range(4):
        got = frames(decorated)
        middle = [frame for frame in got if not frame[0].startswith(package)]
        first = next(i for i, frame in enumerate(got) if frame[1] == "step")
        assert middle == want
        assert not any(frame[0].startswith(package) for frame in got[first:])
