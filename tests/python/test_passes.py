"""Passes of the graph runner: each can be switched off by name, and says what it does."""

import lockstep
import pytest
import torch
from lockstep import Error
from lockstep.knobs import PASSES, current, for_core
from torch import nn
from torch.nn import functional as F

CALLS = 8
CHANGE_BITS = {"map_order", "fuse_rows", "fuse_totals", "choose_kernels"}  # other kernels run


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))


class Net(nn.Module):
    """Convolutions, both norms, activations in place and not, a residual, softmax and a loss."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(3))
        self.layer_norm, self.last = nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, x):
        x = F.relu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(x))
        x = F.relu_(y + x)
        x = F.leaky_relu(self.norms[2](x), 0.1)
        x = self.layer_norm(x.mean((2, 3)))
        return self.last(torch.softmax(x, 1) * x)


def train(**options):
    """All losses, parameters and buffers as float64, one after the other."""
    torch.manual_seed(3)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    x, labels = torch.randn(8, 3, 12, 10), torch.randint(0, 10, (8,))

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        return loss

    run = lockstep.function(step, when="always", numerics="default", **options) if options else step
    losses = [run().detach() for _ in range(CALLS)]
    if options:
        assert lockstep.stats(run)["graph_ops"] > 0
    return torch.cat([t.double().flatten() for t in [*losses, *net.state_dict().values()]])


def test_without_any_pass_it_is_the_same_training():
    eager = train()
    for without in [(), *PASSES, tuple(PASSES)]:
        torch.testing.assert_close(train(without=without), eager, rtol=1e-3, atol=1e-4)


def test_passes_that_only_save_time_change_no_bits():
    expected = train(deterministic=True)
    for name in sorted(set(PASSES) - CHANGE_BITS):
        assert torch.equal(train(deterministic=True, without=name), expected), name


def test_what_is_switched_off_is_not_done():
    def ops_of(**options):
        x = torch.randn(4, 6, 8, 8)
        norm = nn.BatchNorm2d(6)

        def step():
            with torch.no_grad():
                return F.relu_(norm(x)) + 1

        options |= {"numerics": "default", "deterministic": True, "when": "always"}
        run = lockstep.function(step, runner="inplace", **options)  # all wait until the call ends
        for _ in range(3):
            run()
        with lockstep.profile(run) as profile:
            run()
        return {row["op"]: row for row in profile.by_op()}

    assert ops_of()["aten::native_batch_norm"]["kernels"] == 2
    whole = ops_of(without="split")
    assert whole["aten::native_batch_norm"]["kernels"] == 1
    assert whole["aten::relu_"]["fused"] == whole["aten::add.Tensor"]["fused"] == 1


def test_names_come_as_a_list_or_in_one_string(monkeypatch):
    assert for_core({"without": ("split", "fuse")})[1]["without"] == ["split", "fuse"]
    assert for_core({"without": "split, fuse,"})[1]["without"] == ["split", "fuse"]
    assert for_core({})[1]["without"] == []
    monkeypatch.setenv("LOCKSTEP_WITHOUT", "map_order,reorder")
    assert for_core({})[1]["without"] == ["map_order", "reorder"]
    with lockstep.config(without=[]):
        assert current({})["without"] == ()


@pytest.mark.parametrize(
    "value", ["splits", ["split", "none"], 3, None, [1], b"split", iter(["split"])]
)
def test_what_is_no_pass_is_refused(value):
    with pytest.raises(Error, match="use some of 'split', 'map_order'"):
        lockstep.function(lambda: None, without=value)


def bits(tensors):
    return [t.detach().numpy().tobytes() for t in tensors]


def rows_of_calls_that_give(fast, expected):
    """All calls give the same bits; what the profile says of each op in the last one."""
    for _ in range(6):
        assert bits(fast()) == expected
    with lockstep.profile(fast) as profile:
        assert bits(fast()) == expected
    return {row["op"]: row for row in profile.by_op()}


@pytest.mark.parametrize("runner", ["behind", "inplace", "yielding"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_gradients_of_steps_are_added_where_they_belong(runner, deterministic):
    """Bit for bit, to the sign of zero, though most of what eager adds is never made."""
    torch.manual_seed(0)
    sequence = torch.randn(6, 40, 16, requires_grad=True)
    sequence.data[:, ::3] *= -0.0
    scale = torch.randn(6, 16, requires_grad=True)

    def scan():
        sequence.grad = scale.grad = None
        state = scale * 0
        for step in range(40):
            state = sequence[:, step] * state + sequence[:, max(step - 3, 0) : step + 1, 2:].sum()
            state = state.clamp(-2, 2) * scale
        (state * sequence[:, -1].sign()).sum().backward()
        return sequence.grad, scale.grad

    expected = bits(scan())
    options = {"numerics": "default", "when": "always", "runner": runner}
    without = ("fuse", "fuse_rows", "fuse_totals")  # sums and products round as eager's
    fast = lockstep.function(scan, without=without, deterministic=deterministic, **options)
    rows = rows_of_calls_that_give(fast, expected)
    if runner == "inplace":  # else it is chance which ops wait together
        added = [rows[f"aten::{op}_backward"]["fused"] for op in ("select", "slice")]
        assert min(added) > 20, rows


@pytest.mark.parametrize("runner", ["behind", "inplace"])
def test_gradients_of_words_are_added_where_they_belong(runner):
    """Looked up in each step of a loop, and used once more as the weights of the head."""
    torch.manual_seed(0)
    words = nn.Embedding(300, 8, padding_idx=0)
    text = torch.randint(0, 300, (12, 5))

    def read():
        words.weight.grad = None
        state = torch.zeros(5, 8)
        for step in text:
            state = (state + words(step)).clamp(-1, 1)
        scores = (state[:, None] * words.weight[:40]).sum(2)
        (scores * scores).sum().backward()
        return (words.weight.grad,)

    expected = bits(read())
    without = ("fuse", "fuse_rows", "fuse_totals")
    fast = lockstep.function(
        read, when="always", numerics="default", runner=runner, without=without
    )
    rows = rows_of_calls_that_give(fast, expected)
    if runner == "inplace":  # else it is chance which ops wait together
        assert rows["aten::embedding_dense_backward"]["fused"] > 5, rows


aten = torch.ops.aten


def add_rows(total, row, count):
    """As autograd does it for the first rows of a tensor."""
    for index in range(count):
        part = aten.select_backward(row * 1.0, list(total.shape), 0, index)
        total.add_(part)
        del part


def exactly(fn, **options):
    return lockstep.function(fn, **{"when": "always", "numerics": "default", **options})


@pytest.mark.parametrize("runner", ["inplace", "behind"])
def test_what_others_write_between_sums_is_seen(runner):
    """To the sign of zero: by plain code between calls, and by an op of new sizes within one."""
    gradients = torch.zeros(40, 64)

    def accumulate(count):
        add_rows(gradients, torch.ones(64), 2)
        gradients[20 : 20 + count].copysign_(torch.tensor(-1.0))
        add_rows(gradients, torch.ones(64), 2)

    def run(step):
        gradients.zero_()
        for _ in range(2):
            step(1)
        gradients.neg_()  # most of them are -0.0 now
        for count in (1, 2, 3):
            step(count)
        return bits([gradients])

    expected = run(accumulate)
    fast = exactly(accumulate, runner=runner, deterministic=True)
    for _ in range(3):
        assert run(fast) == expected


@pytest.mark.parametrize("runner", ["inplace", "behind"])
def test_sums_where_denormals_are_flushed(runner):
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush denormals")
    small = [torch.full((64,), value) for value in (1.0, 1.2e-38, -1.3e-38, 1.0)]

    def step():
        total = torch.zeros(40, 64)
        for index, row in zip((1, 0, 0, 3), small, strict=True):
            part = aten.select_backward(row, [40, 64], 0, index)
            total.add_(part)
            del part
        return total

    try:
        expected = bits([step()])
        fast = exactly(step, runner=runner)
        for _ in range(6):
            assert bits([fast()]) == expected
    finally:
        torch.set_flush_denormal(False)


def test_nothing_is_added_after_a_late_error():
    total, words = torch.zeros(40, 64), torch.randn(10, 4)
    places = torch.tensor([1, 2])

    def step():
        part = aten.select_backward(torch.ones(64), [40, 64], 0, 3)
        torch.embedding(words, places)
        total.add_(part)
        del part

    fast = exactly(step, runner="inplace", errors="late")
    for _ in range(4):
        fast()
    total.zero_()
    places[1] = 99
    with pytest.raises(IndexError):
        fast()
    assert not total.any()
