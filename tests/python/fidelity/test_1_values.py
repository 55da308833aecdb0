"""Point 1: values, gradients, state, generators and ambient switches after every step."""

from __future__ import annotations

import random
import threading

import lockstep
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cases import batch, small_net, train
from kit import Case, check
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

item = pytest.mark.item


@item("1.values")
def test_values():
    def make(run):
        net = small_net()

        def step(x, labels):
            logits = net(x)
            pieces = [logits.softmax(1), logits.argmax(1), logits.std(), x.T @ logits]
            pieces += [torch.full((2,), float("nan")), logits / 0, -logits.detach() * 0]
            return {"pieces": pieces, "sorted": logits.sort(), "chunks": logits.chunk(3, 1)}

        return Case(step, batch, net=net)

    check(make)


@item("1.values")
@pytest.mark.parametrize("threads", [1, 2])
def test_values_of_parallel_kernels(threads):
    def make(run):
        torch.set_num_threads(threads)
        net = nn.Sequential(nn.Linear(64, 512), nn.LayerNorm(512), nn.GELU(), nn.Linear(512, 3))

        def step(x):
            loss = net(x).softmax(0).square().sum()
            loss.backward()
            return loss, x.sum(), x.norm(dim=0)

        return Case(step, lambda i: (torch.randn(600, 64),), net=net)

    check(make)


@item("1.gradients")
def test_gradients():
    def make(run):
        net = small_net()

        def step(x, labels):
            x.requires_grad_()
            hidden = net[0](x)
            hidden.retain_grad()
            F.cross_entropy(net[1:](hidden), labels).backward()
            return x, hidden

        return Case(step, batch, net=net)

    shots = check(make)
    assert "grad" in shots[-1]["result"][1]


def _training(run, optimizer=torch.optim.Adam, net=None, **options):
    net = net or small_net()
    opt = optimizer(net.parameters(), lr=0.01, **options)
    return Case(lambda x, y: train(net, opt, x, y), batch, net=net, opt=opt)


@item("1.parameters")
def test_parameters():
    shots = check(lambda run: _training(run, torch.optim.SGD), calls=8)
    weights = [shot["state"]["net"]["tensors"]["0.weight"]["data"] for shot in shots]
    assert len(set(weights)) == len(weights)


@item("1.buffers")
def test_buffers():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(6, momentum=None)
            self.layer = nn.Linear(6, 3)
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
            self.register_buffer("highest", torch.full((6,), -9.0), persistent=False)

        def forward(self, x):
            self.seen += x.shape[0]
            self.highest = torch.maximum(self.highest, x.amax(0))
            return self.layer(self.norm(x))

    check(lambda run: _training(run, net=Counting()), calls=6)


@item("1.optimizer-state")
@pytest.mark.parametrize(
    "options", [{"amsgrad": True}, {"weight_decay": 0.1}, {"capturable": False}]
)
def test_optimizer_state(options):
    shots = check(lambda run: _training(run, **options), calls=6)
    state = shots[-1]["state"]["opt"]["state"]
    assert "exp_avg_sq" in repr(state)


@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(lambda: torch.rand(3), marks=item("1.rng-torch")),
        pytest.param(lambda: torch.tensor(np.random.rand(3)), marks=item("1.rng-numpy")),
        pytest.param(lambda: torch.tensor(random.random()), marks=item("1.rng-random")),
    ],
    ids=["torch", "numpy", "random"],
)
def test_generator_state_after_every_step(draw):
    def make(run):
        def step(x, labels):
            noise = draw()
            return (x * noise.sum()).tanh(), noise

        return Case(step, batch)

    shots = check(make)
    states = [repr(shot["generators"]) for shot in shots]
    assert len(set(states)) == len(states)


@item("1.dropout")
@pytest.mark.parametrize("kind", ["dropout", "alpha", "feature", "inplace"])
def test_dropout(kind):
    def make(run):
        drop = {
            "dropout": lambda x: F.dropout(x, 0.4),
            "alpha": lambda x: F.alpha_dropout(x, 0.4, training=True),
            "feature": lambda x: F.dropout1d(x, 0.4),
            "inplace": lambda x: F.dropout(x * 1, 0.4, inplace=True),
        }[kind]
        weight = nn.Parameter(torch.randn(6, 6))

        def step(x, labels):
            out = drop(drop(x @ weight).relu())
            out.sum().backward()
            return out, torch.rand(2)

        return Case(step, batch, weight=weight)

    check(make)


@item("1.rand")
def test_rand_family():
    def make(run):
        def step(x, labels):
            parts = [torch.rand(3), torch.randn(2, 3), torch.randint(0, 9, (4,)), torch.randperm(7)]
            parts += [torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 5)]
            parts += [torch.normal(x, 1.0), torch.bernoulli(x.sigmoid()), torch.poisson(x.abs())]
            parts += [x.clone().uniform_(), x.clone().exponential_(), x.clone().geometric_(0.5)]
            parts += [x.clone().cauchy_(), x.clone().log_normal_(), x.clone().random_(3)]
            return parts

        return Case(step, batch)

    check(make)


@item("1.multinomial")
def test_multinomial():
    def make(run):
        def step(x, labels):
            weights = x.softmax(1)
            picked = torch.multinomial(weights, 2)
            with_replacement = torch.multinomial(weights, 9, replacement=True)
            return weights.gather(1, picked), with_replacement

        return Case(step, batch)

    check(make)


@item("1.manual-seed")
def test_manual_seed_in_the_middle():
    def make(run):
        seeds = iter(range(100))

        def step(x, labels):
            before = torch.rand(3) + F.dropout(x, 0.5).sum()
            torch.manual_seed(next(seeds))
            return before, torch.rand(3), F.dropout(x, 0.5)

        return Case(step, batch)

    check(make)


@item("1.rng-state")
def test_get_and_set_rng_state():
    def make(run):
        def step(x, labels):
            first = F.dropout(x, 0.5)
            state = torch.get_rng_state()
            second = F.dropout(x, 0.5)
            torch.set_rng_state(state)
            again = F.dropout(x, 0.5)
            with torch.random.fork_rng():
                torch.manual_seed(5)
                inner = torch.rand(2)
            return first, second, again, inner, torch.rand(2), state

        return Case(step, batch)

    shot = check(make)[-1]["result"]
    assert shot[2]["data"] == shot[3]["data"] != shot[1]["data"]


@item("1.private-generators")
def test_private_generators():
    def make(run):
        mine, other = torch.Generator().manual_seed(3), torch.Generator()

        def step(x, labels):
            first = torch.rand(3, generator=mine)
            state = mine.get_state()
            second = torch.randn(3, generator=mine)
            other.set_state(state)
            again = torch.randn(3, generator=other)
            clone = mine.clone_state()
            clone.manual_seed(clone.initial_seed() + 1)
            picked = torch.randperm(6, generator=clone)
            return first, second, again, picked, x.clone().normal_(generator=mine), torch.rand(1)

        return Case(step, batch, mine=mine, other=other)

    check(make)


@item("1.default-dtype")
def test_default_dtype_changed():
    def make(run):
        def step(x, labels):
            first = torch.ones(2) / 3 + labels.sum() / 7
            torch.set_default_dtype(torch.float64)
            second = torch.ones(2) / 3 + labels.sum() / 7
            torch.set_default_dtype(torch.float32)
            return first, second, torch.arange(3) * 0.5 + labels.sum() / 7

        return Case(step, batch)

    check(make)


@item("1.flush-denormal")
def test_flush_denormal_changed():
    if not torch.set_flush_denormal(False) or not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    torch.set_flush_denormal(False)

    def make(run):
        tiny = torch.full((40,), 1.2e-38)

        def step(x, labels):
            kept = tiny * 0.25
            torch.set_flush_denormal(True)
            flushed = tiny * 0.25
            torch.set_flush_denormal(False)
            return kept, flushed, tiny * 0.125

        return Case(step, batch)

    kept, flushed, again = check(make)[-1]["result"][1:]
    assert any(kept["data"]) and not any(flushed["data"]) and any(again["data"])


@item("1.flush-denormal")
def test_flush_denormal_of_another_thread_that_reads():
    """In place it computes what it reads itself, as the thread that asked for it would."""
    if not torch.set_flush_denormal(False) or not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    torch.set_flush_denormal(False)
    asked, shared, found = threading.Event(), [], []

    def read():
        asked.wait(60)
        found.append((torch.tensor([1e-40]) * 1).item())
        found.append(shared[-1].sum().item())
        found.append((torch.tensor([1e-40]) * 1).item())

    reader = threading.Thread(target=read)

    @lockstep.function(when="always", numerics="default", runner="inplace")
    def step(x, is_read):
        shared.append(((x * 2).exp() + 1).relu())
        if is_read:
            asked.set()
            reader.join(60)
        return shared[-1]

    reader.start()
    try:
        torch.set_flush_denormal(True)
        for is_read in (*[False] * 5, True):
            last = step(torch.rand(1000), is_read)
    finally:
        torch.set_flush_denormal(False)
    assert found[0] == found[2] > 0
    assert found[1] == pytest.approx(last.sum().item())


@item("1.thread-count")
def test_thread_count_changed():
    def make(run):
        many = torch.randn(300_000)

        def step(x, labels):
            values = many * x[0, 0]
            torch.set_num_threads(2)
            two = values.sum()
            torch.set_num_threads(1)
            one = values.sum()
            torch.set_num_threads(2)
            return two, one, values.sum(), torch.get_num_threads()

        return Case(step, batch)

    results = [shot["result"] for shot in check(make)]
    assert any(r[1]["data"] != r[2]["data"] for r in results), "one and two threads gave equal sums"


@item("1.deterministic-algorithms")
def test_deterministic_algorithms_changed():
    def make(run):
        def step(x, labels):
            torch.use_deterministic_algorithms(True)
            filled = torch.empty(4)
            scattered = torch.zeros(3, 6).index_add(0, labels, x)
            torch.use_deterministic_algorithms(False)
            return filled, scattered, torch.zeros(3, 6).index_add(0, labels, x)

        return Case(step, batch)

    filled = check(make)[-1]["result"][1]
    assert filled["data"] == torch.full((4,), float("nan")).numpy().tobytes()


@item("1.onednn")
def test_onednn_flags_changed():
    def make(run):
        conv = nn.Conv2d(8, 16, 3, padding=1)
        image = torch.randn(2, 8, 12, 12)

        def step(x, labels):
            source = image * x[0, 0]
            with torch.backends.mkldnn.flags(enabled=True):
                fast = conv(source)
            with torch.backends.mkldnn.flags(enabled=False):
                plain = conv(source)
            (fast.sum() + plain.square().sum()).backward()
            return fast, plain, conv(source)

        return Case(step, batch, conv=conv)

    check(make)


@item("1.float32-precision")
def test_float32_precision_changed():
    def make(run):
        left, right = torch.randn(64, 64), torch.randn(64, 64)

        def step(x, labels):
            exact = (left * x[0, 0]) @ right
            torch.set_float32_matmul_precision("medium")
            rough = (left * x[0, 0]) @ right
            kept = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("highest")
            return exact, rough, kept, (left * x[0, 0]) @ right

        return Case(step, batch)

    check(make)


@item("1.sdpa-backend")
def test_sdpa_backend_changed():
    def make(run):
        weight = nn.Parameter(torch.randn(8, 24))

        def step(x, labels):
            query, key, value = (torch.randn(2, 2, 5, 8) @ weight).chunk(3, -1)
            outs = []
            for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
                with sdpa_kernel(backend):
                    outs.append(F.scaled_dot_product_attention(query, key, value, is_causal=True))
            (outs[0] * outs[1].square()).sum().backward()
            return outs

        return Case(step, batch, weight=weight)

    check(make)
